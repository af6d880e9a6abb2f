"""Replace private rows, the ledger and thread pools in an audit.

`release` adds the noise, as in a fit; code here must not.
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
NO_CLASS = -1  # label of a row that adds zero to every sum


class NoLedger:
    """Act as a fit's ledger without recording anything.

    Audited rows are public or synthetic, and spend no budget.
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
        """Return the next sequence number; no release is ever committed."""
        self._next += 1
        return self._next, None

    def following(self) -> None:
        """Return None: the next release is unknown."""

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Drop the value."""


class UnrecordedSpec(ReleaseSpec):
    """Describe a planned release without its ledger row.

    Building that row would double the time of a small fit.
    """

    def row(self) -> dict[str, Any]:
        """Return an empty row."""
        return {}


class AuditRows(ArrayRows):
    """Hold public rows in memory, in the blocks of `ArrayRows`.

    Each full pass yields the same block objects, so that `Sums` recognizes them.

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
    """Keep the values computed at a statistic's first parameters.

    Every fit starts from the same parameters. Later parameters depend on releases and
    do not repeat.
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

        `place` identifies the rows.
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
    """Sum a statistic's integers over public rows without thread pools.

    The class is a `BlockSum` that keeps the sums of the first pass. At the initial
    parameters of a fit, the sum of a fixed block is the same in every fit. Padding
    blocks add nothing and are skipped. Every slot is still checked, and `release` draws
    new noise each time. `source` holds the rows.
    """

    parallel = False

    def __init__(self, source: AuditRows) -> None:
        self.source = source
        self._repeated = Repeated()
        # ids of blocks that live as long as the rows, unlike Poisson batches
        self._fixed = {id(block.x) for block in source.blocks()}

    def is_compared(self, query: Statistic) -> bool:
        """Return False: an audit checks rows by its own tests.

        Sums are not compared with the reference.
        """
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the norms of the statistic's block sum."""
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

        The auditor may know this sum.
        """
        return exact(query, params, self.source, spec, self)


def way_of(query: Statistic) -> BlockSum:
    """Return the statistic's own block sum, or else this processor's."""
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
    """Return the sum before `release` adds noise, as float64.

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
