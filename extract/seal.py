"""The first bytes of a features file: which bytes hold rows, and a digest of the rest.

HDF5 believes what it reads: one changed bit in the type of an attribute can end the
interpreter. So the bytes that say how the file is built, and its attributes, are held
against their digest before HDF5 sees them. Rows have digests of their own,
`/block_digest`. This finds damage, not a forger, who can make a seal too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from extract.errors import FormatError

BYTES = 2048  # before the HDF5 file: a power of two from 512 on, as HDF5 wants it
MAGIC = b"dphead features\n"
HDF5 = b"\x89HDF\r\n\x1a\n"
# HDF5 marks here a file that is open for writing; in this layout it never looks at it
OPEN_MARK = (BYTES + 20, 4)
Extents = list[tuple[int, int]]  # first byte and number of bytes of each column


def write_seal(path: Path, columns: Extents, complete: bool) -> None:
    """Fill the first bytes of a file, which was made with room for them."""
    held = _seal(path, columns, complete)
    with open(path, "r+b") as file:
        file.write(held)


def read_seal(path: Path) -> bool | None:
    """Whether the file is complete; None for one of before there were seals.

    FormatError if it is no features file, or not as it was written.
    """
    with open(path, "rb") as file:
        held = file.read(BYTES)
    if held.startswith(HDF5):
        return None
    if not held.startswith(MAGIC):
        raise FormatError(
            "a features file must be HDF5 written by `dphead extract`, got "
            f"path={str(path)!r}, which is another kind of file. Extract it again."
        )
    try:
        said = json.loads(held[len(MAGIC) :])
        columns = [(int(first), int(size)) for first, size in said["columns"]]
        sound = held == _seal(path, columns, bool(said["complete"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        sound = False
    if not sound:
        raise FormatError(
            "a features file must be as it was written, got "
            f"path={str(path)!r} damaged or cut short. Extract it again."
        )
    return bool(said["complete"])


def _seal(path: Path, columns: Extents, complete: bool) -> bytes:
    said = {
        "complete": complete,
        "columns": sorted(columns),
        "bytes": path.stat().st_size,
        "sha256": _digest_outside(path, sorted(columns)),
    }
    return (MAGIC + json.dumps(said).encode()).ljust(BYTES)


def _digest_outside(path: Path, columns: Extents) -> str:
    """sha256 of a file's bytes after the seal that belong to no column. ValueError for
    columns that overlap or lie outside.

    A run that was killed leaves HDF5's mark, and is resumed: the mark is left out.
    """
    digest, end = hashlib.sha256(), path.stat().st_size
    with open(path, "rb") as file:
        file.seek(BYTES)
        for first, size in (OPEN_MARK, *columns):
            if not file.tell() <= first <= first + size <= end:
                raise ValueError(f"columns must lie apart in the file, got {columns=}.")
            digest.update(file.read(first - file.tell()))
            file.seek(first + size)
        digest.update(file.read())
    return digest.hexdigest()
