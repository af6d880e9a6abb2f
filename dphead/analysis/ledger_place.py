"""Locate ledgers, and name them in publishable reports."""

import os
import re
from contextlib import closing, suppress
from pathlib import Path

from dphead.privacy.atomic_write import dangling_link
from dphead.privacy.ledger import Ledger
from dphead.privacy.ledger.moving import compared_fits, holds_all
from dphead.privacy.ledger.schema import HeldLedger
from dphead.privacy.ledger.server import is_on_server
from dphead.privacy.ledger.store import MERGED, MOVED, LedgerError

_DATA_SET = re.compile(r"[A-Za-z0-9_-]{1,128}")
_HOME = "$DPHEAD_HOME"  # stands for `ledger_home()`, even if XDG_DATA_HOME sets it


def ledger_home() -> Path:
    """Return $DPHEAD_HOME, else $XDG_DATA_HOME/dphead, else ~/.local/share/dphead.

    Raises
    ------
    LedgerError
        If that path is relative, because each working folder would then have its own
        ledgers.
    """
    home = os.environ.get("HOME", os.path.expanduser("~"))
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local/share")
    found = Path(os.environ.get("DPHEAD_HOME") or os.path.join(data, "dphead"))
    if not found.is_absolute():
        raise LedgerError(
            f"The folder of the ledgers, {str(found)!r} (from DPHEAD_HOME, "
            "XDG_DATA_HOME or HOME), is a relative path. Each working folder would "
            "have its own ledgers. Set DPHEAD_HOME to an absolute path."
        )
    return found


def home_folder(name: str) -> Path:
    """Return a folder of DPHEAD_HOME, whether or not it exists.

    Raises
    ------
    LedgerError
        If `ledger_home` raises it. If a link in the path has no target, for example
        because the home's volume is not mounted. Ledgers and images that are recorded
        there would not be counted.
    """
    folder = ledger_home() / name
    if (link := dangling_link(folder)) is not None:
        raise LedgerError(
            f"The folder {folder} of DPHEAD_HOME cannot be found, because the link "
            f"{link} leads to nothing. Nothing was read or written. Mount the home's "
            "volume, then run this command again. For a new home, make the folder to "
            "which the link leads."
        )
    return folder


def default_ledger_path(dataset_id: str) -> Path:
    """Return the path of a data set's ledger, the same for features of any backbone.

    Raises
    ------
    LedgerError
        If the id is not 1 to 128 letters, digits, - or _, if DPHEAD_HOME is not an
        absolute path, or if `home_folder` raises it.
    """
    if not _DATA_SET.fullmatch(dataset_id):
        raise LedgerError(
            "the data set's id must have 1 to 128 letters, digits, - or _, got "
            f"{dataset_id[:40]!r}. Extract the features again."
        )
    return home_folder("ledgers") / f"{dataset_id}.sqlite"


def data_sets_of_home() -> list[str]:
    """Return the ids of data sets with a ledger or a note of one in DPHEAD_HOME."""
    folder = home_folder("ledgers")
    files = [*folder.glob("*.sqlite"), *folder.glob("*.others")]
    return sorted({path.stem for path in files if _DATA_SET.fullmatch(path.stem)})


def named(path: str, folder: Path | None) -> str:
    """Return the name of a ledger for a report in `folder`, without an absolute path.

    An absolute path may contain a user's name. The name of a file starts at
    DPHEAD_HOME, at the user's home, or at the report's folder. Without a folder, the
    path of a file outside these homes stays absolute. Ledgers in memory or on a server
    keep their names, and so do names that this function returned in another home.
    """
    if is_on_server(path) or not os.path.isabs(path):
        return path
    path = os.path.realpath(path)  # as below, where `starts` are resolved
    starts = {"~": os.path.expanduser("~")}
    with suppress(LedgerError):  # an invalid DPHEAD_HOME holds no ledger
        starts = {_HOME: str(ledger_home()), **starts}
    for name, start in starts.items():
        inside = os.path.relpath(path, os.path.realpath(start))
        if not inside.startswith(os.pardir):
            return f"{name}/{inside}"
    return path if folder is None else os.path.relpath(path, os.path.realpath(folder))


def located(name: str, folder: Path) -> Path | str:
    """Return the path of a ledger that a report in `folder` names."""
    if is_on_server(name):
        return name
    if name.startswith(f"{_HOME}/"):
        return ledger_home() / name.removeprefix(f"{_HOME}/")
    name = os.path.expanduser(name)
    return Path(os.path.normpath(os.path.join(os.path.realpath(folder), name)))


def places_of(book: Ledger) -> list[str]:
    """Return the places that a closed ledger was moved to, if they have a ledger.

    A folder of merged ledgers may have been moved or copied. So their target is also
    looked up beside them and in the current DPHEAD_HOME.
    """
    if (place := book.meta(MOVED)) is None:
        return []
    places = [place]
    if (merged := book.meta(MERGED)) is not None:
        if not is_on_server(book.path):
            places.append(str(Path(book.path).with_name(os.path.basename(place))))
        with suppress(LedgerError):  # an invalid DPHEAD_HOME holds no ledger
            places.append(str(default_ledger_path(merged)))
    return [*filter(_is_there, dict.fromkeys(places))]


def moved_to(book: Ledger) -> tuple[str | None, bool]:
    """Return a closed ledger's target, and whether the target holds all its charges.

    The result is (None, False) for a ledger that is not closed.

    The ledger at the place is read, because a row in `book` that names the place proves
    nothing. If charges are missing there, or the ledger is unreadable, the charges and
    the budget of `book` stay valid. Of several places that hold all charges, the one
    with the most fits is returned.
    """
    place = book.meta(MOVED)
    if place in (None, book.path):
        return None, False
    fits = dict[str, int]()
    for one in places_of(book):
        try:
            with closing(opened_beside(one, book)) as target:
                if holds_all(book, target) and not (book.verify() or target.verify()):
                    fits[one] = target.count_fits()
        except HeldLedger:
            raise
        except LedgerError:
            pass
    return (max(fits, key=fits.__getitem__), True) if fits else (place, False)


def damage_elsewhere(book: Ledger) -> list[str]:
    """Describe fits that differ between a closed ledger and the one that counts it.

    Such a fit can count less than it spent. A place that cannot be read is left out.
    """
    found = list[str]()
    for place in places_of(book) if book.meta(MERGED) else []:
        try:
            with closing(opened_beside(place, book)) as target:
                _, differ = compared_fits(book, target)
        except HeldLedger:
            raise
        except LedgerError:
            continue
        found += [f"fit {one} has other entries in {place}" for one in sorted(differ)]
    return found


def counted_at(book: Ledger) -> str | None:
    """Return the ledger that now has a closed ledger's charges; None if none has all.

    The result is also None for a ledger that is not closed.

    A ledger can move to a server, and be merged there.
    """
    place, all_there = moved_to(book)
    if place is None or not all_there:
        return None
    with closing(opened_beside(place, book)) as target:
        return counted_at(target) or place


def opened_beside(place: str, book: Ledger) -> Ledger:
    """Open the ledger at `place`, which the ledger `book` names.

    If both are on one server, use the URL of `book`. A restored copy of a database has
    the same id as the original, so the name alone would lead to DPHEAD_LEDGER.
    """
    store, _, data_set = place.rpartition("/")
    if book.url is not None and store == book.path.rpartition("/")[0]:
        return Ledger(book.url, data_set, read_only=True)
    return Ledger(place, read_only=True)


def _is_there(place: str) -> bool:
    return is_on_server(place) or os.path.isfile(place)
