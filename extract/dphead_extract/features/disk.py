"""Check the room for a features file, and keep the names of its rows beside it.

The names are private.
"""

from __future__ import annotations

import csv
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.features.rows import Header

# what os.link raises without hard links: each file system chooses its own number
NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


def check_disk(output: Path, header: Header) -> None:
    """Raise ExtractError unless the file fits on the disk with some room to spare."""
    folder = next(
        p for p in (output.absolute().parent, *output.absolute().parents) if p.exists()
    )
    needed = header.n_rows * (
        header.n_features * np.dtype(header.dtype).itemsize + 64
    ) + (8 << 20)
    part = output.with_name(output.name + ".part")
    there = sum(p.stat().st_blocks * 512 for p in (part, output) if p.exists())
    free = shutil.disk_usage(folder).free
    if needed - there > free:
        raise ExtractError(
            f"the output must fit on the disk, got needed={needed - there} bytes and "
            f"free={free} in {str(folder)!r}. Make room, choose another folder, or use "
            "--dtype float16."
        )


def name_once(draft: str, path: Path) -> None:
    """Give a whole file a second name `path` that no other file has.

    Raises
    ------
    FileExistsError
        If the name exists; a rename would replace that file.
    ExtractError
        If the file system has no hard links.
    """
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        raise ExtractError(
            "a file that several processes share must lie on a file system with hard "
            f"links, got {str(path)!r} ({error.strerror}). Choose another place: -o "
            "for shards, DPHEAD_HOME for the index of images."
        ) from error


def names_path(output: Path) -> Path:
    """Return the path of the private table of names, beside a features file."""
    return output.with_name(output.name + ".names.csv")


def write_names(output: Path, names: Sequence[str], first: int = 0) -> Path:
    """Write the private table from rows to names, and return its path.

    Only its owner may read it. Rows count from `first`. After a crash the table is
    whole or missing.

    Raises ExtractError, with the path, if it cannot be written or kept private.
    """
    path = names_path(output)
    part = path.with_name(f"{path.name}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(
            descriptor, "w", newline="", encoding="utf-8", errors="surrogateescape"
        ) as file:
            os.fchmod(descriptor, 0o600)
            table = csv.writer(file)
            table.writerow(["row", "name"])
            table.writerows(enumerate(names, first))
            file.flush()
            os.fsync(descriptor)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ExtractError(
            "the names of rows must be written for their owner alone, got "
            f"{str(path)!r} ({error.strerror}). Make room, or choose -o on a file "
            "system that keeps rights."
        ) from error
    return path


def read_names(features: Path, n_rows: int) -> list[str] | None:
    """Return the names of a features file's rows, or None without their table.

    A table of another length is another file's, and counts as missing.
    """
    path = names_path(features)
    if not path.is_file():
        return None
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        names = [row[1] for row in csv.reader(file) if len(row) == 2][1:]
    return names if len(names) == n_rows else None
