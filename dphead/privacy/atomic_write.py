"""Write files atomically and durably, and lock them.

dphead chooses the names of most files that it writes, such as RUN/report.json. Whoever
may write to the same folder could put a link to another file under such a name. So
under a name that dphead chose, this module never writes through a link, a pipe or a
device (`open_own`). A path that the user typed may be one of these.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_MOST_LINKS = 40  # largest number of links that one path follows, as in Linux


class ForeignFile(OSError):
    """Report a link, a folder, a pipe or a device under a name that dphead chose."""


def open_own(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file for writing, but never a different file through a link.

    Parameters
    ----------
    path : Path
        A name that dphead chose.
    flags : int
        As for `os.open`.
    mode : int, default 0o666
        Access rights of a new file, without those that the umask removes.

    Returns
    -------
    int
        The file descriptor.

    Raises
    ------
    ForeignFile
        If the name belongs to anything but a regular file, such as a link or a pipe.
    OSError
        If the file cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a reader.
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        # Systems differ in the error number for a link.
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise _foreign(path) from error
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _foreign(path)
    return opened


def own_folder(path: Path) -> None:
    """Create a folder under a name that dphead chose, unless it exists.

    A new folder is accessible to its owner only. Raises ForeignFile if the name does
    not belong to a folder, and OSError if the folder cannot be created.
    """
    with suppress(FileExistsError):
        path.mkdir(parents=True, mode=0o700)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise _foreign(path, "folder")


def _foreign(path: Path, own: str = "file") -> ForeignFile:
    return ForeignFile(
        f"{path} is a link, a pipe or something else in the place of dphead's own "
        f"{own}. Nothing was written through it. Remove it, then run the same command "
        "again."
    )


def write_atomically(
    path: Path, write: Callable[[Any], object], *, typed: bool = False
) -> None:
    """Fill a binary file with `write`, durably and completely or not at all.

    The file is written next to `path` and renamed. After a crash, `path` is complete or
    unchanged. An existing file keeps its access rights. A link is replaced by the file,
    and its target stays as it was.

    Parameters
    ----------
    path : Path
        The file.
    write : callable
        Function that writes to an open binary file.
    typed : bool, default False
        Whether the user typed this path. Then a link of the user stays a link, and its
        target is replaced. A pipe or a device is written directly, because a rename
        cannot replace it.

    Raises
    ------
    OSError
        If the file cannot be written; the message has the path. If a typed path is the
        link of another user, except root.
    """
    final = _target(path) if typed else path
    partial = final.with_name(f"{final.name}.part")
    # A failed write leaves neither a partial file nor a changed one.
    with _whole(path, lambda: partial.unlink(missing_ok=True)):
        if typed and path.exists() and not path.is_file():
            with open(path, "wb") as device:
                write(device)
            return
        # Remove a killed run's partial file, or a stranger's link with this name.
        partial.unlink(missing_ok=True)
        new = open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(new, "wb") as file:
            if final.is_file() and not final.is_symlink():
                # Set access rights before any byte is written, so that no other user
                # can read a private file meanwhile.
                os.fchmod(new, stat.S_IMODE(final.stat().st_mode))
            write(file)
            file.flush()
            # Sync data before the rename: after a crash the name must not lead to an
            # empty file.
            os.fsync(file.fileno())
        os.replace(partial, final)
    # The new name is durable only after its folder is synced.
    sync(final.parent)


def _target(path: Path) -> Path:
    """Return the file that a typed path leads to.

    Raises OSError for the link of another user, except root. That user could have put
    it into a folder that all may write to, such as /tmp.
    """
    if path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid()):
        raise OSError(
            f"{path} is a link of another user, so dphead does not write through it. "
            "Type the path of the file itself, or a path in a folder of your own."
        )
    # Replace a link's target, with a temporary file next to it: a rename cannot cross
    # disks.
    return Path(os.path.realpath(path))


def write_text(path: Path, text: str, *, typed: bool = False) -> None:
    """Write UTF-8 text atomically and durably (`write_atomically`).

    File names in the text that are not UTF-8 keep their bytes.
    """
    # A report may contain a path that is not UTF-8.
    data = text.encode("utf-8", errors="surrogateescape")
    write_atomically(path, lambda file: file.write(data), typed=typed)


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
        If the files cannot be written, or if `path` is a file or a folder that is not
        empty; the message has the path.
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
    """Call `remove` if a block fails, and name the path in an OSError.

    A ForeignFile passes unchanged, without a call of `remove`.
    """
    try:
        yield
    except ForeignFile:
        raise
    except OSError as error:
        with suppress(OSError):
            remove()
        raise OSError(
            f"{path} could not be written completely ({error.strerror or error}). "
            "Free some space or choose another folder, then run the same command "
            "again."
        ) from error
    # Even after Ctrl-C, no part of a private file may remain.
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
    # Start with the outermost folder, and sync each new name in its parent.
    for one in reversed(missing):
        one.mkdir(exist_ok=True, mode=0o700)
        sync(one.parent)


def dangling_link(path: Path) -> Path | None:
    """Return a link in a path whose target does not exist, or None without one.

    The target may be on a volume that is not mounted.
    """
    links = filter(os.path.islink, (path, *path.parents))
    return next((one for one in links if not os.path.exists(one)), None)


def names_before_links(path: str | Path) -> tuple[str, ...]:
    """Return the absolute names of a path, one before each link that it follows.

    Each name has the targets of all earlier links. `os.path.realpath`, which has no
    links, is not included. While the volume of a link is not mounted,
    `os.path.realpath` returns the name before this link.
    """
    done, left = Path("/"), [*reversed(Path(path).absolute().parts[1:])]
    names = list[str]()
    while left and len(names) < _MOST_LINKS:
        part = left.pop()
        if part == os.pardir:
            # the parent of a link's target, because `done` has no links
            done = done.parent
        elif not os.path.islink(one := done / part):
            done = one
        else:
            # a `..` after this link leads elsewhere if the link is gone
            names.append(os.path.normpath(one.joinpath(*reversed(left))))
            target = one.readlink()
            done = Path("/") if target.is_absolute() else done
            left += reversed(target.parts[target.is_absolute() :])
    return tuple(names)


def sync(folder: Path) -> None:
    """Flush the names in a folder, or the content of a file, to the disk.

    Raises OSError if the file system cannot do so.
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
    """Return a file locked for this process, or None if it is locked already.

    The lock holds until the file is closed. Its holder may remove the file. A lock on a
    removed file does not count, because the next process locks a new file. So the
    result is also None if the file is removed during this call.

    Raises
    ------
    OSError
        If the file system has no locks, or if `open_own` raises it.
    """
    lock = open(open_own(path, os.O_RDWR | os.O_CREAT), "w")  # noqa: SIM115 - by the caller
    try:
        # Do not wait for the lock: two runs of one fit would draw two values.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock.fileno()), os.lstat(path)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        # keep the file: another process may hold it if flock failed only for a moment
        lock.close()
        raise OSError(
            f"The file system of {path.parent} has no locks (flock: {error.strerror}). "
            "Choose a folder on another file system with -o."
        ) from error
    lock.close()
    return None
