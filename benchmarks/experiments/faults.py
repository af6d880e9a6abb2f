"""Faults: what is left where a command dies, and where several run at once.

A probe makes a small features file, lets commands die or race, and says what broke:
`python -m benchmarks faults [PROBE]` runs all tries of it, stores a row in
results/faults.jsonl and prints the table; `tests/faults` runs a bounded part of each. A
command dies by SIGKILL at its k-th event: an SQL statement, a file opened for writing,
renamed, removed, flushed, a folder made or removed, in the folder of the try. After it
the same command runs again, to its end.
"""

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.prose import wrapped
from benchmarks.store import RESULTS, append, provenance, read

OUT = RESULTS / "faults.jsonl"
SECONDS = 120  # in which any command must end
# of a fit; with settings that release little, so that events are of files and SQL
METHODS = {
    "dp-ls": (),
    "dp-fc": ("--steps", "2"),
    "auto": (),
    "prototypes": (),
    "dp-sgd": ("--steps", "3"),
    "dp-adam": ("--steps", "2", "--batch-size", "20"),
}
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["dphead.cli", "dphead.runs.fit", "scipy.stats", "safetensors.numpy"]
AUDITED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


class Ended(NamedTuple):
    """A command that ended: its exit code (negative: the signal that killed it), how
    many events it had, and what it said.
    """

    code: int
    events: int
    said: str


def features_file(path: Path, seed: int = 0) -> Path:
    """60 rows of 6 features and 3 classes."""
    from extract.format import write_features

    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 60)
    x = rng.random((60, 6)).astype(np.float32) + np.eye(6, dtype=np.float32)[y]
    write_features(path, x, y, ["a", "b", "c"])
    return path


def started(folder: Path, arguments: tuple[str, ...], at: int = 0) -> Any:
    """A process that runs `dphead arguments` and dies at its event `at` (0: never)."""
    FORKS.set_forkserver_preload(PRELOADED)
    log = folder / f"{time.monotonic_ns()}.log"
    process: Any = FORKS.Process(target=_run, args=(folder, arguments, at, log))
    process.log = log
    process.start()
    return process


def ended(process: Any) -> Ended:
    """Wait for it. AssertionError if it takes more than SECONDS."""
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"a command must end in {SECONDS} s, got {process.log}")
    said = process.log.read_text() if process.log.exists() else ""
    count = Path(f"{process.log}.events")
    events = int(count.read_text()) if count.exists() else 0
    return Ended(process.exitcode, events, said)


def run_to_end(folder: Path, arguments: tuple[str, ...]) -> Ended:
    """The same command, undisturbed."""
    return ended(started(folder, arguments))


def _run(folder: Path, arguments: tuple[str, ...], at: int, log: Path) -> None:
    """In the child: `dphead arguments` with its events counted."""
    from dphead.cli import main

    os.environ["DPHEAD_HOME"] = str(folder / "home")
    sys.argv = ["dphead", *arguments]
    count = 0

    def event() -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    with open(log, "w") as said:
        _watch(folder, event)
        code = 0
        try:
            with redirect_stdout(said), redirect_stderr(said):
                main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        total = count
        said.flush()
    Path(f"{log}.events").write_text(str(total))
    os._exit(code)


def _watch(folder: Path, event: Callable[[], None]) -> None:
    """Call `event` before each SQL statement and change of a file in the folder."""
    inside = str(folder)

    def audited(name: str, args: tuple[Any, ...]) -> None:
        if name == "open":
            path, mode, _ = args
            writes = isinstance(mode, str) and any(c in mode for c in "wax+")
            if writes and str(path).startswith(inside) and ".log" not in str(path):
                event()
        elif name in AUDITED and str(args[0]).startswith(inside):
            event()

    flush, connect = os.fsync, sqlite3.connect

    def fsync(descriptor: int) -> None:
        event()
        flush(descriptor)

    def connected(*args: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(*args, **more)
        connection.set_trace_callback(lambda _: event())
        return connection

    os.fsync = fsync
    sqlite3.connect = connected  # type: ignore[assignment]
    sys.addaudithook(audited)


def fits_of(folder: Path) -> list[dict[str, Any]]:
    """Every fit of every ledger of a try."""
    from dphead.privacy.ledger import Ledger

    found = []
    for path in sorted((folder / "home").rglob("*.sqlite")):
        ledger = Ledger(path)
        found += ledger.fits()
        ledger.close()
    return found


def problems_of_run(folder: Path, run: Path) -> list[str]:
    """What is wrong with a run that is said to be finished, and its one charge."""
    from dphead.runs.export import load_head

    fits = fits_of(folder)
    problems = []
    if len(fits) != 1:
        problems.append(f"{len(fits)} charges of one fit")
    states = {r["state"] for fit in fits for r in fit["releases"]}
    if states - {"committed"}:
        problems.append(f"releases of a finished fit are {sorted(states)}")
    try:
        report = json.loads((run / "report.json").read_text())
        copy = json.loads((run / "ledger.json").read_text())
        load_head(run)
        if [f["fit_id"] for f in copy["fits"]] != [f["fit_id"] for f in fits]:
            problems.append("the ledger's copy is another")
        if report["ledger"]["fit_id"] not in {f["fit_id"] for f in fits}:
            problems.append("the report's fit was not charged")
    except (OSError, ValueError, KeyError) as error:
        problems.append(f"a finished run cannot be read: {error!r}")
    return problems


def killed_fit(method: str, at: int) -> list[str]:
    """What is wrong after a fit was killed at an event, and run again; ["whole"] if it
    had ended before.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        features = features_file(folder / "f.h5")
        run = folder / "run"
        command = _fit(features, run, method)
        first = ended(started(folder, command, at))
        if first.code == 0:
            return ["whole"]
        if first.code != -signal.SIGKILL:
            return [f"exit code {first.code}: {first.said[-300:]}"]
        return _again(folder, run, command)


def _again(folder: Path, run: Path, command: tuple[str, ...]) -> list[str]:
    """What is wrong after the same command ran again."""
    finished = (run / "report.json").exists()
    again = run_to_end(folder, command)
    if finished and again.code != 2:
        return [f"a finished run was run again: {again.code}"]
    if not finished and again.code != 0:
        return [f"the same command did not go on: {again.said[-300:]}"]
    if "Traceback" in again.said:
        return [f"a traceback: {again.said[-300:]}"]
    return problems_of_run(folder, run)


def _fit(features: Path, run: Path, method: str) -> tuple[str, ...]:
    settings = METHODS[method]
    fixed = ("--delta", "1e-3", "--backend", "numpy", "--method", method)
    return ("fit", str(features), "-o", str(run), *fixed, *settings)


def kill_points(method: str, every: int = 1) -> Iterator[tuple[int, list[str]]]:
    """(event, problems) of each `every`-th event of a fit."""
    at = 1
    while (found := killed_fit(method, at)) != ["whole"]:
        yield at, found
        at += every


def random_kills(tries: int, seed: int = 0) -> Iterator[list[str]]:
    """Problems of fits that are killed at a random moment, up to three times each."""
    rng = random.Random(seed)
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            features = features_file(folder / "f.h5")
            run = folder / "run"
            command = _fit(features, run, rng.choice(list(METHODS)))
            for _ in range(rng.randint(1, 3)):
                process = started(folder, command)
                time.sleep(rng.random() * 0.5)
                process.kill()
                process.join()
            yield _again(folder, run, command)


def same_folder(rounds: int, processes: int = 6) -> Iterator[list[str]]:
    """Problems of several processes that write one run folder at once."""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            features = features_file(folder / "f.h5")
            run = folder / "run"
            command = _fit(features, run, "dp-fc")
            all_of_them = [started(folder, command) for _ in range(processes)]
            done = [ended(process) for process in all_of_them]
            problems = problems_of_run(folder, run)
            codes = sorted(one.code for one in done)
            if codes != [0] + [2] * (processes - 1):
                problems.append(f"exit codes {codes}")
            yield problems


def one_budget(rounds: int, processes: int = 32, room: int = 10) -> Iterator[list[str]]:
    """Problems of fits that start at once on a budget for `room` of them."""
    from dphead.planning.calibration import mu_from_epsilon
    from dphead.privacy.accounting import epsilon_from_mu

    total = epsilon_from_mu(mu_from_epsilon(1.0, 1e-3) * room**0.5, 1e-3)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            features = features_file(folder / "f.h5")
            budget = ("--epsilon", repr(total), "--delta", "1e-3")
            run_to_end(folder, ("ledger", "budget", str(features), *budget))
            all_of_them = []
            for i in range(processes):
                command = _fit(features, folder / f"run{i}", "dp-ls")
                all_of_them.append(started(folder, command))
            codes = sorted(ended(process).code for process in all_of_them)
            charged = len(fits_of(folder))
            wanted = [0] * room + [2] * (processes - room)
            problems = []
            if charged != room or codes != wanted:
                problems.append(f"{charged} charges on a budget for {room}, {codes}")
            yield problems


def all_kill_points() -> Iterator[list[str]]:
    """Problems at every event of every method."""
    for method in METHODS:
        for _, found in kill_points(method):
            yield found


PROBES: dict[str, tuple[str, Callable[[], Iterator[list[str]]]]] = {
    "points": ("`fit` killed at every file and SQL event", all_kill_points),
    "random": ("`fit` killed at random moments", partial(random_kills, 300)),
    "folder": ("six fits on one `-o` at once", partial(same_folder, 200)),
    "budget": ("32 fits at once on a budget for ten", partial(one_budget, 20)),
}


def run(name: str) -> None:
    """All tries of a probe; stores a row. ValueError for another name."""
    if name not in PROBES:
        raise ValueError(
            f"probe must be one of {sorted(PROBES)}, got {name=}. Choose one."
        )
    start = time.time()
    found = list(PROBES[name][1]())
    broken = [problems for problems in found if problems]
    row = {
        "probe": name,
        "tries": len(found),
        "broken": len(broken),
        "examples": broken[:5],
        "seconds": time.time() - start,
    }
    append(OUT, row | provenance())


def table() -> str:
    """The newest row of each probe."""
    newest = {row["probe"]: row for row in read(OUT)}
    lines = ["| probe | tries | broke | seconds | commit |", "|---|---|---|---|---|"]
    for name, (title, _) in PROBES.items():
        if name in newest:
            r = newest[name]
            lines.append(
                f"| {title} | {r['tries']} | {r['broken']} | {r['seconds']:.0f} | "
                f"{r['commit']} |"
            )
    return wrapped("\n".join(lines))
