"""Helpers of the command-line tests: a small features file, a command in this process,
what a folder holds.
"""

import csv
import io
import json
import multiprocessing
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import click
import numpy as np
from dphead_extract.features.format import open_features, write_features

from dphead.analysis.ledger_place import default_ledger_path, ledger_home, located
from dphead.cli import main
from dphead.privacy.ledger import Ledger

NOT_PRIVATE = "--i-know-this-is-not-private"
PROGRESS = re.compile(r"\(\d+ s\)$")  # ends a line of progress
CLASSES = ["cat", "dog", "owl"]
LS = ("--method", "dp-ls", "--backend", "numpy")  # the quickest method
# of features that say that they were extracted from images, by pixels as they are
OF_IMAGES = {"backbone": "resnet18", "transform": {"mean": None}}


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


def dphead(*arguments) -> Done:
    """Run `dphead arguments` in this process, through the entry point that turns errors
    into exit codes.
    """
    out = io.StringIO()
    err = io.StringIO()
    argv = ["dphead", *(str(a) for a in arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = 0 if stop.code is None else int(stop.code)
    return Done(code, out.getvalue(), err.getvalue())


def fitted(*arguments) -> Done:
    """The same for a command that must succeed."""
    done = dphead(*arguments)
    assert done.code == 0, done.err
    return done


def fit(features, out, *options) -> Done:
    """Fit with the quickest method, unless the options name another."""
    return fitted("fit", features, "-o", out, *LS, *options)


def words(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())


def table(text: str) -> list[dict[str, str]]:
    """The rows of a text in CSV."""
    return list(csv.DictReader(io.StringIO(text)))


def rows(n=240, d=12, m=3, seed=0):
    """Features (n, d) float32 in [0, 1) whose first m columns tell the class, and
    labels (n,).
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, m, n)
    x = rng.random((n, d), np.float32)
    x[np.arange(n), y] += 2
    return x / 3, y


def features_file(
    path: Path, n=240, d=12, m=3, seed=0, classes=CLASSES, **more
) -> Path:
    """A features file of `rows`; `more` goes to `write_features`."""
    x, y = rows(n, d, m, seed)
    write_features(path, x, y, classes, **more)
    return path


def run_of(folder: Path, *options) -> Path:
    """A run of the folder's train.h5, which is made, with a ledger beside it."""
    features = features_file(folder / "train.h5")
    fit(features, folder / "run", *options, "--ledger", folder / "ledger.sqlite")
    return folder / "run"


def report_of(run: Path) -> dict:
    """A run's report without its digest."""
    report = json.loads((run / "report.json").read_text())
    report.pop("sha256", None)
    return report


def id_of(features: Path) -> str:
    """The id of a features file's data set."""
    with open_features(features) as file:
        return file.dataset_id


def ledger_of(features: Path) -> Ledger:
    """The default ledger of a features file's data set."""
    return Ledger(default_ledger_path(id_of(features)))


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    # of commands as a user who cannot read the interpreter: tests/faults
    ["dphead.cli", "benchmarks.faults.loaded", "jax.numpy", "scipy.stats"]
)


class Fork:
    """A script in a process of its own: a fork of one that has loaded the libraries,
    which takes seconds in a fresh interpreter. script: `sys.argv` has the arguments."""

    def __init__(self, folder: Path, script: str, *arguments, **env):
        self._said = [folder / f"{id(self)}.{name}" for name in ("out", "err")]
        argv = ["-c", *map(str, arguments)]
        given = (script, argv, dict(os.environ) | env, self._said)
        self._process = FORKS.Process(target=_run_script, args=given)
        self._process.start()

    def wait(self, timeout=600) -> Done:
        """How it ended; a negative code is the signal that killed it."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"no end after {timeout} s"
        out, err = (path.read_text() for path in self._said)
        return Done(self._process.exitcode, out, err)


def _run_script(script, argv, env, said):
    for stream, path in enumerate(said, 1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    exec(compile(script, "script", "exec"), {"__name__": "__main__"})


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def charges() -> int:
    """Fits in all ledgers under DPHEAD_HOME."""
    return sum(len(Ledger(path).fits()) for path in ledger_home().rglob("*.sqlite"))


def refused(done: Done) -> str:
    """The one line on stderr of a command that refused its input."""
    assert done.code == 2, (done.code, done.out, done.err)
    lines = done.err.strip().splitlines()
    # click's own lines before its error
    usage = [line for line in lines if line.startswith(("Usage:", "Try "))]
    # of a machine that is busy
    usage += [line for line in lines if PROGRESS.search(line)]
    errors = [line for line in lines if line and line not in usage]
    assert len(errors) == 1 and errors[0].startswith("Error: "), done.err
    return errors[0]


def refusal(*arguments) -> str:
    """What a command says that must be refused."""
    return refused(dphead(*arguments))


def ledger_path_of(run):
    """The file of the ledger that a run's report names."""
    return located(report_of(run)["ledger"]["path"], Path(run))


def every_command() -> dict[str, click.Command]:
    """Return every command of `dphead`, by its words."""
    from dphead.cli import cli

    found = {}

    def add(command: click.Command, words: str) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                add(command.get_command(context, name), f"{words} {name}".strip())
        else:
            found[words] = command

    add(cli, "")
    return found
