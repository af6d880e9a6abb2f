"""Privacy loss distributions against sums in many digits, and what rounding may take off."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dphead.privacy import loss_distribution as module
from dphead.privacy.accounting import RELATIONS, GaussianEvent, epsilon, epsilon_from_mu
from dphead.privacy.loss_distribution import Losses, loss_distribution

UNIT = 2.0**-53


def worst(distribution, eps):
    """Delta at eps: the larger of the two directions."""
    return max(float(losses.deltas(np.array([eps]))[0]) for losses in distribution)


def exact_delta(upper, lower, sigma, eps):
    """sup over sets of P - e^eps Q in 60 digits, for mixtures [(weight, mean)] whose ratio is monotone."""
    with mpmath.workdps(60):
        s, e = mpmath.mpf(sigma), mpmath.exp(mpmath.mpf(eps))

        def density(mixture, x):
            return mpmath.fsum(w * mpmath.npdf(x, m, s) for w, m in mixture)

        def beyond(mixture, x, side):
            return mpmath.fsum(w * mpmath.ncdf(side * (x - m) / s) for w, m in mixture)

        def gain(x):
            return density(upper, x) - e * density(lower, x)

        side = -1 if sum(w * m for w, m in upper) > sum(w * m for w, m in lower) else 1  # where P is the larger
        low, high = -mpmath.mpf(60) * (1 + s), mpmath.mpf(60) * (1 + s)
        if (gain(low) > 0) == (gain(high) > 0):
            return float(max(0, 1 - e)) if gain(low) > 0 else 0.0
        rising = gain(high) > 0
        for _ in range(220):
            middle = (low + high) / 2
            low, high = (low, middle) if (gain(middle) > 0) == rising else (middle, high)
        return float(beyond(upper, low, side) - e * beyond(lower, low, side))


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
        quick = worst(distribution, eps)
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


CORNERS = [  # probability, noise
    (0.1, 1.0),
    (1e-12, 0.7),
    (1e-3, 0.05),
    (0.5, 1e4),
    (1 - 2.0**-53, 3.0),
    (1 - math.exp(-0.1) * (1 - 1e-11), 0.1),  # the extreme loss all but on the grid
    (0.999, 0.12),
]


@pytest.mark.parametrize(("q", "sigma"), CORNERS)
@pytest.mark.parametrize("direction", [AdjacencyType.REMOVE, AdjacencyType.ADD, AdjacencyType.REPLACE])
def test_delta_of_one_sample_lacks_less_than_is_allowed(q, sigma, direction):
    """Beside 60 digits; `_connect_dots` adds 100 units in the last place, times 1 + the largest loss."""
    mixed, plain = [(1 - mpmath.mpf(q), 0), (q, 1)], [(1, 0)]
    pairs = {
        AdjacencyType.REMOVE: (mixed, plain),
        AdjacencyType.ADD: (plain, mixed),
        AdjacencyType.REPLACE: (mixed, [(1 - mpmath.mpf(q), 0), (q, -1)]),
    }
    size = min(30.0, 4 / sigma + 0.5 / sigma**2)
    extreme = -math.log1p(-q)
    asked = [-size, -extreme * (1 + 1e-9), -0.1, -1e-4, 0.0, 1e-4, 0.1, extreme * (1 - 1e-9), size / 3, size]
    asked = np.array(sorted(e for e in asked if abs(e) <= size))
    if direction == AdjacencyType.REPLACE:
        losses = module.GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=direction)
        found = np.asarray(losses.get_delta_for_epsilon(asked))
    else:
        found = module._row_deltas(asked, q, sigma, direction == AdjacencyType.ADD)
    upper, lower = pairs[direction]
    for eps, delta in zip(asked, found, strict=True):
        assert abs(delta - exact_delta(upper, lower, sigma, eps)) <= 100 * UNIT * (1 + size)


@pytest.mark.parametrize("mu", [1e-6, 0.3, 5.0])
def test_delta_of_full_batches_lacks_less_than_is_allowed(mu):
    asked = np.array([-2.0, -1e-4, 0.0, 1e-4, 1.0, 20.0])
    for eps, delta in zip(asked, module._gaussian_deltas(asked, mu), strict=True):
        assert abs(delta - exact_delta([(1, 1)], [(1, 0)], 1 / mu, eps)) <= 100 * UNIT * 21


def slow_delta(losses, eps):
    """The definition, in 40 digits: infinite + sum of chance * (1 - exp(eps - loss)) over losses above eps."""
    with mpmath.workdps(40):
        steps = enumerate(losses.chances, losses.lowest)
        points = ((mpmath.mpf(losses.interval) * k, mpmath.mpf(max(p, 0.0))) for k, p in steps)
        eps = mpmath.mpf(eps)
        return losses.infinite + mpmath.fsum(p * (1 - mpmath.exp(eps - at)) for at, p in points if at > eps)


@pytest.mark.parametrize(("q", "sigma"), [(0.1, 1.0), (0.9, 0.4), (1e-3, 3.0)])
@pytest.mark.parametrize("added", [False, True])
def test_dots_are_connected_from_above(q, sigma, added):
    """On the grid and between its points; above the truth by the grid alone: a share of 1e-3 here."""
    direction = AdjacencyType.ADD if added else AdjacencyType.REMOVE
    one = module._poisson_batch(GaussianEvent(sigma, q), direction, 0.01)
    mixed, plain = [(1 - mpmath.mpf(q), 0), (q, 1)], [(1, 0)]
    upper, lower = (plain, mixed) if added else (mixed, plain)
    for eps in (0.0, 0.01, 0.015, 0.02, 0.5, 1.005, 1.01):
        exact = exact_delta(upper, lower, sigma, eps)
        assert exact <= slow_delta(one, eps) <= exact * 1.02 + 1e-12


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.integers(-8, 4),
    st.floats(0, 0.3),
    st.floats(0, 3),
    st.floats(1e-3, 0.999),
)
def test_delta_and_epsilon_of_a_grid_are_its_definition(weights, lowest, infinite, eps, delta):
    """Above it by rounding only: sums in long double, and one rounding to float."""
    chances = np.array(weights) * (1 - infinite) / max(sum(weights), 1.0)
    losses = Losses(lowest, chances, infinite, 0.25)
    found, slow = float(losses.deltas(np.array([eps]))[0]), slow_delta(losses, eps)
    assert slow <= found <= slow * (1 + 1e-14) + 1e-15
    least = losses.epsilon(delta)
    if least == math.inf:
        assert infinite * (1 + 1e-14) >= delta
        return
    assert slow_delta(losses, least) <= delta
    # a little less is not enough: by what 8 units in the last place of delta are in epsilon
    lower = least - 1e-9
    assert lower < 0 or slow_delta(losses, lower) > delta * (1 - 1e-13)


def composed_slowly(parts):
    """All sums of losses, in fractions."""
    total = {0: Fraction(1)}
    for part in parts:
        after = {}
        for at, chance in total.items():
            for k, p in enumerate(part.chances, part.lowest):
                after[at + k] = after.get(at + k, Fraction(0)) + chance * Fraction(float(p))
        total = after
    return total


def grid_delta(total, infinite, interval, eps):
    with mpmath.workdps(40):
        each = (
            mpmath.mpf(p.numerator) / p.denominator * (1 - mpmath.exp(eps - k * interval))
            for k, p in total.items()
            if k * interval > eps
        )
        return mpmath.fsum(each) + infinite


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_composition_is_not_below_all_its_sums(count):
    one = module._poisson_batch(GaussianEvent(0.8, 0.3), AdjacencyType.REMOVE, 0.25)
    other = module._poisson_batch(GaussianEvent(2.0, 0.5), AdjacencyType.REMOVE, 0.25)
    many = module._self_composed(one, count)
    both = module._composed(many, other)
    lost = 1 - (1 - Fraction(one.infinite)) ** count
    total = composed_slowly([one] * count)
    for eps in (0.0, 0.3, 2.0, 4.0):
        exact = grid_delta(total, lost, 0.25, eps)
        assert exact <= slow_delta(many, eps) <= exact + 1e-11
    lost = 1 - (1 - lost) * (1 - Fraction(other.infinite))
    total = composed_slowly([one] * count + [other])
    for eps in (0.0, 0.3, 2.0, 4.0):
        exact = grid_delta(total, lost, 0.25, eps)
        assert exact <= slow_delta(both, eps) <= exact + 1e-11


def test_what_transforms_may_lose_grows_with_the_releases():
    """At least (8 log2(size) + 16) units in the last place each, times what a size of one spreads to."""
    one = module._poisson_batch(GaussianEvent(4.0, 0.1), AdjacencyType.REMOVE, 1e-3)
    for count in (100, 10_000):
        many = module._self_composed(one, count)
        known = count * one.infinite + 1e-15
        size = len(many.chances)
        spread = math.sqrt(size) * float(np.linalg.norm(many.chances))
        assert spread > 1
        assert many.infinite - known >= 0.9 * count * (8 * math.log2(size) + 16) * UNIT * spread


def test_what_a_mixture_may_lose_becomes_an_infinite_loss_of_each_release():
    sigma, k = 0.1, 3
    lost = 0.3e-12 * k / sigma**3 + 1e-14 * (1 + (k / sigma) ** 2)
    for direction in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        one = module._poisson_batch(GaussianEvent(sigma, 0.2, 1, k), direction, 1.0)
        assert one.infinite >= lost
        assert module._self_composed(one, 50).infinite >= 49 * lost


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_is_that_of_dp_accounting_but_for_rounding(relation):
    """Which rounds down by at most 1e-13 here, and we up by 5e-14 a release: of a delta of 1e-6."""
    event = GaussianEvent(1.3, 0.02, 400)
    neighbours = "REPLACE_ONE" if relation == "replace_one" else "REPLACE_SPECIAL"
    theirs = pld.from_gaussian_mechanism(1.3, sampling_prob=0.02, neighboring_relation=pld.NeighborRel[neighbours])
    theirs = theirs.self_compose(400).get_epsilon_for_delta(1e-6)
    assert theirs * (1 - 1e-9) <= epsilon([event], 1e-6, relation, "pld") <= theirs * (1 + 1e-4)


@pytest.mark.parametrize(
    ("n", "q", "sd", "relation", "truth"),
    [
        (14_000, 0.05, 2.1, "zero_out", 23.09059),
        (42_000, 0.01, 0.88, "zero_out", 26.73741),
        (260_000, 0.016, 5.9, "zero_out", 9.46297),
        (250_000, 0.42, 200.0, "replace_one", 15.10487),
    ],
)
def test_what_many_transforms_lose_of_a_small_delta(n, q, sd, relation, truth):
    """truth: below the true epsilon, by a contour integral in long double; dp_accounting is below it.

    Nothing is left of delta, so `auto` is that of RDP, which replace_one has not.
    """
    event = [GaussianEvent(sd, q, n)]
    assert epsilon(event, 1e-10, relation, "pld") == math.inf
    assert truth <= epsilon(event, 1e-10, relation) <= (math.inf if relation == "replace_one" else 1.2 * truth)


def test_a_sample_of_all_rows_is_the_full_batch():
    """A sample at 1 - 2**-53 is nearly the full batch, which has a closed form."""
    event = GaussianEvent(1247.219, 1 - 2**-53, 3_500_000)
    exact = epsilon_from_mu(math.sqrt(event.count) / 1247.219, 1e-5)
    assert exact <= epsilon([event], 1e-5, accountant="pld") <= exact * 1.01


def test_a_delta_that_rounding_leaves_nothing_of_has_no_epsilon():
    assert epsilon([GaussianEvent(0.03, 0.3, 10_000, 3)], 1e-6) == math.inf
