"""Audit any function from a data set to numbers, and bound its epsilon from below.

The function is run on two neighboring data sets. One half of the runs selects an attack
that distinguishes the two, and the other half gives the bounds of `audit_bounds`.
"""

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dphead.analysis.audit_bounds import (
    Claim,
    EpsilonDeltaClaim,
    epsilon_bound,
    statements,
)
from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.accounting import GaussianEvent, check, require

# smallest variance in a data set, as a fraction of the variance over both; chosen
_LEAST_VARIANCE = 1e-9


def audit_mechanism(
    function: Callable[[Any], Any],
    epsilon: float,
    delta: float,
    neighbors: Sequence[Any],
    *,
    fits: int = 1000,
    confidence: float = 0.9999,
    gaussian: bool = False,
) -> dict[str, Any]:
    """Run a mechanism on two neighboring data sets, and test its claim.

    Parameters
    ----------
    function : callable
        The mechanism. It takes a copy of a data set and returns a real number, or an
        array of the same shape in every run. Each run must draw new noise. The function
        must not change objects that a pickle stores by name only, such as classes.
    epsilon, delta : float
        The claimed guarantee. `delta` may be 0, unless `gaussian` is True.
    neighbors : pair
        Two neighboring data sets, the one without the record first. Both must be
        picklable, because each run gets a new copy.
    fits : int, default 1000
        Number of runs on each data set. The first half selects the attack.
    confidence : float, default 0.9999
        Joint confidence of the bounds. A correct mechanism fails with probability at
        most 1 - confidence.
    gaussian : bool, default False
        Whether the claim is of Gaussian DP, such as Gaussian noise on one sum. The
        results then include the epsilon of the bound on mu, and the test is stricter.

    Returns
    -------
    dict
        The bounds, as in audit.json of `dphead audit`. "passed" is False if the runs
        refute the claim.

    Raises
    ------
    ValueError
        If an argument is invalid, if the data sets are equal, or if one cannot be
        pickled. If an output is not real, finite and exact in float64, has no number,
        or changes its shape.

    Notes
    -----
    The attack scores an output by two Gaussians with independent entries. This attack
    is strong against additive noise on few numbers. A function that returns the score
    of a better attack, for example the loss on the record, gives better bounds.

    A passed audit proves nothing: another attack, other data sets or more runs may
    refute the claim. With n > 10 runs on each data set in the second half, the bound on
    epsilon is at most ln(n / 10.5) at the default confidence.

    References
    ----------
    Jagielski, Ullman, Oprea 2020. Nasr et al. 2023, for the bound on mu.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def noisy_count(rows):
    ...     return len(rows) + rng.laplace(scale=0.2)  # epsilon is 5, not 1
    >>> found = audit_mechanism(noisy_count, 1.0, 0.0, ([1, 2], [1, 2, 3]))
    >>> found["passed"], found["epsilon_lower_bound"] > 2
    (False, True)
    """
    known = 0 < epsilon < math.inf and 0 <= delta < 1
    hint = "Use numbers such as 1 and 1e-5."
    text = "epsilon must be positive and finite, and delta in [0, 1)"
    require(known, text, "epsilon", (epsilon, delta), hint)
    known = 0.5 < confidence < 1
    require(known, "confidence must be between 0.5 and 1", "confidence", confidence)
    require(fits >= 4, "fits must be at least 4", "fits", fits, "Use 1000.")
    known = isinstance(neighbors, Sequence) and len(neighbors) == 2
    hint = "Use a tuple of two data sets."
    require(known, "neighbors must be a pair", "neighbors", type(neighbors), hint)
    claim: Claim = EpsilonDeltaClaim(epsilon, delta)
    if gaussian:
        check(delta)
        event = GaussianEvent(1 / mu_from_epsilon(epsilon, delta))
        claim = Claim(epsilon, delta, "zero_out", (event,))
    kept = [*map(_pickled, neighbors)]
    if kept[0] == kept[1]:
        raise ValueError(
            "The two data sets of `neighbors` are equal, so no mechanism tells them "
            "apart. Pass data sets that differ in one record."
        )
    # alternate, so that a slow change of the machine affects both alike
    runs = [
        [_numbers(function(pickle.loads(data))) for data in kept] for _ in range(fits)
    ]
    if len({run.shape for pair in runs for run in pair}) > 1:
        raise ValueError(
            "The outputs of `function` have different shapes. Return arrays of one "
            "shape, such as a fixed number of summaries."
        )
    values = np.array(runs).reshape(fits, 2, -1).swapaxes(0, 1)
    half = fits // 2
    error = (1 - confidence) / 2
    scores, threshold = _attack(values[:, :half], values[:, half:], delta, error)
    return statements(scores, claim, threshold, confidence)


def _pickled(data: Any) -> bytes:
    """Return a data set's pickle, from which each run gets a new data set.

    `copy.deepcopy` would leave some values shared, such as arrays in the cells of a
    DataFrame. A function that changes them could make both data sets equal. Raises
    ValueError if runs would share the data set, or if it cannot be pickled.
    """
    try:
        found = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
        copy = pickle.loads(found)
    except Exception as error:  # a data set's own code can raise any type
        raise ValueError(
            "a data set of `neighbors` cannot be pickled, and each run needs a new "
            f"copy of it ({type(error).__name__}: {error}). Pass arrays, or the path "
            "of a file."
        ) from error
    if callable(data) and copy is data:  # its pickle is its name
        raise ValueError(
            f"a data set of `neighbors` is the function or class {data!r}, which all "
            "runs would share. Pass arrays, or the path of a file."
        )
    return found


def _numbers(output: Any) -> np.ndarray:
    """Return an output as a new array of float64.

    It is a copy, because a function can return one buffer in every run. Raises
    ValueError if the output is not real, finite and exact in float64, is empty, or has
    a mask.
    """
    if _is_masked(output):
        raise ValueError(
            "An output of `function` is a masked array, and an attacker sees the mask "
            "too. Return the values and the mask as numbers."
        )
    given = np.asarray(output)
    if given.dtype.kind not in "biuf" or not given.size:
        raise ValueError(
            f"An output of `function` has {given.size} values of type {given.dtype}. "
            "Return real numbers, at least one. For example, return the real and the "
            "imaginary parts of a complex number."
        )
    found = np.array(given, float)
    if not np.isfinite(found).all():
        raise ValueError(
            "An output of `function` is not finite. Map such outputs to a number, "
            "because an attacker sees them too."
        )
    exact = bool(np.all(found.astype(given.dtype) == given))
    if not hasattr(output, "dtype"):  # asarray may have rounded items, such as integers
        items = np.asarray(output, object).flat
        values = (item.item() if hasattr(item, "item") else item for item in items)
        exact = exact and all(float(value) == value for value in values)
    if not exact:
        raise ValueError(
            f"An output of `function` has a value, read as type {given.dtype}, that "
            "float64 rounds. Return its high and low digits as two numbers."
        )
    return found


def _is_masked(output: Any) -> bool:
    """Return whether an output is a masked array, or has one in its lists."""
    if isinstance(output, list | tuple):
        return any(map(_is_masked, output))
    return np.ma.isMaskedArray(output)


def _attack(
    learned: np.ndarray, tested: np.ndarray, delta: float, error: float
) -> tuple[np.ndarray, float]:
    """Return scores (2, n) of the tested outputs, and the threshold for epsilon.

    The outputs `learned` (2, n, numbers) alone select the attack and the threshold. A
    score above 0 is a guess that the output belongs to the second row of scores.
    """
    # otherwise the squares of very large or small outputs overflow or vanish
    peak = np.abs(learned).max(axis=(0, 1))
    peak[peak == 0] = 1
    learned, tested = learned / peak, tested / peak
    center = learned.mean(axis=(0, 1))
    scale = learned.std(axis=(0, 1))
    scale[scale == 0] = 1
    first, last = (learned - center) / scale, (tested - center) / scale
    means, variances = first.mean(axis=1), first.var(axis=1) + _LEAST_VARIANCE
    weights = (means[1] - means[0]) / variances.mean(axis=0)

    def log_density(x: np.ndarray, world: int) -> np.ndarray:
        squares = (x - means[world]) ** 2 / variances[world]
        return -(squares + np.log(variances[world])).sum(axis=-1) / 2

    attacks = [
        lambda x: x @ weights,
        lambda x: log_density(x, 1) - log_density(x, 0),
    ]
    found = []
    for attack in attacks:
        for sign in (1, -1):  # -1 swaps them: an attack detects the first data set
            known, new = (sign * attack(x)[::sign] for x in (first, last))
            found.append((*_thresholds(known, delta, error), new))
    *_, threshold, middle, scores = max(found, key=lambda each: each[:2])
    return scores - middle, threshold - middle


def _thresholds(
    scores: np.ndarray, delta: float, error: float
) -> tuple[float, float, float, float]:
    """Return the best bound on epsilon, the best advantage, and their thresholds."""
    n = scores.shape[1]
    cuts = np.unique(scores)
    above = [n - np.searchsorted(np.sort(row), cuts, "right") for row in scores]
    bounds = epsilon_bound(above[0], n - above[1], n, delta, error)
    advantages = (above[1] - above[0]) / n
    best, middle = int(np.argmax(bounds)), int(np.argmax(advantages))
    return float(bounds[best]), float(advantages[middle]), cuts[best], cuts[middle]
