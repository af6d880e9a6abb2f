"""Rows that stand for several each: the larger fit's asks, noise and head."""

from dataclasses import replace

import numpy as np
import pytest
from fits import each_method, quick_sums, with_noise
from numpy.testing import assert_allclose

from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.planning.stand_in import on_fewer_rows
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo

TIMES = 3  # rows that each stands for
N, D, M = 60, 6, 3


class Told:
    """A solver that notes what it asks and is told."""

    def __init__(self, solver):
        self.solver, self.name, self.plan = solver, solver.name, solver.plan
        self.facts, self.asks, self.answers = None, [], []

    def solve(self, facts):
        self.facts = facts
        steps = self.solver.solve(facts)
        answer = None
        while True:
            try:
                ask = steps.send(answer) if answer else next(steps)
            except StopIteration as stop:
                return stop.value
            answer = yield ask
            self.asks += [one.label for one in ask.each()]
            self.answers += answer if ask.more else [answer]


def rows_of(seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, M, N)
    x = rng.random((N, D), np.float32)
    x[np.arange(N), y] += 1
    return x, y


FACTS = ProblemInfo(TIMES * N, D, M)
FULL = {"auto": make_method("auto", FACTS, {}).solver} | each_method(FACTS)


def both(method, epsilon, cap=None):
    """(told, head) of the rows that each stand for TIMES, and of as many copies."""
    solver = FULL[method]
    plan = make_plan(solver, FACTS, epsilon=epsilon, delta=1e-5, group_cap=cap)
    return carried_out(solver, plan, cap)


def carried_out(solver, plan, cap=None):
    """`both` of a plan of FACTS."""
    x, y = rows_of()
    found = []
    for times in (1, TIMES):
        groups = np.full(times * N, -1)
        tiled = (np.tile(x, (times, 1)), np.tile(y, times))
        rows = ArrayRows(*tiled, groups=groups, group_cap=cap)
        told = Told(solver)
        run = {"noise": NoiseSource(0), "summer": quick_sums()}
        if times == 1:
            fit = fit_rows(on_fewer_rows(replace(plan, solver=told), N), rows, **run)
        else:
            fit = fit_rows(replace(plan, solver=told), rows, **run)
        found.append((told, fit.trained))
    return found


@pytest.mark.parametrize("method", FULL)
def test_without_noise_the_head_is_that_of_the_rows_copied(method):
    (small, one), (large, other) = both(method, float("inf"))
    assert small.asks == large.asks
    for mine, theirs in zip(small.answers, large.answers, strict=True):
        assert_allclose(mine.value, theirs.value, rtol=1e-6, atol=1e-6)
        assert mine.noise_sd == theirs.noise_sd == 0
    assert_allclose(one.weights, other.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cap", [None, 2])
@pytest.mark.parametrize("method", FULL)
def test_the_solver_knows_and_asks_what_the_larger_fit_does(method, cap):
    (small, _), (large, _) = both(method, 2.0, cap)
    assert small.facts == large.facts
    assert small.facts.n_rows == TIMES * N
    assert small.asks == large.asks
    sds = [[answer.noise_sd for answer in told.answers] for told in (small, large)]
    assert min(sds[0]) > 0
    # a standard deviation is rounded upwards in units of the sum
    assert_allclose(*sds, rtol=1e-9)


def test_poisson_batches_keep_their_share_of_the_rows():
    solver = make_method("dp-sgd", FACTS, {"batch_size": 30, "steps": 4}).solver
    plan = with_noise(solver, FACTS, 5.0)
    (small, _), (large, _) = carried_out(solver, plan)
    assert small.asks == large.asks
    assert small.asks == ["row count", "feature mean", *["gradient"] * 4]
    sds = [[a.noise_sd for a in told.answers] for told in (small, large)]
    assert_allclose(*sds, rtol=1e-9)
