"""A full disk, folders that cannot be written, no home, a clock that goes back: what is
wrong is said in one line, and nothing is lost.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.faults import cases, damage, kills
from benchmarks.faults.processes import (
    Ended,
    ended,
    full_at,
    kill_at,
    run_to_end,
    started,
)

NOBODY = 65534  # whom the system refuses what it grants to root


def full_disk(part: int = 0) -> Iterator[list[str]]:
    """Problems where no file can be written from an event on, for every event of every
    command, or of the part-th alone.
    """
    yield from kills.all_points(part, full_at)


def refused(done: Ended) -> list[str]:
    """What is wrong with a command that had to end in one line, or to go through."""
    if "Traceback" in done.said:
        return [f"a traceback: {done.said[-300:]}"]
    lines = [line for line in done.said.splitlines() if line.startswith("Error")]
    if done.code == 0 or (done.code == 2 and len(lines) == 1):
        return []
    return [f"exit code {done.code}: {done.said[-300:]}"]


def read_only() -> Iterator[list[str]]:
    """Problems of a user who may not write a folder that a command writes to: the
    run's and the features', or the ledgers'.
    """
    for name, make in kills.CASES.items():
        for closed in (".", "home"):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                case = make(folder)
                (folder / "home").mkdir()
                _open_to_all(folder)
                os.chmod(folder / closed, 0o755)
                done = ended(started(folder, case.arguments, user=NOBODY))
                found = refused(done)
                if done.code == 0:
                    found.append("went through")
                if cases.fits_of(folder):
                    found.append("charged a fit that could not be written")
                yield [f"{name}, {closed!r} read-only: {text}" for text in found]


def _open_to_all(folder: Path) -> None:
    """Whoever a command runs as can read the files and write to the folders."""
    os.chmod(folder, 0o777)
    for path in folder.iterdir():
        os.chmod(path, 0o777 if path.is_dir() else 0o644)


def homes() -> Iterator[list[str]]:
    """Problems of commands whose home is missing, relative, a file, or another's."""
    wrong: list[dict[str, str]] = [{}, {"XDG_DATA_HOME": "x"}]
    wrong += [{"HOME": home} for home in ("", ".", "/dev/null", "/proc/1")]
    wrong += [{"DPHEAD_HOME": home} for home in ("x", "/dev/null")]
    for env in wrong:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            whole = {"DPHEAD_HOME": "", "HOME": "/nowhere", "XDG_DATA_HOME": ""} | env
            commands = [
                cases.fit(folder, "run").arguments,
                ("ledger", "show", "f.h5"),
                ("ledger", "budget", "f.h5", *damage.BUDGET),
                cases.extract(folder).arguments,
            ]
            _open_to_all(folder)
            for command in commands:
                process = started(folder, command, user=NOBODY, env=whole)
                found = refused(ended(process))
                yield [f"{command[0]} with {env}: {text}" for text in found]


def clocks() -> Iterator[list[str]]:
    """Problems of fits while the clock goes back: their order, and runs that go on."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        order = []
        for hours in (0, -9, -90, 40, -1):
            run = f"at{hours}"
            case = cases.fit(folder, run)
            found = refused(_at(folder, case.arguments, hours))
            order.append(cases.identifier(case.out))
            if [fit["fit_id"] for fit in cases.fits_of(folder)] != order:
                found.append("fits are not in the order of their charges")
            if run_to_end(folder, ("check", run)).code == 2:
                found.append("a run that cannot be checked")
            yield [f"clock at {hours} hours: {text}" for text in found]
    for name in ("dp-sgd", "finetune", "extract"):
        for found in _back(kills.CASES[name]):
            yield [f"{name}, clock back after a kill: {text}" for text in found]


def _back(make: kills.Make) -> Iterator[list[str]]:
    for count in range(5, 120, 23):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            case = make(folder)
            ended(started(folder, case.arguments, kill_at(count)))
            later: Callable[..., Ended] = partial(_at, hours=-30)
            yield cases.again(folder, case, later)


def _at(folder: Path, arguments: tuple[str, ...], hours: int) -> Ended:
    return ended(started(folder, arguments, hours=hours))


def others() -> Iterator[list[str]]:
    """All but the full disk, and files that are cut short."""
    for probe in (damage.cuts, read_only, homes, clocks):
        yield from probe()
