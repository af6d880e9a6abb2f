"""A ledger's file: append-only, durable, one process's, and damaged where it is cut."""

import copy
import errno
import json
import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from core import python, reserve
from ledgers import filled, run_release, specs
from sqlalchemy import Engine, event

from dphead.privacy import atomic_write
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger import store as module


@pytest.mark.parametrize("table", ["meta", "fits", "releases", "progress"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET rowid = rowid"])
def test_no_row_is_ever_changed_or_deleted(path, table, statement):
    ledger = Ledger(path, "id")
    run_release(reserve(specs(), ledger, path.parent / "run"))
    ledger.close()
    db = sqlite3.connect(path)
    before = list(db.execute(f"SELECT * FROM {table}"))
    assert before
    with pytest.raises(sqlite3.DatabaseError, match="append-only"):
        db.execute(statement.format(table))
    assert list(db.execute(f"SELECT * FROM {table}")) == before


@pytest.mark.parametrize("table", ["meta", "fits", "releases", "progress"])
def test_an_insert_that_replaces_a_row_is_refused(path, table):
    """REPLACE deletes the row in its way: of the budget, of a charge, of a committed
    digest.
    """
    ledger = Ledger(path, "id")
    ledger.set_budget(5.0, 1e-5)
    run_release(reserve(specs(), ledger, path.parent / "run"))
    db: Any = ledger._db
    before = list(db.execute(f"SELECT * FROM {table}"))
    assert before
    with pytest.raises(sqlite3.DatabaseError, match="append-only"):
        db.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}")
    with pytest.raises(sqlite3.DatabaseError, match="append-only"):
        db.execute(f"REPLACE INTO {table} SELECT * FROM {table} LIMIT 1")
    assert list(db.execute(f"SELECT * FROM {table}")) == before


def test_a_ledger_belongs_to_one_data_set(path):
    Ledger(path, "one").close()
    Ledger(path).close()
    with pytest.raises(LedgerError, match="data set one"):
        Ledger(path, "two")


@pytest.mark.parametrize("content", [b"not a database at all, but long enough", None])
def test_a_file_that_is_no_ledger_is_refused(tmp_path, content):
    path = tmp_path / "x" if content else tmp_path
    if content:
        path.write_bytes(content)
    with pytest.raises(LedgerError, match="SQLite"):
        Ledger(path)


def test_a_path_is_a_file_whatever_its_name(tmp_path, monkeypatch):
    """A Path drops its "./", and SQLite would keep that name in memory."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        ledger = Ledger(Path("./:memory:"))
        reserve(specs(1), ledger)
    assert (tmp_path / ":memory:").exists()
    assert ledger.path != ":memory:"
    assert len(ledger.fits()) == 2
    assert len(Ledger(ledger.path).fits()) == 2
    assert len(Ledger("./:memory:").fits()) == 2


FORK = """
import os, sys
from core import *
from dphead.privacy.ledger import LedgerError
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums
path, when = sys.argv[1:]
x, y = toy(40)
spec = spec_of(ClassSums(3), 40)
ledger = Ledger(path)
fit = reserve([spec], ledger)
if when == "commit":
    sequence, _ = fit.begin(spec.row())
child = os.fork() == 0
try:
    if when == "begin":
        rows = ArrayRows(x, y)
        parts = {"ledger": fit, "noise": NoiseSource(), "summer": verified()}
        release(ClassSums(3), Params(), rows, spec, **parts)
    elif when == "commit":
        fit.commit(sequence, np.ones(3))
    elif child:
        reserve([spec], ledger)
    done = "done"
except LedgerError as error:
    done = str(error)
if not child:
    os.wait()
print("child" if child else "parent", done, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("when", ["begin", "commit", "reserve"])
@pytest.mark.parametrize("where", [":memory:", "file"])
def test_a_fork_does_not_answer_the_same_charge_again(tmp_path, where, when):
    """Parent and child have a copy each of a ledger in memory: two answers, one
    charge.
    """
    path = where if where == ":memory:" else tmp_path / "l.sqlite"
    forked: Any = python(FORK, path, when)
    child, parent = forked.out.splitlines()
    assert parent == "parent done", forked.err
    assert child.startswith("child Process ")


def test_a_fork_with_the_same_process_id_is_refused(monkeypatch):
    """As the first processes of two containers have one."""
    ledger = Ledger()
    opened = module.this_process()
    monkeypatch.setattr(module, "forks", [opened[1] + 1])
    with pytest.raises(LedgerError, match="cannot use it"):
        reserve(specs(), ledger)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_open_ledger_is_not_copied(copied, tmp_path):
    for ledger in (Ledger(), Ledger(tmp_path / "ledger.sqlite")):
        with pytest.raises(LedgerError, match="Pass its path as `ledger`"):
            copied(ledger)


def test_another_threads_ledger_is_not_called_damaged(tmp_path):
    for ledger in (Ledger(), Ledger(tmp_path / "ledger.sqlite")):
        with ThreadPoolExecutor(1) as threads:
            charged = threads.submit(reserve, specs(), ledger)
        with pytest.raises(LedgerError, match="Another thread opened the ledger"):
            charged.result()
        assert ledger.count_fits() == 0
        reserve(specs(), ledger)


def test_a_ledger_without_a_name_is_refused():
    """SQLite makes a temporary one of it, which counts nothing after the fit."""
    with pytest.raises(LedgerError, match="not an SQLite file"):
        Ledger("")


def test_a_file_that_is_damaged_is_one_error(path):
    """Of SQLite's own; the first one is seen, whatever the rollback meets."""
    ledger = Ledger(path)
    for _ in range(50):
        reserve(specs(20), ledger)
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(LedgerError, match="sound SQLite file"):
        Ledger(path).fits()
    # also the mark of a ledger that was moved, which each write reads first
    with pytest.raises(LedgerError, match="sound SQLite file"):
        reserve(specs(), Ledger(path))


def test_a_full_disk_is_one_error_and_nothing_is_charged(path):
    ledger = Ledger(path)
    pages = ledger.first("PRAGMA page_count")[0]
    db: Any = ledger._db
    db.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(LedgerError, match="full"):
        reserve(specs(500), ledger)
    assert ledger.fits() == []
    reserve(specs(), ledger)


# Fails the nth call of fsync, fdatasync or unlink from now on, and `more` after it.
FAULTS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
static int first, more, done, calls;
void arm(int first_, int more_, int done_) {
    first = first_; more = more_; done = done_; calls = 0;
}
int called(void) { return calls; }
#define FAILING(name, type) int name(type x) { \\
    int (*real)(type) = dlsym(RTLD_NEXT, #name); \\
    calls++; \\
    if (!first || calls < first || calls > first + more) return real(x); \\
    if (done) real(x); \\
    errno = EIO; \\
    return -1; }
FAILING(fsync, int)
FAILING(fdatasync, int)
FAILING(unlink, const char *)
"""
CHARGES = """
import ctypes, json, sys
from pathlib import Path
from core import *
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.statistics import ClassSums
faults = ctypes.CDLL(sys.argv[1])
folder, spec = Path(sys.argv[2]), spec_of(ClassSums(3), 40)
for more, done in ((0, 0), (0, 1), (99, 0), (99, 1)):
    for first in range(1, 20):
        path = folder / f"{more}{done}{first}.sqlite"
        ledger = Ledger(path, "data")
        faults.arm(first, more, done)
        try:
            ledger.reserve([spec.row()], epsilon=1.0, delta=1e-5, description="",
                           plan_hash="hash", fit_id="mine")
            said = "charged"
        except LedgerError as error:
            said = type(error).__name__
        calls = faults.called()
        faults.arm(0, 0, 0)
        there = Ledger(path, "data")
        assert there.verify() == []
        print(json.dumps([said, there.holds("mine")]), flush=True)
        if calls < first:
            break
"""


def test_a_commit_that_fails_on_the_disk_is_settled_by_what_the_file_holds(tmp_path):
    """Each flush and removal of a charge fails, before or after it is done, once or
    from then on: a charge is never denied, nor told where there is none.
    """
    source, library = tmp_path / "faults.c", tmp_path / "faults.so"
    source.write_text(FAULTS)
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
    )
    struck: Any = python(CHARGES, library, tmp_path, LD_PRELOAD=str(library))
    found = {tuple(json.loads(line)) for line in struck.out.splitlines()}
    assert struck.err == ""
    # the last: COMMIT wrote the charge, and the disk cannot say so; its id tells later
    assert found == {
        ("charged", True),
        ("HeldLedger", False),
        ("LostAnswer", False),
        ("LostAnswer", True),
    }


@pytest.mark.parametrize("left", [0, 1, 99])
def test_a_ledger_that_was_cut_is_not_an_empty_one(path, left):
    filled(path)
    with open(path, "r+b") as file:
        file.truncate(left)
    with pytest.raises(LedgerError, match="not a whole SQLite file"):
        Ledger(path)
    assert path.stat().st_size == left


def test_a_journal_without_its_ledger_is_not_played_into_a_new_one(path):
    path.parent.mkdir()
    path.with_name(path.name + "-journal").write_bytes(b"pages of the lost ledger")
    with pytest.raises(LedgerError, match=r"but its ledger .* is missing"):
        Ledger(path)
    assert not path.exists()


def test_a_ledger_gets_its_name_when_it_is_whole(path, monkeypatch):
    """What another process makes meanwhile is not replaced, and nothing is left."""
    link = os.link

    def raced(new, target):
        assert not Path(target).exists()
        monkeypatch.setattr("os.link", link)
        filled(path)
        link(new, target)

    monkeypatch.setattr("os.link", raced)
    assert len(Ledger(path).fits()) == 3
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_without_hard_links_is_refused_and_nothing_there_is_replaced(
    path, tmp_path, monkeypatch, code, made
):
    """Also where a ledger came there meanwhile, as a copy that was put back."""
    copy = tmp_path / "copy.sqlite"
    filled(copy)

    def refused(new, target):
        if made:
            shutil.copy(copy, target)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.link", refused)
    with pytest.raises(
        LedgerError, match=r"cannot be opened as a ledger .*--ledger.*hard links"
    ):
        Ledger(path)
    assert [one.name for one in path.parent.iterdir()] == [path.name] * made
    if made:
        assert len(Ledger(path).fits()) == 3


@pytest.mark.parametrize("name", ["file:l", "file::memory:", "file:l?mode=memory"])
def test_a_name_that_sqlite_would_take_for_a_uri_is_a_files(
    tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    reserve(specs(), Ledger(name))
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert len(Ledger(name).fits()) == 1


def test_a_link_leads_to_the_ledger_and_its_journal(path, tmp_path):
    """Without the ledger, a new one there would not count its fits."""
    link, folder = tmp_path / "link.sqlite", tmp_path / "linked folder"
    link.symlink_to(path)
    folder.symlink_to(tmp_path / "volume")
    for place in (link, folder / "l.sqlite"):
        for read_only in (False, True):
            with pytest.raises(LedgerError, match="leads to nothing"):
                Ledger(place, read_only=read_only)
    assert not path.exists() and not (tmp_path / "volume").exists()
    Ledger(path).close()
    filled(link)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(Ledger(path).fits()) == 3
    path.unlink()
    path.with_name(path.name + "-journal").write_bytes(b"pages of the lost ledger")
    with pytest.raises(LedgerError, match=r"but its ledger .* is missing"):
        Ledger(path)


@pytest.mark.parametrize("kind", ["hard link", "link", "pipe", "folder"])
def test_a_journal_that_leads_to_another_file_is_refused(path, tmp_path, kind):
    """Whoever may write to the folder made it, before or after the ledger is opened."""
    filled(path)
    ledger, victim = Ledger(path), tmp_path / "victim"
    victim.write_bytes(b"a page of another file " * 100)
    before = victim.read_bytes()
    journal = path.with_name(path.name + "-journal")
    make = {
        "hard link": lambda: os.link(victim, journal),
        "link": lambda: journal.symlink_to(victim),
        "pipe": lambda: os.mkfifo(journal),
        "folder": journal.mkdir,
    }
    make[kind]()
    said = "write to another file" if "link" in kind else "in the place of a file"
    for act in (
        lambda: Ledger(path),
        lambda: Ledger(path, read_only=True),
        lambda: reserve(specs(), ledger),
    ):
        with pytest.raises(LedgerError, match=said):
            act()
    assert victim.read_bytes() == before


def test_a_path_in_the_users_home_is_found_there(tmp_path, monkeypatch):
    """Otherwise each working folder would get a folder of this name, and a ledger."""
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert Ledger("~/book.sqlite").path == str(home / "book.sqlite")
    assert not (tmp_path / "~").exists()


def test_a_path_is_walked_as_the_system_walks_it(tmp_path):
    """`link/..` is the folder above where the link leads, not the link's own."""
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "data")
    ledger = Ledger(tmp_path / "link" / ".." / "book.sqlite")
    assert ledger.path == str(tmp_path / "disk" / "book.sqlite")
    reserve(specs(), ledger)
    assert len(Ledger(ledger.path).fits()) == 1


def test_a_journal_of_a_ledger_that_was_just_made_is_no_loss(path, monkeypatch):
    """Another process makes and charges it between two looks."""
    exists = Path.exists

    def late(one):
        if one.name.endswith("-journal"):
            monkeypatch.setattr(Path, "exists", exists)
            filled(path)
            one.write_bytes(b"")
        return exists(one)

    monkeypatch.setattr(Path, "exists", late)
    assert len(Ledger(path).fits()) == 3


def test_new_folders_are_on_the_disk_before_the_ledger(tmp_path, monkeypatch):
    synced = []
    sync = atomic_write.sync
    monkeypatch.setattr(atomic_write, "sync", lambda f: (synced.append(f), sync(f)))
    Ledger(tmp_path / "a" / "b" / "l.sqlite")
    assert synced == [tmp_path, tmp_path / "a"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.fixture
def held(path):
    """A ledger with a fit, and another connection that can hold it."""
    ledger = Ledger(path, "ab12")
    reserve(specs(), ledger)
    ledger.close()
    other = sqlite3.connect(path, isolation_level=None)
    yield other
    other.close()


def test_a_ledger_is_read_while_another_process_charges_it(path, held):
    held.execute("BEGIN IMMEDIATE")
    held.execute("INSERT INTO meta VALUES ('unseen', 'yet')")
    ledger = Ledger(path, "ab12", read_only=True)
    assert len(ledger.fits()) == 1 and ledger.verify() == []
    assert ledger.meta("unseen") is None


def test_a_ledger_that_another_process_holds_is_called_that(path, held, monkeypatch):
    for patience in ("WRITE_PATIENCE", "READ_PATIENCE"):
        monkeypatch.setattr(module, patience, 0.01)
    open_before = Ledger(path)
    held.execute("BEGIN EXCLUSIVE")
    uses = (
        lambda: Ledger(path, "ab12"),
        lambda: Ledger(path, read_only=True),
        lambda: reserve(specs(), open_before),
        open_before.verify,
    )
    for use in uses:
        with pytest.raises(module.HeldLedger, match="Another process holds"):
            use()
    held.execute("ROLLBACK")
    assert len(open_before.fits()) == 1


def test_nothing_is_written_to_a_ledger_that_is_only_read(path, held):
    before = path.read_bytes()
    ledger = Ledger(path, "ab12", read_only=True)
    for write in (lambda: reserve(specs(), ledger), lambda: ledger.set_once("x", "3")):
        with pytest.raises(LedgerError, match="permission to read and write"):
            write()
    assert path.read_bytes() == before
    with pytest.raises(LedgerError, match="belongs to data set"):
        Ledger(path, "cd34", read_only=True)
    missing = path.with_name("missing.sqlite")
    with pytest.raises(LedgerError, match="missing"):
        Ledger(missing, read_only=True)
    assert not missing.exists()


def test_a_ledger_without_a_data_set_can_be_read_before_its_first_fit(tmp_path):
    """A full disk can leave one, and the next fit completes it."""
    begun = Ledger(tmp_path / "ledger.sqlite")
    assert not Ledger(begun.path, "ab12", read_only=True).count_fits()
    reserve(specs(), begun)
    with pytest.raises(LedgerError, match="belongs to no data set"):
        Ledger(begun.path, "ab12", read_only=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_that_is_no_text_is_refused_before_a_file_is_made(tmp_path, read_only):
    folder = tmp_path / os.fsdecode(b"bad\xff")
    with pytest.raises(LedgerError, match="must be valid UTF-8") as error:
        Ledger(folder / "l.sqlite", read_only=read_only)
    str(error.value).encode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_plain_file_is_not_called_a_broken_disk(tmp_path, make, read_only):
    make(tmp_path / "ledger")
    with pytest.raises(LedgerError, match="not an SQLite file"):
        Ledger(tmp_path / "ledger", read_only=read_only)


def test_a_look_takes_back_the_transaction_of_a_process_that_died(path):
    """Else the look asks for permission, and the killed command does not go on."""
    ledger = Ledger(path, "id")
    run_release(reserve(specs(), ledger, path.parent / "run"))
    ledger.close()
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
        "db.execute('PRAGMA cache_size=1'); db.execute('CREATE TABLE filler (x)');"
        "db.execute('BEGIN IMMEDIATE');"
        "db.executemany('INSERT INTO filler VALUES (randomblob(4000))', [()] * 500);"
        "os._exit(0)"
    )
    python(script, path)
    journal = path.with_name(f"{path.name}-journal")
    assert journal.stat().st_size > 0
    with closing(Ledger(path, read_only=True)) as look:
        assert look.count_fits() == 1
    assert not journal.exists()


def test_a_programs_listener_for_all_engines_changes_no_setting_of_a_ledger(tmp_path):
    """As SQLAlchemy's documents show for SQLite. A charge must reach the disk."""

    def faster(connection, _):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA recursive_triggers=OFF")

    path = tmp_path / "l.sqlite"
    event.listen(Engine, "connect", faster)
    try:
        with closing(Ledger(path)) as book:
            names = ("journal_mode", "synchronous", "recursive_triggers")
            found = [book.first(f"PRAGMA {name}")[0] for name in names]
            reserve(specs(1, 20.0), book)
    finally:
        event.remove(Engine, "connect", faster)
    assert found == ["delete", 3, 1]
    assert Ledger(path, read_only=True).count_fits() == 1
