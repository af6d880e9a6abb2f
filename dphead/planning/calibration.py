"""Find the noise that meets a budget, by an accountant of dphead or of a paper.

An error in this module cannot affect the guarantee. `privacy.accounting` computes the
charge and the reported epsilon from the noise, without the two looser accountants of
`epsilon_by`.
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
from dphead.privacy.python_values import python_value
from dphead.privacy.rounding import rounded_up

# Bounds and steps of searches. All numbers are chosen. No guarantee depends on them,
# because the accountant checks each result against the budget.
_LARGEST_EPSILON = 1e11  # a search for mu replaces any larger epsilon by this number
_SMALLEST_MU = 1e-150
# first relative step to the safe side, doubled until the check passes
_ROUNDING = 1e-15
_LARGEST_LOG_SCALE = 200.0  # log of the noise factor at which the search gives up
_LEAST_COST, _MOST_COST = 1e-12, 1e12  # clip epsilon, so that its logarithm is finite
_FIRST_STEP = 0.5  # first and largest step in the logarithm of the noise
# relative tolerance of the noise, for closed-form and RDP costs, for PLD, and for PLD
# on a coarser grid
_TOLERANCE, _PLD_TOLERANCE, _COARSE_TOLERANCE = 1e-7, 1e-4, 1e-2
_COARSER = 10  # width of the coarser grid's cells relative to the finer grid

ACCOUNTANTS = (*accounting.ACCOUNTANTS, "rdp-classic", "zcdp")
# accountants that cover Poisson batches
OF_SAMPLES = tuple(name for name in ACCOUNTANTS if name not in ("exact", "zcdp"))


def epsilon_by(
    accountant: str,
    events: Sequence[GaussianEvent],
    delta: float,
    relation: str = "zero_out",
) -> float:
    """Return epsilon of the composition at `delta`, by any of ACCOUNTANTS.

    Parameters
    ----------
    accountant : str
        "rdp-classic" is RDP with the conversion of `classic_rdp_epsilon`. For full
        batches, "zcdp" is rho + 2 sqrt(rho ln(1/delta)). For other names, see
        `accounting.compose_epsilon`.
    events : sequence of GaussianEvent
        Releases to compose.
    delta : float
        Target δ.
    relation : str, default "zero_out"
        Neighboring relation.

    Returns
    -------
    float
        Upper bound on epsilon; infinite if a release has no noise, or if the accountant
        finds no finite bound.

    Raises
    ------
    ValueError
        If an argument is invalid or the accountant does not apply.

    Notes
    -----
    "rdp-classic" and "zcdp" are looser than necessary. They reproduce the budgets of
    papers.

    References
    ----------
    Bun, Steinke 2016, Proposition 1.3, for "zcdp".
    """
    check(delta, relation)
    require(
        accountant in ACCOUNTANTS,
        f"accountant must be one of {', '.join(ACCOUNTANTS)}",
        "accountant",
        accountant,
        "Use auto.",
    )
    if accountant in accounting.ACCOUNTANTS:
        return accounting.compose_epsilon(events, delta, relation, accountant)
    if accountant == "zcdp":
        if (mu := total_mu(events)) is None:
            raise ValueError(
                "The accountant zcdp needs full batches, got Poisson batches or "
                "allocated rows. Use the accountant pld."
            )
        return mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if any(e.noise_multiplier == 0 and e.count for e in events):
        return math.inf
    return classic_rdp_epsilon(
        RDP_ORDERS, rdp_curve(events, RDP_ORDERS, relation), delta
    )


def classic_rdp_epsilon(
    orders: Sequence[float], rdp: np.ndarray, delta: float
) -> float:
    """Return the minimum of rdp + ln(1/delta) / (order - 1) over the orders.

    The result is 0 if no RDP is spent.

    References
    ----------
    Mironov 2017, Proposition 3. TB21, Lemma B.4.
    """
    check(delta)
    if not np.any(rdp):
        return 0.0
    pairs = zip(orders, rdp, strict=True)
    return min(float(r) - math.log(delta) / (order - 1) for order, r in pairs)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest μ for which μ-GDP implies (epsilon, delta)-DP.

    Guarantee
    ---------
    epsilon_from_mu(result, delta) <= epsilon. The result is infinite only for an
    infinite epsilon.

    References
    ----------
    Balle, Wang 2018, Theorem 8.
    """
    epsilon, delta = python_value(epsilon), python_value(delta)
    require(epsilon >= 0, "epsilon must be at least 0", "epsilon", epsilon, "Use 1.")
    check(delta)
    if math.isinf(epsilon):
        return math.inf
    epsilon, target = min(epsilon, _LARGEST_EPSILON), math.log(delta)
    low, high, step = 0.0, 1.0, _ROUNDING
    while log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high and high > _SMALLEST_MU:
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
    step: float = _FIRST_STEP,
    roughly: Callable[[float], float] | None = None,
) -> float:
    """Return the smallest s with cost(s) <= target, to a relative tolerance.

    The error of the search is on the safe side, because cost(s) is at most the target.

    Parameters
    ----------
    cost : callable
        Decreasing function of s.
    target : float
        Largest cost.
    guess : float
        First value of the search.
    tolerance : float
        Relative tolerance of s.
    step : float
        First step of the search around the guess, in log s.
    roughly : callable, optional
        Faster function with about the same costs. The search then computes `cost` at
        three values of s, and at some more if the costs differ much.

    Raises
    ------
    ValueError
        If no s within exp(±200) reaches the target.
    """
    from scipy.optimize import brentq  # imported here: full batches do not need it

    cost = lru_cache(cost)  # the search computes some costs twice
    faster = lru_cache(roughly) if roughly else cost

    def excess(log_scale: float, of: Callable[[float], float] = cost) -> float:
        found = max(of(math.exp(log_scale)), _LEAST_COST)
        return math.log(min(found, _MOST_COST) / target)

    def rough(log_scale: float) -> float:
        return excess(log_scale, faster)

    low, high = _bracket(rough, math.log(guess), step, target)
    if (excess(low) > 0) == (excess(high) > 0):
        low, high = _bracket(excess, math.log(guess), step, target)
    before, after = excess(low) - rough(low), excess(high) - rough(high)

    def near(log_scale: float) -> float:
        # the error of `rough` is nearly linear, so this root is close to that of `cost`
        if log_scale in (low, high):
            return excess(log_scale)
        share = (log_scale - low) / (high - low)
        return rough(log_scale) + before + share * (after - before)

    margin = tolerance / 8
    found: Any = brentq(near, low, high, xtol=margin)
    root = float(found) + margin
    while cost(math.exp(root)) > target:
        root += tolerance / 4
    return math.exp(root)


def _bracket(
    excess: Callable[[float], float], start: float, step: float, target: float
) -> tuple[float, float]:
    """Return two logarithms of s between which the excess changes its sign."""
    low, sign = start, 1 if excess(start) > 0 else -1
    while (excess(high := low + sign * step) > 0) == (sign > 0):
        low, step = high, min(4 * step, _FIRST_STEP)
        require(
            abs(low) < _LARGEST_LOG_SCALE,
            "the budget must be reachable by scaling the noise",
            "epsilon",
            target,
            "Change epsilon or delta.",
        )
    return low, high


def calibrate(
    events: Sequence[GaussianEvent],
    epsilon: float,
    delta: float,
    relation: str = "zero_out",
    accountant: str = "auto",
    fixed: Collection[int] = (),
) -> float:
    """Return the smallest factor s on the noise multipliers that meets the budget.

    Parameters
    ----------
    events : sequence of GaussianEvent
        Releases. s multiplies their noise multipliers.
    epsilon : float
        Target ε.
    delta : float
        Target δ.
    relation : str, default "zero_out"
        Neighboring relation.
    accountant : str, default "auto"
        One of ACCOUNTANTS.
    fixed : collection of int
        Indices of events with noise that s does not multiply.

    Returns
    -------
    float
        Factor s, with a relative error of 1e-7, or 1e-4 with PLD. It is 0 for an
        infinite epsilon.

    Raises
    ------
    ValueError
        If epsilon, delta, the relation, the accountant or an index in `fixed` is
        invalid, if `fixed` leaves no event or no budget, or if noise to scale is not
        positive and finite.

    Guarantee
    ---------
    `epsilon_by` of the scaled events, with the same accountant, is at most `epsilon`.

    Notes
    -----
    By "auto" or "exact", full batches have a closed form. Otherwise, a bracket and
    Brent's method find the root, on log epsilon against log s.
    """
    epsilon, delta = python_value(epsilon), python_value(delta)
    check(delta, relation)
    require(
        epsilon > 0,
        "epsilon must be positive to calibrate noise",
        "epsilon",
        epsilon,
        "Use inf for no noise.",
    )
    fixed = set(fixed)
    require(
        fixed <= set(range(len(events))),
        f"fixed must hold indices from 0 to {len(events) - 1}",
        "fixed",
        tuple(fixed),
    )
    held = [e for i, e in enumerate(events) if i in fixed]
    free = [e for i, e in enumerate(events) if i not in fixed and e.count]
    require(
        bool(free),
        "at least one release must be free to scale",
        "fixed",
        tuple(fixed),
        "Remove an index.",
    )
    if math.isinf(epsilon):
        return 0.0
    sigmas = [e.noise_multiplier for e in free]
    require(
        0 < min(sigmas) <= max(sigmas) < math.inf,
        "noise to scale must be positive and finite",
        "noise",
        sigmas,
        "Change the noise multipliers.",
    )
    cost_held = epsilon_by(accountant, held, delta, relation)
    require(
        cost_held < epsilon,
        f"epsilon must exceed {rounded_up(cost_held, 6)}, the cost of the fixed noise",
        "epsilon",
        epsilon,
        "Raise epsilon or the fixed noise.",
    )

    def scaled(scale: float) -> list[GaussianEvent]:
        return held + [
            replace(e, noise_multiplier=e.noise_multiplier * scale) for e in free
        ]

    def cost(scale: float) -> float:
        return epsilon_by(accountant, scaled(scale), delta, relation)

    def roughly(scale: float) -> float:
        return accounting.compose_epsilon(
            scaled(scale), delta, relation, accountant, coarser=_COARSER
        )

    # Full batches compose in closed form: mu² = (mu_free / scale)² + mu_held².
    mu_free, mu_held = total_mu(free), total_mu(held)
    if accountant in ("auto", "exact") and mu_free is not None and mu_held is not None:
        target = mu_from_epsilon(epsilon, delta)
        # a product, because a difference of squares loses digits if both are close
        left = math.sqrt((target - mu_held) * (target + mu_held))
        scale, step = mu_free / left, _ROUNDING
        while cost(scale) > epsilon:
            scale, step = scale * (1 + step), 2 * step
        return scale
    if accountant in ("auto", "pld"):
        guess = smallest_scale(roughly, epsilon, 1.0, _COARSE_TOLERANCE)
        step = 4 * _PLD_TOLERANCE
        return smallest_scale(cost, epsilon, guess, _PLD_TOLERANCE, step, roughly)
    return smallest_scale(cost, epsilon, 1.0, _TOLERANCE)
