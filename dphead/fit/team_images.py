"""Keep the indexes of images and people on the team's server, for all machines."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
from dphead_extract.errors import FormatError
from dphead_extract.index import ALIASES, ImageIndex, Overlap, data_sets
from sqlalchemy import Table, select
from sqlalchemy.exc import IntegrityError

from dphead.privacy.ledger import server
from dphead.privacy.ledger.server import IMAGES, PEOPLE, SECRET


class TeamImages(ImageIndex):
    """Index the images of each data set that a team has extracted.

    Rows of the server's table are never changed or deleted, and all rows of a data set
    count. The server stores the key.

    Parameters
    ----------
    url : str
        The URL of the team's ledgers.
    home : ImageIndex, optional
        The index of this machine, which has another key. Images that are decoded here
        are looked up in both and added to both, because digests under one key cannot
        be used under another.
    note : callable, optional
        Records in the home, durably, that the ledger of a data set is on the server. It
        is called before either index gets the images.
    hold_home : callable, optional
        Holds the lock of the home's ledgers, which is taken before the server's.
    """

    def __init__(
        self,
        url: str,
        home: ImageIndex | None = None,
        note: Callable[[str], object] = bool,
        hold_home: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(Path(server.NAME))  # not a folder, but a name for messages
        self._url = url
        self._table: Table = IMAGES
        self._home, self._note, self._hold_home = home, note, hold_home
        # digests of decoded images: under the server's key, then under the home's key
        self._at_home: dict[int, list[int]] = {}

    def digests(self, forms: Sequence[np.ndarray]) -> list[int]:
        """Return the digests of an image's forms, as `ImageIndex.digests`."""
        found = super().digests(forms)
        if self._home is not None:
            self._at_home[found[0]] = self._home.digests(forms)
        return found

    def under_each_key(self, digests: np.ndarray) -> np.ndarray:
        """Return digests of images decoded here, with those under the home's key."""
        own, _ = self._decoded(digests)
        return np.column_stack([digests, own]) if own.size else digests

    def _grow(self, dataset_id: str, digests: np.ndarray) -> None:
        """Add images to an entry, here and in the home's index.

        The note comes first: without it, a home that knows the images would charge a
        file instead of the server's ledger. If data sets of the home share notably many
        images with this one, the server gets the shared images for their entries too,
        and marks. So charges of other members see the overlap.
        """
        self._note(dataset_id)
        own, decoded = self._decoded(digests)
        if self._home is not None and len(own):
            now = [one for one in self._home.overlaps(own, dataset_id) if one.notable]
            known = [*now, *self._home.sharing(dataset_id)]
            for other in {one.dataset_id: one for one in known}.values():
                shared = self._home.has(other.dataset_id, own)
                self._note(other.dataset_id)
                if not self.knows(other.dataset_id):
                    partial = self.mark("partial", other.dataset_id)
                    self._keep_marks(other.dataset_id, [partial])
                super()._grow(other.dataset_id, digests[decoded][shared])
                self._keep_marks(dataset_id, [self._pair(dataset_id, other.dataset_id)])
        super()._grow(dataset_id, digests)
        if self.is_partial(dataset_id):
            self._keep_marks(dataset_id, [self.mark("whole", dataset_id)])
        if self._home is not None and len(own):
            self._home.add(dataset_id, own)

    def overlaps(
        self,
        digests: np.ndarray,
        but: str | None = None,
        parts: Sequence[np.ndarray] = (),
    ) -> list[Overlap]:
        """Return data sets with some of these images, in this index or the home's."""
        found = super().overlaps(digests, but, parts)
        own, _ = self._decoded(digests)
        if self._home is None or not len(own):
            return found
        every = {one.dataset_id: one for one in found}
        for other in self._home.overlaps(own, but):
            known = every.setdefault(other.dataset_id, other)
            every[other.dataset_id] = max(
                known, other, key=lambda one: (one.same, one.notable, one.shared)
            )
        return sorted(every.values(), key=Overlap.order)

    def _decoded(self, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the home's digests of images decoded here, and a mask of `digests`."""
        canonical = digests if digests.ndim == 1 else digests[:, 0]
        found = [self._at_home.get(one) for one in canonical.tolist()]
        known = np.array([one is not None for one in found], bool)
        return np.array([one for one in found if one is not None], np.uint64), known

    def _names(self) -> list[str]:
        with server.session(self._url) as connection:
            kept = select(self._table.c.dataset_id).distinct()
            return data_sets(connection.scalars(kept))

    def _kept(self, name: str) -> list[bytes]:
        table = self._table.c
        kept = select(table.digests).where(table.dataset_id == name)
        with server.session(self._url) as connection:
            return [*connection.scalars(kept)]

    def _keep(self, name: str, data: bytes) -> None:
        with server.session(self._url) as connection:
            connection.execute(
                self._table.insert().inline(), {"dataset_id": name, "digests": data}
            )

    def _append(self, name: str, known: np.ndarray, new: np.ndarray) -> None:
        """As in `ImageIndex`. The rows with the known digests stay."""
        self._write(name, new)

    def _read_key(self) -> bytes:
        """Return the server's secret, which the first process creates."""
        new = SECRET.insert().inline(), {"id": 1, "key": secrets.token_bytes(32)}
        with server.session(self._url) as connection:
            key = connection.scalar(select(SECRET.c.key))
        if key is not None:
            return key
        try:
            with server.session(self._url) as connection:
                connection.execute(*new)
        except IntegrityError:
            pass  # another process created it in the meantime
        return self._read_key()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the index of images, so that one process of the team can change it."""
        # in the order of proofs/people.md, "One store"
        with self._hold_home(), server.held(self._url) as check:
            yield
            check()


class TeamPeople(TeamImages):
    """Index the people of each data set of a declared id system, for a team.

    The server stores keyed digests. Members keep the key in a file, because whoever has
    both can test whether a given person is in a data set.

    Parameters
    ----------
    url : str
        The URL of the team's ledgers.
    folder : Path
        The folder of this machine's keys, one for each server.
    declaring : function
        As `ImageIndex.declaring`. Raises an error if members would not count charges of
        this home.
    sizes : Path, optional
        As `ImageIndex.sizes`, for the note of the home's store.
    """

    lock = "people"  # name of the server's lock

    def __init__(
        self,
        url: str,
        folder: Path,
        declaring: Callable[[], AbstractContextManager[None]],
        sizes: Path | None = None,
    ) -> None:
        super().__init__(url)
        self.sizes = sizes
        self._declaring = declaring
        self._table = PEOPLE
        self.root, self.folder = folder, folder / server.store_id(url)

    @contextmanager
    def declaring(self) -> Iterator[None]:
        """Block new charges of this home while `settle` binds it to the server."""
        with self._declaring():
            yield

    def _read_key(self) -> bytes:
        """Return this machine's copy of the key that the first member made.

        The entry ALIASES has no digests, only a seal by the key. With it, the other
        members see that a key exists, and check that their key is this one.

        Raises FormatError if this machine has no copy, or a different key.
        """
        home, path = ImageIndex(self.folder), self.folder / "key"
        if not path.exists() and (self._kept(ALIASES) or self._names()):
            raise FormatError(
                f"The key of the team's index of people is missing: {str(path)!r}. "
                "Copy this file from a member of the team who has it."
            )
        seal = home._seal(b"")
        if not self._kept(ALIASES):
            with server.held(self._url, "key") as check:
                if not self._kept(ALIASES):
                    self._check_entry(home)
                    check()
                    self._keep(ALIASES, seal)
        if {*self._kept(ALIASES)} != {seal}:
            raise self._of_another_key()
        return home._key()

    def _check_entry(self, home: ImageIndex) -> None:
        """Raise FormatError if an entry of an earlier version has a different key."""
        for name in self._names()[:1]:
            for data in self._kept(name):
                try:
                    home._read(name, data)
                except FormatError:
                    raise self._of_another_key() from None

    def _read(self, dataset_id: str, found: bytes) -> np.ndarray:
        try:
            return super()._read(dataset_id, found)
        except FormatError:
            raise self._of_another_key() from None

    def _of_another_key(self) -> FormatError:
        return FormatError(
            "The people on the team's server were recorded under another key than "
            f"{str(self.folder / 'key')!r}, or are damaged. Replace this file with "
            "that of the member of the team who recorded the people."
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the index of people, so that one process of the team can change it."""
        with server.held(self._url, self.lock) as check:
            yield
            check()
