"""Forecast the time of a fit from public sizes, and limit sums of matrices per class.

The forecast is the number of operations divided by measured rates. It omits reading
from disk. It counts the verification of sums only if they are one matrix per class. It
is only accurate enough to distinguish minutes from hours.
"""

import shlex
from collections.abc import Sequence

import numpy as np

from dphead.privacy.statistic_base import Statistic
from dphead.solvers.base import PlannedRelease, ProblemInfo
from dphead.sums import kernels
from dphead.sums.cpu import kernel_of
from dphead.sums.passes import cores
from dphead.sums.tuning import CHECKED_PIECE_ROWS, MAX_SUM_COPY_BYTES

# Entries of a sum times rows, per second and core: measured on one core of an AMD EPYC
# with 1,280 features. Forecasts were within a factor of 1.6 of fits that took more than
# a second, and of 1.2 with one matrix per class (results/duration).
_KERNELS = {
    "gram": 250e9,
    "class sums": 400e9,
    "gradient": 45e9,  # 40e9 with 10 classes, 61e9 with 100
}
_NUMPY_MATRICES = 20e9  # fitted with _COPIED_ENTRIES to results/duration
_NUMPY_GRADIENT = 5e9  # 4.2e9 with 10 classes, 9.7e9 with 100
_ROW_ENTRIES = 1.5e9  # entries of rows per second and core, converted to integers
_NUMPY_ROW_ENTRIES = 0.1e9  # 0.08e9 for centered rows
_NOISE_ENTRIES = 25e6  # entries per second that get noise, on one core
_CUBES = 5.5e9  # eigenvalues of a matrix of width w take w³ / _CUBES s, on one core
# Rates for sums of one matrix per class, in entries of the sum per second on one core:
# to copy the sum in a pass, and to test it before the charge (9e6 to 41e6, lower for
# larger sums).
_COPIED_ENTRIES, _TESTED_ENTRIES = 16e6, 14e6
_SHORT_SECONDS = 1.0  # a shorter fit needs no compiled kernels; chosen
LONG_SECONDS = 60.0  # longer fits are announced; chosen
_LIMIT_SECONDS = 3600.0  # largest time of the sums of one matrix per class; chosen


def expected_seconds(releases: Sequence[PlannedRelease], facts: ProblemInfo) -> float:
    """Return the expected time of all releases and of the solver, in seconds."""
    matrices = {r.statistic for r in releases if _by_class(r)}
    tested = sum(np.prod(one.shape(facts.n_features + 1)) for one in matrices)
    spent = sum(_seconds(release, facts) for release in releases)
    return float(spent + tested / _TESTED_ENTRIES)


def missing_kernels(seconds: float) -> str:
    """Return a warning if kernels are missing for a fit of these seconds, or ""."""
    if kernels.library is not None or seconds < _SHORT_SECONDS:
        return ""
    if kernels.stale():
        return (
            "The compiled kernels of this installation do not match its C sources, so "
            "numpy computes the sums, which takes longer. In the folder of dphead's "
            "setup.py type `pip install --no-deps .`, or `pip install --no-deps -e .` "
            "if you change the code there."
        )
    install = "pip install --force-reinstall --no-deps --no-cache-dir dphead"
    checkout = kernels.sources.FOLDER.parents[2]
    if (checkout / "setup.py").exists():
        install = f"pip install --no-deps -e {shlex.quote(str(checkout))}"
    return (
        "This installation has no compiled kernels, so numpy computes the sums, which "
        f"takes longer. Install a C compiler, then type `{install}`."
    )


def check_duration(
    releases: Sequence[PlannedRelease], facts: ProblemInfo, name: str
) -> float:
    """Return the expected seconds of a fit, and limit sums of one matrix per class.

    Call it before the charge. Raises ValueError if these sums take more than
    _LIMIT_SECONDS. Other sums have no limit.
    """
    seconds = expected_seconds([r for r in releases if _by_class(r)], facts)
    if seconds > _LIMIT_SECONDS:
        raise ValueError(
            f"{name} would need about {time_in_words(seconds)} to sum one matrix for "
            f"each of {facts.n_classes} classes with {facts.n_features} features. The "
            f"limit is {time_in_words(_LIMIT_SECONDS)}. Use `--method dp-fc` or "
            "`--method auto`."
        )
    return expected_seconds(releases, facts)


def time_in_words(seconds: float) -> str:
    """Return a time as text, such as "3 minutes" or "14 hours"."""
    for unit, size in (("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size or unit == "second":
            break
    number = max(1, round(seconds / size))
    return f"{number} {unit}{'s' if number > 1 else ''}"


def _by_class(release: PlannedRelease) -> bool:
    """Return whether a release is one matrix per class."""
    return len(release.statistic.shape(1)) == 3


def _seconds(release: PlannedRelease, facts: ProblemInfo) -> float:
    statistic, width = release.statistic, facts.n_features + 1
    entries = float(np.prod(statistic.shape(width)))
    rows = facts.n_rows * release.sampling_prob / release.epoch_steps
    # as in `sums.passes`: each thread adds to its own copy of the sum
    threads = min(cores(), max(1, int(MAX_SUM_COPY_BYTES // (8 * entries))))
    rate = _rate(statistic)
    row_rate = _NUMPY_ROW_ENTRIES if kernels.library is None else _ROW_ENTRIES
    adding = rows * (entries / rate + width / row_rate) / threads
    if _by_class(release):
        # `sums.passes` adds the rows around its secret rows twice, by one thread
        twice = min(rows, CHECKED_PIECE_ROWS)
        adding += entries * (twice / rate + 1 / _COPIED_ENTRIES)
    solving = 0.0
    if statistic.kind == "gram":
        solving = entries * width / _CUBES
    return adding + entries / _NOISE_ENTRIES + solving


def _rate(statistic: Statistic) -> float:
    """Return one core's rate for a statistic, in entries × rows per second."""
    numpy_rate = _NUMPY_MATRICES if statistic.kind == "gram" else _NUMPY_GRADIENT
    return _KERNELS.get(kernel_of(statistic), numpy_rate)
