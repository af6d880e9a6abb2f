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


def make_folder(folder: Path) -> None:
    """Have a folder on the disk before this returns; its owner's alone where it is new,
    and so are those above it.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True, mode=0o700)
        sync(one.parent)


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk before this returns."""
    opened = os.open(folder, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)
