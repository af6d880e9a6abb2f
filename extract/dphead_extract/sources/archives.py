"""Read the members of zip and tar archives in place; none may be unpacked."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dphead_extract.bounds import check_ends
from dphead_extract.errors import ExtractError

MAX_FILE_BYTES = 256 << 20  # of one stored image; a choice, not measured
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError)


class Archive:
    """Read the files of an archive in the archive's order.

    Only one thread at a time may read an archive.

    Parameters
    ----------
    path : Path
        The archive.
    is_zip : bool, default False
        Whether it is a zip; otherwise it is a tar, packed or not.

    Raises
    ------
    ExtractError
        If the archive is damaged, or is a pipe or a device.
    """

    def __init__(self, path: Path, is_zip: bool = False) -> None:
        self.path = path
        check_ends(path)
        try:
            opened = zipfile.ZipFile if is_zip else tarfile.open
            self._file: Any = opened(path)
        except _DAMAGED as error:
            raise self._damaged() from error
        self._open = self._file.open if is_zip else self._file.extractfile
        self._list = self._in_zip if is_zip else self._in_tar

    def files(self) -> Iterator[tuple[str, int, Any]]:
        """Yield the name, the size and the argument of `read` of each file.

        Raises ExtractError if the archive is damaged, or a member is a link.
        """
        try:
            for name, is_link, is_file, size, member in self._list():
                if is_link:
                    raise ExtractError(
                        f"{str(self.path)!r} has a link, {name!r}. Replace the link by "
                        "the file and pack again."
                    )
                if is_file:
                    yield name.removeprefix("./"), size, member
        except _DAMAGED as error:
            raise self._damaged() from error

    def _in_zip(self) -> Iterator[tuple[str, bool, bool, int, Any]]:
        for member in self._file.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            is_file = not member.is_dir()
            yield member.filename, is_link, is_file, member.file_size, member

    def _in_tar(self) -> Iterator[tuple[str, bool, bool, int, Any]]:
        for member in self._file:
            is_link = member.issym() or member.islnk() or member.isdev()
            yield member.name, is_link, member.isfile(), member.size, member

    def check_size(self, size: int) -> int:
        """Return the size of a member; raises ExtractError if it is too large."""
        if size > MAX_FILE_BYTES:
            raise ExtractError(
                f"{str(self.path)!r} has a member of {size} bytes, more than "
                f"{MAX_FILE_BYTES}. Remove it from the archive."
            )
        return size

    def read(self, member: Any) -> bytes:
        """Return the bytes of a member.

        Raises ValueError for more than MAX_FILE_BYTES, even if the header claims less.
        """
        with self._open(member) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError("file too large")
        return data

    def _damaged(self) -> ExtractError:
        return ExtractError(
            f"{str(self.path)!r} is damaged or cut short. Copy the archive again."
        )
