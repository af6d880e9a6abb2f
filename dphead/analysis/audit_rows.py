"""What an audit hands to `release` in place of private rows, a ledger and thread pools: nothing of it adds noise."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from dphead.data import ArrayRows
from dphead.privacy.mechanism import Block, BlockSum, ReleaseSpec, Rows, _clipped_sum, numpy_block_sum
from dphead.privacy.queries import Params, Query

T = TypeVar("T")
NO_CLASS = -1  # the label of a row that counts zero


class NoLedger:
    """Stands in for a fit's ledger and records nothing: audited rows are public or synthetic, and cost no budget."""

    def __init__(self) -> None:
        self._next = -1

    def begin(self, spec: dict[str, Any]) -> tuple[int, None]:
        """The next sequence number; nothing was ever committed."""
        self._next += 1
        return self._next, None

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Forget the value."""


class UnrecordedSpec(ReleaseSpec):
    """A planned release without the row that a ledger would store: making it would double the time of a small fit."""

    def row(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class AuditRows(ArrayRows):
    """Public rows in memory, in the blocks of `ArrayRows`. x: (n, d) float32, y: (n,) int.

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
        labels, units = np.full((2, n_rows), NO_CLASS)
        labels[self.missing :] = y
        if groups is not None:
            units[self.missing :] = groups
        super().__init__(whole, labels, groups=units, group_cap=group_cap)
        self._all = list(super().blocks())

    def blocks(self, indices: np.ndarray | None = None) -> Iterator[Block]:
        """Every slot once, or each of `indices` once."""
        everyone = indices is None or len(indices) == self.n_rows
        yield from self._all if everyone else super().blocks(indices)


class Repeated:
    """Keeps what was computed at the parameters that a query is first asked at, since every fit starts from the same.

    Parameters that depend on releases do not come again: what is asked at them is computed.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[np.ndarray | None, Any]] = {}

    def __call__(self, place: int, query: Query, params: Params, clip_norm: float, compute: Callable[[], T]) -> T:
        """compute(), or what it was at these parameters. place: of the rows that it is about."""
        t = params.transform
        if t.center is not None or t.scale is not None:
            return compute()
        key = place, query, t.unit_norm, t.append, clip_norm
        if key not in self._kept:
            self._kept[key] = params.weights, compute()
        weights, value = self._kept[key]
        return value if np.array_equal(np.asarray(weights), np.asarray(params.weights)) else compute()


class Sums:
    """The queries' clipped sums over `rows`, without thread pools; the first pass's are kept.

    At the parameters that fits start from the sum of a fixed block depends on public numbers alone and is the same in
    every fit. Blocks that only fill up n_rows count zero and are skipped. `release` still checks every slot, and its
    noise is new each time.
    """

    def __init__(self, rows: AuditRows) -> None:
        self.rows = rows
        self._repeated = Repeated()
        self._fixed = {id(block.x) for block in rows.blocks()}  # they live as long as the rows; Poisson batches do not

    def __call__(self, query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
        if (block.index < self.rows.missing).all():
            return out
        if id(block.x) not in self._fixed:
            return numpy_block_sum(query, params, block, keep, clip_norm, out)

        def compute() -> np.ndarray:
            return numpy_block_sum(query, params, block, keep, clip_norm, np.zeros_like(out))

        out += self._repeated(id(block.x), query, params, clip_norm, compute)
        return out

    def total(self, query: Query, params: Params, spec: ReleaseSpec) -> np.ndarray:
        """The sum over all rows as `release` computes it, which is what the auditor knows."""
        return exact(query, params, self.rows, spec, self)


def exact(
    query: Query,
    params: Params,
    rows: Rows,
    spec: ReleaseSpec,
    block_sum: BlockSum,
    indices: np.ndarray | None = None,
) -> np.ndarray:
    """The sum to which `release` would add noise. All audits come here for it.

    indices: the slots of a sample, or None for all. The rows must be public.
    """
    return _clipped_sum(query, params, rows, spec, indices, block_sum)
