"""A bounded part of `python -m benchmarks faults limits`: a full disk, no rights, no
home.
"""

import os
from itertools import islice

import pytest

from benchmarks.faults import cases, kills, limits
from benchmarks.faults.processes import Ended, ended, full_at, run_to_end, started

# a command that writes a file or a folder of its own, and what it writes
WRITING = {
    "predict p.csv": ("predict", "run", "f.h5", "-o", "p.csv"),
    "predict p.json": ("predict", "run", "f.h5", "-o", "p.json"),
    "predict p.parquet": ("predict", "run", "f.h5", "-o", "p.parquet"),
    "report r.html": ("report", "run", "-o", "r.html"),
    "report r.md": ("report", "run", "--card", "-o", "r.md"),
    "export t": ("export", "run", "--to", "torch", "-o", "t"),
    "export s": ("export", "run", "--to", "sklearn", "-o", "s"),
    "account a.png": (
        *("account", "--delta", "1e-3", "--noise-multiplier", "5"),
        *("--plot", "a.png"),
    ),
    "tan n.svg": (
        *("tan", "show", "--n-rows", "100", "--batch-size", "10", "--steps", "5"),
        *("--noise-multiplier", "3", "--delta", "1e-3", "--plot", "n.svg"),
    ),
    "audit u": (
        *("audit", "--method", "dp-ls", "--fits", "20", "--n-rows", "8"),
        *("--n-features", "2", "--n-classes", "2", "-o", "u"),
    ),
}


@pytest.mark.parametrize(("name", "every"), [("dp-ls", 41), ("extract", 4)])
def test_a_full_disk_is_one_line_and_loses_nothing(name, every):
    tries = dict(kills.points(kills.CASES[name], every, full_at))
    assert len(tries) >= 3
    assert {at: found for at, found in tries.items() if found} == {}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run and its features."""
    folder = tmp_path_factory.mktemp("finished")
    assert run_to_end(folder, cases.fit(folder, "run").arguments).code == 0
    return folder


@pytest.mark.parametrize("name", WRITING)
def test_what_a_full_disk_cuts_short_is_named_and_is_not_there(name, finished):
    out = finished / name.split()[1]
    before = sorted(finished.iterdir())
    done = ended(started(finished, WRITING[name], full_at(1, "open ")))
    assert done.code == 2, done
    (line,) = [line for line in done.said.splitlines() if line.startswith("Error")]
    assert out.name in line
    left = [path for path in finished.iterdir() if path not in before]
    assert [p for p in left if not p.is_dir() or any(p.iterdir())] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which can give up rights")
def test_what_cannot_be_written_is_one_line():
    assert list(islice(limits.read_only(), 2)) == [[], []]


def test_a_missing_home_is_one_line():
    assert list(islice(limits.homes(), 4)) == [[]] * 4


def test_a_clock_that_goes_back_changes_no_order():
    assert list(islice(limits.clocks(), 3)) == [[]] * 3


def test_what_is_broken_is_found():
    assert limits.refused(Ended(0, 0, "")) == []
    assert limits.refused(Ended(2, 0, "Error: a disk\n")) == []
    assert limits.refused(Ended(2, 0, "")) != []
    assert limits.refused(Ended(1, 0, "Error: a disk\n")) != []
    assert limits.refused(Ended(2, 0, "Traceback\nError: a disk\n")) != []
