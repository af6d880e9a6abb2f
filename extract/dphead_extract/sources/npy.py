"""Read arrays of .npy and .npz files from front to back in blocks of rows.

Nothing may be unpickled. Nothing may be allocated because a header says so: the bytes
must be there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from dphead_extract.errors import ExtractError

_MAX_TEXT_BYTES = 1 << 16  # of one label or group; a choice, not measured


@dataclass(frozen=True)
class StoredArray:
    """Describe one array of a file: its public header, and its rows in order.

    Attributes
    ----------
    path : Path
        The .npy, or the .npz.
    member : str or None
        The member of an .npz.
    shape, dtype : tuple of int and dtype
        What the header says.
    """

    path: Path
    member: str | None
    shape: tuple[int, ...]
    dtype: np.dtype

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the array's rows from the first to the last, `rows` at a time."""
        row_bytes = prod(self.shape[1:]) * self.dtype.itemsize
        with _opened(self.path, self.member) as (file, _):
            _header(file, self.path)
            for start in range(0, self.shape[0], rows):
                count = min(rows, self.shape[0] - start)
                data = file.read(count * row_bytes)
                yield np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


def stored_arrays(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of an .npz by name, or of an .npy under the name "".

    Raises ExtractError for files that are damaged, pickled, or shorter or longer than
    their headers say.
    """
    if path.suffix == ".npy":
        return {"": _described(path, None)}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise _unusable(path) from error
    found = {}
    for member in members:
        name = member.removesuffix(".npy")
        if name in found:
            raise ExtractError(
                f"the arrays of an .npz must have names of their own, got {name!r} "
                f"twice in {str(path)!r}. Save them again."
            )
        found[name] = _described(path, member)
    return found


def _described(path: Path, member: str | None) -> StoredArray:
    with _opened(path, member) as (file, size):
        shape, dtype = _header(file, path)
        said = prod(shape) * dtype.itemsize
        if said != size - file.tell():
            raise ExtractError(
                f"an array must be as long as its header says, got {shape=}, "
                f"dtype={dtype}, {size - file.tell()} bytes in {str(path)!r}. Save it "
                "again."
            )
    return StoredArray(path, member, shape, dtype)


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """Give the file and the byte count of an array.

    Errors of opening or reading it become one ExtractError.
    """
    try:
        if member is None:
            with path.open("rb") as file:
                yield file, path.stat().st_size
            return
        with zipfile.ZipFile(path) as archive, archive.open(member) as packed:
            yield packed, archive.getinfo(member).file_size
    except ExtractError:
        raise
    # numpy, zlib and zipfile may raise anything for a damaged or hostile file
    except Exception as error:
        raise _unusable(path) from error


def _header(file: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype]:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, columns_first, dtype = readers[np.lib.format.read_magic(file)](file)
    if dtype.hasobject or dtype.names or (columns_first and len(shape) > 1):
        raise _unusable(path)
    if not shape or min(shape) < 0 or dtype.itemsize > _MAX_TEXT_BYTES:
        raise ExtractError(
            "an array must have rows, and texts of at most "
            f"{_MAX_TEXT_BYTES} bytes, got {shape=}, dtype={dtype} in {str(path)!r}. "
            "Save it again."
        )
    return shape, dtype


def _unusable(path: Path) -> ExtractError:
    return ExtractError(
        "arrays must be plain, whole and stored row by row, got "
        f"file={str(path)!r} damaged, pickled or in Fortran's order. Use numpy.save or "
        "numpy.savez on numpy.ascontiguousarray(x)."
    )
