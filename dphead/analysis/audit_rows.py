"""What an audit hands to `release` in place of private rows, a ledger and thread pools: nothing of it adds noise."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from dphead.privacy.contract import Block, ReleaseSpec
from dphead.privacy.mechanism import _clipped_sum, numpy_block_sum
from dphead.privacy.statistics import Params, Query
from dphead.privacy.sums import CHUNK

T = TypeVar("T")
BLOCK_ROWS = 2048
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


class AuditRows:
    """Public rows in memory, in blocks that stay the same objects. x: (n, d) float32, y: (n,) int.

    n_rows may exceed n: the missing slots come first and have no class. A block of such slots has `zeros` as its x.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, n_rows: int) -> None:
        self.n_rows, self.n_features = n_rows, x.shape[1]
        self.group_cap: int | None = None  # a row is the protected unit
        self._missing = n_rows - len(x)
        self._x, self._y = np.ascontiguousarray(x, np.float32), np.asarray(y, np.int32)
        size = min(BLOCK_ROWS, CHUNK * -(-n_rows // CHUNK))
        self.zeros = np.zeros((size, x.shape[1]), np.float32)
        order = np.arange(n_rows)
        self._all = [self._block(order[i : i + size], size) for i in range(0, n_rows, size)]

    def blocks(self, indices: np.ndarray | None = None) -> Iterator[Block]:
        """Every slot once, or each of `indices` once."""
        if indices is None or len(indices) == self.n_rows:
            yield from self._all
            return
        size = len(self.zeros)
        for i in range(0, len(indices), size):
            yield self._block(indices[i : i + size], size)

    def _block(self, index: np.ndarray, size: int) -> Block:
        index, y = np.pad(index, (0, size - len(index)), constant_values=-1), np.full(size, NO_CLASS, np.int32)
        here = np.flatnonzero(index >= self._missing)
        if len(here) == 0:
            return Block(index, self.zeros, y)
        x = np.zeros_like(self.zeros)
        x[here], y[here] = self._x[index[here] - self._missing], self._y[index[here] - self._missing]
        return Block(index, x, y)


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
        if block.x is self.rows.zeros:
            return out
        if id(block.x) not in self._fixed:
            return numpy_block_sum(query, params, block, keep, clip_norm, out)

        def compute() -> np.ndarray:
            return numpy_block_sum(query, params, block, keep, clip_norm, np.zeros_like(out))

        out += self._repeated(id(block.x), query, params, clip_norm, compute)
        return out

    def total(self, query: Query, params: Params, spec: ReleaseSpec) -> np.ndarray:
        """The sum over all rows as `release` computes it, which is what the auditor knows."""
        return _clipped_sum(query, params, self.rows, spec, None, self)
