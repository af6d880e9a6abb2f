"""Move or merge a data set's ledger, so that one ledger counts its fits."""

import json
from typing import Any

from sqlalchemy import Table, select

from dphead.privacy.accounting import filter_order
from dphead.privacy.ledger import seals
from dphead.privacy.ledger.ledger import Ledger
from dphead.privacy.ledger.schema import (
    FITS,
    META,
    PROGRESS,
    RELEASES,
    SEALS,
    TABLES,
    LedgerError,
)
from dphead.privacy.ledger.store import COUNTS, MERGED, MOVED, SUM


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
        raise _moved_elsewhere(source, target, before)
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


def merge(source: Ledger, target: Ledger, *, last: bool = True) -> None:
    """Add all fits of a ledger to the ledger of another data set, and close the source.

    The same call also finishes an interrupted merge. A data set can have several
    ledgers: `last` tells that all others were merged, so the target counts the data set
    from then on.

    Raises
    ------
    LedgerError
        If a ledger is damaged, if the source was moved elsewhere, if the two have
        another relation, or if only one protects groups.

    Guarantee
    ---------
    At no time do two ledgers take charges of the source's data set, as in `move`. The
    target then counts every fit of both. If both had fits, a budget is no guarantee for
    the sum, because it was not fixed before all of them. It still refuses fits: each
    charge must keep within the smaller epsilon and the smaller delta of both budgets.
    """
    seals.check_undamaged(source)
    theirs, own = source.meta("dataset_id"), target.meta("dataset_id")
    if None in (theirs, own) or theirs == own:
        raise LedgerError(
            f"Only ledgers of two data sets can be merged, got {theirs} and {own}."
        )
    before = source.meta(MOVED)
    if before not in (None, target.path):
        raise _moved_elsewhere(source, target, before)
    # Fix relation, cap and budget first, so that no later fit makes the merge fail.
    with target.transaction(kept=lambda: _fixed(source, target) == {}):
        seals.check_undamaged(target)
        for key, value in _fixed(source, target).items():
            target.set_once(key, value)
        seals.seal(target)  # also of a new ledger's first facts
    if before is None:
        with source.transaction(kept=lambda: source.meta(MOVED) is not None):
            source.set_once(MOVED, target.path)
            source.set_once(MERGED, str(own))
            seals.seal(source)
    counts = f"{COUNTS} {theirs}"

    def is_done() -> bool:
        return holds_all(source, target) and (not last or target.meta(counts) == "true")

    with target.transaction(kept=is_done):
        if is_done():
            return
        # What was charged before the source was closed.
        if not holds_all(source, target):
            if _is_sum(source, target):
                target.set_once(SUM, "true")
            for table in (FITS, RELEASES, PROGRESS):
                target.add(table, *source.rows(table))
            target.set_once(f"{MERGED} {theirs}", "true")
        if last:
            target.set_once(counts, "true")
        seals.seal(target)
        seals.check_undamaged(target)


def _is_sum(source: Ledger, target: Ledger) -> bool:
    """Return whether the target will count fits of several ledgers.

    True if both add something (fits, or a budget of their own), or if one is a sum.
    """

    def is_empty(one: Ledger, other: Ledger) -> bool:
        return not one.count_fits() and one.budget() in (None, other.budget())

    add = not (is_empty(source, target) or is_empty(target, source))
    return add or source.is_sum()


def _fixed(source: Ledger, target: Ledger) -> dict[str, str]:
    """Return the facts to fix in the target, or raise LedgerError if they differ."""
    theirs, own = source.facts(), target.facts()
    new: dict[str, str] = {}
    for key in ("relation", "group_cap", "accounting"):
        value = theirs.get(key)
        if value is not None and key not in own:
            new[key] = value
            continue
        same = value is None or key == "accounting" or value == own[key]
        if key == "group_cap" and not same:
            # fits of several caps share a ledger (proofs/groups.md), but not with rows
            same = "null" not in (value, own[key])
        if not same:
            raise LedgerError(
                f"Ledgers with fits of another {key.replace('_', ' ')} cannot be "
                f"merged, got {own[key]} in {target.path} and {value} in "
                f"{source.path}. Neither ledger was changed."
            )
    budget = _smaller(source.budget(), target.budget())
    if budget is not None and budget != target.budget():
        begun = target.count_fits() or target.budget()
        key = f"budget {len(target.budgets())}" if begun else "budget"
        new[key] = json.dumps(budget)
    return new


def _smaller(one: Any, other: Any) -> Any:
    """Return a budget that is within both budgets, or the only one, or None."""
    if one is None or other is None or one == other:
        return one or other
    epsilon, delta = (min(one[key], other[key]) for key in ("epsilon", "delta"))
    order = filter_order(epsilon, delta)
    return {"epsilon": epsilon, "delta": delta, "order": order}


def _moved_elsewhere(source: Ledger, target: Ledger, place: str | None) -> LedgerError:
    return LedgerError(
        f"The ledger {source.path} was already moved to {place}, so it "
        f"cannot move to {target.path}. Use the ledger at {place}."
    )


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
    """Return whether the target has every charge of a source that was moved to it.

    A move copies all seals except its own. A merge is a fact of the target, which is
    written together with the fits.
    """
    if source.meta(MERGED) is not None:
        known = target.meta(f"{MERGED} {source.meta('dataset_id')}") is not None
        ids = select(FITS.c.fit_id)
        return known and {*source.query(ids)} <= {*target.query(ids)}
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
