"""Sums of integer statistics in plain int64: always right, and slow.

Everything else in this room must give the same numbers (`door`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dphead.privacy.contract import Block, Rows
from dphead.privacy.predictions import IntegerWeights, integer_weights
from dphead.privacy.query import Chunk, Params, Query, counting
from dphead.privacy.statistics import ClassSums, Gram
from dphead.privacy.transform import IntegerRows, transformed


@dataclass(frozen=True, eq=False)
class Ask:
    """What is summed in one pass.

    weights: those of params, rounded once. source: the rows, so that what is kept of
    them serves no others.
    """

    query: Query
    params: Params
    weights: IntegerWeights | None
    clip_norm: float
    source: Rows | None = None

    def shape(self, n_features: int) -> tuple[int, ...]:
        """Shape of the sum."""
        return self.query.shape(self.params.transform.width(n_features))


def ask_of(
    query: Query, params: Params, clip_norm: float, source: Rows | None = None
) -> Ask:
    """With a head's weights rounded; a network's, which are flat, stay as they are."""
    weights = params.weights
    if weights is None or np.ndim(weights) == 1:
        return Ask(query, params, None, clip_norm, source)
    return Ask(query, params, integer_weights(weights), clip_norm, source)


class BlockSum(Protocol):
    """How a block's rows are made and added.

    parallel: whether several cores may call it at a time.
    """

    parallel: bool

    def is_compared(self, query: Query) -> bool:
        """Whether `door` compares it with the reference."""
        ...

    def norms(self, ask: Ask, block: Block) -> np.ndarray:
        """Norms (k,) of what is clipped, without a clip; 0 of what does not count."""
        ...

    def rows(self, ask: Ask, block: Block) -> Any:
        """The block's rows as `add` wants them: `IntegerRows`, or what has `part`."""
        ...

    def add(
        self, ask: Ask, rows: Any, y: np.ndarray, used: np.ndarray, out: Any
    ) -> Any:
        """Add the statistics of rows whose slot is used to `out` and return it.

        Of a symmetric sum only the upper triangle is promised.
        """
        ...


class GramAndSums(Gram):
    """G above Sᵀ, the transposed class sums: the sums of two releases in one pass.

    It is never released; `Gram` and `ClassSums` are.
    """

    takes_sets = False

    def shape(self, width: int) -> tuple[int, ...]:
        """(width + n_classes, width)."""
        return (width + self.n_classes, width)

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """None."""
        raise NotImplementedError("the two sums of one pass are released apart")


def add_both(
    way: BlockSum, ask: Ask, rows: Any, y: np.ndarray, used: np.ndarray, out: Any
) -> Any:
    """Add the two sums of `GramAndSums`, each as it is added alone."""
    width = out.shape[1]
    gram = replace(ask, query=Gram(ask.query.n_classes))
    sums = replace(ask, query=ClassSums(ask.query.n_classes))
    way.add(gram, rows, y, used, out[:width])
    way.add(sums, rows, y, used, out[width:].T)
    return out


class ReferenceSums:
    """The definition: factors of each row, multiplied and added in int64."""

    parallel = True

    def is_compared(self, query: Query) -> bool:
        """It is the reference."""
        return False

    def norms(self, ask: Ask, block: Block) -> np.ndarray:
        """Of transformed rows."""
        return row_norms(ask.params, block)

    def rows(self, ask: Ask, block: Block) -> IntegerRows:
        """The integers of the block's rows."""
        return ask.query.rows(ask.params.transform, block.x, ask.clip_norm)

    def add(
        self,
        ask: Ask,
        rows: IntegerRows,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the statistics."""
        if isinstance(ask.query, GramAndSums):
            return add_both(self, ask, rows, y, used, out)
        left, right = factors(ask, rows, y, used)
        return add_factors(ask.query, left, right, out, whole_products)


def row_norms(params: Params, block: Block) -> np.ndarray:
    """(k,) of transformed rows, 0 of those that are not finite."""
    rows = transformed(params.transform, block.x)
    return np.where(rows.finite, rows.norm(), 0.0)


def largest_norm(
    ask: Ask, rows: Rows, indices: np.ndarray | None, block_sum: BlockSum
) -> float:
    """The largest norm of what is clipped, 0 if there is none: without privacy only."""
    largest = 0.0
    for block in rows.blocks(indices):
        norms = block_sum.norms(ask, block)[block.index >= 0]
        largest = max(largest, float(norms.max(initial=0.0)))
    return largest


def rows_key(ask: Ask) -> tuple[Any, ...] | None:
    """What the integers of rows depend on besides their slots; None to keep none.

    The first two parts are compared by identity. A Gram matrix is asked for once.
    """
    query = ask.query
    if type(query).rows is not Query.rows or query.kind == "gram":
        return None
    clip = ask.clip_norm if query.clips == "features" else None
    return ask.params.transform, ask.source, query.clips, clip


def factors(
    ask: Ask, rows: IntegerRows, y: np.ndarray, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`Query.factors` of rows in slots that are used, by numpy."""
    keep = counting(ask.query, rows, y, used)
    chunk = Chunk(rows, y, keep, ask.weights, ask.clip_norm)
    with np.errstate(all="ignore"):
        return ask.query.factors(np, chunk)


def add_factors(
    query: Query,
    left: np.ndarray,
    right: np.ndarray,
    out: np.ndarray,
    products: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Add outer products, or weighted squares. products(left, right) is leftᵀ right."""
    if query.kind == "outer":
        out += products(left, right)
        return out
    squares = out[None] if out.ndim == 2 else out
    for j in range(right.shape[1]):  # a class at a time, whatever its rows: no look
        weighted = left * right[:, j : j + 1]
        squares[j] += products(weighted, left)
    return out


def whole_products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """leftᵀ right of whole numbers, in int64."""
    return left.astype(np.int64).T @ right.astype(np.int64)
