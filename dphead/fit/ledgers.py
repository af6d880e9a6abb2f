"""Find a data set's ledger and other ledgers charged for the same images.

By default, a data set has one ledger file, named by its public id. The image index is
private, so no count from it may reach a report.
"""

import json
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from dphead_extract.features.disk import lock
from dphead_extract.features.format import FeaturesFile
from dphead_extract.index import ImageIndex, NotWritable, Overlap
from dphead_extract.people import (
    People,
    groups_digests,
    groups_mark,
    joined_to,
    rows_name,
)
from dphead_extract.shards import blocks_of

from dphead.analysis.ledger_place import (
    counted_at,
    data_sets_of_home,
    default_ledger_path,
    home_folder,
    located,
    moved_to,
    named,
    places_of,
)
from dphead.analysis.records import FinishedRun, read_run
from dphead.fit.noted import (
    check_noted,
    has_home,
    is_noted,
    note_ledger,
    note_link,
    noted_budget,
    noted_ledgers,
    notes_path,
    writable_home,
)
from dphead.fit.team_images import TeamImages, TeamPeople
from dphead.privacy.atomic_write import make_folder, open_own
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger.groups import Groups
from dphead.privacy.ledger.moving import (
    check_move,
    counted_data_sets,
    holds_all,
    move,
)
from dphead.privacy.ledger.schema import LacksRight
from dphead.privacy.ledger.server import (
    NAME,
    held,
    is_on_server,
    is_same,
    is_url,
    store_id,
    team_url,
)
from dphead.privacy.ledger.store import (
    IDENTITY,
    IN_MEMORY,
    MERGED,
    MOVED,
    PEOPLE,
    HeldLedger,
)
from dphead.privacy.rounding import as_declared

_T = TypeVar("_T")
_UNREAD_IMAGES = (
    "shared images are not known here, because your role may not read the server's "
    "index of images. Other data sets with these images can have further fits. A role "
    "that may charge can list them"
)
_OTHER_INDEX = (
    "shared images are not known here, because the index of images in use lacks the "
    "entry that the fit used. Other data sets with these images can have further fits. "
    "Set DPHEAD_HOME and DPHEAD_LEDGER as in the fit, unless the ledger was moved since"
)
_OTHER_HOME = (
    "Or set DPHEAD_HOME to another folder for data sets that share no images and no "
    "people with those of this home."
)


def ledger_path(path: str | Path | None, dataset_id: str | None) -> str | Path:
    """Return a run's ledger: an absolute path, a server's URL, or ":memory:".

    Return `path` if it is given. The path of a file becomes absolute, because the
    working folder can change. Otherwise return the URL in the environment variable
    DPHEAD_LEDGER (the team's server). If this variable is not set, return the data
    set's ledger file in DPHEAD_HOME. Without a data set, return ":memory:".
    """
    if path is None and dataset_id is not None:
        path = team_url() or default_ledger_path(dataset_id)
    if path is None or path == IN_MEMORY:
        return IN_MEMORY
    return str(path) if is_on_server(path) else Path(path).expanduser().absolute()


def counted_in(dataset_id: str) -> str:
    """Return the id of the ledger that counts a data set: its own, or a shared one.

    To merge ledgers, `dphead ledger people` closes the ledgers of a data set, and notes
    in them which other data set's ledger will count it. This note is followed only
    after that ledger has all their fits. Until then, a closed ledger takes no fit, and
    its fits and budget still count (`moved_to`).
    """

    def counted(closed: Ledger) -> str | None:
        """Return the data set whose ledger counts `closed`; None if it is open."""
        if (into := closed.meta(MERGED)) is None:
            return None
        there = _read_own(into, lambda book: holds_all(closed, book) or None)
        return into if there else dataset_id

    found = _read_own(dataset_id, counted) if has_home() else None
    return found or dataset_id


def _read_own(dataset_id: str, read: Callable[[Ledger], _T | None]) -> _T | None:
    """Return what `read` finds in a data set's ledger, or None if it finds nothing.

    The ledger of this home is read first, then that of the team.
    """
    path, url = default_ledger_path(dataset_id), team_url()
    places = [path] if path.is_file() else []
    for place in (*places, *([] if url is None else [url])):
        try:
            with closing(Ledger(place, dataset_id, read_only=True)) as book:
                if (found := read(book)) is not None:
                    return found
        except HeldLedger:
            raise
        # a charge will open an unreadable ledger, and raise then
        except LedgerError:
            pass
    return None


@dataclass(frozen=True)
class RowGroups:
    """Hold the groups of rows, and the id system that their source declares. Private.

    Attributes
    ----------
    dataset_id : str
        The data set's own id.
    ids : (n,) int64 or None
        The group id of each row of the whole source; None without groups.
    people : dict or None
        The id system that the source declares (`People.record`).
    rows : str
        `rows_name` of a features file, "" for images.
    path : Path or None
        The features file; None for images.
    """

    dataset_id: str
    ids: np.ndarray | None
    people: dict[str, Any] | None = None
    rows: str = ""
    path: Path | None = None

    @classmethod
    def of(cls, file: FeaturesFile) -> Self:
        """Return the groups of a features file."""
        rows = rows_name(file.salt, file.config)
        return cls(file.dataset_id, file.group, file.people, rows, file.path)

    def command(self, system: str = "NAME", new: bool = False) -> str:
        """Return the option or command that declares the id system of these rows."""
        options = " --new-people" if new else ""
        if self.path is None:
            return f"--people {system}{options}"
        return f"`dphead ledger people {system} {self.path}{options}`"

    def compared(self, people: Mapping[str, Any] | None, protects: bool) -> Groups:
        """Return the digests and the declaration of groups that a charge compares.

        `protects` is True if the fit protects groups, and False for single rows.

        Raises LedgerError if groups must be compared without DPHEAD_HOME, which keeps
        the key.
        """
        if self.ids is None or not (protects or people):
            return Groups({})
        if not has_home():
            raise LedgerError(
                "A fit that protects groups needs DPHEAD_HOME, which keeps the key to "
                "compare them. Nothing was charged. Set DPHEAD_HOME to the absolute "
                "path of a folder of your own."
            )
        index = people_index()
        digests = groups_digests(index, self.dataset_id, self.ids) if protects else {}
        if people is None:
            return Groups(digests)
        marks = index.images(self.dataset_id)
        return Groups(digests, json.dumps(people), lambda d: groups_mark(d) in marks)


def declared_people(rows: RowGroups) -> dict[str, Any] | None:
    """Return the declared id system of rows, or None if their data set has none.

    If a file was written before the declaration, its ledger has the declaration. The
    people of the file must be recorded too, because files of one data set can have
    different people.

    Raises
    ------
    LedgerError
        If the data set belongs to an id system, and the source has no ids or does not
        name the system. If the people were not recorded in the index of people, or if
        their ledger is not that of the id system. This error is for the data holder
        only: it can depend on a row's group, but on no other value of a row.
    ExtractError
        If people who were declared new are in a data set with a different ledger.
    """
    counted = counted_in(rows.dataset_id)
    declared = rows.people or _declared_in(counted)
    # a different file of the data set may be declared, such as an import
    index = people_index() if has_home() else None
    if declared is None and not (index and index.knows(rows.dataset_id)):
        return None
    found = rows.path or "the source of images"
    if rows.ids is None:
        raise LedgerError(
            f"Data set {rows.dataset_id} belongs to a declared id system, and {found} "
            "has no ids of people. Name a column of ids (--columns group=NAME)"
            f"{'.' if rows.path is None else ', and write the file again.'}"
        )
    if declared is None:
        raise LedgerError(
            f"Data set {rows.dataset_id} belongs to a declared id system, which "
            f"{found} does not name. Type {rows.command()} with the name of the "
            "system, and --new-people if that was declared."
        )
    people = People(index, declared["system"])
    if declared["new"] and counted == rows.dataset_id:  # not merged later
        people = replace(people, new=True)
    same = people.shared_id in (None, counted)
    if not same or not people.recorded(rows.dataset_id, rows.rows, rows.ids):
        raise LedgerError(
            f"The people in {found} are not recorded in this DPHEAD_HOME or "
            "DPHEAD_LEDGER, so dphead cannot tell which ledger counts them. If the "
            "data set was declared or fitted with a different DPHEAD_HOME or "
            "DPHEAD_LEDGER, set that one and run this command again: a new declaration "
            "would not count the earlier fits. If there are no earlier fits, type "
            f"{rows.command(declared['system'], people.new)}."
        )
    if people.new:
        people.check(rows.dataset_id, rows.ids)
    return people.record


def _declared_in(dataset_id: str) -> dict[str, Any] | None:
    """Return the id system that a data set's ledgers declare, or None."""
    if not has_home():
        return None
    text = _read_own(dataset_id, lambda book: book.meta(PEOPLE))
    return json.loads(text or "null")


def ledger_name(path: str | Path | None, dataset_id: str | None) -> str | Path:
    """Return the path of a run's ledger file, or the ledger's name on a server.

    The file is not created.
    """
    path = ledger_path(path, dataset_id)
    if not is_on_server(path):
        return path
    with closing(Ledger(path, dataset_id, read_only=True)) as book:
        return book.path


def open_ledger(
    path: str | Path | None = None, dataset_id: str | None = None
) -> Ledger:
    """Open a run's ledger.

    Parameters
    ----------
    path : str or Path, optional
        The ledger's file, or its URL or name on a team's server. Default: the data
        set's ledger (`ledger_path`), or, without a data set, a ledger in memory that
        counts a single fit.
    dataset_id : str, optional
        The data set's id.

    Raises
    ------
    LedgerError
        If the file is another data set's ledger, not a ledger, or not the ledger that
        was noted at its path.
    """
    path = ledger_path(path, dataset_id)
    check_noted(path)  # creates no file
    return Ledger(_in_store(path), dataset_id)


def _in_store(path: str | Path) -> str | Path:
    """Return DPHEAD_LEDGER for the URL of a server with the same id, else the path.

    A copy of a database has its id, and must take no charge.
    """
    url = team_url()
    if url is None or not is_url(path) or store_id(str(path)) != store_id(url):
        return path
    return url


def read_ledger(path: str | Path | None, dataset_id: str | None) -> Ledger:
    """Open a run's ledger to read it.

    If there is no ledger yet, return an empty one in memory. Raises LedgerError as
    `open_ledger`, but does not compare the data set of a file.
    """
    path = ledger_path(path, dataset_id)
    check_noted(path)
    if is_on_server(path):
        return Ledger(_in_store(path), dataset_id, read_only=True)
    return Ledger(path, read_only=True) if os.path.lexists(path) else Ledger()


def move_ledger(book: Ledger, url: str) -> Ledger:
    """Move a ledger to a team's server, and return the ledger there.

    Raises LedgerError as `moving.move`, if the data set belongs to an id system, if the
    ledger is not the noted one, or if other charged ledgers must move first
    (`check_store`).
    """
    dataset_id, url = book.meta("dataset_id"), str(_in_store(url))
    target = Ledger(url, dataset_id, read_only=True)
    assert dataset_id is not None  # opening a ledger on a server needs one
    # locks: no budget and no id system may appear between a check and the move
    index = people_index()
    with _held_people(index) as sure, holding(target, sure):
        # the second index raises if this home could not charge the moved ledger
        if index.knows(dataset_id) or people_index(url).knows(dataset_id):
            raise LedgerError(
                f"Data set {dataset_id} belongs to an id system, so its ledger cannot "
                "move. Nothing was moved. Keep this ledger, and charge its data sets "
                "with the DPHEAD_HOME and DPHEAD_LEDGER under which they were declared."
            )
        check_noted(book.path, book)
        check_store(url, book)
        check_move(book, target)
        note_ledger(target.path, dataset_id)
        if target.meta("dataset_id") is None:
            target.set_once("dataset_id", dataset_id)
        move(book, target)
    return target


def data_set_of(ledger: str | Path | None) -> str | None:
    """Return the ledger's data set id, or None if it is not set or there is no file.

    The URL of a server has no id, because a server has ledgers of several data sets.
    The name of one of these ledgers has an id. Raises LedgerError for a name that is
    not on the server of DPHEAD_LEDGER.
    """
    if ledger is None or is_url(ledger):
        return None
    place = ledger_path(ledger, None)
    if not is_on_server(place) and not os.path.isfile(place):
        return None
    with closing(Ledger(place, read_only=True)) as book:
        return book.dataset_id or book.meta("dataset_id")


def people_index(url: str | None = None, *, declares: bool = False) -> ImageIndex:
    """Return the private index of people: the team's, or else this home's.

    `url` is the URL of the team's server (default: DPHEAD_LEDGER). Raises FormatError
    if the id systems of this home are in a different index. With `declares`, raises
    LedgerError if ledgers of this home are on a different server.
    """
    url, index = url or team_url(), _own_people()
    if url is not None:
        index = TeamPeople(url, index.folder, partial(_declaring, url), index.sizes)
    index.settle()
    if declares:
        _check_notes(url)
    return index


def image_index() -> ImageIndex:
    """Return the private index of known images: the team's, or else this home's."""
    if (url := team_url()) is None:
        return _of_home(_OwnImages, "images")
    if not has_home():
        return TeamImages(url)

    def note(dataset_id: str) -> None:
        check_store(url)
        note_ledger(str(ledger_name(url, dataset_id)), dataset_id)

    return TeamImages(url, _home_images(), note, _held_home)


def image_indexes() -> list[ImageIndex]:
    """Return the index of images in use and, with a team's server, the home's index.

    A data set has one id in both, but their digests have different keys.
    """
    own = [] if team_url() is None else [_home_images()]
    return [image_index(), *own]


class _OwnPeople(ImageIndex):
    """Index the people of this home.

    A home with a ledger on a server cannot declare people here.
    """

    @contextmanager
    def declaring(self) -> Iterator[None]:
        with _declaring(None):
            yield


class _OwnImages(ImageIndex):
    """Index the images of this home.

    A home with a ledger on a server cannot add images here alone, because the other
    members of the team would not know them.
    """

    def _grow(self, dataset_id: str, digests: np.ndarray) -> None:
        _check_notes(None)
        super()._grow(dataset_id, digests)


def _home_images() -> ImageIndex:
    return _of_home(ImageIndex, "images")


def _own_people() -> ImageIndex:
    return _of_home(_OwnPeople, "people")


def _of_home(kind: type[ImageIndex], name: str) -> ImageIndex:
    """Return an index of this home, with its file of sizes beside the ledgers."""
    return kind(home_folder(name), home_folder("ledgers") / f"{name}.sizes")


@dataclass(frozen=True)
class Elsewhere:
    """Describe another ledger that may have fits on a run's images or people.

    Attributes
    ----------
    path : str
        The ledger's file, or its name on a server.
    dataset_id : str
        The ledger's data set.
    fits : int or None
        Number of fits. None if the ledger is missing, replaced or unreadable.
    budget : dict or None
        As `Ledger.budget`. If the ledger is missing, replaced or unreadable, epsilon
        and delta can come from its notes (`noted_budget`).
    overlap : Overlap or None
        Images shared with a different data set, if they led to this ledger.
    shares : bool
        Whether this ledger belongs to a different data set, and one ledger counts both
        data sets.
    identity : str or None
        The ledger's random identity, if it has one.
    protects : str or None
        Unit and relation of its fits, such as "single rows under zero_out". None if it
        has no fit.
    fit_ids : frozenset of str
        The ids of its fits, if it can be read.
    """

    path: str
    dataset_id: str = ""
    fits: int | None = None
    budget: dict[str, float] | None = None
    overlap: Overlap | None = None
    shares: bool = False
    identity: str | None = None
    protects: str | None = None
    fit_ids: frozenset[str] = frozenset()

    def fact(self, folder: Path | None = None) -> dict[str, object]:
        """Return this ledger's public entry in the report in `folder` (`named`).

        Private images affect only whether this ledger is listed at all.
        """
        of = "the same data set" if self.overlap is None else "some of the images"
        if self.shares:
            of = "a data set of the same id system"
        return {
            "path": named(self.path, folder),
            "fits": self.fits,
            "identity": self.identity,
            "of": of,
            "protects": self.protects,
        }

    def __str__(self) -> str:
        """Return path, fits and data set of the ledger, for the data holder only."""
        of = "this data set"
        if self.shares:
            of = f"data set {self.dataset_id}, which shares this data set's ledger"
        if (o := self.overlap) is not None:
            of = f"data set {o.dataset_id}, which holds {o.shared:,} of these images"
        return f"{self.place} of {of}"

    @property
    def place(self) -> str:
        """Return path and fits of the ledger."""
        held = f"{self.fits} fit{'' if self.fits == 1 else 's'}"
        held = "gone or unreadable" if self.fits is None else held
        held += f" for {self.protects}" if self.protects else ""
        return f"the ledger {self.path} ({held})"


def charged_elsewhere(
    dataset_id: str | None, *own: str | Path, notes: list[str] | None = None
) -> list[Elsewhere]:
    """Return ledgers other than the run's that hold fits on its images or people.

    The list includes missing and unreadable ledgers, because they may hold fits. It is
    empty without a data set id or without DPHEAD_HOME. `notes` is as in `_known`.
    """
    found = other_ledgers(dataset_id, *own, notes=notes)
    return [one for one in found if one.fits != 0]


def check_alone(
    dataset_id: str | None, own: str | Path, budget: Mapping[str, float] | None
) -> None:
    """Raise LedgerError unless one ledger counts all fits of a data set with a budget.

    The budgets of all known ledgers count, including ledgers of data sets that share
    images. A missing or unreadable ledger may hold fits, and has the budget that was
    noted with it. A ledger on a server is refused unless DPHEAD_LEDGER leads to that
    server. If DPHEAD_LEDGER is set, a ledger in a file is refused.

    Parameters
    ----------
    dataset_id : str or None
        The data set's id.
    own : str or Path
        The ledger to be charged.
    budget : mapping or None
        The budget of that ledger.
    """
    _check_server(own, team_url())
    for other in other_ledgers(dataset_id, own):
        if other.fits is None:  # another home may have moved it to a different server
            _check_server(other.path, team_url(), notes_path(other.dataset_id))
        if other.budget is not None:
            limit = f"epsilon={as_declared(other.budget['epsilon'])}"
            found = f"These images have the budget {limit} in {other}."
            todo = "Pass the ledger with the budget (--ledger, `ledger`)."
            if (both := other.overlap) is not None:
                found = (
                    f"{both.shared:,} of these images are also in data set "
                    f"{both.dataset_id}, with the budget {limit} in {other.place}."
                )
                # a ledger takes no fit of another data set
                todo = (
                    "Repeat the command that read these images, with another -o and "
                    f"with --dataset-id {both.dataset_id}."
                )
            elif is_on_server(own) and not is_on_server(other.path):
                todo = "Type `dphead ledger move` with the path of the ledger."
            raise LedgerError(
                f"{found} Fits in the ledger {own} would not count toward this budget. "
                f"Nothing was charged. {_remedy(other) or todo}"
            )
        if budget is not None and other.fits != 0:
            todo = (
                "Use a ledger without a budget, and state the epsilon of each ledger."
            )
            raise LedgerError(
                "a budget must count every fit on the same images, but the ledger "
                f"{own} does not count fits in {other}. Nothing was charged or set. "
                f"{_remedy(other) or todo}"
            )
    _check_seen(own)


def _remedy(other: Elsewhere) -> str | None:
    """Return what to do about a missing or unmerged ledger, None for other ledgers."""
    if other.fits is None:
        return (
            "Mount its volume or restore a copy that holds all its fits and releases, "
            "and pass it as the ledger if it has a budget. If it was moved here, or "
            f"never held a fit, {_forget(other)}."
        )
    if other.shares:
        return (
            "Repeat the command `dphead ledger people` of each features file: it "
            "merges all ledgers, or names the ledger that they were merged into."
        )
    return None


def _forget(other: Elsewhere) -> str:
    """Return words that say how to remove a ledger from the known ledgers."""
    if other.path in noted_ledgers(other.dataset_id):
        return f"remove its line from {notes_path(other.dataset_id)}"
    return "remove its file"  # a default ledger has no line in the notes


def _check_seen(place: str | Path) -> None:
    """Raise LedgerError for a ledger in a file that other members do not see."""
    if team_url() is None or is_on_server(place) or place == IN_MEMORY:
        return
    raise LedgerError(
        f"The ledger {place} is a file, and DPHEAD_LEDGER leads to a server, so the "
        "other members of the team would not count its fits. Nothing was charged or "
        "set. Drop --ledger to charge the server's ledger. For arrays, pass "
        "`Ledger(NAME)` with the name that `dphead ledger show` prints. If the file "
        "has a budget or fits of this data set, first type `dphead ledger move` with "
        "its path."
    )


def check_store(
    url: str | None, moving: Ledger | None = None, merging: Collection[str] = ()
) -> None:
    """Raise LedgerError if charged ledgers of this home are not in the store at a URL.

    Charges look for ledgers, images and people in one store: the team's server, or,
    without `url`, the home. Other members do not count fits in files, so all files with
    fits or a budget must move before this home uses the server. If the ledger `moving`
    is being moved, other ledgers can move later, but only one of each data set. Ledgers
    of the data sets in `merging`, which are being merged, are not refused.
    """
    _check_notes(url)
    if url is None or not has_home():
        return
    kept = list[Elsewhere]()
    for name in data_sets_of_home():
        charged = [
            one
            for one in _files_of(name)
            if name not in merging and (one.fits != 0 or one.budget is not None)
        ]
        kept += charged if moving is None else _staying(charged, moving, url)
    if not kept:
        return
    one, more = kept[0], len(kept) - 1
    todo = f"Type `dphead ledger move {shlex.quote(one.path)}` first. {_OTHER_HOME}"
    # the ledger of an id system does not move
    if people_index(url).knows(one.dataset_id):
        todo = "Repeat the command `dphead ledger people` of its features files first."
    elif moving is not None and (moving.count_fits() or moving.budget()):
        todo = (
            "It cannot move to the server, which takes only one ledger with fits or a "
            "budget for each data set. Unset DPHEAD_LEDGER to charge these images "
            "here. "
            f"{_OTHER_HOME}"
        )
    if one.fits is None:
        todo += (
            f" If a missing ledger was moved here, or never held a fit, {_forget(one)}."
        )
    raise LedgerError(
        f"The other members of the team would not count {one.place} of data set "
        f"{one.dataset_id}{f', and {more} more' if more else ''}. Nothing was charged, "
        f"moved or added to the server. {todo}"
    )


@contextmanager
def _declaring(url: str | None) -> Iterator[None]:
    """Hold the lock of DPHEAD_HOME and run `check_store`, as a charge does."""
    with _held_home():
        check_store(url)
        yield


def _staying(charged: list[Elsewhere], moving: Ledger, url: str) -> list[Elsewhere]:
    """Return a data set's charged ledger files that cannot move to a server later."""
    if not charged or charged[0].dataset_id == moving.meta("dataset_id"):
        return [one for one in charged if not _one_place(one.path, moving.path)]
    first, *others = charged
    try:
        check_noted(first.path)
        target = Ledger(url, first.dataset_id, read_only=True)
        with closing(target), closing(Ledger(first.path, read_only=True)) as book:
            check_move(book, target)
    except LedgerError:
        return charged
    return others


def _files_of(dataset_id: str) -> list[Elsewhere]:
    """Return a data set's ledgers in files, without ledgers of other data sets."""
    files = [one for one in _places(dataset_id) if not is_on_server(one)]
    found = [_read(one, dataset_id, dataset_id)[0] for one in files]
    return [one for one in found if one.dataset_id == dataset_id]


def _check_notes(url: str | None) -> None:
    """Raise LedgerError if a ledger of this home is on a server other than `url`."""
    for name in data_sets_of_home() if has_home() else []:
        for place in noted_ledgers(name):
            _check_server(place, url, notes_path(name))


def _check_server(
    place: str | Path, url: str | None, notes: Path | None = None
) -> None:
    """Raise LedgerError for a ledger on a server that is not the one at `url`.

    A charge looks for budgets, images and people on one server only. `notes` is the
    file that notes the ledger.
    """
    if not is_on_server(place):
        return
    if url is None or not str(place).startswith(f"{NAME}{store_id(url)}/"):
        found = "is not set" if url is None else "leads to another server"
        gone = notes and f"If no server has it, remove its line from {notes}. "
        raise LedgerError(
            f"The ledger {place} is on a server, and DPHEAD_LEDGER {found}. Nothing "
            f"was charged or set. {gone or ''}Set DPHEAD_LEDGER to the address of the "
            "server: export DPHEAD_LEDGER=postgresql://user@host/database. "
            f"{_OTHER_HOME}"
        )


@contextmanager
def charging(
    ledger: Ledger,
    new_budget: Mapping[str, float] | None = None,
    *,
    rows: RowGroups | None = None,
    people: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Check a charge, note its ledger, and hold the locks of the home and the team.

    A ledger that is not the one noted at its path is refused. The ledger is noted
    before the charge, for its data set if it has one. `fix_budget` takes the same
    locks, so it sets no budget of the data set between check and charge. With `rows`,
    a lock stops declarations of id systems too. A ledger without a data set takes no
    locks.

    Parameters
    ----------
    ledger : Ledger
        The ledger.
    new_budget : mapping, optional
        The budget to be set.
    rows : RowGroups, optional
        The rows of a fit with a data set.
    people : mapping, optional
        Their id system when the fit was prepared (`declared_people`).
    """
    # an empty ledger on a server has no data set id, but its name contains the id
    dataset_id = ledger.dataset_id if ledger.url else ledger.meta("dataset_id")
    # A team's server knows budgets of the same images, even if the home is not usable.
    if dataset_id is None or not (ledger.url or team_url() or has_home()):
        check_noted(ledger.path, ledger)
        note_ledger(ledger.path, dataset_id, ledger, new_budget)
        yield
        return
    index = people_index()
    with ExitStack() as locks:
        # people first: the order of all locks is in proofs/people.md, "One store"
        sure = bool if rows is None else locks.enter_context(_held_people(index))
        locks.enter_context(holding(ledger, sure))
        check_noted(ledger.path, ledger)
        # again: another process may have declared people in another store
        index.settle(write=False)
        _check_copy(ledger)
        if rows is not None:
            _check_people(ledger, rows, people)
        check_store(team_url())
        check_alone(dataset_id, ledger.path, new_budget or ledger.budget())
        if people is not None:
            index.settle(write=True)
        note_ledger(ledger.path, dataset_id, ledger, new_budget)
        if ledger.meta("dataset_id") is None:
            ledger.set_once("dataset_id", dataset_id)
        yield


def _check_copy(ledger: Ledger) -> None:
    """Raise LedgerError for a ledger in a copy of the team's database."""
    url, own = team_url(), ledger.url
    if url is None or own is None or url == own:
        return
    if store_id(own) == store_id(url) and not is_same(url, own):
        raise LedgerError(
            f"The ledger {ledger.path} was opened in a copy of the team's database. "
            "Nothing was charged or set. Open it by this name, without a URL, to use "
            "the database at DPHEAD_LEDGER."
        )


def _check_people(
    ledger: Ledger, rows: RowGroups, people: Mapping[str, Any] | None
) -> None:
    """Raise LedgerError if the declaration was changed since the fit was prepared."""
    counted = counted_in(rows.dataset_id)
    if (counted, declared_people(rows)) != (ledger.meta("dataset_id"), people):
        raise LedgerError(
            f"The id system of data set {rows.dataset_id} was declared while this fit "
            "was prepared. Nothing was charged. Run this command again."
        )


@contextmanager
def _held_people(index: ImageIndex) -> Iterator[Callable[[], object]]:
    """Lock the declarations of people, and yield a function that checks the lock.

    The function raises LedgerError if a server's lock was lost.
    """
    with ExitStack() as held_lock:
        url = team_url()
        if url is not None:
            yield held_lock.enter_context(held(url, TeamPeople.lock))
            return
        with suppress(NotWritable):  # nobody can declare people in a read-only home
            held_lock.enter_context(index.locked())
        yield bool


def fix_budget(ledger: Ledger, epsilon: float, delta: float) -> None:
    """Set the budget of a ledger, unless other ledgers hold fits on its images.

    Raises
    ------
    LedgerError
        As `Ledger.set_budget`. If another ledger holds fits on the same images, or is
        missing or unreadable and may hold some, or has a budget. If the ledger is not
        the noted one, or is not in the team's store (`check_store`).
    """
    with charging(ledger, {"epsilon": epsilon, "delta": delta}):
        ledger.set_budget(epsilon, delta)


@contextmanager
def holding(ledger: Ledger, sure: Callable[[], object] = bool) -> Iterator[None]:
    """Lock out other charges and new budgets, of this home and of the team.

    `sure` raises LedgerError if another lock of the team was lost.
    """
    with _held_home(), _held_team(ledger, sure):
        yield


@contextmanager
def _held_home() -> Iterator[None]:
    """Hold the lock of DPHEAD_HOME, if its folder is writable and has locks."""
    with ExitStack() as opened:
        with writable_home():
            folder = home_folder("ledgers")
            make_folder(folder)
            file = open_own(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            opened.callback(os.close, file)
            lock(file)
        yield


@contextmanager
def _held_team(ledger: Ledger, sure: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of this ledger's server, or else of the team's server.

    If the lock is lost before the charge's COMMIT, the charge ends and nothing is
    charged.
    """
    if (url := ledger.url or team_url()) is None:
        yield
        return
    with held(url) as check:

        def both() -> None:
            """Raise LedgerError if a lock was lost."""
            sure()
            check()

        ledger.before_commit = both
        try:
            yield
        finally:
            ledger.before_commit = lambda: None


def other_ledgers(
    dataset_id: str | None, *own: str | Path, notes: list[str] | None = None
) -> list[Elsewhere]:
    """Return ledgers other than the run's that may have fits on a data set's rows.

    One ledger can count several data sets. The result has all ledgers of these data
    sets, and of each data set that shares images with one of them (proofs/people.md,
    "Which ledgers a charge looks at"). `notes` is as in `_known`.
    """
    found = _known(dataset_id, *own, notes=notes)
    return [one for one in found if not any(_one_place(one.path, p) for p in own)]


def _known(
    dataset_id: str | None, *own: str | Path, notes: list[str] | None = None
) -> list[Elsewhere]:
    """Return the ledgers of `other_ledgers`, and the run's own.

    Commands that only read pass `notes`. If their role may not read the server's index
    of images, a note is added there. For all others, this is an error.
    """
    if dataset_id is None or not has_home():
        return []
    seen, found = _counted_with(dataset_id, *own)
    overlaps = list[Overlap]()
    for index in image_indexes():
        try:
            overlaps += [one for name in seen for one in index.sharing(name)]
        except LacksRight:
            if notes is None:
                raise
            notes.append(_UNREAD_IMAGES)
    for overlap in overlaps:
        if overlap.dataset_id not in seen:
            names, theirs = _counted_with(overlap.dataset_id)
            seen += names
            for key, one in theirs.items():
                of_images = replace(one, overlap=overlap, shares=False)
                found.setdefault(key, of_images)
    return [*found.values()]


def _counted_with(
    dataset_id: str, *own: str | Path
) -> tuple[list[str], dict[str, Elsewhere]]:
    """Return the data sets that one ledger counts with this one, and all their ledgers.

    All ledgers of a data set are its known ledgers, `own`, and for each closed ledger
    the place that it names. A further data set is included if one of these ledgers is
    its own or counts it. So is a data set that the home's index of people names, even
    if no closed ledger can be read. The keys are real paths, or names on a server.
    """
    names, found = [dataset_id], dict[str, Elsewhere]()
    for name in names:  # the loop extends this list
        names += [one for one in joined_to(_own_people(), name) if one not in names]
        places = known_ledgers(name)
        places += map(str, own if name == dataset_id else ())
        for place in places:  # the loop extends this list
            key = place if is_on_server(place) else os.path.realpath(place)
            if key not in found:
                found[key], more, moved = _read(place, name, dataset_id)
                names += [one for one in more if one not in names]
                places += moved
    return names, found


def known_ledgers(dataset_id: str) -> list[str]:
    """Return the places of a data set's team, default and noted ledgers.

    The default ledger is listed only if its file exists. A noted one may be missing.
    """
    return [*_on_team(dataset_id), *_places(dataset_id)]


def _places(dataset_id: str) -> list[str]:
    """Return the places of a data set's default and noted ledgers."""
    default, noted = default_ledger_path(dataset_id), noted_ledgers(dataset_id)
    if not os.path.lexists(default):
        return noted
    # a default ledger that is a link was noted as the file to which it led
    target = os.path.realpath(default)
    return [str(default), *(one for one in noted if one != target)]


def _on_team(dataset_id: str) -> list[str]:
    """Return the name of a data set's ledger on the team's server, if it has one."""
    if (url := team_url()) is None:
        return []
    with closing(Ledger(url, dataset_id, read_only=True)) as book:
        return [book.path] if book.facts() else []


def ledgers_holding(dataset_id: str | None, fit_id: str) -> list[str]:
    """Return the places of a data set's known ledgers with a fit, most fits first."""
    if dataset_id is None or not has_home():
        return []
    found = dict[str, int]()
    for path in _counted_with(dataset_id)[1]:
        with suppress(LedgerError), closing(Ledger(path, read_only=True)) as book:
            if book.holds(fit_id):
                found[path] = book.count_fits()
    return sorted(found, key=found.__getitem__, reverse=True)


def read_known(path: Path, ledger: str | Path | None = None) -> FinishedRun:
    """Return a run (`records.read_run`), and other ledgers of its images or people.

    The run's ledger is looked for in DPHEAD_HOME if the run's folder was moved, or if
    an older copy or a different ledger is in the ledger's place.
    """
    path = path.resolve() if path.is_file() else path  # the run's files are beside it
    found = read_run(path, ledger)
    said, dataset_id = found.report, found.report["data"].get("dataset_id")
    if found.fits is None and not (ledger and (found.lost or found.merged)):
        places = ledgers_holding(dataset_id, said["ledger"]["fit_id"])
        read = (read_run(path, place) for place in places)
        # after a merge, only the merged ledger has all fits
        right = (one for one in read if one.merged or not found.ended)
        found = next((one for one in right if one.fits is not None), found)
    # arrays have no data set, but their ledger can have one
    dataset_id = dataset_id or found.ledger_now.get("dataset_id")
    dataset_id = dataset_id or data_set_of(None if ledger else found.lost)
    folder = path if path.is_dir() else path.parent
    reported, own = (
        Elsewhere(str(located(one["path"], folder)), identity=one.get("identity"))
        for one in (said["ledger"], found.limit or said["ledger"])
    )
    # a closed ledger can lead to several copies of the merged one
    closed = reported.path if ledger is None else ledger_path(ledger, None)
    places = [own.path, *([closed] if os.path.isfile(closed) else [])]
    remarks = list[str]()
    others = _known(dataset_id, *(places if found.limit else []), notes=remarks)
    if not remarks and not is_current(said["data"].get("image_index")):
        remarks.append(_OTHER_INDEX)
    # A copy at the report's path that does not count the run can have later fits. It
    # can be unknown to this home, for example if arrays have no data set.
    unread = found.fits is None and not found.lost
    for one in [] if unread else [reported, own]:
        others += _copy_at(one, others)
    # A restored copy of a server's database has the name of the ledger at
    # DPHEAD_LEDGER, but can lack its fits.
    copied = is_url(ledger) and not unread
    own_ids = {fit["fit_id"] for fit in found.fits or ()}

    def is_own(one: Elsewhere) -> bool:
        """Return whether this is the run's ledger, or the place where it was."""
        # the target of an unfinished merge has the fit, and lacks others
        if found.ended and one.path == found.merged:
            return said["ledger"]["fit_id"] in one.fit_ids
        # Compare identities too: a different ledger can be at the path of the report.
        if not found.lost and _can_be(one.path, one.identity, own):
            return not copied or one.fit_ids == own_ids
        # the user named a copy of a ledger that is gone
        gone = not is_on_server(one.path) and not os.path.lexists(one.path)
        return bool(ledger and gone and _can_be(one.path, None, reported))

    known = [one for one in others if one.fits != 0 and not is_own(one)]
    elsewhere = [(str(one), one.fact(folder)) for one in known]
    # a different home may know more ledgers, which the report names
    elsewhere += [
        (text, at_present(one, folder))
        for text, one in found.elsewhere
        if not is_listed(one, [*known, own], folder)
    ]
    return replace(found, elsewhere=elsewhere, remarks=remarks)


def _copy_at(one: Elsewhere, known: Sequence[Elsewhere]) -> list[Elsewhere]:
    """Return the copy of `one` at its path, or where it moved, as a list.

    The list is empty if there is no such copy, or if it is known.
    """
    there = is_on_server(one.path) or os.path.isfile(one.path)
    if not there or any(_one_place(one.path, other.path) for other in known):
        return []
    try:
        with closing(Ledger(one.path, read_only=True)) as book:
            if (place := counted_at(book)) is not None:
                return _copy_at(Elsewhere(place), known)
            identity = book.meta(IDENTITY)
            return [_entry(book, one)] if one.identity in (None, identity) else []
    except HeldLedger:
        raise
    except LedgerError:  # it may have fits
        return [one]


def at_present(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a report's entry of another ledger with its present number of fits.

    The number stays the same if the ledger is not in its place, cannot be read, is an
    older copy, or has no identity in the entry.
    """
    fits, identity = entry["fits"], entry.get("identity")
    with suppress(LedgerError):  # without DPHEAD_HOME
        place = str(located(entry["path"], folder))
        if identity is None and not is_on_server(place):
            return dict(entry)
        now = _copy_at(Elsewhere(place, identity=identity), [])
        found = [one.fits for one in now if one.fits is not None]
        fits = max([*found, fits or 0]) if found else fits
    return {**entry, "fits": fits}


def is_listed(
    entry: Mapping[str, Any], known: Sequence[Elsewhere], folder: Path
) -> bool:
    """Return whether known ledgers have all fits of an earlier entry in a report.

    All lists of other ledgers use this function. A known ledger is recognized by its
    identity, or by its place if an identity is missing. It must have at least as many
    fits as the entry, because an older copy has fewer. If its number of fits is unknown
    (None), it must be in the same place, because a copy keeps the identity. A closed
    ledger is listed if its fits count in a known ledger.
    """
    identity, fits = entry.get("identity"), entry["fits"] or 0
    try:
        place = str(located(entry["path"], folder))
    except LedgerError:  # without DPHEAD_HOME
        return False
    for one in known:
        same = _can_be(place, identity, one)
        if one.fits is not None:
            copied = identity is not None and identity == one.identity
            same = (same or copied) and one.fits >= fits
        if same:
            return True
    with suppress(LedgerError), closing(Ledger(place, read_only=True)) as book:
        counted = counted_at(book) in [one.path for one in known]
        return counted and identity in (None, book.meta(IDENTITY))
    return False


def _can_be(place: str, identity: str | None, other: Elsewhere) -> bool:
    """Return whether a ledger at a place can be `other`: same place and identity."""
    same = _one_place(place, other.path)
    return same and (None in (identity, other.identity) or identity == other.identity)


def is_current(entry: str | None) -> bool:
    """Return whether the index in use has the entry of a fit's images.

    `entry` is `SourceFacts.image_index`. True if no index knew the images at the fit.
    """
    if entry is None or not has_home():
        return entry is None
    used, *own = image_indexes()
    name = used.entry_of(entry)
    return name is not None and _compared(name, used, own)


def images_known_in(file: FeaturesFile) -> str | None:
    """Return the public id of a file's entry in the index in use.

    The result is None unless this index has the images of all rows, and all images of
    this home are compared with them.
    """
    if not has_home():
        return None
    used, *own = image_indexes()
    known = _has_images(used, file) and _compared(file.dataset_id, used, own)
    return used.public_id(file.dataset_id) if known else None


def _compared(dataset_id: str, used: ImageIndex, own: Sequence[ImageIndex]) -> bool:
    """Return whether all images of this home are compared with those of a data set.

    With a team's server, images that the home read before are in its own index only.
    They are compared with the images of the data set that this index has too.
    """
    return all(
        one.is_empty() or len(one.images(dataset_id)) >= len(used.images(dataset_id))
        for one in own
    )


def _has_images(index: ImageIndex, file: FeaturesFile) -> bool:
    # ask for the rows: the data set can have other images, extracted in another home
    return index.has_blocks(file.dataset_id, file.salt, blocks_of(file))


def known_images(dataset_id: str, *, every_form: bool = False) -> np.ndarray:
    """Return the image digests of a data set, and of others that its ledger counts.

    With `every_form`, also those of the images' other forms (`ImageIndex.every_form`).
    """
    if not has_home():
        return np.empty(0, np.uint64)
    names, _ = _counted_with(dataset_id)
    read = ImageIndex.every_form if every_form else ImageIndex.images
    both = product(image_indexes(), names)
    return np.unique(np.concatenate([read(index, one) for index, one in both]))


def shared_images(one: FeaturesFile, other: FeaturesFile) -> int | None:
    """Return the number of known images that the data sets of two files share.

    The result is None if no shared image is known, and no index of images has all
    images of both files.
    """
    own, theirs = (known_images(file.dataset_id) for file in (one, other))
    shared = int(np.isin(own, theirs).sum())
    compared = has_home() and any(
        all(_has_images(index, file) for file in (one, other))
        for index in image_indexes()
    )
    return shared if shared or compared else None


def _one_place(path: str, other: str | Path) -> bool:
    there = all(map(os.path.exists, (path, other)))
    return path == str(other) or (there and os.path.samefile(path, other))


def _read(
    place: str, name: str, dataset_id: str
) -> tuple[Elsewhere, list[str], list[str]]:
    """Return a ledger of a data set, the data sets that it names, and its new places.

    A missing, replaced or unreadable ledger has unknown fits (None). A closed ledger
    has 0 fits if a different ledger counts all of them. Raises HeldLedger while another
    process blocks it or its server does not answer.
    """
    one = Elsewhere(place, name, shares=name != dataset_id)
    try:
        with closing(Ledger(place, read_only=True)) as book:
            book.check_open(but=MOVED)
            of = book.meta("dataset_id") or name
            more = [of, *counted_data_sets(book), *book.joining()]
            # add the data set merged into: its ledgers count even if the target is gone
            more += [] if (into := book.meta(MERGED)) is None else [into]
            if name not in more and place in noted_ledgers(name):
                raise LedgerError(f"{place} is the ledger of another data set now.")
            moved, all_there = moved_to(book)
            found = _entry(book, replace(one, dataset_id=of, shares=of != dataset_id))
            if all_there:
                found = replace(found, fits=0, budget=None)
            if not is_noted(book, name):
                budget = book.budget() or noted_budget(place)
                found = replace(found, fits=None, budget=budget)
            elif of == name:
                note_link(place, name, book)
            return found, more, [moved, *places_of(book)] if moved else []
    except HeldLedger:
        raise
    except (LedgerError, ValueError):
        return replace(one, budget=noted_budget(place)), [], []


def _entry(book: Ledger, one: Elsewhere) -> Elsewhere:
    """Return `one` with the fits and the budget of its open ledger."""
    ids = frozenset(book.fit_ids())
    return replace(
        one,
        fits=len(ids),
        budget=book.budget(),
        identity=book.meta(IDENTITY),
        protects=_protects(book),
        fit_ids=ids,
    )


def _protects(book: Ledger) -> str | None:
    """Return unit and relation of a ledger's fits as text, or None without fits."""
    if (relation := book.meta("relation")) is None:
        return None
    unit = "single rows" if book.meta("group_cap") == "null" else "groups"
    return f"{unit} under {relation}"
