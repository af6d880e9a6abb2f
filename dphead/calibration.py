"""From a budget to the noise that meets it.

An error here cannot hide: the charge and the reported epsilon are computed from the noise by `privacy.accounting`.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from scipy.optimize import brentq

from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent, check, epsilon_from_mu, log_delta, require


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Largest mu whose GDP guarantee implies (epsilon, delta)-DP. Source: Balle, Wang 2018, Theorem 8.

    Guarantee: epsilon_from_mu(result, delta) <= epsilon; infinite only for an infinite epsilon.
    """
    check(epsilon=epsilon, delta=delta)
    if math.isinf(epsilon):
        return math.inf
    epsilon, target = min(epsilon, 1e11), math.log(delta)
    low, high, step = 0.0, 1.0, 1e-15
    while log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high and high > 1e-150:
        low, high = (middle, high) if log_delta(middle, epsilon) <= target else (low, middle)
    while epsilon_from_mu(low, delta) > epsilon:
        low, step = low * (1 - step), 2 * step
    return low


def smallest_scale(cost: Callable[[float], float], target: float, guess: float, tolerance: float) -> float:
    """Smallest s, to a relative tolerance and on the safe side, with cost(s) <= target; `cost` decreases."""
    cost = lru_cache(cost)  # brentq asks for its ends again

    def excess(log_scale: float) -> float:
        return math.log(min(max(cost(math.exp(log_scale)), 1e-12), 1e12) / target)

    low = high = math.log(guess)
    step, sign = 4 * tolerance, 1 if excess(low) > 0 else -1
    while (excess(high := low + sign * step) > 0) == (sign > 0):
        low, step = high, min(4 * step, 0.5)
        require(abs(low) < 200, "the budget must be reachable by scaling the noise", "epsilon", target, "Change it.")
    root = float(brentq(excess, low, high, xtol=tolerance / 8)) + tolerance / 8  # type: ignore[arg-type]
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
    """Smallest s such that multiplying every noise multiplier not in `fixed` (indices) by s meets the budget.

    0 for an infinite epsilon. Relative error 1e-7 (1e-4 with pld). ValueError if `fixed` leaves nothing.
    Source: bracketing and Brent's method on log epsilon against log s; full batches have a closed form.
    Guarantee: `epsilon` of the scaled events, with the same accountant, is at most the target.
    """
    check(delta=delta, relation=relation)
    require(epsilon > 0, "epsilon must be positive to calibrate noise", "epsilon", epsilon)
    held = [e for i, e in enumerate(events) if i in fixed]
    free = [e for i, e in enumerate(events) if i not in fixed and e.count]
    require(bool(free), "at least one release must be free to scale", "fixed", tuple(fixed))
    if math.isinf(epsilon):
        return 0.0
    sigmas = [e.noise_multiplier for e in free]
    require(
        0 < min(sigmas) <= max(sigmas) < math.inf, "noise to be scaled must be positive and finite", "noise", sigmas
    )
    held_cost = accounting.epsilon(held, delta, relation, accountant)
    hint = f"The fixed ones cost {held_cost:.6g}: raise the budget or their noise."
    require(held_cost < epsilon, "the budget must exceed what the fixed releases cost", "epsilon", epsilon, hint)

    def cost(scale: float, accountant: str = accountant, coarser: float = 1.0) -> float:
        scaled = [replace(e, noise_multiplier=e.noise_multiplier * scale) for e in free]
        return accounting.epsilon(held + scaled, delta, relation, accountant, coarser)

    mu_free, mu_held = accounting.total_mu(free), accounting.total_mu(held)
    if accountant in ("auto", "exact") and mu_free is not None and mu_held is not None:
        target = mu_from_epsilon(epsilon, delta)
        scale, step = mu_free / math.sqrt((target - mu_held) * (target + mu_held)), 1e-15
        while cost(scale) > epsilon:
            scale, step = scale * (1 + step), 2 * step
        return scale
    if accountant in ("auto", "pld"):
        guess = smallest_scale(lambda s: cost(s, "pld", coarser=10), epsilon, 1.0, 1e-2)
        return smallest_scale(cost, epsilon, guess, 1e-4)
    return smallest_scale(cost, epsilon, 1.0, 1e-7)
