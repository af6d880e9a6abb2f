"""From a budget to the noise that meets it, by the accountant that a paper used.

An error here cannot hide: the charge and the reported epsilon are computed from the
noise by `privacy.accounting`, whose accountants the looser ones here (`epsilon_by`)
never are.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from dphead.privacy import accounting
from dphead.privacy.accounting import (
    RDP_ORDERS,
    GaussianEvent,
    check,
    epsilon_from_mu,
    log_delta,
    rdp_curve,
    require,
    total_mu,
)

# Where searches begin and end; all chosen, and none decides a guarantee: what is found
# is checked against the budget by its accountant.
LARGEST_EPSILON = 1e11  # beyond it a search for mu takes this one's
SMALLEST_MU = 1e-150
ROUNDING = 1e-15  # first relative step towards the safe side, doubled until it is there
LARGEST_LOG_SCALE = 200.0  # of the noise, where the search gives up
LEAST_COST, MOST_COST = 1e-12, 1e12  # so that logarithms of epsilon are finite
FIRST_STEP = 0.5  # in the logarithm of the noise, and the largest one
# relative, of the noise: closed-form and RDP costs, PLD's, and of PLD on a coarser grid
TOLERANCE, PLD_TOLERANCE, COARSE_TOLERANCE = 1e-7, 1e-4, 1e-2
COARSER = 10  # times as wide are the cells of that grid

ACCOUNTANTS = (*accounting.ACCOUNTANTS, "rdp-classic", "zcdp")


def epsilon_by(
    accountant: str,
    events: Sequence[GaussianEvent],
    delta: float,
    relation: str = "zero_out",
) -> float:
    """Epsilon of the composition at `delta`, by any of ACCOUNTANTS.

    `rdp-classic` is RDP with the conversion of `classic_rdp_epsilon`; `zcdp`, for full
    batches, rho + 2 sqrt(rho ln(1/delta)) (Bun, Steinke 2016, Proposition 1.3); the
    others are those of `accounting.epsilon`. ValueError where an accountant does not
    apply. Infinite when a release has no noise. All are upper bounds; the two of this
    module are looser than need be and serve to spend a budget as a paper did.
    """
    check(delta, relation)
    require(
        accountant in ACCOUNTANTS,
        f"accountant must be one of {ACCOUNTANTS}",
        "accountant",
        accountant,
    )
    if accountant in accounting.ACCOUNTANTS:
        return accounting.epsilon(events, delta, relation, accountant)
    mu = total_mu(events)
    if accountant == "zcdp" and mu is None:
        raise ValueError(
            "zcdp needs full batches, got events='Poisson batches'. Use pld or rdp."
        )
    if any(e.noise_multiplier == 0 and e.count for e in events):
        return math.inf
    if accountant == "zcdp" and mu is not None:
        return mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    return classic_rdp_epsilon(
        RDP_ORDERS, rdp_curve(events, RDP_ORDERS, relation), delta
    )


def classic_rdp_epsilon(
    orders: Sequence[float], rdp: np.ndarray, delta: float
) -> float:
    """The least rdp + ln(1/delta) / (order - 1) over the orders.

    Source: Mironov 2017, Proposition 3; TB21, Lemma B.4.
    """
    check(delta)
    if not np.any(rdp):
        return 0.0
    pairs = zip(orders, rdp, strict=True)
    return min(float(r) - math.log(delta) / (order - 1) for order, r in pairs)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Largest mu whose GDP guarantee implies (epsilon, delta)-DP.

    Source: Balle, Wang 2018, Theorem 8.

    Guarantee: epsilon_from_mu(result, delta) <= epsilon; infinite only for an infinite
        epsilon.
    """
    require(epsilon >= 0, "epsilon must be at least 0", "epsilon", epsilon)
    check(delta)
    if math.isinf(epsilon):
        return math.inf
    epsilon, target = min(epsilon, LARGEST_EPSILON), math.log(delta)
    low, high, step = 0.0, 1.0, ROUNDING
    while log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high and high > SMALLEST_MU:
        met = log_delta(middle, epsilon) <= target
        low, high = (middle, high) if met else (low, middle)
    while epsilon_from_mu(low, delta) > epsilon:
        low, step = low * (1 - step), 2 * step
    return low


def smallest_scale(
    cost: Callable[[float], float],
    target: float,
    guess: float,
    tolerance: float,
    step: float = FIRST_STEP,
) -> float:
    """Smallest s, to a relative tolerance and on the safe side, with cost(s) <= target.

    `cost` decreases. step: the first of the search around the guess, in log s.
    """
    from scipy.optimize import brentq  # a full batch's noise needs none

    cost = lru_cache(cost)  # brentq asks for its ends again

    def excess(log_scale: float) -> float:
        found = max(cost(math.exp(log_scale)), LEAST_COST)
        return math.log(min(found, MOST_COST) / target)

    low = high = math.log(guess)
    sign = 1 if excess(low) > 0 else -1
    while (excess(high := low + sign * step) > 0) == (sign > 0):
        low, step = high, min(4 * step, FIRST_STEP)
        require(
            abs(low) < LARGEST_LOG_SCALE,
            "the budget must be reachable by scaling the noise",
            "epsilon",
            target,
            "Change it.",
        )
    margin = tolerance / 8
    found: Any = brentq(excess, low, high, xtol=margin)
    root = float(found) + margin
    while cost(math.exp(root)) > target:
        root += tolerance / 4
    return math.exp(root)


def calibrate(
    events: Sequence[GaussianEvent],
    epsilon: float,
    delta: float,
    relation: str = "zero_out",
    accountant: str = "auto",
    fixed: Collection[int] = (),
) -> float:
    """Smallest s such that multiplying every noise multiplier not in `fixed` (indices)
    by s meets the budget.

    0 for an infinite epsilon. Relative error 1e-7 (1e-4 with pld). ValueError if
    `fixed` leaves nothing.
    Source: bracketing and Brent's method on log epsilon against log s; full batches
        have a closed form.
    Guarantee: `epsilon_by` of the scaled events, with the same accountant, is at most
        the target.
    """
    check(delta, relation)
    require(
        epsilon > 0, "epsilon must be positive to calibrate noise", "epsilon", epsilon
    )
    held = [e for i, e in enumerate(events) if i in fixed]
    free = [e for i, e in enumerate(events) if i not in fixed and e.count]
    require(
        bool(free), "at least one release must be free to scale", "fixed", tuple(fixed)
    )
    if math.isinf(epsilon):
        return 0.0
    _check_scalable(free)
    _check_left(epsilon_by(accountant, held, delta, relation), epsilon)

    def scaled(scale: float) -> list[GaussianEvent]:
        return held + [
            replace(e, noise_multiplier=e.noise_multiplier * scale) for e in free
        ]

    def cost(scale: float) -> float:
        return epsilon_by(accountant, scaled(scale), delta, relation)

    def roughly(scale: float) -> float:
        return accounting.epsilon(
            scaled(scale), delta, relation, accountant, coarser=COARSER
        )

    mu_free, mu_held = total_mu(free), total_mu(held)
    if accountant in ("auto", "exact") and mu_free is not None and mu_held is not None:
        target = mu_from_epsilon(epsilon, delta)
        left = math.sqrt((target - mu_held) * (target + mu_held))
        scale, step = mu_free / left, ROUNDING
        while cost(scale) > epsilon:
            scale, step = scale * (1 + step), 2 * step
        return scale
    if accountant in ("auto", "pld"):
        guess = smallest_scale(roughly, epsilon, 1.0, COARSE_TOLERANCE)
        step = 4 * PLD_TOLERANCE
        return smallest_scale(cost, epsilon, guess, PLD_TOLERANCE, step)
    return smallest_scale(cost, epsilon, 1.0, TOLERANCE)


def _check_scalable(free: Collection[GaussianEvent]) -> None:
    """ValueError unless the noise that is to be scaled is positive and finite."""
    sigmas = [e.noise_multiplier for e in free]
    require(
        0 < min(sigmas) <= max(sigmas) < math.inf,
        "noise to be scaled must be positive and finite",
        "noise",
        sigmas,
    )


def _check_left(held_cost: float, epsilon: float) -> None:
    """ValueError unless fixed releases leave some of the budget."""
    require(
        held_cost < epsilon,
        "the budget must exceed what the fixed releases cost",
        "epsilon",
        epsilon,
        f"The fixed ones cost {held_cost:.6g}: raise the budget or their noise.",
    )
