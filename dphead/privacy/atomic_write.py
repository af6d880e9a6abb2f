"""Write files atomically and durably, and lock them."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Fill a binary file with `write`, durably and completely or not at all.

    The file is written next to `path` and renamed. After a crash, `path` is complete or
    unchanged. An existing file keeps its access rights, and a link stays a link. A pipe
    or a device is written directly, because a rename cannot replace it.

    Parameters
    ----------
    path : Path
        The file.
    write : callable
        Function that writes to an open binary file.

    Raises
    ------
    OSError
        If the disk cannot hold the file; the message has the path.
    """
    # Replace a link's target, with a temporary file next to it: a rename cannot cross
    # disks.
    final = Path(os.path.realpath(path))
    partial = final.with_name(f"{final.name}.part")
    # A failed write leaves neither a partial file nor a changed one.
    with _whole(path, lambda: partial.unlink(missing_ok=True)):
        if path.exists() and not path.is_file():
            with open(path, "wb") as device:
                write(device)
            return
        with open(partial, "wb") as file:
            if final.exists():
                # Set access rights before any byte is written, so that nobody can read
                # a private file.
                os.fchmod(file.fileno(), stat.S_IMODE(final.stat().st_mode))
            write(file)
            file.flush()
            # Sync data before the rename: after a crash the name must not lead to an
            # empty file.
            os.fsync(file.fileno())
        os.replace(partial, final)
    # The new name is durable only after its folder is synced.
    sync(final.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically and durably (`write_atomically`).

    File names in the text that are not UTF-8 keep their bytes.
    """
    # A path that is not UTF-8 may be part of a report.
    data = text.encode("utf-8", errors="surrogateescape")
    write_atomically(path, lambda file: file.write(data))


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Create a folder with the files that `fill` writes, readable by all users.

    The files are written to a folder next to `path`, which is then renamed. So `path`
    holds all files or does not exist. An existing empty folder is replaced.

    Parameters
    ----------
    path : Path
        The folder.
    fill : callable
        Function that writes the files to a folder.

    Raises
    ------
    OSError
        If the disk cannot hold the files; the message has the path.
    """
    with _whole(path, lambda: None):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    with _whole(path, lambda: shutil.rmtree(partial, ignore_errors=True)):
        fill(partial)
        # `mkdtemp` lets only the owner read the folder, and exports are for others.
        for file in partial.iterdir():
            _readable(file, 0o644)
            sync(file)
        _readable(partial, 0o755)
        os.replace(partial, path)
    sync(path.parent)


@contextmanager
def _whole(path: Path, remove: Callable[[], object]) -> Iterator[None]:
    """Call `remove` after a failed write, and raise OSError with the path."""
    try:
        yield
    except OSError as error:
        remove()
        raise OSError(
            f"{path} could not be written completely ({error.strerror or error}). "
            "Free some space or choose another folder, then run the same command "
            "again."
        ) from error
    # Also after Ctrl-C: no part of a private file stays behind.
    except BaseException:
        remove()
        raise


def _readable(path: Path, mode: int) -> None:
    """Let all users read a path, if the file system has access rights."""
    with suppress(PermissionError):
        path.chmod(mode)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably.

    New folders are accessible to their owner only.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    # From the outermost on: each new name is synced in its parent.
    for one in reversed(missing):
        one.mkdir(exist_ok=True, mode=0o700)
        sync(one.parent)


def sync(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises OSError if the file system cannot guarantee it.
    """
    # A rename is durable only after its folder is synced.
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        raise OSError(
            f"The file system of {folder} cannot flush a folder (fsync): {error}. "
            "Choose a folder on another file system: -o for runs, --ledger or "
            "DPHEAD_HOME for ledgers."
        ) from error
    finally:
        os.close(opened)


def lock_file(path: Path) -> IO[str] | None:
    """Return a file locked for this process, or None if another process holds it.

    The lock holds until the file is closed. Its holder may remove the file. A lock on a
    removed file does not count, because the next process locks a new file.

    Raises
    ------
    OSError
        If the file system has no locks.
    """
    lock = open(path, "w")  # noqa: SIM115 - held by the caller
    try:
        # Without waiting: two runs of one fit would draw two values.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        # the file stays: another process may hold it, where flock fails for a moment
        lock.close()
        raise OSError(
            f"The file system of {path.parent} has no locks (flock: {error.strerror}). "
            "Choose a folder on another file system with -o."
        ) from error
    lock.close()
    return None
