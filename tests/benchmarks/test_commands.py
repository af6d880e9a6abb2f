"""`python -m benchmarks`: every command answers, and no module is run otherwise."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import heads
from benchmarks.commands import METHODS, TITLES, main

SOURCES = Path(__file__).parents[2] / "benchmarks"


def answer(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_says_what_it_does(name):
    done = answer(name, "--help")
    assert done.exit_code == 0
    assert main.commands[name].help


def test_the_group_lists_every_command_under_its_kind():
    shown = answer("--help").output
    for name, command in main.commands.items():
        assert (f"\n  {name} " in shown) is not command.hidden
    assert set(main.kinds.values()) == set(TITLES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "nothing"), "name must be one of"),
        (("expected", "nothing"), "dataset must be one of"),
        (("exact", "nothing"), "name must be one of"),
        (("endtoend", "nothing"), "Invalid value"),
        (("run", "nothing"), "got"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message):
    done = answer(*arguments)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert "Traceback" not in done.output


def test_the_methods_are_those_of_the_tables():
    assert METHODS == heads.METHODS


def test_no_module_reads_its_arguments_by_hand():
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        assert "__name__ ==" not in text, path
        assert not re.search(r"sys\.argv(?! =)", text), path
