"""What a fit may hold in memory under a bound, from public sizes alone, before anything
is charged.
"""

import os
import resource
import sys
from dataclasses import dataclass

import numpy as np

from dphead.privacy.statistics import ClassSums
from dphead.rows.blocks import BLOCK_ROWS, BLOCKS_TOGETHER, streamed_rows
from dphead.rows.features import BLOCKS_AHEAD
from dphead.solvers.base import PlannedRelease, PublicFacts
from dphead.sums.passes import cores
from dphead.sums.tuning import CONVERTED_ENTRIES, FACTOR_ROWS, MAX_SUM_COPY_BYTES

DEFAULT_BYTES = 2 << 30  # of features and of kept rows together, without a bound
# modules still to come (numba and what it compiles: 130 MB), threads and allocator
# space
LIBRARIES_BYTES = 192 << 20
JAX_BYTES = 300 << 20  # its compiler and buffers
PASSES_STREAMED = (
    2  # passes that read a file before it pays to load it; chosen, not measured
)
BYTES_A_ROW = 64  # bytes a row of labels, splits, groups, and counts of used slots
MB = 10**6
# what is needed is told to so much where n is private: 1.5 million rows of BYTES_A_ROW
PRIVATE_N_STEP_BYTES = 100 * MB


@dataclass(frozen=True)
class Share:
    """features: bytes of loaded features; 0 streams them.

    kept: bytes of integer rows kept between passes.
    """

    features: int
    kept: int


def share(
    bound: int | None,
    facts: PublicFacts,
    releases: list[PlannedRelease],
    *,
    n_rows: int,
    n_test: int = 0,
    backend: str = "numpy",
    processes: int = 1,
    private_n: bool = False,
) -> Share:
    """Divide `bound` bytes of this process's resident memory, or two gigabytes of rows
    if there is no bound.

    n_rows: rows that this process reads; n_test: rows to be measured on, already in
    memory; processes: of the run.
    ValueError that says how much is needed if even streaming does not fit, rounded up
    to PRIVATE_N_STEP_BYTES with private_n.
    """
    loaded = (
        4 * n_rows * facts.n_features
        if backend == "reference" or read_again(releases)
        else 0
    )
    if bound is None:
        return _divided(DEFAULT_BYTES, loaded, 0)
    fixed = (
        resident()
        + LIBRARIES_BYTES
        + JAX_BYTES * (backend == "jax")
        + BYTES_A_ROW * n_rows
        + 12 * n_test * facts.n_classes
    )
    sent = (
        4 * max(_size(r, facts.n_features + 1) for r in releases)
        if processes > 1
        else 0
    )
    free = bound - fixed - streaming(facts) - sums(facts, releases) - sent
    if free < 0:
        step = PRIVATE_N_STEP_BYTES if private_n else MB
        need = -(-(bound - free) // step) * (step // MB)
        raise ValueError(
            f"memory must hold blocks and sums of n_features={facts.n_features}, "
            f"n_classes={facts.n_classes}, got memory={bound // MB}MB. It needs "
            f"{need}MB: raise it, or use fewer classes or another method."
        )
    more = made(facts, BLOCKS_TOGETHER * BLOCK_ROWS) - made(
        facts, streamed_rows(facts.n_features)
    )
    return _divided(free, loaded, more)


def read_again(releases: list[PlannedRelease]) -> bool:
    """Whether passes read features many times: integer rows serve neither a sample nor
    a sum of squares.
    """
    return (
        sum(r.sampling_prob < 1 or r.query.kind == "gram" for r in releases)
        > PASSES_STREAMED
    )


def _divided(room: int, loaded: int, more: int) -> Share:
    """Features if they are to be loaded and fit with what their larger blocks need
    more; integer rows in the rest.
    """
    if 0 < loaded <= room - more:
        return Share(loaded, min(room - loaded - more, DEFAULT_BYTES))
    return Share(0, min(room, DEFAULT_BYTES))


def resident() -> int:
    """Bytes of memory that this process holds now (its peak where only that is
    known).
    """
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def streaming(facts: PublicFacts) -> int:
    """Bytes of float32 blocks: read ahead, waiting and in work on each core, and one
    being read; of scores in work.
    """
    rows = streamed_rows(facts.n_features)
    blocks = 4 * rows * (facts.n_features + 1) * (BLOCKS_AHEAD + 2 * cores() + 4)
    # of a piece's scores: predictions, residuals and what numpy makes between them
    arrays = 6
    # float64 arrays of rows that numpy turns to integers
    pieces = 8 * 8 * CONVERTED_ENTRIES * cores()
    return (
        blocks
        + pieces
        + made(facts, rows)
        + arrays * 8 * FACTOR_ROWS * facts.n_classes * cores()
    )


def made(facts: PublicFacts, rows: int) -> int:
    """Bytes of the integers of so many rows on each core: 2 a number, and 8 of moments
    while their parts are joined.
    """
    return 12 * rows * (facts.n_features + 1) * cores()


def sums(facts: PublicFacts, releases: list[PlannedRelease]) -> int:
    """Bytes of the largest sum with its copies, of the Gram matrices that a solver
    keeps, and of what it solves with.

    A sum is int64 and has a copy on each core, as a pass makes them, some where a run
    of rows is compared, and then noise and what is released. A core that sums by numpy
    holds some rows in float64, and a product in float64 and in int64, of one class
    where there is a matrix for each. A solver factors a Gram matrix or brings it to its
    eigenvectors.
    """
    width, most = facts.n_features + 1, 0
    kept = {r.label: _size(r, width) for r in releases if r.query.kind == "gram"}
    for r, after in zip(releases, [*releases[1:], None], strict=True):
        size = _size(r, width)
        if (
            r.query.kind == "gram"
            and after is not None
            and isinstance(after.query, ClassSums)
        ):
            # both are made in one pass, and the class sums wait
            size += _size(after, width)
        copies = min(cores(), max(1, MAX_SUM_COPY_BYTES // size))
        work = copies * 8 * FACTOR_ROWS * width
        if r.query.kind == "gram":
            work = copies * (16 * width**2 + 24 * FACTOR_ROWS * width)
        elif r.query.kind == "outer":
            work += copies * size * (2 if facts.n_features <= facts.n_classes else 1)
        most = max(most, (max(copies, 4) + 4) * size + work)
    solver = 6 * 8 * width**2 * bool(kept) + 8 * 8 * width * facts.n_classes
    return max(most, solver) + sum(kept.values())


def _size(release: PlannedRelease, width: int) -> int:
    return 8 * int(np.prod(release.query.shape(width)))
