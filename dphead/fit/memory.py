"""Divide a fit's memory bound before any charge, by the sizes of the fit.

One size can be private: the number of rows under add/remove. An error that states a
need of memory then rounds it up (`share`).

Two modules state their own needs: `data.features.streaming_bytes` and
`solvers.base.solving_bytes`. This module adds them to those of the sums, and divides
the rest.
"""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dphead.data.blocks import BLOCK_ROWS, BLOCKS_TOGETHER, streamed_rows
from dphead.data.features import streaming_bytes
from dphead.privacy.statistic_base import Statistic
from dphead.privacy.statistics import ClassSums
from dphead.solvers.base import PlannedRelease, ProblemInfo, solving_bytes
from dphead.sums.passes import cores
from dphead.sums.tuning import CONVERTED_ENTRIES, FACTOR_ROWS, MAX_SUM_COPY_BYTES

DEFAULT_BYTES = 2 << 30  # limit for features and kept rows without a bound; chosen
# modules that load later, threads and allocator space; chosen, tests check the bound
_LIBRARIES_BYTES = 96 << 20
_JAX_BYTES = 300 << 20  # compiler and buffers of jax; chosen
# The allocator keeps freed blocks. In 62 starts of one fit, the memory kept differed by
# up to 50 MB. A refusal adds this size, so that the bound it states is enough.
_FREED_BYTES = 64 << 20
# features are loaded if there are more passes; chosen, not measured
_PASSES_STREAMED = 2
_BYTES_A_ROW = 64  # label, split, group and number of uses in a pass, for each row
_TEST_SCORE_BYTES = 12  # a score in float32 and its copy in float64
_SENT_COPIES = 4  # copies of a sum sent between processes; chosen
# Numbers of arrays in the code of `sums.cpu` and `privacy.statistics`. Raise them if a
# sum needs more memory; tests check the bound.
# arrays as large as a piece's scores: predictions, residuals, numpy's intermediates
_SCORE_ARRAYS = 6
# float64 arrays as large as the rows, while numpy converts them to integers
_CONVERSION_ARRAYS = 8
_MB = 10**6
# When n is private, the stated need is rounded up to this size, which is
# _BYTES_A_ROW of 1.5 million rows.
_PRIVATE_N_STEP_BYTES = 100 * _MB
# control groups of Linux: the memory limit, the memory in use, and its part that the
# kernel frees first, in version 2 ("") and version 1
GROUPS = "/sys/fs/cgroup"
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


@dataclass(frozen=True)
class _Share:
    """Hold the parts of a fit's memory.

    Attributes
    ----------
    features : int
        Bytes of loaded features, or 0 if blocks of features are read in each pass.
    kept : int
        Bytes of integer rows kept between passes.
    """

    features: int
    kept: int


def share(
    bound: int | None,
    facts: ProblemInfo,
    releases: list[PlannedRelease],
    *,
    n_rows: int,
    n_test: int = 0,
    backend: str = "numpy",
    processes: int = 1,
    private_n: bool = False,
) -> _Share:
    """Divide a memory bound between features and kept rows.

    Without a bound, a fit may take all memory that is available, and features and kept
    rows at most 2 GiB of it.

    Parameters
    ----------
    bound : int or None
        Bound on resident memory in bytes. None means what the machine, the control
        group and `ulimit -v` leave.
    facts : ProblemInfo
        The public sizes.
    releases : list of PlannedRelease
        The releases of the fit.
    n_rows : int
        Number of rows that this process reads.
    n_test : int, default 0
        Number of test rows, already in memory.
    backend : str, default "numpy"
        The summation backend.
    processes : int, default 1
        Number of processes of the run.
    private_n : bool, default False
        Whether the number of rows is private. The need that an error states is then
        rounded up to 100 MB.

    Returns
    -------
    _Share
        Bytes for features and for kept rows.

    Raises
    ------
    ValueError
        If even streaming needs more memory. The message states a bound that is enough.
    """
    loaded = (
        4 * n_rows * facts.n_features
        if backend == "reference" or _read_again(releases)
        else 0
    )
    fixed = (
        resident()
        + _LIBRARIES_BYTES
        + _JAX_BYTES * (backend == "jax")
        + _BYTES_A_ROW * n_rows
        + _TEST_SCORE_BYTES * n_test * facts.n_classes
    )
    width = facts.n_features + 1
    sent = 0
    if processes > 1:
        sent = _SENT_COPIES * max(_sum_bytes(r.statistic, width) for r in releases)
    taken = fixed + streaming(facts) + sums(facts, releases) + sent
    most = resident() + available() if bound is None else bound
    if taken > most:
        step = _PRIVATE_N_STEP_BYTES if private_n else _MB
        need = -(-(taken + _FREED_BYTES) // step) * (step // _MB)
        what = (
            f"blocks and sums of {facts.n_features} features and {facts.n_classes} "
            "classes"
        )
        if bound is None:
            raise ValueError(
                f"{what} need {need} MB of memory, and this process can use "
                f"{most // _MB} MB (of the machine, its container or `ulimit -v`). "
                "Use a larger machine, fewer classes or another method."
            )
        raise ValueError(
            f"--memory {bound // _MB}MB cannot hold {what}. Use --memory {need}MB, "
            "fewer classes or another method."
        )
    free = most - taken
    if bound is None:
        # without a bound, the memory of larger blocks is negligible
        return _divided(min(free, DEFAULT_BYTES), loaded, 0)
    small, large = streamed_rows(facts.n_features), BLOCKS_TOGETHER * BLOCK_ROWS
    more = _row_bytes(large, width, cores()) - _row_bytes(small, width, cores())
    return _divided(free, loaded, more)


def _read_again(releases: list[PlannedRelease]) -> bool:
    """Return whether more than two passes read the features.

    Kept integer rows cannot serve a sample or a Gram matrix.
    """
    return (
        sum(r.sampling_prob < 1 or r.statistic.kind == "gram" for r in releases)
        > _PASSES_STREAMED
    )


def _divided(room: int, loaded: int, more: int) -> _Share:
    """Divide `room` bytes between loaded features, if they fit, and kept rows.

    `loaded` is the size of the features in bytes (0: do not load). `more` is the extra
    size of the larger blocks that loaded features have.
    """
    if 0 < loaded <= room - more:
        return _Share(loaded, min(room - loaded - more, DEFAULT_BYTES))
    return _Share(0, min(room, DEFAULT_BYTES))


def resident() -> int:
    """Return the resident memory of this process in bytes.

    Some systems only report the peak.
    """
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def streaming(facts: ProblemInfo) -> int:
    """Return the bytes of blocks that are read, converted to integers and scored."""
    threads = cores()
    rows = streamed_rows(facts.n_features)
    blocks = streaming_bytes(facts.n_features, threads)
    integers = _row_bytes(rows, facts.n_features + 1, threads)
    return blocks + integers + _work_bytes(facts.n_classes, threads)


def sums(facts: ProblemInfo, releases: list[PlannedRelease]) -> int:
    """Return the bytes of the solver's weights and of the largest pass or solution.

    One Gram matrix for each release label is kept until the end.
    """
    width, kept, largest = facts.n_features + 1, dict[str, int](), 0
    following = [*(release.statistic for release in releases[1:]), None]
    for release, after in zip(releases, following, strict=True):
        own = release.statistic
        work = _pass_bytes(own, after, width, facts.n_classes, cores())
        largest = max(largest, sum(kept.values()) + work)
        if own.kind == "gram":
            kept[release.label] = _sum_bytes(own, width)
    weights, solution = solving_bytes(facts, bool(kept))
    return weights + max(largest, sum(kept.values()) + solution)


def _sum_bytes(statistic: Statistic, width: int) -> int:
    """Return the bytes of one int64 sum.

    width counts the columns of a row and the constant.
    """
    return 8 * int(np.prod(statistic.shape(width)))


def _row_bytes(n_rows: int, width: int, threads: int) -> int:
    """Return the bytes of n_rows rows of integers per thread, on all threads.

    An entry takes 4 bytes for moments and 2 for other rows, and 8 more while parts are
    joined.
    """
    return 12 * n_rows * width * threads


def _work_bytes(n_classes: int, threads: int) -> int:
    """Return the bytes for converting rows to integers, and for their scores."""
    # both are bounded by constants, so no term grows with the number of rows
    pieces = _CONVERSION_ARRAYS * 8 * CONVERTED_ENTRIES
    scores = _SCORE_ARRAYS * 8 * FACTOR_ROWS * n_classes
    return threads * (pieces + scores)


def _pass_bytes(
    statistic: Statistic,
    after: Statistic | None,
    width: int,
    n_classes: int,
    threads: int,
) -> int:
    """Return the bytes that one pass needs for a statistic's sum.

    `after` is the statistic of the next request. Each thread has a copy of the sum, and
    large sums use fewer threads. The comparison of the secret rows needs three more
    copies. The noise and the released value take less than these three. A thread that
    sums by numpy also holds some rows in float64, and products of them.
    """
    size = _sum_bytes(statistic, width)
    if statistic.kind == "gram" and isinstance(after, ClassSums):
        # one pass makes both sums, and the class sums wait for their request
        size += _sum_bytes(after, width)
    # as in `sums.passes.on_every_core`
    copies = min(threads, max(1, MAX_SUM_COPY_BYTES // size))
    work = copies * 8 * FACTOR_ROWS * width
    if statistic.kind == "gram":
        work *= 4  # rows in float64, their weights, and a strip of their products
    elif statistic.kind == "outer":
        work += copies * size * (2 if width - 1 <= n_classes else 1)
    return (copies + 3) * size + work


def available() -> int:
    """Return the bytes that this process may still take on this machine.

    The machine, each control group of the process (containers, batch systems) and
    `ulimit -v` bound them.
    """
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - resident()]
    with suppress(OSError, KeyError, ValueError):
        found.append(1024 * _numbers("/proc/meminfo")["MemAvailable:"])
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory"):
                found += left_in_groups(controllers, name)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        with suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(found))


def left_in_groups(controllers: str, name: str) -> Iterator[int]:
    """Yield the bytes left in a control group and in the groups around it.

    Inactive pages of files count as left, because the kernel frees them before it
    refuses memory. In a container, the outermost visible group can be its own.
    """
    top = Path(GROUPS, controllers)
    limit, used, freed = _GROUP_FILES[controllers]
    group = top / name.lstrip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, KeyError, ValueError):  # "max" means no limit
            most = int((folder / limit).read_text())
            taken = int((folder / used).read_text())
            yield most - taken + _numbers(folder / "memory.stat")[freed]
        if folder == top:
            return


def _numbers(path: str | Path) -> dict[str, int]:
    """Return the numbers by name in a file of lines `NAME NUMBER [UNIT]`."""
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines}
