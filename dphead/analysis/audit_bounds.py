"""What an audit may conclude from counts: lower bounds on epsilon and mu.

Beside each is what a perfect attack would have reached. No threshold may depend on the
scores that it cuts: fixed beforehand, every bound holds with its stated confidence
whatever the scores are.
Sources: Clopper, Pearson 1934; Hoeffding 1956; Dong, Roth, Su 2022; Steinke, Nasr,
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

# error of the bound that is shown beside the verdict's, as papers print it
SHOWN_ERROR = 0.05
# false positive rates at which a trade-off curve is looked at; chosen, not measured
CURVE_RATES = np.concatenate(
    [np.geomspace(1e-8, 0.1, 240, endpoint=False), np.linspace(0.1, 1, 181)]
)


def rate_upper_bound(
    events: float | np.ndarray, trials: float, error: float
) -> np.ndarray:
    """Clopper-Pearson: exceeds the true rate with probability at least 1 - error.

    events: how often it happened.
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
    """Lower bound on epsilon at `delta`, ln((1 - beta - delta) / alpha), 0 where it
    says nothing.

    fits: draws in each world. The two rates share the error equally. Source: De22,
        appendix A.2.
    """
    alpha = rate_upper_bound(false_positives, fits, error / 2)
    hit = 1 - rate_upper_bound(false_negatives, fits, error / 2) - delta
    return np.log(np.maximum(hit / alpha, 1.0))


def advantage_lower_bound(mistakes: float, fits: float, error: float) -> float:
    """Lower bound on 1 - alpha - beta from both kinds of mistakes together, `fits`
    draws in each world; at least 0.

    The mistakes are 2 fits independent trials of unequal rates; a binomial of their
    mean rate has the heavier tail (Hoeffding 1956, theorem 4), so one Clopper-Pearson
    bound serves: narrower than one for each rate.
    """
    return max(0.0, 1 - 2 * float(rate_upper_bound(mistakes, 2 * fits, error)))


def mu_of_advantage(advantage: float) -> float:
    """The Gaussian mechanism whose best attack has this advantage: 2 Phi^-1((1 +
    advantage) / 2).
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
    """What a plan promises, and what a perfect attack on a mechanism that just keeps it
    would measure.

    epsilon, delta, relation: the promise. events: its releases. Thresholds and ceilings
    come from here alone, before any fit. Guarantee of the ceilings: expected counts
    under the claim's own trade-off curve.
    """

    epsilon: float
    delta: float
    relation: str
    events: tuple[GaussianEvent, ...]

    @property
    def mu(self) -> float | None:
        """The claim's mu; None with Poisson batches."""
        return total_mu(self.events)

    @property
    def advantage(self) -> float:
        """The largest advantage that the releases allow."""
        return _advantage(self.events, self.relation)

    @property
    def equivalent_mu(self) -> float:
        """mu, or that of the Gaussian whose best attack has the same advantage."""
        return self.mu if self.mu is not None else mu_of_advantage(self.advantage)

    def curve(self) -> np.ndarray:
        """Least false negative rate at each of CURVE_RATES."""
        return _curve(self.events, self.relation)

    def thresholds(self, fits: float, confidence: float) -> np.ndarray:
        """Where to cut the scores for the verdict's `epsilon_bound`, and for the one at
        95 % beside it.
        """
        verdicts, _ = self.best(fits, (1 - confidence) / 2)
        shown, _ = self.best(fits, SHOWN_ERROR)
        return np.array([verdicts, shown])

    def best(self, fits: float, error: float) -> tuple[float, float]:
        """(log-likelihood ratio, expected bound) where `epsilon_bound` is expected to
        be largest.
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
        """What a perfect attack is expected to reach with `fits` draws in each world,
        and with infinitely many.
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
        """Area over the trade-off curve: Phi(mu / sqrt(2)) for a Gaussian."""
        if self.mu is not None:
            return float(ndtr(self.mu / math.sqrt(2)))
        rates = np.append(0.0, CURVE_RATES)
        missed = np.append(1.0, self.curve())
        return 1 - float(np.trapezoid(missed, rates))


@dataclass
class Counts:
    """What the bounds need of the scores.

    Index 0: without the canary, 1: with it.

    fits: draws in each world. edges: of the histograms, whose end bins are open. above:
    (2, thresholds) scores above `Claim.thresholds`; positive: scores above 0. own_mu2:
    sum, least and largest of the canary's own mu squared.
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
        """scores: (2, fits) log-likelihood ratios; own_mu2: the canary's mu squared in
        each transcript.
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
        """The canary's own mu: root mean square, least and largest over transcripts."""
        mean = self.own_mu2[0] / (2 * self.fits)
        return {
            "mean": math.sqrt(mean),
            "least": math.sqrt(self.own_mu2[1]),
            "largest": math.sqrt(self.own_mu2[2]),
        }

    def auc(self) -> tuple[float, float]:
        """(estimate, standard error) of the attack's AUC, ties within a bin counted
        half [DeLong et al. 1988].
        """
        out, hit = self.histograms / self.fits
        below_out = np.cumsum(out) - out / 2
        below_hit = np.cumsum(hit) - hit / 2
        auc = float(hit @ below_out)
        of_hits = hit @ (below_out - auc) ** 2
        of_others = out @ (below_hit - (1 - auc)) ** 2
        return auc, math.sqrt((of_hits + of_others) / self.fits)


def bin_edges(claim: Claim, bins: int = 400) -> np.ndarray:
    """Edges of the score histograms: seven deviations of the claim's log-likelihood
    ratio around 0.
    """
    mu = claim.equivalent_mu
    return np.linspace(-1, 1, bins + 1) * (mu**2 / 2 + 7 * mu)


def statements(counts: Counts, claim: Claim, confidence: float) -> dict[str, Any]:
    """The audit's results, each beside its ceiling; `passed` is False if a bound
    exceeds the claim.

    The error 1 - confidence is split over the two bounds, so that a correct mechanism
    fails with at most that chance. AUC and advantage are estimates with a standard
    error, and the bound at 95 % is shown for comparison: no verdict rests on them. With
    Poisson batches there is no mu: then it is the advantage that must not exceed the
    claim's.
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
    """Largest probability that an (epsilon, delta)-DP run lets `correct` of `guesses`
    guesses on `canaries` be right.

    Each canary was in the run or not by a fair coin; the others are abstentions.
    Source: Steinke, Nasr, Jagielski 2023, theorem 5.2: P[W >= v] + 2 m delta max_i P[v
    > W >= v - i] / i, W binomial(guesses, e^eps / (1 + e^eps)).
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
    """Largest epsilon that the guesses refute at this confidence, to 1e-6; 0 if they
    refute none.
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
    """(guesses, expected bound): how many guesses pay best against a Gaussian of this
    mu, by theory, before the run.
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
    """t with P(|N(mu/2, 1)| > t) = share."""
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
    """How many of the `guesses` guesses with the largest |score| are right.

    inside: (canaries,) bool, the coins.
    """
    scores = np.asarray(scores, float)
    chosen = np.argsort(-np.abs(scores), kind="stable")[:guesses]
    return int(((scores[chosen] > 0) == inside[chosen]).sum())
