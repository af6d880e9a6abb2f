"""A fit tells before its charge how long it takes, and is refused if it takes hours."""

import numpy as np
import pytest

from dphead.data.arrays import ArrayRows
from dphead.fit.duration import (
    LIMIT_SECONDS,
    LONG_SECONDS,
    check_duration,
    expected_seconds,
    time_in_words,
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
    with pytest.raises(ValueError, match=r"got \d+ hours? .*dp-fc` or `--method auto"):
        fit_head(solver, rows, facts, plan, Run(ledger=book))
    assert book.fits() == []


@pytest.mark.parametrize(
    "solver", [Auto(), DPFC(), LeastSquares(), Prototypes()], ids=lambda s: s.name
)
def test_no_other_method_has_a_limit(solver):
    """None would be faster at what they do, and all are within a minute here."""
    assert check_duration(solver.plan(LARGE), LARGE, solver.name) < 3 * LONG_SECONDS
    many = ProblemInfo(10**9, 1280, 200, mu=0.3)
    assert check_duration(solver.plan(many), many, solver.name) > LONG_SECONDS


def test_time_grows_with_rows_steps_and_the_matrix_of_each_class():
    for more, less in (
        (seconds(Newton(steps=4)), 4 * seconds(Newton()) * 0.9),
        (seconds(Newton()), 100 * seconds(LeastSquares())),
        (seconds(DPFC(steps=40)), 2 * seconds(DPFC())),
        (seconds(Auto(), ProblemInfo(10**7, 1280, 200, mu=0.3)), 50 * seconds(Auto())),
    ):
        assert more > less > 0


@pytest.mark.parametrize(
    "given, text",
    [
        (0.2, "1 second"),
        (59, "59 seconds"),
        (150, "2 minutes"),
        (3600, "1 hour"),
        (5e4, "14 hours"),
    ],
)
def test_times_are_told_in_round_numbers(given, text):
    assert time_in_words(given) == text
