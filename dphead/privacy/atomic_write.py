"""Write files that are on the disk completely, or not at all."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Fill a binary file with `write`, so that it is on the disk before this returns.

    The file is written beside `path` and renamed. After a crash, `path` is complete or
    as it was before. An existing file keeps its access rights, and a link stays a link.
    A pipe or a device cannot be replaced by a rename, so it is written directly.

    Parameters
    ----------
    path : Path
        The file.
    write : callable
        Writes to the open binary file that it is given.

    Raises
    ------
    OSError
        With the path, if the disk does not take the file.
    """
    # The target of a link is replaced, and beside it: a rename cannot leave its disk.
    final = Path(os.path.realpath(path))
    partial = final.with_name(f"{final.name}.part")
    with _whole(path, lambda: partial.unlink(missing_ok=True)):
        if path.exists() and not path.is_file():
            with open(path, "wb") as device:
                write(device)
            return
        with open(partial, "wb") as file:
            if final.exists():
                # Before a byte is written, so that nobody reads a private file
                # meanwhile.
                os.fchmod(file.fileno(), stat.S_IMODE(final.stat().st_mode))
            write(file)
            file.flush()
            # Data first, then its name: after a crash the name may not lead to an empty
            # file.
            os.fsync(file.fileno())
        os.replace(partial, final)
    # The new name is durable only when its folder is.
    sync(final.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as `write_atomically` does.

    A file name in it that is not UTF-8 keeps its bytes.
    """
    data = text.encode("utf-8", errors="surrogateescape")
    write_atomically(path, lambda file: file.write(data))


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Fill a new folder with `fill`; all users can read its files.

    The files are written in a folder beside `path`, which is then renamed. So `path`
    holds all of them or does not exist. An empty folder may exist there before.

    Parameters
    ----------
    path : Path
        The folder.
    fill : callable
        Writes the files into the folder that it is given.

    Raises
    ------
    OSError
        With the path, if the disk does not take the files.
    """
    with _whole(path, lambda: None):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    with _whole(path, lambda: shutil.rmtree(partial, ignore_errors=True)):
        fill(partial)
        for file in partial.iterdir():
            _readable(file, 0o644)
            sync(file)
        _readable(partial, 0o755)
        os.replace(partial, path)
    sync(path.parent)


@contextmanager
def _whole(path: Path, remove: Callable[[], object]) -> Iterator[None]:
    """Remove what an error cut short; raise OSError, with the path, for a full disk."""
    try:
        yield
    except OSError as error:
        remove()
        raise OSError(
            f"a file must be written whole, got {path} ({error.strerror or error}). "
            "Make room, or choose another place, and type the same command again."
        ) from error
    except BaseException:
        remove()
        raise


def _readable(path: Path, mode: int) -> None:
    """Let all users read it, if the file system keeps access rights."""
    with suppress(PermissionError):
        path.chmod(mode)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, on the disk before this returns.

    New folders are accessible to their owner alone.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True, mode=0o700)
        sync(one.parent)


def sync(folder: Path) -> None:
    """Put the names in a folder on the disk before this returns.

    Raises OSError if the file system does not promise it.
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
