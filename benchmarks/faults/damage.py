"""Flip bits in files: a command must refuse a damaged file, or give the same result.

Every file that dphead writes and reads again is made once (`make`). A try damages one
of them in a copy and runs a command that reads it.
"""

import json
import random
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.faults import cases
from benchmarks.faults.processes import Ended, Strike, ended, run_to_end, started

# output that equal runs do not share: seconds, speeds, progress, ids of data sets
RANDOM = re.compile(
    r"\d+\.\d+ s\b|\(\d+\s+rows\s+a\s+second\)|^.*\(\d+ s\)$|\b[0-9a-f]{32}\b",
    re.MULTILINE,
)
AGAIN = "extracted before"  # printed by an extraction that starts a file again
HEAD = ".safetensors"
IDS = {"f.h5": "f" * 32, "b.h5": "b" * 32}
LEDGER, LIMITED = (f"home/ledgers/{id_}.sqlite" for id_ in IDS.values())
# seeded, so that a fit on the same rows gives the same head; the features have groups
SEEDED = ("--seed", "1", "--i-know-this-is-not-private")
FIT = f"fit f.h5 --protect image {' '.join(SEEDED)} --delta 1e-3 -o new"
HALF = f"{FIT.removesuffix('new')}half --method dp-ls"
BUDGET = "ledger budget b.h5 --epsilon 100 --delta 1e-3"
# the report of this fit has no random values
LEAST = "fit b.h5 --method dp-ls --delta 1e-3 -o"
JOIN = "features join s.shard-0-of-2.h5 s.shard-1-of-2.h5 -o s.h5"
HEAD_COMMANDS = ("evaluate head f.h5 --json", "predict head f.h5", "check head")
NETWORK_COMMANDS = ("predict net images.npz", "check net")
# the commands that read each file; `words` completes those of `cases`
READINGS = {
    "f.h5": (FIT, "verify f.h5", *HEAD_COMMANDS[:2], "ledger show f.h5"),
    "t.h5": (f"{FIT} --test t.h5", "verify t.h5"),
    "g.h5.part": ("extract",),
    "s.shard-0-of-2.h5": (JOIN,),
    "head/head.json": HEAD_COMMANDS,
    "head/head.safetensors": HEAD_COMMANDS,
    "head/report.json": ("check head",),
    "head/run.toml": ("check head",),
    "head/ledger.json": ("check head",),
    LEDGER: ("check head", "ledger show f.h5", "ledger verify f.h5", FIT, HALF),
    f"{LEDGER}-journal": ("ledger show f.h5", HALF),
    LIMITED: ("ledger show b.h5", "ledger verify b.h5", BUDGET, f"{LEAST} new"),
    "half/fit.json": (HALF,),
    "half/releases/000000.npy": (HALF,),
    "net/model.json": NETWORK_COMMANDS,
    "net/model.safetensors": NETWORK_COMMANDS,
    "net/report.json": ("check net",),
    "net/ledger.json": ("check net",),
    "halfnet/checkpoint.npz": ("finetune",),
    "halfnet/fit.json": ("finetune",),
    "halfnet/releases/000002.npy": ("finetune",),
}


def words(place: Path, command: str) -> tuple[str, ...]:
    """Return the words of a command of READINGS that runs in `place`."""
    if command == "extract":
        return cases.extract(place).arguments
    if command == "finetune":
        return cases.finetune(place, "halfnet", *SEEDED).arguments
    return tuple(shlex.split(command))


def make(place: Path) -> None:
    """Make the files of finished runs, and of runs that were killed half-way."""
    place.mkdir()
    group = np.arange(60) // 2
    cases.features_file(place / "f.h5", group=group, dataset_id=IDS["f.h5"])
    cases.features_file(place / "t.h5", seed=1)
    cases.features_file(place / "b.h5", seed=2, dataset_id=IDS["b.h5"])
    for command in (BUDGET, f"{LEAST} limited", FIT.replace("new", "head")):
        _run(place, words(place, command))
    _run(place, words(place, HALF), f"open {place}/half/releases/000001.npy.part")
    _run(place, cases.finetune(place, "net", *SEEDED).arguments)
    network = words(place, "finetune")
    _run(place, network, f"open {place}/halfnet/model.safetensors.part")
    _run(place, words(place, "extract"), f"fsync {place}/g.h5.part", 4)
    for index in range(2):
        _run(place, cases.extract(place, "s.h5", "--shard", f"{index}/2").arguments)


def _run(place: Path, arguments: tuple[str, ...], text: str = "", n: int = 1) -> None:
    """Run a command to its end, or until the n-th event that contains `text`.

    Raises AssertionError if it ends differently.
    """
    strike = Strike(n, text, "kill" if text else "never")
    done = ended(started(place, arguments, strike))
    assert done.code == (-9 if text else 0), (arguments, done)


class Outcome(NamedTuple):
    """Hold a command's output and files, without what differs between equal runs."""

    code: int
    said: str
    left: str


def outcome(place: Path, done: Ended, damaged: str, seeded: bool) -> Outcome:
    """Return the output, the files and the ledgers of a command that ended.

    Ids of fits, hours and seconds are left out. `damaged` is a file that is not
    compared. `seeded` tells whether heads are compared.
    """
    ids: dict[str, str] = {}
    left = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if name == damaged:
            continue
        if name.endswith(("report.json", "ledger.json")):
            left[name] = _facts(path, ids)
        elif name in ("s.h5", "g.h5"):
            left[name] = _rows(path)
        elif seeded and path.suffix == HEAD:
            left[name] = path.read_bytes().hex()
    if done.code == 0:
        for path in sorted((place / "home").rglob("*.sqlite")):
            left[path.name] = _charged(path, ids)
    text = json.dumps(left, sort_keys=True)
    said = RANDOM.sub("", done.said)
    for known, word in ids.items():
        text, said = text.replace(known, word), said.replace(known, word)
    return Outcome(done.code, said, text)


def _rows(path: Path) -> list[str]:
    """Return features, labels and validity of a finished features file, as texts.

    A file's id, salt and digests differ between equal runs, and are left out.
    """
    from dphead_extract.features.format import open_features

    with open_features(path) as file:
        columns = (file.features[:], file.labels, file.valid)
        return [np.asarray(values).tobytes().hex() for values in columns]


def _facts(path: Path, ids: dict[str, str]) -> Any:
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return "no JSON"
    # Leave out digests that differ between equal runs. No check is lost, because
    # `outcome` compares the bytes of a seeded head.
    found.pop("sha256", None)
    found.get("provenance", {}).pop("tensors_sha256", None)
    reported = [found["ledger"]] if "ledger" in found else []
    for fit in [*reported, *found.get("fits", [])]:
        ids.setdefault(fit.get("fit_id", "none"), f"fit {len(ids)}")
        fit.pop("created", None)
    found.pop("sha256", None)
    return found


def _charged(path: Path, ids: dict[str, str]) -> Any:
    from dphead.privacy.ledger import Ledger, LedgerError

    try:
        ledger = Ledger(path)
        found = [ledger.budget(), ledger.fits()]
        ledger.close()
    except LedgerError as error:
        return f"unreadable: {error}"
    for fit in found[1]:
        ids.setdefault(fit["fit_id"], f"fit {len(ids)}")
        del fit["created"]
    return found


def verdict(command: str, sound: Outcome, found: Outcome) -> str:
    """Return what is wrong, or "" if the file was refused or made no difference."""
    if found.code < 0:
        return f"killed by signal {-found.code}"
    if "Traceback" in found.said:
        return f"a traceback: {found.said[-200:]}"
    if found.code == sound.code and found.said.split() == sound.said.split():
        return "" if found.left == sound.left else "another result, unsaid"
    if AGAIN in found.said and found.left == sound.left:
        return ""
    # commands whose exit code 1 says that the file is damaged
    listed = command.startswith(("verify", "ledger verify"))
    if found.code == 2 or (listed and found.code == 1):
        lines = [line for line in found.said.splitlines() if "Error" in line]
        return "" if listed or len(lines) == 1 else f"no line: {found.said[-200:]}"
    return f"exit code {found.code}: {found.said[-200:]}"


def flip(path: Path, rng: random.Random) -> str:
    """Flip a random bit of a file, and return which."""
    held = bytearray(path.read_bytes())
    at, bit = rng.randrange(len(held)), rng.randrange(8)
    held[at] ^= 1 << bit
    path.write_bytes(held)
    return f"bit {bit} of byte {at}"


def flips(tries: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield the problems after a flipped bit, over all files and their commands."""
    rng = random.Random(seed)
    pairs = [(file, command) for file in READINGS for command in READINGS[file]]
    with tempfile.TemporaryDirectory() as name:
        place, kept = Path(name, "work"), Path(name, "kept")
        make(place)
        place.rename(kept)
        sound: dict[tuple[str, str], Outcome] = {}
        for file, command in sorted(rng.choices(pairs, k=tries)):
            if (file, command) not in sound:
                shutil.copytree(kept, place)
                sound[file, command] = _tried(place, file, command)
            shutil.copytree(kept, place)
            what = flip(place / file, rng)
            wrong = verdict(command, sound[file, command], _tried(place, file, command))
            yield [f"{command} ← {file}, {what}: {wrong}"] if wrong else []


def _tried(place: Path, file: str, command: str) -> Outcome:
    """Run a command in a folder, remove the folder, and return the outcome."""
    done = run_to_end(place, words(place, command))
    found = outcome(place, done, file, command == "finetune" or "--seed" in command)
    shutil.rmtree(place)
    return found
