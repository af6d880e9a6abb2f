"""Keep the private index of a home, which lists the images of each data set.

The digests are keyed with a secret, which is made once and never leaves the home. No
entry of the index may reach a features file or a report. Without the secret, digests of
two homes cannot be compared.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.disk import open_own, write_private
from dphead_extract.features.rows import check_dataset_id

_KEY_BYTES, _SEAL_BYTES = 32, 16  # sizes of BLAKE2b's key and digest; a choice
_ENDING = ".digests"
# Two data sets are the same if they share more than _SAME of the larger one. Sharing
# _NOTABLE of the smaller one is no accident (CIFAR-10 holds a few images twice).
# Choices, not measured.
_SAME, _NOTABLE = 1 / 2, 1 / 20


@dataclass(frozen=True)
class Overlap:
    """Hold the numbers of images that two data sets share.

    `shared`, `own` and `theirs` are numbers of distinct images.
    """

    dataset_id: str
    shared: int
    own: int
    theirs: int

    @property
    def same(self) -> bool:
        """Return whether more than half of the larger data set is shared."""
        return self.shared > _SAME * max(self.own, self.theirs)

    @property
    def notable(self) -> bool:
        """Return whether at least a twentieth of the smaller data set is shared."""
        return 0 < self.shared >= _NOTABLE * min(self.own, self.theirs)

    def of_all(self, share: float) -> Overlap:
        """Extrapolate the overlap of a part to the whole data set.

        `own` counts the fraction `share` of the data set.
        """
        shared, own = round(self.shared / share), round(self.own / share)
        return replace(self, shared=min(shared, self.theirs), own=own)

    def __str__(self) -> str:
        return (
            f"{self.shared:,} of {self.own:,} images are also among the "
            f"{self.theirs:,} of data set {self.dataset_id}"
        )


class ImageIndex:
    """Index the images of each data set that was extracted under one home.

    There is one file for each data set, with 8 bytes for each image. Only its owner can
    read the file. The index identifies an image by its decoded pixels: a resized or
    recompressed image is a different one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._secret: bytes | None = None

    def digest(self, image: np.ndarray) -> int:
        """Return a digest of one decoded image.

        The digest has 64 bits and reveals nothing without the key.
        """
        digest = hashlib.blake2b(
            repr(image.shape).encode(), digest_size=8, key=self._key()
        )
        digest.update(np.ascontiguousarray(image).data)
        return int.from_bytes(digest.digest(), "little")

    def add(self, dataset_id: str, digests: np.ndarray) -> None:
        """Add images to a data set's entry, durably."""
        check_dataset_id(dataset_id)
        with self._locked():
            self._add(dataset_id, digests)

    def claim(self, digests: np.ndarray) -> tuple[str, bool]:
        """Return the id of the images' data set, and whether the images were known.

        The id is new if no other data set holds the images. Two backbones that begin at
        the same time get one id. Raises ExtractError as `recognized` does.
        """
        with self._locked():
            known = recognized(self.overlaps(digests))
            dataset_id = known or uuid.uuid4().hex
            self._add(dataset_id, digests)
        return dataset_id, known is not None

    def _add(self, dataset_id: str, digests: np.ndarray) -> None:
        known = self.images(dataset_id)
        images = np.union1d(known, digests).astype("<u8")
        if len(images) > len(known):
            data = images.tobytes()
            self._keep(dataset_id, self._seal(data) + data)

    def images(self, dataset_id: str) -> np.ndarray:
        """Return the sorted digests of a data set's images, uint64.

        The result is empty for an unknown data set. Raises FormatError if the stored
        digests were changed.
        """
        found = self._kept(dataset_id)
        return (
            np.empty(0, np.uint64) if found is None else self._read(dataset_id, found)
        )

    def _read(self, dataset_id: str, found: bytes) -> np.ndarray:
        """Parse stored bytes into digests. Raise FormatError if the bytes changed."""
        seal, data = found[:_SEAL_BYTES], found[_SEAL_BYTES:]
        if len(data) % 8 or not secrets.compare_digest(seal, self._seal(data)):
            raise FormatError(
                f"The image index of data set {dataset_id} in {str(self.folder)!r} is "
                "damaged. Restore the folder from a backup. If you remove the file, "
                "dphead no longer recognizes its images."
            )
        return np.frombuffer(data, "<u8")

    def overlaps(self, digests: np.ndarray, but: str | None = None) -> list[Overlap]:
        """Return the data sets, other than `but`, that hold some of these images.

        The data set with most of the images comes first.
        """
        own, found = np.unique(digests), []
        for name in self._names():
            theirs = self.images(name)
            shared = len(np.intersect1d(own, theirs, assume_unique=True))
            if shared and name != but:
                found.append(Overlap(name, shared, len(own), len(theirs)))
        return sorted(found, key=lambda one: (-one.shared, one.dataset_id))

    def _names(self) -> list[str]:
        """Return the ids of the data sets in the index."""
        found = self.folder.glob(f"*{_ENDING}")
        return [path.name.removesuffix(_ENDING) for path in found]

    def _kept(self, dataset_id: str) -> bytes | None:
        """Return the last stored bytes of a data set, or None."""
        try:
            return (self.folder / f"{dataset_id}{_ENDING}").read_bytes()
        except FileNotFoundError:
            return None

    def _keep(self, dataset_id: str, data: bytes) -> None:
        """Replace the stored bytes of a data set, durably."""
        write_private(self.folder / f"{dataset_id}{_ENDING}", data)

    def _seal(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_SEAL_BYTES, key=self._key()).digest()

    def _key(self) -> bytes:
        if self._secret is None:
            self._secret = self._read_key()
        return self._secret

    def _read_key(self) -> bytes:
        """Return the home's secret key; the first call creates it.

        Raises FormatError if the key is missing but digests exist, which cannot be
        checked without the key.
        """
        path = self.folder / "key"
        # Look for digests first: another process may make the key and then digests now.
        if self._names() and not path.exists():
            raise FormatError(
                f"The key of the image index is missing: {str(path)!r}. Restore it "
                "from a backup. If you remove the folder, dphead no longer recognizes "
                "any image."
            )
        if not path.exists():
            _make_private(self.folder)
            with suppress(FileExistsError):
                write_private(path, secrets.token_bytes(_KEY_BYTES), once=True)
        key = path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise FormatError(
                f"The key of the image index {str(path)!r} must have {_KEY_BYTES} "
                f"bytes, got {len(key)}. Restore it from a backup."
            )
        return key

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the index.

        On a file system without locks, several processes can change it at once.
        """
        _make_private(self.folder)
        lock = open_own(self.folder / "lock")
        try:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def recognized(overlaps: list[Overlap]) -> str | None:
    """Return the data set that images belong to, or None for new images.

    Raises ExtractError if the user must decide, because some images but not most belong
    to another data set.
    """
    if not overlaps:
        return None
    first = overlaps[0]
    if first.same:
        return first.dataset_id
    if first.notable:
        raise ExtractError(
            f"Some images belong to a known data set: {first}. Type --dataset-id "
            f"{first.dataset_id} to charge the same ledger, or --new-data-set for a "
            "separate ledger, which `dphead check` reports."
        )
    return None


def _make_private(folder: Path) -> None:
    """Make the folder of the index, which only its owner can read.

    Raises FormatError if the folder cannot be written. Images that were seen before
    would otherwise count as new, with a new ledger.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise FormatError(
            f"The folder {str(folder)!r} of the image index is not writable. Set "
            "DPHEAD_HOME to a folder of your own."
        )
