"""The Gram matrix's share of least squares: from public numbers, and what is charged
stays the plan's.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.solvers import LeastSquares, ProblemInfo
from dphead.solvers.gram_share import LEAST, MOST, gram_share

FACTS = ProblemInfo(50_000, 1_280, 10, mu=0.27)
SIZES = st.integers(0, 10**9)
BUDGETS = st.floats(1e-9, 1e9) | st.just(math.inf)


@settings(deadline=None)
@given(SIZES, st.integers(1, 10**6), st.integers(2, 10**6), BUDGETS)
def test_it_is_a_share_whatever_the_sizes(n, d, m, mu):
    assert LEAST <= gram_share(ProblemInfo(n, d, m, mu)) <= MOST


def test_more_rows_or_budget_give_the_gram_matrix_more_and_more_classes_less():
    share = gram_share(FACTS)
    assert LEAST < share < MOST
    assert gram_share(replace(FACTS, n_rows=20_000)) < share
    assert gram_share(replace(FACTS, mu=0.1)) < share
    assert gram_share(replace(FACTS, n_classes=100)) < share
    more = gram_share(replace(FACTS, n_rows=100_000))
    assert more > share
    # rows and budget come in by their product alone
    assert gram_share(replace(FACTS, mu=0.54)) == pytest.approx(more)


def test_without_noise_it_is_the_most():
    assert gram_share(replace(FACTS, mu=math.inf)) == MOST


def shares(solver, facts=FACTS):
    """Each release's weight over all of them."""
    planned = solver.plan(facts)
    whole = sum(p.weight for p in planned)
    return {p.label: p.weight / whole for p in planned}


def test_the_solver_splits_by_it_what_the_centre_leaves():
    found = shares(LeastSquares())
    rest = 1 - LeastSquares().centering.share
    assert found["gram"] == pytest.approx(rest * gram_share(FACTS))
    assert found["class sums"] == pytest.approx(rest * (1 - gram_share(FACTS)))


def test_a_given_share_rules():
    rest = 1 - LeastSquares().centering.share
    found = shares(LeastSquares(gram_share=0.2))
    assert found["gram"] == pytest.approx(0.2 * rest)


def test_class_gram_matrices_keep_the_share_of_before():
    found = shares(LeastSquares(class_grams=True))
    assert found["gram"] == pytest.approx(0.35 * (1 - LeastSquares().centering.share))


@pytest.mark.parametrize("preset", ["fc23", "fc23-imagenet"])
def test_the_papers_presets_keep_their_equal_noise(preset):
    given = {"ridge": 1.0, "alpha": 1.0}
    solver = make_method("dp-ls", FACTS, given, preset).solver
    assert solver.gram_share is None
    third = pytest.approx(1 / 3)
    assert shares(solver) == dict.fromkeys(("gram", "class sums", "class grams"), third)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("group_cap", [None, 4])
def test_the_plan_costs_what_it_would_with_any_other_share(epsilon, group_cap):
    """The same mu in total, and the budget's epsilon."""

    def of(solver):
        plan = make_plan(
            solver, FACTS, epsilon=epsilon, delta=1e-5, group_cap=group_cap
        )
        # 1e-9: the search for the noise ends there
        assert plan.epsilon_spent() == pytest.approx(epsilon, rel=1e-9)
        return sum((1 / s.noise_multiplier) ** 2 for s in plan.specs)

    assert of(LeastSquares()) == pytest.approx(of(LeastSquares(gram_share=0.35)))


def test_few_rows_and_classes_without_a_spectrum_gain_by_it():
    """Isotropic classes, 500 rows, ε = 0.5: the Gram matrix says nothing that its own
    noise does not hide, and the sums are worth the budget.
    """
    from dphead.data.arrays import ArrayRows
    from dphead.fit.loop import Run, fit_head
    from dphead.privacy.noise import NoiseSource

    rng = np.random.default_rng(0)
    means = 0.7 * rng.normal(size=(10, 20))

    def rows(n):
        y = rng.integers(0, 10, n)
        return (means[y] + rng.normal(size=(n, 20))).astype(np.float32), y

    x, y = rows(1_000)
    held, of = rows(2_000)
    facts = ProblemInfo(*x.shape, 10)

    def accuracy(solver, seed):
        plan = make_plan(solver, facts, epsilon=0.5, delta=1e-5)
        run = Run(noise=NoiseSource(seed))
        head = fit_head(solver, ArrayRows(x, y), facts, plan, run).head
        return np.mean(head.scores(held).argmax(axis=1) == of)

    before = LeastSquares(gram_share=0.35)
    gains = [accuracy(LeastSquares(), s) - accuracy(before, s) for s in range(5)]
    assert np.mean(gains) > 0
