"""When `auto` balances decisions: what released counts show, and what they predict."""

import numpy as np
import pytest

from dphead.privacy.contract import Released
from dphead.solvers import ProblemInfo
from dphead.solvers.balancing_rule import _expected_gain as expected_gain
from dphead.solvers.balancing_rule import better_head
from dphead.solvers.head import LinearHead


def chosen(before, after, sd=1.0, n_rows=1100):
    """The intercepts of the head that is chosen by these counts, and the head's."""
    head = LinearHead(np.zeros((2, len(before))), np.arange(float(len(before))))
    facts = ProblemInfo(n_rows, 2, len(before))
    steps = better_head(facts, head, Released(np.array(before, float), sd))
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
    gain = expected_gain(sizes.astype(float), counts)
    true = (after - before).mean()
    assert gain == pytest.approx(true, abs=0.06)
    assert gain * true > 0 or abs(true) < 0.01


@pytest.mark.parametrize("rare, adjusted", [(65, False), (75, True)])
def test_a_gain_of_half_a_point_is_not_worth_an_adjustment(rare, adjusted):
    """The frequent class loses 2 points, and the rare class gains 3 or 13."""
    after = [[930, 70], [rare, 100 - rare]]
    found, given = chosen([[950, 50], [62, 38]], after)
    assert np.array_equal(found, given) != adjusted
