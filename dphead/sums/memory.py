"""What sums on this host's processor hold in memory, in bytes, from public sizes alone.

A sum that comes to hold more must say so here: `dphead.runs.memory` promises a bound.
"""

from collections.abc import Sequence

import numpy as np

from dphead.privacy.query import Query
from dphead.privacy.statistics import ClassSums
from dphead.sums.tuning import CONVERTED_ENTRIES, FACTOR_ROWS, MAX_SUM_COPY_BYTES

# Counted in the code of `cpu` and `statistics`; tests hold the bound on memory.
SCORE_ARRAYS = 6  # of a piece: predictions, residuals, what numpy makes between them
CONVERSION_ARRAYS = 8  # float64, of rows that numpy turns to integers


def sum_bytes(query: Query, width: int) -> int:
    """Of one sum in int64. width: columns of a row, with its constant."""
    return 8 * int(np.prod(query.shape(width)))


def row_bytes(n_rows: int, width: int, threads: int) -> int:
    """Of the integers of so many rows on each thread: of moments 4 a number, where a
    row's have 2, and 8 more while their parts are joined.
    """
    return 12 * n_rows * width * threads


def work_bytes(n_classes: int, threads: int) -> int:
    """Of rows that become integers, and of their scores."""
    pieces = CONVERSION_ARRAYS * 8 * CONVERTED_ENTRIES
    scores = SCORE_ARRAYS * 8 * FACTOR_ROWS * n_classes
    return threads * (pieces + scores)


def largest_sum_bytes(
    queries: Sequence[Query], width: int, n_classes: int, threads: int
) -> int:
    """Of the largest of these sums, asked in this order, with its copies.

    A sum has a copy on each thread, as a pass makes them, some where a run of rows is
    compared, and then noise and what is released. A thread that sums by numpy holds
    some rows in float64, and a product in float64 and in int64, of one class where
    there is a matrix for each.
    """
    most = 0
    for query, after in zip(queries, [*queries[1:], None], strict=True):
        size = sum_bytes(query, width)
        if query.kind == "gram" and isinstance(after, ClassSums):
            # both are made in one pass, and the class sums wait
            size += sum_bytes(after, width)
        copies = min(threads, max(1, MAX_SUM_COPY_BYTES // size))
        work = copies * 8 * FACTOR_ROWS * width
        if query.kind == "gram":
            work = copies * (16 * width**2 + 24 * FACTOR_ROWS * width)
        elif query.kind == "outer":
            work += copies * size * (2 if width - 1 <= n_classes else 1)
        most = max(most, (max(copies, 4) + 4) * size + work)
    return most
