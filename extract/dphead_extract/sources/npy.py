"""Read arrays of .npy and .npz files from front to back in blocks of rows.

Nothing may be unpickled. Nothing may be allocated because a header says so: the bytes
must be there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
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
                data = _read(file, count * row_bytes, self.path)
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
            members = [info.filename for info in archive.infolist()]
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


class _opened:
    """Give the file and the byte count of an array, as a context manager.

    Errors inside become one ExtractError.
    """

    def __init__(self, path: Path, member: str | None) -> None:
        self._path, self._member = path, member

    def __enter__(self) -> tuple[IO[bytes], int]:
        try:
            if self._member is None:
                self._file: IO[bytes] = self._path.open("rb")
                return self._file, self._path.stat().st_size
            with zipfile.ZipFile(self._path) as archive:
                self._file = archive.open(self._member)
                return self._file, archive.getinfo(self._member).file_size
        # RuntimeError: the archive's packing is unknown, or needs a password
        except (OSError, zipfile.BadZipFile, RuntimeError) as error:
            raise _unusable(self._path) from error

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _header(file: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, columns_first, dtype = readers[version](file)
    # numpy may raise anything for a damaged or hostile header
    except Exception as error:
        raise _unusable(path) from error
    if dtype.hasobject or dtype.names or (columns_first and len(shape) > 1):
        raise _unusable(path)
    if not shape or min(shape) < 0 or dtype.itemsize > _MAX_TEXT_BYTES:
        raise ExtractError(
            "an array must have rows, and texts of at most "
            f"{_MAX_TEXT_BYTES} bytes, got {shape=}, dtype={dtype} in {str(path)!r}. "
            "Save it again."
        )
    return shape, dtype


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    try:
        data = file.read(size)
    # zlib and zipfile raise errors of their own for damaged members
    except Exception as error:
        raise _unusable(path) from error
    if len(data) != size:
        raise _unusable(path)
    return data


def _unusable(path: Path) -> ExtractError:
    return ExtractError(
        "arrays must be plain, whole and stored row by row, got "
        f"file={str(path)!r} damaged, pickled or in Fortran's order. Use numpy.save or "
        "numpy.savez on numpy.ascontiguousarray(x)."
    )
