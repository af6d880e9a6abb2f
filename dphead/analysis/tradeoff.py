"""What any attacker is limited to: trade-off curves, true positive rates, advantage."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr, ndtri

from dphead.privacy.accounting import GaussianEvent, log_delta, require, total_mu

# false positive rates at which `dphead account` prints the limit on true positives
REPORTED_RATES = (0.001, 0.01, 0.1)
# the one of them that is taken where one number has to say it; chosen
FALSE_ALARMS = 0.01


def gaussian_tradeoff(mu: float, fpr: np.ndarray | Sequence[float]) -> np.ndarray:
    """Least false negative rate at each false positive rate, Phi(Phi^-1(1 - fpr) - mu).

    Source: Dong, Roth, Su 2022, equation 6.
    """
    return (
        ndtr(-ndtri(np.asarray(fpr, float)) - mu)
        if mu > 0
        else 1 - np.asarray(fpr, float)
    )


def delta_from_mu(mu: float, epsilon: float) -> float:
    """Delta of a mu-GDP mechanism at `epsilon` (Balle, Wang 2018, Theorem 8; Dong,
    Roth, Su 2022, Corollary 1).

    Guarantee: never below the true value; above it by rounding only.
    """
    require(epsilon >= 0, "epsilon must be at least 0", "epsilon", epsilon)
    require(mu >= 0, "mu must be at least 0", "mu", mu)
    if mu == 0 or (math.isinf(epsilon) and not math.isinf(mu)):
        return 0.0
    return 1.0 if mu > 1e100 and epsilon < mu else math.exp(log_delta(mu, epsilon))


def delta_curve(
    events: Sequence[GaussianEvent],
    epsilons: np.ndarray | Sequence[float],
    relation: str = "zero_out",
) -> np.ndarray:
    """Delta at each epsilon of at least 0: exact for full batches, else from privacy
    loss distributions.
    """
    mu = total_mu(events)
    if mu is not None:
        return np.array([delta_from_mu(mu, float(e)) for e in epsilons])
    from dphead.privacy.loss_distribution import loss_distribution  # it takes seconds

    noiseless = any(e.noise_multiplier == 0 and e.count for e in events)
    distribution = None if noiseless else loss_distribution(events, relation)
    if distribution is None:
        return np.ones(len(epsilons))
    asked = np.asarray(epsilons, float)
    return np.minimum(
        1.0, np.max([losses.deltas(asked) for losses in distribution], axis=0)
    )


def tradeoff(
    events: Sequence[GaussianEvent],
    fpr: np.ndarray | Sequence[float],
    relation: str = "zero_out",
    points: int = 2000,
) -> np.ndarray:
    """Least false negative rate of any attack on the composition, at each false
    positive rate.

    Exact for full batches; else the supremum over `points` epsilons of max(0, 1 - delta
    - e^eps fpr, e^-eps (1 - delta - fpr)), a lower bound on the curve. Source: Dong,
    Roth, Su 2022, Propositions 3 and 6.
    """
    rates = np.asarray(fpr, float)
    mu = total_mu(events)
    if mu is not None:
        return gaussian_tradeoff(mu, rates)
    epsilons = np.concatenate([[0.0], np.geomspace(1e-4, 700.0, points - 1)])
    hit = 1 - delta_curve(events, epsilons, relation)
    steep = np.exp(epsilons)
    flat = np.exp(-epsilons)
    bound = []
    for rate in rates.ravel():
        likely = float(np.max(hit - steep * rate))
        unlikely = float(np.max(flat * (hit - rate)))
        bound.append(max(0.0, likely, unlikely))
    return np.array(bound).reshape(rates.shape)


def tpr_bound(
    events: Sequence[GaussianEvent], fpr: float, relation: str = "zero_out"
) -> float:
    """Largest true positive rate that any membership attack reaches at the false
    positive rate `fpr` in [0, 1].
    """
    if not 0 <= fpr <= 1:
        raise ValueError(
            f"fpr must lie in [0, 1], got {fpr=}. Give a rate, such as 0.001."
        )
    return 1.0 - float(tradeoff(events, [fpr], relation)[0])


def max_advantage(events: Sequence[GaussianEvent], relation: str = "zero_out") -> float:
    """Largest true minus false positive rate of any attack: delta at epsilon 0, which
    is 2 Phi(mu/2) - 1 for mu-GDP.
    """
    return float(delta_curve(events, [0.0], relation)[0])


def advantage_bound(epsilon: float, delta: float) -> float:
    """Largest advantage under (epsilon, delta)-DP alone, (e^eps - 1 + 2 delta) / (e^eps
    + 1); De22's Table 9.

    Source: Kairouz, Oh, Viswanath 2015. `max_advantage` is tighter when the releases
        are known.
    """
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(
            f"epsilon must be at least 0 and delta in [0, 1], got {epsilon=}, "
            f"{delta=}. Correct them."
        )
    low = math.exp(-epsilon)  # e^eps may overflow
    return (-math.expm1(-epsilon) + 2 * delta * low) / (1 + low)
