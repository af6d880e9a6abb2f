"""Replace each group's rows by means, one for each class up to the group cap.

A group's means depend on its own rows only, bit for bit (proofs/groups.md). A slot is
the position of a row in its source.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dphead.privacy.sampling import NO_GROUP, ranks

# numbers that are read at a time: 16 MB in float64; chosen, not measured
NUMBERS = 2**21


@dataclass(frozen=True)
class GroupMeans:
    """Hold the positions of the rows that each slot's mean averages.

    Parameters
    ----------
    rows : ndarray of int
        Positions of rows, by slot; increasing in each slot.
    starts : ndarray of int, shape (n_slots + 1,)
        Slot i has the mean of rows[starts[i] : starts[i + 1]], or no mean if the slice
        is empty.
    """

    rows: np.ndarray
    starts: np.ndarray

    def part(self, start: int, stop: int) -> "GroupMeans":
        """Return the means in slots start to stop - 1."""
        return replace(self, starts=self.starts[start : stop + 1])

    def write(
        self,
        slots: np.ndarray,
        read: Callable[[np.ndarray], np.ndarray],
        out: np.ndarray,
    ) -> None:
        """Write the means in `slots` to out (k, n_features) float32.

        Parameters
        ----------
        slots : ndarray of int, shape (k,)
            Slots of the means.
        read : callable
            Returns the features (j, n_features) float32 of j increasing positions.
        out : ndarray of float32
            Where to write. A slot without rows becomes zeros. If no row of a slot is
            finite, the slot becomes NaN, so that it adds zero to every sum.

        Guarantee
        ---------
        A mean depends only on the finite rows of its slot. These rows are added in
        float64, in the order of their positions. The sum is divided by their number and
        rounded to float32. Each step is one IEEE operation on one number, whatever
        other rows are read in the same pass.
        """
        together = max(1, NUMBERS // max(1, out.shape[1]))
        for i in range(0, len(slots), together):
            part = slice(i, i + together)
            self._write(slots[part], read, out[part], together)

    def _write(
        self,
        slots: np.ndarray,
        read: Callable[[np.ndarray], np.ndarray],
        out: np.ndarray,
        together: int,
    ) -> None:
        # For each row that is read: the slot it belongs to.
        counts = self.starts[slots + 1] - self.starts[slots]
        place = np.repeat(np.arange(len(slots)), counts)
        within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.rows[self.starts[slots][place] + within]
        # a file is read fastest in its order, and each mean adds its rows in this
        # order
        order = np.argsort(rows, kind="stable")
        total, finite = np.zeros(out.shape), np.zeros(len(slots))
        for i in range(0, len(order), together):
            now = order[i : i + together]
            # A row that is not finite is left out of its mean, as it is of every sum.
            x = read(rows[now])
            known = np.isfinite(x).all(axis=1)
            _add_in_order(total, place[now][known], x[known])
            finite += np.bincount(place[now][known], minlength=len(slots))
        with np.errstate(all="ignore"):
            out[...] = total / np.maximum(finite, 1)[:, None]
        out[(finite == 0) & (counts > 0)] = np.nan


def _add_in_order(total: np.ndarray, place: np.ndarray, x: np.ndarray) -> None:
    """Add each row of x to its place in `total`, in the order of the rows.

    Rows of one place are added one at a time, so the order of additions does not depend
    on a library.
    """
    rank = ranks(place)
    order = np.argsort(rank, kind="stable")
    start = 0
    for stop in np.cumsum(np.bincount(rank)):
        these = order[start:stop]  # at most one row of each place
        total[place[these]] += x[these]
        start = stop


def group_means(
    groups: np.ndarray, y: np.ndarray, cap: int
) -> tuple[GroupMeans, np.ndarray]:
    """Return the rows and the class of each mean, with one mean per group and class.

    Parameters
    ----------
    groups : ndarray of int, shape (n,)
        Group id of each row. A row with NO_GROUP (-1) is a group of its own.
    y : ndarray of int, shape (n,)
        Class indices. A row with a negative index has no class and is in no mean.
    cap : int
        Largest number of means of a group, at least 1. A group with more classes gets
        the means of its lowest classes.

    Returns
    -------
    GroupMeans
        The means of the n slots.
    y : ndarray of int, shape (n,)
        The class of the mean in each slot; -1 for none.

    Guarantee
    ---------
    A group has at most `cap` means, in its own first slots. The choice of rows and
    classes depends only on the labels and slots of that group.
    """
    # Rows sorted by group and class, in the order of their slots.
    labeled = np.flatnonzero((groups != NO_GROUP) & (y >= 0))
    labeled = labeled[np.lexsort((y[labeled], groups[labeled]))]  # stable
    ids, classes = groups[labeled], y[labeled]
    new = np.ones(len(labeled), bool)
    new[1:] = (ids[1:] != ids[:-1]) | (classes[1:] != classes[:-1])
    count = np.cumsum(new)
    # A class's position in its group: 0 for the lowest class, 1 for the next.
    position = count - count[np.searchsorted(ids, ids)]
    by_group = np.argsort(groups, kind="stable")
    first = np.searchsorted(groups[by_group], ids)
    # each class of a group has a row, so the group has a slot for each of its means
    slot = np.full(len(groups), -1)
    slot[labeled] = np.where(position < cap, by_group[first + position], -1)
    alone = np.flatnonzero((groups == NO_GROUP) & (y >= 0))
    slot[alone] = alone
    rows = np.flatnonzero(slot >= 0)
    rows = rows[np.argsort(slot[rows], kind="stable")]
    starts = np.searchsorted(slot[rows], np.arange(len(groups) + 1))
    means_of = np.full_like(y, -1)
    means_of[slot[rows]] = y[rows]
    return GroupMeans(rows, starts), means_of
