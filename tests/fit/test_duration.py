"""A fit tells before its charge how long it takes, and is refused if it takes hours."""

import numpy as np
import pytest
from core import python

from dphead.data.arrays import ArrayRows
from dphead.fit.duration import (
    LIMIT_SECONDS,
    LONG_SECONDS,
    check_duration,
    expected_seconds,
)
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.ledger import Ledger
from dphead.solvers import DPFC, Auto, LeastSquares, Newton, ProblemInfo, Prototypes

LARGE = ProblemInfo(50_000, 1280, 200, mu=0.3)


def seconds(solver, facts=LARGE):
    return expected_seconds(solver.plan(facts), facts)


def test_a_matrix_for_each_class_takes_hours_and_is_refused_before_the_charge():
    solver, facts, book = Newton(steps=100), ProblemInfo(500, 1280, 200), Ledger()
    assert seconds(solver, facts) > LIMIT_SECONDS
    plan = make_plan(solver, facts, epsilon=1.0, delta=1e-6)
    rows = ArrayRows(np.zeros((500, 1280), np.float32), np.zeros(500, int))
    with pytest.raises(
        ValueError, match=r"would need about \d+ hours? .*dp-fc` or `--method auto"
    ):
        fit_head(plan, rows, Run(ledger=book))
    assert book.fits() == []


@pytest.mark.parametrize(
    "solver", [Auto(), DPFC(), LeastSquares(), Prototypes()], ids=lambda s: s.name
)
def test_no_other_method_has_a_limit(solver):
    """None would be faster at what they do, and all are within a minute here."""
    assert check_duration(solver.plan(LARGE), LARGE, solver.name) < 3 * LONG_SECONDS
    many = ProblemInfo(10**9, 1280, 200, mu=0.3)
    assert check_duration(solver.plan(many), many, solver.name) > LONG_SECONDS


SHORT_FIT = """
import sys
import numpy as np
from dphead.data.arrays import ArrayRows
from dphead.fit.duration import cpu_sums
from dphead.fit.loop import fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.statistic_base import Params
from dphead.privacy.transform import RowTransform
from dphead.solvers import Auto, ProblemInfo

x = np.random.default_rng(0).normal(size=(300, 512)).astype(np.float32)
y = np.arange(300) % 10
facts = ProblemInfo(*x.shape, 10)
plan = make_plan(Auto(), facts, epsilon=1.0, delta=1e-5)
fit_head(plan, ArrayRows(x, y))
print("numba" in sys.modules)
facts = ProblemInfo(50_000, 512, 10)
plan = make_plan(Auto(), facts, epsilon=1.0, delta=1e-5)
releases = Auto().plan(plan.budgeted(facts))
ask = SumTask(releases[0].statistic, Params(RowTransform()), 1.0, None)
cpu_sums(releases, facts).rows(ask, Block(np.arange(300), x, y))
print("numba" in sys.modules)
"""


def test_a_short_fit_loads_no_compiler_and_a_long_one_does():
    done = python(SHORT_FIT)
    assert done.out.split() == ["False", "True"], done.err
