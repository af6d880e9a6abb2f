"""Record where local weights are stored, on this machine only.

Features files and heads record a digest of the weights, never a path: a path is
private.
"""

from contextlib import suppress
from pathlib import Path

from dphead_extract.features.disk import write_private

from dphead.analysis.ledger_place import ledger_home
from dphead.privacy.ledger import LedgerError


def note_weights(sha256: str, path: Path) -> None:
    """Record the file or folder of the weights with this digest."""
    place = _place(sha256)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(place, str(path.absolute()).encode("utf-8", "surrogateescape"))


def known_weights(sha256: str) -> Path | None:
    """Return the path of these weights, or None if it is unknown or missing."""
    with suppress(OSError, LedgerError):  # LedgerError: DPHEAD_HOME is relative
        text = _place(sha256).read_bytes().decode("utf-8", "surrogateescape")
        return path if (path := Path(text)).exists() else None
    return None


def _place(sha256: str) -> Path:
    return ledger_home() / "weights" / sha256
