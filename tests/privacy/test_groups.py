"""Groups of rows as the protected unit: the cap, how far a group moves a sum, the
accountants, the ledger.
"""

import json
import math

import numpy as np
import pytest
from core import NAMES, STATISTICS, D, M, largest_move, reserve, run, spec_of, toy
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import exact_delta, sampled_group, worst
from scipy.stats import binom, norm

from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.fit.report import guarantee
from dphead.planning.plan import make_plan
from dphead.privacy.accounting import (
    RELATIONS,
    GaussianEvent,
    compose_epsilon,
    epsilon_from_mu,
    rdp_curve,
    rdp_epsilon,
    total_mu,
)
from dphead.privacy.accounting.pld import loss_distribution
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.noise import NoiseSource
from dphead.privacy.sampling import within_cap
from dphead.privacy.statistics import ClassSums
from dphead.solvers import LeastSquares, ProblemInfo

small_groups = st.lists(st.integers(-2, 6), max_size=40)


@given(small_groups, st.integers(1, 5))
def test_the_cap_keeps_the_first_rows_of_each_group(groups, cap):
    """Against the definition: count the earlier rows of the same group. -1 alone is a
    row on its own.
    """
    kept = within_cap(np.array(groups, np.int64), cap)
    slow = [g == -1 or groups[:i].count(g) < cap for i, g in enumerate(groups)]
    assert kept.tolist() == slow


@pytest.mark.parametrize("cap", [0, -1, 2.5, True])
def test_a_cap_that_is_not_a_whole_number_is_refused(cap):
    """2.5 would keep three rows of a group and charge two and a half."""
    facts = ProblemInfo(99, D, M)
    for make in (
        lambda: specs(cap),
        lambda: make_plan(
            LeastSquares(), facts, epsilon=1.0, delta=1e-5, group_cap=cap
        ),
    ):
        with pytest.raises(ValueError, match=r"whole number|Python int of at least 1"):
            make()


def test_a_cap_of_numpy_is_a_python_int_before_it_is_accounted():
    """NumPy's integers wrap around."""
    with pytest.raises(ValueError, match="Python int of at least 1"):
        specs(np.int64(2))
    given = {"epsilon": 1.0, "delta": 1e-5, "group_cap": np.int64(2)}
    plan = make_plan(LeastSquares(), ProblemInfo(99, D, M), **given)
    assert type(plan.specs[0].group_cap) is int and plan.specs[0].group_cap == 2


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
def test_a_whole_group_moves_a_sum_by_at_most_its_cap_times_the_sensitivity(
    statistic, relation
):
    """A group of 9 equal hostile rows, capped at 3, against none, or against another of
    3 rows or of one: and at least one statistic reaches the bound.
    """
    x, y = toy(60, seed=3)
    x[:9], y[:9] = 1e3 * np.eye(D)[0], 1
    groups = np.where(np.arange(60) < 9, 7, -1)
    bound = 9 * statistic.sensitivity_sq(relation, 1.0)
    largest = largest_move(statistic, relation, x, y, groups, group_cap=3)
    assert largest <= bound
    if isinstance(statistic, ClassSums):
        assert largest >= 0.99 * bound


@given(
    st.lists(st.tuples(st.floats(0.5, 50), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_a_group_of_full_batches_has_its_cap_times_the_mu_of_a_row(pairs, cap):
    """Dong, Roth, Su 2022, Theorem 6: exact for Gaussian mechanisms, under every
    relation and accountant.
    """
    rows = [GaussianEvent(s, 1.0, k) for s, k in pairs]
    groups = [GaussianEvent(s, 1.0, k, cap) for s, k in pairs]
    mu = total_mu(rows)
    assert mu is not None
    assert total_mu(groups) == pytest.approx(cap * mu)
    for relation in RELATIONS:
        assert compose_epsilon(groups, 1e-5, relation) == pytest.approx(
            epsilon_from_mu(cap * mu, 1e-5), rel=1e-9
        )
    assert rdp_curve(groups, [2.0])[0] == pytest.approx((cap * mu) ** 2)


def test_one_poisson_release_of_a_group_against_its_integral():
    """N(0) against the binomial mixture, both ways.

    PLD is above it, and by its grid of 1e-3 only. Rows of a group that point apart give
    less: two rows in the plane by Monte Carlo, whose standard error is below 4e-4; six
    of them (odds 1e-9) are allowed for.
    """
    sigma, q = 2.0, 0.2
    distribution = loss_distribution([GaussianEvent(sigma, q, 1, 2)])
    for eps in (0.05, 0.3, 0.8):
        exact = max(exact_group_delta(sigma, q, 2, eps))
        assert exact <= worst(distribution, eps) <= exact * (1 + 2e-3) + 1e-5
    z = sigma * np.random.default_rng(0).standard_normal((400_000, 2))
    for angle in (0.5, 1.5, 3.0):
        x = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
        sums = [
            (0 * x[0], (1 - q) ** 2),
            (x[0], q * (1 - q)),
            (x[1], q * (1 - q)),
            (x[0] + x[1], q * q),
        ]
        # mixture over N(0), under N(0)
        ratio = sum(w * np.exp((z @ c - c @ c / 2) / sigma**2) for c, w in sums)
        for eps in (0.1, 0.5):
            seen = max(
                np.maximum(ratio - math.exp(eps), 0).mean(),
                np.maximum(1 - math.exp(eps) * ratio, 0).mean(),
            )
            assert seen <= worst(distribution, eps) + 6 * 4e-4


def exact_group_delta(sigma, q, k, eps):
    """N(0) against the binomial mixture: (mixture first, N(0) first)."""
    group, plain = sampled_group(q, k), [(1, 0)]
    pairs = [(group, plain), (plain, group)]
    return [exact_delta(*pair, sigma, eps) for pair in pairs]


@pytest.mark.parametrize("off", [1e-9, 5e-6, 9e-6])
def test_the_extreme_loss_of_a_group_beside_a_grid_point_is_not_lost(off):
    """dp_accounting takes the point for the extreme loss (np.isclose), and delta there
    for zero.
    """
    sigma = 0.3
    k = 2
    width = 1e-2
    steps = 57
    q = -math.expm1(-steps * width * (1 + off) / k)
    _, added = loss_distribution([GaussianEvent(sigma, q, 1, k)], coarser=100)
    assert added.interval == width
    for point in (steps - 1, steps - 0.5, steps - 0.01, steps):
        exact = exact_group_delta(sigma, q, k, point * width)[1]
        assert float(added.deltas(np.array([point * width]))[0]) >= exact


@pytest.mark.parametrize(
    "sigma, q, k, delta",
    [
        (3.0, 1e-4, 1000, 1e-5),  # 0.192; 12.3 if all rows came or none
        (2.0, 1e-3, 64, 1e-6),
        (0.1, 1e-3, 64, 1e-6),
        (30.0, 1 - 1e-9, 50, 1e-5),
        (1.0, 1e-9, 1000, 1e-7),
    ],
)
def test_epsilon_of_one_release_of_a_group_is_within_one_percent(sigma, q, k, delta):
    """Closed form in 30 digits: delta holds at this epsilon, and not at 99 % of it."""
    found = compose_epsilon([GaussianEvent(sigma, q, 1, k)], delta)
    assert found > 0
    assert max(exact_group_delta(sigma, q, k, found)) <= delta
    assert max(exact_group_delta(sigma, q, k, 0.99 * found)) > delta


def test_each_direction_of_a_group_is_its_own():
    """One direction twice would be below the truth in the other, or far above it."""
    found = loss_distribution([GaussianEvent(1.0, 0.05, 1, 8)])
    for eps in (0.1, 0.3):
        exact = exact_group_delta(1.0, 0.05, 8, eps)
        assert exact[0] > 1.3 * exact[1] > 0
        for losses, delta in zip(found, exact, strict=True):
            quick = float(losses.deltas(np.array([eps]))[0])
            assert delta <= quick <= delta * (1 + 1e-5)


@pytest.mark.parametrize(
    "sigma, q, count, k", [(20.0, 0.05, 1000, 8), (3.0, 1e-4, 30, 1000)]
)
def test_groups_cost_what_dp_accounting_finds_for_the_mixture(sigma, q, count, k):
    """Its grid of 1e-3 makes it too large by half a percent at most here. Its weights
    are cut where what is beyond has a chance of 1e-17.
    """
    last = min(int(binom.isf(1e-17, k, q)) + 1, k)
    weights = binom.pmf(np.arange(last + 1), k, q)
    theirs = pld.from_mixture_gaussian_mechanism(
        sigma,
        list(range(last + 1)),
        list(weights / weights.sum()),
        value_discretization_interval=1e-3,
    )
    theirs = theirs.self_compose(count).get_epsilon_for_delta(1e-5)
    ours = compose_epsilon([GaussianEvent(sigma, q, count, k)], 1e-5)
    assert 0.995 * theirs <= ours <= 1.001 * theirs


@pytest.mark.parametrize(
    "sigma, q, count, k",
    [
        (1.0, 1e-9, 10**6, 10_000),
        (1e4, 1 - 1e-9, 100, 10_000),
        (0.3, 0.5, 1, 10_000),  # infinite: a loss above 1e6
    ],
)
def test_an_extreme_group_costs_more_than_a_row_and_no_more_than_all_rows(
    sigma, q, count, k
):
    """All of a group's rows in each batch cost the most. 1e-3 is for the grid."""
    found = compose_epsilon([GaussianEvent(sigma, q, count, k)], 1e-5)
    row = compose_epsilon([GaussianEvent(sigma, q, count)], 1e-5)
    every = compose_epsilon([GaussianEvent(sigma, 1.0, count, k)], 1e-5)
    assert row * (1 - 1e-3) <= found
    assert found <= every * (1 + 1e-3) or found == math.inf


def test_what_no_accountant_knows_of_groups_is_refused():
    event = [GaussianEvent(5.0, 0.05, 100, 2)]
    with pytest.raises(ValueError, match="needs a `--group-cap`"):
        compose_epsilon(event, 1e-5, "zero_out", "rdp")
    with pytest.raises(ValueError, match="relation zero_out or add_remove"):
        compose_epsilon(event, 1e-5, "replace_one")


# --- the ledger and the mechanism -----------------------------------------------------


def specs(cap, sigma=1.0):
    return [spec_of(ClassSums(M), 40, sigma=sigma, group_cap=cap)]


@pytest.mark.parametrize("pair", [(None, 2), (2, None), (None, 1), (1, None)])
def test_a_ledger_protects_one_unit(pair):
    """A group of one counted row is still a group: it is every row of a person."""
    ledger = Ledger()
    reserve(specs(pair[0]), ledger)
    with pytest.raises(LedgerError, match="as its first fit does"):
        reserve(specs(pair[1]), ledger)
    assert len(ledger.fits()) == 1
    assert json.loads(ledger.meta("group_cap")) == pair[0]


CAPS = [(1, 3.0), (4, 9.0), (2, 5.0)]  # caps and noise multipliers of three fits


@pytest.mark.parametrize("relation", ["zero_out", "add_remove"])
def test_fits_of_several_caps_tell_two_data_sets_apart_as_the_ledger_says(relation):
    """The definition: with or without one group of nine hostile rows, the distance of
    all sums of all fits, each over its own noise. Nothing else separates two Gaussians.
    """
    x, y = toy(60, seed=3)
    x[:9], y[:9] = 1e3 * np.eye(D)[0], 1
    groups = np.where(np.arange(60) < 9, 7, np.arange(60) + 100)
    ledger, moved = Ledger(), 0.0
    for cap, sigma in CAPS:
        spec = spec_of(ClassSums(M), 60, sigma=sigma, group_cap=cap, relation=relation)
        largest = largest_move(ClassSums(M), relation, x, y, groups, group_cap=cap)
        unit = ClassSums(M).sensitivity_sq(relation, 1.0)
        moved += largest / unit / sigma**2
        reserve([spec], ledger)
    mu = total_mu(ledger.events())
    # the integers of a row fall short of the bound by their rounding, 1 %
    assert 0.98 * mu**2 <= moved <= mu**2
    assert mu**2 == pytest.approx(sum((cap / sigma) ** 2 for cap, sigma in CAPS))
    assert ledger.spent(1e-5).epsilon == epsilon_from_mu(mu, 1e-5)


def test_poisson_batches_of_several_caps_count_by_their_own_pairs():
    """dp_accounting composes the two mixtures. Its grid makes it too large."""
    kinds = [(20.0, 0.05, 200, 8), (3.0, 0.01, 100, 1)]
    theirs = None
    for sigma, q, count, cap in kinds:
        one = pld.from_mixture_gaussian_mechanism(
            sigma,
            list(range(cap + 1)),
            list(binom.pmf(np.arange(cap + 1), cap, q)),
            value_discretization_interval=1e-3,
        ).self_compose(count)
        theirs = one if theirs is None else theirs.compose(one)
    ledger = Ledger()
    for sigma, q, count, cap in kinds:
        spec = spec_of(ClassSums(M), 40, sigma=sigma, sampling_prob=q, group_cap=cap)
        reserve([spec] * count, ledger)
    found = theirs.get_epsilon_for_delta(1e-5)
    assert 0.995 * found <= ledger.spent(1e-5).epsilon <= 1.001 * found


def test_a_budget_takes_fits_of_several_caps_and_random_batches_of_groups_once():
    """No divergence of order alpha is proved for random batches of groups."""
    delta = 1e-5
    full = Ledger()
    full.set_budget(epsilon_from_mu(1.0, delta), delta)
    # mu squared: 0.36 and 0.64
    reserve(specs(3, sigma=5.0), full)
    with pytest.raises(LedgerError, match="would exceed the budget"):
        reserve(specs(4, sigma=4.99), full)
    reserve(specs(4, sigma=5.0), full)
    mixed = Ledger()
    mixed.set_budget(5.0, delta)
    poisson = {"sampling_prob": 0.1}
    rows, pairs = (
        [spec_of(ClassSums(M), 40, sigma=9.0, group_cap=cap, **poisson)]
        for cap in (1, 2)
    )
    reserve(rows, mixed)
    reserve(specs(4, sigma=9.0), mixed)
    order = mixed.budget()["order"]
    curve = rdp_curve(mixed.events(), [order])
    assert curve[0] >= order * (4 / 9) ** 2 / 2
    assert mixed.spent(delta).epsilon == rdp_epsilon(order, curve[0], delta)
    with pytest.raises(LedgerError, match=r"Got the group cap 2\."):
        reserve(pairs, mixed)
    assert len(mixed.fits()) == 2


def test_releases_of_different_units_are_refused():
    replaced = spec_of(ClassSums(M), 40, relation="replace_one")
    for other in (specs(2)[0], replaced):
        with pytest.raises(LedgerError, match="and one group cap"):
            reserve([*specs(None), other])


def test_a_budget_counts_the_whole_group():
    """Budget: mu of one release at sigma = 3 for groups of 3, which is mu = 1."""
    ledger = Ledger()
    ledger.set_budget(epsilon_from_mu(1.0, 1e-5), 1e-5)
    with pytest.raises(LedgerError, match="would exceed the budget"):
        reserve(specs(3, sigma=2.99), ledger)
    reserve(specs(3, sigma=3.0), ledger)
    assert total_mu(ledger.events()) == pytest.approx(1.0)
    with pytest.raises(LedgerError, match="would exceed the budget"):
        reserve(specs(3, sigma=1e3), ledger)


@pytest.mark.parametrize("given, planned", [(None, 2), (2, None), (3, 2)])
def test_rows_with_another_cap_than_the_plans_are_refused_before_they_are_read(
    given, planned
):
    x, y = toy(40)
    rows = ArrayRows(x, y, groups=np.arange(40) // 4, group_cap=given)
    (spec,) = specs(planned)
    fit = reserve([spec])
    with pytest.raises(ValueError, match=r"group_cap is .* and the charged plan has"):
        run(ClassSums(M), rows, spec, fit)
    assert fit.ledger.fits()[0]["releases"][0]["state"] == "reserved"


def test_rows_beyond_the_cap_are_not_sampled():
    """They count zero, but would move the places of later rows, and the number of
    blocks.
    """
    x, y = toy(200)
    asked = []

    class Watched(ArrayRows):
        def blocks(self, indices=None, known=None):
            asked.append(indices)
            return super().blocks(indices)

    groups = np.where(np.arange(200) < 50, 3, -1)
    rows = Watched(x, y, groups=groups, group_cap=4)
    spec = spec_of(ClassSums(M), 200, sampling_prob=0.9, group_cap=4)
    fit = reserve([spec] * 20)
    for _ in range(20):
        run(ClassSums(M), rows, spec, fit, NoiseSource())
    sampled = np.bincount(np.concatenate(asked), minlength=200)
    assert np.all(sampled[4:50] == 0)
    assert np.all(sampled[:4] > 5)
    assert np.all(sampled[50:] > 5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_fit_for_groups_has_the_noise_and_the_report_of_groups(relation):
    facts = ProblemInfo(200, D, M)
    solver = LeastSquares(gram_share=0.35)  # the rule's share follows the noise
    given = {"epsilon": 2.0, "delta": 1e-5, "relation": relation}
    one = make_plan(solver, facts, **given)
    plan = make_plan(solver, facts, **given, group_cap=4)
    for a, b in zip(one.specs, plan.specs, strict=True):
        assert b.noise_multiplier == pytest.approx(4 * a.noise_multiplier, rel=1e-6)
    rows = ArrayRows(*toy(200), groups=np.arange(200) // 8, group_cap=4)
    ledger = Ledger()
    g = guarantee(fit_rows(plan, rows, ledger=ledger).plan)
    assert g["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert compose_epsilon(ledger.events(), 1e-5, relation) == g["epsilon"]
    assert g["group_cap"] == 4
    assert (
        "one person (group) with all their images, of which at most 4"
        in g["protected_unit"]
    )


@given(small_groups, small_groups, st.integers(1, 4))
def test_what_is_kept_of_a_group_does_not_depend_on_other_groups(groups, others, cap):
    """The other slots hold other groups (from 100 on), whatever these are."""
    size = min(len(groups), len(others))
    mine = np.array(groups[:size]) == 3
    kept = within_cap(np.array(groups[:size], np.int64), cap)
    again = within_cap(np.where(mine, 3, 100 + np.array(others[:size], np.int64)), cap)
    assert np.array_equal(kept[mine], again[mine])


@pytest.mark.parametrize("sigma, q, k", [(0.1, 0.2, 2), (0.03, 0.3, 3)])
def test_a_group_with_little_noise_is_not_below_the_truth(sigma, q, k):
    """dp_accounting, which inverts losses to 1e-6 in x, lacks 4e-10 of delta here at
    sigma 0.03.
    """
    distribution = loss_distribution([GaussianEvent(sigma, q, 1, k)], coarser=20)
    width = distribution[0].interval
    for m in range(1, 640, 16):
        eps = m * width
        assert worst(distribution, eps) >= max(exact_group_delta(sigma, q, k, eps))


def test_a_sample_that_hardly_misses_a_group_is_charged_in_full():
    """(1 - q)^k is 1e-9 here: one minus the chance of any row resolves 1e-16 only."""
    distribution = loss_distribution([GaussianEvent(8.0, 0.4, 1, 40)], coarser=10)
    for eps in (0.0, 1.0, 5.0):
        exact = max(exact_group_delta(8.0, 0.4, 40, eps))
        assert exact <= worst(distribution, eps) <= exact * 1.01 + 1e-9


@pytest.mark.parametrize(
    "events",
    [
        [GaussianEvent(9.0, 1e-3, 500, k) for k in (1, 2, 8, 64, 65, 1000)],
        [GaussianEvent(9.0, q, 500, 8) for q in (1e-9, 1e-3, 1.01e-3, 0.1, 1 - 1e-9)],
        [GaussianEvent(9.0, 1e-3, count, 64) for count in (1, 2, 500, 505, 10_000)],
        [GaussianEvent(s, 1e-3, 500, 64) for s in (1e3, 9.0, 8.95, 2.0, 0.5, 0.1)],
    ],
    ids=["rows", "probability", "releases", "noise"],
)
def test_more_rows_more_releases_and_less_noise_cost_more(events):
    costs = [compose_epsilon([event], 1e-5) for event in events]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


def test_rare_rows_and_large_groups_in_poisson_batches_are_counted():
    """Losses of rare rows lie beside the extreme one; a binomial coefficient of 1,030
    does not fit a float.
    """
    q = 1e-9
    # one row of two is sampled: the distance of N(0) and N(1)
    exact = 2 * q * (2 * norm.cdf(0.5) - 1)
    assert worst(loss_distribution([GaussianEvent(1.0, q, 1, 2)]), 0.0) >= exact
    few, many = (
        compose_epsilon([GaussianEvent(1e4, 0.01, 10, k)], 1e-5) for k in (1000, 1100)
    )
    assert 0 < few < many
