"""The append-only record of every release from one data set, in SQLite; a budget that
is never exceeded.

A whole fit is reserved, durably, before its first row is read (`Ledger.reserve`): that
is the charge. `FitLedger` then hands out the reserved releases in order. Rows are never
changed or deleted (SQL triggers refuse it), so a crash can waste budget and cannot hide
any. Keys, samples and sums without noise never reach it.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent, event_of, together

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS fits (
    fit_id TEXT PRIMARY KEY, created REAL NOT NULL, epsilon TEXT NOT NULL,
    delta REAL NOT NULL, relation TEXT NOT NULL, plan_hash TEXT NOT NULL,
    description TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS releases (
    fit_id TEXT NOT NULL, sequence INTEGER NOT NULL, label TEXT NOT NULL,
    noise_multiplier REAL NOT NULL, sampling_prob REAL NOT NULL, spec TEXT NOT NULL,
    PRIMARY KEY (fit_id, sequence));
CREATE TABLE IF NOT EXISTS progress (
    id INTEGER PRIMARY KEY, fit_id TEXT NOT NULL, sequence INTEGER NOT NULL,
    state TEXT NOT NULL, at REAL NOT NULL, digest TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS one_commit
    ON progress (fit_id, sequence) WHERE state = 'committed';
"""
APPEND_ONLY = "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_{verb.lower()} BEFORE {verb} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;"
    for table in ("meta", "fits", "releases", "progress")
    for verb in ("UPDATE", "DELETE")
)


class LedgerError(ValueError):
    """The ledger refuses: the budget would be exceeded, or the request does not match
    what was reserved.
    """


class Ledger:
    """The ledger of one data set.

    path: a file, or ":memory:" for a fit that counts only itself.

    dataset_id: the data set's random public id. An existing file with another id is
    refused.
    """

    def __init__(
        self, path: str | Path = ":memory:", dataset_id: str | None = None
    ) -> None:
        self.path = str(path)
        try:
            if self.path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            self._db.execute("PRAGMA synchronous=EXTRA")
            # Without it REPLACE deletes rows past the triggers.
            self._db.execute("PRAGMA recursive_triggers=ON")
            self._db.executescript(SCHEMA + APPEND_ONLY)
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(
                "the ledger must be a readable, writable SQLite file, got "
                f"path={self.path} ({error})."
            ) from error
        if (
            dataset_id is not None
            and self._set_once("dataset_id", dataset_id) != dataset_id
        ):
            raise LedgerError(
                "the ledger must belong to this data set, got "
                f"dataset_id={self.meta('dataset_id')}. "
                f"The features say {dataset_id}: use their own ledger."
            )

    def meta(self, key: str) -> str | None:
        """A fact fixed once: dataset_id, relation, group_cap, accounting ("gdp" or
        "rdp"), budget (JSON), or None.
        """
        row = self._db.execute(
            "SELECT value FROM meta WHERE key = ?", (key,)
        ).fetchone()
        return row[0] if row else None

    def _set_once(self, key: str, value: str) -> str:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))
        return self.meta(key) or value

    def set_budget(self, epsilon: float, delta: float) -> None:
        """Fix the total (epsilon, delta) of all fits, once, before the first of them.

        Guarantee: a filter is only valid for a budget fixed beforehand, so a later or a
        second budget is refused.
        """
        if not (epsilon > 0 and np.isfinite(epsilon) and 0 < delta < 1):
            raise LedgerError(
                "a budget must have finite epsilon > 0 and 0 < delta < 1, got "
                f"{epsilon=}, {delta=}. Correct it."
            )
        wanted = {
            "epsilon": epsilon,
            "delta": delta,
            "order": accounting.filter_order(epsilon, delta),
        }
        with self._transaction():
            if (
                self.budget() is None
                and self._db.execute("SELECT 1 FROM fits").fetchone()
            ):
                raise LedgerError(
                    "a budget must be set before the first fit, got a ledger with "
                    "fits. Keep its record."
                )
            if json.loads(self._set_once("budget", json.dumps(wanted))) != wanted:
                raise LedgerError(
                    f"the budget is fixed once, got {epsilon=}, {delta=}. It is "
                    f"{self.budget()}."
                )

    def budget(self) -> dict[str, float] | None:
        """{"epsilon", "delta", "order"} or None.

        order: the RDP order of the filter, fixed with the budget.
        """
        text = self.meta("budget")
        return json.loads(text) if text else None

    def events(self) -> list[GaussianEvent]:
        """Every release ever reserved: all of them count as spent."""
        rows = self._db.execute("SELECT spec, COUNT(*) FROM releases GROUP BY spec")
        return together(
            replace(event_of(json.loads(spec)), count=count) for spec, count in rows
        )

    def group_cap(self) -> int | None:
        """None: the protected unit is a row.

        Otherwise a group, of which at most so many rows count in every fit.
        """
        return json.loads(self.meta("group_cap") or "null")

    def reserve(
        self,
        specs: Sequence[dict[str, Any]],
        *,
        epsilon: float,
        delta: float,
        relation: str,
        description: str,
        plan_hash: str,
        store: Path | None = None,
    ) -> "FitLedger":
        """Charge a whole fit, durably, or refuse with nothing written.

        specs: `ReleaseSpec.row()` of each release.

        Guarantee: after it returns, the sum of all fits ever reserved is within the
        budget, whatever happens next.
        """
        caps = {s["group_cap"] for s in specs}
        if any(s["relation"] != relation for s in specs) or len(caps) > 1:
            raise LedgerError(
                "every release must have the fit's relation and unit, got "
                f"{relation=}, {caps=}. Plan anew."
            )
        fit_id, cap = uuid.uuid4().hex, next(iter(caps), None)
        new = together(event_of(s) for s in specs)
        with self._transaction():
            if self._set_once("relation", relation) != relation:
                raise LedgerError(
                    f"one ledger holds one neighbouring relation, got {relation=}. It "
                    f"holds {self.meta('relation')}."
                )
            if (
                self.meta("group_cap") is None
                and self._db.execute("SELECT 1 FROM fits").fetchone()
            ):
                self._set_once(
                    "group_cap", "null"
                )  # fits from before there were groups
            if self._set_once("group_cap", json.dumps(cap)) != json.dumps(cap):
                raise LedgerError(
                    f"one ledger protects one unit, got group_cap={cap}. It has "
                    f"group_cap={self.group_cap()}."
                )
            self._check(new, relation)
            self._db.execute(
                "INSERT INTO fits VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    fit_id,
                    _hour(time.time()),
                    repr(epsilon),
                    delta,
                    relation,
                    plan_hash,
                    description,
                ),
            )
            self._db.executemany(
                "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (
                        fit_id,
                        i,
                        s["label"],
                        s["noise_multiplier"],
                        s["sampling_prob"],
                        _canonical(s),
                    )
                    for i, s in enumerate(specs)
                ],
            )
        return FitLedger(self, fit_id, store)

    def resume(self, plan_hash: str, fit_id: str, store: Path) -> "FitLedger":
        """Continue a reserved fit that was interrupted, without a new charge; the plan
        must be the same.
        """
        row = self._db.execute(
            "SELECT plan_hash FROM fits WHERE fit_id = ?", (fit_id,)
        ).fetchone()
        if row is None or row[0] != plan_hash:
            raise LedgerError(
                f"a resumed fit must have the plan that was charged, got {fit_id=}. "
                "Start a new run folder."
            )
        return FitLedger(self, fit_id, store)

    def _check(self, new: list[GaussianEvent], relation: str) -> None:
        """The filter.

        proofs/ledger.md, "Across fits": GDP for full batches [Smith, Thakurta 2022;
        Koskela et al. 2023], RDP at one order fixed with the budget otherwise [Feldman,
        Zrnic 2021]; the kind is fixed by the first fit.
        """
        old, budget = self.events(), self.budget()
        gaussian = all(e.sampling_prob == 1 for e in new)
        if budget is None:
            return
        kind = self._set_once("accounting", "gdp" if gaussian else "rdp")
        if kind == "gdp" and not gaussian:
            raise LedgerError(
                "this ledger's budget is kept in GDP, which needs full batches, got "
                "Poisson batches."
            )
        if any(e.noise_multiplier == 0 for e in new):
            raise LedgerError(
                "a ledger with a budget takes private fits only, got "
                "noise_multiplier=0 (epsilon = inf)."
            )
        target, delta = budget["epsilon"], budget["delta"]
        if kind == "gdp":
            spent = accounting.epsilon([*old, *new], delta, relation, "exact")
        elif not old:
            spent = accounting.epsilon(new, delta, relation, "auto")
        else:
            order = budget["order"]
            curve = accounting.rdp_curve([*old, *new], [order], relation)
            spent = accounting.rdp_epsilon(order, float(curve[0]), delta)
        if spent > target * (1 + 1e-9):
            raise LedgerError(
                f"the budget must not be exceeded, got a total of epsilon={spent:.6g} "
                f"> {target:g} at delta={delta:g}. "
                "Nothing was charged: ask for less, or stop."
            )

    def fits(self) -> list[dict[str, Any]]:
        """Every fit with its releases and their states, in the order in which they were
        charged: plain data for `dphead ledger show`. created: a whole hour.

        Guarantee: no finer time leaves a ledger, also of fits charged before hours were
        stored. The order is that of the rows, which clocks and equal hours cannot
        change.
        """
        names = (
            "fit_id",
            "created",
            "epsilon",
            "delta",
            "relation",
            "plan_hash",
            "description",
        )
        fits: list[dict[str, Any]] = [
            dict(zip(names, r, strict=True))
            for r in self._db.execute("SELECT * FROM fits ORDER BY rowid")
        ]
        for fit in fits:
            fit["created"] = _hour(fit["created"])
            states = dict(
                self._db.execute(
                    "SELECT sequence, state FROM progress WHERE fit_id = ? ORDER BY id",
                    (fit["fit_id"],),
                )
            )
            fit["releases"] = [
                {"sequence": s, "state": states.get(s, "reserved"), **json.loads(spec)}
                for s, spec in self._db.execute(
                    "SELECT sequence, spec FROM releases WHERE fit_id = ? ORDER BY "
                    "sequence",
                    (fit["fit_id"],),
                )
            ]
        return fits

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything or nothing, and one at a time: two processes cannot both pass the
        budget check.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class FitLedger:
    """The reserved releases of one fit, in order.

    store: where committed values are kept for a resume, or None.
    """

    def __init__(self, ledger: Ledger, fit_id: str, store: Path | None) -> None:
        self.ledger, self.fit_id, self.store, self._next = ledger, fit_id, store, 0
        if store is not None:
            store.mkdir(parents=True, exist_ok=True)
            self._lock = open(store / "lock", "w")  # noqa: SIM115 (held until the process ends)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LedgerError(
                    f"one process may run a fit, got a second one for {store}. Wait "
                    "for it, or use another folder."
                ) from error

    def begin(self, spec: dict[str, Any]) -> tuple[int, np.ndarray | None]:
        """The next release's sequence number, and its committed value if an earlier run
        already released it.

        Guarantee: a release that is not the next reserved one raises before any row is
        read. One that was in flight at a crash was never observed; it is drawn afresh,
        and logged as "redrawn". One that was returned is never redrawn.
        """
        db, sequence = self.ledger._db, self._next
        row = db.execute(
            "SELECT spec FROM releases WHERE fit_id = ? AND sequence = ?",
            (self.fit_id, sequence),
        ).fetchone()
        if row is None or row[0] != _canonical(spec):
            raise LedgerError(
                f"a release must be the next one reserved, got sequence={sequence}, "
                f"label={spec['label']!r}. "
                "The solver left its plan: this is a defect, and nothing was read."
            )
        with (
            self.ledger._transaction()
        ):  # nobody commits between the look and the removal
            states = dict(
                db.execute(
                    "SELECT state, digest FROM progress WHERE fit_id = ? AND sequence "
                    "= ?",
                    (self.fit_id, sequence),
                )
            )
            if "committed" not in states:
                self._log(sequence, "redrawn" if states else "started")
                self._remove(sequence)
        self._next += 1
        if "committed" in states:
            return sequence, self._load(sequence, states["committed"])
        return sequence, None

    def following(self) -> dict[str, Any] | None:
        """The spec reserved after the release that began last, or None after the last
        one.
        """
        row = self.ledger._db.execute(
            "SELECT spec FROM releases WHERE fit_id = ? AND sequence = ?",
            (self.fit_id, self._next),
        ).fetchone()
        return row and json.loads(row[0])

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Make a noisy value durable, where values are stored, and log it, in one
        transaction: only then may it be observed.

        Guarantee: raises if another process has committed this release, before a byte
        of this value is written: it is neither observed nor kept, and the other's file,
        which may have the same name, is not touched. The log shows `committed` only
        once the value is on the disk.
        """
        try:
            with self.ledger._transaction():
                self._log(sequence, "committed", _digest(value))
                if self.store is not None:
                    write_durably(
                        self._file(sequence),
                        lambda file: np.save(file, value, allow_pickle=False),
                    )
        except sqlite3.IntegrityError as error:
            raise LedgerError(
                "a release must be committed once, got a second value for "
                f"sequence={sequence} of fit {self.fit_id}. "
                "Another process runs the same fit: its value counts, this one is "
                "discarded."
            ) from error

    def forget(self, count: int) -> None:
        """Delete the stored values of the first `count` releases, of which the caller
        keeps what it needs; go on after.

        Guarantee: LedgerError unless all of them are committed, so that no release can
        be skipped or made twice.
        """
        row = self.ledger._db.execute(
            "SELECT COUNT(*) FROM progress WHERE fit_id = ? AND state = 'committed' "
            "AND sequence < ?",
            (self.fit_id, count),
        ).fetchone()
        if row[0] != count:
            raise LedgerError(
                f"releases must be committed before they are forgotten, got {row[0]} "
                f"of {count}. Resume."
            )
        for file in self.store.glob("*.npy") if self.store is not None else ():
            if int(file.stem) < count:
                file.unlink()
        self._next = max(self._next, count)

    def _load(self, sequence: int, digest: str) -> np.ndarray:
        """The committed value.

        Any other is a second answer to one charge, which a crash left in a copied
        folder, or it is damaged: it is deleted before the error.
        """
        value = None
        if self.store is not None and self._file(sequence).exists():
            try:
                value = np.load(self._file(sequence), allow_pickle=False)
            except (ValueError, EOFError):  # cut short, or no array
                value = None
        if value is None or _digest(value) != digest:
            self._remove(sequence)
            raise LedgerError(
                "a released value must be reused, never redrawn, got no or another "
                f"file for sequence={sequence} of "
                f"fit {self.fit_id}. Start a new fit in a new folder: it is charged "
                "again."
            )
        return value

    def _file(self, sequence: int) -> Path:
        assert self.store is not None
        return self.store / f"{sequence:06d}.npy"

    def _remove(self, sequence: int) -> None:
        """Delete what this folder holds of a release, whole or in part."""
        if self.store is not None:
            self._file(sequence).with_suffix(".part").unlink(missing_ok=True)
            self._file(sequence).unlink(missing_ok=True)

    def _log(self, sequence: int, state: str, digest: str | None = None) -> None:
        self.ledger._db.execute(
            "INSERT INTO progress (fit_id, sequence, state, at, digest) VALUES (?, ?, "
            "?, ?, ?)",
            (self.fit_id, sequence, state, _hour(time.time()), digest),
        )


def write_durably(path: Path, write: Callable[[Any], object]) -> None:
    """Have `write` fill a binary file that is afterwards on the disk, whole; after a
    crash it is whole or not there.
    """
    partial = path.with_suffix(".part")
    with open(partial, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _hour(at: float) -> float:
    """The whole hour, in seconds, that a time lies in: finer times tell of the rows."""
    return at // 3600 * 3600


def _digest(value: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).hexdigest()


def _canonical(spec: dict[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)
