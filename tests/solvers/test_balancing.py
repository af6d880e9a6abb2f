"""Balanced decisions: scores less the log of noisy class frequencies."""

import numpy as np
import pytest
from fits import METHODS as TRIED
from fits import head_of, right
from hypothesis import given
from hypothesis import strategies as st

from dphead import DPAutoClassifier
from dphead.planning.methods import make_method, settable
from dphead.planning.plan import make_plan
from dphead.privacy.contract import Released
from dphead.solvers import Auto, ProblemInfo
from dphead.solvers.balancing import COUNTS, frequencies
from dphead.solvers.balancing_rule import AFTER, BEFORE

M, D = 3, 16
SIZES = np.array([4000, 400, 100])
METHODS = [name for name in ("auto", *TRIED) if "balanced" in settable(name)]


def uneven(seed, sizes=tuple(SIZES)):
    """Rows of overlapping classes of these sizes."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(M), sizes))
    x = rng.normal(size=(len(y), D)) + 2.5 * np.eye(M, D)[y]
    return x.astype(np.float32), y


def made(method, facts, **settings):
    own = {} if method == "auto" else {"intercept": 0.3}
    return make_method(method, facts, own | settings).solver


def fit(solver, x, y, epsilon, seed=0):
    return head_of(solver, x, y, M, epsilon, seed)


@pytest.mark.parametrize("method", METHODS)
def test_without_noise_the_intercept_alone_moves_by_the_log_of_the_frequencies(method):
    x, y = uneven(0)
    facts = ProblemInfo(len(x), D, M)
    plain, balanced = (
        fit(made(method, facts, balanced=balanced), x, y, np.inf)
        for balanced in (False, True)
    )
    assert np.array_equal(plain.weights, balanced.weights)
    moved = plain.intercept - balanced.intercept
    assert moved == pytest.approx(np.log(SIZES / SIZES.sum()), abs=1e-9)


def test_rare_classes_are_found_and_the_class_mean_is_higher():
    """By 10 points on average: all draws are of the same seeds. The noise of the sizes
    is 100 rows, as many as the smallest class has.
    """
    x, y = uneven(0)
    new, label = uneven(1, (3000, 3000, 3000))
    facts = ProblemInfo(len(x), D, M)
    plain, balanced = (
        np.array(
            [
                right(
                    fit(made("auto", facts, balanced=own), x, y, 0.5, seed), new, label
                )
                for seed in range(2)
            ]
        )
        for own in (False, True)
    )
    assert balanced.mean() > plain.mean() + 0.1
    assert (balanced > plain).all()


def test_even_classes_keep_the_head_that_they_have_without():
    """The counts before and after are of the share of the count of correct rows."""
    x, y = uneven(0, (500, 450, 420))
    facts = ProblemInfo(len(x), D, M)
    plans = [
        make_plan(Auto(balanced=own), facts, epsilon=1.0, delta=1e-5)
        for own in (False, True)
    ]
    noise = [
        [s.noise_multiplier for s in plan.specs if s.label == "gradient"]
        for plan in plans
    ]
    assert noise[0] == pytest.approx(noise[1], rel=1e-12)
    counts = [one.label for one in plans[1].releases][-3:]
    assert counts == [BEFORE, AFTER, "correct rows"]
    assert 1 - 1e-6 < plans[1].epsilon_spent() <= 1.0
    plain, balanced = (fit(Auto(balanced=own), x, y, 1.0) for own in (False, True))
    # only the temperature differs, which has the noise of other counts
    cooler = balanced.weights[0, 0] / plain.weights[0, 0]
    assert balanced.weights == pytest.approx(plain.weights * cooler)
    assert balanced.intercept == pytest.approx(plain.intercept * cooler)
    assert (plain.balanced, balanced.balanced) == (None, False)


@pytest.mark.parametrize("method", METHODS[1:])
def test_the_counts_are_a_hundredth_of_the_budget_and_charged_with_it(method):
    """Of μ² of what is not centering; together no more than epsilon."""
    facts = ProblemInfo(5000, D, M)
    solver = made(method, facts, balanced=True)
    plan = make_plan(solver, facts, epsilon=1.0, delta=1e-5)
    (counts,) = (s for s in plan.specs if s.label == COUNTS)
    assert counts.statistic == "ClassCounts(n_classes=3)"
    trained = [s for s in plan.specs if s.label in ("gradient", "gram", COUNTS)]
    whole = sum(s.noise_multiplier**-2 for s in trained)
    assert counts.noise_multiplier**-2 == pytest.approx(whole / 100)
    assert 1 - 1e-6 < plan.epsilon_spent() <= 1.0


numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=2, max_size=9), st.floats(0, 1e4))
def test_a_class_that_may_have_no_rows_counts_as_the_most_common(counts, sd):
    found = frequencies(Released(np.array(counts)[:, None], sd))
    floor = max(sd, 1.0)
    top = max(*counts, 1.0)
    kept = [count if count >= floor else top for count in counts]
    assert found == pytest.approx(np.array(kept) / sum(kept))
    assert found.min() > 0


def test_the_mean_of_the_classes_is_expected_within_its_interval():
    x, y = uneven(0)
    facts = ProblemInfo(len(x), D, M)
    head = fit(made("auto", facts, balanced=True, per_class_share=0.1), x, y, 4.0)
    found = head.class_accuracy
    assert found is not None
    each = [one.accuracy for one in found.each]
    assert found.balanced.accuracy == pytest.approx(np.mean(each))
    new, label = uneven(1, (3000, 3000, 3000))
    assert found.balanced.low <= right(head, new, label) <= found.balanced.high


@pytest.mark.parametrize(
    "setting", [{"loss": "sigmoid"}, {"loss": "squared"}, {"intercept": 0.0}]
)
@pytest.mark.parametrize("method", ["dp-sgd", "dp-fc"])
def test_scores_without_the_log_of_a_frequency_are_not_adjusted(method, setting):
    with pytest.raises(
        ValueError, match=r"balanced.\) needs the softmax loss and an inter"
    ):
        made(method, ProblemInfo(5000, D, M), **setting, balanced=True)


def test_a_balanced_fit_ends_where_numpy_raises_errors_of_small_numbers():
    """The fit is charged by then."""
    random = np.random.default_rng(0)
    y = (random.random(200) < 0.2).astype(int)
    x = (random.normal(size=(200, 4)) + y[:, None]).astype(np.float32)
    head = DPAutoClassifier(balanced=True, epsilon=1.0, delta=1e-5, classes=[0, 1])
    with np.errstate(all="raise"):
        assert head.fit(x, y).predict(x).shape == (200,)
