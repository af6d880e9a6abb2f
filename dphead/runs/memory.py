"""What a fit may hold in memory under a bound, from public sizes alone, before anything
is charged.

Each room says what it holds: `rows.features.streaming_bytes`, `sums.memory` and
`solvers.base.solving_bytes`. Here their answers are added and the rest is divided.
"""

import os
import resource
import sys
from dataclasses import dataclass

from dphead.rows.blocks import BLOCK_ROWS, BLOCKS_TOGETHER, streamed_rows
from dphead.rows.features import streaming_bytes
from dphead.solvers.base import PlannedRelease, PublicFacts, solving_bytes
from dphead.sums.memory import largest_sum_bytes, row_bytes, sum_bytes, work_bytes
from dphead.sums.passes import cores

DEFAULT_BYTES = 2 << 30  # of features and kept rows, without a bound; chosen
# modules still to come (numba and what it compiles: 130 MB), threads and allocator
# space; chosen, and tests hold the bound
LIBRARIES_BYTES = 192 << 20
JAX_BYTES = 300 << 20  # its compiler and buffers; chosen
# passes that read a file before it pays to load it; chosen, not measured
PASSES_STREAMED = 2
BYTES_A_ROW = 64  # bytes a row of labels, splits, groups, and counts of used slots
TEST_SCORE_BYTES = 12  # a test row's score in float32, and float64 made of it; chosen
SENT_COPIES = 4  # of a sum that travels between processes; chosen
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
        + TEST_SCORE_BYTES * n_test * facts.n_classes
    )
    width = facts.n_features + 1
    sent = 0
    if processes > 1:
        sent = SENT_COPIES * max(sum_bytes(r.query, width) for r in releases)
    free = bound - fixed - streaming(facts) - sums(facts, releases) - sent
    if free < 0:
        step = PRIVATE_N_STEP_BYTES if private_n else MB
        need = -(-(bound - free) // step) * (step // MB)
        raise ValueError(
            f"memory must hold blocks and sums of n_features={facts.n_features}, "
            f"n_classes={facts.n_classes}, got memory={bound // MB}MB. It needs "
            f"{need}MB: raise it, or use fewer classes or another method."
        )
    small, large = streamed_rows(facts.n_features), BLOCKS_TOGETHER * BLOCK_ROWS
    more = row_bytes(large, width, cores()) - row_bytes(small, width, cores())
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
    """Bytes of blocks that are read, become integers, and are scored."""
    threads = cores()
    rows = streamed_rows(facts.n_features)
    blocks = streaming_bytes(facts.n_features, threads)
    integers = row_bytes(rows, facts.n_features + 1, threads)
    return blocks + integers + work_bytes(facts.n_classes, threads)


def sums(facts: PublicFacts, releases: list[PlannedRelease]) -> int:
    """Bytes of the largest sum or of what a solver solves with, and of the matrices
    that it keeps.
    """
    width = facts.n_features + 1
    grams = {r.label: r.query for r in releases if r.query.kind == "gram"}
    kept = sum(sum_bytes(query, width) for query in grams.values())
    queries = [r.query for r in releases]
    largest = largest_sum_bytes(queries, width, facts.n_classes, cores())
    return kept + max(largest, solving_bytes(facts, bool(grams)))
