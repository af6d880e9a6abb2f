"""How much a packed source may unpack to, and what of it is a plain file: asked before
a byte of it is read.
"""

from __future__ import annotations

import stat
from pathlib import Path

from extract.errors import ExtractError

PLAIN_BYTES = 1 << 30  # that anything may unpack to; chosen, not measured
# times its own bytes that a larger one may unpack to: images pack 2 to 20 times, zeros
# 1,000 times; chosen, not measured
PACKED_TIMES = 100


def check_unpacked(size: int, packed: int, path: Path) -> None:
    """ExtractError where `packed` bytes of a file say that they unpack to far more: it
    would fill memory before anyone saw what it is.
    """
    if size > max(PLAIN_BYTES, PACKED_TIMES * packed):
        raise ExtractError(
            f"a source must unpack to at most {PACKED_TIMES} times its bytes beyond "
            f"{PLAIN_BYTES >> 20} MB, got {size} bytes of {packed} in {str(path)!r}. "
            "Pack it without compression if it is what you want."
        )


def is_plain(path: Path) -> bool:
    """Whether a path is a file with an end: reading a pipe or a device could wait, or
    go on, for ever. Links are followed; False where there is nothing.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False


def check_ends(path: Path) -> None:
    """ExtractError for a pipe or a device. A folder, and what is not there, are for
    others to refuse.
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
