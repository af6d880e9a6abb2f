"""Define the tables of a ledger, and its errors.

SQL triggers refuse to change or delete an entry.
"""

import json
from typing import Any

from sqlalchemy import (
    DDL,
    Column,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.schema import CreateIndex, CreateTable

TABLES = MetaData()


def _table(name: str, keys: dict[str, Any], columns: dict[str, Any]) -> Table:
    """Define a table of columns that are never NULL, with the primary key first."""
    own = [Column(key, kind, primary_key=True) for key, kind in keys.items()]
    own += [Column(key, kind, nullable=False) for key, kind in columns.items()]
    return Table(name, TABLES, *own)


# Values that are fixed once, such as the data set, the relation and the budget.
META = _table("meta", {"key": Text}, {"value": Text})
# One row for each charge. Epsilon is text, so that it keeps every digit.
FITS = _table(
    "fits",
    {"fit_id": Text},
    {
        "created": Double,
        "epsilon": Text,
        "delta": Double,
        "relation": Text,
        "plan_hash": Text,
        "description": Text,
    },
)
# Every release of every plan, written with its fit.
RELEASES = _table(
    "releases",
    {"fit_id": Text, "sequence": Integer},
    {
        "label": Text,
        "noise_multiplier": Double,
        "sampling_prob": Double,
        "spec": Text,
    },
)
# The states of each release, in the order in which it reached them.
PROGRESS = Table(
    "progress",
    TABLES,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("fit_id", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("digest", Text),
)
# A chain of digests over the entries of the tables above (`seals`).
SEALS = _table(
    "seals", {"id": Integer}, {"fits": Integer, "meta": Text, "digest": Text}
)
# The database itself refuses a second value for one charge.
_ONE_COMMIT = Index(
    "one_commit",
    PROGRESS.c.fit_id,
    PROGRESS.c.sequence,
    unique=True,
    sqlite_where=PROGRESS.c.state == "committed",
)
# Triggers prevent accidents. They do not stop an owner of the file who drops them.
_APPEND_ONLY = [
    DDL(
        f"CREATE TRIGGER IF NOT EXISTS {table}_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    )
    for table in TABLES.tables
    for verb in ("UPDATE", "DELETE")
]
STATEMENTS = [
    *(CreateTable(table, if_not_exists=True) for table in TABLES.tables.values()),
    CreateIndex(_ONE_COMMIT, if_not_exists=True),
    *_APPEND_ONLY,
]
STATES = ("started", "redrawn", "committed")  # states of a release after "reserved"


class LedgerError(ValueError):
    """Raised if a ledger refuses a charge or a release, or cannot be used."""


class HeldLedger(LedgerError):
    """Raised if the ledger cannot be used now. It is not damaged.

    Another process holds it, its server does not answer, or its disk failed. Nothing
    was written.
    """


class LacksRight(LedgerError):
    """Raised if a database role lacks a right on a team's server."""


class LostAnswer(LedgerError):
    """Raised if a failed COMMIT may have written its transaction.

    `cause` is a sentence about what failed.
    """

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(
            f"{cause} The ledger did not confirm the charge. The fit is charged at "
            "most once. The same command, typed again, finds the charge by its id. "
            "From Python, see `dphead ledger show`: a second `fit` is a second charge."
        )


def whole_hour(at: float) -> float:
    """Return a time in seconds, rounded down to an hour.

    Finer times could reveal how long a release took, and this depends on its rows.
    """
    return at // 3600 * 3600


def canonical(spec: dict[str, Any]) -> str:
    """Return a spec as text. Equal specs have equal texts."""
    return json.dumps(spec, sort_keys=True)
