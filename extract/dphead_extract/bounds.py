"""Refuse pipes and devices, and limit the length of a text file."""

import stat
from pathlib import Path

from dphead_extract.errors import ExtractError

_TEXT_BYTES = 64 << 20  # largest text that is read as a whole; a choice, not measured


def is_plain(path: Path) -> bool:
    """Return whether a path is a regular file.

    Reading a pipe or a device might never end. Links are followed. Return False if the
    path does not exist.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return False


def size_of(path: Path) -> int:
    """Return the size of a regular file in bytes, or -1 for any other path."""
    return path.stat().st_size if is_plain(path) else -1


def read_plain(path: Path) -> bytes:
    """Return the bytes of a regular file.

    Raises FileNotFoundError for any other path: reading a pipe might never end.
    """
    if not is_plain(path):
        raise FileNotFoundError(path)
    return path.read_bytes()


def check_ends(path: Path) -> None:
    """Raise ExtractError for a pipe or a device.

    A folder, or a path that does not exist, passes: other functions check for these.
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

    Raises OSError for a missing file, a pipe, a device, a folder or more than `most`
    bytes, and UnicodeDecodeError for text that is not UTF-8.
    """
    if path.exists() and not is_plain(path):
        raise OSError("a pipe, a device or a folder")
    if path.stat().st_size > most:
        raise OSError(f"{path.stat().st_size} bytes, more than {most}")
    return path.read_text(encoding="utf-8-sig")
