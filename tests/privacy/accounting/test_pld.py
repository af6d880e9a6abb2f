"""Privacy loss distributions against sums in many digits, and what rounding may take
off.
"""

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import compute_self_convolve_bounds
from hypothesis import given
from hypothesis import strategies as st
from pairs import exact_delta, exact_excess, sampled_group, worst
from scipy.stats import binom, norm

from dphead.privacy.accounting import (
    RELATIONS,
    GaussianEvent,
    compose_epsilon,
    epsilon_from_mu,
)
from dphead.privacy.accounting import losses as losses_module
from dphead.privacy.accounting import pld as module
from dphead.privacy.accounting.losses import (
    Losses,
    composed,
    self_composed,
    self_composed_ends,
)
from dphead.privacy.accounting.pld import loss_distribution

UNIT = 2.0**-53


def hockey_stick(q, sigma, eps, upper, lower):
    """sup over sets of P - e^eps Q for P = (1-q)N(0) + qN(upper), Q = (1-q)N(0) +
    qN(lower), by integration.
    """

    def p(z, mean):
        return (1 - q) * norm.pdf(z, 0, sigma) + q * norm.pdf(z, mean, sigma)

    z = np.linspace(-14 * sigma - 1, 14 * sigma + 1, 100_001)
    return float(
        np.trapezoid(np.maximum(p(z, upper) - math.exp(eps) * p(z, lower), 0), z)
    )


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
def test_replace_one_pair_dominates_rows_in_the_plane(angle):
    """The opposite rows are the worst two: a grid in two dimensions, q = 0.3, sigma =
    1.
    """
    q = 0.3
    axis = np.linspace(-9, 9, 801)
    a, b = np.meshgrid(axis, axis)

    def density(x, y):
        return (
            (1 - q) * np.exp(-(a**2 + b**2) / 2)
            + q * np.exp(-((a - x) ** 2 + (b - y) ** 2) / 2)
        ) / (2 * math.pi)

    for eps in (0.05, 0.8):
        other = density(math.cos(angle), math.sin(angle))
        difference = density(1, 0) - math.exp(eps) * other
        found = np.maximum(difference, 0).sum() * (axis[1] - axis[0]) ** 2
        assert found <= hockey_stick(q, 1.0, eps, 1, -1) + 1e-6


def test_full_batch_beside_poisson_is_not_doubled_under_replace_one():
    # all but full: the pair at distance 2 / 4 nine times
    sampled = GaussianEvent(4.0, 1 - 1e-12, 9)
    mixed = compose_epsilon([sampled, GaussianEvent(1.5)], 1e-5, "replace_one")
    assert mixed == pytest.approx(
        epsilon_from_mu(math.hypot(3 * 2 / 4, 1 / 1.5), 1e-5), rel=1e-3
    )


CORNERS = [  # probability, noise
    (0.1, 1.0),
    (1e-12, 0.7),
    (1e-3, 0.05),
    (0.5, 1e4),
    (1 - 2.0**-53, 3.0),
    (1 - math.exp(-0.1) * (1 - 1e-11), 0.1),  # the extreme loss all but on the grid
    (0.999, 0.12),
    (3e-17, 5.0),  # losses that are flat to rounding
    (1e-20, 1.0),
]


def missed(q):
    with mpmath.workdps(60):
        return 1 - mpmath.mpf(q)


PAIRS = {  # of a row that is sampled with probability q
    "removed": lambda q: ([(missed(q), 0), (q, 1)], [(1, 0)]),
    "added": lambda q: ([(1, 0)], [(missed(q), 0), (q, 1)]),
    "replaced": lambda q: ([(missed(q), 0), (q, 1)], [(missed(q), 0), (q, -1)]),
}


def quick_excess(upper, lower, asked):
    """`excess_of` as `connect_dots` asks for it, and the ends of the grid."""
    nodes, losses = module.quadrature_nodes(upper, lower)
    below = module.excess_of(asked[asked < 0], upper, lower, nodes, losses, -1)
    above = module.excess_of(asked[asked >= 0], upper, lower, nodes, losses, 1)
    return np.concatenate([below, above]), losses[0], losses[-1]


@pytest.mark.parametrize("q, sigma", CORNERS)
@pytest.mark.parametrize("direction", list(PAIRS))
def test_delta_of_one_sample_is_not_below_the_truth(q, sigma, direction):
    """Beside 60 digits; above it by 600 units in the last place, times 1 + the largest
    loss, at most.

    20 units a logarithm of a probability are for the weights. Below the grid delta is
    above the truth by at most the distance.
    """
    size = min(30.0, 4 / sigma + 0.5 / sigma**2)
    extreme = -math.log1p(-q)
    asked = [
        -size,
        -extreme * (1 + 1e-9),
        -0.1,
        -1e-4,
        0.0,
        1e-4,
        0.1,
        extreme * (1 - 1e-9),
        size / 3,
        size,
    ]
    asked = np.array(sorted(e for e in asked if abs(e) <= size))
    found, least, most = quick_excess(
        *module.sample_pair(GaussianEvent(sigma, q), direction), asked
    )
    upper, lower = PAIRS[direction](q)
    slack = (
        3
        * UNIT
        * (200 * (1 + max(-least, most)) + 20 * (1 - math.log(q) - math.log1p(-q)))
    )
    for eps, delta in zip(asked, found, strict=True):
        exact = exact_excess(upper, lower, sigma, eps)
        assert exact <= delta <= exact + slack + max(least - eps, 0)


@pytest.mark.parametrize(
    "sigma, q, k",
    [
        (0.1, 0.2, 2),
        (0.03, 0.3, 3),
        (1.0, 1e-9, 2),
        (3.0, 1e-4, 1000),  # of 1,001 numbers of rows ten are kept
        (20.0, 0.9, 60),  # and here the larger ones
    ],
)
@pytest.mark.parametrize("direction", ["removed", "added"])
def test_delta_of_a_group_is_not_below_the_truth(sigma, q, k, direction):
    """Beside 60 digits, also where the group is hardly ever missed, or hardly ever
    sampled.
    """
    mixture = sampled_group(q, k)
    upper, lower = (
        (mixture, [(1, 0)]) if direction == "removed" else ([(1, 0)], mixture)
    )
    asked = np.array([-1.0, 0.0, 1e-3, 0.3, 2.0, 5.0])
    pair = module.sample_pair(GaussianEvent(sigma, q, 1, k), direction)
    found, least, most = quick_excess(*pair, asked)
    slack = (
        3
        * UNIT
        * (200 * (1 + max(-least, most)) + 16 * k * (1 - math.log(q) - math.log1p(-q)))
    )
    for eps, delta in zip(asked, found, strict=True):
        exact = exact_excess(upper, lower, sigma, eps)
        assert exact <= delta <= exact + slack + max(least - eps, 0)


@pytest.mark.parametrize(
    "q, k, sigma", [(0.1, 20, 0.3), (0.9, 20, 20.0), (1e-3, 300, 0.3)]
)
@pytest.mark.parametrize("least", [-3.0, -8.0])
def test_numbers_of_rows_that_are_left_out_are_counted(q, k, sigma, least, monkeypatch):
    """Also where a twentieth of the mixture is left out: it shows in delta. 1e-12 is
    for rounding of SciPy's chances.
    """
    monkeypatch.setattr(module, "LEAST_LOG_WEIGHT", least)
    event = GaussianEvent(sigma, q, 1, k)
    mixture = module.sample_pair(event, "removed")[0]
    kept = mixture.means.astype(int)
    missing = 1 - binom.pmf(kept, k, q).sum()
    assert missing > 1e-7
    assert missing - 1e-12 <= mixture.missing <= 8 * missing
    every = np.arange(k + 1)
    logs = binom.logpmf(every, k, q)
    plain = module.one_normal(0.0, sigma)
    asked = np.array([-2.0, 0.0, 0.1, 1.0, 30.0, 100.0])
    for pair, slow in (
        ((mixture, plain), (module.Mixture(logs, every, sigma), plain)),
        (
            module.sample_pair(event, "added"),
            (plain, module.Mixture(logs, -every, sigma)),
        ),
    ):
        cut = quick_excess(*pair, asked)[0]
        assert np.all(cut >= quick_excess(*slow, asked)[0] - 1e-12)


@pytest.mark.parametrize("direction", ["removed", "added"])
def test_losses_beyond_the_grid_become_infinite(direction, monkeypatch):
    """A grid that ends at the first hundredth of each tail is no less sound."""
    event = GaussianEvent(1.0, 0.1, 1, 5)
    exact = connected(event, 1e-2, direction)
    monkeypatch.setattr(module, "LEAST_LOG_TAIL", math.log(0.01))
    ends = connected(event, 1e-2, direction)
    assert len(ends.chances) < 0.9 * len(exact.chances)
    for eps in (-1.0, -0.3, 0.0, 0.2, 1.0, 3.0):
        # and above by the chord of one cell, at most
        assert slow_delta(ends, eps) >= slow_delta(exact, eps) * (1 - 1e-5)


@pytest.mark.parametrize("direction", list(PAIRS))
def test_a_loss_that_is_found_badly_costs_delta(direction, monkeypatch):
    """Without Newton's steps, and with forty nodes, delta is too large and never too
    small.
    """
    monkeypatch.setattr(module, "NEWTON_STEPS", 0)
    monkeypatch.setattr(module, "LOOKUP_POINTS", 40)
    asked = np.linspace(-0.1, 3.0, 17)
    found, _, _ = quick_excess(
        *module.sample_pair(GaussianEvent(1.0, 0.3), direction), asked
    )
    upper, lower = PAIRS[direction](0.3)
    assert all(
        delta >= exact_excess(upper, lower, 1.0, eps)
        for eps, delta in zip(asked, found, strict=True)
    )


def connected(event, interval, direction="removed"):
    return module.connect_dots(*module.sample_pair(event, direction), interval)


def slow_delta(losses, eps):
    """The definition, in 40 digits: infinite + sum of chance * (1 - exp(eps - loss))
    over losses above eps.
    """
    with mpmath.workdps(40):
        steps = enumerate(losses.chances, losses.lowest)
        points = (
            (mpmath.mpf(losses.interval) * k, mpmath.mpf(max(p, 0.0))) for k, p in steps
        )
        eps = mpmath.mpf(eps)
        return losses.infinite + mpmath.fsum(
            p * (1 - mpmath.exp(eps - at)) for at, p in points if at > eps
        )


@pytest.mark.parametrize("q, sigma", [(0.1, 1.0), (0.9, 0.4), (1e-3, 3.0)])
@pytest.mark.parametrize("direction", list(PAIRS))
def test_dots_are_connected_from_above(q, sigma, direction):
    """On the grid and between its points; above the truth by the grid alone: a share of
    2 % here.
    """
    one = connected(GaussianEvent(sigma, q), 0.01, direction)
    upper, lower = PAIRS[direction](q)
    for eps in (-0.5, -0.015, -0.01, 0.0, 0.01, 0.015, 0.02, 0.5, 1.005, 1.01):
        exact = exact_delta(upper, lower, sigma, eps)
        assert exact <= slow_delta(one, eps) <= exact * 1.02 + 1e-12


@given(
    st.lists(st.floats(-1e-3, 1), min_size=1, max_size=12),
    st.sampled_from([-8, -1, 0, 3, 45_000, 800_000]),
    st.floats(0, 0.3),
    st.sampled_from([0.25, 0.1, 1e-4]),
    st.floats(0, 3),
    st.floats(1e-3, 0.999),
)
def test_delta_and_epsilon_of_a_grid_are_its_definition(
    weights, lowest, infinite, interval, eps, delta
):
    """Above it by rounding only: sums in long double, and one rounding to float.

    A loss of 11,356 is the last whose exponential is a long double; 200,000 is far
    above it. What rounding makes of a chance below 0 counts as 0.
    """
    eps = max(0.0, eps + lowest * interval)
    chances = np.array(weights) * (1 - infinite) / max(sum(weights), 1.0)
    losses = Losses(lowest, chances, infinite, interval)
    found = float(losses.deltas(np.array([eps]))[0])
    slow = slow_delta(losses, eps)
    assert slow <= found <= slow + 2e-13  # 4 units of a long double, times 200,000
    least = losses.epsilon(delta)
    if least == math.inf:
        assert infinite * (1 + 1e-14) >= delta
        return
    assert slow_delta(losses, least) <= delta
    # a little less is not enough: by what 8 units in the last place of delta are in
    # epsilon
    lower = least * (1 - 1e-12) - 1e-9
    assert lower < 0 or slow_delta(losses, lower) > delta * (1 - 1e-13)


@pytest.mark.parametrize("interval", [0.1, 1e-4, 0.37])
def test_an_epsilon_at_a_point_of_the_grid_is_not_rounded_below_it(interval):
    """There the point's chance would count."""
    for lowest in range(1_000_000, 1_000_040):
        delta = 0.1 * (1 + 6 * UNIT)
        losses = Losses(lowest, np.array([0.3]), 0.1, interval)
        assert slow_delta(losses, losses.epsilon(delta)) <= delta


def composed_slowly(parts):
    """All sums of losses, in fractions."""
    total = {0: Fraction(1)}
    for part in parts:
        after = {}
        for at, chance in total.items():
            for k, p in enumerate(part.chances, part.lowest):
                after[at + k] = after.get(at + k, Fraction(0)) + chance * Fraction(
                    float(p)
                )
        total = after
    return total


def grid_delta(total, infinite, interval, eps):
    with mpmath.workdps(40):
        each = (
            mpmath.mpf(p.numerator)
            / p.denominator
            * (1 - mpmath.exp(eps - k * interval))
            for k, p in total.items()
            if k * interval > eps
        )
        return mpmath.fsum(each) + infinite


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_composition_is_not_below_all_its_sums(count):
    one = connected(GaussianEvent(0.8, 0.3), 0.25)
    other = connected(GaussianEvent(2.0, 0.5), 0.25)
    many = self_composed(one, count)
    both = composed(many, other)
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
    """At least (8 log2(size) + 16) units in the last place each, times what a size of
    one spreads to.
    """
    one = connected(GaussianEvent(4.0, 0.1), 1e-3)
    for count in (100, 10_000):
        many = self_composed(one, count)
        known = count * one.infinite + 1e-15
        size = len(many.chances)
        spread = math.sqrt(size) * float(np.linalg.norm(many.chances))
        assert spread > 1
        assert (
            many.infinite - known
            >= 0.9 * count * (8 * math.log2(size) + 16) * UNIT * spread
        )


@pytest.mark.parametrize("eps", [-3.0, -0.2, 0.0, 0.2, 3.0])
@pytest.mark.parametrize("direction", list(PAIRS))
def test_what_one_release_may_lose_is_added(direction, eps):
    """At least 50 units of what is subtracted, times 1 + the largest loss; 100 are
    added, one or two may be lost.
    """
    q, sigma = 0.2, 0.1
    pair = module.sample_pair(GaussianEvent(sigma, q), direction)
    found, least, most = quick_excess(*pair, np.array([eps]))
    upper, lower = PAIRS[direction](q)
    assert (
        found[0] - exact_excess(upper, lower, sigma, eps)
        >= 50 * UNIT * (1 + max(-least, most)) * found[0]
        > 0
    )


def test_what_weights_may_lose_is_added():
    pair = module.sample_pair(GaussianEvent(1.0, 0.3), "removed")
    wrong = replace(pair[0], error=1e-9)
    asked = np.array([-0.3, -0.1, 0.0, 0.5])
    found = quick_excess(*pair, asked)[0]
    other = quick_excess(wrong, pair[1], asked)[0]
    assert np.all(other - found >= 1e-9 * found)
    assert np.all(found > 0)


def test_the_ends_and_both_transforms_are_counted(monkeypatch):
    one = replace(connected(GaussianEvent(4.0, 0.1), 1e-3), infinite=0.0)
    monkeypatch.setattr("dphead.privacy.accounting.losses.TAIL_MASS", 1e-9)
    assert self_composed(one, 2).infinite >= 1e-9
    monkeypatch.undo()
    two = self_composed(one, 2)
    other = connected(GaussianEvent(2.0, 0.2), 1e-3)
    size = len(two.chances)
    norm = float(np.linalg.norm(two.chances))
    transform = 8 * UNIT * math.log2(size)
    lost = 2 * (transform + 16 * UNIT) * math.sqrt(norm) + transform * norm
    assert two.infinite >= 1e-15 + 0.999 * math.sqrt(size) * lost
    both = composed(one, other)
    size = len(one.chances) + len(other.chances) - 1
    norms = sum(float(np.linalg.norm(losses.chances)) for losses in (one, other, both))
    assert (
        both.infinite
        >= other.infinite + 0.999 * math.sqrt(size) * 8 * UNIT * math.log2(size) * norms
    )


@pytest.mark.parametrize("count", [2, 100, 5000])
@pytest.mark.parametrize("sigma", [0.5, 4.0])
def test_the_ends_of_a_composition_are_those_of_dp_accounting(sigma, count):
    chances = connected(GaussianEvent(sigma, 0.1), 1e-3).chances
    signed = np.outer([-20, -13, -8, -5, -3, -2, -1, 1, 2, 3, 5, 8, 13, 20], [1.0, 1.0])
    orders = (signed * [1.0, count**-0.5] / len(chances)).ravel()
    # on logarithms, with SciPy
    wanted = compute_self_convolve_bounds(chances, count, 1e-15, orders)
    assert self_composed_ends(chances, count) == wanted


def test_the_ends_of_no_chances_are_those_of_the_array():
    assert self_composed_ends(np.zeros(5), 3) == (0, 12)


def test_what_connecting_dots_may_lose_becomes_an_infinite_loss_of_each():
    one = connected(GaussianEvent(2.0, 0.2), 1e-3)
    assert one.infinite >= 40 * UNIT
    assert self_composed(one, 50).infinite >= 49 * one.infinite


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_is_that_of_dp_accounting_but_for_rounding(relation):
    """Which rounds down by at most 1e-13 here, and we up by 5e-14 a release: of a delta
    of 1e-6.
    """
    event = GaussianEvent(1.3, 0.02, 400)
    neighbors = "REPLACE_ONE" if relation == "replace_one" else "REPLACE_SPECIAL"
    theirs = pld.from_gaussian_mechanism(
        1.3, sampling_prob=0.02, neighboring_relation=pld.NeighborRel[neighbors]
    )
    theirs = theirs.self_compose(400).get_epsilon_for_delta(1e-6)
    assert (
        theirs * (1 - 1e-9)
        <= compose_epsilon([event], 1e-6, relation, "pld")
        <= theirs * (1 + 1e-4)
    )


@pytest.mark.parametrize(
    "n, q, sd, relation, truth",
    [
        (14_000, 0.05, 2.1, "zero_out", 23.09059),
        (42_000, 0.01, 0.88, "zero_out", 26.73741),
        (260_000, 0.016, 5.9, "zero_out", 9.46297),
        (250_000, 0.42, 200.0, "replace_one", 15.10487),
    ],
)
def test_what_many_transforms_lose_of_a_small_delta(n, q, sd, relation, truth):
    """truth: below the true epsilon, by a contour integral in long double;
    dp_accounting is below it.

    Nothing is left of delta, so `auto` is that of RDP, which replace_one has not.
    """
    event = [GaussianEvent(sd, q, n)]
    assert compose_epsilon(event, 1e-10, relation, "pld") == math.inf
    assert (
        truth
        <= compose_epsilon(event, 1e-10, relation)
        <= (math.inf if relation == "replace_one" else 1.2 * truth)
    )


def test_a_sample_of_all_rows_is_the_full_batch():
    """A sample at 1 - 2**-53 is nearly the full batch, which has a closed form."""
    event = GaussianEvent(1247.219, 1 - 2**-53, 3_500_000)
    exact = epsilon_from_mu(math.sqrt(event.count) / 1247.219, 1e-5)
    assert exact <= compose_epsilon([event], 1e-5, accountant="pld") <= exact * 1.01


def test_a_mass_above_one_is_counted():
    """As measures: what is infinite is the whole mass of a composition less that of
    finite losses.
    """
    one = Losses(0, np.array([0.6, 0.6]), 0.1, 1.0)
    other = Losses(0, np.array([0.9]), 0.2, 1.0)
    assert one.mass == pytest.approx(1.3)
    assert self_composed(one, 3).infinite == pytest.approx(1.3**3 - 1.2**3)
    assert (
        1.3 * 1.1 - 1.2 * 0.9
        <= composed(one, other).infinite
        <= 0.1 * 1.1 + 0.2 * 1.3 + 1e-12
    )


@pytest.mark.parametrize(
    "event, delta, least, most",
    [
        (GaussianEvent(0.1, 1e-3, 1, 64), 1e-6, 508.0, 520.0),
        (GaussianEvent(0.1, 1e-9, 10**6), 1e-4, 41.1, 42.0),
        # losses below 1e-4: rdp has 0.0116, dp_accounting 0.00964 with a grid of 1e-6
        (GaussianEvent(8.0, 1e-4, 10**5), 1e-5, 0.0096, 0.0098),
        (GaussianEvent(1e200), 1e-5, 0.0, 0.0),
        (GaussianEvent(1000.0, 1e-3, 10**5), 1e-5, 0.0004, 0.00058),  # rdp has 0.00059
    ],
)
def test_rare_and_large_losses_have_an_epsilon(event, delta, least, most):
    """least and most: of 60 digits for one release, else of dp_accounting with a grid
    of 1e-4, and some per cent.
    """
    assert least <= compose_epsilon([event], delta, accountant="pld") <= most


@pytest.mark.parametrize(
    "event", [GaussianEvent(10.0, 1e-3, 10**5), GaussianEvent(1.0, 0.01, 1000)]
)
def test_a_small_delta_takes_the_less_of_both_accountants(event):
    """What rounding may lose takes all of delta in one case, most of it in the
    other.
    """
    lost = max(losses.infinite for losses in loss_distribution([event]))
    for delta in (0.9 * lost, 1.001 * lost):
        found = {
            name: compose_epsilon([event], delta, accountant=name)
            for name in ("auto", "pld", "rdp")
        }
        assert (found["pld"] == math.inf) == (delta < lost)
        assert found["auto"] == found["rdp"] < found["pld"]


@pytest.mark.parametrize(
    "events",
    [
        # nothing finite is left
        [GaussianEvent(1e8, 1e-12, 10**15), GaussianEvent(5.0)],
        [GaussianEvent(1e8, 1e-12, 2 * 10**17)],
        [GaussianEvent(1.0, 1e-9, 10**15)],  # 10**9 points
        [GaussianEvent(5e-324, 0.5, 1, 2)],  # half of it is no number
    ],
)
def test_what_no_grid_can_hold_is_infinite(events):
    assert compose_epsilon(events, 1e-5, accountant="pld") == math.inf


def test_very_large_groups_in_samples_are_refused():
    with pytest.raises(ValueError, match="must be at most 10000, got 10001"):
        compose_epsilon([GaussianEvent(100.0, 0.1, 1, 10_001)], 1e-5)


@pytest.mark.parametrize("coarser", [0.0, -1.0, math.nan, 1e7])
def test_a_grid_that_would_not_do_is_refused(coarser):
    with pytest.raises(ValueError, match="coarser must be 1 to 100, got "):
        loss_distribution([GaussianEvent(1.0, 0.1)], coarser=coarser)


def test_a_delta_that_rounding_leaves_nothing_of_has_no_epsilon():
    assert compose_epsilon([GaussianEvent(0.03, 0.3, 10_000, 3)], 1e-6) == math.inf


@pytest.mark.parametrize("mu", [1e-6, 0.3, 5.0])
def test_delta_of_full_batches_is_not_below_the_truth(mu):
    asked = np.array([-2.0, -1e-4, 0.0, 1e-4, 1.0, 20.0]) * min(mu, 1)
    found, least, most = quick_excess(*module.full_pair(mu), asked)
    for eps, delta in zip(asked, found, strict=True):
        exact = exact_excess([(1, 1)], [(1, 0)], 1 / mu, eps)
        assert (
            exact
            <= delta
            <= exact + 600 * UNIT * (1 + max(-least, most)) + max(least - eps, 0)
        )


@pytest.mark.parametrize("q, k", [(0.5, 1000), (1e-4, 10_000), (0.999, 50)])
def test_the_rounding_of_a_groups_weights_is_known(q, k):
    """Beside 60 digits. At least 9 units of the logarithms' sizes are claimed: 5 for
    the weights, 4 for the exponents added to them.
    """
    mixture = module.sampled_mixture(GaussianEvent(50.0, q, 1, k), 50.0, 1.0)
    largest = 0.0
    with mpmath.workdps(60):
        p = mpmath.mpf(q)
        for log_weight, j in zip(mixture.log_weights, mixture.means, strict=True):
            ways = mpmath.log(mpmath.binomial(k, int(j)))
            rows = int(j) * mpmath.log(p)
            others = (k - int(j)) * mpmath.log(1 - p)
            assert abs(ways + rows + others - float(log_weight)) <= mixture.error / 2
            largest = max(largest, float(ways - rows - others))
    assert mixture.error >= 9 * UNIT * largest


def test_sums_of_many_chances_are_not_below_the_definition():
    rng = np.random.default_rng(0)
    losses = Losses(-100, rng.random(1000) / 1000, 0.0, 0.01)
    asked = rng.uniform(0, 8, 20)
    for eps, found in zip(asked, losses.deltas(asked), strict=True):
        slow = slow_delta(losses, eps)
        assert slow <= found <= slow * (1 + 1e-13)
    above = losses._all_tails[1][0]
    # a long double is two floats
    parts = Fraction(float(above)) + Fraction(float(above - float(above)))
    assert parts > sum(map(Fraction, losses.chances[101:])) * (1 + Fraction(1, 2**60))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("points", [0, 2**18])
def test_losses_that_are_left_out_change_no_epsilon(delta, points, monkeypatch):
    """Not one bit: scipy's filter and the loop do the same operations in this order."""
    losses = loss_distribution([GaussianEvent(2.0, 0.1, 300)], coarser=20)
    cut = [one.epsilon(delta) for one in losses]
    whole = Losses._tails
    kept, of = (sum(len(whole(one, d)[0]) for one in losses) for d in (delta, math.inf))
    assert kept < 0.9 * of
    monkeypatch.setattr(Losses, "_tails", lambda self, delta: whole(self, math.inf))
    monkeypatch.setattr(losses_module, "LOOP_POINTS", points)
    assert [one.epsilon(delta) for one in losses] == cut


EVENTS = [
    (GaussianEvent(1.0, 0.1, 50), GaussianEvent(3.0)),
    (GaussianEvent(4.0, 0.05, 200, 5),),
    (GaussianEvent(1.0, count=150, epoch_steps=50),),
    (GaussianEvent(3.0, 1 - 1e-9, 20),),  # equal but for rounding
]


@pytest.mark.parametrize("events", EVENTS)
def test_epsilon_is_the_larger_one_of_both_directions(events):
    slow = max(one.epsilon(1e-5) for one in loss_distribution(events, coarser=10))
    assert module.pld_epsilon(events, 1e-5, "zero_out", 10) == slow


@pytest.mark.parametrize("events", EVENTS)
def test_the_order_of_the_directions_changes_no_epsilon(events, monkeypatch):
    """With the other direction first, its finest grid decides."""
    found = module.pld_epsilon(events, 1e-5, "zero_out", 10)
    monkeypatch.setitem(module.DIRECTIONS, "zero_out", ("added", "removed"))
    module.pld_epsilon.cache_clear()
    assert module.pld_epsilon(events, 1e-5, "zero_out", 10) == found
    module.pld_epsilon.cache_clear()


def test_many_different_releases_lie_between_those_of_the_least_and_the_most_noise():
    """Composed one by one: what is cut off at the ends is counted."""
    events = [GaussianEvent(1 + i / 100, 0.01) for i in range(6)]
    least, most = (
        compose_epsilon([GaussianEvent(sd, 0.01, 6)], 1e-5) for sd in (1.05, 1.0)
    )
    assert least <= compose_epsilon(events, 1e-5) <= most
    assert max(len(part.chances) for part in loss_distribution(events)) < 400_000


@pytest.mark.parametrize("direction", list(PAIRS))
@pytest.mark.parametrize("q, sigma", [(1e-7, 0.3), (1e-9, 0.1), (0.3, 2.0)])
def test_rounding_makes_no_chances_of_nothing(q, sigma, direction):
    """All chances are 1 but for some units: not one for each point of the grid."""
    one = connected(GaussianEvent(sigma, q), 1e-3, direction)
    least = module.losses_between(
        *module.sample_pair(GaussianEvent(sigma, q), direction),
        np.array([-40.0, 40.0]),
    )[0]
    assert 1 <= one.mass <= 1 + 1000 * UNIT * (1 + np.abs(least).max())
