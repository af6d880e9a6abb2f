"""Keep the ledgers of a team's data sets on one PostgreSQL server.

A ledger's tables are the same as in a file, with a further column for the data set.
Clients see these tables through views that show the rows of one data set. So a ledger
runs the same SQL statements in a file and on a server. Messages never name the server
or its users. They do not quote the driver's messages, because these contain such names.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Engine,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    exc,
    make_url,
    text,
)
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateIndex, CreateTable

from dphead.privacy.ledger.schema import (
    FITS,
    PROGRESS,
    TABLES,
    HeldLedger,
    LacksRight,
    LedgerError,
)

NAME = "postgresql:"  # prefix of the name of a ledger on a server, and of its URL
# Match a ledger's name, which has the ids of its server and its data set.
_NAMED = re.compile(NAME + r"[0-9a-f-]{36}/[A-Za-z0-9_-]{1,128}")
# Matches mistyped server URLs: a different scheme or spelling, blanks before the URL, a
# `Path` of a URL, a host without a scheme, or libpq's `password=`.
_NO_PATH = re.compile(
    r"\s*[a-z][a-z0-9+.-]*:/|\s*(postgres(ql)?|pgsql)[+:]|.*://|[^/]*:[^/]*@"
    r"|.*\bpassword\s*=",
    re.IGNORECASE | re.DOTALL,
)
VIEWS, _ROWS = "dphead", "dphead_rows"  # schemas: clients' views, and their tables
# Seconds to connect, to wait for another charge, and until a silent server counts as
# lost. Chosen, not measured.
_CONNECT, WAIT, _SILENT = 10, 30, 30
_ARGUMENTS = {
    "connect_timeout": _CONNECT,
    "keepalives_idle": _SILENT // 3,
    "keepalives_interval": _SILENT // 6,
    "tcp_user_timeout": 1000 * _SILENT,
    "prepare_threshold": None,  # a pooler may change the server between transactions
    # connect to the primary only, because a standby may lack the last charges
    "target_session_attrs": "primary",
}
_TEXT = Text(collation="C")  # sorted by bytes, whatever the system's locale is
# The index of images (fit/team_images.py): digests of each data set, and their key.
_INDEX = MetaData(schema=VIEWS)
IMAGES = Table(
    "images",
    _INDEX,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("dataset_id", _TEXT, nullable=False, index=True),
    Column("digests", LargeBinary, nullable=False),
)
# The index of people (`fit.team_images`): keyed digests, without their key.
PEOPLE = IMAGES.to_metadata(_INDEX, name="people")
SECRET = Table(
    "secret",
    _INDEX,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True),
    Column("key", LargeBinary, nullable=False),
)
# Each setting ends with its transaction, so that a pooler cannot hand it to another
# client, and none depends on the role's defaults. Names mean PostgreSQL's own
# functions, not a user's. Seals need exact floats. A charge may take longer than a
# role's timeout, and a timeout at COMMIT could answer before the standby that COMMIT
# waits for.
_FIRST = """
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL extra_float_digits = 1;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL statement_timeout = 0
"""
# A charge must be on the disk of the server, and of standbys that it waits for, when
# COMMIT is answered.
_SETTINGS = """
SELECT set_config('dphead.dataset_id', :dataset_id, true),
    set_config('lock_timeout', :wait, true),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)
"""
LOCK_STATEMENTS = """
SELECT pg_catalog.pg_advisory_xact_lock(
    pg_catalog.hashtextextended(CAST(:lock AS pg_catalog.text), CAST(0 AS bigint)))
"""
_TRY_LOCK = LOCK_STATEMENTS.replace("pg_advisory", "pg_try_advisory")
_WRITES = "SET TRANSACTION READ WRITE"  # a standby refuses it
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"


def is_url(path: object) -> bool:
    """Return whether a ledger's path is a URL of a PostgreSQL server.

    Every path that a user gives for a ledger is checked here before it is used.

    Raises
    ------
    LedgerError
        If the text looks like a URL, but is not a URL of PostgreSQL. A file with this
        name would be a new, empty ledger. The message omits the text, which may contain
        a password.
    """
    if isinstance(path, str) and path.startswith(("postgresql://", "postgres://")):
        return True
    # A mistyped URL must not create a new, empty ledger file.
    given = isinstance(path, str | Path) and not _is_name(path)
    if given and _NO_PATH.match(str(path)):
        raise _not_a_place()
    return False


def is_on_server(path: object) -> bool:
    """Return whether a ledger's path is a server's URL, or a ledger's name there.

    Raises LedgerError as `is_url`.
    """
    return is_url(path) or _is_name(path)


def _is_name(path: object) -> bool:
    return isinstance(path, str) and _NAMED.fullmatch(path) is not None


def _not_a_place() -> LedgerError:
    """Return the error for a text that is not a valid URL, without this text."""
    return LedgerError(
        "a ledger's URL (--ledger, URL or DPHEAD_LEDGER) must have the form "
        "postgresql://user@host/database. Correct it. It is not shown here, because "
        "it may contain a password."
    )


def team_url() -> str | None:
    """Return the URL of the team's ledgers (DPHEAD_LEDGER), or None if it is not set.

    Raises LedgerError if it is set to something else, such as a file.
    """
    url = os.environ.get("DPHEAD_LEDGER")
    # The text is not shown: it may hold a password.
    with suppress(LedgerError):
        if not url or is_url(url):
            return url or None
    raise LedgerError(
        "DPHEAD_LEDGER must have the form postgresql://user@host/database. Correct "
        "it. For a ledger in a file, unset DPHEAD_LEDGER and use --ledger FILE "
        "(`ledger`)."
    )


def url_of(path: str) -> str:
    """Return the URL of a ledger: `path` if it is a URL, otherwise DPHEAD_LEDGER.

    Raises LedgerError if DPHEAD_LEDGER is needed and not set.
    """
    url = path if is_url(path) else team_url()
    if url is None:
        raise LedgerError(
            f"{path} is the name of a ledger on a server, and DPHEAD_LEDGER is "
            "not set. Set DPHEAD_LEDGER=postgresql://user@host/database."
        )
    return url


@contextmanager
def session(url: str) -> Iterator[Connection]:
    """Run a block in one transaction on a new connection to a team's server."""
    with _connection(url) as connection, one_error(), connection.begin():
        for statement in (text(_WRITES), _settings("")):
            connection.execute(statement)
        yield connection


@contextmanager
def held(url: str, lock: str = "") -> Iterator[Callable[[], None]]:
    """Hold the lock with the name `lock` on a server, in a block.

    The default name "" is the lock of all ledgers and of the index of images. Yield a
    function that raises LedgerError if the lock was lost. Call it before a charge ends,
    because the end of the block raises no error.
    """

    def check() -> None:
        """Raise LedgerError if the connection, and so the lock, was lost."""
        with one_error():
            connection.exec_driver_sql("SELECT 1")

    # The lock ends with this connection, even if this process dies.
    with _connection(url) as connection:
        with one_error():
            for statement in beginning("write", lock):
                connection.execute(statement)
        yield check


def is_same(url: str, other: str) -> bool:
    """Return whether two URLs lead to one database: each sees a lock of the other.

    A copy of a database has the same id, so ids cannot tell the two apart.
    """
    lock = secrets.token_hex(16)
    with held(url, lock), _connection(other) as connection, one_error():
        free = text(_TRY_LOCK).bindparams(lock=f"dphead:{lock}")
        return not connection.execute(free).scalar_one()


def store_id(url: str) -> str:
    """Return the random public id of a server's ledgers."""
    with _connection(url) as connection, one_error():
        return connection.exec_driver_sql(f"SELECT id FROM {VIEWS}.store").scalar_one()


def data_sets(url: str) -> list[str]:
    """Return the ids of the data sets that have a ledger on a server."""
    with _connection(url) as connection, one_error():
        rows = connection.exec_driver_sql(f"SELECT dataset_id FROM {VIEWS}.data_sets")
        return sorted(rows.scalars())


def beginning(kind: str, dataset_id: str) -> list[Any]:
    """Return the statements that begin a "write", "read" or "single" transaction.

    A write waits at most WAIT seconds for other writes to this data set's ledger. It
    reads committed rows, because a snapshot could be older than the lock.
    """
    # Set in each transaction, because a pooler may change the connection.
    settings = _settings(dataset_id)
    # The lock is released at the end of the transaction, whatever a pooler does.
    if kind == "write":
        lock = text(LOCK_STATEMENTS).bindparams(lock=f"dphead:{dataset_id}")
        return [text(_WRITES), settings, lock]
    return [text(_SNAPSHOT), settings] if kind == "read" else [settings]


def _settings(dataset_id: str) -> Any:
    return text(_SETTINGS).bindparams(dataset_id=dataset_id, wait=f"{WAIT}s")


def connected(url: str) -> Connection:
    """Return a connection to a team's ledgers.

    Raises LedgerError if the server refuses it or does not flush what it commits.
    """
    # Here, the names of tables mean views that show one data set's rows.
    views = {"schema_translate_map": {None: VIEWS}}
    connection = _connect(url).execution_options(**views)
    with one_error():
        # Without fsync, a power failure could undo a charge.
        durable = connection.exec_driver_sql("SHOW fsync").scalar()
        connection.rollback()
    if durable != "on":
        close(connection)
        raise LedgerError(
            "The ledger's server does not flush what it commits (fsync = "
            f"{durable}). Set fsync = on in postgresql.conf, and reload the server."
        )
    return connection


_OPEN = WeakSet[Any]()  # open connections of this process


def _disconnect_copies() -> None:
    """Detach a forked process from the connections that its parent opened.

    If the fork closed them, the parent would lose them too.
    """
    # The descriptor stays valid, but no longer leads to the server.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in _OPEN:
        with suppress(Exception):  # the connection was closed already
            os.dup2(nowhere, connection.fileno())
    os.close(nowhere)


os.register_at_fork(after_in_child=_disconnect_copies)


@cache
def _engine(url: str) -> Engine:
    try:
        place = make_url(url).set(drivername="postgresql+psycopg")
        engine = create_engine(
            place,
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
            connect_args=_ARGUMENTS,
            use_native_hstore=False,
            hide_parameters=True,
        )
        # Run this first: names must mean PostgreSQL's own objects before any call.
        event.listen(engine, "begin", lambda c: c.exec_driver_sql(_FIRST))
        event.listen(engine, "connect", lambda connection, _: _OPEN.add(connection))
        return engine
    except (exc.ArgumentError, ValueError):
        raise _not_a_place() from None
    except ModuleNotFoundError:
        raise LedgerError(
            "A ledger on a PostgreSQL server needs psycopg, which is not "
            "installed. Run: pip install 'dphead[postgres]'"
        ) from None


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    """Open a connection, and close it at the end of a block, even if it was lost."""
    connection = _connect(url)
    try:
        yield connection
    finally:
        close(connection)


def close(connection: Connection) -> None:
    """Close a connection. The server rolls back a transaction that is still open."""
    # The work is done, so a failed rollback on a lost connection does not matter.
    with suppress(exc.DBAPIError):
        connection.close()


def _connect(url: str) -> Connection:
    """Return a connection. Raises LedgerError for every error of the driver."""
    try:
        with one_error():
            return _engine(url).connect()
    except LedgerError:
        raise
    except Exception:  # bad options in the URL, or a host's name that is not text
        raise _not_a_place() from None


@contextmanager
def one_error() -> Iterator[None]:
    """Raise LedgerError for errors of the driver or the server in a block.

    An IntegrityError passes: the statement breaks a rule of a table.
    """
    try:
        yield
    except exc.IntegrityError:
        raise
    except exc.DBAPIError as error:
        # the driver's own words name hosts and users: they are not passed on
        raise _error_of(error) from None


_NO_TABLES = "The team ledger's server has no dphead tables. Run dphead ledger init URL"
_WORDS = {
    "55P03": "Another process holds the team ledger. Wait until it ends",
    "3F000": _NO_TABLES,
    "42P01": _NO_TABLES,
    "25006": "The team ledger's server takes no writes. Name the primary server",
    "0A000": "The team ledger's server is a standby. Name the primary server",
    "53100": "The disk of the team ledger's server is full. Free some space",
}
_ACCESS = (
    "The team ledger's server refuses this user, this machine or this database. "
    "Correct the URL, or ask the server's administrator for access"
)
# A refused connection has no SQLSTATE. The first expression that matches the driver's
# text gives the message.
_CONNECTING = {
    r"resolve|translate host": "The host of the team ledger's server is unknown. "
    "Correct the host in its URL",
    r"pg_hba": _ACCESS,
    r"SSL|TLS|certificate": "The team ledger's server and its URL do not agree on SSL. "
    "Correct sslmode in the URL, or the certificates",
    r"password|authentication": "The team ledger's server refuses this user and "
    "password. Correct them",
    r"read-only|standby": "The team ledger's server is a standby. Name the primary "
    "server",
    r"shutting down|starting up|not yet accepting|too many": "The team ledger's server "
    "takes no connections now. Wait a minute",
    r"FATAL": _ACCESS,
    r"refused|time|route|unreachable": "The team ledger's server does not answer at "
    "its host and port. Start it, or correct the URL",
}
_SILENT_SERVER = "The team ledger's server does not answer. Try psql with the same URL"


def _lacking(statement: str | None) -> LacksRight:
    """Return the error for a statement that needs a right which the role lacks.

    It names the rights of this statement only: a role that reads needs no INSERT.
    """
    kind = re.match(r"\s*(SELECT|INSERT)\b", statement or "")
    views = dict.fromkeys(re.findall(rf"\b{VIEWS}\.\w+", statement or ""))
    rights = "the privileges that docs/team-ledger.md lists"
    if kind and views:
        rights = f"USAGE on schema {VIEWS}, and {kind[1]} on {', '.join(views)}"
    return LacksRight(
        "Your role lacks a right on the team ledger. Ask the owner to grant it "
        f"{rights}, then run this command again."
    )


def _error_of(error: exc.DBAPIError) -> LedgerError:
    """Return the error for a statement or a connection that a server refused."""
    # The driver's own words name hosts and users: they decide, and are not shown.
    state = getattr(error.orig, "sqlstate", None)
    if state is None or state[:2] in ("08", "57") or error.connection_invalidated:
        kind, found = HeldLedger, _SILENT_SERVER
        if error.statement is None and not error.connection_invalidated:
            # remove quoted names, which the user chose
            said = re.sub(r'"[^"]*"|\'[^\']*\'', "", str(error.orig))
            found = next(
                (words for form, words in _CONNECTING.items() if re.search(form, said)),
                found,
            )
    elif state == "42501":
        return _lacking(error.statement)
    else:
        kind = HeldLedger if state == "55P03" else LedgerError
        other = (
            f"The team ledger's server refused a statement (SQLSTATE {state}). Ask its "
            "administrator to find the cause in the server's log"
        )
        found = _WORDS.get(state, other)
    return kind(f"{found}, then run this command again.")


def is_settled(error: exc.DBAPIError) -> bool:
    """Return whether a server reported at COMMIT that it rolled back."""
    state = getattr(error.orig, "sqlstate", None) or ""
    # 40003: the server does not know whether the transaction was committed
    unknown = error.connection_invalidated or state == "40003"
    return not unknown and state[:2] in ("23", "40")


def init(url: str) -> str:
    """Make the tables of a team's ledgers unless they exist, and return their id.

    The role of `url` owns the tables. Other roles get privileges by GRANT on schema
    `dphead` (docs/team-ledger.md), and none of them can change or delete a row. Raises
    LedgerError if another role owns a part of the tables, or if the server fails.
    """
    with _connection(url) as connection, one_error(), connection.begin():
        for statement in beginning("write", ""):
            connection.execute(statement)
        # Under the lock, so that two owners cannot make the tables at once.
        there = connection.exec_driver_sql(f"SELECT to_regclass('{VIEWS}.store')")
        if there.scalar() is None:
            for statement in _schema():
                connection.execute(statement)
        # The tables of an earlier version lack the index of people.
        people = connection.exec_driver_sql(f"SELECT to_regclass('{VIEWS}.people')")
        if people.scalar() is None:
            for statement in _index_schema(PEOPLE):
                connection.execute(statement)
        # Whoever owns a table or a function could change charges.
        if connection.exec_driver_sql(_OTHERS).scalar():
            raise LedgerError(
                "The schemas dphead or dphead_rows have tables or functions of "
                "another role. Run this command as their owner, or drop them if they "
                "hold no fits."
            )
        return connection.exec_driver_sql(f"SELECT id FROM {VIEWS}.store").scalar_one()


# Objects that belong to a different role, which could change them.
_OTHERS = f"""
SELECT count(*) FROM (
    SELECT oid AS place, nspowner AS owner FROM pg_namespace
    UNION ALL SELECT relnamespace, relowner FROM pg_class
    UNION ALL SELECT pronamespace, proowner FROM pg_proc
) AS made
WHERE place IN ('{VIEWS}'::regnamespace, '{_ROWS}'::regnamespace)
    AND owner <> current_user::regrole
"""


def _schema() -> Iterator[Any]:
    """Yield the statements that make a server's tables, triggers and views."""
    yield from map(text, (f"CREATE SCHEMA {VIEWS}", f"CREATE SCHEMA {_ROWS}"))
    yield text(
        f"CREATE FUNCTION {_ROWS}.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
    )
    own = "current_setting('dphead.dataset_id')"
    tables = MetaData(schema=_ROWS)
    for table in TABLES.tables.values():
        kept = table.to_metadata(tables)
        # Define new indexes and keys, which begin with the data set.
        kept.indexes.clear()
        for column in kept.c:
            # collation C: a new locale of the system must not change an index's order
            column.type = _TEXT if isinstance(column.type, Text) else column.type
        names = [column.name for column in table.c]
        # The order of charges: SQLite numbers rows by itself.
        if table is FITS:
            kept.append_column(Column("rowid", Integer, Identity(always=True)))
            names.append("rowid")
        kept.append_column(
            Column("dataset_id", _TEXT, primary_key=True, server_default=text(own))
        )
        of_fit = [kept.c[name] for name in ("fit_id", "sequence") if name in names]
        Index(f"{table}_of_data_set", kept.c.dataset_id, *of_fit)
        if table is PROGRESS:
            once = {"unique": True, "postgresql_where": kept.c.state == "committed"}
            Index("one_commit", kept.c.dataset_id, *of_fit, **once)
        yield from _append_only(kept, ", ".join(names), f"dataset_id = {own}")
    for table in _INDEX.tables.values():
        yield from _index_schema(table)
    yield text(
        f"CREATE VIEW {VIEWS}.data_sets AS SELECT DISTINCT dataset_id FROM {_ROWS}.meta"
    )
    yield text(f"CREATE TABLE {_ROWS}.store AS SELECT gen_random_uuid()::text AS id")
    yield text(f"CREATE VIEW {VIEWS}.store AS SELECT max(id) AS id FROM {_ROWS}.store")


def _index_schema(table: Table) -> Iterator[Any]:
    kept = table.to_metadata(MetaData(schema=_ROWS), schema=_ROWS)
    yield from _append_only(kept, "*", "true")


def _append_only(table: Table, names: str, where: str) -> Iterator[Any]:
    """Yield the statements that make an append-only table and its view for clients."""
    yield CreateTable(table)
    yield from map(CreateIndex, table.indexes)
    yield text(
        f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE "
        f"ON {table} EXECUTE FUNCTION {_ROWS}.refuse()"
    )
    yield text(
        f"CREATE VIEW {VIEWS}.{table.name} AS SELECT {names} FROM {table} WHERE {where}"
    )
