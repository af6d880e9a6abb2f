"""Commands that a benchmark runs in processes of their own, run in this one."""

import subprocess

import pytest
from click.testing import CliRunner

from benchmarks.commands import main


@pytest.fixture
def children_here(monkeypatch):
    """`python -m benchmarks ...` in a process of its own is answered by the group.

    Another module is refused: it would do nothing where only the group has a command.
    """
    started = subprocess.run

    def run(command, **options):
        if command[1] != "-m":
            return started(command, **options)
        assert command[2] == "benchmarks"
        done = CliRunner().invoke(main, command[3:])
        error = "" if done.exception is None else repr(done.exception)
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, error)

    monkeypatch.setattr(subprocess, "run", run)
