"""Declare the id system of a features file, and merge the ledgers of its data set."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from dphead_extract.features.format import open_features
from dphead_extract.people import People

from dphead.fit.ledgers import (
    PEOPLE,
    counts_where_it_moved,
    default_ledger_path,
    holding,
    image_index,
    noted_ledgers,
    open_ledger,
    people_index,
)
from dphead.privacy.ledger import Ledger, LedgerError, seals
from dphead.privacy.ledger.moving import merge
from dphead.privacy.ledger.server import is_on_server, team_url
from dphead.privacy.ledger.store import MOVED


def declare_people(
    path: Path, system: str, new: bool, not_private: bool = False
) -> tuple[Ledger, list[str]]:
    """Declare the id system of a features file's groups, and merge its ledgers.

    Run it again after an interruption. Each step before the last one makes dphead
    refuse more, never less (proofs/ledger.md, "People").

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
        Whether a ledger with fits without noise, or with a seed, may be merged.

    Returns
    -------
    Ledger
        The ledger that now counts the data set.
    list of str
        The places of the ledgers that were merged into it.

    Raises
    ------
    ExtractError
        If a person is in a data set with another ledger.
    LedgerError
        If two ledgers cannot be merged, if a ledger is missing, or if the total would
        become infinite without a confirmation.
    """
    with open_features(path) as file:
        dataset_id, salt, groups = file.dataset_id, file.salt, file.group
        declared = file.people
    if declared is not None and declared["system"] != system:
        raise ValueError(
            f"{path} declares the id system {declared['system']!r}, got {system!r}. "
            f"Type dphead ledger people {declared['system']} {path}."
        )
    people = People(people_index(), system, new)
    counts = people.shared_id or dataset_id
    joining = () if new else (dataset_id, counts)
    with people.held():
        people.keep(dataset_id, salt, groups, joining)
    merged: list[str] = []
    book = open_ledger(None, counts)
    with holding(book):
        if counts != dataset_id:
            with ExitStack() as opened:
                sources = [
                    opened.enter_context(closing(source))
                    for source in _ledgers_of(dataset_id, book)
                ]
                for source in () if not_private else sources:
                    _check_noise(source, book)
                for source in sources:
                    merge(source, book, last=source is sources[-1])
                    merged.append(source.path)
        _fix(book, people)
    if counts != dataset_id:
        images = image_index()
        images.add(counts, images.images(dataset_id))
        with people.held():
            people.join(dataset_id)
    return book, merged


def _check_noise(source: Ledger, target: Ledger) -> None:
    """Raise LedgerError if a merge would make the total of the target infinite."""
    known, others = (
        any(event.noise_multiplier == 0 for event in one.events())
        for one in (source, target)
    )
    if known and not others:
        raise LedgerError(
            f"The ledger {source.path} has a fit without noise or with a seed. A merge "
            "makes the epsilon of all data sets of the id system infinite from then "
            "on. Confirm with --i-know-this-is-not-private."
        )


def _fix(book: Ledger, people: People) -> None:
    """Keep the declaration in the ledger, for features files without it."""
    declared = json.dumps(people.record)
    with book.transaction(kept=lambda: book.meta(PEOPLE) == declared):
        if (kept := book.set_once(PEOPLE, declared)) != declared:
            raise LedgerError(
                f"The ledger {book.path} has the declaration {kept}, got {declared}. "
                "Repeat the declaration that it has."
            )
        seals.seal(book)


def _ledgers_of(dataset_id: str, target: Ledger) -> Iterator[Ledger]:
    """Open every known ledger of a data set. Its own ledger is made if it is missing.

    A closed ledger without fits still tells which ledger counts the data set.
    """
    default, url = default_ledger_path(dataset_id), team_url()
    places = [str(default)] if url is None or default.exists() else []
    places += [*noted_ledgers(dataset_id), *([] if url is None else [url])]
    for place in dict.fromkeys(places):
        missing = not is_on_server(place) and not os.path.isfile(place)
        if place != str(default) and missing:
            raise LedgerError(
                f"The ledger {place} of data set {dataset_id} is missing, and may hold "
                "fits. Restore it from a backup, then run this command again."
            )
        book = Ledger(place, dataset_id)
        if book.meta(MOVED) not in (None, target.path) and counts_where_it_moved(book):
            book.close()
            continue
        yield book
