"""The plan: every release and its noise before any data, from public numbers."""

import math
from dataclasses import dataclass

import pytest
from fits import each_method

from dphead.planning.calibration import mu_from_epsilon
from dphead.planning.methods import make_method
from dphead.planning.plan import large_delta, make_plan
from dphead.privacy import accounting
from dphead.privacy.statistics import ClassSums, Gram
from dphead.solvers import (
    LeastSquares,
    ProblemInfo,
)
from dphead.solvers.base import PlannedRelease

FACTS = ProblemInfo(1000, 8, 4)
SOLVERS = [*each_method(FACTS).values(), LeastSquares(class_grams=True)]


@dataclass(frozen=True)
class Listed:
    """A solver that only plans."""

    releases: tuple
    name: str = "listed"

    def plan(self, facts):
        return list(self.releases)


def planned(*weights, fixed=(), **more):
    free = [PlannedRelease("a", ClassSums(4), 1.0, w, **more) for w in weights]
    return Listed(
        (*free, *[PlannedRelease("f", Gram(4), 1.0, noise_multiplier=s) for s in fixed])
    )


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
@pytest.mark.parametrize("relation", accounting.RELATIONS)
@pytest.mark.parametrize("epsilon, delta", [(0.05, 1e-7), (8.0, 1e-5)])
def test_the_plan_spends_its_budget_and_not_more(solver, relation, epsilon, delta):
    plan = make_plan(solver, FACTS, epsilon=epsilon, delta=delta, relation=relation)
    spent = accounting.compose_epsilon(plan.events(), delta, relation)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon
    assert (
        sum(e.count for e in plan.events())
        == len(plan.specs)
        == len(solver.plan(FACTS))
    )
    assert plan.private
    assert all(s.relation == relation and s.n_rows == 1000 for s in plan.specs)


def test_noise_is_divided_by_weight():
    plan = make_plan(planned(1.0, 4.0, 2.0), FACTS, epsilon=1.0, delta=1e-5)
    a, b, c = (s.noise_multiplier for s in plan.specs)
    assert a / b == pytest.approx(2)
    assert a / c == pytest.approx(math.sqrt(2))
    assert 1 / a**2 + 1 / b**2 + 1 / c**2 == pytest.approx(
        mu_from_epsilon(1.0, 1e-5) ** 2
    )


def test_sigma_is_one_over_mu_and_not_mu():
    """The value of Balle and Wang at epsilon = 1, delta = 1e-5 (defect 4)."""
    plan = make_plan(planned(1.0), FACTS, epsilon=1.0, delta=1e-5)
    assert plan.specs[0].noise_multiplier == pytest.approx(1 / 0.26805112321, rel=1e-9)


def test_fixed_noise_is_kept_and_counted():
    plan = make_plan(
        planned(1.0, 1.0, fixed=(8.0, 9.0)), FACTS, epsilon=1.0, delta=1e-5
    )
    assert [s.noise_multiplier for s in plan.specs[2:]] == [8.0, 9.0]
    assert accounting.compose_epsilon(plan.events(), 1e-5) == pytest.approx(
        1.0, rel=1e-6
    )
    with pytest.raises(ValueError, match="fixed"):
        make_plan(planned(1.0, fixed=(1.0,)), FACTS, epsilon=1.0, delta=1e-5)


def test_an_infinite_epsilon_turns_noise_and_clipping_off_and_says_so():
    plan = make_plan(LeastSquares(), FACTS, epsilon=math.inf, delta=1e-5)
    assert not plan.private
    assert all(s.noise_multiplier == 0 and s.clip_norm == math.inf for s in plan.specs)


def test_a_poisson_plan_has_the_expected_batch_over_n_as_its_probability():
    """Not one over the number of batches (defect 8): 300 of 1,000 is 0.3, not 1/3 or
    1/4.
    """
    method = make_method("dp-sgd", FACTS, {"batch_size": 300, "steps": 5})
    plan = make_plan(method.solver, FACTS, epsilon=2.0, delta=1e-5, accountant="rdp")
    gradients = [s for s in plan.specs if s.label == "gradient"]
    assert len(gradients) == 5
    assert {s.sampling_prob for s in gradients} == {0.3}
    assert accounting.compose_epsilon(plan.events(), 1e-5, accountant="rdp") <= 2.0


@pytest.mark.parametrize("delta, large", [(0.0099, False), (0.01, True), (0.02, True)])
def test_a_delta_of_one_over_n_is_large(delta, large):
    """With it a mechanism may publish one row of n, chosen at random, as it is."""
    assert (large_delta(1.0, delta, 100) is not None) == large
    assert large_delta(math.inf, delta, 100) is None


def test_the_delta_of_groups_is_held_against_the_most_groups_that_rows_can_be():
    """The number of groups is private; each of them has a row."""
    text = large_delta(1.0, 0.01, 100, group_cap=3)
    assert text is not None and "n rows form at most n groups" in text
    assert large_delta(1.0, 0.0099, 100, group_cap=3) is None


def test_the_digest_changes_with_everything_that_a_resume_must_share():
    def digest(solver=None, space="space", seed=None, facts=FACTS, epsilon=1.0):
        solver = solver or LeastSquares()
        plan = make_plan(solver, facts, epsilon=epsilon, delta=1e-5)
        return plan.digest(space, seed)

    assert digest() == digest()
    others = {
        digest(LeastSquares(ridge=0.1)),
        digest(space="other"),
        digest(seed=1),
        digest(seed=0),
        digest(epsilon=1.1),
        digest(facts=ProblemInfo(999, 8, 4)),
    }
    assert len(others | {digest()}) == 7
