"""Set how jax computes: in float64, with dphead's own settings."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np


@contextmanager
def own_settings() -> Iterator[Any]:
    """Compute in float64 with dphead's own settings of jax, and yield `jax.numpy`.

    Some settings of the process, such as strict types, would make a charged fit fail.
    """
    import jax

    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.default_matmul_precision("highest"),
        jax.debug_nans(False),  # a factor of an indefinite matrix is NaN
        jax.debug_infs(False),
        jax.debug_key_reuse(False),
        jax.array_garbage_collection_guard("allow"),
        jax.transfer_guard("allow"),
        jax.no_tracing(False),
        # jit, as in the trace before the charge: without it, a traced step could fail
        jax.disable_jit(False),
        _no_mesh(),
    ):
        yield jax.numpy


def _no_mesh() -> AbstractContextManager[None]:
    """Compute without the caller's mesh (`jax.set_mesh`), which would place arrays."""
    import jax

    try:
        return jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))
    except ValueError:  # within jit, the caller's mesh applies
        return nullcontext()
