"""Divide the scores of `auto` by a temperature, so that probabilities are calibrated.

Gradients clipped at 0.3 act like those of a hinge loss, and noise moves the weights.
The scores of a descent are therefore not log-odds. `temperature` estimates from
released values by which factor they are too large.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import ndtr, ndtri

from dphead.solvers.base import ProblemInfo
from dphead.solvers.expectation import Expectation
from dphead.solvers.head import LinearHead, center_classes, join_intercept

# Typical temperature: the root of (_NOISE / κ)², for noise alone, plus (_SIGNAL ·
# r^_POWER)², for clipping, with r = rows of a class · μ / √features. _LIKELY_SD is the
# standard deviation of its log. results/calibration, "The rule".
_NOISE, _SIGNAL, _POWER, _LIKELY_SD = 1.2, 0.55, 0.25, 0.2
_LIKELY_KAPPA = 2.0  # κ without a released accuracy; chosen
# standard deviation of log T, given the exact accuracy and margin; the same section
_MODEL_SD = 0.1
# Relative error of the noise's part of the margin: the loss shrinks the noise of
# weights; chosen.
_BIAS_SD = 0.08
# Accuracies are kept this far from chance and from 1, where kappa is 0 or infinite;
# chosen, not measured
_ABOVE_CHANCE, _BELOW_ONE = 0.02, 5e-4
_LEAST, _MOST = 0.05, 50.0  # bounds of a temperature; chosen
_KAPPAS = np.linspace(0.2, 9.0, 353)
_NODES = ndtri((np.arange(31) + 0.5) / 31)  # equally likely values of a standard normal


class FirstGradient:
    """Record the first gradient of a descent, and pass each step on to another rule.

    Parameters
    ----------
    rule : callable, optional
        Function that returns the factor on the learning rate (`AdaptiveStepSize`).
    """

    def __init__(self, rule: Callable[[np.ndarray, float], float] | None) -> None:
        self._rule = rule
        self._first: tuple[np.ndarray, float, float] | None = None

    def __call__(self, gradient: np.ndarray, noise_sd: float) -> float:
        """Return the rule's factor for this step, or 1 without a rule."""
        factor = self._rule(gradient, noise_sd) if self._rule else 1.0
        if self._first is None:
            self._first = gradient, noise_sd, factor
        return factor

    def margin(
        self, head: LinearHead, learning_rate: float, clip_norm: float
    ) -> tuple[float, float]:
        """Return the mean margin of the training rows, and its standard deviation.

        A row's margin is the score of its class minus the mean of the other scores.
        Rows that are not used have the margin 0.

        Parameters
        ----------
        head : LinearHead
            Head of the descent, which started at zero weights.
        learning_rate : float
            Learning rate of the descent, without the rule's factor.
        clip_norm : float
            Clip norm of the descent's normalized gradients.

        Notes
        -----
        At zero weights, a row's residual is 1/m - y. All rows then have the same clip
        factor, so the gradient G contains the class sums, and -<W, G> is the mean
        margin of the scores in known units. W contains the noise of G, times the
        learning rate. The expected value of this part of -<W, G> is subtracted.
        """
        assert self._first is not None
        gradient, sd, factor = self._first
        m = head.weights.shape[1]
        rate = learning_rate * factor
        weights = center_classes(join_intercept(head))
        entries = weights.size * (1 - 1 / m)
        bias = rate * entries * sd**2
        value = -float((weights * gradient).sum()) - bias
        noise = math.hypot(sd * float(np.linalg.norm(weights)), _BIAS_SD * bias)
        length = math.hypot(1.0, head.transform.append) * math.sqrt(1 - 1 / m)
        unit = max(clip_norm, length) * m / (m - 1)
        return unit * value, unit * noise


def temperature(
    facts: ProblemInfo,
    expected: Expectation | None,
    margin: tuple[float, float] | None,
) -> float:
    """Return the temperature at which a head's probabilities are calibrated.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes and budget.
    expected : Expectation, optional
        Accuracy on new rows, from released counts.
    margin : tuple of float, optional
        Mean margin of the used rows, and its standard deviation.

    Returns
    -------
    float
        Temperature, rounded to 0.01: libraries that round differently rarely change it.

    Notes
    -----
    In the model, scores are normal with one variance s², and the score of a row's class
    is higher by δ on average. Bayes' rule then gives the temperature s²/δ. The accuracy
    depends on κ = δ/s alone, and δ is the mean margin, so T = δ/κ². The result is the
    mean of log T over the likely values of κ, given the margin, its error, and the
    typical temperature of such a fit.

    If the 90 % interval of the accuracy reaches down to guessing plus _ABOVE_CHANCE, κ
    may be 0. Scores may then be noise alone, so the temperature is at least 1.
    """
    least = _LEAST

    kappas = np.array([_LIKELY_KAPPA])
    if expected is not None:
        chance = 1 / facts.n_classes
        guessed = expected.estimate.low <= chance + _ABOVE_CHANCE
        least = 1.0 if guessed else _LEAST
        ends = chance + _ABOVE_CHANCE, 1 - _BELOW_ONE
        likely = np.clip(expected.accuracy + expected.sd * _NODES, *ends)
        kappas = np.interp(likely, accuracies(facts.n_classes, _KAPPAS), _KAPPAS)
    strength = facts.n_rows / facts.n_classes * facts.mu / math.sqrt(facts.n_features)
    typical = np.log(np.hypot(_NOISE / kappas, _SIGNAL * strength**_POWER))
    logs, weight = typical, np.ones(len(typical))
    if margin is not None:
        # at least the noise's deviation: noise can make a margin small or negative
        value = max(margin)
        found = math.log(value) - 2 * np.log(kappas)
        variance = _MODEL_SD**2 + (margin[1] / value) ** 2
        both = _LIKELY_SD**2 + variance
        logs = typical + (found - typical) * _LIKELY_SD**2 / both
        exponent = -((found - typical) ** 2) / (2 * both)
        weight = np.exp(exponent - exponent.max())  # the largest is 1, so not all are 0
    divisor = math.exp(float((weight * logs).sum() / weight.sum()))
    return round(min(max(divisor, least), _MOST), 2)


def accuracies(n_classes: int, kappas: np.ndarray) -> np.ndarray:
    """Return the accuracy of the model of `temperature` for each κ.

    It is the probability that N(κ, 1) exceeds n_classes - 1 standard normal numbers.
    """
    x = np.linspace(-6, 6, 241)
    weight = np.exp(-(x**2) / 2)
    below = ndtr(x[:, None] + kappas) ** (n_classes - 1)
    return weight @ below / weight.sum()


def cooled(head: LinearHead, divisor: float) -> LinearHead:
    """Return the head with its scores divided by a temperature."""
    return replace(
        head, weights=head.weights / divisor, intercept=head.intercept / divisor
    )
