"""Give `release` stand-ins for private rows, the ledger and thread pools in an audit.

Nothing here may add noise: `release` adds it, as in a fit.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import Block, Known, ReleaseSpec, Rows, SumTask
from dphead.privacy.query import Params, Statistic
from dphead.privacy.sampling import NO_GROUP, Allocation
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.reference import BlockSum

T = TypeVar("T")
NO_CLASS = -1  # label of a row that adds nothing to a sum


class NoLedger:
    """Stand in for a fit's ledger and record nothing.

    Audited rows are public or synthetic, and spend no budget.
    """

    def __init__(self) -> None:
        self._next = -1
        self._allocated = -1
        self.allocation = Allocation()

    def step_of(self, sequence: int, epoch_steps: int) -> int:
        """Return which step of its epoch the next allocated release is."""
        self._allocated += 1
        return self._allocated % epoch_steps

    def begin(self, spec: dict[str, Any]) -> tuple[int, None]:
        """Return the next sequence number; nothing was ever committed."""
        self._next += 1
        return self._next, None

    def following(self) -> None:
        """Return None: no next release is known."""

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Forget the value."""


class UnrecordedSpec(ReleaseSpec):
    """Describe a planned release without the row that a ledger would store.

    Making that row would double the time of a small fit.
    """

    def row(self) -> dict[str, Any]:
        """Return an empty row."""
        return {}


class AuditRows(ArrayRows):
    """Hold public rows in memory, in the blocks of `ArrayRows`.

    A pass over all slots has the same block objects each time, so that `Sums` knows
    them.

    Parameters
    ----------
    x : (n, d) float32
        The rows.
    y : (n,) int
        Their classes.
    n_rows : int
        Number of slots, at least n. The missing slots come first, are zero and have no
        class or group.
    groups : (n,) int, optional
        Groups of the given rows.
    group_cap : int, optional
        Cap on the rows of a group.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        n_rows: int,
        groups: np.ndarray | None = None,
        group_cap: int | None = None,
    ) -> None:
        self.missing = n_rows - len(x)
        whole = np.zeros((n_rows, x.shape[1]), np.float32)
        whole[self.missing :] = x
        labels, units = np.full(n_rows, NO_CLASS), np.full(n_rows, NO_GROUP)
        labels[self.missing :] = y
        if groups is not None:
            units[self.missing :] = groups
        super().__init__(whole, labels, groups=units, group_cap=group_cap)
        self._all = list(super().blocks())

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield every slot once, or each of `indices` once."""
        everyone = indices is None or len(indices) == self.n_rows
        yield from self._all if everyone else super().blocks(indices)


class Repeated:
    """Keep what was computed at the parameters that a query is first asked at.

    Every fit starts from the same parameters. Parameters that depend on releases do not
    come again: their values are computed each time.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[np.ndarray | None, Any]] = {}

    def __call__(
        self,
        place: int,
        query: Statistic,
        params: Params,
        clip_norm: float,
        compute: Callable[[], T],
    ) -> T:
        """Return compute(), or the kept value for the same parameters.

        `place` tells apart the rows that it is computed from.
        """
        t = params.transform
        if t.center is not None or t.scale is not None:
            return compute()
        key = place, query, t.unit_norm, t.append, clip_norm
        if key not in self._kept:
            self._kept[key] = params.weights, compute()
        weights, value = self._kept[key]
        return (
            value
            if np.array_equal(np.asarray(weights), np.asarray(params.weights))
            else compute()
        )


class Sums:
    """Sum a query's integers over public rows without thread pools.

    It is a `BlockSum`, and it keeps the sums of the first pass. At the parameters that
    fits start from, the sum of a fixed block depends on public numbers alone and is the
    same in every fit. Blocks that only fill up n_rows add nothing and are skipped.
    Every slot is still checked, and the noise of `release` is new each time. `source`
    are the rows.
    """

    parallel = False

    def __init__(self, source: AuditRows) -> None:
        self.source = source
        self._repeated = Repeated()
        # ids of the blocks that live as long as the rows; Poisson batches do not
        self._fixed = {id(block.x) for block in source.blocks()}

    def is_compared(self, query: Statistic) -> bool:
        """Return False: an audit tries rows in its own ways.

        Its sums are not compared with the reference.
        """
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the norms as the query's own block sum does."""
        return way_of(ask.query).norms(ask, block)

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
        way = way_of(ask.query)

        def compute() -> np.ndarray:
            return way.add(ask, way.rows(ask, rows), y, used, np.zeros_like(out))

        if id(rows.x) in self._fixed:
            out += self._repeated(
                id(rows.x), ask.query, ask.params, ask.clip_norm, compute
            )
        else:
            out += compute()
        return out

    def total(self, query: Statistic, params: Params, spec: ReleaseSpec) -> np.ndarray:
        """Return the sum over all rows as `release` computes it.

        The auditor knows this sum.
        """
        return exact(query, params, self.source, spec, self)


def way_of(query: Statistic) -> BlockSum:
    """Return the block sum that the query brings, else this processor's."""
    brought = getattr(query, "block_sum", None)
    return CpuSums() if brought is None else brought()


def exact(
    query: Statistic,
    params: Params,
    rows: Rows,
    spec: ReleaseSpec,
    block_sum: BlockSum,
    indices: np.ndarray | None = None,
    kept: KeptRows = NO_ROWS,
) -> np.ndarray:
    """Return the sum to which `release` would add noise, as float64.

    All audits use this function for it.

    Parameters
    ----------
    query, params, spec : Statistic, Params and ReleaseSpec
        The release.
    rows : Rows
        The rows, which must be public.
    block_sum : BlockSum
        The summation backend.
    indices : array, optional
        The slots of a sample. Default: all.
    kept : KeptRows
        Rows of earlier passes. Default: none.
    """
    ask = SumTask(query, params, spec.clip_norm, rows, indices)
    unit = query.unit(spec.clip_norm, params.transform.append)
    return checked_sum(ask, block_sum, kept) * unit
