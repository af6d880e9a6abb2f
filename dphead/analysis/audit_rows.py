"""Provide the synthetic rows of an audit, and their sums on one thread.

`release` adds the noise, as in a fit. Code here must not add noise.
"""

from collections.abc import Iterator

import numpy as np

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import Block, Known, ReleaseSpec, SumTask
from dphead.privacy.sampling import NO_GROUP
from dphead.privacy.statistic_base import Params, Statistic
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.reference import BlockSum

NO_CLASS = -1  # label of a row that adds zero to every sum
_PIECE_ROWS = 128  # rows that are summed or skipped together; chosen, not measured


class AuditRows(ArrayRows):
    """Hold synthetic rows at some positions (slots). The others have no class.

    Parameters
    ----------
    x : (n, d) float32
        The rows.
    y : (n,) int
        Their classes.
    n_rows : int
        Number of slots, at least n.
    slots, groups : (n,) int
        Slots and groups of the given rows.
    group_cap : int, optional
        Cap on the rows of a group.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        n_rows: int,
        slots: np.ndarray,
        groups: np.ndarray,
        group_cap: int | None = None,
    ) -> None:
        self.placed = np.zeros(n_rows, bool)
        self.placed[slots] = True
        rows = np.zeros((n_rows, x.shape[1]), np.float32)
        labels, units = np.full(n_rows, NO_CLASS), np.full(n_rows, NO_GROUP)
        rows[slots], labels[slots], units[slots] = x, y, groups
        super().__init__(rows, labels, groups=units, group_cap=group_cap)
        self._all = list(super().blocks())  # every fit reads the same blocks

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield blocks that hold each slot, or each of `indices`, once."""
        everyone = indices is None or len(indices) == self.n_rows
        yield from self._all if everyone else super().blocks(indices)


class Sums:
    """Sum a statistic's integers over audited rows, without thread pools.

    Every slot is checked as in a fit. Pieces of empty slots add zero and are skipped.
    Sums are not compared with the reference, because the audit's own tests
    must find a wrong sum.
    """

    parallel = False

    def __init__(self, source: AuditRows) -> None:
        self.source = source

    def is_compared(self, statistic: Statistic) -> bool:
        """Return False, so that sums are not compared with the reference."""
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the rows' norms, as the statistic's block sum computes them."""
        return way_of(ask.statistic).norms(ask, block)

    def rows(self, ask: SumTask, block: Block) -> Block:
        """Return the block unchanged."""
        return block

    def add(
        self,
        ask: SumTask,
        rows: Block,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the statistics of a block to `out`, and return the result."""
        way = way_of(ask.statistic)
        # padding has index -1, which would stand for the last slot
        placed = self.source.placed[rows.index] & used
        for i in range(0, len(y), _PIECE_ROWS):
            run = slice(i, i + _PIECE_ROWS)
            if placed[run].any():
                piece = Block(rows.index[run], rows.x[run], y[run])
                out = way.add(ask, way.rows(ask, piece), piece.y, used[run], out)
        return out

    def total(
        self, statistic: Statistic, params: Params, spec: ReleaseSpec
    ) -> np.ndarray:
        """Return the integer sum over all rows before `release` adds noise."""
        task = SumTask(statistic, params, spec.clip_norm, self.source)
        return checked_sum([task], self, NO_ROWS)[0]


def way_of(statistic: Statistic) -> BlockSum:
    """Return the statistic's own block sum, or `CpuSums` if it has none."""
    brought = getattr(statistic, "block_sum", None)
    return CpuSums() if brought is None else brought()
