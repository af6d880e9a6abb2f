"""`python -m benchmarks`: every command answers, and no module is run otherwise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import heads
from benchmarks.commands import METHODS, main
from benchmarks.group import TITLES

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "benchmarks"
HEAVY = ("jax", "numba", "numpy", "scipy", "sklearn", "torch")
# a command's name after the group's, across a line's end
NAMED = re.compile(r"python\s+-m\s+benchmarks\s+([a-z][\w-]*)")
FILES = re.compile(r"(?<![\w/])benchmarks/[\w/]+\.(?:py|md|jsonl|png)")


def texts():
    """Every text of the project that may name a command or a file of benchmarks."""
    yield ROOT / "Makefile"
    for folder in ("benchmarks", "docs", "dphead", "extract"):
        for ending in ("*.py", "*.md", "*.toml"):
            yield from (ROOT / folder).rglob(ending)
    yield from ROOT.glob("*.md")


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
        (("finetune", "nothing"), "Invalid value"),
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


def test_every_command_that_is_named_exists():
    for path in texts():
        named = set(NAMED.findall(path.read_text().replace("$(PY)", "python")))
        assert named <= set(main.commands), path


def test_every_file_that_is_named_exists():
    for path in texts():
        for name in FILES.findall(path.read_text()):
            assert (ROOT / name).exists(), path


def test_help_loads_no_library():
    script = (
        "import sys; from benchmarks import commands; "
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "[]\n", done.stderr
