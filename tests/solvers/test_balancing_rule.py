"""When `auto` balances decisions: what released counts show, and what they predict."""

import numpy as np
import pytest

from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.contract import Released
from dphead.privacy.noise import NoiseSource
from dphead.privacy.transform import RowTransform
from dphead.solvers import Auto, ProblemInfo
from dphead.solvers.auto_rules import center_noise
from dphead.solvers.balancing_rule import _expected_gain as expected_gain
from dphead.solvers.balancing_rule import _mean_over_intercept as mean_over_intercept
from dphead.solvers.balancing_rule import better_head
from dphead.solvers.centering import Centering
from dphead.solvers.centering import _shrunk as shrunk
from dphead.solvers.head import LinearHead


def chosen(before, after, sd=1.0, n_rows=1100, intercept=None, noise=None):
    """The intercepts of the head that is chosen by these counts, and the head's."""
    intercept = np.arange(float(len(before))) if intercept is None else intercept
    transform = RowTransform(True, np.full(2, 0.1, np.float32), append=0.1)
    head = LinearHead(np.zeros((2, len(before))), intercept, transform)
    facts = ProblemInfo(n_rows, 2, len(before))
    steps = better_head(facts, head, Released(np.array(before, float), sd), noise)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send(Released(np.array(after, float), sd))
    found = stop.value.value
    assert found.balanced == (not np.array_equal(found.intercept, head.intercept))
    return found.intercept, head.intercept


@pytest.mark.parametrize(
    "after, sd, adjusted",
    [
        # 95 and 60 % before
        ([[900, 100], [80, 20]], 1.0, True),
        ([[500, 500], [60, 40]], 1.0, False),
        ([[500, 500], [60, 40]], 40.0, True),  # 23 points fewer, and noise of 17
    ],
)
def test_scores_stay_where_released_counts_show_that_balancing_is_worse(
    after, sd, adjusted
):
    found, given = chosen([[950, 50], [60, 40]], after, sd)
    moved = found - given
    assert moved[1] - moved[0] == pytest.approx(adjusted * np.log(10), rel=0.1)


def test_a_class_that_noise_hides_counts_as_the_smallest_of_the_others():
    before = [[900, 100], [60, 40], [2, 8]]
    found, given = chosen(before, before, sd=20.0, n_rows=1110)
    assert found[2] - given[2] == pytest.approx(found[1] - given[1])
    assert found[1] - given[1] > found[0] - given[0] + 2


@pytest.mark.parametrize("noise", [15.0, 30.0])
@pytest.mark.parametrize(
    "before, adjusted",
    [
        ([[990, 10], [40, 60]], True),  # the frequent class is the accurate one
        ([[800, 200], [80, 20]], False),  # equal accuracies: balanced already
        ([[650, 350], [90, 10]], False),
    ],
)
def test_equal_counts_leave_the_choice_to_the_accuracies_before(
    before, adjusted, noise
):
    found, given = chosen(before, before, noise)
    assert np.array_equal(found, given) != adjusted


@pytest.mark.parametrize("kappa, follows", [(1.5, 0.0), (1.5, 1.0), (2.5, 0.5)])
@pytest.mark.parametrize("sizes", [[900, 100], [700, 200, 100]])
def test_the_expected_gain_is_near_that_of_simulated_scores(sizes, kappa, follows):
    """Counts of simulated rows, and their gain of -0.11 to 0.11. The errors of the
    model's classes and margins move it by up to 0.05.
    """
    sizes = np.array(sizes)
    m, n = len(sizes), 20_000
    draw = np.random.default_rng(0).normal(size=(m, n, m)) * kappa
    scores = draw + kappa**2 * np.eye(m)[:, None] + follows * np.log(sizes)
    before, after = (
        np.mean((scores - less).argmax(axis=2) == np.arange(m)[:, None], axis=1)
        for less in (0.0, np.log(sizes))
    )
    counts = Released(sizes[:, None] * np.stack([before, 1 - before], axis=1), 1.0)
    gain = expected_gain(sizes.astype(float), counts, np.zeros(m), None)
    true = (after - before).mean()
    assert gain == pytest.approx(true, abs=0.06)
    assert gain * true > 0 or abs(true) < 0.01
    # the mean scores of all rows help where noise hides the counts
    mean = np.average(scores.mean(axis=1), axis=0, weights=sizes)
    hidden = Released(counts.value, sizes.min() / 4)
    alone = expected_gain(sizes.astype(float), hidden, mean, None)
    helped = expected_gain(sizes.astype(float), hidden, mean / 1.5, 1.5)
    assert abs(helped - true) < max(0.07, abs(alone - true))


@pytest.mark.parametrize("rare, adjusted", [(65, False), (75, True)])
def test_a_gain_of_half_a_point_is_not_worth_an_adjustment(rare, adjusted):
    """The frequent class loses 2 points, and the rare class gains 3 or 13."""
    after = [[930, 70], [rare, 100 - rare]]
    found, given = chosen([[950, 50], [62, 38]], after)
    assert np.array_equal(found, given) != adjusted


@pytest.mark.parametrize(
    "follows, noise, adjusted",
    [(0.0, 1e-9, False), (2.5, 1e-9, True), (0.0, None, True), (0.6, 0.1, True)],
)
def test_where_noise_hides_the_counts_the_intercept_decides(follows, noise, adjusted):
    """An error of the center of 0.04 makes mean scores five times the intercept."""
    counts = [[900, 100], [85, 15]]
    intercept = follows * np.log([1000, 100])
    found, given = chosen(counts, counts, 60.0, 1100, intercept, noise)
    assert np.array_equal(found, given) != adjusted


@pytest.mark.parametrize("length, sd", [(0.5, 0.01), (0.5, 0.03), (0.1, 0.01)])
def test_the_error_of_a_shrunk_center_follows_from_its_length(length, sd):
    rng = np.random.default_rng(0)
    exact = np.full(400, length / 20)
    found = [shrunk(exact + rng.normal(0, sd, 400), sd) for _ in range(200)]
    true = np.mean([((one - exact) ** 2).sum() for one in found])
    factors = [
        mean_over_intercept(RowTransform(True, one, append=0.1), 400 * sd**2)
        for one in found
    ]
    left = [1 - one @ one for one in found]
    error = np.mean((np.array(factors) - 1) * left) * 0.1**2
    assert error == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_mean_scores_of_rows_are_the_factor_times_the_intercept(epsilon):
    """With 1,600 and 400 rows of 500 features, noise moves the center."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [1600, 400])
    x = rng.normal(size=(2000, 500)).astype(np.float32) + 1.0
    x[np.arange(2000), y] += 6
    facts = ProblemInfo(2000, 500, 2)
    plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5)
    facts = plan.budgeted(facts)
    centering = Auto().descent_for(facts).centering
    assert isinstance(centering, Centering)
    noise = center_noise(facts, centering.share)
    fits = [fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(s)) for s in range(6)]
    ratios = []
    for fit in fits:
        head = fit.trained
        factor = mean_over_intercept(head.transform, noise)
        mean = head.scores(x).mean(axis=0)
        ratios.append(np.ptp(mean) / (factor * np.ptp(head.intercept)))
        assert factor > 1.5
    assert np.median(ratios) == pytest.approx(1, rel=0.3)


def test_a_head_that_is_accurate_on_all_classes_is_seldom_adjusted():
    """Heads with 98 % balanced accuracy, whose adjustment loses 3 points on average.

    Noise hides this loss in the counts, so the intercept decides.
    """
    sizes, n_features = np.array([600, 100, 60]), 10
    facts = ProblemInfo(int(sizes.sum()), n_features, 3)
    plans = [
        make_plan(Auto(balanced=balanced), facts, epsilon=1.0, delta=1e-5)
        for balanced in (False, True)
    ]
    gains = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        sets = []
        for n in (sizes, np.full(3, 1000)):
            y = np.repeat(np.arange(3), n)
            x = rng.normal(size=(len(y), n_features)).astype(np.float32)
            x[np.arange(len(y)), y] += 4
            sets.append((x, y))
        (x, y), (new, label) = sets
        plain, balanced = (
            fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed)).trained
            for plan in plans
        )
        accuracies = [
            (head.scores(new).argmax(axis=1) == label).mean()
            for head in (plain, balanced)
        ]
        assert accuracies[0] > 0.9
        gains.append(accuracies[1] - accuracies[0])
    assert np.mean(gains) > -0.015
