"""Define the reference sums: integer statistics in plain int64.

The reference sums are slow and easy to verify. Every other block sum must give the same
integers (`verified`).
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dphead.privacy.contract import Block, SumTask
from dphead.privacy.statistic_base import Chunk, Params, Statistic, counting
from dphead.privacy.transform import IntegerRows, transformed

_STRIP = 192  # rows of a matrix at a time, to limit memory; chosen, not measured


class BlockSum(Protocol):
    """Define how a block's rows become integers and how their statistics are added.

    `parallel` tells whether several threads may call it at the same time.
    """

    parallel: bool

    def is_compared(self, statistic: Statistic) -> bool:
        """Return whether `verified` compares this statistic with the reference."""
        ...

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return rows' norms (k,) before the clip; 0 for rows that are not finite."""
        ...

    def rows(self, ask: SumTask, block: Block) -> Any:
        """Return the block's rows as `IntegerRows`, or as an object with `part`."""
        ...

    def add(
        self, ask: SumTask, rows: Any, y: np.ndarray, used: np.ndarray, out: Any
    ) -> Any:
        """Add the statistics of a block's used rows to `out`, and return the sum.

        Parameters
        ----------
        ask : SumTask
            The requested sum.
        rows : IntegerRows or object with `part`
            Rows made by `rows` from one block, or consecutive rows of this result.
        y : ndarray of shape (k,) or (k, n_classes)
            Labels or label sets, as in `Block`.
        used : ndarray of bool, shape (k,)
            False for padding.
        out : array
            Sum of the earlier blocks.

        Returns
        -------
        array
            Sum with these rows. Only the upper triangle of a symmetric sum is defined.
        """
        ...


class ReferenceSums:
    """Sum by the definition: add the products of each row's factors in int64."""

    parallel = True

    def is_compared(self, statistic: Statistic) -> bool:
        """Return False: the reference is not compared with itself."""
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the norms (k,) of transformed rows."""
        return row_norms(ask.params, block)

    def rows(self, ask: SumTask, block: Block) -> IntegerRows:
        """Return the block's rows as integers."""
        return ask.statistic.rows(ask.params.transform, block.x, ask.clip_norm)

    def add(
        self,
        ask: SumTask,
        rows: IntegerRows,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the statistics of a block's used rows to `out`."""
        left, right = factors(ask, rows, y, used)
        return add_factors(ask.statistic, left, right, out, _whole_products)


def empty_sum(ask: SumTask, n_features: int) -> np.ndarray:
    """Return int64 zeros in the shape and memory layout that the kernels expect.

    Columns are contiguous if they are longer than rows. Checks also use this function,
    because another layout would use another kernel.
    """
    shape = ask.shape(n_features)
    if ask.statistic.kind == "outer" and shape[0] > shape[-1]:
        return np.zeros(shape[::-1], np.int64).T
    return np.zeros(shape, np.int64)


def check_equal(
    ask: SumTask, block_sum: BlockSum, found: list[np.ndarray], block: Block
) -> None:
    """Raise RuntimeError unless all sums of the block equal the reference's.

    `found` has the sums that `block_sum` computed. In symmetric sums, the entries above
    the diagonal replace those below it, which are unspecified.
    """
    reference = ReferenceSums()
    empty = empty_sum(ask, block.x.shape[1])
    rows = reference.rows(ask, block)
    wanted = reference.add(ask, rows, block.y, block.index >= 0, empty)
    if ask.statistic.symmetric:
        for total in (*found, wanted):
            mirror(total)
    if not all(np.array_equal(total, wanted) for total in found):
        raise RuntimeError(
            "A fast sum differs from the reference. `dphead fit --backend reference` "
            "avoids fast sums. Please report this text and your processor: "
            f"{type(block_sum).__name__}, {ask.statistic.name}."
        )


def mirror(square: np.ndarray) -> None:
    """Make matrices (..., d, d) symmetric in place, from their upper triangles."""
    # by strips: np.triu would copy the whole matrix, 1.9 GB at 15,552 columns
    for i in range(0, square.shape[-1], _STRIP):
        own = slice(i, i + _STRIP)
        rest = slice(i + _STRIP, None)
        above = square[..., own, rest]
        square[..., rest, own] = above.swapaxes(-1, -2)
        corner = square[..., own, own]
        upper = np.triu(corner, 1)
        corner[...] = np.triu(corner) + upper.swapaxes(-1, -2)


def row_norms(params: Params, block: Block) -> np.ndarray:
    """Return the norms (k,) of transformed rows, 0 for rows that are not finite."""
    rows = transformed(params.transform, block.x)
    return np.where(rows.finite, rows.norm(), 0.0)


def largest_norm(ask: SumTask, block_sum: BlockSum) -> float:
    """Return the largest norm before clipping, or 0 without rows.

    Use it for fits without noise only.
    """
    assert ask.rows is not None
    largest = 0.0
    for block in ask.rows.blocks(ask.indices):
        # padding rows are zeros, but the transform can change them
        norms = block_sum.norms(ask, block)[block.index >= 0]
        largest = max(largest, float(norms.max(initial=0.0)))
    return largest


def rows_key(ask: SumTask) -> tuple[Any, ...] | None:
    """Return the key under which a pass keeps integer rows, or None to keep none.

    The key has the transform, the rows and the clip norm of the features (None if
    features are not clipped). Besides these, the integers depend only on the positions
    of rows. Transform and rows are compared by identity. Rows for Gram matrices and
    Hessians are not kept, because most fits request each of these once.
    """
    statistic = ask.statistic
    # the rows of a statistic with its own `rows` depend on more than this key
    if type(statistic).rows is not Statistic.rows or statistic.kind == "gram":
        return None
    clip = ask.clip_norm if statistic.clips == "features" else None
    return ask.params.transform, ask.rows, clip


def factors(
    ask: SumTask, rows: IntegerRows, y: np.ndarray, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return `Statistic.factors` of a block's used rows, computed by numpy."""
    # unused rows get factors of zero, so every row takes the same operations
    keep = counting(ask.statistic, rows, y, used)
    chunk = Chunk(rows, y, keep, ask.weights, ask.clip_norm)
    with np.errstate(all="ignore"):
        return ask.statistic.factors(np, chunk)


def add_factors(
    statistic: Statistic,
    left: np.ndarray,
    right: np.ndarray,
    out: np.ndarray,
    products: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Add outer products or weighted squares of the factors to `out`.

    products(left, right) must return leftᵀ right.
    """
    if statistic.kind == "outer":
        out += products(left, right)
        return out
    # a single matrix and one matrix per class take the same loop
    squares = out[None] if out.ndim == 2 else out
    # every class takes the same steps, so the work does not depend on labels
    for j in range(right.shape[1]):
        weighted = left * right[:, j : j + 1]
        # by strips: the product of all columns would be another whole matrix
        for i in range(0, left.shape[1], _STRIP):
            own = slice(i, i + _STRIP)
            squares[j, own] += products(weighted[:, own], left)
    return out


def _whole_products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return leftᵀ right of whole numbers, in int64."""
    # numpy has no BLAS for int64: slow, but no order of additions can matter
    return left.astype(np.int64).T @ right.astype(np.int64)
