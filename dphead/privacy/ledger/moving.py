"""Move a data set's ledger to another place, so that one ledger counts its fits."""

from sqlalchemy import Table, select

from dphead.privacy.ledger import seals
from dphead.privacy.ledger.ledger import Ledger
from dphead.privacy.ledger.schema import META, SEALS, TABLES, LedgerError
from dphead.privacy.ledger.store import MOVED


def move(source: Ledger, target: Ledger) -> None:
    """Copy all rows of a ledger to an empty one, and close the source for charges.

    The same call also finishes an interrupted move.

    Raises
    ------
    LedgerError
        If the source is damaged or was moved elsewhere, if the target has other fits or
        a budget, or if the data sets of both ledgers differ.

    Guarantee
    ---------
    At no time do two ledgers take charges: the source is closed, durably, before the
    target gets its first row. A fit that runs meanwhile is refused at its next release,
    and continues in the target. Budget, digests and the order of charges stay.
    """
    # A damaged ledger must not become a new, whole one.
    seals.check_undamaged(source)
    _check_target(source, target)
    before = source.meta(MOVED)
    if before not in (None, target.path):
        raise LedgerError(
            f"The ledger {source.path} was already moved to {before}, so it "
            f"cannot move to {target.path}. Use the ledger at {before}."
        )
    # First close the source: a crash here leaves no ledger that takes charges.
    if before is None:
        with source.transaction():
            source.set_once(MOVED, target.path)
            seals.seal(source)
    with target.transaction(kept=lambda: holds_all(source, target)):
        _check_target(source, target)
        if holds_all(source, target):
            return
        # All rows or none: the target's transaction.
        for table in TABLES.sorted_tables:
            _copy(table, source, target)
        # The copied seals must hold for the copied rows.
        seals.check_undamaged(target)


def _check_target(source: Ledger, target: Ledger) -> None:
    ids = {source.meta("dataset_id"), target.meta("dataset_id")}
    if len(ids) != 1 or None in ids:
        raise LedgerError(
            "A ledger can move only to a ledger of the same data set, got the "
            f"data sets {source.meta('dataset_id')} and {target.meta('dataset_id')}. "
            "Name another target, or a new one."
        )
    if set(target.facts()) - {"dataset_id"} and not holds_all(source, target):
        raise LedgerError(
            f"{target.path} already has fits or a budget, so no other ledger can "
            "move there. Keep both ledgers: they cannot be merged."
        )


def holds_all(source: Ledger, target: Ledger) -> bool:
    """Return whether the target has every seal of the source except the move's seal."""
    theirs = select(SEALS.c.digest).order_by(SEALS.c.id)
    # The last seal of a moved source is the seal of the move.
    digests = source.query(theirs)[: -1 if source.meta(MOVED) else None]
    return bool(digests) and target.query(theirs)[: len(digests)] == digests


def _copy(table: Table, source: Ledger, target: Ledger) -> None:
    found = source.rows(table)
    # The target has its own data set id, and was not moved.
    if table is META:
        found = [row for row in found if row["key"] not in ("dataset_id", MOVED)]
    if table is SEALS:
        found.pop()  # of the move itself
    target.add(table, *found)
