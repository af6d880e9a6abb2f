"""Where ledgers live: one file for each data set, named by its random public id."""

import os
import re
from pathlib import Path

from dphead.privacy.ledger import Ledger, LedgerError


def ledger_home() -> Path:
    """$DPHEAD_HOME, else $XDG_DATA_HOME/dphead, else ~/.local/share/dphead.

    LedgerError where that is relative: each folder would have ledgers of its own, and
    none would count the fits of another.
    """
    home = os.environ.get("HOME", _home_of_user())
    for variable, value, below in (
        ("DPHEAD_HOME", os.environ.get("DPHEAD_HOME"), ""),
        ("XDG_DATA_HOME", os.environ.get("XDG_DATA_HOME"), "dphead"),
        ("HOME", home, ".local/share/dphead"),
    ):
        if not value and variable != "HOME":
            continue
        if not Path(value or "").is_absolute():
            raise LedgerError(
                f"{variable} must be an absolute path, got {variable}={value!r}: "
                "ledgers would follow the folder that you stand in. Correct it, or "
                "name a --ledger."
            )
        return Path(value or "") / below
    raise AssertionError("unreachable")


def _home_of_user() -> str:
    """Of a user without $HOME; "" if the system knows none."""
    try:
        return str(Path.home())
    except RuntimeError:
        return ""


def default_ledger_path(dataset_id: str) -> Path:
    """The ledger of a data set, for features of any backbone.

    Raises LedgerError for an id that is not a plain name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", dataset_id):
        raise LedgerError(
            f"dataset_id must be letters, digits, - and _, got {dataset_id=}. Extract "
            "the features again."
        )
    return ledger_home() / "ledgers" / f"{dataset_id}.sqlite"


def open_ledger(
    path: str | Path | None = None, dataset_id: str | None = None
) -> Ledger:
    """Open a ledger: the one at `path`, else the data set's default one, else one in
    memory that counts a single fit.

    Raises LedgerError if the file is another data set's ledger, or none.
    """
    if path is None:
        path = ":memory:" if dataset_id is None else default_ledger_path(dataset_id)
    if path != ":memory:":
        path = Path(path).absolute()  # what a run notes of it must not follow a cd
    return Ledger(path, dataset_id)
