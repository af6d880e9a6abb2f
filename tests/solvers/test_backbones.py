"""`auto` on the best of several networks: one plan, a choice by what was released."""

import math

import numpy as np
import pytest
from fits import answered, quick_sums

from dphead.data.arrays import ArrayRows
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import ProblemInfo
from dphead.solvers.backbones import BackboneSelection
from dphead.solvers.base import Response

N, M = 3000, 3
WIDTHS = (40, 6)


def rows_of(width, signal, seed):
    """N rows whose first M columns tell the class, by so much."""
    rng = np.random.default_rng(seed)
    y = np.random.default_rng(9).integers(0, M, N)
    x = rng.normal(size=(N, width)).astype(np.float32)
    x[np.arange(N), y] += signal
    return ArrayRows(x, y)


def planned(widths=WIDTHS, epsilon=2.0, n=N, **more):
    solver = BackboneSelection(widths)
    facts = ProblemInfo(n, max(widths), M)
    return solver, facts, make_plan(solver, facts, epsilon=epsilon, delta=1e-5, **more)


def fit(signals, seed=0, widths=WIDTHS, epsilon=2.0):
    rows = [
        rows_of(*of, seed) for seed, of in enumerate(zip(widths, signals, strict=True))
    ]
    _, _, plan = planned(widths, epsilon)
    how = Run(noise=NoiseSource(seed), summer=quick_sums())
    return fit_head(plan, rows, how)


@pytest.mark.parametrize("signals", [(3.0, 0.0), (0.0, 3.0)])
def test_the_network_whose_features_tell_the_classes_is_chosen(signals):
    head = fit(signals).head
    wanted = int(np.argmax(signals))
    assert head.selection.chosen == wanted
    assert head.weights.shape == (WIDTHS[wanted], M)
    assert head.estimate.accuracy > 0.85
    accuracies = [trial.accuracy for trial in head.selection.trials]
    assert accuracies[wanted] > accuracies[1 - wanted] + 0.2


@pytest.mark.parametrize("relation", ["zero_out", "add_remove", "replace_one"])
@pytest.mark.parametrize("cap", [None, 3])
def test_trials_and_fit_together_spend_what_was_asked_for(relation, cap):
    solver, _, plan = planned(relation=relation, group_cap=cap)
    assert plan.epsilon_spent() == pytest.approx(2.0, rel=1e-6)
    squares = {}
    for spec in plan.specs:
        whose, _, rest = spec.label.rpartition(": ")
        assert rest
        squares[whose] = squares.get(whose, 0) + spec.noise_multiplier**-2
    total = sum(squares.values())
    for whose in ("network 1", "network 2"):
        assert squares[whose] == pytest.approx(solver.trial_share * total)
    assert solver.trials_share == pytest.approx(1 - squares[""] / total)


def chosen_by(releases):
    """What a solver asks whose asks are answered by `releases(ask)`, and the head."""
    solver, facts, plan = planned((600, 3000, 50), n=20_000)
    asks, head = answered(solver, plan.budgeted(facts), releases)
    asked = [(ask.label, ask.statistic.name) for ask in asks]
    assert asked == [(spec.label, spec.statistic) for spec in plan.specs]
    return asks, head


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_the_choice_follows_from_released_counts_and_the_plan_does_not(wanted):
    """Whichever network is counted best, the rest of the plan is asked of it."""
    rng = np.random.default_rng(wanted)

    def release(ask):
        width = (600, 3000, 50)[ask.source]
        width = ask.params.transform.width(width)
        if ask.label.endswith("correct rows"):
            right = 15_000 if ask.source == wanted else 9000
            return Response(np.array([[right], [20_000 - right]], float), 10.0)
        return Response(rng.normal(size=ask.statistic.shape(width)), 1.0)

    asks, head = chosen_by(release)
    assert head.selection.chosen == wanted
    for source in range(3):
        trial = [a for a in asks if a.label.startswith(f"network {source + 1}: ")]
        assert {ask.source for ask in trial} == {source}
    last = [ask for ask in asks if not ask.label.startswith("network ")]
    assert {ask.source for ask in last} == {wanted}


def test_a_choice_by_exact_counts_is_refused():
    with pytest.raises(ValueError, match="needs noise, got epsilon inf"):
        planned(epsilon=math.inf)
