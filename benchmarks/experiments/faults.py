"""Test dphead's commands against faults: kills, races, damaged files and full disks.

`python -m benchmarks faults [PROBE ...]` runs all tries of a probe, stores a row in
results/faults/rows.jsonl and writes results/faults/README.md; `--tries N --seed S` runs
a part of them. Parts of one commit are added up. `tests/faults` runs a bounded part of
each. The probes are in `benchmarks.faults`.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import prose
from benchmarks.faults import damage, kills, team
from benchmarks.faults.processes import full_at
from benchmarks.store import RESULTS, append, provenance, read

OUT = RESULTS / "faults"
SHOWN = 5  # largest number of failed tries that a row stores
Problems = Iterator[list[str]]


class Probe(NamedTuple):
    """Describe a probe. `run(tries, seed)` runs it. tries=None means all events."""

    title: str
    must: str
    tries: int | None
    run: Callable[[int, int], Problems]


PROBES = {
    "points": Probe(
        "killed at every file and SQL event: `fit` by six methods, `finetune`, "
        "`extract`",
        "one charge, and the same command ends right",
        None,
        lambda _, seed: kills.all_points(seed),
    ),
    "random": Probe(
        "killed at random moments, up to three times: the same commands",
        "one charge, and the same command ends right",
        1000,
        kills.random_kills,
    ),
    "folder": Probe(
        "six processes on one `-o`",
        "one fit, charged once",
        200,
        lambda tries, _: kills.same_folder(tries),
    ),
    "budget": Probe(
        "32 fits at once on a budget for ten",
        "exactly ten",
        20,
        lambda tries, _: kills.one_budget(tries),
    ),
    "flips": Probe(
        "a flipped bit in a file, and a command that reads it",
        "refused in one line, or the same result",
        20_000,
        damage.flips,
    ),
    "full": Probe(
        "a disk that is full from any of those events on",
        "one line, and the same command ends right",
        None,
        lambda _, seed: kills.all_points(seed, full_at),
    ),
    "server-points": Probe(
        "on a team's server: `fit` killed at every fifth event",
        "one charge, and the same command ends right",
        None,
        lambda _, seed: team.points(5),
    ),
    "server-cuts": Probe(
        "on a team's server: the connection cut at a COMMIT, which arrives or not",
        "one charge, and the same command ends right",
        60,
        team.cuts,
    ),
    "server-drops": Probe(
        "on a team's server: every connection cut 20 to 350 ms after it begins",
        "one charge, and the same command ends right",
        200,
        team.drops,
    ),
    "server-stops": Probe(
        "a team's server that loses its power at a random moment of a fit",
        "one charge, and the same command ends right",
        40,
        team.stops,
    ),
    "server-budget": Probe(
        "on a team's server: 32 fits at once on a budget for ten",
        "exactly ten",
        5,
        lambda tries, _: team.budget(tries),
    ),
}


def run(name: str, tries: int | None = None, seed: int = 0) -> None:
    """Run a probe, and store a row.

    `tries` can be a part of the probe's tries. Each part has a different seed. For
    probes at all events, `seed` is the number of the command, or 0 for all commands.
    """
    probe = PROBES[name]
    start = time.time()
    found = list(probe.run(tries or probe.tries or 0, seed))
    broken = [problems for problems in found if problems]
    row = {
        "probe": name,
        "tries": len(found),
        "seed": seed,
        "broken": len(broken),
        "examples": broken[:SHOWN],
        "seconds": time.time() - start,
    }
    append(OUT / "rows.jsonl", row | provenance())


def newest(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return each probe's rows at the last commit that ran it, one for each seed."""
    commits = {row["probe"]: row["commit"] for row in rows}
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        if row["commit"] == commits[row["probe"]]:
            found.setdefault(row["probe"], {})[row["seed"]] = row
    return {name: list(parts.values()) for name, parts in found.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Render the newest rows of each probe, added up."""
    parts = newest(rows)
    lines = []
    for name, probe in PROBES.items():
        if name not in parts:
            continue
        own = parts[name]
        broken, seconds = (
            sum(row[key] for row in own) for key in ("broken", "seconds")
        )
        cells = [probe.title, probe.must, _share(probe, own), str(broken)]
        lines.append([*cells, f"{seconds / 60:.0f}", own[0]["commit"]])
    names = ("probe", "must", "tries", "broke", "minutes", "commit")
    return prose.table(names, lines)


def _share(probe: Probe, rows: list[dict[str, Any]]) -> str:
    """Return how many tries were made, and of how many or of which commands."""
    tries = sum(row["tries"] for row in rows)
    if probe.tries is not None:
        return f"{tries:,} of {probe.tries:,}"
    names = list(kills.CASES)
    some = [names[row["seed"] - 1] for row in rows if row["seed"]]
    if some and set(some) != set(names):
        return f"{tries:,}, of {', '.join(some)} alone"
    return f"{tries:,}, all"


INTRODUCTION = """# Faults

This page lists tests with killed commands, and with damaged or hostile files. Each
trial runs a command of `dphead` in a process with its own folder, on features of 60
rows, 40 images of 6 × 6 pixels and a Wide-ResNet of ten layers. `python -m benchmarks
faults [PROBE]` repeats a probe, and `tests/faults` runs a bounded part of each probe.
The code of the probes is in `benchmarks/faults/`.
"""

NOTES = """An event is one of these: an SQL statement (to a server too), the opening of
a file for writing, the renaming, removal or flush of a file, or the creation or removal
of a folder. A full disk is a limit of zero bytes on every file after an event, which
also affects the writes of SQLite and HDF5. Bits are drawn evenly from each file. The
files include every file that `dphead` writes and reads again, with every command that
reads the file (`benchmarks/faults/damage.py` lists the pairs).

Two further probes were measured once, with the code of commit 634d943, and found no
failure. One probe had 536 trials with truncated files, folders without write
permission, a missing home folder, and a clock that goes back. The other probe had 1,000
trials with hostile sources, weights, records, ledgers and arguments. Two faults were
not tried: HDF5 files with a valid seal that attack HDF5 itself, and a power failure of
a machine with unflushed pages.
"""


def readme() -> str:
    """Return the text of results/faults/README.md, from the stored results."""
    rows = read(OUT / "rows.jsonl")
    machines = sorted({row["machine"] for own in newest(rows).values() for row in own})
    broken = [
        f"- {name}: {' '.join(text.split())[:160]}"
        for name, own in newest(rows).items()
        for row in own
        for problems in row["examples"]
        for text in problems
    ]
    what = "What broke:\n\n" + "\n".join(broken) + "\n\n" if broken else ""
    return prose.wrapped(
        f"{INTRODUCTION}\n{table(rows)}\n\n{what}{NOTES}\n"
        f"Machines: {'; '.join(machines)}.\n"
    )
