"""Probabilities of `auto`: scores divided by a temperature from released values."""

from dataclasses import replace

import numpy as np
import pytest
from fits import head_of

from dphead.analysis.metrics import evaluate_scores
from dphead.planning.plan import make_plan
from dphead.solvers import Auto, ProblemInfo, auto
from dphead.solvers.balancing_rule import AFTER, BEFORE
from dphead.solvers.expectation import Expectation
from dphead.solvers.temperature import temperature


def rows(n, seed, m=2, d=10, apart=1.5):
    """Normal rows of m classes whose means are `apart`."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, m, n)
    x = rng.normal(size=(n, d)) + apart / np.sqrt(2) * np.eye(m, d)[y]
    return x.astype(np.float32), y


@pytest.fixture
def found(monkeypatch):
    """What `temperature` was called with, and what it returned."""
    calls = []

    def recorded(*given):
        calls.append((*given, temperature(*given)))
        return calls[-1][-1]

    monkeypatch.setattr(auto, "temperature", recorded)
    return calls


@pytest.mark.parametrize("m", [2, 10])
@pytest.mark.parametrize("scale", [0.6, 1.8])
def test_normal_scores_get_the_temperature_of_bayes_rule(m, scale):
    """By 25 %: the typical temperature has a weight of 1/5, and is off by 2 here."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, m, 20_000)
    gap, sd = 2.0, 1.0  # log-odds are gap / sd² times differences of scores
    scores = scale * gap * (rng.normal(size=(len(y), m)) * sd + gap * np.eye(m)[y])
    right = float((scores.argmax(axis=1) == y).mean())
    margin = scale * gap * gap
    facts = ProblemInfo(2000, 100, m, mu=0.3)
    one = temperature(facts, Expectation(right, 1e-3), (margin, 0.01))
    assert one == pytest.approx(scale * sd**2, rel=0.25)


FACTS = ProblemInfo(400, 100, 2, mu=0.3)


def test_without_a_count_and_a_margin_the_temperature_is_public():
    """Of noise alone for few rows, and higher for many."""
    few, many = (ProblemInfo(n, 100, 2, mu=0.3) for n in (2, 100_000))
    assert temperature(few, None, None) == pytest.approx(0.65, abs=0.05)
    assert temperature(many, None, None) > 2


def test_a_margin_or_an_accuracy_of_noise_alone_stays_near_the_typical_temperature():
    known = Expectation(0.8, 0.01)
    typical = temperature(FACTS, known, None)
    for margin in (-50.0, 0.0, 3.0):
        noisy = temperature(FACTS, known, (margin, 200.0))
        assert noisy == pytest.approx(typical, rel=0.2)
    for accuracy in (-1.0, 0.5, 1.7):
        noisy = temperature(FACTS, Expectation(accuracy, 3.0), (3.0, 0.1))
        assert 0.5 < noisy < 3.0


def test_an_accuracy_that_may_be_that_of_guessing_makes_no_probability_larger():
    """However small the margin. A known accuracy still does."""
    facts = ProblemInfo(100_000, 16, 5, mu=2.0)
    for accuracy in (0.2, 0.201, -0.5):
        for margin in (None, (1e-3, 1e-3), (-1.0, 0.1)):
            assert temperature(facts, Expectation(accuracy, 0.01), margin) >= 1
    assert temperature(facts, Expectation(0.6, 0.01), (0.05, 0.01)) < 1


def test_a_margin_that_contradicts_the_accuracy_gives_a_finite_temperature():
    """The weights of all likely accuracies would be 0 in floating point."""
    facts = ProblemInfo(200_000, 8, 2, mu=2.0)
    for accuracy in (0.5, 0.9, 0.999):
        for margin in (1e-6, 1e-3, 300.0, 5000.0):
            found = temperature(
                facts, Expectation(accuracy, 0.002), (margin, 1e-3 * margin)
            )
            assert 0.05 <= found <= 50


def test_features_that_tell_nothing_give_no_more_confidence():
    """Values of a fit of 50,000 rows of noise with random labels. The margin alone
    gives 0.2, and the interval of the accuracy begins just above that of guessing.
    """
    facts, margin = ProblemInfo(50_000, 8, 5, mu=1.67), (1.3e-3, 1.2e-4)
    seen = Expectation(0.2055, 0.002)
    assert seen.estimate.low > 0.2
    assert temperature(facts, seen, margin) == 1
    surely = replace(seen, careful=(0.9, 0.01))
    assert temperature(facts, surely, margin) < 0.5


def test_the_margin_of_released_gradients_is_that_of_the_rows(found):
    """Definition: the score of a row's class less the mean of the others. Within 10 %:
    clipped residuals are rounded toward zero.
    """
    for m in (2, 5):
        x, y = rows(1500, m, m)
        head = head_of(Auto(), x, y, m, 8.0, seed=1)
        _, _, (margin, sd), divisor = found[-1]
        scores = head.scores(x) * divisor
        own = scores[np.arange(len(y)), y]
        others = (scores.sum(axis=1) - own) / (m - 1)
        assert margin == pytest.approx((own - others).mean(), rel=0.1, abs=3 * sd)


def test_rows_without_a_class_change_neither_the_margin_nor_the_temperature(found):
    """3 of 4 rows have no class; tolerances are those of noise at ε = 8."""
    x, y = rows(600, 0)
    head_of(Auto(), x, y, 2, 8.0, seed=1)
    more = np.concatenate([y, np.full(3 * len(y), -1)])
    head_of(Auto(), np.tile(x, (4, 1)), more, 2, 8.0, seed=1)
    alone, among = (call[2][0] for call in found)
    assert among == pytest.approx(alone, rel=0.25)


@pytest.mark.parametrize("m, most", [(2, 0.04), (5, 0.04)])
def test_probabilities_are_calibrated_and_classes_stay(m, most, found):
    """Without the temperature, the errors are 0.10 and 0.08 on these rows."""
    x, y = rows(4000, 0, m)
    new, label = rows(10_000, 1, m)
    head = head_of(Auto(), x, y, m, 3.0, seed=1)
    scores = head.scores(new)
    before = scores * found[-1][-1]
    error, earlier = (
        evaluate_scores(one, label)["calibration_error"] for one in (scores, before)
    )
    assert error < most < earlier - 0.02
    assert np.array_equal(scores.argmax(axis=1), before.argmax(axis=1))


def test_scores_are_balanced_after_they_are_cooled(found, monkeypatch):
    """The plan counts correct rows of classes before and after, then all of them."""
    passed = []

    def noted(function, argument):
        def calling(*given, **more):
            passed.append(given[argument] if argument is not None else None)
            done = function(*given, **more)
            if argument is None:
                passed[-1] = done
            return done

        return calling

    monkeypatch.setattr(auto, "cooled", noted(auto.cooled, None))
    monkeypatch.setattr(auto, "better_head", noted(auto.better_head, 1))
    x, y = rows(800, 0)
    y[: len(y) // 2] = 0
    solver = Auto(balanced=True)
    head = head_of(solver, x, y, 2, 8.0, seed=1)
    facts = ProblemInfo(len(x), x.shape[1], 2)
    plan = make_plan(solver, facts, epsilon=8.0, delta=1e-5)
    after = [BEFORE, AFTER, "correct rows"]
    assert [one.label for one in plan.releases][-4:] == ["gradient", *after]
    cooled, balanced = passed
    assert balanced is cooled
    assert np.array_equal(head.weights, cooled.weights)
    # log(1/4) and log(3/4) apart, to the noise of the counts
    moved = np.diff(head.intercept - cooled.intercept)
    assert moved == pytest.approx(np.log(3), abs=0.2)
    # the estimate is of the balanced head, the temperature of the one before
    assert found[-1][1].accuracy > head.estimate.accuracy
