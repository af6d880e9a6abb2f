"""The private index of a home: which data sets hold which images.

Digests are keyed by a secret that is made there once and stays there. Nothing of the
index may reach a features file or a report: without it they say nothing of one another.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from extract.disk import name_once
from extract.errors import ExtractError, FormatError
from extract.rows import check_dataset_id

_KEY_BYTES, _SEAL_BYTES = 32, 16  # of BLAKE2b; chosen
_ENDING = ".digests"
# Of the larger of two data sets, what makes them the same; of the smaller, what is no
# accident (CIFAR-10 holds a few images twice). Chosen, not measured.
_SAME, _NOTABLE = 1 / 2, 1 / 20


@dataclass(frozen=True)
class Overlap:
    """Images that another data set holds too. shared, own, theirs: distinct images."""

    dataset_id: str
    shared: int
    own: int
    theirs: int

    @property
    def same(self) -> bool:
        """Whether it is the same data set: more than half of the larger one."""
        return self.shared > _SAME * max(self.own, self.theirs)

    @property
    def notable(self) -> bool:
        """Whether it is too much for an accident: a twentieth of the smaller one."""
        return 0 < self.shared >= _NOTABLE * min(self.own, self.theirs)

    def of_all(self, share: float) -> Overlap:
        """For the whole data set, of which `own` is a share, alike in all parts."""
        shared, own = round(self.shared / share), round(self.own / share)
        return replace(self, shared=min(shared, self.theirs), own=own)

    def __str__(self) -> str:
        return (
            f"{self.shared:,} of {self.own:,} images are also among the "
            f"{self.theirs:,} of data set {self.dataset_id}"
        )


class ImageIndex:
    """The images of each data set that was extracted under one home.

    A file a data set, of 8 bytes an image, readable by its owner alone. It knows an
    image by its decoded pixels: one that was resized or compressed again is another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._secret: bytes | None = None

    def digest(self, image: np.ndarray) -> int:
        """Of one decoded image, 64 bits that say nothing without the key."""
        digest = hashlib.blake2b(
            repr(image.shape).encode(), digest_size=8, key=self._key()
        )
        digest.update(np.ascontiguousarray(image).data)
        return int.from_bytes(digest.digest(), "little")

    def add(self, dataset_id: str, digests: np.ndarray) -> None:
        """Note that a data set holds these images, beside those that it held; durable
        when it returns.
        """
        check_dataset_id(dataset_id)
        with self._locked():
            self._add(dataset_id, digests)

    def claim(self, digests: np.ndarray) -> tuple[str, bool]:
        """The id of the data set that images are of, a new one where no other holds
        them, and whether they are known: two networks begun together have one id.

        ExtractError as `recognised`.
        """
        with self._locked():
            known = recognised(self.overlaps(digests))
            dataset_id = known or uuid.uuid4().hex
            self._add(dataset_id, digests)
        return dataset_id, known is not None

    def _add(self, dataset_id: str, digests: np.ndarray) -> None:
        known = self.images(dataset_id)
        images = np.union1d(known, digests).astype("<u8")
        if len(images) > len(known):
            data = images.tobytes()
            _write(self.folder / f"{dataset_id}{_ENDING}", self._seal(data) + data)

    def images(self, dataset_id: str) -> np.ndarray:
        """Sorted digests of a data set's images, uint64; none if it is not known.

        FormatError if they are not as they were written.
        """
        path = self.folder / f"{dataset_id}{_ENDING}"
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            return np.empty(0, np.uint64)
        seal, data = found[:_SEAL_BYTES], found[_SEAL_BYTES:]
        if len(data) % 8 or not secrets.compare_digest(seal, self._seal(data)):
            raise FormatError(
                "the index of images must be as it was written, got "
                f"{str(path)!r} damaged, or under another key. Put back a copy of the "
                "folder, or remove the file: then its images count as unseen."
            )
        return np.frombuffer(data, "<u8")

    def overlaps(self, digests: np.ndarray, but: str | None = None) -> list[Overlap]:
        """The data sets, other than `but`, that hold some of these images; the one that
        holds most comes first.
        """
        own, found = np.unique(digests), []
        for path in self.folder.glob(f"*{_ENDING}"):
            name = path.name.removesuffix(_ENDING)
            theirs = self.images(name)
            shared = _count_shared(own, theirs)
            if shared and name != but:
                found.append(Overlap(name, shared, len(own), len(theirs)))
        return sorted(found, key=lambda one: (-one.shared, one.dataset_id))

    def _seal(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_SEAL_BYTES, key=self._key()).digest()

    def _key(self) -> bytes:
        if self._secret is None:
            self._secret = self._read_key()
        return self._secret

    def _read_key(self) -> bytes:
        """The home's secret; the first process that asks makes it.

        FormatError if it is gone and digests are there, which it alone can read.
        """
        path = self.folder / "key"
        # in this order: another process may make the key, then digests, meanwhile
        if any(self.folder.glob(f"*{_ENDING}")) and not path.exists():
            raise FormatError(
                f"an index of images must have its key, got none at {str(path)!r}. Put "
                "it back, or remove the folder: then all images count as unseen."
            )
        if not path.exists():
            _write(path, secrets.token_bytes(_KEY_BYTES), once=True)
        key = path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise FormatError(
                f"the key of an index must have {_KEY_BYTES} bytes, got {len(key)} in "
                f"{str(path)!r}. Put back a copy of the folder, or remove it."
            )
        return key

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process changes the index at a time; all do where locks do not work."""
        _make_private(self.folder)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def recognised(overlaps: list[Overlap]) -> str | None:
    """The data set that images are of, or None where no other holds them.

    ExtractError where that must be said: some of them are another's, and not most.
    """
    if not overlaps:
        return None
    first = overlaps[0]
    if first.same:
        return first.dataset_id
    if first.notable:
        raise ExtractError(
            f"it must be said whether images are of one data set, got {first}. Say "
            f"--dataset-id {first.dataset_id} to count the fits of both in one ledger, "
            "or --new-data-set to count them apart, which `dphead check` then names."
        )
    return None


def _count_shared(own: np.ndarray, theirs: np.ndarray) -> int:
    """How many values two sorted arrays without repetitions have in common."""
    if not len(own) or not len(theirs):
        return 0
    at = np.minimum(np.searchsorted(theirs, own), len(theirs) - 1)
    return int(np.count_nonzero(theirs[at] == own))


def _make_private(folder: Path) -> None:
    """FormatError where it cannot be written: images that were seen before would pass
    for new ones, and open a ledger of their own.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise FormatError(
            "the private index of images must be writable, got "
            f"path={str(folder)!r}. Let DPHEAD_HOME be a folder of yours."
        )


def _write(path: Path, data: bytes, once: bool = False) -> None:
    """Write a file for its owner alone, whole or not at all, and durably.

    once: not if it is there. Raises ExtractError, with the path, for a full disk.
    """
    _make_private(path.parent)
    try:
        _write_once_or_over(path, data, once)
    except OSError as error:
        raise ExtractError(
            f"the private index of images must be written whole, got {str(path)!r} "
            f"({error.strerror or error}). Make room, and type the same command again."
        ) from error


def _write_once_or_over(path: Path, data: bytes, once: bool) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-") as draft:
        draft.write(data)
        draft.flush()
        os.fsync(draft.fileno())
        if once:
            with suppress(FileExistsError):
                name_once(draft.name, path)
        else:
            beside = path.with_name(f"{Path(draft.name).name}.whole")
            name_once(draft.name, beside)
            os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
