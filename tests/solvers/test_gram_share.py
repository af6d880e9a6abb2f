"""The Gram matrix's share of least squares: from public numbers, and what is charged
stays the plan's.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.planning.methods import make_method
from dphead.solvers import ProblemInfo
from dphead.solvers.gram_share import gram_share

FACTS = ProblemInfo(50_000, 1_280, 10, mu=0.27)
SIZES = st.integers(0, 10**9)
BUDGETS = st.floats(1e-9, 1e9) | st.just(math.inf)


@settings(deadline=None)
@given(SIZES, st.integers(1, 10**6), st.integers(2, 10**6), BUDGETS)
def test_it_is_a_share_whatever_the_sizes(n, d, m, mu):
    assert 0.05 <= gram_share(ProblemInfo(n, d, m, mu)) <= 0.55


def test_more_rows_or_budget_give_the_gram_matrix_more_and_more_classes_less():
    share = gram_share(FACTS)
    assert 0.05 < share < 0.55
    assert gram_share(replace(FACTS, n_rows=20_000)) < share
    assert gram_share(replace(FACTS, mu=0.1)) < share
    assert gram_share(replace(FACTS, n_classes=100)) < share
    more = gram_share(replace(FACTS, n_rows=100_000))
    assert more > share
    # rows and budget come in by their product alone
    assert gram_share(replace(FACTS, mu=0.54)) == pytest.approx(more)


def shares(solver, facts=FACTS):
    """Each release's weight over all of them."""
    planned = solver.plan(facts)
    whole = sum(p.weight for p in planned)
    return {p.label: p.weight / whole for p in planned}


@pytest.mark.parametrize("preset", ["fc23", "fc23-imagenet"])
def test_the_papers_presets_keep_their_equal_noise(preset):
    given = {"ridge": 1.0, "alpha": 1.0}
    solver = make_method("dp-ls", FACTS, given, preset).solver
    assert solver.gram_share is None
    third = pytest.approx(1 / 3)
    assert shares(solver) == dict.fromkeys(("gram", "class sums", "class grams"), third)
