"""Bound epsilon and mu from below by the error counts of an audit.

Each bound comes with the bound of a perfect attack, at its expected number of mistakes.
Thresholds are fixed before the scores, so each bound holds with its stated confidence.

References: Clopper, Pearson 1934; Hoeffding 1956; Dong, Roth, Su 2022.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from dphead.analysis.tradeoff import (
    epsilon_delta_tradeoff,
    max_advantage,
    tradeoff,
)
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu, total_mu

# false-positive rates of an evaluated trade-off curve; chosen, not measured
_CURVE_RATES = np.concatenate(
    [np.geomspace(1e-8, 0.1, 240, endpoint=False), np.linspace(0.1, 1, 181)]
)


def _rate_upper_bound(
    events: float | np.ndarray, trials: float, error: float
) -> np.ndarray:
    """Return the Clopper-Pearson upper bound on a rate, at confidence 1 - `error`."""
    events = np.asarray(events, float)
    with np.errstate(invalid="ignore"):
        bound = beta.ppf(1 - error, events + 1, np.maximum(trials - events, 0))
    return np.where(events >= trials, 1.0, bound)


def epsilon_bound(
    false_positives: float | np.ndarray,
    false_negatives: float | np.ndarray,
    fits: float,
    delta: float,
    error: float,
) -> np.ndarray:
    """Return a lower bound on epsilon at `delta`, at least 0.

    The bound is ln((1 - beta - delta) / alpha). Here, alpha and beta are upper bounds
    on the false-positive and the false-negative rate.

    Parameters
    ----------
    false_positives, false_negatives : float or array
        Numbers of mistakes.
    fits : float
        Draws in each world.
    delta : float
        The delta at which epsilon is bounded.
    error : float
        Probability that the bound fails, split equally over the two rates.

    References
    ----------
    De22, appendix A.2.
    """
    alpha = _rate_upper_bound(false_positives, fits, error / 2)
    hit = 1 - _rate_upper_bound(false_negatives, fits, error / 2) - delta
    return np.log(np.maximum(hit / alpha, 1.0))


def advantage_lower_bound(mistakes: float, fits: float, error: float) -> float:
    """Return a lower bound on the true-positive minus the false-positive rate.

    The bound is at least 0. `mistakes` is the total of both kinds of mistakes, with
    `fits` draws in each world.

    Notes
    -----
    The mistakes are `2 fits` independent trials with unequal rates. A binomial with
    their mean rate has a heavier tail (Hoeffding 1956, theorem 4). One Clopper-Pearson
    bound is therefore enough. It is narrower than one bound per rate.
    """
    return max(0.0, 1 - 2 * float(_rate_upper_bound(mistakes, 2 * fits, error)))


@dataclass(frozen=True)
class Claim:
    """Describe the claim of a plan, and the expected results of a perfect attack.

    The results depend on the claim only and are fixed before any fit.

    Attributes
    ----------
    epsilon, delta, relation : float, float and str
        The claimed guarantee.
    events : tuple of GaussianEvent
        The claimed releases.
    """

    epsilon: float
    delta: float
    relation: str
    events: tuple[GaussianEvent, ...]

    @property
    def mu(self) -> float | None:
        """Return the claim's mu, or None with random batches."""
        return total_mu(self.events)

    @cached_property
    def advantage(self) -> float:
        """Return the largest advantage that the releases allow."""
        return max_advantage(self.events, self.relation)

    def misses(self, rates: np.ndarray) -> np.ndarray:
        """Return the smallest false-negative rate at each false-positive rate."""
        return tradeoff(self.events, rates, self.relation)

    def best(self, fits: float, error: float) -> tuple[float, float]:
        """Return the threshold on scores with the largest `epsilon_bound`.

        The second value is that bound. Both are for an attack on the claim's trade-off
        curve that makes the expected numbers of mistakes.
        """
        misses = self.misses(_CURVE_RATES)
        bounds = epsilon_bound(
            fits * _CURVE_RATES, fits * misses, fits, self.delta, error
        )
        best = int(np.argmax(bounds))
        near = slice(max(0, best - 1), best + 2)
        # the likelihood ratio is the curve's slope
        slope = np.ptp(misses[near]) / np.ptp(_CURVE_RATES[near])
        ratio = math.log(max(slope, 1e-300))
        if self.mu is not None:
            ratio = -self.mu * float(ndtri(_CURVE_RATES[best])) - self.mu**2 / 2
        return ratio, float(bounds[best])


class EpsilonDeltaClaim(Claim):
    """Describe a claim of (epsilon, delta)-DP by a mechanism of unknown releases."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(epsilon, delta, "", ())

    @property
    def mu(self) -> None:
        """Return None, because the claim is not of Gaussian DP."""

    @cached_property
    def advantage(self) -> float:
        """Return the largest advantage that the claim allows."""
        return 1 - 2 * (1 - self.delta) / (1 + math.exp(min(self.epsilon, 700.0)))

    def misses(self, rates: np.ndarray) -> np.ndarray:
        """Return the smallest false-negative rate at each false-positive rate."""
        return epsilon_delta_tradeoff(self.epsilon, self.delta, rates)


def statements(
    scores: np.ndarray,
    claim: Claim,
    threshold: float,
    confidence: float,
) -> dict[str, Any]:
    """Return the bounds and estimates of an audit, and the results of a perfect attack.

    Parameters
    ----------
    scores : (2, fits) float
        Log-likelihood ratios: row 0 without the canary, row 1 with it.
    claim : Claim
        The claim to test.
    threshold : float
        First result of `Claim.best`, fixed before the fits.
    confidence : float
        Joint confidence of the two bounds.

    Returns
    -------
    dict
        The results. "passed" is False if a bound exceeds the claim.

    Notes
    -----
    The error 1 - confidence is split over the two bounds, so a correct mechanism fails
    with at most that probability. The second bound is tested as an advantage, because
    Poisson batches have no mu. For a perfect attack, the bounds are for this number of
    fits, and the advantage is for infinitely many.
    """
    error, n = (1 - confidence) / 2, scores.shape[1]

    def bounds_on_mu(mistakes: float) -> tuple[float, float, float | None]:
        advantage = advantage_lower_bound(mistakes, n, error)
        mu = 2 * float(ndtri((1 + advantage) / 2))  # mu-GDP with this advantage
        return advantage, mu, epsilon_from_mu(mu, claim.delta) if claim.mu else None

    out, hit = (int(row.sum()) for row in scores > threshold)
    epsilon = float(epsilon_bound(out, n - hit, n, claim.delta, error))
    false, true = (int(row.sum()) for row in scores > 0)
    advantage, mu, from_mu = bounds_on_mu(false + n - true)
    _, best_mu, best_from_mu = bounds_on_mu(n * (1 - claim.advantage))
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "relation": claim.relation,
        "mu": claim.mu,
        "fits_in_each_world": n,
        "confidence": confidence,
        "epsilon_lower_bound": epsilon,
        "mu_lower_bound": mu,
        "epsilon_from_mu": from_mu,
        "advantage": (true - false) / n,
        "ceilings": {
            "epsilon_lower_bound": claim.best(n, error)[1],
            "mu_lower_bound": best_mu,
            "epsilon_from_mu": best_from_mu,
            "advantage": claim.advantage,
        },
        "passed": epsilon <= claim.epsilon and advantage <= claim.advantage,
    }
