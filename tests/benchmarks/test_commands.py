"""`python -m benchmarks`: every command answers, and no module is run otherwise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.commands import main

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("extraction", "nothing"), "Invalid value"),
        (("run", "nothing"), "got"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message):
    done = answer(*arguments)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert "Traceback" not in done.output


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
