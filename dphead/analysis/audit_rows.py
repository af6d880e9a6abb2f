"""Replace private rows, the ledger and thread pools in an audit.

`release` adds the noise, as in a fit. Code here must not add noise.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import Block, Known, ReleaseSpec, SumTask
from dphead.privacy.sampling import NO_GROUP, Allocation
from dphead.privacy.statistic_base import Params, Statistic
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.reference import BlockSum

NO_CLASS = -1  # label of a row that adds zero to every sum


class NoLedger:
    """Act as a fit's ledger without recording anything.

    Audited rows are synthetic and spend no budget.
    """

    def __init__(self) -> None:
        self._next = -1
        self._allocated = -1
        self.allocation = Allocation()

    def step_of(self, sequence: int, epoch_steps: int) -> int:
        """Return the step of the next allocated release in its epoch."""
        self._allocated += 1
        return self._allocated % epoch_steps

    def begin(self, spec: dict[str, Any]) -> tuple[int, None]:
        """Return the next sequence number and None, because nothing is committed."""
        self._next += 1
        return self._next, None

    def following(self) -> None:
        """Return None, because the next release is unknown."""

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Drop the value."""


class UnrecordedSpec(ReleaseSpec):
    """Describe a planned release without its ledger row.

    Building that row would double the time of a small fit.
    """

    def row(self) -> dict[str, Any]:
        """Return an empty row, which the ledger of an audit ignores."""
        return {}


class AuditRows(ArrayRows):
    """Hold synthetic rows in the last slots, after slots without a class.

    Parameters
    ----------
    x : (n, d) float32
        The rows.
    y : (n,) int
        Their classes.
    n_rows : int
        Number of slots, at least n.
    groups : (n,) int
        Groups of the given rows.
    group_cap : int, optional
        Cap on the rows of a group.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        n_rows: int,
        groups: np.ndarray,
        group_cap: int | None = None,
    ) -> None:
        self.missing = n_rows - len(x)
        before = (self.missing, 0)
        labels = np.pad(y, before, constant_values=NO_CLASS)
        units = np.pad(groups, before, constant_values=NO_GROUP)
        rows = np.pad(x, (before, (0, 0)))
        super().__init__(rows, labels, groups=units, group_cap=group_cap)
        self._all = list(super().blocks())  # every fit reads the same blocks

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield every slot once, or each of `indices` once."""
        everyone = indices is None or len(indices) == self.n_rows
        yield from self._all if everyone else super().blocks(indices)


class Sums:
    """Sum a statistic's integers over audited rows, without thread pools.

    Every slot is checked as in a fit. Blocks of missing slots add zero and are skipped.
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
        """Return the norms of the statistic's block sum."""
        return way_of(ask.statistic).norms(ask, block)

    def rows(self, ask: SumTask, block: Block) -> Block:
        """Return the block itself."""
        return block

    def add(
        self,
        ask: SumTask,
        rows: Block,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the statistics of a block to `out`."""
        if (rows.index < self.source.missing).all():
            return out
        way = way_of(ask.statistic)
        return way.add(ask, way.rows(ask, rows), y, used, out)

    def total(
        self, statistic: Statistic, params: Params, spec: ReleaseSpec
    ) -> np.ndarray:
        """Return the sum over all rows before `release` adds noise, as float64."""
        task = SumTask(statistic, params, spec.clip_norm, self.source)
        unit = statistic.unit(spec.clip_norm, params.transform.append)
        return checked_sum(task, self, NO_ROWS) * unit


def way_of(statistic: Statistic) -> BlockSum:
    """Return the block sum of the statistic, or else the default block sum."""
    brought = getattr(statistic, "block_sum", None)
    return CpuSums() if brought is None else brought()
