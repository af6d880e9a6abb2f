"""The ledger: append-only, one charge for each release, a budget that nothing exceeds,
and crashes that only waste.
"""

import contextlib
import json
import math
import os
import signal
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from core import M, door, python, reserve, spec_of, toy

from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy import accounting
from dphead.privacy import ledger as ledger_module
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.statistics import ClassSums, Params
from dphead.rows.arrays import ArrayRows

QUERY = ClassSums(M)
X, Y = toy(40)
DELTA = 1e-5


def specs(count=1, sigma=1.0, **more):
    return [spec_of(QUERY, 40, sigma=sigma, **more)] * count


def run_release(fit, seed=None, spec=None, rows=None):
    spec = spec or specs()[0]
    return release(
        QUERY,
        Params(),
        rows or ArrayRows(X, Y),
        spec,
        ledger=fit,
        noise=NoiseSource(seed),
        summer=door(),
    ).value


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "ledger.sqlite"


# --- append-only ----------------------------------------------------------------------


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
    db = ledger._db
    before = list(db.execute(f"SELECT * FROM {table}"))
    assert before
    with pytest.raises(sqlite3.DatabaseError, match="append-only"):
        db.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}")
    with pytest.raises(sqlite3.DatabaseError, match="append-only"):
        db.execute(f"REPLACE INTO {table} SELECT * FROM {table} LIMIT 1")
    assert list(db.execute(f"SELECT * FROM {table}")) == before


def test_a_second_digest_cannot_take_the_place_of_a_committed_one(path):
    """Its row's id is new: what it would replace is found by the index of commits
    alone.
    """
    ledger = Ledger(path, "id")
    fit = reserve(specs(), ledger, path.parent / "run")
    run_release(fit)
    with pytest.raises(sqlite3.DatabaseError, match="append-only"):
        ledger._db.execute(
            "INSERT OR REPLACE INTO progress (fit_id, sequence, state, at, digest) "
            "VALUES (?, 0, 'committed', 0, 'another')",
            (fit.fit_id,),
        )


def test_the_file_is_written_through_to_the_disk(path):
    assert Ledger(path)._db.execute("PRAGMA synchronous").fetchone() == (3,)


def test_keys_samples_and_sums_never_reach_the_disk(tmp_path):
    """Every file of a run: the only array is the noisy value."""
    fit = reserve(
        specs(2, sampling_prob=0.5), Ledger(tmp_path / "l.sqlite"), tmp_path / "run"
    )
    value = [run_release(fit, None, specs(sampling_prob=0.5)[0]) for _ in range(2)]
    files = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert files == ["000000.npy", "000001.npy", "l.sqlite", "lock"]
    assert np.array_equal(np.load(tmp_path / "run/000001.npy"), value[1])
    assert (tmp_path / "run/lock").read_bytes() == b""
    columns = {
        r[1]
        for t in ("meta", "fits", "releases", "progress")
        for r in sqlite3.connect(tmp_path / "l.sqlite").execute(
            f"PRAGMA table_info({t})"
        )
    }
    assert columns == {
        "key",
        "value",
        "fit_id",
        "created",
        "epsilon",
        "delta",
        "relation",
        "plan_hash",
        "description",
        "sequence",
        "label",
        "noise_multiplier",
        "sampling_prob",
        "spec",
        "id",
        "state",
        "at",
        "digest",
    }


# --- identity -------------------------------------------------------------------------


def test_a_ledger_belongs_to_one_data_set(path):
    Ledger(path, "one").close()
    Ledger(path).close()
    with pytest.raises(LedgerError, match="dataset_id=one"):
        Ledger(path, "two")


@pytest.mark.parametrize(
    "content",
    [b"not a database at all, but long enough", b"\x89HDF\r\n\x1a\n" + bytes(64)],
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(LedgerError, match="SQLite"):
        Ledger(tmp_path / "x")
    with pytest.raises(LedgerError, match="SQLite"):
        Ledger(tmp_path)


def test_one_ledger_holds_one_relation(path):
    reserve(specs(), Ledger(path))
    with pytest.raises(LedgerError, match="relation"):
        reserve(specs(relation="replace_one"), Ledger(path))
    assert len(Ledger(path).fits()) == 1


# --- budget ---------------------------------------------------------------------------


def sigma_for(epsilon, count=1):
    return math.sqrt(count) / mu_from_epsilon(epsilon, DELTA)


def test_the_budget_is_the_exact_total_over_all_fits(path):
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    half = sigma_for(1.0, 2)
    reserve(specs(1, half), ledger)
    reserve(specs(1, half), ledger)
    assert accounting.epsilon(ledger.events(), DELTA) == pytest.approx(1.0, rel=1e-9)
    for sigma in (1e3, 1e4):  # the latter adds 1.4e-7 of mu squared: no room is left
        with pytest.raises(LedgerError, match="exceeded"):
            reserve(specs(1, sigma), ledger)
    assert len(ledger.fits()) == 2
    assert sum(e.count for e in ledger.events()) == 2


def test_a_refused_fit_leaves_no_trace(path):
    ledger = Ledger(path)
    ledger.set_budget(0.5, DELTA)
    before = list(ledger._db.iterdump())
    with pytest.raises(LedgerError, match="Nothing was charged"):
        reserve(specs(3, 1.0), ledger)
    assert list(ledger._db.iterdump()) == before
    reserve(specs(1, sigma_for(0.5)), ledger)


def test_every_release_of_a_fit_counts_and_so_do_those_that_never_ran(path):
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    reserve(specs(3, sigma_for(1.0, 4)), ledger)  # never started
    reserve(specs(1, sigma_for(1.0, 4)), ledger)
    with pytest.raises(LedgerError, match="exceeded"):
        reserve(specs(1, 100.0), ledger)


def test_a_budget_is_fixed_once_and_before_the_first_fit(path):
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    ledger.set_budget(1.0, DELTA)
    for other in ((2.0, DELTA), (1.0, 1e-6)):
        with pytest.raises(LedgerError, match="fixed once"):
            ledger.set_budget(*other)
    free = Ledger()
    reserve(specs(), free)
    with pytest.raises(LedgerError, match="before the first fit"):
        free.set_budget(8.0, DELTA)


@pytest.mark.parametrize(
    "budget",
    [
        (0.0, DELTA),
        (-1.0, DELTA),
        (math.inf, DELTA),
        (math.nan, DELTA),
        (1.0, 0.0),
        (1.0, 1.0),
    ],
)
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(LedgerError):
        Ledger().set_budget(*budget)


def test_a_budget_takes_private_fits_only():
    ledger = Ledger()
    ledger.set_budget(8.0, DELTA)
    with pytest.raises(LedgerError, match="noise_multiplier=0"):
        reserve(specs(1, 0.0, clip_norm=math.inf), ledger)


def test_a_full_batch_budget_refuses_poisson_batches():
    ledger = Ledger()
    ledger.set_budget(8.0, DELTA)
    reserve(specs(1, 10.0), ledger)
    with pytest.raises(LedgerError, match="full batches"):
        reserve(specs(1, 10.0, sampling_prob=0.1), ledger)


def test_mixed_fits_are_filtered_at_one_order_fixed_beforehand():
    """The first fit may use PLD: nothing was chosen adaptively.

    With a second, everything counts at the one order.
    """
    ledger = Ledger()
    ledger.set_budget(2.0, DELTA)
    order = ledger.budget()["order"]
    poisson = specs(200, 2.0, sampling_prob=0.02)
    reserve(poisson, ledger)
    accepted = [*[GaussianEvent(2.0, 0.02)] * 200]
    for _ in range(50):
        new = [*specs(1, 6.0), *specs(20, 2.0, sampling_prob=0.02)]
        events = [*accepted, GaussianEvent(6.0), *[GaussianEvent(2.0, 0.02)] * 20]
        total = accounting.rdp_epsilon(
            order, accounting.rdp_curve(events, [order])[0], DELTA
        )
        if total > 2.0:
            with pytest.raises(LedgerError, match="exceeded"):
                reserve(new, ledger)
            break
        reserve(new, ledger)
        accepted = events
    else:
        pytest.fail("the budget was never reached")
    assert len(accepted) > 200
    assert accounting.epsilon(ledger.events(), DELTA, accountant="pld") <= 2.0


def test_the_filter_does_not_choose_its_order_after_the_fits():
    """The least epsilon over the orders would have room for this fit: 1.65 of 2.

    The one order that was fixed with the budget gives 20.
    """
    ledger = Ledger()
    ledger.set_budget(2.0, DELTA)
    reserve(specs(1, 20.0, sampling_prob=0.01), ledger)
    second = specs(500, 1.0, sampling_prob=0.01)
    events = [*ledger.events(), GaussianEvent(1.0, 0.01, 500)]
    assert accounting.epsilon(events, DELTA, accountant="rdp") < 1.7
    with pytest.raises(LedgerError, match="exceeded"):
        reserve(second, ledger)
    assert len(ledger.fits()) == 1


SPEND = """
import sys
from core import *
from dphead.privacy.ledger import LedgerError
ledger, done = Ledger(sys.argv[1]), 0
for _ in range(6):
    try:
        reserve([spec_of(ClassSums(3), 40, sigma=float(sys.argv[2]))], ledger)
        done += 1
    except LedgerError:
        pass
print(done)
"""


def test_concurrent_processes_cannot_exceed_the_budget(path):
    """Four processes ask for 24 fits at once; the budget has room for exactly 7."""
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    started = [python(SPEND, path, sigma_for(1.0, 7), wait=False) for _ in range(4)]
    done = [int(p.communicate(timeout=120)[0]) for p in started]
    assert sum(done) == 7 == len(ledger.fits())
    assert accounting.epsilon(ledger.events(), DELTA) <= 1.0 * (1 + 1e-9)


# --- crash and resume -----------------------------------------------------------------

CRASH = """
import os, signal, sys
from pathlib import Path
from core import *
import dphead.privacy.ledger as module
from dphead.privacy.statistics import ClassSums, Params
folder, when = sys.argv[1:]
x, y = toy(40)
spec = spec_of(ClassSums(3), 40)
fit = reserve([spec] * 3, Ledger(folder + "/l.sqlite"), Path(folder, "run"))
print(fit.fit_id, flush=True)
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
parts = {"ledger": fit, "noise": NoiseSource(), "summer": door()}
first = release(ClassSums(3), Params(), ArrayRows(x, y), spec, **parts)
print(first.value.tobytes().hex(), flush=True)
class Dying(ArrayRows):
    def blocks(self, indices=None, known=None):
        yield from super().blocks(indices)
        if when == "while reading":
            die()
if when == "before the file":
    module.np.save = die
if when == "before the log":
    module.os.replace = lambda a, b, f=os.replace: (f(a, b), die())
if when == "after the commit":
    commit = fit.commit
    fit.commit = lambda *a: (commit(*a), die())
release(ClassSums(3), Params(), Dying(x, y), spec, **parts)
"""


@pytest.mark.parametrize(
    "when", ["while reading", "before the file", "before the log", "after the commit"]
)
def test_a_killed_run_resumes_reusing_what_was_released_and_redrawing_what_was_not(
    tmp_path, when
):
    crashed = python(CRASH, tmp_path, when)
    assert crashed.returncode == -signal.SIGKILL, crashed.err
    fit_id, first = crashed.out.split()
    ledger = Ledger(tmp_path / "l.sqlite")
    assert len(ledger.events()) == 1
    assert ledger.events()[0].count == 3
    states = [r["state"] for r in ledger.fits()[0]["releases"]]
    committed = when == "after the commit"
    assert states == ["committed", "committed" if committed else "started", "reserved"]
    stored = tmp_path / "run/000001.npy"
    left = np.load(stored) if stored.exists() else None
    fit = ledger.resume("hash", fit_id, tmp_path / "run")
    assert np.array_equal(run_release(fit).ravel(), np.frombuffer(bytes.fromhex(first)))
    second = run_release(fit)
    if committed:
        assert np.array_equal(second, left)
    elif left is not None:  # it was never returned: drawn afresh
        assert not np.array_equal(second, left)
    run_release(fit)
    assert ledger.events()[0].count == 3
    log = [
        r[0]
        for r in ledger._db.execute(
            "SELECT state FROM progress WHERE sequence = 1 ORDER BY id"
        )
    ]
    assert log == (
        ["started", "committed"] if committed else ["started", "redrawn", "committed"]
    )
    with pytest.raises(LedgerError, match="next one reserved"):
        run_release(fit)


def test_a_resumed_fit_reads_no_row_for_what_was_released(tmp_path):
    fit = reserve(specs(1), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    value = run_release(fit)
    fit._lock.close()

    class Unreadable(ArrayRows):
        def blocks(self, indices=None, known=None):
            raise AssertionError("a committed release must be reused")

    again = fit.ledger.resume("hash", fit.fit_id, tmp_path / "run")
    assert np.array_equal(run_release(again, rows=Unreadable(X, Y)), value)


def test_a_resumed_fit_must_be_the_one_that_was_charged(tmp_path):
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    for plan_hash, fit_id in (("other", fit.fit_id), ("hash", "unknown")):
        with pytest.raises(LedgerError, match="plan that was charged"):
            fit.ledger.resume(plan_hash, fit_id, tmp_path / "elsewhere")


SECOND = """
import sys
from pathlib import Path
from dphead.privacy.ledger import Ledger, LedgerError
try:
    Ledger(sys.argv[1]).resume("hash", sys.argv[2], Path(sys.argv[3]))
except LedgerError as error:
    print(error)
"""


def test_a_second_process_on_the_same_fit_is_refused(tmp_path):
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    other = python(SECOND, tmp_path / "l.sqlite", fit.fit_id, tmp_path / "run")
    assert "one process may run a fit" in other.out
    with pytest.raises(LedgerError, match="one process"):
        fit.ledger.resume("hash", fit.fit_id, tmp_path / "run")


def test_two_runs_of_one_fit_cannot_both_release_a_value(tmp_path):
    """Another folder has another lock: the first to commit counts, and the other's
    value is never returned.
    """
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    twin = Ledger(tmp_path / "l.sqlite").resume("hash", fit.fit_id, tmp_path / "copy")

    class Meanwhile(ArrayRows):
        def blocks(self, indices=None, known=None):
            yield from super().blocks(indices)
            run_release(twin)

    with pytest.raises(LedgerError, match="committed once"):
        run_release(fit, rows=Meanwhile(X, Y))
    third = fit.ledger.resume("hash", fit.fit_id, tmp_path / "third")
    with pytest.raises(LedgerError, match="never redrawn"):
        run_release(third)


def arrays(folder):
    """Every file of a folder that holds an array, or a part of one."""
    return sorted(p.name for p in folder.iterdir() if p.suffix in (".npy", ".part"))


class Overtaken(ArrayRows):
    """Rows whose reader is overtaken by another process of the same fit."""

    def __init__(self, twin):
        super().__init__(X, Y)
        self.twin, self.value = twin, None

    def blocks(self, indices=None, known=None):
        yield from super().blocks(indices)
        self.value = run_release(self.twin)


def test_a_value_that_lost_is_never_on_the_disk(tmp_path, monkeypatch):
    """Two noisy answers to one charged release would have twice its cost."""
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    twin = Ledger(tmp_path / "l.sqlite").resume("hash", fit.fit_id, tmp_path / "copy")
    rows = Overtaken(twin)
    written = []
    save = np.save
    monkeypatch.setattr(
        "dphead.privacy.ledger.np.save",
        lambda file, value, **k: (written.append(value), save(file, value, **k)),
    )
    with pytest.raises(LedgerError, match="committed once"):
        run_release(fit, rows=rows)
    assert arrays(tmp_path / "run") == []
    assert arrays(tmp_path / "copy") == ["000000.npy"]
    assert len(written) == 1
    assert np.array_equal(written[0], rows.value)


def test_a_value_that_lost_does_not_overwrite_the_one_that_counts(
    tmp_path, monkeypatch
):
    """One folder in spite of the lock, as on a disk of a network that knows no
    locks.
    """
    monkeypatch.setattr("dphead.privacy.ledger.fcntl.flock", lambda *_: None)
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    path = tmp_path / "l.sqlite"
    folder = tmp_path / "run"
    rows = Overtaken(Ledger(path).resume("hash", fit.fit_id, folder))
    with pytest.raises(LedgerError, match="committed once"):
        run_release(fit, rows=rows)
    assert arrays(folder) == ["000000.npy"]
    again = Ledger(path).resume("hash", fit.fit_id, folder)
    assert np.array_equal(run_release(again), rows.value)


@pytest.mark.parametrize("left", ["000000.npy", "000000.part"])
def test_what_a_crash_left_of_a_release_is_gone_before_it_is_drawn_again(
    tmp_path, left
):
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    fit.begin(specs()[0].row())
    fit._lock.close()
    with open(tmp_path / "run" / left, "wb") as file:
        np.save(file, np.ones(3))
    again = fit.ledger.resume("hash", fit.fit_id, tmp_path / "run")
    again.begin(specs()[0].row())
    assert arrays(tmp_path / "run") == []


@pytest.mark.parametrize("left", ["000000.npy", "000000.part"])
def test_what_a_crash_left_is_gone_after_another_process_has_released(tmp_path, left):
    """Killed between the file and the log; then a copy of the folder went on."""
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    fit.begin(specs()[0].row())
    fit._lock.close()
    with open(tmp_path / "run" / left, "wb") as file:
        np.save(file, np.ones((4, 3)))
    run_release(fit.ledger.resume("hash", fit.fit_id, tmp_path / "copy"))
    again = fit.ledger.resume("hash", fit.fit_id, tmp_path / "run")
    with pytest.raises(LedgerError, match="never redrawn"):
        run_release(again)
    assert arrays(tmp_path / "run") == []
    assert arrays(tmp_path / "copy") == ["000000.npy"]


def test_a_value_that_could_not_be_written_is_not_committed(tmp_path, monkeypatch):
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")

    def full(*_, **__):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr("dphead.privacy.ledger.np.save", full)
        run_release(fit)
    assert [r["state"] for r in fit.ledger.fits()[0]["releases"]] == ["started"]
    fit._lock.close()
    run_release(fit.ledger.resume("hash", fit.fit_id, tmp_path / "run"))


def test_a_stored_value_that_is_cut_short_is_refused(tmp_path):
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    run_release(fit)
    fit._lock.close()
    stored = tmp_path / "run/000000.npy"
    for size in (stored.stat().st_size - 8, 0):
        stored.write_bytes(stored.read_bytes()[:size] if stored.exists() else b"")
        again = fit.ledger.resume("hash", fit.fit_id, tmp_path / "run")
        with pytest.raises(LedgerError, match="never redrawn"):
            run_release(again)
        again._lock.close()


def test_a_stored_value_that_is_not_the_committed_one_is_refused(tmp_path):
    fit = reserve(specs(), Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    value = run_release(fit)
    fit._lock.close()
    np.save(tmp_path / "run/000000.npy", value + 1)
    again = fit.ledger.resume("hash", fit.fit_id, tmp_path / "run")
    with pytest.raises(LedgerError, match="never redrawn"):
        run_release(again)


def test_a_fit_without_a_folder_cannot_be_resumed_past_its_releases():
    fit = reserve(specs(2))
    run_release(fit)
    again = type(fit)(fit.ledger, fit.fit_id, None)
    with pytest.raises(LedgerError, match="never redrawn"):
        run_release(again)


@pytest.mark.parametrize("count", [1, 2])
def test_a_release_that_failed_cannot_be_asked_for_again(path, count):
    """An error in the middle of a pass does not allow a second try under one charge;
    one in the place of the next release would be out of order for ever.
    """
    ledger = Ledger(path)
    fit = reserve(specs(count), ledger)

    class Torn(ArrayRows):
        def blocks(self, indices=None, known=None):
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        run_release(fit, rows=Torn(X, Y))
    with pytest.raises(LedgerError, match=r"next one reserved|follow returned ones"):
        run_release(fit)
    assert ledger.verify() == []


def test_a_ledger_in_memory_counts_its_fits_and_has_a_budget():
    ledger = Ledger()
    assert ledger.path == ":memory:"
    ledger.set_budget(1.0, DELTA)
    fit = reserve(specs(1, sigma_for(1.0)), ledger)
    run_release(fit, spec=specs(1, sigma_for(1.0))[0])
    with pytest.raises(LedgerError, match="exceeded"):
        reserve(specs(1, 50.0), ledger)
    assert len(Ledger().fits()) == 0


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
from dphead.privacy.statistics import ClassSums, Params
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
        parts = {"ledger": fit, "noise": NoiseSource(), "summer": door()}
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
    forked = python(FORK, path, when)
    child, parent = forked.out.splitlines()
    assert parent == "parent done", forked.err
    assert child.startswith(
        "child a ledger must be used in the process that opened it, got process="
    )


def test_a_fork_with_the_same_process_id_is_refused(monkeypatch):
    """As the first processes of two containers have one."""
    ledger = Ledger()
    opened = ledger_module._process()
    monkeypatch.setattr(ledger_module, "_forks", [opened[1] + 1])
    with pytest.raises(LedgerError, match="in the process that opened it"):
        reserve(specs(), ledger)


def test_a_ledger_without_a_name_is_refused():
    """SQLite makes a temporary one of it, which counts nothing after the fit."""
    with pytest.raises(LedgerError, match="must be a file"):
        Ledger("")


def test_the_record_is_plain_data_with_every_setting(path):
    ledger = Ledger(path)
    reserve(specs(2, 3.0, clip_norm=0.5), ledger)
    fit = ledger.fits()[0]
    json.dumps(fit)
    assert fit["relation"] == "zero_out"
    assert [r["sequence"] for r in fit["releases"]] == [0, 1]
    spec = {
        "label": "test",
        "query": QUERY.name,
        "clip_norm": 0.5,
        "noise_multiplier": 3.0,
        "n_rows": 40,
    }
    assert fit["releases"][1].items() >= (spec | {"sampling_prob": 1.0}).items()


def test_no_time_finer_than_an_hour_leaves_a_ledger(path):
    """Neither of new fits nor of those whose exact time an earlier version stored."""
    ledger = Ledger(path)
    ledger._db.execute(
        "INSERT INTO fits VALUES ('old', 1700003599.5, '1.0', 1e-5, 'zero_out', 'p', "
        "'d')"
    )
    reserve(specs(), ledger)
    created = [fit["created"] for fit in ledger.fits()]
    assert created[0] == 1700002800
    assert all(at % 3600 == 0 for at in created)
    stored = ledger._db.execute("SELECT created FROM fits WHERE fit_id != 'old'")
    assert [at % 3600 for (at,) in stored] == [0]


def test_fits_are_in_the_order_of_their_charges_whatever_the_clock_says(
    path, monkeypatch
):
    ledger = Ledger(path)
    clock = iter([9e8, 5e8, 7e8, 7e8, 7e8])
    monkeypatch.setattr("dphead.privacy.ledger.time.time", lambda: next(clock))
    charged = [reserve(specs(), ledger).fit_id for _ in range(5)]
    assert [fit["fit_id"] for fit in ledger.fits()] == charged
    ledger._db.execute("VACUUM")
    assert [fit["fit_id"] for fit in ledger.fits()] == charged


def test_only_committed_releases_can_be_forgotten_and_none_is_made_twice(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    planned = [s.row() for s in specs(4)]
    charged = ledger.reserve(
        planned,
        epsilon=1.0,
        delta=1e-5,
        relation="zero_out",
        description="",
        plan_hash="p",
        store=tmp_path / "store",
    )
    for k in range(3):
        sequence, _ = charged.begin(planned[k])
        charged.commit(sequence, np.full(2, float(k)))
    charged._lock.close()
    again = ledger.resume("p", charged.fit_id, tmp_path / "store")
    with pytest.raises(LedgerError, match="committed before they are forgotten"):
        again.forget(4)
    again.forget(2)
    assert [p.name for p in (tmp_path / "store").glob("*.npy")] == ["000002.npy"]
    sequence, value = again.begin(planned[2])
    assert sequence == 2
    assert value.tolist() == [2.0, 2.0]
    again.forget(1)  # it never goes back
    assert again.begin(planned[3]) == (3, None)
    assert len(ledger.fits()[0]["releases"]) == 4


def test_a_fit_id_is_charged_once(path):
    """Also when two processes take it from copies of one folder."""
    fit_id = ledger_module.new_fit_id()
    given = {
        "epsilon": 1.0,
        "delta": DELTA,
        "relation": "zero_out",
        "description": "",
        "plan_hash": "",
        "fit_id": fit_id,
    }
    rows = [spec.row() for spec in specs()]
    ledger = Ledger(path)
    assert not ledger.holds(fit_id)
    assert ledger.reserve(rows, **given).fit_id == fit_id
    assert ledger.holds(fit_id)
    with pytest.raises(LedgerError, match="charged once"):
        Ledger(path).reserve(rows, **given)
    assert len(ledger.fits()) == 1


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
    with pytest.raises(LedgerError, match="not as SQLite wrote it"):
        reserve(specs(), Ledger(path))


def test_a_full_disk_is_one_error_and_nothing_is_charged(path):
    ledger = Ledger(path)
    pages = ledger._first("PRAGMA page_count")[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(LedgerError, match="full"):
        reserve(specs(500), ledger)
    assert ledger.fits() == []
    reserve(specs(), ledger)


@pytest.mark.parametrize("left", [0, 1, 99])
def test_a_ledger_that_was_cut_is_not_an_empty_one(path, left):
    filled(path)
    with open(path, "r+b") as file:
        file.truncate(left)
    with pytest.raises(LedgerError, match="a whole SQLite file"):
        Ledger(path)
    assert path.stat().st_size == left


def test_a_journal_without_its_ledger_is_not_played_into_a_new_one(path):
    path.parent.mkdir()
    path.with_name(path.name + "-journal").write_bytes(b"pages of the lost ledger")
    with pytest.raises(LedgerError, match="beside its journal"):
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


def damaged(path, statement, *values):
    """A ledger after a change that its triggers would refuse."""
    with sqlite3.connect(path) as db:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement, values)
    return Ledger(path)


def filled(path):
    """Three fits within a budget."""
    ledger = Ledger(path, "data")
    ledger.set_budget(3.0, DELTA)
    for sigma in (20.0, 30.0, 40.0):
        reserve(specs(2, sigma), ledger)
    assert ledger.verify() == []
    ledger.close()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("meta", "value", '{"epsilon": 9.0, "delta": 1e-05, "order": 2}'),
        ("meta", "key", "x"),
        ("fits", "fit_id", "x"),
        ("fits", "epsilon", "0.1"),
        ("fits", "delta", 0.5),
        ("fits", "relation", "add_remove"),
        ("fits", "plan_hash", "x"),
        ("fits", "description", "x"),
        ("fits", "created", 0.0),
        ("releases", "label", "x"),
        ("releases", "noise_multiplier", 1e6),
        ("releases", "sampling_prob", 0.1),
        ("releases", "spec", '{"noise_multiplier": 1e6, "sampling_prob": 1.0}'),
        ("releases", "spec", "{"),
        ("releases", "sequence", 7),
        ("seals", "digest", "x"),
        ("seals", "meta", "{}"),
        ("seals", "fits", 2),
    ],
)
def test_a_change_in_any_column_is_found_and_nothing_is_charged(
    path, table, column, value
):
    """Of any row: two flipped bits once lowered what a budget had spent, unseen."""
    filled(path)
    whole = path.read_bytes()
    with sqlite3.connect(path) as db:
        rowids = [row[0] for row in db.execute(f"SELECT rowid FROM {table}")]
    for rowid in rowids:
        path.write_bytes(whole)
        where = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
        ledger = damaged(path, where, value, rowid)
        if (table, column) == ("seals", "fits") and rowid == 3:
            continue  # it says the same
        assert ledger.verify() != [], rowid
        with pytest.raises(LedgerError, match="must be undamaged"):
            reserve(specs(1, 50.0), ledger)
        ledger.close()


def test_a_fit_that_is_gone_is_found(path):
    filled(path)
    for table in ("releases", "fits"):
        whole = path.read_bytes()
        query = f"DELETE FROM {table} WHERE rowid = (SELECT MIN(rowid) FROM {table})"
        assert damaged(path, query).verify() != []
        path.write_bytes(whole)


def test_fits_of_before_there_were_seals_are_under_the_first_one(path):
    filled(path)
    ledger = damaged(path, "DROP TABLE seals")
    assert ledger.verify() == []
    reserve(specs(1, 50.0), ledger)
    assert ledger.verify() == []
    ledger.close()
    assert damaged(path, "UPDATE fits SET delta = 0.5 WHERE rowid = 1").verify() != []


def test_a_release_of_an_unknown_state_is_not_drawn_again(path, tmp_path):
    """It may have been released."""
    store = tmp_path / "store"
    fit = reserve(specs(), Ledger(path), store)
    run_release(fit)
    fit._lock.close()
    again = Ledger(path).resume("hash", fit.fit_id, store)
    query = "UPDATE progress SET state = 'comlitted' WHERE state = 'committed'"
    other = damaged(path, query)
    with pytest.raises(LedgerError, match="states must be known"):
        run_release(again)
    again._lock.close()
    with pytest.raises(LedgerError, match="out of turn"):
        other.resume("hash", fit.fit_id, store)
    assert (store / "000000.npy").exists()


def test_an_index_that_hides_a_row_is_found(path):
    """A budget is read through the primary key's index, which is a copy."""
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("CREATE TABLE other (key TEXT PRIMARY KEY, value TEXT)")
        root = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (empty,) = db.execute(root, ("sqlite_autoindex_other_1",)).fetchone()
        change = "UPDATE sqlite_master SET rootpage = ? WHERE name = ?"
        db.execute(change, (empty, "sqlite_autoindex_meta_1"))
    ledger = Ledger(path)
    assert ledger.budget() is None  # it was fixed
    assert any("not as SQLite wrote it" in found for found in ledger.verify())
    with pytest.raises(LedgerError, match="must be undamaged"):
        reserve(specs(1, 50.0), ledger)
    with pytest.raises(LedgerError, match="must be undamaged"):
        ledger.set_budget(100.0, DELTA)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM progress WHERE state = 'started'",
        "UPDATE progress SET state = 'redrawn' WHERE state = 'started'",
        "UPDATE progress SET sequence = 1 WHERE state = 'committed'",
        "UPDATE progress SET sequence = 9",
        "UPDATE progress SET fit_id = 'x'",
        "INSERT INTO progress (fit_id, sequence, state, digest, at) "
        "SELECT fit_id, sequence, 'started', digest, at FROM progress LIMIT 1",
    ],
)
def test_a_ledger_whose_releases_are_out_of_order_continues_nothing(
    path, tmp_path, statement
):
    """Else a release could be drawn a second time under one charge. (A fit's last
    commit can be lost unseen: proofs/ledger.md.)
    """
    store = tmp_path / "store"
    fit = reserve(specs(2), Ledger(path), store)
    run_release(fit)
    fit._lock.close()
    assert Ledger(path).verify() == []
    ledger = damaged(path, statement)
    assert any("out of turn" in found for found in ledger.verify())
    with pytest.raises(LedgerError, match="must be undamaged"):
        ledger.resume("hash", fit.fit_id, store)


def test_a_folder_that_another_process_holds_is_found_before_the_charge(path, tmp_path):
    store = tmp_path / "store"
    ledger = Ledger(path)
    held = reserve(specs(), ledger, store)
    with pytest.raises(LedgerError, match="one process may run a fit"):
        reserve(specs(), ledger, store)
    assert [fit["fit_id"] for fit in ledger.fits()] == [held.fit_id]


def test_a_refused_charge_leaves_its_folder(path, tmp_path):
    store = tmp_path / "store"
    ledger = Ledger(path)
    ledger.set_budget(0.001, DELTA)
    with pytest.raises(LedgerError, match="budget"):
        reserve(specs(), ledger, store)
    assert not store.exists()


def test_a_lock_that_was_removed_after_it_was_opened_is_not_held(
    path, tmp_path, monkeypatch
):
    """The next process would lock a file of its own, and both would write there."""
    store = tmp_path / "store"
    flock = ledger_module.fcntl.flock

    def late(*args):
        (store / "lock").unlink()
        flock(*args)

    monkeypatch.setattr(ledger_module.fcntl, "flock", late)
    with pytest.raises(LedgerError, match="one process may run a fit"):
        reserve(specs(), Ledger(path), store)


@pytest.mark.parametrize("after", ["GROUP BY fit_id", "FROM meta", "FROM seals"])
def test_a_charge_by_another_process_is_no_damage(path, monkeypatch, after):
    """Between any two queries of a check; its refusal would tell the holder to put back
    an old copy.
    """
    filled(path)
    ledger = Ledger(path)
    other = Ledger(path)
    read = ledger._all
    late = []

    def charged(query, *values):
        found = read(query, *values)
        if after in query and not late:
            late.append(query)
            with contextlib.suppress(LedgerError):  # the file is locked, or free
                run_release(reserve(specs(1, 50.0), other), spec=specs(1, 50.0)[0])
        return found

    other._db.execute("PRAGMA busy_timeout = 0")
    monkeypatch.setattr(ledger, "_all", charged)
    assert ledger.verify() == []
    assert late
    assert Ledger(path).verify() == []
