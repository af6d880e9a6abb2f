"""A bounded part of `python -m benchmarks faults hostile`: no traceback, no silence, no
code run.
"""

import random
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.faults import arguments, hostile
from benchmarks.faults.processes import HANGS, Ended
from benchmarks.faults.sources import SOURCES, TOUCHED, Touch
from benchmarks.faults.weights import WEIGHTS


def test_hostile_files_and_arguments_are_refused():
    assert [found for found in hostile.tries(24, seed=3) if found] == []


def test_what_is_broken_is_found(tmp_path):
    """The probe's own eyes."""
    for said, code, word in (
        ("", HANGS, "without a word"),
        ("died", -2011, "died"),
        ("Traceback ...", 1, "traceback"),
        ("", 3, "exit code 3"),
    ):
        assert word in hostile.verdict(tmp_path, Ended(code, 0, said))
    assert hostile.verdict(tmp_path, Ended(2, 0, "Error: no")) == ""
    import pickle

    pickle.loads(pickle.dumps(Touch(tmp_path)))
    assert (tmp_path / TOUCHED).exists()
    assert "was run" in hostile.verdict(tmp_path, Ended(2, 0, "Error: no"))


@pytest.mark.parametrize(
    "write", sorted({*SOURCES, *WEIGHTS}, key=lambda w: w.__name__)
)
def test_every_hostile_file_is_made(write, tmp_path):
    path = write(tmp_path, random.Random(0))
    assert isinstance(path, Path)
    assert path.exists() or path.is_symlink()


def test_every_option_of_every_command_has_its_turn():
    commands = arguments.commands()
    assert set(commands) == set(arguments.BASES)
    tried = list(islice(arguments.tries(400), 400))
    words = {" ".join(one[:2]) for one in tried} | {one[0] for one in tried}
    assert set(commands) <= words
