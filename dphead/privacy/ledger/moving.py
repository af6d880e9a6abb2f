"""Move or merge a data set's ledger, so that one ledger counts its fits."""

import json
import os
from collections.abc import Sequence
from itertools import combinations, count
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
from dphead.privacy.ledger.server import is_on_server
from dphead.privacy.ledger.store import (
    AWAITS,
    COUNTS,
    JOINED,
    JOINS,
    MERGED,
    MOVED,
    PEOPLE,
    SUM,
)

_DIGESTS = select(SEALS.c.digest).order_by(SEALS.c.id)


def move(source: Ledger, target: Ledger) -> None:
    """Copy all entries of a ledger to an empty one, and close the source for charges.

    The same call also finishes an interrupted move.

    Raises
    ------
    LedgerError
        If the source is damaged or was moved elsewhere, or if a ledger belongs to an id
        system. If the data sets of both ledgers differ or are unknown. If the target
        has other fits or a budget, or awaits another ledger.

    Guarantee
    ---------
    If the source has a charge or a budget, at most one of the two ledgers takes charges
    from the start of the move on. The target takes none, durably, until it has all
    entries, and the source is closed before. A fit that runs meanwhile is refused at
    its next release, and can be resumed with the target. Budget, digests and the order
    of charges stay the same.
    """
    check_move(source, target)
    if source.meta(MOVED) is not None:
        # an earlier version closed the source without announcing it
        _announce(source, target)
    else:
        # The source's lock: its last digest covers all charges that move.
        with source.transaction():
            _announce(source, target)
            source.set_once(MOVED, target.path)
            seals.seal(source)
    with target.transaction(kept=lambda: holds_all(source, target), but=AWAITS):
        _check_target(source, target)
        if holds_all(source, target):
            return
        # The target gets all entries in one transaction, or none.
        for table in TABLES.sorted_tables:
            copy_rows(table, source, target)
        # The copied seals must hold for the copied entries.
        seals.check_undamaged(target)


def check_move(source: Ledger, target: Ledger) -> None:
    """Raise LedgerError if `move` would refuse these ledgers. Nothing is written."""
    # A copy of a damaged ledger would look undamaged.
    seals.check_undamaged(source)
    for book in (source, target):
        book.check_joined()
        if book.meta(PEOPLE) or book.meta(MERGED) or counted_data_sets(book):
            raise LedgerError(
                f"The ledger {book.path} belongs to an id system, so it cannot move. "
                "Nothing was moved. Keep this ledger, and charge its data sets with "
                "the DPHEAD_HOME and DPHEAD_LEDGER under which they were declared."
            )
    _check_target(source, target)
    before = source.meta(MOVED)
    if before not in (None, target.path):
        raise _moved_elsewhere(source, target, before)


def _announce(source: Ledger, target: Ledger) -> None:
    """Close the target to charges and budgets until it holds all of the source.

    A move needs an empty target, so it would fail after a charge or a budget there. For
    a source without a charge or a budget, nothing is closed.
    """
    with target.transaction(kept=lambda: AWAITS in target.facts(), but=AWAITS):
        _check_target(source, target)
        if (digests := _digests(source)) and not holds_all(source, target):
            target.set_once(AWAITS, digests[-1])


def merge(sources: Sequence[Ledger], target: Ledger) -> None:
    """Add all fits of a data set's ledgers to the ledger of another data set.

    The sources are closed for charges first. The same call also finishes an interrupted
    merge.

    Parameters
    ----------
    sources : sequence of Ledger
        All known ledgers of one data set.
    target : Ledger
        The ledger that counts the data set from then on.

    Raises
    ------
    LedgerError
        If the sources are not of one data set, or the target is of the same one. If a
        ledger is damaged, if two ledgers have different entries for one fit, if the
        target takes no charges, or if a source was moved elsewhere. If two ledgers have
        different relations, or if only one protects groups.

    Guarantee
    ---------
    A closed source takes no charge. One transaction of the target adds the fits of all
    sources, together with the fact that the target counts the data set. Until then, no
    charge of the data set goes to the target (`fit.ledgers`). From before the first
    source is closed until that transaction, the target takes no new fit and no budget
    (`check_joined`). If both had fits, or if a ledger without fits lowers the budget, a
    budget is no guarantee for the sum, because it was not fixed before all fits. The
    budget still refuses fits: with each charge, the total must be within the smallest
    epsilon at the smallest delta of all budgets.
    """
    ids = [one.meta("dataset_id") for one in (*sources, target)]
    theirs, own = ids[0], ids[-1]
    if None in ids or {*ids[:-1]} != {theirs} or theirs == own:
        raise LedgerError(
            "A merge needs ledgers of one data set, and a target of another data set. "
            f"Got ledgers of {', '.join(map(str, ids[:-1]))} and a target of {own}. "
            "Merge each data set alone, and not into its own ledger. A ledger without "
            "a data set (None) cannot be merged."
        )
    check_merge(sources, target)
    # Fix relation, unit and budget first, so that no later fit makes the merge fail.
    # From here on, the target takes no new fit until the merge is finished.
    with target.transaction(kept=lambda: not any(_fixed(s, target) for s in sources)):
        seals.check_undamaged(target)
        for source in sources:
            _fix(source, target)
        seals.seal(target)  # also seals the first values of a new ledger
    # Close the sources for charges, before a fit is copied.
    for source in sources:
        if source.meta(MOVED) is None:
            with source.transaction(kept=lambda s=source: bool(s.meta(MOVED))):
                source.set_once(MOVED, target.path)
                source.set_once(MERGED, str(target.meta("dataset_id")))
                seals.seal(source)

    def is_done() -> bool:
        """Return whether the target counts the data set, and has all its fits."""
        begun = theirs in target.joining()
        return not begun and all(holds_all(source, target) for source in sources)

    with target.transaction(kept=is_done):
        if is_done():
            return
        for source in sources:
            _fix(source, target)  # the source may have got its first fit since then
            lacks = _lacking(source, target)
            for table in (FITS, RELEASES, PROGRESS):
                rows = source.rows(table)
                target.add(table, *(r for r in rows if r["fit_id"] in lacks))
        target.set_once(f"{COUNTS} {theirs}", "true")
        for key, data_set in target.facts().items():
            if key.startswith(f"{JOINS} ") and data_set == theirs:
                target.set_once(key.replace(JOINS, JOINED), data_set)
        seals.seal(target)
        seals.check_undamaged(target)


def check_merge(sources: Sequence[Ledger], target: Ledger) -> None:
    """Raise LedgerError if ledgers cannot be merged into another one."""
    # an unfinished move must end first: after the merge, `check_move` refuses it
    target.check_open()
    for source in sources:
        source.check_open(but=MOVED)
        source.check_joined(leaves=True)
        seals.check_undamaged(source)
        before = source.meta(MOVED)
        if before in (None, target.path):
            continue
        # the DPHEAD_HOME of an interrupted or finished merge may have moved
        moved = source.meta(MERGED) == target.meta("dataset_id") and not (
            is_on_server(before) or os.path.lexists(before)
        )
        merged = source.meta(MERGED) is not None and holds_all(source, target)
        if not (merged or moved):
            raise _moved_elsewhere(source, target, before)
    # The same fit in two ledgers is counted once, so its entries must be the same.
    for pair in combinations((*sources, target), 2):
        _lacking(*pair)
    _check_kinds([*(s for s in sources if not holds_all(s, target)), target])


def _check_kinds(books: Sequence[Ledger]) -> None:
    """Raise LedgerError if the fits of ledgers differ in relation or unit."""
    names = {"relation": "neighboring relation", "group_cap": "unit of privacy"}
    for key, name in names.items():
        found = {book.path: _kinds(book) for book in books}
        kinds = {own[key]: path for path, own in found.items() if key in own}
        if len(kinds) > 1:
            told = " and ".join(f"{kind} ({path})" for kind, path in kinds.items())
            raise LedgerError(
                f"Ledgers of {told} cannot be merged: all fits of a ledger must have "
                f"the same {name}. If nobody in this data set is in another data set "
                "of the id system, add --new-people. Otherwise keep the ledgers, and "
                "state the epsilon of each."
            )


def _kinds(book: Ledger) -> dict[str, str]:
    """Return the relation and the unit that a ledger counts, as far as it has them."""
    found = {key: book.meta(key) for key in ("relation", "group_cap")}
    kinds = {key: value for key, value in found.items() if value}
    if "group_cap" in kinds:
        # a ledger may count different caps (proofs/groups.md)
        single = kinds["group_cap"] == "null"
        kinds["group_cap"] = "single rows" if single else "groups"
    return kinds


def _lacking(source: Ledger, target: Ledger) -> set[str]:
    """Return the ids of a source's fits that a target lacks.

    Raises LedgerError if the target has different entries for a fit.
    """
    lacks, differ = compared_fits(source, target)
    if differ:
        raise LedgerError(
            f"The ledgers {source.path} and {target.path} have different entries for "
            f"the fit {min(differ)}, so one of them is damaged or has false entries. "
            "Nothing was merged. Compare both (`dphead ledger show LEDGER --json`) "
            "with ledger.json in the fit's run folder. Then replace the ledger with "
            "the wrong entries by a backup that holds all its fits and releases."
        )
    return lacks


def compared_fits(source: Ledger, target: Ledger) -> tuple[set[str], set[str]]:
    """Return the ids of fits that the target lacks, and of fits that differ."""
    theirs, own = seals.charges_of(source), seals.charges_of(target)
    lacks = theirs.keys() - own.keys()
    return lacks, {one for one in theirs.keys() - lacks if theirs[one] != own[one]}


def _fix(source: Ledger, target: Ledger) -> None:
    for key, value in _fixed(source, target).items():
        target.set_once(key, value)


def _fixed(source: Ledger, target: Ledger) -> dict[str, str]:
    """Return the values to fix in the target. Raises LedgerError as `_check_kinds`."""
    if holds_all(source, target):
        return {}
    _check_kinds([source, target])
    theirs, own = source.facts(), target.facts()
    shared = ("relation", "group_cap", "accounting")
    new = {key: theirs[key] for key in shared if key in theirs and key not in own}
    budgets = source.budget(), target.budget()
    budget = _smaller(*budgets)
    fits = source.count_fits(), target.count_fits()
    if budget is not None and budget != budgets[1]:
        begun = fits[1] or budgets[1]
        later = (f"budget {n}" for n in count(len(target.budgets())))
        key = next(k for k in later if k not in own) if begun else "budget"
        new[key] = json.dumps(budget)
    # Not a sum: one of the two has no fits, and the other's budget still holds.
    copies = (not fits[0] and budgets[1] == budget) or (
        not fits[1] and budgets[0] == budget
    )
    if (source.is_sum() or not copies) and not target.is_sum():
        new[SUM] = "true"
    if theirs["dataset_id"] not in target.joining():
        # a role that may charge can have written some of these keys
        number = next(
            n for n in count() if not {f"{JOINS} {n}", f"{JOINED} {n}"} & own.keys()
        )
        new[f"{JOINS} {number}"] = theirs["dataset_id"]
    return new


def _smaller(one: Any, other: Any) -> Any:
    """Return a budget within both budgets, or the only one, or None without any."""
    if one is None or other is None or one == other:
        return one or other
    epsilon, delta = (min(one[key], other[key]) for key in ("epsilon", "delta"))
    order = filter_order(epsilon, delta)
    return {"epsilon": epsilon, "delta": delta, "order": order}


def _moved_elsewhere(source: Ledger, target: Ledger, place: str | None) -> LedgerError:
    do = "move to" if source.meta(MERGED) is None else "be merged into"
    return LedgerError(
        f"The ledger {source.path} was already moved to {place}, so it cannot {do} "
        f"{target.path}. Use the ledger at {place}, and the DPHEAD_HOME and "
        "DPHEAD_LEDGER with which it was moved there."
    )


def _check_target(source: Ledger, target: Ledger) -> None:
    # a ledger on a server has a data set id before its first entry
    ids = {source.meta("dataset_id"), target.meta("dataset_id") or target.dataset_id}
    if len(ids) != 1 or None in ids:
        raise LedgerError(
            "A ledger can move only to a ledger of the same data set, got the "
            f"data sets {source.meta('dataset_id')} and {target.meta('dataset_id')}. "
            "Name another target, or a new one."
        )
    others = target.facts().keys() - {"dataset_id"}
    # the target awaits this source, perhaps in an earlier state with fewer fits
    begun = others == {AWAITS} and target.meta(AWAITS) in _digests(source)
    if others == {AWAITS} and not begun:
        raise LedgerError(
            f"An earlier move of another ledger to {target.path} is not finished, so "
            "this ledger was not moved. Keep this ledger, and type the command of the "
            "earlier move again."
        )
    if others and not begun and not holds_all(source, target):
        raise LedgerError(
            f"{target.path} already has fits or a budget, so no other ledger can "
            "move there. Keep both ledgers: they cannot be merged. `dphead ledger "
            "show` prints the epsilon of each."
        )


def counted_data_sets(book: Ledger) -> list[str]:
    """Return the data sets that were merged into this ledger."""
    begin = f"{COUNTS} "
    return [key[len(begin) :] for key in book.facts() if key.startswith(begin)]


def holds_all(source: Ledger, target: Ledger) -> bool:
    """Return whether the target has every charge of a source.

    A move copies all seals except its own. A merge is recorded in the target, in the
    transaction that copies the fits. After a merge, the target must have the entries
    for each fit of the source, and values that a merge fixes (`_keeps_values`). The
    record alone is not enough: a ledger of the data set that is found after the merge
    can have further fits.
    """
    if source.meta(MERGED) is not None:
        counts = target.meta(f"{COUNTS} {source.meta('dataset_id')}")
        kept = counts is not None and _keeps_values(source, target)
        return kept and not any(compared_fits(source, target))
    if not (digests := _digests(source)):
        return source.meta(MOVED) is not None  # the source had no charge and no budget
    return _digests(target)[: len(digests)] == digests


def _keeps_values(source: Ledger, target: Ledger) -> bool:
    """Return whether a target has values that a merge of a source fixes (`_fixed`)."""
    within = _smaller(source.budget(), target.budget()) == target.budget()
    same = _kinds(source).items() <= _kinds(target).items()
    if target.is_sum() or not (within and same):
        return within and same
    # Otherwise the target's budget is a guarantee for the source's fits. Then it is
    # their own budget, they fixed the kind of its filter, and they are its first fits.
    theirs, own = ((one.budget(), one.meta("accounting")) for one in (source, target))
    ids, first = ([fit["fit_id"] for fit in one.rows(FITS)] for one in (source, target))
    began = theirs == own and ids == first[: len(ids)]
    return not source.is_sum() and (began or not ids)


def _digests(book: Ledger) -> list[str]:
    """Return the digests of a ledger's seals, except the seal of its own move."""
    found = [one for (one,) in book.query(_DIGESTS)]
    return found[: None if book.meta(MOVED) is None else -1]


def copy_rows(table: Table, source: Ledger, target: Ledger) -> None:
    """Copy a table's entries, except the data set id and those of the move."""
    found = source.rows(table)
    # The target has its own data set id, and was not moved.
    if table is META:
        found = [row for row in found if row["key"] not in ("dataset_id", MOVED)]
    if table is SEALS:
        found.pop()  # the seal of the move itself
    target.add(table, *found)
