"""Random allocation against integrals, draws and sums in many digits, and what rounding
and tails may take off.
"""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from dphead.privacy.accounting import (
    GaussianEvent,
    compose_epsilon,
    epsilon_from_mu,
    rdp_curve,
)
from dphead.privacy.accounting import allocation as module
from dphead.privacy.accounting.allocation import epoch_losses
from dphead.privacy.accounting.pld import loss_distribution

DIRECTIONS = ("removed", "added")
EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
INTERVAL = 1e-4


def epochs(sigma, steps, count=1):
    return [GaussianEvent(sigma, count=steps * count, epoch_steps=steps)]


def call(strike, mu):
    """E(W - strike)_+ of W = exp(mu Z - mu**2/2): the Black-Scholes formula."""
    if strike <= 0:
        return 1 - strike
    z = mu / 2 - math.log(strike) / mu
    return norm.cdf(z) - strike * norm.cdf(z - mu)


def two_steps(sigma, direction, eps):
    """Delta of an epoch of two steps, by an integral over the first one's ratio."""
    mu = 1 / sigma
    strike = math.exp(eps if direction == "removed" else -eps)

    def part(z):
        rest = 2 * strike - math.exp(mu * z - mu * mu / 2)
        return norm.pdf(z) * call(rest, mu) / 2

    kink = math.log(2 * strike) / mu + mu / 2
    tight = {"epsabs": 1e-14, "epsrel": 1e-11, "limit": 500}
    low = quad(part, -12, kink, **tight)[0]
    beyond = low + quad(part, kink, 12 + 2 * mu, **tight)[0]
    if direction == "removed":
        return beyond
    return math.exp(eps) * (beyond - 1 + strike)  # call and put


@pytest.mark.parametrize("sigma", [0.6, 1.0, 5.0])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_delta_of_an_epoch_of_two_steps_is_not_below_its_integral(sigma, direction):
    """Above it by the grid of ratios, by most with little noise (0.6)."""
    found = epoch_losses(sigma, 2, direction, INTERVAL)
    slow = np.array([two_steps(sigma, direction, eps) for eps in EPSILONS])
    quick = found.deltas(EPSILONS)
    assert np.all(quick >= slow - 1e-13)  # the integral's own error
    loose = 0.005 if direction == "removed" else 0.05  # of rare losses
    absolute = 1e-3 if sigma < 0.8 else 1e-6
    assert np.all(quick <= slow * (1 + loose) + absolute + found.infinite)
    below = -EPSILONS[1:]
    swapped = "added" if direction == "removed" else "removed"
    of_the_other = [two_steps(sigma, swapped, -eps) for eps in below]
    # H(-eps) of one direction is 1 - e^-eps + e^-eps H(eps) of the other
    slow = 1 - np.exp(below) + np.exp(below) * of_the_other
    losses = (found.lowest + np.arange(len(found.chances))) * INTERVAL
    for eps, least in zip(below, slow, strict=True):
        kept = found.chances * np.maximum(-np.expm1(eps - losses), 0.0)
        assert kept.sum() + found.infinite >= least - 1e-13


@pytest.mark.parametrize("sigma, steps", [(0.7, 5), (2.0, 7), (1.0, 40)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_delta_of_an_epoch_against_draws(sigma, steps, direction):
    """The definition, drawn: t numbers, one of which has mean 1 ("removed"), and the
    mean of their ratios. 200,000 draws, 5 standard errors.
    """
    rng = np.random.default_rng(steps)
    gains = []
    for _ in range(20):
        drawn = sigma * rng.standard_normal((10_000, steps))
        if direction == "removed":
            place = rng.integers(0, steps, 10_000)
            drawn[np.arange(10_000), place] += 1
        ratio = np.exp((drawn - 0.5) / sigma**2).mean(axis=1)
        loss = np.log(ratio) if direction == "removed" else -np.log(ratio)
        gains.append(np.maximum(-np.expm1(EPSILONS - loss[:, None]), 0.0))
    gains = np.concatenate(gains)
    mean = gains.mean(axis=0)
    error = gains.std(axis=0) / math.sqrt(len(gains))
    quick = epoch_losses(sigma, steps, direction, INTERVAL).deltas(EPSILONS)
    assert np.all(quick >= mean - 5 * error)
    assert np.all(quick <= 1.002 * mean + 5 * error + 1e-4)


@pytest.mark.parametrize("mu", [0.2, 1.0, 1.9])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_ratio_on_the_grid_is_larger_in_the_convex_order(mu, direction):
    """No call (removed) or put (added) is worth less than the ratio's, in 50 digits,
    but for what is said to be lost. Our sums are exact but for 3 roundings of a term.
    """
    found = module.grid_of_ratio(mu, direction)
    assert found is not None
    unseen, seen = found
    width = unseen.interval
    count = len(unseen.chances)
    assert seen.lowest == unseen.lowest
    points = (unseen.lowest + np.arange(count)) * width
    with mpmath.workdps(50):
        m = mpmath.mpf(mu)
        for place in (0.05, 0.3, 0.7, 0.95, 1.0, 1.2, 2.0, 5.0):
            strike = width * (math.floor(place / width) + 0.5)
            k = mpmath.mpf(strike)
            z = m / 2 - mpmath.log(k) / m
            true = mpmath.ncdf(z) - k * mpmath.ncdf(z - m)
            sign = 1
            if direction == "added":
                true += k - 1
                sign = -1
            gains = np.maximum(sign * (points - strike), 0)
            ours = math.fsum(unseen.chances * gains) * (1 + 2**-50)
            # calls: what is lost counts under the ratio's own weights
            lost = seen.infinite if direction == "removed" else k * unseen.infinite
            assert ours + lost >= true
            if mu <= 1 and place >= 0.7:  # where cells are small beside the strike
                assert ours <= true * 1.01 + 1e-6
    np.testing.assert_allclose(seen.chances, points * unseen.chances, rtol=1e-14)
    assert unseen.chances.sum() == pytest.approx(1, abs=1e-9)
    assert seen.chances.sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rounding_moves_the_mean_to_the_safe_side(direction):
    """The grid's mean is above 1 where delta rises with the ratio, else below, by far
    more than rounding here (sums of longdouble).
    """
    found = module.grid_of_ratio(0.1, direction)
    assert found is not None
    unseen, _ = found
    points = np.arange(len(unseen.chances), dtype=np.longdouble) + unseen.lowest
    mean = float((points * np.longdouble(unseen.interval) * unseen.chances).sum() - 1)
    cut = 2e-16  # of tails beyond 8.3 deviations, and their size
    assert mean > 1e-15 if direction == "removed" else mean < -1e-15 - cut


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_not_on_the_grid_is_counted(direction, monkeypatch):
    """Ratios beyond three deviations, a chance of 0.003 for each step, cost so much."""
    monkeypatch.setattr(module, "REACHES", (3.0,))
    for sigma in (1.0, 2.0):
        found = epoch_losses(sigma, 2, direction, INTERVAL)
        slow = np.array([two_steps(sigma, direction, eps) for eps in EPSILONS])
        assert np.all(found.deltas(EPSILONS) >= slow)
    # of removed rows the one that is used may be beyond, of added ones both (the grid
    # begins up to a cell before three deviations)
    least = norm.sf(3) if direction == "removed" else 2 * norm.sf(3.1)
    assert least <= found.infinite <= 1.1 * 2 * norm.sf(3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_the_rounding_of_cells_may_take_off_is_an_infinite_loss(
    direction, monkeypatch
):
    """Under the ratio's own weights each cell's part counts at its upper end."""
    exact = module.cells
    doubt = 1e-12  # of each cell, far above what rounding does

    def doubtful(*given):
        chances, errors = exact(*given)
        return chances, errors + doubt

    monkeypatch.setattr(module, "cells", doubtful)
    found = module.grid_of_ratio(1.0, direction)
    assert found is not None
    unseen, seen = found
    ends = unseen.lowest + np.arange(1, len(unseen.chances))
    assert unseen.infinite >= doubt * len(ends)
    assert seen.infinite >= doubt * float(ends.sum()) * seen.interval
    # a sum of chances may be off by some roundings of 1 besides
    monkeypatch.setattr(module, "cells", lambda *given: (exact(*given)[0], 0.0 * ends))
    monkeypatch.setattr(module, "mass_outside", lambda z: 0.0)
    assert min(part.infinite for part in module.grid_of_ratio(1.0, direction)) >= 2**-53


def test_a_ratio_of_zero_is_an_infinite_loss():
    """With much mass at 0 (little noise, wide cells) added rows have no logarithm."""
    found = epoch_losses(0.5, 2, "added", INTERVAL)
    unseen, _ = module.grid_of_ratio(2.0, "added") or (None, None)
    assert unseen is not None
    assert unseen.lowest == 0
    assert found.infinite >= unseen.chances[0] ** 2 > 0.1


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.floats(-3, 3), min_size=1, max_size=5), eps=st.floats(-3, 3))
def test_values_on_a_grid_lose_no_delta(values, eps):
    """At every epsilon, also below 0, and where a value is a point of the grid."""
    chances = np.full(len(values), 1 / len(values))
    grid = module.on_grid(np.array(values), chances, 0.0, 0.25)
    losses = (grid.lowest + np.arange(len(grid.chances))) * 0.25
    slow = sum(max(-math.expm1(eps - value), 0) for value in values) / len(values)
    quick = (grid.chances * np.maximum(-np.expm1(eps - losses), 0)).sum()
    assert slow <= quick + grid.infinite
    assert quick <= slow + 0.25  # one cell
    assert grid.chances.sum() == pytest.approx(1)
    kept = (grid.chances * np.exp(-losses)).sum()
    assert kept == pytest.approx(np.exp(-np.array(values)).mean())


def test_the_second_moment_of_an_epoch_is_exact():
    """E_Q R**2 = 1 + (e^(1/sigma**2) - 1)/t, the integrals of the pair."""
    for sigma, steps in ((1.0, 10), (2.0, 100)):
        found = epoch_losses(sigma, steps, "removed", INTERVAL)
        losses = (found.lowest + np.arange(len(found.chances))) * INTERVAL
        excess = float((found.chances * np.expm1(losses)).sum())
        exact = math.expm1(sigma**-2) / steps
        assert exact * (1 - 1e-6) <= excess <= exact * 1.002


def test_both_directions_are_charged():
    """At epsilon 0 they are equal; above it removing costs more, in all that was seen,
    and composed the two are kept apart.
    """
    removed, added = loss_distribution(epochs(1.0, 20, 3)) or ()
    at_zero = [float(losses.deltas(np.zeros(1))[0]) for losses in (removed, added)]
    assert at_zero[0] == pytest.approx(at_zero[1], rel=1e-3)
    of_each = [losses.epsilon(1e-5) for losses in (removed, added)]
    assert compose_epsilon(epochs(1.0, 20, 3), 1e-5) == max(of_each)
    assert of_each[0] != pytest.approx(of_each[1], rel=0.05)
    one = epoch_losses(1.0, 20, "added", INTERVAL).deltas(EPSILONS)
    other = epoch_losses(1.0, 20, "removed", INTERVAL).deltas(EPSILONS)
    assert np.all(one[2:] < 0.9 * other[2:])


def test_an_epoch_of_one_step_is_a_full_batch():
    assert compose_epsilon(epochs(2.0, 1, 5), 1e-5) == compose_epsilon(
        [GaussianEvent(2.0, count=5)], 1e-5
    )


@pytest.mark.parametrize("sigma, steps, count", [(1.0, 100, 5)])
def test_an_epoch_costs_about_what_poisson_batches_of_its_size_cost(
    sigma, steps, count
):
    """And far less than if the step of each row were known."""
    found = compose_epsilon(epochs(sigma, steps, count), 1e-5)
    poisson = compose_epsilon([GaussianEvent(sigma, 1 / steps, steps * count)], 1e-5)
    known = epsilon_from_mu(math.sqrt(count) / sigma, 1e-5)
    assert 0.9 * poisson < found < 1.02 * poisson
    assert found < 0.5 * known


@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_with_little_noise_an_epoch_costs_no_more_than_its_row_in_one_step(sigma):
    known = epsilon_from_mu(1 / sigma, 1e-5)
    assert compose_epsilon(epochs(sigma, 10), 1e-5) <= known
    # which is not far from the truth: some step gives the row away
    assert compose_epsilon(epochs(sigma, 10), 1e-5) > 0.5 * known


def test_a_part_of_an_epoch_costs_all_of_it():
    begun = [GaussianEvent(1.0, count=51, epoch_steps=50)]
    assert begun[0].epochs == 2
    assert compose_epsilon(begun, 1e-5) == compose_epsilon(epochs(1.0, 50, 2), 1e-5)


def test_what_no_accountant_knows_of_allocated_rows_is_refused():
    for order in (2.0, 2.5):
        with pytest.raises(ValueError, match="RDP cannot bound allocated rows"):
            rdp_curve(epochs(1.0, 10), [order])
    with pytest.raises(ValueError, match="relation zero_out or add_remove"):
        compose_epsilon(epochs(1.0, 10), 1e-5, "replace_one")
    with pytest.raises(ValueError, match="needs sampling_prob and rows_per_unit of 1"):
        GaussianEvent(1.0, epoch_steps=10, rows_per_unit=2)
    with pytest.raises(ValueError, match="needs sampling_prob and rows_per_unit of 1"):
        GaussianEvent(1.0, 0.5, epoch_steps=10)
    for steps in (0, 1.0, 2.5):
        with pytest.raises(ValueError, match="epoch_steps must be a Python int"):
            GaussianEvent(1.0, epoch_steps=steps)
