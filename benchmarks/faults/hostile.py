"""Sources, weights, records, ledgers and arguments that are made to break a program: a
command refuses them in one line, soon, and runs nothing that is in them.

The memory of a command is bounded (`processes.ROOM`), so that a bomb shows as such.
"""

import json
import os
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import arguments, damage
from benchmarks.faults.cases import NETWORK, SCATTERING
from benchmarks.faults.processes import HANGS, Ended, Runner
from benchmarks.faults.sources import SOURCES, TOUCHED
from benchmarks.faults.weights import WEIGHTS

# --- what a run leaves ----------------------------------------------------------


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one of its parts gone, or another one."""
    odd = [None, "", "inf", -1, 0, 10**30, 1.5, [], {}, True, "../..", [[]], "é" * 50]
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.2:
            return rest
        return rest | {key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        more = [] if rng.random() < 0.2 else [changed(value[at], rng)]
        return [*value[:at], *more, *value[at + 1 :]]
    return rng.choice(odd)


def changed_json(place: Path, rng: random.Random) -> tuple[str, ...]:
    """A record of a run that says something else, and a command that reads it. It has
    no digest, as before there were any, or a forged one would be as good.
    """
    readers = {
        "head/head.json": ("predict", "head", "f.h5"),
        "head/report.json": ("check", "head"),
        "head/ledger.json": ("check", "head"),
        "net/model.json": ("predict", "net", "images.npz"),
        "net/report.json": ("check", "net"),
        "half/fit.json": (
            "fit",
            *damage.ROWS,
            "-o",
            "half",
            *damage.LEAST,
            *damage.SEED,
        ),
        "s.h5.shards.json": (
            *("extract", "images.npz", "-o", "s.h5", *SCATTERING, "--classes", "3"),
            *("--block-rows", "8", "--shard", "0/2"),
        ),
    }
    name = rng.choice(list(readers))
    path = place / name
    held = json.loads(path.read_text())
    if isinstance(held, dict):
        for key in ("sha256", "tensors_sha256"):
            held.pop(key, None)
    for _ in range(rng.choice([1, 1, 2, 3])):
        held = changed(held, rng)
    text = json.dumps(held)
    if rng.random() < 0.1:
        text = "[" * 100_000 + text
    path.write_text(text)
    return readers[name]


def odd_ledger(place: Path, rng: random.Random) -> tuple[str, ...]:
    """A ledger that is none, or another kind of database."""
    path = place / "odd.sqlite"
    kind = rng.randrange(6)
    if kind == 0:
        path.write_bytes(rng.randbytes(rng.choice([1, 16, 100, 5000])))
    elif kind == 1:
        path.write_bytes(b"SQLite format 3\0" + rng.randbytes(4080))
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        os.mkfifo(path)
    else:
        others = [
            "CREATE TABLE fits (x)",
            "CREATE VIEW releases AS SELECT 1 AS fit_id",
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value); "
            "INSERT INTO meta VALUES ('budget', 'no json'), ('relation', 3)",
            "CREATE TABLE seals (id, fits, meta, digest); "
            "INSERT INTO seals VALUES (1, 'x', '{}', 'y')",
            "CREATE VIEW meta AS WITH RECURSIVE c(key, value) AS (SELECT 1, 1 UNION "
            "ALL SELECT key + 1, 1 FROM c) SELECT * FROM c",
        ]
        book = sqlite3.connect(path)
        book.executescript(rng.choice(others))
        book.close()
    commands: list[tuple[str, ...]] = [("ledger", "show", "odd.sqlite")]
    commands.append(("ledger", "verify", "odd.sqlite"))
    commands.append(("check", "head", "--ledger", "odd.sqlite"))
    commands.append(("fit", *damage.ROWS, "-o", "x", "--ledger", "odd.sqlite"))
    return rng.choice(commands)


def odd_features(place: Path, rng: random.Random) -> tuple[str, ...]:
    """A features file of before there were seals, made by someone else."""
    import h5py

    path = place / "odd.h5"
    with open(place / "f.h5", "rb") as file:
        file.seek(2048)
        path.write_bytes(file.read())
    with h5py.File(path, "r+", locking=False) as file:
        names = list(file)
        name = rng.choice(names)
        kind = rng.randrange(8)
        if kind == 0:
            del file[name]
        elif kind == 1:
            del file[name]
            file[name] = h5py.ExternalLink("/etc/passwd", "/x")
        elif kind == 2:
            del file[name]
            file.create_dataset(name, (2**40, 6), "f4", chunks=(1024, 6))
        elif kind == 3:
            del file[name]
            odd = [3, "text", np.zeros(60), np.zeros((60, 2), "S3")]
            file[name] = rng.choice(odd)
        elif kind == 4:
            del file.attrs[rng.choice(list(file.attrs))]
        elif kind == 5:
            odd = [
                3,
                "",
                "[",
                "{}",
                np.zeros(3),
                "null",
                "[" * 9000,
                b"\xff",
                -1,
                "[1]",
            ]
            file.attrs[rng.choice(list(file.attrs))] = rng.choice(odd)
        elif kind == 6:
            del file[name]
            file[name] = h5py.SoftLink("/" + rng.choice(names))
        else:
            del file[name]
            outside = [(str(place / "images.npz"), 0, 60 * 24)]
            file.create_dataset(name, (60, 6), "f4", external=outside)
    commands: list[tuple[str, ...]] = [("fit", "odd.h5", "-o", "x")]
    commands.append(("verify", "odd.h5"))
    commands.append(("predict", "head", "odd.h5"))
    return rng.choice(commands)


# --- tries ----------------------------------------------------------------------


def from_source(place: Path, rng: random.Random) -> tuple[str, ...]:
    """A hostile source, and a command that reads it."""
    write = rng.choice(SOURCES)
    source = str(write(_room(place), rng))
    extract = ("extract", source, "-o", "x.h5", *SCATTERING, "--image-size", "6")
    classes = rng.choice([("--classes", "a,b,c"), ("--classes", "3")])
    network = (*NETWORK, "--steps", "1", "--epsilon", "8", "--delta", "1e-3")
    skip = rng.choice([(), ("--skip-unreadable",)])
    commands = [
        (*extract, *classes, *skip),
        (*extract, *classes, *skip),
        ("finetune", source, "-o", "x", "--ledger", "x.sqlite", *network),
        ("predict", "net", source),
        ("evaluate", "net", source),
    ]
    return rng.choice(commands)


def from_weights(place: Path, rng: random.Random) -> tuple[str, ...]:
    """Hostile weights, and a command that loads them."""
    weights = str(rng.choice(WEIGHTS)(_room(place), rng))
    if rng.random() < 0.6:
        extract = ("extract", "images.npz", "-o", "x.h5", "--classes", "3")
        return (*extract, "--backbone", "test_vit", "--weights", weights)
    network = (*NETWORK, "--steps", "1", "--epsilon", "8", "--delta", "1e-3")
    command = ("finetune", "images.npz", "-o", "x", "--ledger", "x.sqlite", *network)
    return (*command, "--weights", weights)


def _room(place: Path) -> Path:
    room = place / "hostile"
    room.mkdir()
    return room


KINDS = (
    *(from_source, from_source, from_source, from_weights, changed_json, changed_json),
    *(odd_ledger, odd_features),
)


def verdict(place: Path, done: Ended) -> str:
    """What is wrong, "" for a command that ended in order."""
    if done.code == HANGS:
        return "ten seconds without a word"
    if done.code < 0:
        return done.said[-200:]
    if "Traceback" in done.said:
        return f"a traceback: {done.said[-400:]}"
    if list(place.rglob(TOUCHED)):
        return "code in the file was run"
    if done.code not in (0, 1, 2):
        return f"exit code {done.code}: {done.said[-200:]}"
    return ""


def tries(count: int, seed: int = 0) -> Iterator[list[str]]:
    """Problems of hostile files, and of arguments: half of the tries each."""
    rng = random.Random(seed)
    words = arguments.tries(count, seed)
    with tempfile.TemporaryDirectory() as name:
        files = damage.made(Path(name))
        with Runner(files.place) as runner:
            for number in range(count):
                os.mkfifo(files.place / "pipe")
                if number % 2:
                    command = next(words)
                else:
                    command = rng.choice(KINDS)(files.place, rng)
                done = runner.run(command)
                wrong = verdict(files.place, done)
                files.renew()
                shown = " ".join(command).replace(str(files.place), ".")[:300]
                yield [f"{shown}: {wrong}"] if wrong else []
