"""Keep the private index of images in DPHEAD_HOME, by data set.

The digests are keyed with a secret, which is drawn once and stored only there. No entry
of the index may reach a features file or a report. Each home has its own secret, so the
digests of two homes cannot be compared.
"""

import errno
import hashlib
import json
import os
import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.disk import lock, open_own, sync_path, write_private
from dphead_extract.features.rows import check_dataset_id

_KEY_BYTES, _SEAL_BYTES = 32, 16  # sizes of BLAKE2b's key and digest; a choice
_ENDING = ".digests"
_NOTED = "noted"  # an index with this file has a file of sizes
# Entry of pairs: a digest in another entry, and the canonical digest of its image.
ALIASES = "aliases"
# Suffix of the entry with a data set's marks. There are four kinds of marks:
# - all images of a block of rows are in the index (`_blocks`)
# - the data set shared notably many images with another one before one of them grew
#   (`_pair`)
# - the data set's entry of images is partial, or became whole (`is_partial`)
# - the digests of that entry (`_state`): marks of blocks are valid only while this
#   mark fits its digests
_MARKS = ".blocks"
_FORMS = 5  # digests of an image; the first one is canonical (`Source.forms`)
# Two data sets are the same if they share more than _SAME of the larger one. The user
# must decide if they share _NOTABLE of the smaller one, or if other data sets together
# hold _NOTABLE of either. Smaller shares occur by accident: CIFAR-10 holds a few images
# twice. Choices, not measured.
_SAME, _NOTABLE = 1 / 2, 1 / 20


# errors of a home that is read-only or belongs to another user
FOREIGN = (errno.EACCES, errno.EPERM, errno.EROFS)


class NotWritable(FormatError):
    """Report an index whose folder is read-only or belongs to another user."""


class Block(NamedTuple):
    """Name the rows of a block, from `start` to before `stop`, and their images.

    `images` is a digest of the rows' image digests and of which rows are masked.
    """

    start: int
    stop: int
    images: str


@dataclass(frozen=True)
class Overlap:
    """Describe how many images two data sets share.

    `shared`, `own` and `theirs` are numbers of distinct images. `own_elsewhere` and
    `theirs_elsewhere` count the images of each data set that are in any other data set.
    A part is the images that one command added to a data set. `in_part` is True if a
    condition of `notable` holds between a part of one data set and the other data set
    or one of its parts. `partial` is `ImageIndex.is_partial` of the other data set.
    """

    dataset_id: str
    shared: int
    own: int
    theirs: int
    own_elsewhere: int = 0
    theirs_elsewhere: int = 0
    in_part: bool = False
    partial: bool = False

    @property
    def same(self) -> bool:
        """Return whether more than half of the larger data set is shared."""
        return not self.partial and self.shared > _SAME * max(self.own, self.theirs)

    def order(self) -> tuple[bool, int, str]:
        """Return the sort key of overlaps: `same` first, then most shared images."""
        return not self.same, -self.shared, self.dataset_id

    @property
    def notable(self) -> bool:
        """Return whether the user must decide about the shared images.

        True if images are shared and one of these holds:

        - The shared images are at least a twentieth of the smaller data set.
        - At least a twentieth of either data set is in any other data sets.
        - One of these two conditions holds for parts (`in_part`).
        """
        return self.shared > 0 and (
            self.in_part
            or self.shared >= _NOTABLE * min(self.own, self.theirs)
            or self.own_elsewhere >= _NOTABLE * self.own
            or self.theirs_elsewhere >= _NOTABLE * self.theirs
        )

    def of_all(self, share: float) -> "Overlap":
        """Extrapolate the overlap of a part to the whole data set.

        The overlap was counted on the fraction `share` of this data set.
        """
        shared = min(round(self.shared / share), self.theirs)
        more = self.theirs_elsewhere + shared - self.shared
        return replace(
            self,
            shared=shared,
            own=round(self.own / share),
            own_elsewhere=round(self.own_elsewhere / share),
            theirs_elsewhere=min(more, self.theirs),
        )

    def __str__(self) -> str:
        text = (
            f"{self.shared:,} of {self.own:,} images are also among the "
            f"{self.theirs:,} of data set {self.dataset_id}"
        )
        for count, whose in (
            (self.own_elsewhere, f"the {self.own:,}"),
            (self.theirs_elsewhere, f"these {self.theirs:,}"),
        ):
            if count > self.shared:
                text += f", and {count:,} of {whose} are in other data sets"
        added = (
            "at least a twentieth of the images that one command added is in other "
            "data sets"
        )
        return f"{text}, and {added}" if self.in_part else text


class ImageIndex:
    """Index the images of each data set that was extracted under one home.

    There is one file for each data set, with 8 bytes for each image. If several
    commands add different images to a data set, the images of each command have a file
    too. Images that were shared before a data set grew are then still found. Only the
    owner can read the files.

    The index identifies an image by its canonical pixels: a resized or recompressed
    image is a different one. Another file pairs digests of other forms with canonical
    ones: of the 8-bit forms of each image with more bits (32 bytes more), and of forms
    that earlier versions stored, once an extraction reads such an image again.
    """

    def __init__(self, folder: Path, sizes: Path | None = None) -> None:
        self.root = self.folder = folder
        self.sizes = sizes
        self._secret: bytes | None = None

    def digest(self, image: np.ndarray) -> int:
        """Return a digest of one decoded image.

        The digest has 64 bits. Without the key, it shows only which images are equal.
        """
        digest = hashlib.blake2b(
            repr(image.shape).encode(), digest_size=8, key=self._key()
        )
        digest.update(np.ascontiguousarray(image).data)
        return int.from_bytes(digest.digest(), "little")

    def digests(self, forms: Sequence[np.ndarray]) -> list[int]:
        """Return _FORMS digests of an image's forms; the first one is canonical."""
        own, *others = forms
        first = self.digest(own)
        found = [first if one is own else self.digest(one) for one in others]
        return [first, *found, *[first] * _FORMS][:_FORMS]

    def under_each_key(self, digests: np.ndarray) -> np.ndarray:
        """Return an array of `digests`, under the keys of all indexes that are used."""
        return digests

    def keyed(self, text: str, size: int) -> bytes:
        """Return the digest of a text under the index's key, with `size` bytes."""
        key = self._key()
        return hashlib.blake2b(text.encode(), digest_size=size, key=key).digest()

    def add(self, dataset_id: str, digests: np.ndarray) -> None:
        """Add images to a data set's entry, durably."""
        check_dataset_id(dataset_id)
        with self.locked():
            self._grow(dataset_id, digests)

    def _grow(self, dataset_id: str, digests: np.ndarray) -> None:
        """Add images to a data set's entry. The caller holds the lock.

        If the entry already has other images, its notable overlaps are marked first,
        because they can fall below _NOTABLE when it grows. The images of each command
        are then also stored as a part.
        """
        state = self._state(dataset_id)
        before, own = self.images(dataset_id), _split(digests)[0]
        if len(before) and not np.isin(_canonical(own, self._aliases()), before).all():
            shared = [
                self._pair(dataset_id, one.dataset_id)
                for one in self.sharing(dataset_id)
            ]
            self._keep_marks(dataset_id, shared)
            for part in (before, digests)[len(self._parts(dataset_id)) > 0 :]:
                name = self._seal(np.unique(part).tobytes()).hex()
                self.extend(f"{dataset_id}.{name}", part)
        self.extend(dataset_id, digests)
        self._move_marks(dataset_id, state)

    def _parts(self, dataset_id: str) -> list[str]:
        """Return the names of a data set's parts: each has one command's images."""
        return [name for name in self._names() if name.startswith(f"{dataset_id}.")]

    def claim(self, digests: np.ndarray) -> tuple[str, bool]:
        """Return the id of the images' data set, and whether the images were known.

        The id is new if no data set holds the images. Two extractions that start at the
        same time get one id, if the file system has locks. Raises ExtractError as
        `recognized` does.
        """
        with self.locked():
            known = recognized(self.overlaps(digests))
            dataset_id = known or uuid.uuid4().hex
            self._grow(dataset_id, digests)
        return dataset_id, known is not None

    def mark_blocks(self, dataset_id: str, salt: str, blocks: Sequence[Block]) -> None:
        """Record, durably, that a data set's entry has all images of these blocks.

        The digests of their images have this salt.
        """
        with self.locked():
            state = self._state(dataset_id)
            if state not in self._stored(dataset_id + _MARKS):
                self._forget_blocks(dataset_id)
            marks = self._blocks(dataset_id, salt, blocks)
            self._keep_marks(dataset_id, [state, *marks])

    def has_blocks(self, dataset_id: str, salt: str, blocks: Sequence[Block]) -> bool:
        """Return whether `mark_blocks` has recorded all of these blocks.

        The result is False if the entry was lost or replaced, such as by an older copy.
        """
        known = self._stored(dataset_id + _MARKS)
        if not len(known):  # a read must not create the key
            return False
        marks = [self._state(dataset_id), *self._blocks(dataset_id, salt, blocks)]
        return bool(np.isin(np.array(marks, np.uint64), known).all())

    def _blocks(self, dataset_id: str, salt: str, blocks: Sequence[Block]) -> list[int]:
        # Earlier marks have the word "block" and digests of 8-bit levels. Equal levels
        # do not show that the index has the images.
        return [self.mark("images", dataset_id, salt, *block) for block in blocks]

    def _state(self, dataset_id: str) -> int:
        """Return the mark of an entry's stored digests."""
        found = b"".join(self._kept(dataset_id))
        return self.mark("entry", dataset_id, hashlib.blake2b(found).hexdigest())

    def _move_marks(self, dataset_id: str, before: int) -> None:
        """Let the marks of an entry's earlier state count for its present state.

        If the process dies before this, the marks of blocks count no more.
        """
        known, now = self._stored(dataset_id + _MARKS), self._state(dataset_id)
        if before in known and now != before:
            kept = known[known != np.uint64(before)]
            found = np.union1d(kept, np.array([now], np.uint64))
            self._write(dataset_id + _MARKS, found)

    def _forget_blocks(self, dataset_id: str) -> None:
        """Remove the marks of blocks whose images were in a different entry."""
        name = dataset_id + _MARKS
        known = self._stored(name)
        if len(known):
            pairs = [self._pair(dataset_id, other) for other in self._names()]
            kept = np.array([*pairs, self.mark("partial", dataset_id)], np.uint64)
            self._write(name, np.intersect1d(known, kept))

    def _pair(self, dataset_id: str, other: str) -> int:
        """Return the mark of two data sets that share notably many images."""
        return self.mark("shared", *sorted([dataset_id, other]))

    def mark(self, *parts: object) -> int:
        """Return a keyed 64-bit digest of `parts`, joined as texts by spaces."""
        text = " ".join(map(str, parts))
        return int.from_bytes(self.keyed(text, 8), "little")

    def _keep_marks(self, dataset_id: str, marks: list[int]) -> None:
        """Add marks to a data set's entry, durably. The caller holds the lock."""
        name, found = dataset_id + _MARKS, np.array(marks, np.uint64)
        known = self._stored(name)
        if not np.isin(found, known).all():
            self._write(name, np.union1d(known, found))

    def extend(self, dataset_id: str, digests: np.ndarray) -> None:
        """Add digests to a data set's entry. The caller holds the lock."""
        own, pairs = _split(digests)
        if len(pairs):
            lossy, _ = _split(digests[:, [0, -2, -1]])[1].T
            self._add_aliases(pairs, lossy)
        known = self.images(dataset_id)
        images = _canonical(np.concatenate([known, own]), self._aliases())
        if len(images) > len(known):
            self._write(dataset_id, images)

    def _add_aliases(self, pairs: np.ndarray, lossy: np.ndarray) -> None:
        """Store new pairs (other form, canonical), each other form once.

        A pair is stored if an entry holds the digest of its other form, or if this
        digest is in `lossy`: a later copy can have it as its canonical digest, because
        dphead reads the copy with 8 bits.
        """
        known = self._aliases()
        held = [lossy, *map(self._stored, self._names())]
        _, met = _search(np.sort(np.concatenate(held)), pairs[:, 0])
        _, old = _search(np.sort(known[:, 0]), pairs[:, 0])
        new = pairs[met & ~old]
        if len(new):
            _, first = np.unique(new[:, 0], return_index=True)
            self._append(ALIASES, known, new[first])

    def _append(self, name: str, known: np.ndarray, new: np.ndarray) -> None:
        """Store new digests of an entry beside the known ones."""
        self._write(name, np.concatenate([known, new]))

    def _write(self, name: str, digests: np.ndarray) -> None:
        data = digests.astype("<u8").tobytes()
        self._keep(name, self._seal(data) + data)

    def images(self, dataset_id: str) -> np.ndarray:
        """Return the sorted digests of a data set's images, uint64.

        The result is empty for an unknown data set. Raises FormatError if the stored
        digests were changed.
        """
        return _canonical(self._stored(dataset_id), self._aliases())

    def every_form(self, dataset_id: str) -> np.ndarray:
        """Return a data set's digests, and those of its other forms that are stored."""
        images, pairs = self.images(dataset_id), self._aliases()
        return np.append(images, pairs[np.isin(pairs[:, 1], images), 0])

    def has(self, dataset_id: str, digests: np.ndarray) -> np.ndarray:
        """Return (n,) bool: whether a data set has each image, in any of its forms.

        `digests` (n, forms) are as `digests` returns them.
        """
        own, pairs = _split(digests)
        pairs = np.concatenate([self._aliases(), pairs])
        theirs = _canonical(self._stored(dataset_id), pairs)
        return np.isin(_replaced(own, pairs), theirs)

    def public_id(self, dataset_id: str) -> str:
        """Return an id of a data set's entry. Without the key, it reveals nothing."""
        return self.keyed(f"public id {dataset_id}", 16).hex()

    def entry_of(self, public_id: str) -> str | None:
        """Return the data set whose entry has a public id, or None.

        A partial entry does not count.
        """
        names = (name for name in self._names() if self.public_id(name) == public_id)
        return next((name for name in names if not self.is_partial(name)), None)

    def is_empty(self) -> bool:
        """Return whether no data set has an entry."""
        return not self._names()

    def knows(self, dataset_id: str) -> bool:
        """Return whether a data set has an entry."""
        return bool(self._kept(dataset_id))

    def is_partial(self, dataset_id: str) -> bool:
        """Return whether an entry has only images that other data sets share with it.

        The other images of such a data set were never added to this index.
        """
        marks = self._stored(dataset_id + _MARKS)
        if not len(marks):  # a read must not create the key
            return False
        kinds = [self.mark(kind, dataset_id) for kind in ("partial", "whole")]
        return [kind in marks for kind in kinds] == [True, False]

    @contextmanager
    def declaring(self) -> Iterator[None]:
        """Do nothing. dphead's indexes override this method.

        The override blocks new charges of the home while `settle` binds the home to the
        index. It raises an error if the index must not record people.
        """
        yield

    def settle(self, write: bool = False) -> None:
        """Raise FormatError if a different index keeps the id systems of this home.

        With `write`, record durably that this index keeps them, unless another does.
        """
        note, own = self.root / "store", os.path.relpath(self.folder, self.root)
        if write and self.settled() is None:
            _make_private(self.root)
            with suppress(FileExistsError):
                write_private(note, own.encode(), once=True)
        if write:
            self._note_sizes()
        if (kept := self.settled()) not in (None, own):
            todo = "Unset DPHEAD_LEDGER"
            if kept != ".":
                todo = f"Set DPHEAD_LEDGER to the URL of the server {kept}"
            raise FormatError(
                f"The home {str(self.root.parent)!r} has id systems in another store. "
                f"Nothing was written. {todo}, or set DPHEAD_HOME to another folder."
            )

    def settled(self) -> str | None:
        """Return the relative folder of the home's index of id systems, or None."""
        note = self.root / "store"
        self._check_sizes([note.name])
        if note.exists():
            return note.read_text()
        # an index of an earlier version has no note
        return "." if any(self.root.glob(f"*{_ENDING}")) else None

    def _aliases(self) -> np.ndarray:
        """Return pairs of a stored digest and the canonical digest of its image."""
        return self._stored(ALIASES).reshape(-1, 2)

    def _stored(self, name: str) -> np.ndarray:
        """Return all digests of an entry as they were stored."""
        found = [self._read(name, data) for data in self._kept(name)]
        return np.concatenate([np.empty(0, np.uint64), *found])

    def _read(self, dataset_id: str, found: bytes) -> np.ndarray:
        """Parse stored bytes into digests. Raise FormatError if the bytes changed."""
        seal, data = found[:_SEAL_BYTES], found[_SEAL_BYTES:]
        if len(data) % 8 or not secrets.compare_digest(seal, self._seal(data)):
            raise FormatError(
                f"The entry {dataset_id} of the index {str(self.folder)!r} is damaged. "
                "Restore the newest copy of this index alone from a backup."
            )
        return np.frombuffer(data, "<u8")

    def sharing(self, dataset_id: str) -> list[Overlap]:
        """Return the data sets that share notably many images with a data set.

        This includes data sets that did so before one of the two grew.
        """
        images, *parts = map(self.images, (dataset_id, *self._parts(dataset_id)))
        others = self.overlaps(images, dataset_id, parts) if len(images) else []
        return [
            one for one in others if one.notable or self._shared_before(dataset_id, one)
        ]

    def _shared_before(self, dataset_id: str, other: Overlap) -> bool:
        both = dataset_id, other.dataset_id
        mark = self._pair(*both)
        return any(mark in self._stored(name + _MARKS) for name in both)

    def overlaps(
        self,
        digests: np.ndarray,
        but: str | None = None,
        parts: Sequence[np.ndarray] = (),
    ) -> list[Overlap]:
        """Return the data sets, other than `but`, that hold some of these images.

        `parts` are parts of the images. The result is sorted by `Overlap.order`.
        """
        own, pairs = _split(digests)
        pairs = np.concatenate([self._aliases(), pairs])
        own = _canonical(own, pairs)
        held = {
            name: _canonical(self._stored(name), pairs)
            for name in self._names()
            if name != but and "." not in name
        }
        shared = {name: _common(own, theirs) for name, theirs in held.items()}
        if not any(shared.values()):
            return []
        every = np.sort(np.concatenate([own, *held.values()]))
        # images that several data sets have
        several = every[1:][every[1:] == every[:-1]]
        elsewhere = _common(own, several)
        found = [
            Overlap(
                name,
                n,
                len(own),
                len(held[name]),
                elsewhere,
                _common(held[name], several),
                self._shares_part([own, *parts], name, pairs, several),
                self.is_partial(name),
            )
            for name, n in shared.items()
            if n
        ]
        return sorted(found, key=Overlap.order)

    def _shares_part(
        self,
        own: list[np.ndarray],
        name: str,
        pairs: np.ndarray,
        several: np.ndarray,
    ) -> bool:
        """Return whether parts of two data sets share notably many images.

        `own` has the images of one data set and its parts, and `name` is the other
        data set. At least one of the two compared sets is a part. `several` are images
        that several data sets have. `Overlap.notable` defines "notably".
        """
        entries = (name, *self._parts(name))
        theirs = [_canonical(self._stored(one), pairs) for one in entries]
        found = product(own, theirs)
        next(found)  # skip the pair of two whole data sets
        return any(
            (shared := _common(*pair)) > 0
            and (
                shared >= _NOTABLE * min(map(len, pair))
                or any(_common(one, several) >= _NOTABLE * len(one) for one in pair)
            )
            for pair in found
        )

    def _names(self) -> list[str]:
        """Return the names of the entries: ids of data sets, and their parts."""
        self._check_sizes()
        found = self.folder.glob(f"*{_ENDING}")
        names = [path.name.removesuffix(_ENDING) for path in found]
        return data_sets(names)

    def _kept(self, name: str) -> list[bytes]:
        """Return a list with the stored bytes of an entry, empty if there are none."""
        self._check_sizes([f"{name}{_ENDING}"])
        try:
            return [(self.folder / f"{name}{_ENDING}").read_bytes()]
        except FileNotFoundError:
            return []

    def _keep(self, name: str, data: bytes) -> None:
        """Replace the stored bytes of an entry, durably."""
        file = f"{name}{_ENDING}"
        # Note a smaller size first: if this process dies here, no noted size may be
        # above that of its file. An entry shrinks if two digests are of one image.
        if self.sizes is not None and len(data) < (sizes := self._sizes()).get(file, 0):
            write_private(self.sizes, json.dumps(sizes | {file: len(data)}).encode())
        write_private(self.folder / file, data)

    def _note_sizes(self) -> None:
        """Note the sizes of all files of the index, durably.

        The caller holds the lock. Sizes that a process could not note, because it died,
        are noted by the next one.
        """
        if self.sizes is None or not (sizes := self._sizes_now()):
            return
        noted = self._check_sizes()
        if not self.sizes.exists() or sizes != noted:
            _make_private(self.sizes.parent)
            write_private(self.sizes, json.dumps(sizes, indent=0).encode())
        if not (mark := self.root / _NOTED).exists():
            write_private(mark, b"")

    def _sizes_now(self) -> dict[str, int]:
        found = [*self.root.glob(f"*{_ENDING}"), *self.root.glob("store")]
        return {path.name: path.stat().st_size for path in found}

    def _sizes(self) -> dict[str, int]:
        """Return the noted sizes of the files of the index.

        If no sizes were noted yet, return the sizes that the files have now. Raises
        FormatError if noted sizes are missing or damaged.
        """
        mark = self.root / _NOTED
        if self.sizes is None or not (self.sizes.exists() or mark.exists()):
            return self._sizes_now()
        if not self.sizes.exists():
            raise FormatError(
                f"The folder {str(self.sizes.parent)!r} lacks the file "
                f"{self.sizes.name} that dphead wrote there, so its fits and budgets "
                "would not count. Mount the folder's volume, or restore its newest "
                f"copy. If all its ledgers are lost, remove {str(mark)!r}: dphead "
                "then counts no fit and no budget that was only there."
            )
        try:
            return dict(json.loads(self.sizes.read_bytes()))
        except (ValueError, TypeError) as error:
            raise FormatError(
                f"{str(self.sizes)!r} is damaged. Remove this file and {str(mark)!r}, "
                f"and nothing else in {str(self.root)!r}. The next command that adds "
                "images or people writes both files again."
            ) from error

    def _check_sizes(self, files: Iterable[str] | None = None) -> dict[str, int]:
        """Return the noted sizes of the files of the index.

        Raises FormatError if one of `files` (default: all of them) is missing or
        smaller than noted.
        """
        sizes = self._sizes()  # first: another process writes a file before its size
        for file in sizes if files is None else files:
            path = self.root / file
            size = path.stat().st_size if path.exists() else -1
            if size < sizes.get(file, -1):
                raise self._is_older(path)
        return sizes

    def _is_older(self, path: Path) -> FormatError:
        assert self.sizes is not None
        return FormatError(
            f"{str(path)!r} is missing, damaged, or older than the last one that "
            "dphead wrote, so dphead would not recognize all known "
            f"{self.root.name}. Mount the volume of this folder, or restore the newest "
            f"copy of {str(self.root)!r} alone: an older copy of "
            f"{str(self.sizes.parent)!r} would lack fits. If there is no copy, remove "
            f"{str(self.sizes)!r} and {str(self.root / _NOTED)!r}. dphead then "
            f"recognizes only the {self.root.name} that are left. Then state no total "
            "of an earlier run."
        )

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
        # Look for digests first, because another process may be creating both the key
        # and digests.
        if self._names() and not path.exists():
            raise FormatError(
                f"The key of the index is missing: {str(path)!r}. Restore it from a "
                "backup."
            )
        if not path.exists():
            _make_private(self.folder)
            with suppress(FileExistsError):
                write_private(path, secrets.token_bytes(_KEY_BYTES), once=True)
        key = path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise FormatError(
                f"The key of the index, {str(path)!r}, must have {_KEY_BYTES} bytes, "
                f"got {len(key)}. Restore it from a backup."
            )
        return key

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the index, so that one process at a time can change it.

        On a file system without locks, several processes can change it at once.
        """
        _make_private(self.folder)
        file = open_own(self.folder / "lock")
        try:
            lock(file)
            yield
            self._note_sizes()
        finally:
            os.close(file)


def data_sets(entries: Iterable[str]) -> list[str]:
    """Return the names of entries with images: ids of data sets, and their parts."""
    return [one for one in entries if one != ALIASES and not one.endswith(_MARKS)]


def _split(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the canonical digest of each image, and pairs (other, canonical).

    `digests` is (n,), canonical digests only, or (n, forms).
    """
    # numpy cannot infer a length without digests (a shard without a readable image)
    forms = digests.reshape(len(digests), -1 if digests.size else 1).astype(np.uint64)
    own = forms[:, :1]
    pairs = np.stack([forms, np.broadcast_to(own, forms.shape)], axis=-1)
    return own[:, 0], pairs[forms != own]


def _replaced(digests: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the digests (n,), each replaced by its canonical digest."""
    others, first = np.unique(pairs[:, 0], return_index=True)
    # Replace twice: digests of RGB levels by those of gray levels, then those by the
    # digests of samples.
    for _ in range(2 if len(others) else 0):
        at, found = _search(others, digests)
        digests = np.where(found, pairs[first[at], 1], digests)
    return digests


def _canonical(digests: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the sorted distinct digests, each replaced by its canonical digest."""
    digests = _replaced(digests, pairs)
    if (digests[1:] <= digests[:-1]).any():  # most entries are sorted already
        digests = np.sort(digests)
        digests = np.delete(digests, 1 + np.flatnonzero(digests[1:] == digests[:-1]))
    return digests


def _search(held: np.ndarray, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index at which each digest is in a sorted array, and whether it is."""
    if len(held) == 0:
        return np.zeros(len(digests), np.intp), np.zeros(len(digests), bool)
    at = np.searchsorted(held, digests).clip(max=len(held) - 1)
    return at, held[at] == digests


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many digests two sorted arrays of distinct digests share."""
    return int(_search(other, one)[1].sum())


def recognized(overlaps: list[Overlap], begun: str | None = None) -> str | None:
    """Return the data set with most of the images (`Overlap.same`), or None if new.

    If an earlier part of the images belongs to the data set `begun`, no other one is
    returned. Raises ExtractError for any other notable overlap, because the user must
    decide to which data set the images belong.
    """
    if overlaps and overlaps[0].same and begun in (None, overlaps[0].dataset_id):
        return overlaps[0].dataset_id
    for one in overlaps:
        if one.notable:
            raise ExtractError(
                f"Some images belong to a known data set: {one}. Type --dataset-id "
                f"{one.dataset_id} to charge the same ledger, or --new-data-set for a "
                "separate ledger, which `dphead check` reports."
            )
    return None


def _make_private(folder: Path) -> None:
    """Make the folder of the index, which only its owner can read.

    Raises NotWritable if the folder is read-only or of another user, or if a file has
    its name. Images that were seen before would otherwise count as new, with a new
    ledger.
    """
    try:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for one in missing:  # sync, because ledgers will be in the same home
            sync_path(one.parent)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        # the last two errors: a file has the name of the folder
        if error.errno not in (*FOREIGN, errno.EEXIST, errno.ENOTDIR):
            raise
        writable = False
    if not writable:
        raise NotWritable(
            f"The folder {str(folder)!r} of an index is not writable. Set DPHEAD_HOME "
            "to a folder of your own."
        )
