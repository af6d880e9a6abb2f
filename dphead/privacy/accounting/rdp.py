"""Compute Renyi divergences (RDP) and their epsilons, for budgets.

Floating-point errors are rounded to the safe side.

References
----------
Mironov 2017; Mironov, Talwar, Zhang 2019; Feldman, Zrnic 2021 (filters).
"""

import logging
import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaln

from dphead.privacy.accounting.events import GaussianEvent, check, require
from dphead.privacy.accounting.gdp import total_mu

# dp_accounting 0.6's default orders, and powers of two for very small epsilons
RDP_ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(2**k for k in range(7, 14)),
)
# Limits of noise multipliers, rounded to the safe side. Chosen, not measured.
_SMALLEST_RDP_NOISE = 1e-3  # Poisson batches with less noise get infinite RDP
LARGEST_NOISE = 1e8  # more noise is charged like this noise
_RDP_ROUNDING = 2e-15  # relative error of the operations of a divergence or epsilon


def rdp_curve(
    events: Sequence[GaussianEvent], orders: Sequence[float], relation: str = "zero_out"
) -> np.ndarray:
    """Return the total Renyi divergence at each order above 1.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases.
    orders : sequence of float
        Orders above 1.
    relation : {"zero_out", "add_remove", "replace_one"}, default "zero_out"
        The neighboring relation.

    Returns
    -------
    ndarray of float64, shape (len(orders),)
        The divergences.

    Raises
    ------
    ValueError
        If `relation` is invalid. For allocated rows, and for Poisson batches under
        replace-one or with units of several rows: their pairs have no bound here.

    Guarantee
    ---------
    An upper bound at each order. At fractional orders this assumes that dp_accounting's
    series keeps falling once it begins to fall, which is tested.

    References
    ----------
    Mironov 2017, Corollary 3; Mironov, Talwar, Zhang 2019, section 3.
    """
    check(relation=relation)
    total = np.zeros(len(orders))
    rounding = _RDP_ROUNDING + len(events) * 2.0**-52  # covers the additions below too
    for event in (e for e in events if e.count):
        if event.is_full:
            # Mironov 2017, Corollary 3: the divergence of order a is a mu^2 / 2.
            mu = total_mu([event]) or 0.0
            # The square of a small mu could be rounded to zero.
            half = max(mu * mu / 2, sys.float_info.min) if mu else 0.0
            total = total + np.asarray(orders) * (half * (1 + rounding))
            continue
        # No divergence is proved for the refused cases: proofs/allocation.md for
        # epochs, proofs/poisson.md for replace-one, proofs/groups.md for units.
        sd, q, rows = event.noise_multiplier, event.sampling_prob, event.rows_per_unit
        steps = event.epoch_steps
        known = "RDP cannot bound allocated rows (`--sampling allocation`)"
        use = "Use the accountant pld."
        require(steps == 1, known, "epoch_steps", steps, use)
        pair = "RDP of Poisson batches needs zero_out or add_remove"
        unit = "RDP of Poisson batches needs a `--group-cap` (`rows_per_unit`) of 1"
        require(relation != "replace_one", pair, "relation", relation, use)
        require(rows == 1, unit, "rows_per_unit", rows, use)
        total = total + event.count * _poisson_rdp(q, sd, tuple(orders))
    return total


@lru_cache(maxsize=256)
def _poisson_rdp(
    sampling_prob: float, noise_multiplier: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Return the Renyi divergence of one Poisson batch at each order.

    The result is dp_accounting's value plus a bound on its rounding error.
    """
    # The import takes seconds.
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    if noise_multiplier < _SMALLEST_RDP_NOISE:
        return np.full(len(orders), np.inf)
    # Less noise gives a larger epsilon, so the limit is on the safe side.
    noise_multiplier = min(noise_multiplier, LARGEST_NOISE)
    # dp_accounting warns about orders without convergence. Their result is infinite,
    # which is safe.
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        values: Any = rdp._compute_rdp_poisson_subsampled_gaussian(
            sampling_prob, noise_multiplier, orders
        )
    finally:
        logger.disabled = before
    return np.maximum(values, 0.0) + _rdp_rounding(values, sampling_prob, orders)


def _rdp_rounding(
    values: np.ndarray, sampling_prob: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Return a bound on dp_accounting's rounding error of each divergence.

    (order - 1) times a divergence is the logarithm of a sum of positive terms. Its
    error is at most the error of the logarithms of the terms and of the partial sums.
    All numbers in these logarithms are at most `size`. They are lgamma(order + 1),
    order log q, order log(1 - q), the logarithm of the sum, and an exponent below the
    sum of these four. A few operations per term each round by 2**-53 of `size`, and
    there are order + 1 terms at a whole order.

    The series of a fractional order is infinite. dp_accounting adds the absolute values
    of its terms, which gives an upper bound, and stops at terms below e**-30 of the
    sum. The omitted terms alternate in sign. The 1e-12 covers them.
    """
    alpha = np.asarray(orders, float)
    # Sizes of the logarithms in the sum, for their rounding.
    logs = -math.log(sampling_prob) - math.log1p(-sampling_prob)
    size = 10 + gammaln(alpha + 1) + 2 * alpha * logs
    size = size + np.maximum(values, 0.0) * (alpha - 1)
    rounding = 2.0**-53 * (alpha + 20) * size
    return (1e-12 + rounding) / (alpha - 1)


def rdp_epsilon(order: float, rdp: float, delta: float) -> float:
    """Return the epsilon from RDP at one order.

    Guarantee
    ---------
    (order, rdp)-RDP implies (result, delta)-DP.

    References
    ----------
    Canonne, Kamath, Steinke 2020, Proposition 12; Balle et al. 2020, Theorem 21.
    """
    check(delta)
    hint = "Use an order of RDP_ORDERS."
    require(order > 1, "order must be above 1", "order", order, hint)
    logs = math.log(delta), math.log(order)
    # epsilon = rdp + log1p(-1 / a) - (log delta + log a) / (a - 1).
    failure = sum(logs) / (order - 1)
    gain = math.log1p(-1 / order)
    sizes = rdp - gain + (abs(logs[0]) + logs[1]) / (order - 1)
    found = rdp + gain - failure + _RDP_ROUNDING * sizes
    return math.inf if math.isnan(found) else max(0.0, found)


def epsilon_from_rdp(
    orders: Sequence[float], rdp: Sequence[float] | np.ndarray, delta: float
) -> float:
    """Return the smallest epsilon at `delta` over the orders; 0 if `rdp` is 0.

    Guarantee
    ---------
    An upper bound, if every divergence is an upper bound.
    """
    check(delta)
    if not np.any(rdp):
        return 0.0
    pairs = zip(orders, rdp, strict=True)
    return min(rdp_epsilon(order, float(r), delta) for order, r in pairs)


def filter_order(epsilon: float, delta: float) -> float:
    """Return the RDP order of an adaptive filter, from the budget only.

    Candidates are 1.1, 1.2, ..., 10, whole numbers up to 63, and rounded powers
    2**(x / 8) up to 8,192. The result is the candidate at which the budget allows a
    Gaussian mechanism the largest mu.

    Guarantee
    ---------
    Any order fixed beforehand is valid. This one is the candidate that is tightest for
    Gaussian mechanisms.

    References
    ----------
    Feldman, Zrnic 2021.
    """
    check(delta)
    # The budget alone determines the order; a filter needs an order fixed before any
    # fit.
    finite = 0 < epsilon < math.inf
    known, hint = "epsilon must be positive and finite", "Use a number such as 1."
    require(finite, known, "epsilon", epsilon, hint)

    def room(order: float) -> float:
        """Return the largest mu²/2 of a Gaussian that an order's bound allows."""
        failure = math.log(delta * order) / (order - 1)
        return (epsilon - math.log1p(-1 / order) + failure) / order

    # Few candidates suffice: epsilon is flat around the best order.
    fine = [x / 10 for x in range(11, 101)]
    coarse = [round(2 ** (x / 8)) for x in range(48, 105)]
    return float(max([*fine, *range(11, 64), *coarse], key=room))
