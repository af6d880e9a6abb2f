"""A few fake rows, and a benchmark's child processes answered in this one."""

import subprocess

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import features
from benchmarks.commands import main
from dphead.data.arrays import ArrayRows
from dphead.solvers import ProblemInfo

D = 6
M = 3
N = 384


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


@pytest.fixture
def tiny(monkeypatch):
    """Rows (N, D) and labels of M classes, which every data set has."""
    rng = np.random.default_rng(0)
    y = np.arange(N) % M
    x = rng.normal(size=(N, D)) + 3 * np.eye(D)[y]
    x = x.astype(np.float32)

    def load(dataset, name, held_out=False):
        n = N - 128 if held_out else N
        return features.Loaded(
            ArrayRows(x[:n], y[:n], 128),
            x[-128:],
            y[-128:],
            ProblemInfo(n, D, M),
            {"digest": "0"},
        )

    monkeypatch.setattr(features, "load", load)
    return x, y
