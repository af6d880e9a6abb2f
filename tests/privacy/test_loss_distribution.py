"""Privacy loss distributions against integrals, and what their rounding may lose."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dphead.privacy import loss_distribution as module
from dphead.privacy.accounting import RELATIONS, GaussianEvent, epsilon, epsilon_from_mu
from dphead.privacy.loss_distribution import loss_distribution


def hockey_stick(q, sigma, eps, upper, lower):
    """sup over sets of P - e^eps Q for P = (1-q)N(0) + qN(upper), Q = (1-q)N(0) + qN(lower), by integration."""

    def p(z, mean):
        return (1 - q) * norm.pdf(z, 0, sigma) + q * norm.pdf(z, mean, sigma)

    z = np.linspace(-14 * sigma - 1, 14 * sigma + 1, 100_001)
    return float(np.trapezoid(np.maximum(p(z, upper) - math.exp(eps) * p(z, lower), 0), z))


@pytest.mark.parametrize("q, sigma", [(0.1, 1.0), (0.5, 2.0), (0.01, 0.7)])
@pytest.mark.parametrize("relation", RELATIONS)
def test_one_poisson_release_against_its_integral(q, sigma, relation):
    pair = {"replace_one": [(1, -1)]}.get(relation, [(1, 0), (0, 1)])
    distribution = loss_distribution([GaussianEvent(sigma, q)], relation)
    for eps in (0.0, 0.1, 0.5, 1.0):
        slow = max(hockey_stick(q, sigma, eps, a, b) for a, b in pair)
        quick = distribution.get_delta_for_epsilon(eps)
        assert slow - 1e-9 <= quick <= slow * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("angle", [0.0, 0.7, 1.6, 2.5])
@pytest.mark.parametrize("length", [0.5, 1.0])
def test_replace_one_pair_dominates_rows_in_the_plane(angle, length):
    """The opposite rows are the worst two: a grid in two dimensions, q = 0.3, sigma = 1."""
    q, axis = 0.3, np.linspace(-9, 9, 1201)
    a, b = np.meshgrid(axis, axis)

    def density(x, y):
        return ((1 - q) * np.exp(-(a**2 + b**2) / 2) + q * np.exp(-((a - x) ** 2 + (b - y) ** 2) / 2)) / (2 * math.pi)

    for eps in (0.05, 0.3, 0.8):
        difference = density(1, 0) - math.exp(eps) * density(length * math.cos(angle), length * math.sin(angle))
        found = np.maximum(difference, 0).sum() * (axis[1] - axis[0]) ** 2
        assert found <= hockey_stick(q, 1.0, eps, 1, -1) + 1e-6


def test_full_batch_beside_poisson_is_not_doubled_under_replace_one():
    sampled = GaussianEvent(4.0, 1 - 1e-12, 9)  # all but full: the pair at distance 2 / 4 nine times
    mixed = epsilon([sampled, GaussianEvent(1.5)], 1e-5, "replace_one")
    assert mixed == pytest.approx(epsilon_from_mu(math.hypot(3 * 2 / 4, 1 / 1.5), 1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("unit", "rounding"),
    [
        (1, 1e-13 + 2 * 2e-15),
        (3, 1e-13 + 2 * (2e-15 + 0.3e-12 * 3 / 1.2345**3 + 1e-14 * (1 + (3 / 1.2345) ** 2))),
    ],
)
def test_the_rounding_of_a_loss_distribution_is_taken_off_delta(unit, rounding, monkeypatch):
    """What its Fourier transforms and bisections may lose (`loss_distribution`)."""
    asked = []

    class Distribution:
        def get_epsilon_for_delta(self, delta):
            asked.append(delta)
            return 1.0

    monkeypatch.setattr(module, "loss_distribution", lambda *_: Distribution())
    # a noise that no other test has, since results are kept
    events = [GaussianEvent(1.2345, 0.5, 2, unit)]
    assert epsilon(events, 1e-5, accountant="pld") == 1.0
    assert asked == [pytest.approx(1e-5 - rounding, rel=1e-15, abs=0)]
    module.pld_epsilon.cache_clear()


@pytest.mark.parametrize(
    ("n", "q", "sd", "relation", "truth"),
    [
        (14_000, 0.05, 2.1, "zero_out", 23.09059),
        (42_000, 0.01, 0.88, "zero_out", 26.73741),
        (260_000, 0.016, 5.9, "zero_out", 9.46297),
        (250_000, 0.42, 200.0, "replace_one", 15.10487),
    ],
)
def test_what_many_transforms_lose_is_taken_off_a_small_delta(n, q, sd, relation, truth):
    """truth: below the true epsilon, by a contour integral in long double; it was passed with a fixed rounding."""
    assert epsilon([GaussianEvent(sd, q, n)], 1e-10, relation, "pld") >= truth


def test_what_many_transforms_lose_is_taken_off_where_there_is_a_closed_form():
    """A sample at 1 - 2**-53 is nearly the full batch, whose epsilon is 9.72032 (by 1e-13 of delta)."""
    event = GaussianEvent(1247.219, 1 - 2**-53, 3_500_000)
    assert epsilon([event], 1e-9, accountant="pld") >= epsilon_from_mu(math.sqrt(event.count) / 1247.219, 1e-9 + 1e-13)


def test_a_delta_that_rounding_leaves_nothing_of_has_no_epsilon():
    assert epsilon([GaussianEvent(0.03, 0.3, 10_000, 3)], 1e-6) == math.inf
