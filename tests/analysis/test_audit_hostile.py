"""Hostile rows: mechanisms that keep their clips pass, and each way to lose one is
seen.

A defect is seeded at the name that the trusted code looks it up by, so that `release`
and the audit both have it.
"""

from dataclasses import replace

import hostile
import numpy as np
import pytest
from fits import with_noise

import dphead.data.arrays
import dphead.data.features
from dphead.analysis import audit
from dphead.analysis.audit_transcript import worst_case
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.contract import Block
from dphead.solvers.base import ProblemInfo
from dphead.sums import passes
from dphead.sums.cpu import CpuSums

FACTS = ProblemInfo(40, 3, 2)
RAW = {"unit_norm": False, "steps": 1, "clip_norm": 0.5}
# times the clip norm: the canary of fits does not reach it, and the grid still shows it
LOST = 64
# a correct mechanism fails a test at this confidence with odds of at most 1e-7
SURE = 1 - 1e-7


def planned(method, settings, relation="zero_out", group_cap=None, epsilon=1.0):
    solver = make_method(method, FACTS, dict(settings)).solver
    plan = make_plan(
        solver,
        FACTS,
        epsilon=epsilon,
        delta=1e-5,
        relation=relation,
        group_cap=group_cap,
    )
    return solver, plan


def measured(method="dp-sgd", settings=RAW, relation="zero_out", group_cap=None):
    solver, plan = planned(method, settings, relation, group_cap)
    return hostile.measure(solver, plan, FACTS)


def attacked(
    method="dp-sgd", settings=RAW, relation="zero_out", group_cap=None, fits=100
):
    """What fits with the worst-case canary show."""
    solver, plan = planned(method, settings, relation, group_cap)
    problem = worst_case(FACTS, plan)
    return audit.attack(solver, plan, [problem], fits, confidence=SURE)


@pytest.mark.parametrize(
    "method, settings, group_cap, relation",
    [
        ("dp-sgd", RAW, None, "zero_out"),
        ("dp-sgd", RAW, 2, "add_remove"),
        ("dp-sgd", {**RAW, "loss": "squared", "intercept": 1.0}, None, "replace_one"),
        ("dp-ls", {}, 2, "replace_one"),
        ("dp-newton", {}, None, "zero_out"),
    ],
)
def test_honest_mechanisms_pass_and_hostile_rows_reach_their_clips(
    method, settings, group_cap, relation
):
    found = measured(method, settings, relation, group_cap)
    assert found["passed"], found
    assert found["largest_disagreement"] == 0  # integers: one sum, whatever the way
    # rows are brought to a little less than the clip, and rounded
    assert 0.99 < found["largest_share"] <= 1


def test_poisson_batches_of_groups_are_measured():
    solver = make_method("dp-sgd", FACTS, RAW | {"batch_size": 10}).solver
    plan = with_noise(solver, FACTS, relation="add_remove", group_cap=2)
    found = hostile.measure(solver, plan, FACTS)
    assert found["passed"]
    assert 0.99 < found["largest_share"] <= 1
    with pytest.raises(ValueError, match="`--group-cap` needs full batches"):
        worst_case(FACTS, plan)


def trusting(monkeypatch):
    """Sums that nothing compares with the reference: what an audit sees where that
    check is lost as well.
    """
    monkeypatch.setattr(passes, "check_equal", lambda *_: None)


def clip_at(monkeypatch, factor):
    """Sums in which rows are clipped at `factor` times the planned norm, in the planned
    units.
    """
    trusting(monkeypatch)
    rows_of = CpuSums.rows
    add_to = CpuSums.add

    def wider(ask):
        return replace(ask, clip_norm=factor * ask.clip_norm)

    def rows(self, ask, block):
        return rows_of(self, wider(ask), block)

    def add(self, ask, rows, y, used, out):
        append = ask.params.transform.append
        units = [a.statistic.unit(a.clip_norm, append) for a in (ask, wider(ask))]
        total = add_to(self, wider(ask), rows, y, used, np.zeros_like(out))
        out += np.rint(total * (units[1] / units[0])).astype(np.int64)
        return out

    monkeypatch.setattr(CpuSums, "rows", rows)
    monkeypatch.setattr(CpuSums, "add", add)


def test_a_mechanism_without_its_clip_fails(monkeypatch):
    """By its own measure, and by fits whose canary is ten clip norms long."""
    assert attacked()["passed"]
    clip_at(monkeypatch, LOST)
    found = measured()
    assert found["largest_share"] == pytest.approx(LOST, rel=0.01)
    assert not found["passed"]
    found = attacked()
    assert not found["passed"]
    assert found["canary_epsilon"] > found["epsilon"] == 1
    assert found["epsilon_lower_bound"] > 1


def test_rows_that_a_streamed_file_gives_wrongly_fail(monkeypatch):
    real = dphead.data.features.FeaturesRows._block

    def wrong(self, index, raw, size):
        block = real(self, index, raw, size)
        return Block(block.index, block.x[::-1].copy(), block.y)

    monkeypatch.setattr(dphead.data.features.FeaturesRows, "_block", wrong)
    found = measured()
    assert not found["passed"]
    assert found["largest_disagreement"] > 0.1
