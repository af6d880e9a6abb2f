"""Bits that flip: what reads a damaged file refuses it, or
does what it would have done.

Every file that dphead writes and reads again is made once (`made`); a try damages one
of them in a copy and runs a command that reads it.
"""

import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.faults import cases
from benchmarks.faults.processes import (
    Ended,
    Runner,
    Strike,
    ended,
    started,
)

SEED = ("--seed", "1")  # a fit on the same rows gives the same head
BUDGET = ("--epsilon", "100", "--delta", "1e-3")
ROWS = ("f.h5", "--protect", "image")  # it has groups
LEAST = ("--method", "dp-ls", "--delta", "1e-3")  # nothing of its report is random
# seconds, speeds, lines of progress, and the id of a data set
RANDOM = re.compile(
    r"\d+\.\d+ s\b|\(\d+\s+rows\s+a\s+second\)|^.*\(\d+ s\)$|\b[0-9a-f]{32}\b",
    re.MULTILINE,
)
AGAIN = "started again"  # what an extraction says of an unfinished file
# commands whose exit code 1 says that the file is damaged
LISTING = (("verify",), ("ledger", "verify"))
HEAD = ".safetensors"


Words = tuple[str, ...]


class Reading(NamedTuple):
    """A command that reads a file. share: of the tries, beside the others."""

    file: str
    arguments: tuple[str, ...]
    share: float = 1.0

    @property
    def name(self) -> str:
        """The command's words, and the file."""
        words = 2 if self.arguments[0] in ("ledger", "features") else 1
        return f"{' '.join(self.arguments[:words])} ← {self.file}"


READINGS = (
    Reading("f.h5", ("fit", *ROWS, "-o", "new", "--delta", "1e-3", *SEED), 2),
    Reading("f.h5", ("verify", "f.h5"), 2),
    Reading("f.h5", ("evaluate", "head", "f.h5", "--json"), 2),
    Reading("f.h5", ("predict", "head", "f.h5"), 2),
    Reading("f.h5", ("ledger", "show", "f.h5")),
    Reading("t.h5", ("fit", *ROWS, "-o", "new", "--test", "t.h5", *SEED)),
    Reading("t.h5", ("verify", "t.h5")),
    Reading("g.h5.part", ("extract", "g.h5"), 0.5),
    Reading("s.shard-0-of-2.h5", ("features", "join")),
    Reading("head/head.json", ("evaluate", "head", "f.h5", "--json")),
    Reading("head/head.json", ("predict", "head", "f.h5")),
    Reading("head/head.json", ("check", "head")),
    Reading("head/head.safetensors", ("evaluate", "head", "f.h5", "--json")),
    Reading("head/head.safetensors", ("predict", "head", "f.h5")),
    Reading("head/head.safetensors", ("check", "head")),
    Reading("head/report.json", ("check", "head"), 2),
    Reading("head/run.toml", ("check", "head")),
    Reading("head/ledger.json", ("check", "head"), 2),
    Reading("ledger", ("check", "head"), 2),
    Reading("ledger", ("ledger", "show", "f.h5"), 2),
    Reading("ledger", ("ledger", "verify", "f.h5"), 2),
    Reading("ledger", ("fit", *ROWS, "-o", "new", "--delta", "1e-3", *SEED), 2),
    Reading("ledger", ("fit", *ROWS, "-o", "half", *SEED)),
    Reading("ledger's journal", ("ledger", "show", "f.h5")),
    Reading("ledger's journal", ("fit", *ROWS, "-o", "half", *SEED)),
    Reading("limited ledger", ("ledger", "show", "b.h5")),
    Reading("limited ledger", ("ledger", "verify", "b.h5")),
    Reading("limited ledger", ("ledger", "budget", "b.h5", *BUDGET)),
    Reading("limited ledger", ("fit", "b.h5", "-o", "new", *LEAST)),
    Reading("half/fit.json", ("fit", *ROWS, "-o", "half", *SEED)),
    Reading("half/releases/000000.npy", ("fit", *ROWS, "-o", "half", *SEED)),
    Reading("net/model.json", ("predict", "net", "images.npz")),
    Reading("net/model.json", ("check", "net")),
    Reading("net/model.safetensors", ("predict", "net", "images.npz")),
    Reading("net/model.safetensors", ("check", "net")),
    Reading("net/report.json", ("check", "net")),
    Reading("net/ledger.json", ("check", "net")),
    Reading("halfnet/checkpoint.npz", ("finetune", "halfnet"), 0.5),
    Reading("halfnet/fit.json", ("finetune", "halfnet"), 0.2),
    Reading("halfnet/releases/000002.npy", ("finetune", "halfnet"), 0.2),
)


class Made(NamedTuple):
    """Every file that dphead reads, in a folder that tries work in (`place`), and a
    copy that they begin with (`kept`). ledgers: of the features files, by their names
    in READINGS. commands: whole ones of those that are short there.
    """

    place: Path
    kept: Path
    ledgers: dict[str, str]
    commands: dict[tuple[str, ...], tuple[str, ...]]

    def arguments(self, reading: Reading) -> tuple[str, ...]:
        """The whole command of a reading."""
        return self.commands.get(reading.arguments, reading.arguments)

    def file(self, reading: Reading) -> Path:
        """The file that is damaged."""
        return self.place / self.ledgers.get(reading.file, reading.file)

    def renew(self) -> None:
        """As it was before a try."""
        shutil.rmtree(self.place)
        shutil.copytree(self.kept, self.place)


def made(folder: Path) -> Made:
    """Make the files: of finished runs, and of runs that were killed half-way."""
    place = folder / "work"
    place.mkdir()
    cases.features_file(place / "f.h5", group=np.arange(60) // 2)
    cases.features_file(place / "t.h5", seed=1)
    cases.features_file(place / "b.h5", seed=2)
    _embeddings(place / "e.npz")
    ledgers = {}
    _run(place, ("ledger", "budget", "b.h5", *BUDGET))
    _run(place, ("fit", "b.h5", "-o", "limited", *LEAST))
    (path,) = (place / "home/ledgers").glob("*.sqlite")
    ledgers["limited ledger"] = str(path.relative_to(place))
    _run(place, ("fit", *ROWS, "-o", "head", "--delta", "1e-3", *SEED))
    (other,) = set((place / "home/ledgers").glob("*.sqlite")) - {path}
    ledgers["ledger"] = str(other.relative_to(place))
    ledgers["ledger's journal"] = ledgers["ledger"] + "-journal"
    half = ("fit", *ROWS, "-o", "half", *LEAST, *SEED)
    _run(place, half, "open " + str(place / "half/releases/000001.npy.part"))
    _run(place, cases.finetune(place, "net", *SEED).arguments)
    network = cases.finetune(place, "halfnet", *SEED)
    _run(
        place,
        network.arguments,
        "open " + str(place / "halfnet/model.safetensors.part"),
    )
    part = cases.extract(place)
    _run(place, part.arguments, "fsync " + str(place / "g.h5.part"), 4)
    shards = []
    for index in range(2):
        _run(place, cases.extract(place, "s.h5", "--shard", f"{index}/2").arguments)
        shards.append(f"s.shard-{index}-of-2.h5")
    kept = folder / "kept"
    shutil.copytree(place, kept)
    commands = {
        ("extract", "g.h5"): part.arguments,
        ("features", "join"): ("features", "join", *shards, "-o", "s.h5"),
        ("fit", *ROWS, "-o", "half", *SEED): half,
        ("finetune", "halfnet"): network.arguments,
    }
    return Made(place, kept, ledgers, commands)


def _embeddings(path: Path) -> None:
    """30 rows of 4 features and their labels, for `features import`."""
    rng = np.random.default_rng(3)
    np.savez(path, features=rng.random((30, 4)), labels=rng.integers(0, 3, 30))


def _run(place: Path, arguments: Words, text: str = "", n: int = 1) -> None:
    """Run a command in its folder, or until the n-th event that holds a text.
    AssertionError if it does not end so.
    """
    strike = Strike(n, text, "kill" if text else "never")
    done = ended(started(place, arguments, strike))
    assert done.code == (-9 if text else 0), (arguments, done)


class Outcome(NamedTuple):
    """What a command said and left, without what differs between equal runs."""

    code: int
    said: str
    left: str


def outcome(place: Path, done: Ended, damaged: str, seeded: bool) -> Outcome:
    """Of a command that ended: its words, its files and what ledgers hold, with the
    ids of fits, their hours and seconds left out. damaged: a file that is not
    compared; seeded: whether heads are equal.
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
    """The rows of a finished features file; its salt and id are random."""
    from dphead_extract.features.format import open_features

    with open_features(path) as file:
        columns = (file.features[:], file.labels, file.valid)
        return [np.asarray(values).tobytes().hex() for values in columns]


def _facts(path: Path, ids: dict[str, str]) -> Any:
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return "no JSON"
    # digests of ids and hours, and of a head that is compared where it is seeded
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


def verdict(reading: Reading, sound: Outcome, found: Outcome) -> str:
    """What is wrong, "" where a damaged file was refused or made no difference."""
    if found.code < 0:
        return f"{found.said[-200:]}"
    if "Traceback" in found.said:
        return f"a traceback: {found.said[-200:]}"
    if found.code == sound.code and found.said.split() == sound.said.split():
        return "" if found.left == sound.left else "another result, unsaid"
    if AGAIN in found.said and found.left == sound.left:
        return ""
    listed = reading.arguments[: 1 + (reading.arguments[0] == "ledger")] in LISTING
    if found.code == 2 or (listed and found.code == 1):
        lines = [line for line in found.said.splitlines() if "Error" in line]
        return "" if listed or len(lines) == 1 else f"no line: {found.said[-200:]}"
    return f"exit code {found.code}: {found.said[-200:]}"


def flip(path: Path, rng: random.Random) -> str:
    """Change one bit of a file; returns which."""
    held = bytearray(path.read_bytes())
    at, bit = rng.randrange(len(held)), rng.randrange(8)
    held[at] ^= 1 << bit
    path.write_bytes(held)
    return f"bit {bit} of byte {at}"


def flips(tries: int, seed: int = 0) -> Iterator[list[str]]:
    """Problems of single bits, over all files and their commands by their shares."""
    rng = random.Random(seed)
    shares = [reading.share for reading in READINGS]
    chosen = sorted(rng.choices(range(len(READINGS)), shares, k=tries))
    with tempfile.TemporaryDirectory() as name:
        files = made(Path(name))
        with Runner(files.place) as runner:
            sound: dict[int, Outcome] = {}
            for index in chosen:
                reading = READINGS[index]
                if index not in sound:
                    sound[index] = _tried(files, runner, reading)
                what = flip(files.file(reading), rng)
                found = _tried(files, runner, reading)
                wrong = verdict(reading, sound[index], found)
                yield [f"{reading.name}, {what}: {wrong}"] if wrong else []


def _tried(files: Made, runner: Runner, reading: Reading) -> Outcome:
    """The outcome of a command on the files as they are, which are then renewed."""
    arguments = files.arguments(reading)
    done = runner.run(arguments)
    damaged = files.file(reading).relative_to(files.place).as_posix()
    found = outcome(files.place, done, damaged, "--seed" in arguments)
    files.renew()
    return found
