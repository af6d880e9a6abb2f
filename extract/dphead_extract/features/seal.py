"""Seal a features file by a digest of all bytes outside the columns.

HDF5 does not check what it reads: one changed bit in the type of an attribute can crash
the interpreter. Therefore the bytes of the file's structure and attributes are compared
with their digest before HDF5 reads them. `/block_digest` has the digests of the rows. A
seal finds damage. It does not stop a forger, who can also make a seal.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from dphead_extract.errors import FormatError

BYTES = 2048  # HDF5 needs a power of two, at least 512, before its own data
MAGIC = b"dphead features\n"
# first byte and length of HDF5's mark of a file that is open for writing; HDF5 never
# reads the mark in this layout
_OPEN_MARK = (BYTES + 20, 4)
_Extent = tuple[int, int]  # first byte and number of bytes of a column


def write_seal(path: Path, columns: Iterable[_Extent], complete: bool) -> None:
    """Write the seal into the first bytes of a file, which were left free for it."""
    held = _seal(path, sorted(columns), complete)
    with open(path, "r+b") as file:
        file.write(held)


def read_seal(path: Path) -> bool:
    """Return whether the file is complete.

    Raises FormatError if the file is not a features file, or was changed outside its
    columns.
    """
    with open(path, "rb") as file:
        held = file.read(BYTES)
    if not held.startswith(MAGIC):
        raise FormatError(
            f"{str(path)!r} is not a features file. Type the path of a file that "
            "`dphead extract` or `dphead features import` wrote."
        )
    try:
        said = json.loads(held[len(MAGIC) :])
        columns = [(int(first), int(size)) for first, size in said["columns"]]
        sound = held == _seal(path, columns, bool(said["complete"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        sound = False
    if not sound:
        raise FormatError(
            f"{str(path)!r} is damaged or cut short. Copy or extract it again."
        )
    return bool(said["complete"])


def _seal(path: Path, columns: list[_Extent], complete: bool) -> bytes:
    said = {
        "complete": complete,
        "columns": columns,
        "sha256": _digest_outside(path, columns),
    }
    return (MAGIC + json.dumps(said).encode()).ljust(BYTES)


def _digest_outside(path: Path, columns: list[_Extent]) -> str:
    """Return the sha256 of a file's bytes after the seal that belong to no column.

    The digest omits HDF5's mark of an open file, because a killed run leaves this mark
    and can be resumed. Raises ValueError for columns that overlap or lie outside the
    file.
    """
    digest, end = hashlib.sha256(), path.stat().st_size
    with open(path, "rb") as file:
        file.seek(BYTES)
        for first, size in (_OPEN_MARK, *columns):
            if not file.tell() <= first <= first + size <= end:
                raise ValueError(f"The columns {columns} overlap or lie outside.")
            digest.update(file.read(first - file.tell()))
            file.seek(first + size)
        digest.update(file.read())
    return digest.hexdigest()
