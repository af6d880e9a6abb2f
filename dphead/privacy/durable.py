"""Files that are on the disk before anyone is told so, whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_durably(path: Path, write: Callable[[Any], object]) -> None:
    """Have `write` fill a binary file that is on the disk before this returns.

    After a crash it is whole or not there.
    """
    partial = path.with_suffix(".part")
    with open(partial, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk before this returns."""
    opened = os.open(folder, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)
