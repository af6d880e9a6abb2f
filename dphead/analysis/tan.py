"""Compute the total amount of noise, which determines epsilon at high noise [TAN23].

TAN is an approximation for planning and cheap simulations, never for charges.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# TAN23, section 3.2: the approximation can fail below it ("privacy wall")
MIN_SIGMA = 2.0


class _Tan(NamedTuple):
    """Hold a run's total amount of noise, and its epsilon by it.

    Attributes
    ----------
    eta : float
        q sqrt(T / 2) / sigma, with the symbols of `total_amount_of_noise`.
    total_noise : float
        Sigma = 1 / eta.
    epsilon : float
        epsilon_TAN, an approximation.
    reason : str
        Why the approximation is unreliable, or "".
    """

    eta: float
    total_noise: float
    epsilon: float
    reason: str


def total_amount_of_noise(
    noise_multiplier: float, sampling_prob: float, steps: int, delta: float
) -> _Tan:
    """Return the total amount of noise of a run.

    eta^2 = q^2 T / (2 sigma^2), Sigma = 1 / eta, epsilon_TAN = eta^2 + 2 eta
    sqrt(ln(1/delta)).

    Parameters
    ----------
    noise_multiplier : float
        sigma, positive.
    sampling_prob : float
        q, in (0, 1].
    steps : int
        T, at least 1.
    delta : float
        In (0, 1).

    Returns
    -------
    _Tan
        An approximation, never a guarantee: it can be below the true epsilon.

    Raises
    ------
    ValueError
        If a value is out of range.

    References
    ----------
    TAN23, Definition 3.1, equation 4.
    """
    if not (noise_multiplier > 0 and 0 < sampling_prob <= 1 and steps >= 1):
        raise ValueError(
            "`noise_multiplier` must be positive, `sampling_prob` in (0, 1] and "
            f"`steps` at least 1, got {noise_multiplier}, {sampling_prob} and {steps}. "
            "Change the value that is out of range."
        )
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must be in (0, 1), got {delta}. Use less than 1 / (number of rows)."
        )
    eta = sampling_prob * math.sqrt(steps / 2) / noise_multiplier
    reason = ""
    if noise_multiplier < MIN_SIGMA:
        reason = (
            f"sigma = {noise_multiplier:g} is below {MIN_SIGMA:g}: the true epsilon "
            "can be far larger"
        )
    epsilon = eta * eta + 2 * eta * math.sqrt(-math.log(delta))
    return _Tan(eta, 1 / eta, epsilon, reason)


class Prediction(NamedTuple):
    """Hold the predicted accuracy of a run, its interval, and the line's slope.

    The interval [low, high] is for a new run. The slope is per doubling of the batch
    size.
    """

    accuracy: float
    low: float
    high: float
    slope: float

    @property
    def doubt(self) -> str:
        """Return why the prediction is doubtful; "" if it is not."""
        if self.slope <= 0:
            return ""
        return (
            "accuracy rises with the batch size among the simulated runs. In TAN23's "
            "runs it does not, so the prediction may be far too high. Use more steps, "
            "more --runs or smaller --factors"
        )


def check_sizes(batch_sizes: Sequence[float] | np.ndarray) -> None:
    """Raise ValueError unless runs with these batch sizes give a line's interval."""
    runs, different = len(batch_sizes), len(set(batch_sizes))
    if runs < 3 or different < 2:
        raise ValueError(
            "--factors and --runs must give at least 3 runs and at least 2 different "
            f"batch sizes, got {runs} and {different}. Use --factors 4,8,16."
        )


def predict_with_interval(
    batch_sizes: np.ndarray,
    accuracies: np.ndarray,
    target_batch_size: float,
    confidence: float = 0.95,
) -> Prediction:
    """Predict the accuracy at a large batch, at constant eta and steps.

    The prediction is on the least-squares line in log2(batch size), with an interval
    for one more run.

    Raises
    ------
    ValueError
        If there are fewer than three runs, or fewer than two different batch sizes.

    References
    ----------
    TAN23, section 3.4 and Figure 4, for the line. The interval uses Student's t.
    """
    from scipy.stats import t

    check_sizes(batch_sizes)
    x = np.log2(np.asarray(batch_sizes, float))
    y = np.asarray(accuracies, float)
    slope, intercept = np.polyfit(x, y, 1)
    target = math.log2(target_batch_size)
    middle = float(intercept + slope * target)
    freedom = len(x) - 2
    residuals = y - intercept - slope * x
    spread = math.sqrt(float((residuals**2).sum()) / freedom)
    away = (target - x.mean()) ** 2 / float(((x - x.mean()) ** 2).sum())
    quantile = float(t.ppf((1 + confidence) / 2, freedom))
    half = quantile * spread * math.sqrt(1 + 1 / len(x) + away)
    return Prediction(middle, middle - half, middle + half, float(slope))
