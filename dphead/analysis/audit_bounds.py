"""Bound epsilon and mu from below by the counts of an audit.

Beside each bound is what a perfect attack would have reached. No threshold may depend
on the scores that it cuts. Fixed beforehand, every bound holds with its stated
confidence, whatever the scores are.

References: Clopper, Pearson 1934; Hoeffding 1956; Dong, Roth, Su 2022; Steinke, Nasr,
Jagielski 2023.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from dphead.analysis.tradeoff import advantage_bound, max_advantage, tradeoff
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu, total_mu

# error probability of the bound that papers print; it is shown beside the verdict's
SHOWN_ERROR = 0.05
# false-positive rates at which a trade-off curve is evaluated; a choice, not measured
CURVE_RATES = np.concatenate(
    [np.geomspace(1e-8, 0.1, 240, endpoint=False), np.linspace(0.1, 1, 181)]
)


def rate_upper_bound(
    events: float | np.ndarray, trials: float, error: float
) -> np.ndarray:
    """Return the Clopper-Pearson upper bound on a rate.

    It is at least the true rate with probability at least 1 - error.

    Parameters
    ----------
    events : float or array
        How often the event happened.
    trials : float
        Number of trials.
    error : float
        Probability that the bound may fail.
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
    """Return a lower bound on epsilon at `delta`; 0 where it says nothing.

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
        Probability that the bound may fail; the two rates share it equally.

    References
    ----------
    De22, appendix A.2.
    """
    alpha = rate_upper_bound(false_positives, fits, error / 2)
    hit = 1 - rate_upper_bound(false_negatives, fits, error / 2) - delta
    return np.log(np.maximum(hit / alpha, 1.0))


def advantage_lower_bound(mistakes: float, fits: float, error: float) -> float:
    """Return a lower bound on the advantage 1 - alpha - beta; at least 0.

    `mistakes` counts both kinds of mistakes together, with `fits` draws in each world.

    Notes
    -----
    The mistakes are 2 fits independent trials of unequal rates. A binomial of their
    mean rate has the heavier tail (Hoeffding 1956, theorem 4). So one Clopper-Pearson
    bound is enough, and it is narrower than one for each rate.
    """
    return max(0.0, 1 - 2 * float(rate_upper_bound(mistakes, 2 * fits, error)))


def mu_of_advantage(advantage: float) -> float:
    """Return the mu of the Gaussian mechanism whose best attack has this advantage.

    It is 2 Phi^-1((1 + advantage) / 2).
    """
    return 2 * float(ndtri((1 + advantage) / 2))


@lru_cache(maxsize=64)
def _curve(events: tuple[GaussianEvent, ...], relation: str) -> np.ndarray:
    return tradeoff(events, CURVE_RATES, relation)


@lru_cache(maxsize=64)
def _advantage(events: tuple[GaussianEvent, ...], relation: str) -> float:
    return max_advantage(events, relation)


@dataclass(frozen=True)
class Claim:
    """Hold what a plan promises, and what a perfect attack would measure.

    The attack is on a mechanism that just keeps the promise. Thresholds and ceilings
    come from the claim alone, before any fit. Guarantee of the ceilings: they are
    expected counts under the claim's own trade-off curve.

    Attributes
    ----------
    epsilon, delta, relation : float, float and str
        The promise.
    events : tuple of GaussianEvent
        Its releases.
    """

    epsilon: float
    delta: float
    relation: str
    events: tuple[GaussianEvent, ...]

    @property
    def mu(self) -> float | None:
        """Return the claim's mu; None with Poisson batches."""
        return total_mu(self.events)

    @property
    def advantage(self) -> float:
        """Return the largest advantage that the releases allow."""
        return _advantage(self.events, self.relation)

    @property
    def equivalent_mu(self) -> float:
        """Return mu, or that of the Gaussian whose best attack has this advantage."""
        return self.mu if self.mu is not None else mu_of_advantage(self.advantage)

    def curve(self) -> np.ndarray:
        """Return the least false-negative rate at each of CURVE_RATES."""
        return _curve(self.events, self.relation)

    def thresholds(self, fits: float, confidence: float) -> np.ndarray:
        """Return where to cut the scores for the verdict's `epsilon_bound`.

        The second threshold is for the 95 % bound beside it.
        """
        verdicts, _ = self.best(fits, (1 - confidence) / 2)
        shown, _ = self.best(fits, SHOWN_ERROR)
        return np.array([verdicts, shown])

    def best(self, fits: float, error: float) -> tuple[float, float]:
        """Return the log-likelihood ratio with the largest expected `epsilon_bound`.

        The second value is that expected bound.
        """
        misses = self.curve()
        bounds = epsilon_bound(
            fits * CURVE_RATES, fits * misses, fits, self.delta, error
        )
        best = int(np.argmax(bounds))
        bound = float(bounds[best])
        if self.mu is not None:
            ratio = -self.mu * ndtri(CURVE_RATES[best]) - self.mu**2 / 2
            return float(ratio), bound
        near = slice(max(0, best - 1), best + 2)
        rates = CURVE_RATES[near]
        near_misses = misses[near]
        slope = (near_misses[0] - near_misses[-1]) / (rates[-1] - rates[0])
        return math.log(max(slope, 1e-300)), bound

    def ceilings(self, fits: float, error: float) -> dict[str, float | None]:
        """Return what a perfect attack is expected to reach.

        The bounds are for `fits` draws in each world. The AUC and the advantages are
        for infinitely many.
        """
        reached = advantage_lower_bound(fits * (1 - self.advantage), fits, error / 2)
        mu = mu_of_advantage(reached)
        return {
            "epsilon_lower_bound": self.best(fits, error / 2)[1],
            "epsilon_lower_bound_95": self.best(fits, SHOWN_ERROR)[1],
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

        It is Phi(mu / sqrt(2)) for a Gaussian.
        """
        if self.mu is not None:
            return float(ndtr(self.mu / math.sqrt(2)))
        rates = np.append(0.0, CURVE_RATES)
        missed = np.append(1.0, self.curve())
        return 1 - float(np.trapezoid(missed, rates))


@dataclass
class Counts:
    """Hold what the bounds need of the scores. Index 0: without the canary, 1: with it.

    Attributes
    ----------
    edges : array
        Edges of the histograms; their end bins are open.
    thresholds : array
        `Claim.thresholds`.
    fits : int
        Draws in each world.
    above : (2, thresholds) int
        Scores above the thresholds.
    positive : (2,) int
        Scores above 0.
    histograms : (2, bins) int
        Scores in each bin.
    own_mu2 : (3,) float
        Sum, least and largest of the canary's own mu squared.
    """

    edges: np.ndarray
    thresholds: np.ndarray
    fits: int
    above: np.ndarray
    positive: np.ndarray
    histograms: np.ndarray
    own_mu2: np.ndarray

    @classmethod
    def of(
        cls,
        scores: np.ndarray,
        own_mu2: np.ndarray,
        thresholds: np.ndarray,
        edges: np.ndarray,
    ) -> "Counts":
        """Count scores (2, fits), which are log-likelihood ratios.

        `own_mu2` is the canary's mu squared in each transcript.
        """
        inner = np.clip(scores, edges[0], edges[-1])
        return cls(
            edges,
            thresholds,
            scores.shape[1],
            (scores[:, :, None] > thresholds).sum(axis=1),
            (scores > 0).sum(axis=1),
            np.stack([np.histogram(row, edges)[0] for row in inner]),
            np.array([own_mu2.sum(), own_mu2.min(), own_mu2.max()]),
        )

    def own_mu(self) -> dict[str, float]:
        """Return the root mean square, least and largest of the canary's own mu.

        They are over all transcripts.
        """
        mean = self.own_mu2[0] / (2 * self.fits)
        return {
            "mean": math.sqrt(mean),
            "least": math.sqrt(self.own_mu2[1]),
            "largest": math.sqrt(self.own_mu2[2]),
        }

    def auc(self) -> tuple[float, float]:
        """Return the attack's AUC and its standard error; ties within a bin count half.

        References
        ----------
        DeLong et al. 1988.
        """
        out, hit = self.histograms / self.fits
        below_out = np.cumsum(out) - out / 2
        below_hit = np.cumsum(hit) - hit / 2
        auc = float(hit @ below_out)
        of_hits = hit @ (below_out - auc) ** 2
        of_others = out @ (below_hit - (1 - auc)) ** 2
        return auc, math.sqrt((of_hits + of_others) / self.fits)


def bin_edges(claim: Claim, bins: int = 400) -> np.ndarray:
    """Return the edges of the score histograms.

    They span seven deviations of the claim's log-likelihood ratio, beside its mean, on
    either side of 0.
    """
    mu = claim.equivalent_mu
    return np.linspace(-1, 1, bins + 1) * (mu**2 / 2 + 7 * mu)


def statements(counts: Counts, claim: Claim, confidence: float) -> dict[str, Any]:
    """Return the audit's results, each beside its ceiling.

    Parameters
    ----------
    counts : Counts
        The scores.
    claim : Claim
        The promise.
    confidence : float
        Confidence of the two bounds together.

    Returns
    -------
    dict
        The results. "passed" is False if a bound exceeds the claim.

    Notes
    -----
    The error 1 - confidence is split over the two bounds, so a correct mechanism fails
    with at most that probability. AUC and advantage are estimates with a standard
    error, and the 95 % bound is shown for comparison: no verdict depends on them. With
    Poisson batches there is no mu. Then the advantage must not exceed the claim's.
    """
    error, n = 1 - confidence, counts.fits
    mistakes = int(counts.positive[0]) + n - int(counts.positive[1])
    out, hit = counts.above
    epsilon = float(epsilon_bound(out[0], n - hit[0], n, claim.delta, error / 2))
    casual = float(epsilon_bound(out[1], n - hit[1], n, claim.delta, SHOWN_ERROR))
    advantage = advantage_lower_bound(mistakes, n, error / 2)
    mu, (auc, auc_se), own = mu_of_advantage(advantage), counts.auc(), counts.own_mu()
    ceilings = claim.ceilings(n, error)
    out, hit = counts.positive / n
    spread = math.sqrt((hit * (1 - hit) + out * (1 - out)) / n)
    too_large = claim.mu is not None and own["largest"] > claim.mu * (1 + 1e-9)
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "relation": claim.relation,
        "mu": claim.mu,
        "fits_in_each_world": n,
        "confidence": confidence,
        "false_alarm_odds": {
            "epsilon_lower_bound": error / 2,
            "mu_lower_bound": error / 2,
            "both": error,
            "epsilon_lower_bound_95": SHOWN_ERROR,
        },
        "epsilon_lower_bound": epsilon,
        "epsilon_lower_bound_95": casual,
        "mu_lower_bound": mu,
        "advantage_lower_bound": advantage,
        "epsilon_from_mu": epsilon_from_mu(mu, claim.delta)
        if claim.mu is not None
        else None,
        "auc": auc,
        "auc_standard_error": auc_se,
        "advantage": float(hit - out),
        "advantage_standard_error": spread,
        "thresholds": counts.thresholds.tolist(),
        "ceilings": ceilings,
        "canary_mu": own,
        "canary_epsilon": epsilon_from_mu(own["mean"], claim.delta)
        if claim.mu is not None
        else None,
        "canary_share": own["mean"] / claim.mu if claim.mu else None,
        "counts": {
            "above_threshold": counts.above.tolist(),
            "positive": counts.positive.tolist(),
        },
        "histogram": {
            "low": float(counts.edges[0]),
            "high": float(counts.edges[-1]),
            "without": counts.histograms[0].tolist(),
            "with": counts.histograms[1].tolist(),
        },
        "passed": bool(
            epsilon <= claim.epsilon and advantage <= claim.advantage and not too_large
        ),
    }


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """Return the largest probability of such guesses in an (epsilon, delta)-DP run.

    `correct` of `guesses` guesses on `canaries` are right. Each canary was in the run
    or not by a fair coin; canaries without a guess are abstentions.

    References
    ----------
    Steinke, Nasr, Jagielski 2023, theorem 5.2: P[W >= v] + 2 m delta max_i P[v > W >= v
    - i] / i, W binomial(guesses, e^eps / (1 + e^eps)).
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"correct <= guesses <= canaries must hold, got {correct=}, {guesses=}, "
            f"{canaries=}. Recount."
        )
    rate = 1 / (1 + math.exp(-epsilon))
    steps = np.arange(1, correct + 1)
    missed = np.cumsum(binom.pmf(correct - steps, guesses, rate)) / steps
    slack = 2 * canaries * delta * float(missed.max(initial=0.0))
    return min(1.0, float(binom.sf(correct - 1, guesses, rate)) + slack)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """Return the largest epsilon that the guesses refute at this confidence, to 1e-6.

    It is 0 if they refute none.
    """
    error, low, high = 1 - confidence, 0.0, 1.0
    if one_run_p_value(canaries, guesses, correct, 0.0, delta) > error:
        return 0.0
    while (
        one_run_p_value(canaries, guesses, correct, high, delta) <= error and high < 1e3
    ):
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        refuted = one_run_p_value(canaries, guesses, correct, middle, delta) <= error
        low, high = (middle, high) if refuted else (low, middle)
    return low


def one_run_plan(
    canaries: int, mu: float, delta: float, confidence: float
) -> tuple[int, float]:
    """Return the number of guesses with the largest expected bound, and that bound.

    It is computed by theory, before the run, for a Gaussian of this mu.
    """
    best = (canaries, 0.0)
    for share in np.linspace(0.02, 1, 50):
        guesses = max(1, round(float(share) * canaries))
        # Guess where |score| is largest: |z| > t for z = N(+-mu/2, 1), right with
        # probability P(z > t) / P(|z| > t).
        cut = _cut(guesses / canaries, mu)
        on_its_side = float(ndtr(mu / 2 - cut))
        on_the_other = float(ndtr(-mu / 2 - cut))
        right = on_its_side / (on_its_side + on_the_other)
        bound = one_run_epsilon(
            canaries, guesses, math.floor(guesses * right), delta, confidence
        )
        best = max(best, (guesses, bound), key=lambda b: b[1])
    return best


def _cut(share: float, mu: float) -> float:
    """Return t with P(|N(mu/2, 1)| > t) = share."""
    low, high = 0.0, mu + 10.0
    for _ in range(60):
        t = (low + high) / 2
        beyond = ndtr(mu / 2 - t) + ndtr(-mu / 2 - t)
        if beyond > share:
            low = t
        else:
            high = t
    return low


def one_run_guesses(
    scores: Sequence[float] | np.ndarray, inside: np.ndarray, guesses: int
) -> int:
    """Return how many of the `guesses` guesses with the largest |score| are right.

    `inside` (canaries,) bool are the coins.
    """
    scores = np.asarray(scores, float)
    chosen = np.argsort(-np.abs(scores), kind="stable")[:guesses]
    return int(((scores[chosen] > 0) == inside[chosen]).sum())
