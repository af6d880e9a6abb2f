"""Declare the id system of a features file, and merge the ledgers of its data set."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
from dphead_extract.errors import ExtractError
from dphead_extract.features.format import open_features
from dphead_extract.people import People, rows_name

from dphead.analysis.ledger_place import home_folder, moved_to
from dphead.fit.ledgers import (
    RowGroups,
    check_store,
    holding,
    known_ledgers,
    ledger_name,
    open_ledger,
    other_ledgers,
    people_index,
)
from dphead.fit.noted import check_noted, note_ledger
from dphead.privacy.ledger import Ledger, LedgerError, seals
from dphead.privacy.ledger.groups import Groups
from dphead.privacy.ledger.moving import (
    check_merge,
    counted_data_sets,
    holds_all,
    merge,
)
from dphead.privacy.ledger.server import team_url
from dphead.privacy.ledger.store import INTO, MERGED, MOVED, PEOPLE, HeldLedger


def declare_people(
    path: Path,
    system: str,
    new: bool,
    not_private: bool = False,
    beside: Sequence[Path] = (),
) -> tuple[Ledger, list[str]]:
    """Declare the id system of a features file's groups, and merge its ledgers.

    Call it again after an interruption. Until the last step, each step makes dphead
    refuse more, never less (proofs/people.md, "Crashes").

    Parameters
    ----------
    path : Path
        A features file with groups.
    system : str
        The public name of the id system.
    new : bool
        Whether the data set keeps its own ledger, because nobody in it is in another
        data set of the system.
    not_private : bool, default False
        Whether ledgers may be merged although only some have an infinite epsilon.
    beside : sequence of Path, default ()
        Features files that are declared by the same command. Those of the same data set
        are recorded too. The ledgers of the others are checked, not merged.

    Returns
    -------
    Ledger
        The ledger that now counts the data set.
    list of str
        The places of the ledgers that were merged into it.

    Raises
    ------
    ExtractError
        If a person is in a data set with a different ledger.
    LedgerError
        If two ledgers cannot be merged, if a ledger is missing, or if the total would
        become infinite without a confirmation. If the groups differ from those of
        earlier fits, or if a charged ledger is not in the store (`check_store`).
    ValueError
        If a file has no groups, or groups of a different id system.
    """
    named = [_declarable(file, system) for file in (path, *beside)]
    dataset_id = named[0].dataset_id
    files = [one for one in named if one.dataset_id == dataset_id]
    people = People(people_index(declares=True), system, new)
    counts = people.shared_id or dataset_id
    joining = () if new else (dataset_id, counts)
    # otherwise, the shared ledger is this data set's own ledger
    merging = counts != dataset_id
    # hold the lock to the end, so that a second command finds this one's result
    with people.held(), ExitStack() as opened:
        # check everything before the merge, which cannot be undone
        _check_people(named, counts, people)
        book = open_ledger(None, counts)
        with holding(book):
            ids = dict.fromkeys(one.dataset_id for one in named)
            for name in ids:
                _check_copies(name, people.shared_id or name)
            ledgers = {
                name: [opened.enter_context(closing(one)) for one in _ledgers_of(name)]
                for name in ids
                if new or name != counts
            }
            merged = [] if new else ledgers.get(dataset_id, [])
            every = [] if new else [one for found in ledgers.values() for one in found]
            _check_merge(every, book, people, not_private)
            # no ledger is merged into itself
            check_store(team_url(), merging=() if new else ids.keys() - {counts})
            if every:
                _check_target(book, every)
            compared = {
                name: _compared([r for r in named if r.dataset_id == name], people)
                for name in ids
            }
            for name, found in ledgers.items():
                for ledger in found:
                    compared[name].compare(ledger)
            for one in files:
                people.keep(dataset_id, one.rows, one.ids, joining, checked=True)
            for ledger in merged:
                note_ledger(ledger.path, dataset_id)
                # fix the groups, so that no other home can charge fits of different
                # groups to this ledger
                if ledger.meta(MOVED) is None and ledger.meta(PEOPLE) is None:
                    _fix(ledger, people, compared[dataset_id], into=book.path)
            note_ledger(book.path, counts, book)  # notes the file behind a link
            # the shared ledger has groups of several data sets, so none are compared
            groups = compared[dataset_id] if new else None
            _fix(book, people, groups)
            if merged:
                merge(merged, book)
                note_ledger(book.path, counts, book)  # notes the merged budget
        if merging:
            people.join(dataset_id)
    return book, [ledger.path for ledger in merged]


def _declarable(path: Path, system: str) -> RowGroups:
    """Return a features file's groups, or raise ValueError as `declare_people`."""
    with open_features(path) as file:
        rows = RowGroups.of(file)
    if rows.people is not None and rows.people["system"] != system:
        raise ValueError(
            f"{path} belongs to the id system {rows.people['system']!r}, not "
            f"{system!r}. Type dphead ledger people {rows.people['system']} {path}."
        )
    if rows.ids is None:
        raise ValueError(
            f"{path} has no column with the id of each row's person. Nothing was "
            "declared. Write the file again with --columns group=NAME."
        )
    return rows


def _check_people(files: Sequence[RowGroups], counts: str, people: People) -> None:
    """Raise ExtractError if a person would be in data sets with several ledgers.

    The shared ledger is that of the data set `counts`.
    """
    earlier = [counts]
    for one in sorted(files, key=lambda r: r.dataset_id != files[0].dataset_id):
        earlier.append(one.dataset_id)
        people.check(one.dataset_id, one.ids, () if people.new else earlier)
    for one, other in combinations(files, 2) if people.new else ():
        assert one.ids is not None and other.ids is not None  # as `_declarable` checks
        both = np.intersect1d(one.ids, other.ids)
        if len(both) and one.dataset_id != other.dataset_id:
            raise ExtractError(
                f"{len(both):,} people are in both {one.path} and {other.path}, so "
                "they are not new. Nothing was declared. Drop --new-people: the two "
                "data sets then share one ledger."
            )


def _compared(files: Sequence[RowGroups], people: People) -> Groups:
    """Return the groups of one data set's files as ledgers compare them."""
    found = [one.compared(people.record, protects=True) for one in files]
    digests = {digest for one in found for digest in one.digests.values()}
    return replace(found[0], declared=lambda d: d in digests or found[0].declared(d))


def of_another_home(path: Path) -> bool:
    """Return whether a features file was declared in another home, and not yet here."""
    with open_features(path) as file:
        return file.people is not None and not people_index().knows(file.dataset_id)


def record_joined(path: Path) -> None:
    """Record the people of joined shards, if they declare an id system.

    Shards of other machines may have people who are not recorded here.
    """
    with open_features(path) as file:
        if file.people is None:
            return
        declared = People(people_index(declares=True), **file.people)
        with declared.held():
            people = declared.now(file.dataset_id)
            people.keep(file.dataset_id, rows_name(file.salt, file.config), file.group)


def _check_merge(
    sources: list[Ledger], target: Ledger, people: People, not_private: bool
) -> None:
    """Raise LedgerError if ledgers cannot be merged."""
    check_merge(sources, target)
    for source in sources:
        declared = json.loads(source.meta(PEOPLE) or "null")
        if declared is not None and declared["system"] != people.system:
            raise LedgerError(
                f"The ledger {source.path} belongs to the id system "
                f"{declared['system']!r}, not {people.system!r}. Type dphead ledger "
                f"people {declared['system']} FILE."
            )
        if source.meta("group_cap") == "null" and target.meta("group_cap") is None:
            raise LedgerError(
                f"The ledger {source.path} has fits that protect single rows. After a "
                "merge, no fit of the id system could protect a person. Nothing was "
                "declared. Keep that ledger. Its epsilons are for single rows, so they "
                "do not add up with those of the id system. State both epsilons."
            )
    _confirm_infinite(sources, target, not_private)


def _check_target(target: Ledger, sources: list[Ledger]) -> None:
    """Raise LedgerError if no fit could be charged to the ledger after the merge."""
    books = (target, *sources)  # includes ledgers of an interrupted merge
    budget = any(book.budget() is not None for book in books)
    for other in other_ledgers(target.meta("dataset_id"), *(b.path for b in books)):
        if other.budget is not None or (budget and other.fits != 0):
            raise LedgerError(
                f"These rows are also in {other}. A budget counts all fits, so after a "
                f"merge into {target.path} each fit would be refused. Nothing was "
                "declared. If that ledger counts a features file with ids of this id "
                "system, name both files in one command. Otherwise keep the ledgers: "
                "for a person in both, their privacy losses add up."
            )


def _confirm_infinite(sources: list[Ledger], target: Ledger, not_private: bool) -> None:
    """Raise LedgerError if a total would become infinite without a confirmation."""
    new = [source for source in sources if not holds_all(source, target)]
    infinite = {
        any(event.noise_multiplier == 0 for event in book.events()): book.path
        for book in (*new, target)
    }
    if new and len(infinite) > 1 and not not_private:
        raise LedgerError(
            f"The ledger {infinite[True]} has a fit without noise or with a seed. A "
            "merge makes the epsilon of all data sets of the id system infinite from "
            "then on. Confirm with --i-know-this-is-not-private."
        )


def _fix(
    book: Ledger, people: People, groups: Groups | None = None, into: str | None = None
) -> None:
    """Store the declaration in the ledger, for files that were written before it.

    With `into`, the ledger then takes no charge before it is merged into this ledger.

    Raises LedgerError if `groups` differ from those of its fits, or if it has a
    different declaration.
    """
    declared = json.dumps(people.record)
    with book.transaction(kept=lambda: book.meta(PEOPLE) == declared):
        if groups is not None:
            groups.compare(book)
        if (kept := book.set_once(PEOPLE, declared)) != declared:
            found = json.loads(kept)
            new = " --new-people" if found["new"] else ""
            raise LedgerError(
                f"The ledger {book.path} already has a different declaration. Type "
                f"dphead ledger people {found['system']} FILE{new}."
            )
        if into is not None:
            book.set_once(INTO, into)
        seals.seal(book)


def _ledgers_of(dataset_id: str) -> Iterator[Ledger]:
    """Yield every known ledger of a data set. Create its own ledger if it is missing.

    A ledger that was only moved is left out, because its new place is yielded.
    """
    own = str(ledger_name(None, dataset_id))
    places = [*dict.fromkeys((own, *known_ledgers(dataset_id)))]
    for place in places:
        check_noted(place)
        book = Ledger(place, dataset_id)
        moved, all_there = moved_to(book)
        if all_there and moved in places and book.meta(MERGED) is None:
            book.close()  # only moved: its new place is merged instead
            continue
        yield book


def _check_copies(dataset_id: str, counts: str) -> None:
    """Raise LedgerError if a ledger from another home counts the data set.

    Of the ledgers here, only that of the data set `counts` may count it.
    """
    for path in sorted(home_folder("ledgers").glob("*.sqlite")):
        try:
            with closing(Ledger(path, read_only=True)) as book:
                theirs, counted = book.meta("dataset_id"), counted_data_sets(book)
        except HeldLedger:
            raise
        except LedgerError:
            continue
        if dataset_id in counted and theirs != counts:
            break
    else:
        return
    raise LedgerError(
        f"The ledger {path} counts data set {dataset_id}, and belongs to an id system "
        "of another home. Nothing was declared. Set DPHEAD_HOME to the home where the "
        "data set was first declared. Run this command and later fits there."
    )
