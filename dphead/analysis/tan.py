"""Compute the total amount of noise, which determines epsilon at high noise [TAN23].

TAN is an approximation for planning and cheap simulations, never for charges.
"""

import math
from typing import NamedTuple

import numpy as np

# TAN23, section 3.2: the approximation fails below it ("privacy wall")
MIN_SIGMA = 2.0


class Tan(NamedTuple):
    """Hold the total amount of noise of a run.

    Attributes
    ----------
    eta : float
        The noise parameter.
    total_noise : float
        Sigma = 1 / eta.
    epsilon : float
        epsilon_TAN, an approximation.
    valid : bool
        Whether sigma >= MIN_SIGMA, so that the approximation holds.
    reason : str
        Why it does not hold, or "".
    """

    eta: float
    total_noise: float
    epsilon: float
    valid: bool
    reason: str


def _check(noise_multiplier: float, sampling_prob: float, steps: int) -> None:
    if not (noise_multiplier > 0 and 0 < sampling_prob <= 1 and steps >= 1):
        raise ValueError(
            "noise and steps must be positive and sampling_prob in (0, 1], "
            f"got {noise_multiplier=}, {sampling_prob=}, {steps=}. Correct them."
        )


def total_amount_of_noise(
    noise_multiplier: float, sampling_prob: float, steps: int, delta: float
) -> Tan:
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
    Tan
        An approximation, never a guarantee: it can be below the true epsilon.

    Raises
    ------
    ValueError
        If a value is out of range.

    References
    ----------
    TAN23, Definition 3.1, equation 4.
    """
    _check(noise_multiplier, sampling_prob, steps)
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must lie in (0, 1), got {delta=}. Use less than 1 / (number of "
            "rows)."
        )
    eta = sampling_prob * math.sqrt(steps / 2) / noise_multiplier
    valid = noise_multiplier >= MIN_SIGMA
    reason = (
        ""
        if valid
        else (
            f"sigma = {noise_multiplier:g} is below {MIN_SIGMA:g}: the true epsilon is "
            "far larger"
        )
    )
    return Tan(
        eta, 1 / eta, eta * eta + 2 * eta * math.sqrt(-math.log(delta)), valid, reason
    )


def simulate(
    noise_multiplier: float, batch_size: int, factor: float
) -> tuple[float, float]:
    """Return the noise and batch size of a cheap run with the same eta and steps.

    The settings are sigma / factor and batch size / factor. The cheap run needs public
    data, because its epsilon is very large.

    Raises
    ------
    ValueError
        If `factor` is below 1, or the batch would have less than one row.

    References
    ----------
    TAN23, section 3.4.
    """
    if not (factor >= 1 and noise_multiplier > 0 and batch_size / factor >= 1):
        raise ValueError(
            f"batch_size / factor must be at least 1, got {batch_size=}, {factor=}. "
            "Use 1 <= factor."
        )
    return noise_multiplier / factor, batch_size / factor


def require_public(data_is_public: bool) -> None:
    """Raise ValueError unless the data of a simulated run are public.

    At sigma / factor the run has no useful guarantee.
    """
    if not data_is_public:
        raise ValueError(
            "a simulated run needs public data, got data_is_public=False. Simulate "
            "on public rows, or train once at the full batch size."
        )


class Prediction(NamedTuple):
    """Hold the predicted accuracy of a run, its interval, and the line's slope.

    The interval [low, high] is for a new run. The slope is per doubling of the batch
    size.
    """

    accuracy: float
    low: float
    high: float
    slope: float


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

    x = np.log2(np.asarray(batch_sizes, float))
    y = np.asarray(accuracies, float)
    if (
        x.shape != y.shape
        or len(x) < 3
        or len(np.unique(x)) < 2
        or not np.isfinite(x).all()
    ):
        raise ValueError(
            "a prediction needs at least 3 runs with 2 different batch sizes, got "
            f"{batch_sizes=}. Run more of them."
        )
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


def sampling_prob_at(eta: float, noise_multiplier: float, steps: int) -> float:
    """Return the q at which a noise multiplier and a number of steps have this eta.

    A value above 1 is not possible.

    References
    ----------
    TAN23, equation 4.
    """
    return eta * noise_multiplier * math.sqrt(2 / steps)


def more_data(
    noise_multiplier: float,
    sampling_prob: float,
    steps: int,
    delta: float,
    factor: float,
) -> tuple[float, float]:
    """Return the sampling rate and delta of a run on `factor` times the rows.

    Batch size, noise and steps stay the same. Both values are divided by `factor`.

    Raises
    ------
    ValueError
        If a value is out of range.

    References
    ----------
    TAN23, section 4.4 and Table 5: eta falls by `factor` too, so epsilon falls and N
    eta stays.
    """
    _check(noise_multiplier, sampling_prob, steps)
    if not 1 <= factor < math.inf:
        raise ValueError(
            f"factor must be at least 1 and finite, got {factor=}. Pass the new "
            "number of rows divided by the old one."
        )
    return sampling_prob / factor, delta / factor
