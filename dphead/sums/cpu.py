"""Sum blocks on a CPU, with compiled kernels or with numpy.

No value of a row decides the choice between the two.
"""

import numpy as np

from dphead.privacy.contract import Block, SumTask
from dphead.privacy.statistic_base import Statistic, counting
from dphead.privacy.statistics import ChannelMoment, ClassSums, Gradient, Gram
from dphead.privacy.transform import IntegerRows
from dphead.sums import kernels
from dphead.sums.reference import (
    add_factors,
    factors,
    row_norms,
)
from dphead.sums.tuning import (
    CONVERTED_ENTRIES,
    FACTOR_ROWS,
    FLOAT64_EXACT,
)


class CpuSums:
    """Sum blocks on a CPU (a `BlockSum`).

    Parameters
    ----------
    compiled : bool, default True
        Whether to use the compiled kernels, if this installation has them.

    Guarantee
    ---------
    The integers equal the integers of `ReferenceSums`.
    """

    parallel = True

    def __init__(self, compiled: bool = True) -> None:
        self._compiled = compiled and kernels.library is not None

    def is_compared(self, statistic: Statistic) -> bool:
        """Return True, because `verified` checks the sums of every statistic."""
        return True

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the norms (k,) of transformed rows."""
        if self._compiled:
            return kernels.norms(ask.params.transform, block.x)
        return row_norms(ask.params, block)

    def rows(self, ask: SumTask, block: Block) -> IntegerRows:
        """Return a block's rows as integers."""
        statistic = ask.statistic
        transform = ask.params.transform
        features = block.x.shape[1]
        if isinstance(statistic, ChannelMoment):
            looped = statistic.n_channels in (0, features)  # each feature is a channel
        else:
            looped = type(statistic).rows is Statistic.rows
        if not (looped and self._compiled):
            return _rows_by_numpy(ask, block.x)
        if isinstance(statistic, ChannelMoment):
            # raises for an appended constant, which the kernel does not check
            statistic.rows(transform, block.x[:1], ask.clip_norm)
            return kernels.moment_rows(statistic, transform, block.x, ask.clip_norm)
        clip_norm = ask.clip_norm if statistic.clips == "features" else None
        return kernels.integer_rows(transform, block.x, clip_norm)

    def add(
        self,
        ask: SumTask,
        rows: IntegerRows,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the statistics of a block's used rows to `out`."""
        statistic = ask.statistic
        kernel = kernel_of(statistic) if self._compiled else ""
        # the layout of `empty_sum`; numpy adds sums with other layouts
        columns = out.T.flags.c_contiguous
        if kernel == "gradient" and columns:
            kernels.add_gradient(ask, rows, y, used, out.T)
            return out
        if kernel == "class sums" and columns:
            kernels.add_class_rows(rows.q, y, counting(statistic, rows, y, used), out.T)
            return out
        if kernel == "gram":
            keep = counting(statistic, rows, y, used)
            q = rows.q
            # the kernel gets no mask, and a row of zeros adds nothing
            if not keep.all():
                q = np.where(keep[:, None], q, np.int16(0))
            kernels.add_gram(q, out)
            return out
        return _by_numpy(ask, rows, y, used, out)


def kernel_of(statistic: Statistic) -> str:
    """Return the name of the kernel that adds a statistic, "" if numpy adds it."""
    if kernels.library is None:
        return ""
    if type(statistic) is Gram:
        return "gram"
    if type(statistic) is ClassSums:
        return "class sums"
    softmax = isinstance(statistic, Gradient) and statistic.loss == "softmax"
    return "gradient" if softmax else ""


def _rows_by_numpy(ask: SumTask, x: np.ndarray) -> IntegerRows:
    """Return rows as integers, computed in pieces to limit memory.

    numpy's float64 arrays take eight times the memory of a piece.
    """
    size = max(1, CONVERTED_ENTRIES // x.shape[1])
    transform = ask.params.transform
    parts = []
    for i in range(0, len(x), size):
        part = ask.statistic.rows(transform, x[i : i + size], ask.clip_norm)
        # |moments| < 2**21, so int32 holds them, in half the memory
        q = part.q.astype(np.int32) if part.q.itemsize > 4 else part.q
        parts.append(IntegerRows(q, part.scale))
    q = np.concatenate([part.q for part in parts])
    scale = np.concatenate([part.scale for part in parts])
    return IntegerRows(q, scale)


def _by_numpy(
    ask: SumTask, rows: IntegerRows, y: np.ndarray, used: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Add statistics by numpy, with exact products in float64."""
    # float64 sums of whole numbers below 2**53 are exact, whatever BLAS's order is
    assert FACTOR_ROWS * ask.statistic.max_entry <= FLOAT64_EXACT
    # in batches, so that scores and residuals of a batch stay in the cache
    for i in range(0, len(y), FACTOR_ROWS):
        run = slice(i, i + FACTOR_ROWS)
        part = IntegerRows(rows.q[run], rows.scale[run])
        left, right = factors(ask, part, y[run], used[run])
        add_factors(ask.statistic, left, right, out, _exact_products)
    return out


def _exact_products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return leftᵀ right of at most FACTOR_ROWS rows of whole numbers.

    The products are exact for any order of additions.
    """
    products = left.astype(np.float64).T @ right.astype(np.float64)
    return products.astype(np.int64)
