"""Bound the memory of sums on this host's processor, from public sizes.

Raise these numbers if a sum needs more memory, because `dphead.fit.memory` promises a
bound.
"""

from collections.abc import Sequence

import numpy as np

from dphead.privacy.statistic_base import Statistic
from dphead.privacy.statistics import ClassSums
from dphead.sums.tuning import CONVERTED_ENTRIES, FACTOR_ROWS, MAX_SUM_COPY_BYTES

# Counted in the code of `cpu` and `statistics`; tests check the memory bound. arrays of
# a piece's scores: predictions, residuals, numpy's intermediate arrays
_SCORE_ARRAYS = 6
# float64 arrays of rows that numpy converts to integers
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


def largest_sum_bytes(
    statistics: Sequence[Statistic], width: int, n_classes: int, threads: int
) -> int:
    """Return the bytes of the largest of these sums with its copies.

    The statistics are in the order of the requests. A sum has a copy on each thread,
    further copies while the secret rows are compared, then the noise and the released
    value. A thread that sums by numpy also holds some rows in float64, and a product in
    float64 and in int64. If there is a matrix for each class, the product is for one
    class.
    """
    most = 0
    for statistic, after in zip(statistics, [*statistics[1:], None], strict=True):
        size = sum_bytes(statistic, width)
        if statistic.kind == "gram" and isinstance(after, ClassSums):
            # one pass makes both sums, and the class sums wait for their request
            size += sum_bytes(after, width)
        # as `passes._on_every_core`
        copies = min(threads, max(1, MAX_SUM_COPY_BYTES // size))
        work = copies * 8 * FACTOR_ROWS * width
        if statistic.kind == "gram":
            # a product in float64 and in int64, and rows in float64 with their weights
            work = copies * (16 * width**2 + 24 * FACTOR_ROWS * width)
        elif statistic.kind == "outer":
            work += copies * size * (2 if width - 1 <= n_classes else 1)
        # 4: the copies of a checked sum. 4 more: noise, the released value, and the
        # temporary arrays of both.
        most = max(most, (max(copies, 4) + 4) * size + work)
    return most
