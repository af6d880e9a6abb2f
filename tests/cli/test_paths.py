"""A path that is not there is said before libraries are loaded, which takes seconds."""

import json
import os
import subprocess
import sys

import pytest
from commands import (
    refusal,
)

from dphead.cli.values import check_there

COMMANDS = (
    "fit missing.h5 -o run",
    "plan missing --n-rows 9",
    "finetune missing -o run --ledger l.sqlite --classes 3",
    "extract missing -o x.h5 --backbone scatternet",
    "evaluate missing missing",
    "predict missing missing",
    "check missing",
    "ledger show missing",
)
SCRIPT = """
import json, sys
from dphead.cli import main
found = {}
for command in sys.argv[1:]:
    sys.argv = ["dphead", *command.split()]
    try:
        main()
    except SystemExit as stop:
        found[command] = stop.code
heavy = {"torch", "jax", "sklearn"}
print(json.dumps([found, sorted(heavy & set(sys.modules))]))
"""


def test_a_missing_path_loads_no_library(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *COMMANDS],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"DPHEAD_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )
    found, loaded = json.loads(done.stdout.splitlines()[-1])
    assert found == dict.fromkeys(COMMANDS, 2)
    assert loaded == []
    lines = done.stderr.splitlines()
    assert len(lines) == len(COMMANDS)
    assert all(
        line.startswith("Error: missing") and " does not exist" in line
        for line in lines
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_is_refused_before_it_is_opened(command, tmp_path, monkeypatch):
    """Reading one would wait for ever."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("missing")
    os.mkfifo("missing.h5")
    assert "is a pipe or a device" in refusal(*command.split())


def test_an_unfinished_file_beside_it_is_named(tmp_path):
    (tmp_path / "f.h5.part").write_text("")
    with pytest.raises(ValueError, match=r"\.part is unfinished"):
        check_there("a features file", tmp_path / "f.h5")
    with pytest.raises(ValueError, match="does not exist"):
        check_there("a features file", tmp_path / "missing")


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "f.h5", "-o", ""),
        ("extract", "images", "-o", "", "--backbone", "scatternet"),
        ("finetune", "images", "-o", "", "--classes", "3"),
        ("check", ""),
        ("ledger", "show", ""),
    ],
)
def test_an_empty_path_is_not_the_folder_that_one_stands_in(command, tmp_path):
    assert "a path must not be empty" in refusal(*command)
    assert list(tmp_path.iterdir()) == []
