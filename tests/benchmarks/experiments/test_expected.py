"""What today's rule makes of estimates that were released before it."""

import numpy as np
import pytest

from benchmarks.experiments import expected
from benchmarks.store import RESULTS, read
from dphead.planning.plan import make_plan
from dphead.solvers import Auto, ProblemInfo
from dphead.solvers.expectation import overfit
from dphead.solvers.head import AccuracyEstimate


def rows(name):
    return [r for r in read(RESULTS / "heads" / f"{name}.jsonl") if r["expected"]]


@pytest.mark.parametrize("name", expected.WHOLE)
def test_the_count_behind_a_stored_estimate_is_found(name):
    """To 1e-9: the root is found to 2e-12."""
    row = rows(name)[0]
    found = expected.today(row)
    sizes = [row["features"][k] for k in ("n_rows", "n_features", "n_classes")]
    facts = ProblemInfo(*sizes)
    plan = make_plan(
        Auto(),
        facts,
        epsilon=row["epsilon"],
        delta=row["delta"],
    )
    facts = plan.budgeted(facts)
    descent = Auto().descent_for(facts)
    seen = found.accuracy
    for _ in range(50):  # seen = found + what it loses, a contraction
        seen = found.accuracy + overfit(facts, descent, seen, sizes[0])
    then = expected._by_former(facts, descent, seen)
    assert then == pytest.approx(row["expected"]["accuracy"], abs=1e-9)
    assert found.low < found.accuracy < found.high


@pytest.mark.parametrize(
    "name",
    ["cifar10-mobilenetv2", "cifar10-deep-patches", "mnist-deep-patches"],
)
def test_the_noise_behind_a_stored_estimate_is_the_plans(name):
    """Of `auto`'s two counts; to 5 %: rows that count were a noisy number then."""
    row = rows(name)[0]
    n = row["features"]["n_rows"]
    facts = ProblemInfo(n, row["features"]["n_features"], 10)
    plan = make_plan(
        Auto(),
        facts,
        epsilon=row["epsilon"],
        delta=row["delta"],
    )
    noises = {s.label: s.noise_multiplier for s in plan.specs}
    then = AccuracyEstimate(**row["expected"])
    facts = plan.budgeted(facts)
    descent = Auto().descent_for(facts)
    found = expected._seen_behind(facts, descent, then)
    wanted = noises["correct rows"] * np.hypot(found, 1 - found) / n
    noise = expected._noise_behind(then, found, n)
    assert noise == pytest.approx(wanted, rel=0.05)


def test_a_row_of_another_commit_has_todays_rule():
    row = rows(expected.WHOLE[0])[0] | {"commit": "0000000"}
    assert vars(expected.today(row)) == row["expected"]
