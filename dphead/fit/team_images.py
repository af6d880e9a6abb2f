"""Keep the index of images on the team's server, for all machines of the team."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dphead_extract.index import ALIASES, ImageIndex
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from dphead.privacy.ledger import server
from dphead.privacy.ledger.server import IMAGES, SECRET


class TeamImages(ImageIndex):
    """Index the images of each data set that a team has extracted.

    Rows are never changed or deleted, and all rows of a data set count. The server
    stores the key.

    Parameters
    ----------
    url : str
        The URL of the team's ledgers.
    """

    def __init__(self, url: str) -> None:
        super().__init__(Path(server.NAME))  # no folder: a name for messages
        self._url = url

    def _names(self) -> list[str]:
        with server.session(self._url) as connection:
            ids = [*connection.scalars(select(IMAGES.c.dataset_id).distinct())]
        return [name for name in ids if name != ALIASES]

    def _kept(self, name: str) -> list[bytes]:
        kept = select(IMAGES.c.digests).where(IMAGES.c.dataset_id == name)
        with server.session(self._url) as connection:
            return [*connection.scalars(kept)]

    def _keep(self, name: str, data: bytes) -> None:
        with server.session(self._url) as connection:
            connection.execute(
                IMAGES.insert().inline(), {"dataset_id": name, "digests": data}
            )

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
            pass  # another process made it meanwhile
        return self._read_key()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with server.held(self._url) as check:
            yield
            check()
