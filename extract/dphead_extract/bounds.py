"""Bound what is read of a file that a user names, before it fills memory.

The bounds are how much a packed source may unpack to, which paths are plain files, and
how long a text may be.
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

    They would fill memory before anyone saw what they are.
    """
    if size > max(PLAIN_BYTES, PACKED_TIMES * packed):
        raise ExtractError(
            f"a source must unpack to at most {PACKED_TIMES} times its bytes beyond "
            f"{PLAIN_BYTES >> 20} MB, got {size} bytes of {packed} in {str(path)!r}. "
            "Pack it without compression if it is what you want."
        )


def is_plain(path: Path) -> bool:
    """Return whether a path is a file with an end.

    Reading a pipe or a device could wait, or continue, for ever. Links are followed. It
    is False if nothing is there.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False


def check_ends(path: Path) -> None:
    """Raise ExtractError for a pipe or a device.

    Other functions refuse a folder, or a path where nothing is.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ExtractError(
            f"a file must have an end, got path={str(path)!r}, a pipe or a device. "
            "Copy it into a file."
        )


def read_text(path: Path, most: int = _TEXT_BYTES) -> str:
    """Return a UTF-8 text that is read as a whole, such as a list of names.

    Raises OSError for a pipe, a device or more than `most` bytes, and
    UnicodeDecodeError for another encoding.
    """
    if path.exists() and not is_plain(path):
        raise OSError("a pipe, a device or a folder")
    if path.stat().st_size > most:
        raise OSError(f"{path.stat().st_size} bytes, more than {most}")
    return path.read_text(encoding="utf-8-sig")
