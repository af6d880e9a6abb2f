"""What computes: the same integers for every backend, and heads that agree."""

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from core import toy
from fits import answered

from dphead.data.arrays import ArrayRows
from dphead.fit.backends import block_sum, on_device
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.planning.registry import OURS, our_class
from dphead.privacy.contract import Released
from dphead.privacy.noise import NoiseSource
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums
from dphead.privacy.transform import RowTransform
from dphead.solvers import DPFC, GradientDescent, LeastSquares, Newton, ProblemInfo
from dphead.solvers.auto import Auto
from dphead.solvers.base import PlannedRelease, Request
from dphead.solvers.head import head_of
from dphead.solvers.ridge import RidgeSolver
from dphead.sums import kernels
from dphead.sums.cpu import CpuSums
from dphead.sums.jax import JaxSums

N, D, M = 400, 6, 3
FACTS = ProblemInfo(N, D, M)
ROWS = ArrayRows(*toy(N, D, M))
SOLVERS = {
    "adam": GradientDescent(optimizer="adam", steps=3, average="mean"),
    "fc": DPFC(steps=2, intercept=0.3, gram_intercept=False),
    "ls": LeastSquares(),
    "ls, no eigenvalues": LeastSquares(shrink=False),
    "newton": Newton(steps=2),
    "auto": Auto(steps=5),
}


def test_each_method_that_takes_both_kinds_of_arrays_is_compared():
    kinds = {our_class(name) for name in OURS}
    takes = {kind for kind in kinds if getattr(kind, "takes_jax", False)}
    takes -= {kind for kind in kinds if getattr(kind, "needs_jax", False)}
    assert takes <= {type(solver) for solver in SOLVERS.values()}


@pytest.fixture
def kept_setting():
    """The process's own setting of float64, which no fit may change."""
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.ones(1).dtype == (np.float64 if before else np.float32)


def released(solver):
    """The answers of one fit, in order, and its head."""
    plan = make_plan(solver, FACTS, epsilon=2.0, delta=1e-5)
    seen = []

    @dataclass(frozen=True)
    class Recorder:
        name: str = solver.name

        def plan(self, facts):
            return solver.plan(facts)

        def solve(self, facts):
            steps, answer = solver.solve(facts), None
            while True:
                try:
                    ask = steps.send(answer)
                except StopIteration as stop:
                    return stop.value
                answer = yield ask
                seen.extend(answer if ask.more else [answer])

    recorded = make_plan(Recorder(), FACTS, epsilon=2.0, delta=1e-5)
    head = fit_rows(recorded, ROWS, noise=NoiseSource(1), not_private=True).trained
    return plan.budgeted(FACTS), seen, head


@pytest.mark.parametrize("name", ["adam", "fc", "ls", "newton", "auto"])
def test_jax_makes_the_head_of_numpy_from_the_same_released_values(name, kept_setting):
    facts, answers, wanted = released(SOLVERS[name])
    rest = iter(answers)
    _, head = answered(on_device(SOLVERS[name], "jax"), facts, lambda _: next(rest))
    assert type(head.weights) is type(head.intercept) is np.ndarray
    for part in ("weights", "intercept"):
        one, other = getattr(head, part), getattr(wanted, part)
        # float64's last bits, in steps that amplify them by a condition number of 1e4
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9 * np.abs(other).max())
    assert head.estimate == wanted.estimate


def test_a_users_strict_settings_of_jax_do_not_stop_a_charged_fit():
    """The tests have strict types and ranks anyway (conftest.py)."""
    facts, answers, _ = released(SOLVERS["newton"])
    rest = iter([replace(a, value=-np.abs(a.value)) for a in answers])
    with jax.debug_nans(True), jax.transfer_guard("disallow"):
        _, head = answered(
            on_device(SOLVERS["newton"], "jax"), facts, lambda _: next(rest)
        )
    assert np.isfinite(head.weights).all()


def test_the_algebra_stays_on_the_device(monkeypatch):
    """A factorization gets and returns jax's arrays, in float64."""
    seen = []
    real = RidgeSolver.__init__

    def spied(self, gram, ridge):
        real(self, gram, ridge)
        seen.extend([gram, self._factor[0]])

    monkeypatch.setattr(RidgeSolver, "__init__", spied)
    for name in ("fc", "newton", "ls, no eigenvalues"):
        facts, answers, _ = released(SOLVERS[name])
        seen.clear()
        rest = iter(answers)
        answered(on_device(SOLVERS[name], "jax"), facts, lambda _, r=rest: next(r))
        assert seen
        assert all(isinstance(one, jax.Array) for one in seen)
        assert {one.dtype for one in seen} == {np.dtype(np.float64)}


@dataclass(frozen=True)
class Foreign:
    """A solver of another package, which changes a released value in place."""

    name: str = "foreign"

    def plan(self, facts):
        return [PlannedRelease("sums", ClassSums(M), 1.0)]

    def solve(self, facts):
        transform = RowTransform(unit_norm=True)
        answer = yield Request("sums", ClassSums(M), Params(transform))
        answer.value[0] = 0
        return head_of(answer.value, transform, "softmax")


def test_a_solver_of_another_package_gets_numpys_arrays():
    """jax's cannot be changed in place, so it would fail after the charge."""
    answer = Released(np.ones((D, M)), 1.0)
    _, head = answered(on_device(Foreign(), "jax"), FACTS, lambda _: answer)
    assert head.weights[0].sum() == 0


def test_jax_on_a_processor_adds_by_the_compiled_kernels(monkeypatch):
    """Without kernels XLA adds: their integers are the same (tests/sums)."""
    assert kernels.library is not None
    assert isinstance(block_sum("jax", 7)[0], CpuSums)
    monkeypatch.setattr(kernels, "library", None)
    assert isinstance(block_sum("jax", 7)[0], JaxSums)
