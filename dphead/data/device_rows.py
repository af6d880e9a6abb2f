"""Read rows that are in jax arrays, on one device or sharded over several."""

from copy import copy
from typing import Any, Self

import numpy as np

from dphead.solvers.on_device import own_settings

_FLOATS = ("bfloat16", "float16", "float32", "float64")


class DeviceRows:
    """Give features (n, d) of a jax array block by block, each from its own device.

    The host gets one block at a time. For a sample, it gets whole shards: a gather on a
    device would be compiled for the sample's private size.

    Parameters
    ----------
    x : jax.Array of shape (n_rows, n_features)
        Features in bfloat16, float16, float32 or float64. Only rows may be sharded.

    Raises
    ------
    ValueError
        If a row is not whole on a device, or this process has rows with a gap.
    """

    def __init__(self, x: Any) -> None:
        self.shape, self.dtype, self.ndim = x.shape, np.dtype(np.float32), x.ndim
        found: dict[int, tuple[int, Any]] = {}
        for shard in x.addressable_shards:
            rows, columns = shard.index
            start, stop, _ = rows.indices(len(x))
            if columns.indices(x.shape[1])[:2] == (0, x.shape[1]):
                found.setdefault(start, (stop, shard.data))  # one of equal copies
        self._parts = [(start, *found[start]) for start in sorted(found)]
        starts, stops = ([part[i] for part in self._parts] for i in (0, 1))
        # Each row once: a gap or an overlap would leave a row out or count it twice.
        ours = (starts[:1], stops[-1:]) == ([0], [len(x)]) or not x.is_fully_addressable
        if not starts or starts[1:] != stops[:-1] or not ours:
            raise ValueError(
                "Each row must be whole on one device, got the sharding "
                f"{x.sharding}. Shard the rows only, such as with "
                "NamedSharding(mesh, PartitionSpec('rows'))."
            )
        self.slots = slice(starts[0], stops[-1])  # of this process
        self.is_shared = not x.is_fully_addressable  # with other processes

    def own(self) -> Self:
        """Return the rows of this process's devices."""
        rows, first = copy(self), self.slots.start
        rows._parts = [(a - first, b - first, part) for a, b, part in self._parts]
        rows.shape = (self.slots.stop - first, self.shape[1])
        rows.slots, rows.is_shared = slice(0, len(rows)), False
        return rows

    def require_one_process(self) -> None:
        """Raise ValueError if several processes hold these rows, or copies of them."""
        if self.is_shared:
            raise ValueError(
                "Several processes share these rows. Only private classifiers and "
                "DPPCA fit them. Use an array of this process."
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return rows as float32, for any index of numpy.

        Raises ValueError if other processes share them; `own` has this one's rows.
        """
        self.require_one_process()
        if isinstance(rows, slice):
            own = rows.step in (None, 1)
        else:
            kind = getattr(getattr(rows, "dtype", None), "kind", "")
            own = kind == "i" and rows.ndim == 1 and self._has(rows)
        if not own:  # as in scikit-learn's folds
            return np.asarray(self)[rows]
        with own_settings():  # with debug_nans, a row could stop a charged fit
            return self._run(rows) if isinstance(rows, slice) else self._chosen(rows)

    def _has(self, rows: np.ndarray) -> bool:
        return bool(((rows >= 0) & (rows < len(self))).all())

    def _chosen(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), self.shape[1]), np.float32)
        for start, stop, part in self._parts:
            own = (rows >= start) & (rows < stop)
            out[own] = _float32(np.asarray(part)[rows[own] - start])
        return out

    def _run(self, rows: slice) -> np.ndarray:
        first, last, _ = rows.indices(len(self))
        pieces = [
            _float32(_host(part)[max(first - start, 0) : max(last - start, 0)])
            for start, stop, part in self._parts
            if first < stop and last > start
        ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([np.empty((0, self.shape[1]), np.float32), *pieces])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all rows on the host, for checks of fits without privacy."""
        return np.asarray(self[:], dtype)


def _host(part: Any) -> Any:
    """Return a view of a processor's array. An accelerator copies its slices only."""
    return np.asarray(part) if part.device.platform == "cpu" else part


def _float32(rows: Any) -> np.ndarray:
    with np.errstate(all="ignore"):  # numbers beyond float32 would warn
        return np.require(rows, np.float32, ["C", "A"])


def is_traced(x: Any) -> bool:
    """Return whether an array is traced by a transformation of jax."""
    from jax.core import Tracer

    return isinstance(x, Tracer)


def refuse_traced(x: Any = None) -> None:
    """Raise ValueError if `x` is traced, or if a transformation traces the caller.

    Inside `jit`, each operation of jax gives a traced array, also on known arrays. A
    charged fit would then fail.
    """
    with own_settings() as jnp:
        traced = is_traced(x) or is_traced(jnp.zeros(()))
    if traced:
        raise ValueError(
            "dphead reads arrays outside of jax's transformations, but this call or an "
            "array is traced. Call it outside of jit, vmap and grad; "
            "`dphead.jax.scores`, `probabilities` and `predict` can be traced."
        )


def jax_array(x: Any) -> Any:
    """Return a jax array for `fit` or `predict`, read later if it has features.

    A matrix of floats becomes `DeviceRows`, and other arrays become numpy's.

    Raises
    ------
    ValueError
        If the array has no values that this process can read.
    """
    from jax import Array

    refuse_traced(x)
    if not isinstance(x, Array):
        raise ValueError(
            f"A {type(x).__name__} of jax is not an array. Pass a jax.Array, such as "
            "`ref[...]`."
        )
    if x.is_deleted():
        raise ValueError(
            f"An array of shape {x.shape} was deleted or donated. Pass a copy of it."
        )
    if x.ndim == 2 and str(x.dtype) in _FLOATS:
        return DeviceRows(x)
    if not x.is_fully_addressable:
        raise ValueError(
            f"Each process must have all labels and groups, got a part of {x.shape}. "
            "Pass them as numpy arrays."
        )
    return np.asarray(x)
