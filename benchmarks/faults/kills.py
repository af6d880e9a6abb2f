"""Kill commands, or run several at once.

Each command must be charged once, and the same command must then finish correctly.
"""

import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults import cases
from benchmarks.faults.cases import METHODS, Case
from benchmarks.faults.processes import (
    Strike,
    ended,
    kill_at,
    killed_after,
    run_to_end,
    started,
)

Make = Callable[[Path], Case]
# every command that can be interrupted
CASES: dict[str, Make] = {
    method: lambda folder, method=method: cases.fit(folder, "run", method)
    for method in METHODS
}
CASES["finetune"] = lambda folder: cases.finetune(folder, "run")
CASES["extract"] = lambda folder: cases.extract(folder)


def struck(make: Make, strike: Strike) -> list[str] | None:
    """Interrupt a command at an event, run it again, and return what is wrong.

    Return None if the command ended before that event.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case = make(folder)
        first = ended(started(folder, case.arguments, strike))
        if first.code == 0 and first.events < strike.count:
            return None
        if "Traceback" in first.said:
            return [f"a traceback: {first.said[-300:]}"]
        if strike.how == "kill" and first.code != -signal.SIGKILL:
            return [f"exit code {first.code}: {first.said[-300:]}"]
        if strike.how == "stop" and first.code == 128 + signal.SIGTERM:
            charged = len(cases.fits_of(folder))
            if ("nothing was charged" in first.said) > (charged == 0) or (
                "is charged for" in first.said
            ) > (charged == 1):
                return [f"{charged} charges, and it said {first.said[-300:]}"]
        if strike.how == "full" and first.code not in (0, 2):
            return [f"exit code {first.code}: {first.said[-300:]}"]
        return cases.again(folder, case, run_to_end)


def points(
    make: Make, every: int = 1, at: Callable[[int], Strike] = kill_at
) -> Iterator[tuple[int, list[str]]]:
    """Yield (event, problems) for each `every`-th event of a command."""
    count = 1
    while (found := struck(make, at(count))) is not None:
        yield count, found
        count += every


def all_points(
    part: int = 0, at: Callable[[int], Strike] = kill_at
) -> Iterator[list[str]]:
    """Yield the problems at every event of every command, or of command `part`."""
    for number, (name, make) in enumerate(CASES.items(), 1):
        if part not in (0, number):
            continue
        for count, found in points(make, 1, at):
            yield [f"{name} at event {count}: {text}" for text in found]


def random_kills(tries: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield the problems of commands that are killed at random moments.

    Each is killed up to three times. A third of the commands are fits, a third
    trainings, and a third extractions.
    """
    rng = random.Random(seed)
    for _ in range(tries):
        fit = rng.choice(list(METHODS))
        name = rng.choice([fit, "finetune", "extract"])
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            case = CASES[name](folder)
            for _ in range(rng.randint(1, 3)):
                process = started(folder, case.arguments)
                killed_after(process, rng.random() * 0.7)
            found = cases.again(folder, case, run_to_end)
            yield [f"{name}: {text}" for text in found]


def same_folder(rounds: int, processes: int = 6) -> Iterator[list[str]]:
    """Yield the problems of several processes that write one run folder at once."""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            case = cases.fit(folder, "run", "dp-fc")
            all_of_them = [started(folder, case.arguments) for _ in range(processes)]
            done = [ended(process) for process in all_of_them]
            problems = cases.problems_of_run(folder, case.out)
            codes = sorted(one.code for one in done)
            if codes != [0] + [2] * (processes - 1):
                problems.append(f"exit codes {codes}")
            yield problems


def one_budget(rounds: int, processes: int = 32, room: int = 10) -> Iterator[list[str]]:
    """Yield the problems of fits that start at once on a budget for `room` of them."""
    from dphead.planning.calibration import mu_from_epsilon
    from dphead.privacy.accounting import epsilon_from_mu

    total = epsilon_from_mu(mu_from_epsilon(1.0, 1e-3) * room**0.5, 1e-3)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            features = cases.features_file(folder / "f.h5")
            budget = ("--epsilon", repr(total), "--delta", "1e-3")
            run_to_end(folder, ("ledger", "budget", str(features), *budget))
            all_of_them = []
            for i in range(processes):
                case = cases.fit(folder, f"run{i}")
                all_of_them.append(started(folder, case.arguments))
            codes = sorted(ended(process).code for process in all_of_them)
            charged = len(cases.fits_of(folder))
            wanted = [0] * room + [2] * (processes - room)
            problems = []
            if charged != room or codes != wanted:
                problems.append(f"{charged} charges on a budget for {room}, {codes}")
            yield problems
