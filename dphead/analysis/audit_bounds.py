"""Bound epsilon and mu from below by the error counts of an audit.

Each bound comes with the expected bound of a perfect attack. Thresholds are fixed
before the scores, so every bound holds with its stated confidence.

References: Clopper, Pearson 1934; Hoeffding 1956; Dong, Roth, Su 2022.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, rankdata

from dphead.analysis.tradeoff import advantage_bound, max_advantage, tradeoff
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu, total_mu

# false-positive rates of an evaluated trade-off curve; chosen, not measured
_CURVE_RATES = np.concatenate(
    [np.geomspace(1e-8, 0.1, 240, endpoint=False), np.linspace(0.1, 1, 181)]
)


def _rate_upper_bound(
    events: float | np.ndarray, trials: float, error: float
) -> np.ndarray:
    """Return the Clopper-Pearson upper bound on a rate.

    The bound is at least the true rate with probability at least 1 - error.

    Parameters
    ----------
    events : float or array
        Number of times the event happened.
    trials : float
        Number of trials.
    error : float
        Probability that the bound fails.
    """
    with np.errstate(invalid="ignore"):
        bound = beta.ppf(
            1 - error,
            np.asarray(events, float) + 1,
            np.maximum(trials - np.asarray(events, float), 0),
        )
    return np.where(np.asarray(events) >= trials, 1.0, bound)


def epsilon_bound(
    false_positives: float | np.ndarray,
    false_negatives: float | np.ndarray,
    fits: float,
    delta: float,
    error: float,
) -> np.ndarray:
    """Return a lower bound on epsilon at `delta`, or 0 if there is none.

    The bound is ln((1 - beta - delta) / alpha).

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
    """Return a lower bound on the advantage 1 - alpha - beta; at least 0.

    `mistakes` is the total of both kinds of mistakes, with `fits` draws in each world.

    Notes
    -----
    The mistakes are `2 fits` independent trials with unequal rates. A binomial with
    their mean rate has a heavier tail (Hoeffding 1956, theorem 4). One Clopper-Pearson
    bound is therefore enough. It is narrower than one bound per rate.
    """
    return max(0.0, 1 - 2 * float(_rate_upper_bound(mistakes, 2 * fits, error)))


def _mu_of_advantage(advantage: float) -> float:
    """Return the mu of the Gaussian mechanism with this largest advantage.

    The result is 2 Phi^-1((1 + advantage) / 2).
    """
    return 2 * float(ndtri((1 + advantage) / 2))


@dataclass(frozen=True)
class Claim:
    """Hold a plan's claim, and what a perfect attack would measure.

    The attack is on a mechanism that exactly meets the claim. Thresholds and ceilings
    depend on the claim only and are set before any fit. Ceilings are expected counts
    under the claim's trade-off curve.

    Attributes
    ----------
    epsilon, delta, relation : float, float and str
        The promise.
    events : tuple of GaussianEvent
        The claimed releases.
    """

    epsilon: float
    delta: float
    relation: str
    events: tuple[GaussianEvent, ...]

    @property
    def mu(self) -> float | None:
        """Return the claim's mu; None with Poisson batches."""
        return total_mu(self.events)

    @cached_property
    def advantage(self) -> float:
        """Return the largest advantage that the releases allow."""
        return max_advantage(self.events, self.relation)

    @cached_property
    def curve(self) -> np.ndarray:
        """Return the smallest false-negative rate at each of CURVE_RATES."""
        return tradeoff(self.events, _CURVE_RATES, self.relation)

    def threshold(self, fits: float, confidence: float) -> float:
        """Return the threshold on scores for `epsilon_bound`."""
        return self.best(fits, (1 - confidence) / 2)[0]

    def best(self, fits: float, error: float) -> tuple[float, float]:
        """Return the log-likelihood ratio with the largest expected `epsilon_bound`.

        The second value is that expected bound.
        """
        misses = self.curve
        bounds = epsilon_bound(
            fits * _CURVE_RATES, fits * misses, fits, self.delta, error
        )
        best = int(np.argmax(bounds))
        bound = float(bounds[best])
        if self.mu is not None:
            ratio = -self.mu * ndtri(_CURVE_RATES[best]) - self.mu**2 / 2
            return float(ratio), bound
        near = slice(max(0, best - 1), best + 2)
        rates = _CURVE_RATES[near]
        near_misses = misses[near]
        slope = (near_misses[0] - near_misses[-1]) / (rates[-1] - rates[0])
        return math.log(max(slope, 1e-300)), bound

    def ceilings(self, fits: float, error: float) -> dict[str, float | None]:
        """Return the expected results of a perfect attack.

        Bounds are for `fits` draws in each world; AUC and advantages are for infinitely
        many.
        """
        reached = advantage_lower_bound(fits * (1 - self.advantage), fits, error / 2)
        mu = _mu_of_advantage(reached)
        return {
            "epsilon_lower_bound": self.best(fits, error / 2)[1],
            "mu_lower_bound": mu,
            "epsilon_from_mu": epsilon_from_mu(mu, self.delta)
            if self.mu is not None
            else None,
            "auc": self._auc(),
            "advantage": self.advantage,
            "advantage_of_epsilon_delta": advantage_bound(self.epsilon, self.delta),
        }

    def _auc(self) -> float:
        """Return the area over the trade-off curve.

        For a Gaussian, the area is Phi(mu / sqrt(2)).
        """
        if self.mu is not None:
            return float(ndtr(self.mu / math.sqrt(2)))
        rates = np.append(0.0, _CURVE_RATES)
        missed = np.append(1.0, self.curve)
        return 1 - float(np.trapezoid(missed, rates))


def statements(
    scores: np.ndarray,
    own_mu2: np.ndarray,
    claim: Claim,
    threshold: float,
    confidence: float,
) -> dict[str, Any]:
    """Return the bounds and estimates of an audit, each with its ceiling.

    Parameters
    ----------
    scores : (2, fits) float
        Log-likelihood ratios; row 1 is with the canary.
    own_mu2 : (2, fits) float
        The canary's own mu squared.
    claim : Claim
        The promise.
    threshold : float
        `Claim.threshold`, fixed before the fits.
    confidence : float
        Joint confidence of the two bounds.

    Returns
    -------
    dict
        The results. "passed" is False if a bound exceeds the claim.

    Notes
    -----
    The error 1 - confidence is split over the two bounds, so a correct mechanism fails
    with at most that probability. AUC and advantage are estimates without a verdict.
    Poisson batches have no mu, so the advantage must not exceed the claim's.
    """
    error, n = 1 - confidence, scores.shape[1]
    out, hit = (int(row.sum()) for row in scores > threshold)
    epsilon = float(epsilon_bound(out, n - hit, n, claim.delta, error / 2))
    false, true = (int(row.sum()) for row in scores > 0)
    advantage = advantage_lower_bound(false + n - true, n, error / 2)
    mu = _mu_of_advantage(advantage)
    has_mu = claim.mu is not None
    largest = math.sqrt(own_mu2.max())
    too_large = claim.mu is not None and largest > claim.mu * (1 + 1e-9)
    own = math.sqrt(own_mu2.mean())
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "relation": claim.relation,
        "mu": claim.mu,
        "fits_in_each_world": n,
        "confidence": confidence,
        "epsilon_lower_bound": epsilon,
        "mu_lower_bound": mu,
        "advantage_lower_bound": advantage,
        "epsilon_from_mu": epsilon_from_mu(mu, claim.delta) if has_mu else None,
        "auc": auc_of(scores),
        "advantage": (true - false) / n,
        "ceilings": claim.ceilings(n, error),
        "canary_mu": {
            "mean": own,
            "least": math.sqrt(own_mu2.min()),
            "largest": largest,
        },
        "canary_epsilon": epsilon_from_mu(own, claim.delta) if has_mu else None,
        "canary_share": own / claim.mu if claim.mu else None,
        "passed": bool(
            epsilon <= claim.epsilon and advantage <= claim.advantage and not too_large
        ),
    }


def auc_of(scores: np.ndarray) -> float:
    """Return the area under the ROC curve of (2, n) scores, ties counted half."""
    n = scores.shape[1]
    ranks = rankdata(np.concatenate([scores[1], scores[0]]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / n**2)
