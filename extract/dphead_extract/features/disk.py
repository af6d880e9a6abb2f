"""Write files durably, and write the private names of a features file's rows."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dphead_extract.errors import ExtractError
from dphead_extract.safe_text import read_csv, write_csv

# errors of a file system without locks
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock(descriptor: int, wait: bool = True) -> None:
    """Lock an open file for this process, if its file system has locks.

    Without `wait`, raises BlockingIOError if another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def sync_path(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_own(path: Path) -> int:
    """Open a file to change it, or create one, and return its descriptor.

    Only the owner can read a new file. Whoever may write to the same folder could put a
    link to another file under this name. Raises ExtractError for a link, a file with a
    second hard link, a folder, a pipe or a device.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        opened = os.open(path, flags, 0o600)
        status = os.fstat(opened)
        if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
            return opened
        os.close(opened)
    except OSError:
        # systems report different error numbers for a link
        if not os.path.lexists(path) or stat.S_ISREG(os.lstat(path).st_mode):
            raise
    raise ExtractError(
        f"{str(path)!r} is a link, a pipe or something else in the place of dphead's "
        "own file. Nothing was written through it. Remove it, then run the same "
        "command again."
    )


def write_private(path: Path, data: bytes, once: bool = False) -> None:
    """Write a file atomically, with access for the owner only.

    With `once`, an existing file stays, and FileExistsError is raised. Raises
    ExtractError if the disk is full, or the file system lacks access rights or, with
    `once`, hard links.
    """
    try:
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            if once:  # a rename would replace the file of another process
                os.link(draft, path)
            else:
                os.replace(draft, path)
            sync_path(path.parent)
        finally:
            Path(draft).unlink(missing_ok=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise ExtractError(
            f"{str(path)!r} cannot be written for its owner only "
            f"({error.strerror or error}). Free some space, or choose a file system "
            "with access rights and hard links for -o and DPHEAD_HOME."
        ) from error


def _names_path(output: Path) -> Path:
    """Return the path of the private table of names, beside a features file."""
    return output.with_name(output.name + ".names.csv")


def write_names(output: Path, names: Sequence[str], first: int = 0) -> Path:
    """Write the private table of rows and names, and return its path.

    `first` is the number of the first row.
    """
    path = _names_path(output)
    text = write_csv([("row", "name"), *enumerate(names, first)])
    write_private(path, text.encode("utf-8", "surrogateescape"))
    return path


def read_names(features: Path, n_rows: int) -> list[str] | None:
    """Return the names of a features file's rows, or None if their table is missing.

    A table with a different number of rows belongs to another file: return None.
    """
    path = _names_path(features)
    if not path.is_file():
        return None
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        names = [row[1] for row in read_csv(file) if len(row) == 2][1:]
    return names if len(names) == n_rows else None
