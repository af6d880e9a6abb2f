"""What an audit hands to `release` in place of private rows, a ledger, thread pools.

Nothing of it may add noise: that is `release`'s own, as in a fit.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from dphead.privacy.contract import Block, Known, ReleaseSpec, Rows
from dphead.privacy.query import Params, Query
from dphead.privacy.sampling import NO_GROUP, Allocation
from dphead.rows.arrays import ArrayRows
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.reference import Ask, BlockSum, ask_of

T = TypeVar("T")
NO_CLASS = -1  # the label of a row that counts zero


class NoLedger:
    """Stands in for a fit's ledger and records nothing: audited rows are public or
    synthetic, and cost no budget.
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
        """The next sequence number; nothing was ever committed."""
        self._next += 1
        return self._next, None

    def following(self) -> None:
        """No release is known to come."""

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Forget the value."""


class UnrecordedSpec(ReleaseSpec):
    """A planned release without the row that a ledger would store: making it would
    double the time of a small fit.
    """

    def row(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class AuditRows(ArrayRows):
    """Public rows in memory, in the blocks of `ArrayRows`.

    x: (n, d) float32, y: (n,) int.

    n_rows may exceed n: the missing slots come first, are zero and have no class. A
    pass over all slots has the same block objects each time, so that `Sums` knows them.
    groups: (n,) int of the given rows, with group_cap; the missing slots have none.
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
        """Every slot once, or each of `indices` once."""
        everyone = indices is None or len(indices) == self.n_rows
        yield from self._all if everyone else super().blocks(indices)


class Repeated:
    """Keeps what was computed at the parameters that a query is first asked at, since
    every fit starts from the same.

    Parameters that depend on releases do not come again: what is asked at them is
    computed.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[np.ndarray | None, Any]] = {}

    def __call__(
        self,
        place: int,
        query: Query,
        params: Params,
        clip_norm: float,
        compute: Callable[[], T],
    ) -> T:
        """compute(), or what it was at these parameters.

        place: of the rows that it is about.
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
    """The queries' integer sums over public rows, without thread pools; the first
    pass's are kept.

    A `BlockSum`. At the parameters that fits start from the sum of a fixed block
    depends on public numbers alone and is the same in every fit. Blocks that only fill
    up n_rows count zero and are skipped. Every slot is still checked, and the noise of
    `release` is new each time. source: the rows.
    """

    parallel = False

    def __init__(self, source: AuditRows) -> None:
        self.source = source
        self._repeated = Repeated()
        self._fixed = {
            id(block.x) for block in source.blocks()
        }  # they live as long as the rows; Poisson batches do not

    def is_compared(self, query: Query) -> bool:
        """Whether to compare with the reference: an audit tries rows in its own
        ways.
        """
        return False

    def norms(self, ask: Ask, block: Block) -> np.ndarray:
        """As the query's own."""
        return way_of(ask.query).norms(ask, block)

    def rows(self, ask: Ask, block: Block) -> Block:
        """The block itself."""
        return block

    def add(
        self, ask: Ask, rows: Block, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Add the statistics."""
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

    def total(self, query: Query, params: Params, spec: ReleaseSpec) -> np.ndarray:
        """The sum over all rows as `release` computes it, which is what the auditor
        knows.
        """
        return exact(query, params, self.source, spec, self)


def way_of(query: Query) -> BlockSum:
    """How the query's blocks are summed: on this processor, or by the block sum that
    the query brings.
    """
    brought = getattr(query, "block_sum", None)
    return CpuSums() if brought is None else brought()


def exact(
    query: Query,
    params: Params,
    rows: Rows,
    spec: ReleaseSpec,
    block_sum: BlockSum,
    indices: np.ndarray | None = None,
    kept: KeptRows = NO_ROWS,
) -> np.ndarray:
    """The sum to which `release` would add noise, as float64.

    All audits come here for it.

    indices: the slots of a sample, or None for all. kept: rows of earlier passes. The
        rows must be public.
    """
    ask = ask_of(query, params, spec.clip_norm)
    return checked_sum(ask, rows, indices, block_sum, kept) * query.unit(
        spec.clip_norm, params.transform.append
    )
