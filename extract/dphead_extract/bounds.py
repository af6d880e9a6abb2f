"""Limit how much of a user's file is read, before the file fills the memory.

The limits cover the unpacked size of a packed source, the kind of a path (plain files
only), and the length of a text file.
"""

from __future__ import annotations

import stat
from pathlib import Path

from dphead_extract.errors import ExtractError

PLAIN_BYTES = 1 << 30  # any file may unpack to this; a choice, not measured
# A larger file may unpack to this many times its own bytes: images pack 2 to 20 times,
# zeros 1,000 times. A choice, not measured.
PACKED_TIMES = 100
_TEXT_BYTES = 64 << 20  # largest text that is read as a whole; a choice, not measured


def check_unpacked(size: int, packed: int, path: Path) -> None:
    """Raise ExtractError if `packed` bytes of a file unpack to far more.

    Such a file would fill the memory before its content is known.
    """
    if size > max(PLAIN_BYTES, PACKED_TIMES * packed):
        raise ExtractError(
            f"{str(path)!r} unpacks from {packed} to {size} bytes, more than "
            f"{PACKED_TIMES} times its size. If this size is right, store the file "
            "without compression."
        )


def is_plain(path: Path) -> bool:
    """Return whether a path is a file with an end.

    Reading a pipe or a device might never end. Links are followed. Return False if the
    path does not exist.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False


def check_ends(path: Path) -> None:
    """Raise ExtractError for a pipe or a device.

    Other functions refuse a folder, or a path that does not exist.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ExtractError(
            f"{str(path)!r} is a pipe or a device. Copy its content into a file."
        )


def read_text(path: Path, most: int = _TEXT_BYTES) -> str:
    """Return the whole text of a UTF-8 file, such as a list of names.

    Raises OSError for a pipe, a device or more than `most` bytes, and
    UnicodeDecodeError for another encoding.
    """
    if path.exists() and not is_plain(path):
        raise OSError("a pipe, a device or a folder")
    if path.stat().st_size > most:
        raise OSError(f"{path.stat().st_size} bytes, more than {most}")
    return path.read_text(encoding="utf-8-sig")
