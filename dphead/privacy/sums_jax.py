"""The block sums of `queries.py` compiled by XLA, for accelerators; on a CPU numpy's matrix products are faster."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dphead.privacy.mechanism import Block
from dphead.privacy.queries import Params, Query, RowTransform


@lru_cache(maxsize=64)
def _compiled(query: Query, unit_norm: bool, append: float, clip_norm: float) -> Any:
    def block_sum(center: Any, scale: Any, weights: Any, x: Any, y: Any, keep: Any, out: Any) -> Any:
        params = Params(RowTransform(unit_norm, center, scale, append), weights)
        return query.clipped_sum(params, x, y, keep, clip_norm, out, jnp)

    return jax.jit(block_sum, donate_argnums=6)


def jax_block_sum(query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
    """Add a block's clipped statistics to `out`. Data are arguments, never constants; products at highest precision.

    Guarantee: the same float32 rows and float64 sums as `numpy_block_sum`, so the same rounding slack.
    """
    t = params.transform
    weights = None if params.weights is None else np.asarray(params.weights, np.float32)
    with jax.enable_x64(True):
        step = _compiled(query, t.unit_norm, t.append, float(clip_norm))
        return step(t.center, t.scale, weights, block.x, block.y.astype(np.int32), keep, jnp.asarray(out))
