"""Keep the file of a ledger: SQLite, append-only, durable, one writer at a time.

Nothing is charged here: `ledger` gives the tables their meaning. Whatever SQLite or the
disk refuses is one kind of error.
"""

import errno
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    Executable,
    Table,
    column,
    create_engine,
    exc,
    func,
    literal,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import StaticPool

from dphead.privacy.atomic_write import make_folder, sync
from dphead.privacy.ledger import server
from dphead.privacy.ledger.schema import (
    FITS,
    META,
    PROGRESS,
    SCHEMA,
    HeldLedger,
    LedgerError,
    LostAnswer,
)

MOVED = "moved"  # the fact that says where a ledger was moved to
IN_MEMORY = ":memory:"  # SQLite's name of a database that is no file
# What SQLite raises if a file or disk fails; the last is for damaged names.
_FAULTS = (exc.DBAPIError, sqlite3.Error, UnicodeDecodeError)
# Seconds to wait for another process to end its transaction. Chosen, not measured.
WRITE_PATIENCE, READ_PATIENCE = 30.0, 2.0
_BEGIN = {"write": ["BEGIN IMMEDIATE"], "read": ["BEGIN"], "single": []}
_HEADER = 100  # length in bytes of SQLite's file header (sqlite.org/fileformat2, 1.3)
# os.link raises one of these if the file system has no hard links.
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
_SCRIPT = "".join(f"{one.compile(dialect=sqlite.dialect())};" for one in SCHEMA)


_forks = [0]  # number of forks from the first process to this one
os.register_at_fork(after_in_child=lambda: _forks.append(_forks.pop() + 1))


def _process() -> tuple[int, int]:
    """Return the process id, which may be reused, and the number of forks before it."""
    return os.getpid(), _forks[0]


class LedgerFile:
    """Hold tables of fits, releases, their progress, facts fixed once, and seals.

    Parameters
    ----------
    path : str or Path, default ":memory:"
        As in `Ledger`.
    dataset_id : str or None, default None
        As in `Ledger`.
    read_only : bool, default False
        Whether to open an existing file and never write to it. So the file may belong
        to another user, and a writer is waited for only briefly.

    Raises
    ------
    LedgerError
        If the file cannot be opened, is not a sound SQLite file or belongs to another
        data set.
    """

    def __init__(
        self,
        path: str | Path = IN_MEMORY,
        dataset_id: str | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.path, self._process = str(path), _process()
        # raises LedgerError if a charge may no longer be made (`fit.ledgers.charging`)
        self.before_commit: Callable[[], None] = lambda: None
        self.dataset_id, self.url, self._db = dataset_id, None, None
        if server.is_on_server(path):
            self._open_on_server(self.path, dataset_id)
        else:
            self._open_file(path, read_only)
        if dataset_id is None:
            return
        kept = self.meta("dataset_id")
        if kept is None and not read_only:
            kept = self.set_once("dataset_id", dataset_id)
        # a server has no file that is missing: an empty ledger is a new one
        new = kept is None and self._db is None
        if kept != dataset_id and not new:
            raise LedgerError(
                f"the ledger must belong to this data set, got dataset_id={kept}. "
                f"The features say {dataset_id}: use their own ledger."
            )

    def _open_on_server(self, url: str, dataset_id: str | None) -> None:
        if not server.is_url(url):
            dataset_id = url.rpartition("/")[2]
        if not dataset_id:
            raise LedgerError(
                "a ledger on a server must be of a data set, got rows without an id. "
                "Fit a features file, or name an SQLite file with --ledger."
            )
        self.dataset_id, self.url = dataset_id, server.url_of(url)
        self._connection = server.connected(self.url)
        (store,) = self.first("SELECT id FROM dphead.store")
        # where a ledger is, without its host and user: it may be published
        self.path = f"{server.NAME}{store}/{dataset_id}"
        if not server.is_url(url) and url != self.path:
            raise LedgerError(
                f"a ledger must be on the server that made it, got {url} where "
                f"DPHEAD_LEDGER is {self.path}. Set DPHEAD_LEDGER to its own."
            )

    def _open_file(self, path: str | Path, read_only: bool) -> None:
        if self.path and (self.path != IN_MEMORY or not isinstance(path, str)):
            # Resolve links, so that a kept path finds the same file from another folder
            # and after a link has moved. The system must resolve them: by its text
            # alone, `link/..` would be another folder.
            self.path = os.path.realpath(path)
        if self.path == "":
            raise LedgerError(
                "the ledger must be a file, got path=''. SQLite would keep it nowhere: "
                "name a file, or ':memory:' to count this process's fits alone."
            )
        try:
            self.path.encode()  # else reports and screens could not show it
        except UnicodeEncodeError as error:
            raise LedgerError(
                f"the path of a ledger must be UTF-8 text, got {self.path!a}. Rename "
                "its folder or name another with --ledger."
            ) from error
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise LedgerError(
                f"a ledger must be a plain SQLite file, got path={self.path}, a "
                "folder, a pipe or a device. Name the file, or leave --ledger out."
            )
        try:
            if read_only:
                self._open_to_read()
            else:
                self._open_to_write()
        except OSError as error:
            raise LedgerError(
                "the ledger must be a readable, writable SQLite file, got "
                f"path={self.path} ({error}). Name another with --ledger, or set "
                "DPHEAD_HOME to a folder that is yours to write."
            ) from error
        except _FAULTS as error:
            raise self._unsound(error) from error
        engine = create_engine(
            "sqlite://", creator=lambda: self._db, poolclass=StaticPool
        )
        self._connection = engine.connect()

    def _open_to_read(self) -> None:
        _check_whole(Path(self.path))
        place = f"file:{quote(self.path)}?mode=ro"
        self._db = sqlite3.connect(
            place, uri=True, isolation_level=None, timeout=READ_PATIENCE
        )
        self._db.execute("SELECT 1 FROM seals").fetchone()

    def _open_to_write(self) -> None:
        if self.path != IN_MEMORY:
            _make_whole(Path(self.path))
        # SQLite does not take an absolute path for a URI.
        self._db = sqlite3.connect(
            self.path, isolation_level=None, timeout=WRITE_PATIENCE
        )
        self._db.execute("PRAGMA synchronous=EXTRA")
        # Without this, REPLACE deletes rows without running the triggers.
        self._db.execute("PRAGMA recursive_triggers=ON")
        self._db.executescript(_SCRIPT)

    def meta(self, key: str) -> str | None:
        """Return a fact that is fixed once, or None if it is not fixed yet.

        Parameters
        ----------
        key : str
            "dataset_id", "relation", "accounting" ("gdp" or "rdp"), "group_cap" (JSON:
            a number, or null if the unit of privacy is a row), or "budget" (JSON).
        """
        row = self.first(select(META.c.value).where(META.c.key == key))
        return row and row[0]

    def facts(self) -> dict[str, str]:
        """Return every fact that is fixed."""
        return dict(map(tuple, self.query(select(META.c.key, META.c.value))))

    def set_once(self, key: str, value: str) -> str:
        """Fix a fact as `value` unless a value was fixed before; return the fact."""
        begun = self._connection.in_transaction()
        with nullcontext() if begun else self.transaction():
            absent = ~select(META.c.key).where(META.c.key == key).exists()
            fact = select(literal(key), literal(value)).where(absent)
            self.query(META.insert().from_select(["key", "value"], fact))
            return self.meta(key) or value

    def count_fits(self) -> int:
        """Return how many fits were charged."""
        return self.first(select(func.count()).select_from(FITS))[0]

    def structure(self) -> str:
        """Return "ok", or what is wrong with a file: SQLite compares its indexes."""
        if self._db is None:
            return "ok"  # a server has checksums and tools of its own
        return self.first("PRAGMA integrity_check(1)")[0]

    def add(self, table: Table, *rows: dict[str, Any]) -> None:
        """Add rows to a table."""
        if rows:
            self.query(table.insert(), rows)

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """Return a table's rows in the order in which they were added.

        The numbers of `progress` and `fits` are left out: another ledger numbers them.
        """
        order = [table.c.id] if "id" in table.c else []
        order = [column("rowid")] if table is FITS else order
        kept = select(*(one for one in table.c if one is not PROGRESS.c.id))
        return [dict(row._mapping) for row in self.query(kept.order_by(*order))]

    def query(self, statement: Executable | str, rows: Any = None) -> list[Any]:
        """Return a statement's rows; raise LedgerError if the file or disk fails.

        Outside a transaction, the statement is a transaction of its own.
        """
        if isinstance(statement, str):
            statement = text(statement)
        begun = self._connection.in_transaction()
        with nullcontext() if begun else self._begun("single"), self._one_error():
            found = self._connection.execute(statement, rows)
            # Rows are read here, since a damaged page shows only when it is read.
            return [*found.all()] if found.returns_rows else []

    def first(self, statement: Executable | str) -> Any:
        """Return the first row that a statement finds, or None."""
        return next(iter(self.query(statement)), None)

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        """Raise LedgerError for what the file, the disk or the server refuses."""
        if self._db is None:
            with server.one_error():
                yield
            return
        try:
            yield
        except exc.IntegrityError:
            raise
        except _FAULTS as error:
            raise self._unsound(error) from error

    def _unsound(self, error: Exception) -> LedgerError:
        """Return the error for what is wrong with the file, by SQLite's code."""
        error = getattr(error, "orig", error)  # SQLite's own, without the statement
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without its detail
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return HeldLedger(
                f"a ledger must be free, got path={self.path} held by another process. "
                "Nothing was charged: wait for that process or end it, then run this "
                "command again."
            )
        if kind in (
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_CANTOPEN,
        ):
            return LedgerError(
                "a ledger must be an SQLite file that you may read and write, in a "
                f"folder that you may write, got path={self.path} ({error}). Change "
                "their permissions, or ask their owner to."
            )
        if kind in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return LedgerError(
                "a ledger must be on a disk that takes its pages, got "
                f"path={self.path} ({error}). Make room or mend the disk, then run "
                "this command again."
            )
        return LedgerError(
            f"the ledger must be a sound SQLite file, got path={self.path} ({error}). "
            "Look at the file before you use a copy of it: a copy does not know later "
            "fits."
        )

    @contextmanager
    def transaction(self, kept: Callable[[], bool] | None = None) -> Iterator[None]:
        """Run a block as one transaction: everything or nothing, one at a time.

        Therefore two processes cannot both pass the budget check. Raises LedgerError in
        a process that was forked off: SQLite forbids it to use this connection.

        Parameters
        ----------
        kept : callable, optional
            Return whether the ledger holds what the block wrote. It is asked on a new
            connection if a server's answer to COMMIT is lost. It is asked under the
            lock, which the lost transaction holds until it ended, so its answer is
            final.

        Raises
        ------
        LostAnswer
            If it cannot be known whether a server kept the transaction.
        """
        try:
            with self._begun("write"):
                place = None
                with suppress(LedgerError):  # damage is found by who looks for it
                    place = self.meta(MOVED)
                if place is not None:
                    raise LedgerError(
                        "a ledger must be used where it is, got one that was moved to "
                        f"{place}. Set DPHEAD_LEDGER to that server's URL."
                    )
                yield
                self.before_commit()
            return
        except LostAnswer as lost:
            if kept is None:
                raise
            try:
                with self._begun("write"):
                    found = kept()
            except LedgerError:
                raise lost from None
        if not found:
            raise LedgerError(
                "a team ledger must be reachable, got a connection that was lost. The "
                "server kept nothing of this step: run this command again."
            )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Keep one state of the ledger for all queries, whatever others charge."""
        begun = self._connection.in_transaction()
        with nullcontext() if begun else self._begun("read"):
            yield

    @contextmanager
    def _begun(self, kind: str) -> Iterator[None]:
        """Run a block in a transaction: "write", "read", or "single" (a statement)."""
        if _process() != self._process and (kind == "write" or self._db is None):
            raise LedgerError(
                "a ledger must be used in the process that opened it, got "
                f"process={os.getpid()}. Process {self._process[0]} opened it: open a "
                "file again here, and make no fork of a ledger in memory."
            )
        with self._one_error():
            transaction = self._connection.begin()
        try:
            if self._db is None:
                assert self.dataset_id is not None
                statements = server.beginning(kind, self.dataset_id)
            else:
                statements = _BEGIN[kind]
            for statement in statements:
                self.query(statement)
            yield
            with self._one_error(), self._lost_answer(kind):
                transaction.commit()
        except BaseException:
            with suppress(*_FAULTS):  # the first error is the one to be seen
                transaction.rollback()
                if self._db is not None:
                    self._db.rollback()  # SQLAlchemy: not after a COMMIT that failed
            raise

    @contextmanager
    def _lost_answer(self, kind: str) -> Iterator[None]:
        """Raise LostAnswer if a server does not say what became of a COMMIT."""
        try:
            yield
        except exc.DBAPIError as error:
            if self._db or kind != "write" or server.is_settled(error):
                raise
            raise LostAnswer(
                "a server must say whether it kept a charge, got no answer. It is "
                "charged at most once: run the same command again, which finds it by "
                "its id, or see dphead ledger show."
            ) from None

    def close(self) -> None:
        """Close the file or the connection."""
        self._connection.close()
        if self._db is not None:
            self._db.close()


def _check_whole(path: Path) -> None:
    """Raise LedgerError for a file shorter than SQLite's header.

    SQLite would take it for an empty ledger.
    """
    size = path.stat().st_size
    if path.is_file() and size < _HEADER:
        raise LedgerError(
            f"the ledger must be a whole SQLite file, got {path=!s} of {size} "
            "bytes. Put back a copy that holds all its fits."
        )


def _make_whole(path: Path) -> None:
    """Make a ledger without fits, readable only by its owner, unless one exists.

    It gets its name when all of it is on the disk. A shorter file was therefore cut
    (`_check_whole`).
    """
    if path.exists():
        _check_whole(path)
        return
    journal = Path(f"{path}-journal")
    # SQLite would write the journal's pages into the new file.
    if journal.exists() and not path.exists():
        raise LedgerError(
            f"a ledger must be beside its journal, got {journal=!s} alone. "
            "Put the ledger back."
        )
    make_folder(path.parent)
    new = path.with_name(f".{uuid.uuid4().hex}.new")
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        db = sqlite3.connect(new, isolation_level=None)
        with closing(db):
            db.execute("PRAGMA journal_mode=MEMORY")
            db.executescript(f"BEGIN; {_SCRIPT} COMMIT;")
        with suppress(FileExistsError):  # another process made it meanwhile
            _link(new, path)
    finally:
        new.unlink()
    sync(path.parent)


def _link(new: Path, path: Path) -> None:
    """Give a new file its name; raise FileExistsError if the name is taken.

    A rename would replace the other file. Raises LedgerError if the file system has no
    hard links.
    """
    try:
        os.link(new, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise LedgerError(
            "a new ledger must lie on a file system with hard links, got "
            f"path={path!s} ({error.strerror}). Name a place on another disk with "
            "--ledger, or set DPHEAD_HOME to one for all ledgers."
        ) from error
