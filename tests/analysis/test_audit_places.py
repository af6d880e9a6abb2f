"""Rows in every place, rows without effect, and large releases without rows.

A correct method passes with certainty. The chance to miss a defect is negligible.
"""

from dataclasses import replace

import numpy as np
import pytest
from fits import with_noise

from dphead.analysis import audit
from dphead.analysis.audit_places import exact_findings
from dphead.analysis.audit_transcript import (
    NoiseAlone,
    planned,
    random_places,
    worst_case,
)
from dphead.data import arrays
from dphead.planning.methods import make_method
from dphead.privacy import sampling, statistic_base, transform
from dphead.privacy.noise import NoiseSource
from dphead.privacy.transform import IntegerRows
from dphead.solvers.base import ProblemInfo
from dphead.sums import kernels, passes
from dphead.sums.cpu import CpuSums

FACTS = ProblemInfo(24, 3, 2)
ADD, FINE = CpuSums.add, transform.fine


def prepared(method="dp-ls", relation="zero_out", group_cap=None):
    solver = make_method(method, FACTS, {}).solver
    plan = with_noise(solver, FACTS, relation=relation, group_cap=group_cap)
    problem = worst_case(FACTS, plan)
    return problem, audit.kinds_of_fits(solver, plan, problem)


def failed(share=1.0, broken=0, **given):
    problem, kinds = prepared(**given)
    found = exact_findings([problem], [kinds], share, broken)
    return {f"{f.name}: {f.about}" for f in found if f.p == 0}


@pytest.mark.parametrize("relation", ["zero_out", "add_remove", "replace_one"])
@pytest.mark.parametrize("method", ["dp-ls", "dp-newton"])
def test_a_correct_method_passes_in_every_place(method, relation):
    assert failed(method=method, relation=relation) == set()


def test_a_group_of_any_id_is_capped(monkeypatch):
    assert failed(group_cap=2) == set()

    def of_odd_ids(groups, cap, shape):
        return sampling.within_cap(groups, cap or 99) | (groups % 2 == 0)

    # 24 slots have random ids: all are even, or all odd, with a chance of 2**-24
    monkeypatch.setattr(arrays, "within_group_cap", of_odd_ids)
    assert failed(group_cap=2) >= {"movement by the canary: each slot and group"}


def numpy_sums(monkeypatch):
    """The defects below would write beyond the sums of a compiled kernel."""
    monkeypatch.setattr(kernels, "library", None)
    monkeypatch.setattr(passes, "check_equal", lambda *_: None)


def test_one_slot_of_which_a_row_counts_differently_is_found(monkeypatch):
    """By 3 % only, so that no movement exceeds the sensitivity by itself."""
    numpy_sums(monkeypatch)

    def add(self, ask, rows, y, used, out):
        first = np.where(np.arange(len(y)) == 0, 0.97, 1.0)[:, None]
        smaller = IntegerRows((rows.q * first).astype(rows.q.dtype), rows.scale)
        return ADD(self, ask, smaller, y, used, out)

    monkeypatch.setattr(CpuSums, "add", add)
    # a row without effect before the canary can shift it out of the first place
    found = failed() - {"rows without effect: all releases"}
    assert found == {"movement by the canary: each slot and group"}


def test_rows_that_must_not_count_are_found_if_they_do(monkeypatch):
    numpy_sums(monkeypatch)
    with monkeypatch.context() as wrong:
        wrong.setattr(statistic_base, "labeled", lambda statistic, y: y >= 0)
        assert failed() == {"rows without effect: all releases"}
    with monkeypatch.context() as wrong:
        wrong.setattr(transform, "fine", lambda x: FINE(np.nan_to_num(x, posinf=1)))
        assert failed() == {"rows without effect: all releases"}


def test_a_row_that_spoils_its_block_is_found(monkeypatch):
    """A row that is not finite adds nothing here, but takes the others with it."""
    numpy_sums(monkeypatch)

    def add(self, ask, rows, y, used, out):
        return ADD(self, ask, rows, y, used & (rows.scale > 0).all(), out)

    monkeypatch.setattr(CpuSums, "add", add)
    assert "rows without effect: all releases" in failed()


def test_movements_and_numbers_of_the_fits_are_judged():
    assert failed(share=1.001) == {"movement by the canary: all releases"}
    assert failed(broken=1) == {"whole units: all releases"}


def test_a_number_off_its_grid_is_counted_and_a_negative_zero_too():
    seen = next(iter(prepared()[1].values()))
    exact, broken = seen.units()
    assert broken == 0
    value = seen.released.value
    for wrong in (np.nextafter(value, np.inf), value * -0.0):
        other = replace(seen, released=replace(seen.released, value=wrong))
        assert other.units()[1] == value.size
    np.testing.assert_array_equal(exact, np.rint(exact))


def test_places_are_random_and_a_group_has_one_id():
    """24 slots: one of them is never drawn with odds of 24 (23/24)^400 < 1e-6."""
    last = set()
    for _ in range(400):
        places = random_places(24, 3, 2)
        slots, groups = places["slots"], places["groups"]
        assert len(set(slots)) == 5 and slots.min() >= 0 and slots.max() < 24
        assert len(set(groups)) == 4 and groups[-1] == groups[-2]
        last.add(int(slots[-1]))
    assert last == set(range(24))
    assert random_places(1000, 15, 1, 0)["slots"][-1] == 0
    # a few pieces of slots hold all rows
    assert np.ptp(random_places(10_000, 15, 1)["slots"]) < 64


def test_large_releases_have_the_noise_of_the_method():
    kinds = prepared()[1].values()
    alone = list(NoiseAlone(kinds, NoiseSource()))
    assert [s.statistic.symmetric for s in alone] == [False, True]
    sds = {planned(kind)[1] for kind in kinds}
    for seen in alone:
        assert any(planned(seen)[1] == pytest.approx(sd, rel=1e-9) for sd in sds)
        assert seen.released.value.size > 500
    one = prepared("prototypes")[1].values()
    assert len(list(NoiseAlone(one, NoiseSource()))) == 1
