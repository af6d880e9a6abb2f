"""`python -m benchmarks`: every command answers, and no module is run otherwise."""

import re
from pathlib import Path

from benchmarks.commands import main

ROOT = Path(__file__).parents[2]
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


def test_every_command_that_is_named_exists():
    for path in texts():
        named = set(NAMED.findall(path.read_text().replace("$(PY)", "python")))
        assert named <= set(main.commands), path


def test_every_file_that_is_named_exists():
    for path in texts():
        for name in FILES.findall(path.read_text()):
            assert (ROOT / name).exists(), path
