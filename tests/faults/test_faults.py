"""A bounded part of `python -m benchmarks faults`: commands that die or race leave
nothing lost and nothing charged twice.
"""

import pytest

from benchmarks.experiments import faults


@pytest.mark.parametrize(("method", "every"), [("dp-ls", 5), ("dp-sgd", 23)])
def test_a_fit_that_was_killed_anywhere_goes_on_under_one_charge(method, every):
    """Every so many events; all of them take minutes."""
    tries = dict(faults.kill_points(method, every))
    assert len(tries) > 3
    assert {at: found for at, found in tries.items() if found} == {}


def test_fits_on_one_folder_are_one_fit():
    assert list(faults.same_folder(2)) == [[], []]


def test_fits_at_once_keep_to_a_budget():
    assert list(faults.one_budget(1, processes=8, room=3)) == [[]]


def test_what_is_broken_is_found(tmp_path):
    """The probes' own eyes: a run without a report, and one that was charged twice."""
    features = faults.features_file(tmp_path / "f.h5")
    run = tmp_path / "run"
    command = ("fit", str(features), "-o", str(run), "--delta", "1e-3")
    assert "cannot be read" in str(faults.problems_of_run(tmp_path, run))
    assert faults.run_to_end(tmp_path, command).code == 0
    assert faults.problems_of_run(tmp_path, run) == []
    twice = (*command[:3], str(tmp_path / "again"), *command[4:])
    assert faults.run_to_end(tmp_path, twice).code == 0
    assert "2 charges of one fit" in faults.problems_of_run(tmp_path, run)


def test_an_unknown_probe_is_refused():
    with pytest.raises(ValueError, match="probe must be one of"):
        faults.run("nothing")
