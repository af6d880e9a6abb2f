"""Files that are on the disk before anyone is told so, whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Have `write` fill a binary file that is on the disk before this returns.

    After a crash it is whole or not there. OSError, with the file's name, where the
    disk does not take it.
    """
    partial = path.with_suffix(".part")
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OSError(
            f"a file must be written whole to the disk, got path={path!s} ({error}). "
            "Make room there, or see why it cannot be written; the same command goes "
            "on with a run."
        ) from error
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
    """Have the names in a folder on the disk before this returns.

    OSError where the file system does not promise it.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        raise OSError(
            "a folder must be on a file system that can put its names on the disk "
            f"(fsync), got folder={folder!s} ({error}). Choose a place on another: -o "
            "for runs, --ledger or DPHEAD_HOME for ledgers."
        ) from error
    finally:
        os.close(opened)
