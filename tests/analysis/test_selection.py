"""Choosing among runs: against dp_accounting, the theorems written out, and an exact
calculation.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from dphead.analysis.selection import (
    selection_calibrate,
    selection_epsilon,
    selection_rdp,
)
from dphead.privacy.accounting import (
    RDP_ORDERS,
    GaussianEvent,
    compose_epsilon,
    epsilon_from_rdp,
    rdp_curve,
    rdp_epsilon,
)

DELTA = 1e-5
FULL = [GaussianEvent(20.0, count=4), GaussianEvent(50.0)]  # rho = (4/400 + 1/2500)/2
RHO = (4 / 400 + 1 / 2500) / 2
POISSON = [GaussianEvent(3.0, 0.05, 60), GaussianEvent(30.0)]


def halting(mean, shape):
    """gamma of the truncated negative binomial of this mean (Papernot, Steinke 2022,
    Definition 1).
    """

    def excess(gamma):
        if shape == 0:
            return (1 / gamma - 1) / math.log(1 / gamma) - mean
        return shape * (1 - gamma) / (gamma * (1 - gamma**shape)) - mean

    return brentq(excess, 1e-9, 1 - 1e-9)


def over_orders(curve):
    """Least epsilon of a Renyi curve over all orders, not only those of a grid."""
    found = minimize_scalar(
        lambda t: rdp_epsilon(1 + math.exp(t), curve(1 + math.exp(t)), DELTA),
        bounds=(-3, 8.9),
        method="bounded",
    )
    return found.fun


@pytest.mark.parametrize("shape, mean", [(1.0, 2.0), (0.0, 1000.0), (3.0, 10.0)])
def test_theorem_2_of_papernot_and_steinke(shape, mean):
    """Full batches: the best second order is sqrt(ln(1/gamma)/rho), in closed form.

    The grid of orders costs < 1 %.
    """
    log = -math.log(halting(mean, shape))
    extra = (1 + shape) * (2 * math.sqrt(RHO * log) - RHO)
    best = over_orders(lambda order: order * RHO + extra + math.log(mean) / (order - 1))
    found = selection_epsilon(FULL, mean, DELTA, shape)
    assert best * (1 - 1e-6) <= found <= best * 1.01


@pytest.mark.parametrize("mean", [1.5, 50.0])
def test_an_exact_choice_costs_more_than_one_run_and_less_than_the_bound(mean):
    """The best of a geometric number of N(0, 1) or N(mu, 1) scores has density f g/(1 -
    (1 - g) F)^2, g = 1/mean.
    """
    mu = 0.5
    g = 1 / mean
    x = np.linspace(-12, 14, 400_001)

    def density(shift):
        missed = 1 - (1 - g) * norm.cdf(x, shift)
        return norm.pdf(x, shift) * g / missed**2

    def spent(p, q):
        def excess(eps):
            return np.trapezoid(np.maximum(p - math.exp(eps) * q, 0), x) - DELTA

        return brentq(excess, 0.0, 20.0)

    p = density(0.0)
    q = density(mu)
    assert np.trapezoid(p, x) == pytest.approx(1, abs=1e-6)
    exact = max(spent(p, q), spent(q, p))
    trial = [GaussianEvent(1 / mu)]
    assert compose_epsilon(trial, DELTA) < exact < selection_epsilon(trial, mean, DELTA)


def test_more_runs_cost_more_and_one_run_costs_itself():
    totals = [selection_epsilon(FULL, mean, DELTA) for mean in (1, 2, 10, 100, 10_000)]
    assert totals == sorted(totals)
    assert totals[-1] < 4 * totals[0]
    one = epsilon_from_rdp(RDP_ORDERS, rdp_curve(FULL, RDP_ORDERS), DELTA)
    # the bound of Papernot and Steinke has a second term for one run too
    assert one <= totals[0] <= 1.2 * one
    assert np.all(np.diff(selection_rdp(FULL, 10)) >= 0)  # a Renyi curve never falls


def test_without_noise_nothing_is_private():
    assert math.isinf(selection_epsilon([GaussianEvent(0.0)], 5, DELTA))
    assert math.isinf(
        selection_epsilon([*FULL, GaussianEvent(0.0)], 5, DELTA, math.inf)
    )


@pytest.mark.parametrize("trial, fixed", [(FULL, (1,)), (POISSON, (1,))])
def test_calibration_meets_the_total_from_below(trial, fixed):
    """1e-6 of the noise is about 1e-6 of epsilon, and so is 1e-4."""
    scale = selection_calibrate(trial, 10, 3.0, DELTA, fixed=fixed)
    factors = [1.0 if i in fixed else scale for i in range(len(trial))]
    noisy = [
        replace(e, noise_multiplier=e.noise_multiplier * f)
        for e, f in zip(trial, factors, strict=True)
    ]
    least = 1 - 1e-5 if trial is FULL else 1 - 1e-3
    assert 3.0 * least <= selection_epsilon(noisy, 10, DELTA) <= 3.0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: selection_epsilon(FULL, 0.5, DELTA), "mean number of runs"),
        (
            lambda: selection_epsilon(POISSON, 5, DELTA, relation="replace_one"),
            "zero_out or add_remove",
        ),
        (
            lambda: selection_calibrate(FULL, 5, 1.0, DELTA, fixed=(0, 1)),
            "at least one release",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
