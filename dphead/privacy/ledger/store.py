"""Keep a ledger's tables in an SQLite file: append-only, durable, one writer at a time.

This module reads and writes tables, and `ledger` charges fits. All errors of SQLite and
of the disk become LedgerError.
"""

import os
import sqlite3
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from sqlalchemy import (
    Executable,
    Table,
    bindparam,
    column,
    create_engine,
    exc,
    func,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import StaticPool

from dphead.privacy.atomic_write import (
    dangling_link,
    make_folder,
    names_before_links,
    sync,
)
from dphead.privacy.ledger import server
from dphead.privacy.ledger.schema import (
    FITS,
    META,
    PROGRESS,
    SEALS,
    STATEMENTS,
    HeldLedger,
    LedgerError,
    LostAnswer,
)

MOVED = "moved"  # key of the place that a ledger was moved to
AWAITS = "awaits"  # key of a digest of the ledger that moves to this one
MERGED = "merged"  # key of the data set that a closed ledger was merged into
GROUPS = "groups"  # prefix of the key of a digest of groups; a key's name follows
PEOPLE = "people"  # key of the declared id system, stored as JSON
INTO = "into"  # key of the place into which a ledger will be merged
COUNTS = "counts"  # prefix of the key of a merged data set; its id follows
JOINS = "joins"  # prefix of the key of a merge that began; its number follows
JOINED = "joined"  # prefix of the key of a finished merge; its number follows
IDENTITY = "identity"  # key of a random id of the file, kept with its note
SUM = "sum"  # key in a ledger whose total is a plain sum (`Ledger.is_sum`)
IN_MEMORY = ":memory:"  # SQLite's name of a database in memory
# Errors of SQLite if a file or a disk fails. The last one means that a damaged file has
# text that is not UTF-8.
_FAULTS = (exc.DBAPIError, sqlite3.Error, UnicodeDecodeError)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# Seconds to wait for another process to end its transaction. Chosen, not measured.
WRITE_PATIENCE, READ_PATIENCE = 30.0, 2.0
_BESIDE = ("-journal", "-wal", "-shm")  # names of SQLite's files beside the ledger
_BEGIN = {"write": ["BEGIN IMMEDIATE"], "read": ["BEGIN"], "single": []}
_HEADER = 100  # length in bytes of SQLite's file header (sqlite.org/fileformat2, 1.3)
_SCRIPT = "".join(f"{one.compile(dialect=sqlite.dialect())};" for one in STATEMENTS)


# Build statements once: SQLAlchemy takes longer than SQLite takes to run them.
_FACTS = select(META.c.key, META.c.value)
_FACT = select(META.c.value).where(META.c.key == bindparam("fact"))
# A target without seals awaits a move: one transaction copies all entries and seals.
_ARRIVING = (META.c.key == AWAITS) & ~select(SEALS.c.id).exists()
_CLOSING = _FACTS.where(META.c.key.in_((MOVED, MERGED)) | _ARRIVING)

forks = [0]  # number of forks from the first process to this one
os.register_at_fork(after_in_child=lambda: forks.append(forks.pop() + 1))


def this_process() -> tuple[int, int]:
    """Return the process id, which may be reused, and the number of forks before it."""
    return os.getpid(), forks[0]


class LedgerFile:
    """Hold tables of fits, releases, their progress, values fixed once, and seals.

    Parameters
    ----------
    path : str or Path, default ":memory:"
        As in `Ledger`.
    dataset_id : str or None, default None
        As in `Ledger`.
    read_only : bool, default False
        As in `Ledger`. The file may belong to another user, and a writer is waited for
        only briefly.

    Raises
    ------
    LedgerError
        As in `Ledger`.
    """

    def __init__(
        self,
        path: str | Path = IN_MEMORY,
        dataset_id: str | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        # A fork or another process must not charge with this object (`_begun`).
        self.path, self._process = str(path), this_process()
        # raises LedgerError to forbid a charge (`fit.ledgers.charging`)
        self.before_commit: Callable[[], None] = lambda: None
        self.dataset_id, self.url, self._db = dataset_id, None, None
        # names of the file before links were followed: it may be noted under them
        self.links: tuple[str, ...] = ()
        # The path decides between a server and a file. The SQL is the same for both.
        if server.is_on_server(path):
            self._open_on_server(self.path, dataset_id)
        else:
            self._open_file(path, read_only)
        if dataset_id is None:
            return
        # A ledger belongs to the first data set that opens it to write.
        kept = self.meta("dataset_id")
        if kept is None and not read_only:
            kept = self.set_once("dataset_id", dataset_id)
        # On a server, no file can be missing, so an empty ledger is a new one. A full
        # disk can leave a file without a data set.
        new = kept is None and (self._db is None or not self.count_fits())
        if kept != dataset_id and not new:
            raise LedgerError(
                f"The ledger {self.path} belongs to "
                f"{f'data set {kept}' if kept else 'no data set'}, but the features "
                f"belong to data set {dataset_id}. Drop --ledger (`ledger`) to use "
                "the ledger of the features' data set."
            )

    def __reduce__(self) -> NoReturn:
        raise LedgerError(
            f"The open ledger {self.path} cannot be copied or pickled, because a copy "
            "could answer one charge twice. Pass its path as `ledger`. A ledger in "
            "memory counts in one process only."
        )

    def _open_on_server(self, url: str, dataset_id: str | None) -> None:
        if not server.is_url(url):
            named = url.rpartition("/")[2]
            self._check_named(url, named, dataset_id)
            dataset_id = named
        if not dataset_id:
            raise LedgerError(
                "A server has a ledger for each data set, so its URL alone names none "
                "of them. Pass the ledger's name, which `dphead ledger show` prints, "
                "or fit a features file."
            )
        self.dataset_id, self.url = dataset_id, server.url_of(url)
        self._connection = server.connected(self.url)
        (store,) = self.first("SELECT id FROM dphead.store")
        # name without host and user, because reports publish it
        self.path = f"{server.NAME}{store}/{dataset_id}"
        if not server.is_url(url) and url != self.path:
            raise LedgerError(
                f"The ledger {url} is on another server: DPHEAD_LEDGER leads to "
                f"{self.path}. Set DPHEAD_LEDGER to the URL of the ledger's server."
            )

    @staticmethod
    def _check_named(place: str, named: str, dataset_id: str | None) -> None:
        """Refuse the name of a server's ledger if it is not the data set's id.

        Other members of the team look for a ledger under the data set's id alone.
        """
        if dataset_id not in (None, named):
            raise LedgerError(
                f"The ledger {place} is not that of the features' data set "
                f"{dataset_id}. Drop --ledger (`ledger`) to use the ledger of that "
                "data set."
            )

    def _open_file(self, path: str | Path, read_only: bool) -> None:
        if self.path != IN_MEMORY or not isinstance(path, str):
            # Resolve links, so that a kept path finds the same file from another folder
            # and after a link has moved. The system must resolve them: by its text
            # alone, `link/..` would be another folder.
            path = os.path.expanduser(path)
            self.path = os.path.realpath(path)
            self.links = names_before_links(path)
            # A new file at the link's target would not count the fits of the ledger
            # that is missing.
            if (link := dangling_link(Path(path))) is not None:
                raise LedgerError(
                    f"The ledger {path} cannot be found, because the link {link} leads "
                    "to nothing. The ledger may hold fits. Nothing was charged, set or "
                    "merged. Mount the ledger's volume or restore a copy that holds "
                    "all its fits and releases, then run this command again. For a new "
                    "ledger, remove the link first."
                )
        try:
            self.path.encode()  # raises for a path that reports and screens cannot show
        except UnicodeEncodeError as error:
            raise LedgerError(
                f"The ledger's path {self.path!a} must be valid UTF-8. Rename the "
                "folder or file, or type the path of another ledger."
            ) from error
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise LedgerError(
                f"{self.path} is a folder, a pipe or a device, not an SQLite file. "
                "Type the path of a ledger file."
            )
        try:
            self._check_beside()
            if read_only:
                self._open_to_read()
            else:
                self._open_to_write()
            engine = create_engine(
                "sqlite://", creator=lambda: self._db, poolclass=StaticPool
            )
            self._connection = engine.connect()
            if not read_only:
                self._prepare()
        except OSError as error:
            raise LedgerError(
                f"{self.path} cannot be opened as a ledger ({error}). Name another "
                "file, such as with --ledger, or set DPHEAD_HOME to a writable folder "
                "on a file system that supports hard links."
            ) from error
        except _FAULTS as error:
            raise self._unsound(error) from error

    def _check_beside(self) -> None:
        """Raise LedgerError if a file of SQLite next to the ledger leads elsewhere.

        SQLite opens its journals itself (`_BESIDE`), and writes through a link.
        """
        for ending in _BESIDE if self.path != IN_MEMORY else ():
            with suppress(FileNotFoundError):
                found = os.lstat(self.path + ending)
                regular = stat.S_ISREG(found.st_mode)
                what = "a folder, a pipe or a device in the place of a file. Remove it."
                if regular or stat.S_ISLNK(found.st_mode):
                    what = (
                        "a link or a second name of a file, so SQLite could write to "
                        "another file. If you or a backup program linked the ledger's "
                        "journal here, replace the link by a copy of the journal. "
                        "Otherwise remove it."
                    )
                if not regular or found.st_nlink > 1:
                    raise LedgerError(f"{self.path}{ending} is {what}")

    def _open_to_read(self) -> None:
        _check_whole(Path(self.path))
        # Read-only: reading must not make a journal or take a lock for writing.
        try:
            self._db = self._look("ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            # A process died in a transaction. Only a connection that may write can roll
            # the transaction back, which SQLite does before it reads.
            self._look("rw").close()
            self._db = self._look("ro")

    def _look(self, mode: str) -> sqlite3.Connection:
        """Return a connection in an SQLite mode ("ro" or "rw"), after a first read."""
        place = f"file:{quote(self.path)}?mode={mode}"
        db = sqlite3.connect(
            place, uri=True, isolation_level=None, timeout=READ_PATIENCE
        )
        db.execute("SELECT 1 FROM seals").fetchone()
        return db

    def _open_to_write(self) -> None:
        if self.path != IN_MEMORY:
            _make_whole(Path(self.path))
        # SQLite does not take an absolute path for a URI.
        self._db = sqlite3.connect(
            self.path, isolation_level=None, timeout=WRITE_PATIENCE
        )

    def _prepare(self) -> None:
        """Set the options of SQLite that the proofs need, and make missing tables.

        Call it after SQLAlchemy has connected: a program can have a listener for all
        engines, which changes these settings.
        """
        db = self._db
        assert db is not None
        db.execute("PRAGMA journal_mode=DELETE")
        # EXTRA also syncs the folder after the journal is removed (proofs/ledger.md).
        db.execute("PRAGMA synchronous=EXTRA")
        # Without this, REPLACE deletes rows without running the triggers.
        db.execute("PRAGMA recursive_triggers=ON")
        db.executescript(_SCRIPT)

    def meta(self, key: str) -> str | None:
        """Return a value that is fixed once, or None if it is not fixed yet.

        Parameters
        ----------
        key : str
            Such as "dataset_id", "relation", "accounting" ("gdp" or "rdp"), "group_cap"
            (JSON: the first fit's cap, or null if the unit of privacy is a row), or
            "budget" (JSON).
        """
        row = self.first(_FACT, {"fact": key})
        return row and row[0]

    def facts(self) -> dict[str, str]:
        """Return all fixed values by key."""
        return dict(map(tuple, self.query(_FACTS)))

    def set_once(self, key: str, value: str) -> str:
        """Fix a key's value unless it was fixed before, and return the fixed value."""
        if self.url and self.dataset_id and key == "dataset_id":
            self._check_named(self.path, self.dataset_id, value)
        begun = self._connection.in_transaction()
        with nullcontext() if begun else self.transaction():
            # Under the transaction's lock, so no other process fixes it meanwhile.
            kept = self.meta(key)
            if kept is None:
                self.add(META, {"key": key, "value": value})
            return kept or value

    def check_open(self, but: str | None = None) -> None:
        """Raise LedgerError if the ledger takes no charges.

        Such a ledger was moved or merged (MOVED), or waits for the charges of a ledger
        that moves to it (AWAITS). `but` names the one of these states that is accepted.
        """
        found = dict(map(tuple, self.query(_CLOSING)))
        if MOVED in found and but != MOVED:
            todo = "Set DPHEAD_LEDGER to the URL of that server, and drop --ledger."
            if MERGED in found:
                todo = "Repeat the command `dphead ledger people` that merged it."
            raise LedgerError(f"This ledger was moved to {found[MOVED]}. {todo}")
        if AWAITS in found and but != AWAITS:
            raise LedgerError(
                "A member of the team moves a ledger here, and its charges are not "
                "here yet. Nothing was charged or set. Ask that member to repeat the "
                "interrupted command `dphead ledger move`."
            )

    def joining(self) -> list[str]:
        """Return the data sets with an unfinished merge into this ledger.

        Closed ledgers of these data sets may have fits that are not here yet, so the
        total of this ledger is unknown.
        """
        facts, begin = self.facts(), f"{JOINS} "
        begun = {k.removeprefix(begin): k for k in facts if k.startswith(begin)}
        # The end of a merge writes both. With the second one, a ledger that lacks the
        # fits lists the closed ledgers that have them (`fit.ledgers`).
        return [
            facts[k]
            for n, k in begun.items()
            if not {f"{JOINED} {n}", f"{COUNTS} {facts[k]}"} <= facts.keys()
        ]

    def check_joined(self, leaves: bool = False) -> None:
        """Raise LedgerError if a merge of this ledger, or into it, is not finished.

        With `leaves`, it may be a merge of this ledger.
        """
        if found := self.joining():
            raise LedgerError(
                f"A merge of data set {found[0]} into this ledger is not finished, so "
                "the sum of all fits is unknown. Nothing was charged or set. Repeat "
                "the interrupted command `dphead ledger people` of its features files."
            )
        if not leaves and (into := self.meta(INTO)) and self.meta(MERGED) is None:
            raise LedgerError(
                f"A merge of this ledger into {into} is not finished. Nothing was "
                "charged or set. Repeat the interrupted command `dphead ledger people`."
            )

    def count_fits(self) -> int:
        """Return how many fits were charged."""
        return self.first(select(func.count()).select_from(FITS))[0]

    def fit_ids(self) -> set[str]:
        """Return the ids of all charged fits."""
        return {fit_id for (fit_id,) in self.query(select(FITS.c.fit_id))}

    def structure(self) -> str:
        """Return "ok", or the problem that SQLite's integrity check finds."""
        if self._db is None:
            return "ok"  # a server has checksums and tools of its own
        return self.first("PRAGMA integrity_check(1)")[0]

    def add(self, table: Table, *rows: dict[str, Any]) -> None:
        """Add rows to a table."""
        if rows:
            self.query(table.insert(), rows)

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """Return a table's rows as dicts.

        Fits, states and seals are in the order in which they were added, releases by
        fit and number, and fixed values in any order. The row numbers of `progress` and
        `fits` are left out: each ledger has its own.
        """
        order = [table.c[key] for key in ("id", "fit_id", "sequence") if key in table.c]
        order = [column("rowid")] if table is FITS else order
        kept = select(*(one for one in table.c if one is not PROGRESS.c.id))
        return [dict(row._mapping) for row in self.query(kept.order_by(*order))]

    def query(self, statement: Executable | str, rows: Any = None) -> list[Any]:
        """Run a statement and return its rows.

        Outside a transaction, the statement is one transaction. Raises LedgerError if
        the file, the disk or the server fails, and IntegrityError if the statement
        breaks a rule of a table.
        """
        if isinstance(statement, str):
            statement = text(statement)
        # A statement outside a transaction is a transaction by itself.
        begun = self._connection.in_transaction()
        with nullcontext() if begun else self._begun("single"), self._one_error():
            # Values are passed beside the statement, never in its text.
            found = self._connection.execute(statement, rows)
            # Rows are read here, since a damaged page shows only when it is read.
            return [*found.all()] if found.returns_rows else []

    def first(self, statement: Executable | str, values: Any = None) -> Any:
        """Return the first row that a statement finds, or None without rows."""
        return next(iter(self.query(statement, values)), None)

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        """Raise LedgerError for errors of the file, the disk or the server.

        An IntegrityError passes: the statement breaks a rule of a table.
        """
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
        """Return the LedgerError that describes a failure of SQLite."""
        kind = _kind_of(error)
        # show SQLite's own error, without the statement
        error = getattr(error, "orig", error)
        if isinstance(error, sqlite3.ProgrammingError) and "thread" in str(error):
            return LedgerError(
                f"Another thread opened the ledger {self.path}. Open it again in this "
                "thread, or pass its path as `ledger`. Threads cannot share a ledger "
                "in memory."
            )
        if kind in _BUSY:
            return HeldLedger(
                f"Another process holds the ledger {self.path}. Wait for that process "
                "or end it, then run this command again."
            )
        if kind in (
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_CANTOPEN,
        ):
            return LedgerError(
                f"You need permission to read and write the ledger {self.path} and to "
                f"write to its folder ({error}). Change their permissions, or ask "
                "their owner to do so."
            )
        if kind in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return LedgerError(
                f"The disk of the ledger {self.path} is full or failed ({error}). Free "
                "some space or repair the disk, then run this command again."
            )
        return LedgerError(
            f"The ledger {self.path} is not a sound SQLite file ({error}). Restore a "
            "copy that holds all its fits and releases, because an older copy would "
            "not count the later ones. If the file is not a ledger, type the path of "
            "another file."
        )

    @contextmanager
    def transaction(
        self, kept: Callable[[], bool] | None = None, but: str | None = None
    ) -> Iterator[None]:
        """Run a block as one transaction, which is written completely or not at all.

        Transactions run one at a time, so two processes cannot both pass the budget
        check. Raises LedgerError in a forked process, because a fork must not use its
        parent's connection.

        Parameters
        ----------
        kept : callable, optional
            Function that returns whether the ledger holds what the block wrote. It is
            called in a new transaction if COMMIT failed without saying whether it wrote
            the block. On a server, the lost transaction holds the lock until it ends.
            The function is called under this lock, so its answer is final.
        but : str, optional
            As in `check_open`.

        Raises
        ------
        LedgerError
            If the ledger takes no charges (`check_open`) or cannot be written, or if
            `before_commit` raises it. Nothing was written then.
        LostAnswer
            If it cannot be known whether the ledger kept the transaction.
        """
        try:
            with self._begun("write"):
                self.check_open(but)
                yield
                self.before_commit()
            return
        # The transaction may be written although COMMIT failed, so look for it.
        except LostAnswer as lost:
            if kept is None:
                raise
            try:
                with self._begun("write"):
                    found = kept()
                self._sync_folder()
            except (LedgerError, OSError):
                raise lost from None
            if not found:
                raise HeldLedger(f"{lost.cause} Run this command again.") from None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the ledger in a block, while other processes may charge."""
        begun = self._connection.in_transaction()
        with nullcontext() if begun else self._begun("read"):
            yield

    @contextmanager
    def _begun(self, kind: str) -> Iterator[None]:
        """Run a block in a transaction: "write", "read", or "single" (a statement).

        Raises LedgerError if a forked process writes or uses a server, and before a
        write if `_check_beside` raises it.
        """
        if this_process() != self._process and (kind == "write" or self._db is None):
            raise LedgerError(
                f"Process {self._process[0]} opened this ledger, and process "
                f"{os.getpid()} cannot use it. Open the ledger again in this process. "
                "A ledger in memory cannot be shared."
            )
        if kind == "write" and self._db is not None:
            self._check_beside()
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
            with suppress(*_FAULTS):  # report the first error, not the rollback's
                transaction.rollback()
                if self._db is not None:
                    # SQLAlchemy does not roll back after a failed COMMIT
                    self._db.rollback()
            raise

    @contextmanager
    def _lost_answer(self, kind: str) -> Iterator[None]:
        """Raise LostAnswer if a failed COMMIT may have written its transaction."""
        try:
            yield
        except exc.DBAPIError as error:
            if kind != "write":
                raise
            if self._db is None:
                settled = server.is_settled(error)
                cause = "The connection to the team ledger was lost."
                if not error.connection_invalidated:
                    cause = "The team ledger's server did not confirm COMMIT."
            else:
                # If SQLite was busy, COMMIT waited for readers and wrote nothing.
                settled = _kind_of(error) in _BUSY
                cause = f"The disk of the ledger {self.path} is full or failed "
                cause += f"({error.orig}). Free some space or repair the disk."
            if settled:
                raise
            raise LostAnswer(cause) from None

    def _sync_folder(self) -> None:
        """Make the removal of a journal durable.

        SQLite may have failed at this step.
        """
        if self._db is not None and self.path != IN_MEMORY:
            sync(Path(self.path).parent)

    def close(self) -> None:
        """Close the file or the connection."""
        server.close(self._connection)
        if self._db is not None:
            self._db.close()


def _kind_of(error: Exception) -> int:
    """Return SQLite's primary result code of an error; 0 for other errors."""
    return getattr(getattr(error, "orig", error), "sqlite_errorcode", 0) & 0xFF


def _check_whole(path: Path) -> None:
    """Raise LedgerError for a file shorter than SQLite's header.

    SQLite would take an empty file for a ledger without fits.
    """
    size = path.stat().st_size
    if path.is_file() and size < _HEADER:
        raise LedgerError(
            f"{path} has {size} bytes and is not a whole SQLite file. If it was a "
            "ledger, restore a copy that holds all its fits and releases. Otherwise, "
            "type the path of another file."
        )


def _make_whole(path: Path) -> None:
    """Make a ledger without fits, readable only by its owner, unless one exists.

    The file gets its name only when all of it is on the disk. So a shorter file was
    damaged later (`_check_whole`). Raises LedgerError for such a file, and for a
    journal without its ledger.
    """
    if path.exists():
        _check_whole(path)
        # The last writer may have died before it synced the removal of its journal.
        sync(path.parent)
        return
    # A journal alone means that its ledger was removed or not restored.
    journal = Path(f"{path}-journal")
    # SQLite would write the journal's pages into the new file.
    if journal.exists() and not path.exists():
        raise LedgerError(
            f"The journal {journal} exists, but its ledger {path} is missing. Move "
            "the ledger back to this path, next to its journal."
        )
    # The folder's own name must be durable before the ledger's.
    make_folder(path.parent)
    # A crash leaves at most a file under another name, never half a ledger.
    new = path.with_name(f".{uuid.uuid4().hex}.new")
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        db = sqlite3.connect(new, isolation_level=None)
        with closing(db):
            # The file does not have its final name yet, so no process opens it.
            db.execute("PRAGMA journal_mode=MEMORY")
            db.executescript(f"BEGIN; {_SCRIPT} COMMIT;")
        with suppress(FileExistsError):  # another process made it meanwhile
            # a rename would replace the file of that process
            os.link(new, path)
    finally:
        new.unlink()
    sync(path.parent)
