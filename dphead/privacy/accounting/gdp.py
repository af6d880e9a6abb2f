"""Compute exact epsilons of full batches by Gaussian differential privacy (GDP).

Floating-point errors are rounded to the safe side.

References
----------
Dong, Roth, Su 2022; Balle, Wang 2018.
"""

import math
from collections.abc import Sequence

from scipy.special import erfcx, ndtr

from dphead.privacy.accounting.events import GaussianEvent, check, require
from dphead.privacy.python_values import python_value

# A larger epsilon is reported as infinite. Chosen, not measured.
_LARGEST_EPSILON = 1e12
# 36 units of 2**-53: erfcx errs by at most 8.3 units (measured at 330,000 points
# against mpmath), and each operation around it by half a unit.
_MILLS_ROUNDING = 4e-15


def total_mu(events: Sequence[GaussianEvent]) -> float | None:
    """Return the GDP parameter mu of the composition.

    The result is sqrt(sum of count * (rows_per_unit / noise_multiplier)**2).

    Returns
    -------
    float or None
        mu; infinite if a release has no noise. None if a batch is sampled or allocated.

    Guarantee
    ---------
    Exact for full batches with noise fixed beforehand, even if a statistic depends on
    earlier results.

    References
    ----------
    Dong, Roth, Su 2022, Corollary 2 and, for groups, Theorem 6.
    """
    events = [e for e in events if e.count]
    if not all(e.is_full for e in events):
        return None
    if any(e.noise_multiplier == 0 for e in events):
        return math.inf
    # Corollary 2: mu^2 adds up. Theorem 6: a group of k rows has k mu.
    mus = []
    for e in events:
        mus.append(e.rows_per_unit * math.sqrt(e.count) / e.noise_multiplier)
    return math.hypot(*mus)


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Guarantee
    ---------
    Never below the true value. Infinite if the true value may exceed 1e12.

    References
    ----------
    Balle, Wang 2018, Theorem 8.
    """
    mu, delta = python_value(mu), python_value(delta)
    check(delta)
    require(mu >= 0, "mu must be at least 0", "mu", mu, "Use the result of total_mu.")
    target = math.log(delta)
    # The upper end is zCDP's epsilon, which exceeds the exact one.
    low = 0.0
    high = mu * mu / 2 + mu * math.sqrt(-2 * target)
    if not high < _LARGEST_EPSILON:
        return math.inf
    if mu == 0 or log_delta(mu, 0.0) <= target:
        return 0.0
    # Bisect to adjacent floats. `high` is safe: it always satisfies delta.
    while low < (middle := (low + high) / 2) < high:
        if log_delta(mu, middle) <= target:
            high = middle
        else:
            low = middle
    return high


def log_delta(mu: float, epsilon: float) -> float:
    """Return an upper bound, tight to rounding, on log delta(epsilon) of mu-GDP.

    mu is positive and finite. delta = Phi(t) - e^epsilon Phi(t - mu), where t = mu/2 -
    epsilon/mu. Since e^epsilon phi(t - mu) = phi(t), delta equals phi(t) [R(t) - R(t -
    mu)] with Mills' ratio R(x) = Phi(x)/phi(x). So no large numbers are subtracted.
    """
    # Balle, Wang 2018, Theorem 8, by Mills' ratios (docstring).
    t = mu / 2 - epsilon / mu
    log_phi = -t * t / 2 - 0.5 * math.log(2 * math.pi)
    # phi(t) is a factor of both terms. As a logarithm it does not underflow.
    tail = _mills_ratio(t - mu)
    if t > 0:
        excess = float(ndtr(t)) - math.exp(log_phi) * tail
        bound = math.log(excess + _MILLS_ROUNDING)
    else:
        ratio = _mills_ratio(t)
        # If the ratios are close, their difference loses digits: the last term is for
        # this error.
        excess = max(ratio - tail, 0.0) + _MILLS_ROUNDING * ratio
        bound = log_phi + math.log(excess)
    # Error of log delta from rounding t: its slope there is at most |t| + 1.3.
    moved = (abs(t) + 1.3) * (epsilon / mu + mu / 2)
    slack = 4e-16 * (2 + t * t + moved)
    return min(0.0, bound + slack)


def _mills_ratio(x: float) -> float:
    """Return Mills' ratio Phi(x) / phi(x) of the standard normal distribution."""
    scaled = float(erfcx(-x / math.sqrt(2)))
    return math.sqrt(math.pi / 2) * scaled
