"""Read rows that are in jax arrays, on one device or sharded over several."""

from contextlib import nullcontext
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

from dphead.privacy.python_values import python_value
from dphead.solvers.on_device import own_settings


class DeviceRows:
    """Read features (n, d) of a jax array in blocks, from the devices that hold them.

    The host gets one block at a time. For a sample, it gets whole shards: a gather on a
    device would be compiled for the sample's private size.

    Parameters
    ----------
    x : jax.Array of shape (n_rows, n_features)
        Features in bfloat16, float16, float32 or float64. Only rows may be sharded.

    Raises
    ------
    ValueError
        If a row is divided over devices, or if a process's rows are not consecutive.
    """

    shared: ClassVar[int] = 0  # number of arrays so far that processes share

    def __init__(self, x: Any) -> None:
        import jax

        self.shape, self.dtype, self.ndim = x.shape, np.dtype(np.float32), x.ndim
        self.is_shared = not x.is_fully_addressable  # shared with other processes
        DeviceRows.shared += self.is_shared
        # the rows of every process, so that all refuse the same arrays
        self.slots_of = _slots_of_processes(x)
        runs = [*self.slots_of.values()]
        complete = self.is_shared or runs == [slice(0, len(x))]
        if not runs or None in runs or not complete:
            raise ValueError(
                "Each row must be whole on one device, and each process must hold "
                f"consecutive rows, got the sharding {x.sharding}. Shard the rows "
                "only, in the order of the processes, such as with "
                "NamedSharding(mesh, PartitionSpec('rows'))."
            )
        self.slots = self.slots_of.get(jax.process_index()) or slice(0, 0)
        held = {_rows(one.index, x): one.data for one in x.addressable_shards}
        self._parts = [(*rows, held[rows]) for rows in sorted(held)]

    def own(self) -> Self:
        """Return the rows of this process's devices."""
        rows, first = copy(self), self.slots.start
        rows._parts = [(a - first, b - first, part) for a, b, part in self._parts]
        rows.shape = (self.slots.stop - first, self.shape[1])
        rows.slots, rows.is_shared = slice(0, len(rows)), False
        return rows

    def wait(self) -> None:
        """Wait until this process's rows are computed.

        Raises ValueError if their computation failed. jax reports such a failure only
        when rows are read, which would be after the charge.
        """
        import jax

        with own_settings():
            try:
                jax.block_until_ready([part for *_, part in self._parts])
            except Exception as error:  # an error of jax, or of a user's function
                lines = str(error).strip().splitlines() or [type(error).__name__]
                why = " ... ".join(dict.fromkeys((lines[0], lines[-1])))
                raise ValueError(
                    f"The features of shape {self.shape} could not be computed: {why}"
                ) from error

    def memory(self) -> list[np.ndarray]:
        """Return views of the parts that are in the host's memory."""
        parts = [part for *_, part in self._parts]
        return [np.asarray(p) for p in parts if p.device.platform == "cpu"]

    def require_one_process(self) -> None:
        """Raise ValueError if several processes hold these rows, or copies of them."""
        if self.is_shared:
            raise ValueError(
                "Several processes share these rows. Only private fits of classifiers "
                "and of DPPCA can use them. For anything else, pass an array of this "
                "process."
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return rows as float32, for any numpy index.

        Raises ValueError if several processes share the array. Then use `own`, which
        has the rows of this process.
        """
        self.require_one_process()
        if isinstance(rows, slice):
            own = rows.step in (None, 1)
        else:
            kind = getattr(getattr(rows, "dtype", None), "kind", "")
            own = kind == "i" and rows.ndim == 1 and self._has(rows)
        if not own:  # any other index, as in scikit-learn's folds
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
        """Return all rows as a NumPy array."""
        return np.asarray(self[:], dtype)


def _rows(index: Any, x: Any) -> tuple[int, int]:
    """Return the first row of a shard, and its end (exclusive)."""
    start, stop, _ = index[0].indices(len(x))
    return start, stop


def _slots_of_processes(x: Any) -> dict[int, slice | None]:
    """Return the rows of each process that has whole rows.

    The value is None for rows with a gap or an overlap, because a row would be left
    out or counted twice.
    """
    found: dict[int, set[tuple[int, int]]] = {}
    for device, index in x.sharding.devices_indices_map(x.shape).items():
        columns = index[1]
        if columns.indices(x.shape[1])[:2] == (0, x.shape[1]):
            found.setdefault(device.process_index, set()).add(_rows(index, x))
    slots: dict[int, slice | None] = {}
    for process, rows in found.items():
        starts, stops = zip(*sorted(rows), strict=True)
        in_one_run = starts[1:] == stops[:-1]
        slots[process] = slice(starts[0], stops[-1]) if in_one_run else None
    return slots


def _host(part: Any) -> Any:
    """Return numpy's view of an array on a CPU, or an accelerator's array unchanged.

    Only the slices of an accelerator's array are copied to the host.
    """
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

    Inside `jit`, each operation of jax gives a traced array, even on known arrays. A
    charged fit would then fail.
    """
    with own_settings() as jnp:
        traced = is_traced(x) or is_traced(jnp.zeros(()))
    if traced:
        raise ValueError(
            "dphead reads arrays outside of jax's transformations, but this call or an "
            "array is traced. Call dphead outside of jit, vmap and grad. The functions "
            "`dphead.jax.scores`, `probabilities` and `predict` can be traced."
        )


def own_scalars(items: Any) -> list[Any]:
    """Return the items, with scalars of jax and PyTorch as Python's own numbers.

    Other items stay unchanged, and none of their code runs. Raises ValueError if jax
    traces an item.
    """
    one_of = {type(item): item for item in items}
    library = {kind: kind.__module__.split(".")[0] for kind in one_of}
    in_jax = {kind for kind in one_of if library[kind] in ("jax", "jaxlib")}
    in_torch = {kind for kind in one_of if library[kind] == "torch"}
    for kind in in_jax:
        refuse_traced(one_of[kind])
    with own_settings() if in_jax else nullcontext():
        both = in_jax | in_torch
        return [python_value(item) if type(item) in both else item for item in items]
