"""Keep integer rows and sums between passes, in memory only.

Kept rows and sums have no noise. They must not be stored, copied or returned to users.
"""

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from dphead.privacy.contract import SumTask
from dphead.privacy.statistic_base import Statistic
from dphead.privacy.statistics import ClassSums, Gram
from dphead.sums.reference import GramAndSums

_Key = Any
# A block's slots, its rows with padding, and its integer rows.
_Piece = tuple[int, int, Any]


class KeptRows:
    """Keep the integer rows of blocks with consecutive slots, for one fit.

    Parameters
    ----------
    memory : int
        Memory for kept rows, in bytes.

    Guarantee
    ---------
    Kept rows are returned only for the same slots and the same key.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._used = 0
        self._lock = Lock()
        self._key: _Key = None
        self._kept: dict[int, _Piece] = {}  # key: first slot of a piece

    def __call__(
        self, key: _Key, index: np.ndarray, make: Callable[[], Any], keep: bool = True
    ) -> list[tuple[Any, slice]]:
        """Return the kept rows of these slots under this key, or make and keep them.

        Parameters
        ----------
        key : tuple or None
            Key from `rows_key`. The transform and the rows are compared by identity.
        index : ndarray of int, shape (k,)
            Slots of the block.
        make : callable
            Function that makes the block's rows, with arrays q and scale.
        keep : bool, default True
            Whether rows that are made are kept for later passes.

        Returns
        -------
        list of (rows, slice)
            Pieces of integer rows, each with its slice of the block's rows.
        """
        whole = slice(0, len(index))
        slots = _consecutive(index)
        # a sample's slots are not consecutive, and differ in each step: nothing to keep
        if self.memory == 0 or key is None or slots is None:
            return [(make(), whole)]
        with self._lock:  # several threads call this at the same time
            if keep and not _same(self._key, key):
                # the descent goes on with this key: rows of an earlier one only take
                # memory
                self._key = key
                self._kept = {}
                self._used = 0
            kept = self._kept
            found = _pieces(kept, *slots) if _same(self._key, key) else None
        if found is not None:
            return found
        # without the lock: making rows takes most of a first pass
        made = make()
        if not keep:
            return [(made, whole)]
        size = made.q.nbytes + made.scale.nbytes
        first, count, rows = slots
        with self._lock:
            fits = self._used + size <= self.memory
            # another thread may have kept these rows, or begun another key, meanwhile
            if kept is self._kept and first not in kept and fits:
                self._used += size
                kept[first] = count, rows, made
        return [(made, whole)]

    def holds(self, key: _Key, index: np.ndarray) -> bool:
        """Return whether these slots are kept under this key."""
        slots = _consecutive(index)
        with self._lock:
            if slots is None or not _same(self._key, key):
                return False
            return _pieces(self._kept, *slots) is not None


def _pieces(
    kept: dict[int, _Piece], first: int, count: int, rows: int
) -> list[tuple[Any, slice]] | None:
    """Return the kept pieces of these slots, each with its slice of the block's rows.

    Returns None if a piece is missing, or if padding would lie before a slot.
    """
    found = []
    start = stop = 0
    while start < count:
        piece = kept.get(first + start)
        if piece is None or stop > start:
            return None
        slots, size, made = piece
        stop = start + size  # rows, of which padding comes last
        found.append((made, slice(start, stop)))
        start += slots
    return found if (start, stop) == (count, rows) else None


def _consecutive(index: np.ndarray) -> tuple[int, int, int] | None:
    """Return (first slot, slots, rows) of a block, or None.

    None means that the slots are not consecutive, with padding at the end.
    """
    count = int((index >= 0).sum())
    if count == 0:
        return None
    first = int(index[0])
    if first < 0:  # padding first
        return None
    wanted = np.arange(first, first + count)
    if not np.array_equal(index[:count], wanted):
        return None
    return first, count, len(index)


def _same(one: _Key, other: _Key) -> bool:
    if one is None or other is None or one[2:] != other[2:]:
        return False
    # by identity: comparing the centres of two transforms would read arrays
    return one[0] is other[0] and one[1] is other[1]


class NextSum:
    """Compute class sums in the pass of the preceding Gram matrix, and hold them.

    This saves a pass if class sums directly follow the Gram matrix in the plan.

    Guarantee
    ---------
    The held sums are in memory only. They serve only the next task, and only if its
    spec, rows and transform match.
    """

    def __init__(self) -> None:
        self._held: tuple[SumTask, np.ndarray] | None = None

    def __reduce__(self) -> Any:
        raise TypeError(
            "Sums without noise must stay in memory, and cannot be copied or stored. "
            f"Make a new {type(self).__name__}() instead."
        )

    def __call__(
        self, task: SumTask, total: Callable[[Statistic], np.ndarray]
    ) -> np.ndarray:
        """Return the requested sum. total(statistic) computes a sum."""
        # the plan's order is fixed, so sums that do not fit now would never be used
        held = self._held
        self._held = None
        if held is not None and _serves(held[0], task):
            return held[1]
        sums = _class_sums_after(task)
        if sums is None:
            return total(task.statistic)
        both = total(GramAndSums(task.statistic.n_classes))
        width = both.shape[1]
        # a copy: a view would keep the whole array in memory
        self._held = (sums, both[width:].T.copy())
        return both[:width].copy()  # a view would expose the other sum


class KeptSums(NextSum):
    """Keep the last Gram matrix and class sums for more fits on the same rows.

    Use one object for one fit at a time, with all rows in this process. Fits save
    passes, not budget, because each release is charged and has fresh noise. Sums of
    centered rows are not reused, because each fit has another noisy mean.

    Guarantee
    ---------
    As `NextSum`. A kept sum serves only full-batch requests with the same statistic,
    clip norm, relation, rows object and transform. If rows change meanwhile, the
    guarantee covers the rows that were read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[tuple[SumTask, np.ndarray]] = deque(maxlen=2)

    def __call__(
        self, task: SumTask, total: Callable[[Statistic], np.ndarray]
    ) -> np.ndarray:
        """Return the requested sum. total(statistic) computes a sum."""
        if type(task.statistic) not in (Gram, ClassSums) or task.indices is not None:
            return super().__call__(task, total)
        for kept, value in self._kept:
            if _equal(kept, task):
                self._held = None
                return value.copy()
        value = super().__call__(task, total)
        # a copy, because a caller could change the arrays of its transform
        transform = deepcopy(task.params.transform)
        params = replace(task.params, transform=transform, weights=None)
        kept = replace(task, params=params)
        self._kept.append((kept, value.copy()))
        return value


def _serves(held: SumTask, task: SumTask) -> bool:
    same = (held.statistic, held.spec) == (task.statistic, task.spec)
    transform = held.params.transform is task.params.transform
    return same and transform and held.rows is task.rows


def _equal(kept: SumTask, task: SumTask) -> bool:
    if (kept.statistic, kept.clip_norm) != (task.statistic, task.clip_norm):
        return False
    old, new = kept.spec, task.spec
    assert old is not None and new is not None
    # a fit without noise sets its clip norm from the rows, so its spec has none
    if kept.rows is not task.rows or not np.isfinite(new.clip_norm):
        return False
    # the sum has no noise yet, so the noise and its label may differ
    sigma = new.noise_multiplier
    same = replace(old, label=new.label, noise_multiplier=sigma) == new
    return same and kept.params.transform.equals(task.params.transform)


def _class_sums_after(task: SumTask) -> SumTask | None:
    """Return the request of the class sums after this Gram matrix, or None.

    Rows and spec must match, except for label, statistic and noise.
    """
    spec, following = task.spec, task.following
    if type(task.statistic) is not Gram or task.indices is not None:
        return None
    if spec is None or following is None or not np.isfinite(task.clip_norm):
        return None
    sums = ClassSums(task.statistic.n_classes)
    own = {"label": following.label, "noise_multiplier": following.noise_multiplier}
    if replace(spec, statistic=sums.name, **own) != following:
        return None
    return replace(task, statistic=sums, spec=following, following=None)
