"""Define the tables of a ledger, and its errors.

SQL triggers refuse to change or delete a row.
"""

import json
from typing import Any

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
FIT: tuple[str, ...] = (
    "fit_id",
    "created",
    "epsilon",
    "delta",
    "relation",
    "plan_hash",
    "description",
)
STATES = ("started", "redrawn", "committed")  # states of a release after "reserved"


class LedgerError(ValueError):
    """Raised if a budget would be exceeded, or if this is not what was reserved."""


class HeldLedger(LedgerError):
    """Raised if another process holds the ledger. It is not damaged.

    Nothing was charged.
    """


def whole_hour(at: float) -> float:
    """Return the whole hour of a time, in seconds: finer times tell of the rows."""
    return at // 3600 * 3600


def canonical(spec: dict[str, Any]) -> str:
    """Return the one text of a spec: equal specs have equal texts."""
    return json.dumps(spec, sort_keys=True)
