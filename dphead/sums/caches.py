"""Keep integer rows between passes, in memory only.

Kept rows have no noise. They must not be stored, copied or returned to users.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

_Key = Any
# Number of slots, number of rows including padding, and integer rows of a block.
_Piece = tuple[int, int, Any]


class KeptRows:
    """Keep the integer rows of blocks with consecutive slots, for one fit.

    A slot is the position of a row in its source.

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
        """Return the kept rows of these slots, or make them and keep them if they fit.

        Parameters
        ----------
        key : tuple or None
            Key from `rows_key`. The transform and the rows are compared by identity.
        index : ndarray of int, shape (k,)
            Slots of the block.
        make : callable
            Function that makes the block's rows, with arrays q and scale.
        keep : bool, default True
            Whether to keep newly made rows for later passes.

        Returns
        -------
        list of (rows, slice)
            Pieces of integer rows, each with its slice of the block's rows.
        """
        whole = slice(0, len(index))
        slots = _consecutive(index)
        # slots of a sample have gaps and differ in each step: kept rows would not help
        if self.memory == 0 or key is None or slots is None:
            return [(make(), whole)]
        with self._lock:  # several threads call this at the same time
            if keep and not _same(self._key, key):
                # later steps use this key, so rows of an earlier key only take memory
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
        """Return whether the rows of these slots are kept under this key."""
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
        stop = start + size  # end of the piece's rows, including padding
        found.append((made, slice(start, stop)))
        start += slots
    return found if (start, stop) == (count, rows) else None


def _consecutive(index: np.ndarray) -> tuple[int, int, int] | None:
    """Return (first slot, number of slots, number of rows including padding).

    Return None unless the slots of the block are consecutive, with padding only after
    them.
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
    # compare identities: comparing two transforms would read their arrays
    return one[0] is other[0] and one[1] is other[1]
