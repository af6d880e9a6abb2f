"""A bounded part of `python -m benchmarks faults limits`: a full disk, no rights, no
home.
"""

import os
from itertools import islice

import pytest

from benchmarks.faults import kills, limits
from benchmarks.faults.processes import Ended, full_at


@pytest.mark.parametrize(("name", "every"), [("dp-ls", 41), ("extract", 4)])
def test_a_full_disk_is_one_line_and_loses_nothing(name, every):
    tries = dict(kills.points(kills.CASES[name], every, full_at))
    assert len(tries) >= 3
    assert {at: found for at, found in tries.items() if found} == {}


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
