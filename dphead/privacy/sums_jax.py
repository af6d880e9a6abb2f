"""The block sums of `queries.py` compiled by XLA, for accelerators; on a CPU numpy's matrix products are faster."""

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dphead.privacy.mechanism import LARGE_PIECE, Block, KeptRows
from dphead.privacy.queries import Params, Query, RowTransform
from dphead.privacy.sums import CHUNK


def row_scores(rows: Any, weights: Any) -> Any:
    """rows (k, p) @ weights (p, m) in float32, traced by jax.

    Guarantee: one feature after another is added to all scores, in the order of the features; a library's product may
    add in an order of its own for some rows.
    """

    def add(j: Any, z: Any) -> Any:
        column = jax.lax.dynamic_slice_in_dim(rows, j, 1, axis=1)
        return z + column * jax.lax.dynamic_slice_in_dim(weights, j, 1, axis=0)

    first = rows[:, :1] * weights[:1]
    return jax.lax.fori_loop(1, weights.shape[0], add, first, unroll=4)


@lru_cache(maxsize=64)
def _compiled(query: Query, unit_norm: bool, append: float, clip_norm: float, in_place: bool, devices: int) -> Any:
    """`block_sum` for so many devices, compiled."""

    def block_sum(center: Any, scale: Any, weights: Any, x: Any, y: Any, keep: Any, out: Any) -> Any:
        """One device's rows and its sum out (1, *shape), to which their clipped statistics are added."""
        params = Params(RowTransform(unit_norm, center, scale, append), weights)
        return query.clipped_sum(params, x, y, keep, clip_norm, out[0], jnp, None, in_place)[None]

    if devices > 1:
        rows, same = PartitionSpec("rows"), PartitionSpec()
        block_sum = jax.shard_map(
            block_sum, mesh=_mesh(devices), in_specs=(same, same, same, rows, rows, rows, rows), out_specs=rows
        )
    return jax.jit(block_sum, donate_argnums=6)


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:devices]), ("rows",))


class _Partial:
    """Sums of one pass, one a device, that become one array when the pass is over. parts: (devices, *shape) float64."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.parts).sum(axis=0, dtype=np.float64)


def jax_block_sum(
    query: Query,
    params: Params,
    block: Block,
    keep: np.ndarray,
    clip_norm: float,
    out: Any,
    place: Callable[[np.ndarray, np.ndarray, int], Any] | None = None,
) -> Any:
    """Add a block's clipped statistics to `out`. Data are arguments, never constants; products at highest precision.

    Every device of this host takes an equal part of the block's rows, and has a float64 sum of its own until the pass
    is over. place: from slots, their rows and a number of devices to the rows there (`JaxSums`); None sends them.
    Guarantee: the same float32 rows, and sums as precise as `NumpySums` makes them: the same rounding slack.
    """
    t = params.transform
    weights = None if params.weights is None else np.asarray(params.weights, np.float32)
    size = len(block.x) if len(block.x) % LARGE_PIECE else LARGE_PIECE  # XLA holds the products of all chunks at once
    with jax.enable_x64(True):
        devices = gcd(size // CHUNK, len(jax.local_devices()))
        if not isinstance(out, _Partial):
            first = np.asarray(out)
            out = _Partial(np.concatenate([first[None], np.zeros((devices - 1, *first.shape))]))
        step = _compiled(query, t.unit_norm, t.append, float(clip_norm), block.in_place, devices)
        for part in (slice(i, i + size) for i in range(0, len(block.x), size)):
            x, y = block.x[part], block.y[part].astype(np.int32)
            x = place(block.index[part], x, devices) if place else x
            out = _Partial(step(t.center, t.scale, weights, x, y, keep[part], out.parts))
        return out


class JaxSums:
    """`jax_block_sum` with rows kept on the devices between passes, for one fit.

    memory: bytes of rows to keep.
    Guarantee: that of `KeptRows`; a kept row is transformed, masked and clipped anew.
    """

    def __init__(self, memory: int) -> None:
        self.kept = KeptRows(memory)

    def __call__(self, query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
        """The block sum."""

        def place(index: np.ndarray, x: np.ndarray, devices: int) -> Any:
            """The rows of these slots on the devices, kept if there is room."""
            where = NamedSharding(_mesh(devices), PartitionSpec("rows")) if devices > 1 else None
            kept = self.kept(params.transform, index, x, lambda _, x: jax.device_put(x, where))
            return x if kept is None else kept

        return jax_block_sum(query, params, block, keep, clip_norm, out, place)
