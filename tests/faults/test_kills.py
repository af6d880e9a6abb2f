"""A bounded part of `python -m benchmarks faults points random folder budget`: commands
that die or race leave nothing lost and nothing charged twice.
"""

import pytest

from benchmarks.faults import kills
from benchmarks.faults.processes import stop_at


@pytest.mark.parametrize(
    "name, every", [("dp-ls", 97), ("dp-sgd", 149), ("extract", 23), ("finetune", 199)]
)
def test_a_command_that_was_killed_anywhere_goes_on_under_one_charge(name, every):
    """Every so many events; all of them take minutes."""
    tries = dict(kills.points(kills.CASES[name], every))
    assert len(tries) >= 2
    assert {at: found for at, found in tries.items() if found} == {}


@pytest.mark.parametrize(
    "name, every", [("dp-ls", 193), ("extract", 23), ("finetune", 199)]
)
def test_a_command_that_was_told_to_end_says_what_it_charged_and_goes_on(name, every):
    tries = dict(kills.points(kills.CASES[name], every, stop_at))
    assert len(tries) >= 2
    assert {at: found for at, found in tries.items() if found} == {}


def test_a_command_that_was_killed_at_random_goes_on():
    assert list(kills.random_kills(2)) == [[]] * 2


def test_fits_on_one_folder_are_one_fit():
    assert list(kills.same_folder(1)) == [[]]


def test_fits_at_once_keep_to_a_budget():
    assert list(kills.one_budget(1, processes=8, room=3)) == [[]]
