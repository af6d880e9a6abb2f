"""Bound the memory of sums on this host's processor, from public sizes.

Raise these numbers if a sum needs more memory, because `dphead.fit.memory` promises a
bound.
"""

import numpy as np

from dphead.privacy.statistic_base import Statistic
from dphead.privacy.statistics import ClassSums
from dphead.sums.tuning import CONVERTED_ENTRIES, FACTOR_ROWS, MAX_SUM_COPY_BYTES

# Numbers of arrays in the code of `cpu` and `statistics`. Tests check the bound.
# arrays as large as a piece's scores: predictions, residuals, numpy's intermediates
_SCORE_ARRAYS = 6
# float64 arrays as large as the rows, while numpy converts them to integers
_CONVERSION_ARRAYS = 8


def sum_bytes(statistic: Statistic, width: int) -> int:
    """Return the bytes of one int64 sum.

    width counts the columns of a row and the constant.
    """
    return 8 * int(np.prod(statistic.shape(width)))


def row_bytes(n_rows: int, width: int, threads: int) -> int:
    """Return the bytes of n_rows rows of integers on each thread.

    An entry takes 4 bytes for moments and 2 for other rows, and 8 more while parts are
    joined.
    """
    return 12 * n_rows * width * threads


def work_bytes(n_classes: int, threads: int) -> int:
    """Return the bytes for converting rows to integers, and for their scores."""
    # both are bounded by constants, so no term grows with the number of rows
    pieces = _CONVERSION_ARRAYS * 8 * CONVERTED_ENTRIES
    scores = _SCORE_ARRAYS * 8 * FACTOR_ROWS * n_classes
    return threads * (pieces + scores)


def pass_bytes(
    statistic: Statistic,
    after: Statistic | None,
    width: int,
    n_classes: int,
    threads: int,
) -> int:
    """Return the bytes of a statistic's sum with its copies in one pass.

    `after` is the statistic of the next request. A sum has a copy on each thread, and
    three copies while the secret rows are compared. Its noise and the released value
    take less than these. A thread that sums by numpy also holds some rows in float64,
    with products of a strip.
    """
    size = sum_bytes(statistic, width)
    if statistic.kind == "gram" and isinstance(after, ClassSums):
        # one pass makes both sums, and the class sums wait for their request
        size += sum_bytes(after, width)
    # as in `passes.on_every_core`
    copies = min(threads, max(1, MAX_SUM_COPY_BYTES // size))
    work = copies * 8 * FACTOR_ROWS * width
    if statistic.kind == "gram":
        work *= 4  # rows in float64, their weights, and a strip of their products
    elif statistic.kind == "outer":
        work += copies * size * (2 if width - 1 <= n_classes else 1)
    return (copies + 3) * size + work
