"""The append-only record of every release from one data set, and its budget.

A whole fit is reserved, durably, before a release uses a row (`Ledger.reserve`): that
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
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
CREATE TABLE IF NOT EXISTS seals (
    id INTEGER PRIMARY KEY, fits INTEGER NOT NULL, meta TEXT NOT NULL,
    digest TEXT NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS one_commit
    ON progress (fit_id, sequence) WHERE state = 'committed';
"""
APPEND_ONLY = "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_{verb.lower()} BEFORE {verb} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;"
    for table in ("meta", "fits", "releases", "progress", "seals")
    for verb in ("UPDATE", "DELETE")
)
FIT = (
    "fit_id",
    "created",
    "epsilon",
    "delta",
    "relation",
    "plan_hash",
    "description",
)
NEW_FIT = f"INSERT INTO fits VALUES ({', '.join(f':{name}' for name in FIT)})"
NEW_RELEASE = (
    "INSERT INTO releases VALUES "
    "(:fit_id, :sequence, :label, :noise_multiplier, :sampling_prob, :spec)"
)
STATES = ("started", "redrawn", "committed")  # of a release that is not only reserved
# what SQLite raises for a file or disk that fails; the last for damaged names
FAULTS = (sqlite3.Error, UnicodeDecodeError)
HEADER = 100  # bytes that begin every SQLite file (sqlite.org/fileformat2, 1.3)

_forks = [0]  # from the first process to this one
os.register_at_fork(after_in_child=lambda: _forks.append(_forks.pop() + 1))


def _process() -> tuple[int, int]:
    """Its id, which another may get later, and how many forks lie before it."""
    return os.getpid(), _forks[0]


class LedgerError(ValueError):
    """Refused: the budget would be exceeded, or this is not what was reserved."""


class Ledger:
    """The ledger of one data set.

    path: an SQLite file, or the str ":memory:", which is not durable and counts the
    fits of this object alone. dataset_id: the data set's random public id; an existing
    file with another id is refused.

    Guarantee: a process that was forked off by Python, or has another id, cannot
    charge, begin or commit with it (LedgerError): of a ledger in memory it has a copy,
    where the same charge would be answered a second time.
    """

    def __init__(
        self, path: str | Path = ":memory:", dataset_id: str | None = None
    ) -> None:
        self.path, self._process = str(path), _process()
        if self.path == ":memory:" and not isinstance(path, str):
            self.path = "./:memory:"  # a Path is a file, and drops its "./"
        if self.path == "":
            raise LedgerError(
                "the ledger must be a file, got path=''. SQLite would keep it nowhere: "
                "name a file, or ':memory:' to count this process's fits alone."
            )
        try:
            if self.path != ":memory:":
                _make_whole(Path(path))
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            self._db.execute("PRAGMA synchronous=EXTRA")
            # Without it REPLACE deletes rows past the triggers.
            self._db.execute("PRAGMA recursive_triggers=ON")
            self._db.executescript(SCHEMA + APPEND_ONLY)
        except (*FAULTS, OSError) as error:
            raise LedgerError(
                "the ledger must be a readable, writable SQLite file, got "
                f"path={self.path} ({error})."
            ) from error
        if dataset_id is None:
            return
        kept = self._set_once("dataset_id", dataset_id)
        if kept != dataset_id:
            raise LedgerError(
                f"the ledger must belong to this data set, got dataset_id={kept}. "
                f"The features say {dataset_id}: use their own ledger."
            )

    def meta(self, key: str) -> str | None:
        """A fact that is fixed once, or None where it is not yet.

        key: dataset_id, relation, accounting ("gdp" or "rdp"), group_cap (JSON: a
        number, or null where a row is protected), or budget (JSON).
        """
        row = self._first("SELECT value FROM meta WHERE key = ?", key)
        return row and row[0]

    def _set_once(self, key: str, value: str) -> str:
        """The fact, which is `value` where it was not fixed before."""
        self._execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))
        return self.meta(key) or value

    def _execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        """Run a statement. LedgerError, in one line, where the file or disk fails."""
        try:
            return self._db.execute(statement, values)
        except sqlite3.IntegrityError:
            raise
        except FAULTS as error:
            raise self._unsound(error) from error

    def _unsound(self, error: Exception) -> LedgerError:
        return LedgerError(
            "the ledger must be a sound SQLite file on a disk with room, got "
            f"path={self.path} ({error}). Make room, or look at the file before you "
            "use a copy of it: a copy does not know later fits."
        )

    def _all(self, query: str, *values: Any) -> list[Any]:
        """The rows that a query finds."""
        try:
            return self._execute(query, values).fetchall()
        except FAULTS as error:
            raise self._unsound(error) from error

    def _first(self, query: str, *values: Any) -> Any:
        """The first row that a query finds, or None."""
        return next(iter(self._all(query, *values)), None)

    def _has_fits(self) -> bool:
        return self._first("SELECT 1 FROM fits") is not None

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
        order = accounting.filter_order(epsilon, delta)
        wanted = {"epsilon": epsilon, "delta": delta, "order": order}
        with self._transaction():
            self._check_undamaged()
            if self.budget() is None and self._has_fits():
                raise LedgerError(
                    "a budget must be set before the first fit, got a ledger with "
                    "fits. Keep its record."
                )
            if json.loads(self._set_once("budget", json.dumps(wanted))) != wanted:
                raise LedgerError(
                    f"the budget is fixed once, got {epsilon=}, {delta=}. It is "
                    f"{self.budget()}."
                )
            self._seal()

    def budget(self) -> dict[str, float] | None:
        """Epsilon, delta and the RDP order of the filter, or None without a budget."""
        text = self.meta("budget")
        return json.loads(text) if text else None

    def events(self) -> list[GaussianEvent]:
        """Every release ever reserved: all of them count as spent."""
        rows = self._all("SELECT spec, COUNT(*) FROM releases GROUP BY spec")
        return together(
            replace(event_of(json.loads(spec)), count=count) for spec, count in rows
        )

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
        fit_id: str | None = None,
    ) -> "FitLedger":
        """Charge a whole fit, durably, or refuse with nothing written.

        specs: `ReleaseSpec.row()` of each release. fit_id: of `new_fit_id`; None draws
        one. Who writes it down before this call finds the charge again after a crash.

        Guarantee: a fit_id is charged once: LedgerError where the ledger `holds` it.
        After it returns, the sum of all fits ever reserved is within the
        budget (epsilon to a relative 1e-9: `_check`), whatever happens next.
        """
        caps = {s["group_cap"] for s in specs}
        if any(s["relation"] != relation for s in specs) or len(caps) > 1:
            raise LedgerError(
                "every release must have the fit's relation and unit, got "
                f"{relation=}, {caps=}. Plan anew."
            )
        fit_id = fit_id or new_fit_id()
        fit = {
            "fit_id": fit_id,
            "created": _hour(time.time()),
            "epsilon": repr(epsilon),
            "delta": delta,
            "relation": relation,
            "plan_hash": plan_hash,
            "description": description,
        }
        releases = [
            {**s, "fit_id": fit_id, "sequence": i, "spec": _canonical(s)}
            for i, s in enumerate(specs)
        ]
        # Its folder can be another process's: that is found before the charge.
        reserved = FitLedger(self, fit_id, store)
        try:
            with self._transaction():
                self._check_undamaged()
                if self.holds(fit_id):
                    raise LedgerError(
                        f"a fit must be charged once, got {fit_id=} again. Resume it."
                    )
                self._fix_unit(relation, next(iter(caps), None))
                self._check(together(event_of(s) for s in specs), relation)
                self._execute(NEW_FIT, fit)
                for one in releases:
                    self._execute(NEW_RELEASE, one)
                self._seal()
        except BaseException:
            reserved.leave()
            raise
        return reserved

    def _seal(self) -> None:
        """Put a digest on all that was fixed and charged since the last seal, and on
        that seal.
        """
        last = self._first("SELECT fits, digest FROM seals ORDER BY id DESC")
        before, digest = last or (0, "")
        count = self._first("SELECT COUNT(*) FROM fits")[0]
        meta = json.dumps(self._meta(), sort_keys=True)
        digest = _chained(digest, count, meta, self._charged(before, count))
        self._execute(
            "INSERT INTO seals (fits, meta, digest) VALUES (?, ?, ?)",
            (count, meta, digest),
        )

    def _meta(self) -> dict[str, str]:
        return dict(self._all("SELECT key, value FROM meta"))

    def _charged(self, first: int, stop: int) -> str:
        """Fits first to stop - 1, in the order of their charges, and their releases."""
        fits = self._all(
            f"SELECT {', '.join(FIT)} FROM fits ORDER BY rowid LIMIT ? OFFSET ?",
            stop - first,
            first,
        )
        releases = [
            self._all(
                "SELECT sequence, label, noise_multiplier, sampling_prob, spec "
                "FROM releases WHERE fit_id = ? ORDER BY sequence",
                fit[0],
            )
            for fit in fits
        ]
        return json.dumps([fits, releases], default=repr)

    def verify(self) -> list[str]:
        """What is damaged, in words; [] if nothing is.

        The file is what SQLite wrote (an index that does not hold its table's rows
        would hide a budget), charges and fixed facts are under a chain of digests, a
        release's columns say what its spec says, and releases were begun and committed
        in their order. This finds damage, not a forger, who can make the chain anew,
        nor a file that lacks its last fits with their seals, or a fit's last commit.
        """
        with self._snapshot():
            try:
                return self._damage()
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, LedgerError):
                    raise
                return [f"text that cannot be read ({error!r})"]

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """One state of the file for all queries: another process may charge it."""
        if self._db.in_transaction:
            yield
            return
        self._execute("BEGIN")
        try:
            yield
        finally:
            with suppress(sqlite3.Error):  # nothing was written
                self._db.rollback()

    def _check_undamaged(self) -> None:
        for problem in self.verify():
            raise LedgerError(
                f"a ledger must be undamaged to be used, got {problem} in "
                f"path={self.path}. Put back a copy that holds all its fits."
            )

    def _damage(self) -> list[str]:
        (found,) = self._first("PRAGMA integrity_check(1)")
        if found != "ok":
            return [f"a file that is not as SQLite wrote it ({found})"]
        meta = self._meta()
        done, digest = 0, ""
        for fits, fixed, kept in self._all(
            "SELECT fits, meta, digest FROM seals ORDER BY id"
        ):
            digest = _chained(digest, fits, fixed, self._charged(done, fits))
            if digest != kept:
                return [f"a change in fits {done + 1} to {fits}, or in their seal"]
            if any(meta.get(k) != v for k, v in json.loads(fixed).items()):
                return [f"a change in what was fixed before fit {fits + 1}"]
            done = fits
        columns = "SELECT noise_multiplier, sampling_prob, spec FROM releases"
        for noise, prob, spec in self._all(columns):
            said = json.loads(spec)
            if (noise, prob) != (said["noise_multiplier"], said["sampling_prob"]):
                return ["a release whose columns are not its spec's"]
        return self._disorder()

    def _disorder(self) -> list[str]:
        """Releases are begun, once or again, and committed, one after another."""
        counts = self._all("SELECT fit_id, COUNT(*) FROM releases GROUP BY fit_id")
        reserved = dict(counts)
        done = Counter[str]()
        begun = set()
        for fit_id, sequence, state in self._all(
            "SELECT fit_id, sequence, state FROM progress ORDER BY id"
        ):
            release = (fit_id, sequence)
            known = state in STATES and sequence < reserved.get(fit_id, 0)
            if (
                not known
                or sequence != done[fit_id]
                or (state == "started") == (release in begun)
            ):
                return [f"a release that was {state!r} out of turn"]
            begun.add(release)
            done[fit_id] += state == "committed"
        return []

    def holds(self, fit_id: str) -> bool:
        """Whether a fit of this id was charged."""
        return self._first("SELECT 1 FROM fits WHERE fit_id = ?", fit_id) is not None

    def _fix_unit(self, relation: str, cap: int | None) -> None:
        """Refuse a fit that protects something else than the fits before it."""
        kept = self._set_once("relation", relation)
        if kept != relation:
            raise LedgerError(
                f"one ledger holds one neighbouring relation, got {relation=}. It "
                f"holds {kept}."
            )
        if self.meta("group_cap") is None and self._has_fits():
            self._set_once("group_cap", "null")  # fits from before there were groups
        unit = json.loads(self._set_once("group_cap", json.dumps(cap)))
        if unit != cap:
            raise LedgerError(
                f"one ledger protects one unit, got group_cap={cap}. It has "
                f"group_cap={unit}."
            )

    def resume(self, plan_hash: str, fit_id: str, store: Path) -> "FitLedger":
        """Continue an interrupted fit of the same plan, without a new charge.

        LedgerError for another plan, or a ledger that is seen to be damaged.
        """
        self._check_undamaged()
        row = self._first("SELECT plan_hash FROM fits WHERE fit_id = ?", fit_id)
        if row is None or row[0] != plan_hash:
            raise LedgerError(
                f"a resumed fit must have the plan that was charged, got {fit_id=}. "
                "Start a new run folder."
            )
        return FitLedger(self, fit_id, store)

    def _check(self, new: list[GaussianEvent], relation: str) -> None:
        """The filter over all fits: refuse what would exceed the budget.

        proofs/ledger.md, "Across fits": GDP for full batches [Smith, Thakurta 2022;
        Koskela et al. 2023], RDP at one order fixed with the budget otherwise [Feldman,
        Zrnic 2021]; the kind is fixed by the first fit. Epsilon may exceed the budget's
        by a relative 1e-9, so that fits which share it are not refused by a last bit.
        """
        budget = self.budget()
        if budget is None:
            return
        old = self.events()
        gaussian = all(e.sampling_prob == 1 for e in new)
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
        if not spent <= target * (1 + 1e-9):
            raise LedgerError(
                f"the budget must not be exceeded, got a total of epsilon={spent:.6g} "
                f"> {target:g} at delta={delta:g}. "
                "Nothing was charged: ask for less, or stop."
            )

    def fits(self) -> list[dict[str, Any]]:
        """Every fit with its releases and their states, for `dphead ledger show`.

        They are in the order of their rows, which is that of the charges: clocks and
        equal hours cannot change it. created: a whole hour.

        Guarantee: no finer time leaves a ledger, also of fits charged before hours were
        stored.
        """
        rows = self._all(f"SELECT {', '.join(FIT)} FROM fits ORDER BY rowid")
        fits: list[dict[str, Any]] = []
        for row in rows:
            fits.append(dict(zip(FIT, row, strict=True)))
        for fit in fits:
            fit["created"] = _hour(fit["created"])
            fit["releases"] = self._releases(fit["fit_id"])
        return fits

    def _releases(self, fit_id: str) -> list[dict[str, Any]]:
        progress = self._all(
            "SELECT sequence, state FROM progress WHERE fit_id = ? ORDER BY id", fit_id
        )
        states = dict(progress)
        specs = self._all(
            "SELECT sequence, spec FROM releases WHERE fit_id = ? ORDER BY sequence",
            fit_id,
        )
        return [
            {"sequence": i, "state": states.get(i, "reserved"), **json.loads(spec)}
            for i, spec in specs
        ]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything or nothing, and one at a time.

        So two processes cannot both pass the budget check. LedgerError in a process
        that was forked off: SQLite forbids it to use this connection.
        """
        if _process() != self._process:
            raise LedgerError(
                "a ledger must be used in the process that opened it, got "
                f"process={os.getpid()}. Process {self._process[0]} opened it: open a "
                "file again here, and make no fork of a ledger in memory."
            )
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                with suppress(sqlite3.Error):  # the first error is the one to be seen
                    self._db.execute("ROLLBACK")
            raise

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
            store.mkdir(parents=True, exist_ok=True, mode=0o700)
            # held until the process ends
            self._lock = open(store / "lock", "w")  # noqa: SIM115
            if not self._holds(store / "lock"):
                raise LedgerError(
                    f"one process may run a fit, got a second one for {store}. Wait "
                    "for it, or use another folder."
                )

    def _holds(self, lock: Path) -> bool:
        """Take the lock; False if another process has it, or removed it by `leave`
        after it was opened here: the next one would lock another file.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._lock.fileno()), os.stat(lock))
        except OSError:
            return False

    def leave(self) -> None:
        """Give up the folder, before anything was stored."""
        if self.store is not None:
            (self.store / "lock").unlink()
            self._lock.close()
            with suppress(OSError):  # another program's files are there
                self.store.rmdir()

    def begin(self, spec: dict[str, Any]) -> tuple[int, np.ndarray | None]:
        """The next release's number, and its value if an earlier run committed it.

        Guarantee: a release that is not the next reserved one raises before any row is
        read, and so does one after a release that failed. One that was in flight at a
        crash was never observed; it is drawn afresh, and logged as "redrawn". One that
        was returned is never redrawn.
        """
        sequence = self._next
        if self._reserved(sequence) != _canonical(spec):
            raise LedgerError(
                f"a release must be the next one reserved, got sequence={sequence}, "
                f"label={spec['label']!r}. "
                "The solver left its plan: this is a defect, and nothing was read."
            )
        # Nobody commits between the look and the removal.
        with self.ledger._transaction():
            progress = self.ledger._all(
                "SELECT state, digest FROM progress WHERE fit_id = ? AND sequence = ?",
                self.fit_id,
                sequence,
            )
            states = dict(progress)
            if set(states) - set(STATES):
                raise LedgerError(
                    f"a release's states must be known ones, got {sorted(states)}. "
                    "The ledger is damaged: nothing was read."
                )
            before = self.ledger._first(
                "SELECT COUNT(*) FROM progress "
                "WHERE fit_id = ? AND sequence < ? AND state = 'committed'",
                self.fit_id,
                sequence,
            )
            if before != (sequence,):
                raise LedgerError(
                    f"a release must follow returned ones, got {sequence=} after "
                    f"{before[0]} of them. The last one failed: resume the fit."
                )
            if "committed" not in states:
                self._log(sequence, "redrawn" if states else "started")
                self._remove(sequence)
        self._next += 1
        if "committed" in states:
            return sequence, self._load(sequence, states["committed"])
        return sequence, None

    def following(self) -> dict[str, Any] | None:
        """The spec reserved after the release that began last, None after the last."""
        reserved = self._reserved(self._next)
        return reserved and json.loads(reserved)

    def _reserved(self, sequence: int) -> Any:
        """The text of the spec that was reserved, or None."""
        row = self.ledger._first(
            "SELECT spec FROM releases WHERE fit_id = ? AND sequence = ?",
            self.fit_id,
            sequence,
        )
        return row and row[0]

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Store a noisy value, where values are stored, and log it, in one transaction.

        Only then may it be observed.

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
        """Delete the stored values of the first `count` releases; go on after them.

        The caller keeps what it needs of them.

        Guarantee: LedgerError unless all of them are committed, so that no release can
        be skipped or made twice.
        """
        row = self.ledger._first(
            "SELECT COUNT(*) FROM progress WHERE fit_id = ? AND state = 'committed' "
            "AND sequence < ?",
            self.fit_id,
            count,
        )
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
            with suppress(Exception):  # cut short, or no array: the digest decides
                value = np.load(self._file(sequence), allow_pickle=False)
        if value is None or _digest(value) != digest:
            self._remove(sequence)
            raise LedgerError(
                "a released value must be reused, never redrawn, got no or another "
                f"file for sequence={sequence} of fit {self.fit_id}. "
                "Start a new fit in a new folder: it is charged again."
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
        self.ledger._execute(
            "INSERT INTO progress (fit_id, sequence, state, at, digest) "
            "VALUES (?, ?, ?, ?, ?)",
            (self.fit_id, sequence, state, _hour(time.time()), digest),
        )


def _make_whole(path: Path) -> None:
    """Make a ledger without fits that its owner alone can read, where there is none.

    It gets its name when all of it is on the disk, so that a file that is shorter than
    SQLite's header was cut: LedgerError, where SQLite would see an empty ledger.
    """
    if path.exists():
        size = path.stat().st_size
        if path.is_file() and size < HEADER:
            raise LedgerError(
                f"the ledger must be a whole SQLite file, got {path=!s} of {size} "
                "bytes. Put back a copy that holds all its fits."
            )
        return
    journal = Path(f"{path}-journal")
    if journal.exists():  # SQLite would write its pages into the new file
        raise LedgerError(
            f"a ledger must be beside its journal, got {journal=!s} alone. "
            "Put the ledger back."
        )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        db = sqlite3.connect(new, isolation_level=None)
        with closing(db):
            db.execute("PRAGMA journal_mode=MEMORY")
            db.executescript(f"BEGIN; {SCHEMA} {APPEND_ONLY} COMMIT;")
        with suppress(FileExistsError):  # another process made it meanwhile
            os.link(new, path)
    finally:
        new.unlink()
    sync(path.parent)


def new_fit_id() -> str:
    """A random id of a fit, which tells nothing."""
    return uuid.uuid4().hex


def write_durably(path: Path, write: Callable[[Any], object]) -> None:
    """Have `write` fill a binary file that is on the disk before this returns.

    After a crash it is whole or not there.
    """
    partial = path.with_suffix(".part")
    with open(partial, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk before this returns."""
    opened = os.open(folder, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def _hour(at: float) -> float:
    """The whole hour, in seconds, that a time lies in: finer times tell of the rows."""
    return at // 3600 * 3600


def _digest(value: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).hexdigest()


def _chained(before: str, fits: int, meta: str, charged: str) -> str:
    text = json.dumps([before, fits, meta, charged])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _canonical(spec: dict[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)
