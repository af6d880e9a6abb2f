"""Note where a home's ledgers are, and refuse a ledger that was replaced.

A note has a ledger's random identity and budget (proofs/ledger.md, "Noted ledgers").
"""

import errno
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

from dphead_extract.index import FOREIGN

from dphead.analysis.ledger_place import (
    data_sets_of_home,
    default_ledger_path,
    home_folder,
    ledger_home,
)
from dphead.privacy.atomic_write import (
    ForeignFile,
    make_folder,
    names_before_links,
    open_own,
    sync,
)
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger.server import is_on_server
from dphead.privacy.ledger.store import IDENTITY, IN_MEMORY

_WITHOUT_DATA_SET = "no data set.others"  # no data set's id has a space


def has_home() -> bool:
    """Return whether there is a home for ledgers and indexes: an absolute path."""
    try:
        return ledger_home().is_absolute()
    except LedgerError:
        return False


@contextmanager
def writable_home() -> Iterator[None]:
    """Ignore errors of a home that is read-only or belongs to another user.

    Raises LedgerError for other errors. Examples are a full disk, and a file of another
    user in a home that this user may write to. Without the lock or the note, a later
    budget would not count the fit. Raises ForeignFile if a link is in the place of a
    file.
    """
    try:
        yield
    except ForeignFile:
        raise
    except OSError as error:
        own = os.access(home_folder("ledgers"), os.W_OK)
        if own or error.errno not in FOREIGN:
            raise LedgerError(
                f"The ledgers of {ledger_home()} cannot be locked or listed "
                f"({error.strerror or error}). No fit was charged. Correct the cause, "
                "for example free some disk space. Then run this command again."
            ) from error


def notes_path(dataset_id: str | None) -> Path:
    """Return the file that names a data set's ledgers in other places.

    Without a data set, it names the ledgers that had none when they were noted.
    """
    if dataset_id is None:
        return home_folder("ledgers") / _WITHOUT_DATA_SET
    return default_ledger_path(dataset_id).with_suffix(".others")


def noted_ledgers(dataset_id: str) -> list[str]:
    """Return the non-default ledgers that were noted for a data set."""
    return [*_notes(dataset_id)]


@dataclass(frozen=True)
class _Note:
    """Hold a noted ledger's identity, and its budget in case the ledger is missing.

    Attributes
    ----------
    identity : str, optional
        None for a ledger on a server, whose name has the server's id, and for one that
        an earlier version noted.
    budget : dict, optional
        Epsilon and delta of its budget when it was last noted.
    links : tuple of str
        Names under which it was opened, with links (`names_before_links`).
    """

    identity: str | None = None
    budget: dict[str, float] | None = None
    links: tuple[str, ...] = ()

    def after(self, earlier: Self) -> Self:
        """Return this note with the names of an earlier note of the same ledger."""
        return replace(self, links=tuple(sorted({*self.links, *earlier.links})))


def _notes(dataset_id: str | None) -> dict[str, _Note]:
    """Return the last note of each noted ledger by its place.

    Raises LedgerError if the file of notes is damaged.
    """
    path = notes_path(dataset_id)
    lines = path.read_text().splitlines() if path.exists() else []
    notes = dict[str, _Note]()
    try:
        for line in lines:
            note = json.loads(line)
            known: list[Any] = [note] if isinstance(note, str) else note
            place, note = str(known[0]), _Note(*known[1:])
            notes[place] = note.after(notes.get(place, _Note()))
    except (ValueError, TypeError, LookupError) as error:
        raise LedgerError(
            f"{path} is damaged: each line must be a ledger's path or "
            '["PATH", "IDENTITY", BUDGET, NAMES], as JSON. Restore a copy. Without the '
            "file, dphead does not find those ledgers."
        ) from error
    return notes


def _names(place: str | Path, book: Ledger | None = None) -> set[str]:
    """Return all absolute names of a ledger's file: before, between and after links."""
    if book is not None:
        return {book.path, *book.links}
    return {os.path.realpath(place), *names_before_links(place)}


def _notes_at(names: set[str], dataset_id: str | None) -> dict[str, _Note]:
    """Return the notes of a data set that lead to a file, or had one of its names.

    The keys are the places of the notes.
    """
    return {
        one: note
        for one, note in _notes(dataset_id).items()
        if os.path.realpath(one) in names or not names.isdisjoint(note.links)
    }


def noted_budget(place: str) -> dict[str, float] | None:
    """Return the noted budget of a ledger, or None.

    If its notes differ, return the budget with the smallest epsilon.
    """
    names = _names(place)
    notes = [_notes_at(names, name).values() for name in data_sets_of_home()]
    kept = [note.budget for note in chain(*notes) if note.budget]
    return min(kept, key=lambda budget: budget["epsilon"], default=None)


def check_noted(place: str | Path, book: Ledger | None = None) -> None:
    """Raise LedgerError if the ledger that was noted at a path is missing or replaced.

    If the volume of the noted ledger is not mounted, or another file is in its place,
    its fits would not be counted (proofs/ledger.md, "Noted ledgers").

    Parameters
    ----------
    place : str or Path
        Where the ledger is, or will be.
    book : Ledger, optional
        The open ledger. A different file may have its path by now.
    """
    if place == IN_MEMORY or is_on_server(place) or not has_home():
        return
    path, names = os.path.realpath(place), _names(place, book)
    found = {name: _notes_at(names, name) for name in (*data_sets_of_home(), None)}
    noted = {name: notes for name, notes in found.items() if notes}
    with ExitStack() as opened:
        if noted and book is None and os.path.isfile(path):
            book = opened.enter_context(closing(Ledger(path, read_only=True)))
        theirs = None if book is None else book.meta("dataset_id")
        gone = [
            name
            for name, notes in noted.items()
            if book is None or name not in (None, theirs) or not _fits(book, notes)
        ]
    if not gone:
        return
    of = "" if gone[0] is None else f" of data set {gone[0]}"
    before = next(iter(noted[gone[0]]))
    if os.path.realpath(before) != path:  # a link led there
        of += f", which was {before},"
    state = "is missing" if book is None else "was replaced by another one"
    if theirs not in (None, gone[0]):
        state = f"was replaced by one of data set {theirs}"
    raise LedgerError(
        f"The ledger {path}{of} {state}, and may hold fits. Nothing was charged, set "
        "or merged. Mount its volume or restore a copy that holds all its fits and "
        "releases, then run this command again. If it was moved, type its new path. A "
        "different ledger needs a different path. If this ledger never held a fit, "
        f"remove its line from {notes_path(gone[0])}."
    )


def is_noted(book: Ledger, dataset_id: str | None) -> bool:
    """Return whether a ledger is the noted one, or no ledger was noted at its path."""
    if book.url:  # the name of a server's ledger identifies it
        return True
    return _fits(book, _notes_at(_names(book.path, book), dataset_id))


def _fits(book: Ledger, notes: Mapping[str, _Note]) -> bool:
    """Return whether all notes at a ledger's names describe this ledger."""
    kept = {note.identity for note in notes.values()}
    # Notes of an earlier version have no identity. Each noted ledger had been charged
    # or closed, so a ledger without a seal is a different one.
    if kept == {None}:
        return _is_sealed(book)
    return kept <= {None, book.meta(IDENTITY)}


def _is_sealed(book: Ledger) -> bool:
    """Return whether a ledger has a fit, a budget or a declaration, or was closed."""
    return book.first("SELECT id FROM seals") is not None


def note_ledger(
    path: str,
    dataset_id: str | None,
    book: Ledger | None = None,
    new_budget: Mapping[str, float] | None = None,
) -> None:
    """Note in DPHEAD_HOME, durably, a ledger that is not a data set's default ledger.

    `book` is the ledger opened for writing. If it is given, its identity and budget are
    noted too. If it has no budget, `new_budget` is noted, unless the ledger has fits.
    If DPHEAD_HOME is read-only or another user's, nothing is noted. Raises LedgerError
    if the note cannot be written for another reason.
    """
    if path == IN_MEMORY or not has_home():
        return
    # compare without following a link at this path, which leads to another file
    folder = os.path.realpath(home_folder("ledgers"))
    own = os.path.join(folder, f"{dataset_id}.sqlite")
    # note the file: a link to it may be removed first
    name = path if is_on_server(path) else os.path.realpath(path)
    note = _Note()
    if book is not None and not book.url:
        # set it before the note: this process can die between the two
        book.set_once(IDENTITY, uuid.uuid4().hex)
        note = _note_of(book, new_budget)
    # a default ledger gets an identity too: its owner may replace it by a link later
    if name != own:
        _keep_note(name, dataset_id, note)


def _note_of(book: Ledger, new_budget: Mapping[str, float] | None = None) -> _Note:
    """Return the note of an open ledger, with `new_budget` if it can be set."""
    # a new budget for a ledger with fits will be refused
    kept = book.budget() or (not book.count_fits() and new_budget) or {}
    budget = {key: kept[key] for key in ("epsilon", "delta") if key in kept}
    # no links in the home's folder: if one is deleted, a new ledger may take its name
    home = os.path.realpath(home_folder("ledgers"))
    folders = {one: os.path.realpath(os.path.dirname(one)) for one in book.links}
    links = tuple(one for one, folder in folders.items() if folder != home)
    return _Note(book.meta(IDENTITY), budget or None, links)


def note_link(place: str, dataset_id: str, book: Ledger) -> None:
    """Note the file behind a data set's own ledger, if its owner made it a link.

    A ledger without identity and seal is not noted: it has no charge, and `check_noted`
    would refuse it.
    """
    own = place == str(default_ledger_path(dataset_id)) and os.path.islink(place)
    notes = _notes_at(_names(book.path, book), dataset_id)
    known = any(note.identity for note in notes.values())
    if own and not known and (book.meta(IDENTITY) or _is_sealed(book)):
        _keep_note(book.path, dataset_id, _note_of(book))


def _keep_note(name: str, dataset_id: str | None, note: _Note) -> None:
    """Write a ledger's note durably, if this user may write to DPHEAD_HOME."""
    notes = _notes(dataset_id)
    before = notes.get(name)
    known = before is not None and (note == _Note() or note.after(before) == before)
    line = name if note == _Note() else [name, note.identity, note.budget]
    if note.links:
        line = [*line, note.links]
    data = b"" if known else f"{json.dumps(line)}\n".encode()
    with writable_home(), ExitStack() as opened:
        notes = notes_path(dataset_id)
        make_folder(notes.parent)
        file = open_own(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        opened.callback(os.close, file)
        # one write for the whole line, so that two processes cannot mix their lines
        written = os.write(file, data)
        if written < len(data):  # a part of a line would be a damaged file
            os.ftruncate(file, os.fstat(file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # syncs the lines of dead processes too
        os.fsync(file)
        sync(notes.parent)
