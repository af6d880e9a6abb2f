"""The harness's own processes: what dies, hangs or runs out of memory is seen."""

import pytest

from benchmarks.faults import cases, processes
from benchmarks.faults.processes import (
    DIES,
    HANGS,
    Runner,
    Strike,
    ended,
    full_at,
    started,
)


def test_a_strike_at_a_text_comes_before_the_event(tmp_path):
    case = cases.fit(tmp_path, "run")
    strike = Strike(1, "open " + str(case.out / "releases/000000.npy.part"))
    assert ended(started(tmp_path, case.arguments, strike)).code == -9
    assert [p.name for p in (case.out / "releases").iterdir()] == ["lock"]


def test_a_full_disk_is_full_for_sqlite_too(tmp_path):
    case = cases.fit(tmp_path, "run")
    done = ended(started(tmp_path, case.arguments, full_at(1, "sql")))
    assert done.code == 2
    assert "a ledger must be on a disk" in done.said


def test_a_runner_goes_on_after_what_hangs_and_what_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PRELOADED", [])
    monkeypatch.setattr(processes, "PATIENCE", 600)  # what ends does so in its own time
    with Runner(tmp_path) as runner:
        runner.run(("--help",))
        runner._pipe.send = lambda _: runner._process.terminate()
        assert runner.run(("--help",)).code < DIES
        runner.run(("--help",))
        runner._pipe.send = lambda _: None
        monkeypatch.setattr(processes, "PATIENCE", 0.1)  # no answer ever comes
        assert runner.run(("--help",)).code == HANGS
        monkeypatch.setattr(processes, "PATIENCE", 600)
        done = runner.run(("ledger", "show", "missing"))
    assert done.code == 2
    assert "must exist" in done.said


@pytest.mark.parametrize(("user", "code"), [(0, 0), (65534, 2)])
def test_a_command_has_the_rights_of_its_user(tmp_path, user, code):
    import os

    if user and os.geteuid():
        pytest.skip("needs root, which can give up its rights")
    case = cases.fit(tmp_path, "run")
    done = ended(started(tmp_path, case.arguments, user=user))
    assert done.code == code
