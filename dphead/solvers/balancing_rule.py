"""Balance decisions of `auto`, if released values predict a gain."""

import math
from collections.abc import Generator
from dataclasses import replace

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistics import ClassCorrectCounts
from dphead.privacy.transform import RowTransform
from dphead.solvers.balancing import adjusted_head
from dphead.solvers.base import ProblemInfo, Request
from dphead.solvers.centering import kept_share, rows_that_count, typical_length
from dphead.solvers.head import LinearHead, params_of
from dphead.solvers.temperature import accuracies

BEFORE, AFTER = "correct rows before balancing", "correct rows after balancing"
# Classes are even if the largest has fewer than _EVEN times the rows of the smallest.
# Differences that _EXCESS standard deviations of the noise explain are removed.
# Chosen on two data sets; results/calibration, "Balanced decisions".
_EVEN, _EXCESS = 1.5, 3.0
# Model of the gain (`_expected_gain`): typical values of f and log κ, with standard
# deviations, and grids of both. They and the errors were chosen on the same data.
_FOLLOWED, _LOG_KAPPA = (1.2, 0.6), (math.log(1.5), 0.3)
_FOLLOWS, _KAPPAS = np.linspace(-1.0, 3.0, 41)[:, None, None], np.geomspace(0.3, 6, 24)
# standard deviations of the errors of a class's margin and accuracy
_MARGIN_ERROR, _CLASS_ERROR = 0.6, 0.02
# Standard deviations of the errors of f, as estimated from the mean scores of all rows:
# due to the model, and due to the intercept's noise. Chosen on further data sets;
# results/calibration, "The intercept".
_MEAN_ERROR, _INTERCEPT_ERROR = 0.3, 0.1
_GAIN_ERROR = 0.03  # standard deviation of the error of the model's gain
# Scores are not adjusted below this likely gain, because the counts and the model have
# errors. Chosen on the same data; results/calibration, "The least gain".
_LEAST_GAIN = 0.01
_MARGINS = np.linspace(-6.0, 12.0, 361)


def better_head(
    facts: ProblemInfo,
    head: LinearHead,
    before: Released,
    noise: float | None,
) -> Generator[Request, Released, LinearHead]:
    """Request counts, and return the adjusted head, or `head` if it may gain little.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes.
    head : LinearHead
        Head that is not adjusted.
    before : Released
        Noisy counts of the head's correct and wrong rows of each class
        (`ClassCorrectCounts`).
    noise : float or None
        Expected squared norm of the center's noise (`center_noise`). None if the mean
        scores of all rows do not follow from the intercept.

    Notes
    -----
    The same counts of the adjusted head give the change of the balanced accuracy. The
    normal prior of this change has the mean `_expected_gain` and the standard deviation
    _GAIN_ERROR. The head is adjusted if classes are uneven (_EVEN) and the posterior
    mean is above _LEAST_GAIN.

    A class with fewer rows than the noise gets the size of the smallest other class: a
    rare class looks like a class without rows.
    """
    sizes, sd = _class_sizes(facts, before)
    shown = sizes >= sd
    sizes = np.where(shown, sizes, sizes[shown].min(initial=sizes.max(initial=sd)))
    adjusted = adjusted_head(head, sizes / sizes.sum())
    statistic = ClassCorrectCounts(facts.n_classes)
    after = yield Request(AFTER, statistic, params_of(adjusted))
    # each new correct row is one wrong row fewer: average both counts, for less noise
    change = (after.value - before.value) @ np.array([0.5, -0.5])
    gain = float((change / sizes).mean())
    both = (before.noise_sd**2 + after.noise_sd**2) / 2
    variance = both * float((sizes**-2).sum()) / len(sizes) ** 2
    if sizes.max() < _EVEN * sizes.min():
        return replace(head, balanced=False)
    factor = noise and _mean_over_intercept(head.transform, noise)
    expected = _expected_gain(sizes, before, head.intercept, factor)
    likely = np.average([gain, expected], weights=[_GAIN_ERROR**2, variance])
    return adjusted if likely > _LEAST_GAIN else replace(head, balanced=False)


def _expected_gain(
    sizes: np.ndarray, before: Released, intercept: np.ndarray, factor: float | None
) -> float:
    """Return the expected gain of balanced accuracy, given a head and its counts.

    Notes
    -----
    After few noisy steps, decisions depend little on class frequencies. They are
    balanced already, and an adjustment would prefer rare classes. If frequent classes
    are more accurate than rare ones, decisions depend on the frequencies.

    In the model, the scores of a row are normal with standard deviation κ, and the
    score of the row's class is higher by κ² (`temperature`, which divided the scores).
    A class's score also has f times the log of its frequency, and the adjustment lowers
    f by 1. The result is the mean over the likely values of f and κ, given the counts
    and the intercept.

    Over all rows, the mean score of a class is κ² times its share, plus f times the log
    of its share. The mean scores are `factor` times the intercept
    (`_mean_over_intercept`).
    """
    m = len(sizes)
    logs = np.log(sizes) - np.log(sizes).mean()
    # log frequency of a class, less the mean of the others
    higher = logs * m / (m - 1) / _KAPPAS[:, None]
    curve = accuracies(m, _MARGINS)
    margins = _KAPPAS[:, None] + _FOLLOWS * higher
    seen, slope, after = (
        np.interp(found, _MARGINS, values)
        for found, values in (
            (margins, curve),
            (margins, np.gradient(curve, _MARGINS)),
            (margins - higher, curve),
        )
    )
    # the number of correct rows, with the noise of both counts
    correct = (before.value @ np.array([1.0, -1.0]) + sizes) / 2
    error = np.hypot(_MARGIN_ERROR * slope, _CLASS_ERROR) * sizes
    variance = before.noise_sd**2 / 2 + error**2
    # twice the negative logarithm of the likelihood, and of the prior
    found = (correct - seen * sizes) ** 2 / variance + np.log(variance)
    unlikely = (
        found.sum(axis=-1) + ((np.log(_KAPPAS) - _LOG_KAPPA[0]) / _LOG_KAPPA[1]) ** 2
    )
    unlikely += ((_FOLLOWS[..., 0] - _FOLLOWED[0]) / _FOLLOWED[1]) ** 2
    if factor is not None:
        own = _KAPPAS[:, None] ** 2 * sizes / sizes.sum()
        follows = (factor * intercept - own) @ logs / (logs @ logs)
        error = math.hypot(_MEAN_ERROR, factor * _INTERCEPT_ERROR)
        unlikely += ((_FOLLOWS[..., 0] - follows) / error) ** 2
    weight = np.exp((unlikely.min() - unlikely) / 2)
    return float(np.average((after - seen).mean(axis=-1), weights=weight))


def _mean_over_intercept(transform: RowTransform, noise: float) -> float:
    """Return the mean scores of all rows, divided by the intercept.

    Notes
    -----
    The center's noise shifts all rows by one vector u. A descent from zero weights
    learns u like the appended constant a, so the weights add ‖u‖²/a² times the
    intercept to the mean scores.

    The center is c̃ = k r, for a noisy mean r with noise of the expected squared norm D
    and k = 1 - D/‖r‖² (`kept_share`). The squared error of c̃ is k D on average, and
    ‖c̃‖² = k² D / (1 - k) gives k.
    """
    center = np.asarray(transform.center, float)
    squared = float(center @ center)
    error = (math.sqrt(squared * (squared + 4 * noise)) - squared) / 2
    return 1 + error / (typical_length(center) * transform.append) ** 2


def _class_sizes(facts: ProblemInfo, before: Released) -> tuple[np.ndarray, float]:
    """Return the estimated size of each class, and the sd of the noise in a size.

    The sd is at least 1. Sizes are shrunk toward their mean, so that noise does not
    make equal classes uneven. Their sum is n_rows, unless noise does not explain the
    difference from the counts.
    """
    counts = before.value.sum(axis=1)
    variance = 2 * before.noise_sd**2
    m = len(counts)
    whole = Released(counts.sum().reshape(1, 1), math.sqrt(m * variance))
    apart = counts - counts.mean()
    # mean of the squared noise, plus _EXCESS of its standard deviations
    noise = (m - 1 + _EXCESS * math.sqrt(2 * (m - 1))) * variance
    apart *= kept_share(apart @ apart, noise)
    mean = rows_that_count(whole, facts.n_rows) / m
    # the sizes add up to n_rows, which has no noise: hence 1 - 1 / m
    return mean + apart, max(math.sqrt(variance * (1 - 1 / m)), 1.0)
