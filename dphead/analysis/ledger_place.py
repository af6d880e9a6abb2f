"""Locate ledgers, and name them in publishable reports."""

import os
from contextlib import suppress
from pathlib import Path

from dphead.privacy.ledger.server import is_on_server
from dphead.privacy.ledger.store import IN_MEMORY, LedgerError

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
            "have its own ledgers. Set DPHEAD_HOME to an absolute path, or pass "
            "--ledger."
        )
    return found


def named(path: str, folder: Path) -> str:
    """Return the name of a ledger for a report in `folder`, without an absolute path.

    An absolute path may contain a user's name. The name starts at DPHEAD_HOME, at the
    user's home, or at the report's folder.
    """
    if path == IN_MEMORY or is_on_server(path):
        return path
    starts = {"~": os.path.expanduser("~")}
    with suppress(LedgerError):  # without DPHEAD_HOME, the ledger has its own path
        starts = {_HOME: str(ledger_home()), **starts}
    for name, start in starts.items():
        inside = os.path.relpath(path, os.path.realpath(start))
        if not inside.startswith(os.pardir):
            return f"{name}/{inside}"
    return os.path.relpath(path, os.path.realpath(folder))


def located(name: str, folder: Path) -> Path | str:
    """Return the path of a ledger that a report in `folder` names."""
    if is_on_server(name):
        return name
    if name.startswith(f"{_HOME}/"):
        return ledger_home() / name.removeprefix(f"{_HOME}/")
    name = os.path.expanduser(name)
    return Path(os.path.normpath(os.path.join(os.path.realpath(folder), name)))
