"""The reserved releases of a fit: in order and returned once; crashes only waste."""

import os
import signal
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from commands import Fork
from core import reserve
from ledgers import DELTA, Killed, X, Y, damaged, resumed, run_release, specs, stored

from dphead.data.arrays import ArrayRows
from dphead.privacy import atomic_write
from dphead.privacy.ledger import Ledger, LedgerError


def test_keys_samples_and_sums_never_reach_the_disk(tmp_path):
    """Every file of a run: the only array is the noisy value."""
    fit = stored(tmp_path, 2, sampling_prob=0.5)
    value = [run_release(fit, None, specs(sampling_prob=0.5)[0]) for _ in range(2)]
    files = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert files == ["000000.npy", "000001.npy", "l.sqlite", "lock", "returned"]
    assert np.array_equal(np.load(tmp_path / "run/000001.npy"), value[1])
    assert (tmp_path / "run/lock").read_bytes() == b""


CRASH = """
import os, signal, sys
from pathlib import Path
from core import *
import dphead.privacy.ledger.charge as module
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums
folder, when = sys.argv[1:]
x, y = toy(40)
spec = spec_of(ClassSums(3), 40)
fit = reserve([spec] * 3, Ledger(folder + "/l.sqlite"), Path(folder, "run"))
print(fit.fit_id, flush=True)
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
parts = {"ledger": fit, "noise": NoiseSource(), "summer": verified()}
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
    os.replace = lambda a, b, f=os.replace: (f(a, b), die())
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
    crashed = Fork(tmp_path, CRASH, tmp_path, when).wait()
    assert crashed.code == -signal.SIGKILL, crashed.err
    fit_id, first = crashed.out.split()
    ledger = Ledger(tmp_path / "l.sqlite")
    assert len(ledger.events()) == 1
    assert ledger.events()[0].count == 3
    states = [r["state"] for r in ledger.fits()[0]["releases"]]
    committed = when == "after the commit"
    assert states == ["committed", "committed" if committed else "started", "reserved"]
    file = tmp_path / "run/000001.npy"
    left = np.load(file) if file.exists() else None
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
    with pytest.raises(LedgerError, match="is not the next one"):
        run_release(fit)


def test_a_resumed_fit_reads_no_row_for_what_was_released(tmp_path):
    fit = stored(tmp_path, 1)
    value = run_release(fit)
    fit._lock.close()

    class Unreadable(ArrayRows):
        def blocks(self, indices=None, known=None):
            raise AssertionError("a committed release must be reused")

    again = resumed(fit, tmp_path / "run")
    assert np.array_equal(run_release(again, rows=Unreadable(X, Y)), value)


def test_a_resumed_fit_must_be_the_one_that_was_charged(tmp_path):
    fit = stored(tmp_path)
    for plan_hash, fit_id in (("other", fit.fit_id), ("hash", "unknown")):
        with pytest.raises(LedgerError, match=r"no fit .* with this plan"):
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
    fit = stored(tmp_path)
    given = (tmp_path / "l.sqlite", fit.fit_id, tmp_path / "run")
    other = Fork(tmp_path, SECOND, *given).wait()
    assert "Another process runs the fit" in other.out
    with pytest.raises(LedgerError, match="Another process"):
        resumed(fit, tmp_path / "run")


def test_two_runs_of_one_fit_cannot_both_release_a_value(tmp_path):
    """Another folder has another lock: the first to commit counts, and the other's
    value is never returned, nor written. Two noisy answers to one charged release would
    have twice its cost.
    """
    fit = stored(tmp_path)
    rows = Overtaken(resumed(fit, tmp_path / "copy"))
    with pytest.raises(LedgerError, match="has committed release"):
        run_release(fit, rows=rows)
    assert arrays(tmp_path / "run") == []
    assert arrays(tmp_path / "copy") == ["000000.npy"]
    third = resumed(fit, tmp_path / "third")
    with pytest.raises(LedgerError, match="never drawn again"):
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


def test_a_value_that_lost_does_not_overwrite_the_one_that_counts(
    tmp_path, monkeypatch
):
    """One folder in spite of the lock, as on a disk of a network that knows no
    locks.
    """
    monkeypatch.setattr("dphead.privacy.atomic_write.fcntl.flock", lambda *_: None)
    fit = stored(tmp_path)
    folder = tmp_path / "run"
    rows = Overtaken(resumed(fit, folder))
    with pytest.raises(LedgerError, match="has committed release"):
        run_release(fit, rows=rows)
    assert arrays(folder) == ["000000.npy"]
    assert np.array_equal(run_release(resumed(fit, folder)), rows.value)


@pytest.mark.parametrize("left", ["000000.npy", "000000.npy.part"])
def test_what_a_crash_left_of_a_release_is_gone_before_it_is_drawn_again(
    tmp_path, left
):
    fit = stored(tmp_path)
    fit.begin(specs()[0].row())
    fit._lock.close()
    with open(tmp_path / "run" / left, "wb") as file:
        np.save(file, np.ones(3))
    again = resumed(fit, tmp_path / "run")
    again.begin(specs()[0].row())
    assert arrays(tmp_path / "run") == []


@pytest.mark.parametrize("left", ["000000.npy", "000000.npy.part"])
def test_what_a_crash_left_is_gone_after_another_process_has_released(tmp_path, left):
    """Killed between the file and the log; then a copy of the folder went on."""
    fit = stored(tmp_path)
    fit.begin(specs()[0].row())
    fit._lock.close()
    with open(tmp_path / "run" / left, "wb") as file:
        np.save(file, np.ones((4, 3)))
    run_release(resumed(fit, tmp_path / "copy"))
    again = resumed(fit, tmp_path / "run")
    with pytest.raises(LedgerError, match="never drawn again"):
        run_release(again)
    assert arrays(tmp_path / "run") == []
    assert arrays(tmp_path / "copy") == ["000000.npy"]


def test_a_value_that_could_not_be_written_is_not_committed(tmp_path, monkeypatch):
    fit = stored(tmp_path)

    def full(*_, **__):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr("dphead.privacy.ledger.charge.np.save", full)
        run_release(fit)
    assert [r["state"] for r in fit.ledger.fits()[0]["releases"]] == ["started"]
    fit._lock.close()
    run_release(resumed(fit, tmp_path / "run"))


@pytest.mark.parametrize("damage", ["another", "cut", "empty", "gone"])
def test_a_stored_value_that_is_not_the_committed_one_is_refused(tmp_path, damage):
    fit = stored(tmp_path)
    value = run_release(fit)
    fit._lock.close()
    file = tmp_path / "run/000000.npy"
    size = {"cut": file.stat().st_size - 8, "empty": 0}
    if damage == "another":
        np.save(file, value + 1)
    elif damage == "gone":
        file.unlink()
    else:
        os.truncate(file, size[damage])
    again = resumed(fit, tmp_path / "run")
    with pytest.raises(LedgerError, match="never drawn again"):
        run_release(again)


def test_a_fit_without_a_folder_cannot_be_resumed_past_its_releases():
    fit = reserve(specs(2))
    run_release(fit)
    again = type(fit)(fit.ledger, fit.fit_id, None)
    with pytest.raises(LedgerError, match="never drawn again"):
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
    with pytest.raises(LedgerError, match=r"is not the next one|cannot begin"):
        run_release(fit)
    assert ledger.verify() == []


def test_only_committed_releases_can_be_forgotten_and_none_is_made_twice(tmp_path):
    fit = stored(tmp_path, 4)
    row = specs()[0].row()
    for k in range(3):
        sequence, _ = fit.begin(row)
        fit.commit(sequence, np.full(2, float(k)))
    fit._lock.close()
    again = resumed(fit, tmp_path / "run")
    with pytest.raises(LedgerError, match="cannot be forgotten"):
        again.forget(4)
    again.forget(2)
    assert arrays(tmp_path / "run") == ["000002.npy"]
    sequence, value = again.begin(row)
    assert sequence == 2
    assert value.tolist() == [2.0, 2.0]
    again.forget(1)  # it never goes back
    assert again.begin(row) == (3, None)


def test_a_release_of_an_unknown_state_is_not_drawn_again(path, tmp_path):
    """It may have been released."""
    store = tmp_path / "store"
    fit = reserve(specs(), Ledger(path), store)
    run_release(fit)
    fit._lock.close()
    again = Ledger(path).resume("hash", fit.fit_id, store)
    query = "UPDATE progress SET state = 'comlitted' WHERE state = 'committed'"
    other = damaged(path, query)
    with pytest.raises(LedgerError, match="has the states"):
        run_release(again)
    again._lock.close()
    with pytest.raises(LedgerError, match="out of turn"):
        other.resume("hash", fit.fit_id, store)
    assert (store / "000000.npy").exists()


def test_a_folder_that_another_process_holds_is_found_before_the_charge(path, tmp_path):
    store = tmp_path / "store"
    ledger = Ledger(path)
    held = reserve(specs(), ledger, store)
    with pytest.raises(LedgerError, match="Another process runs the fit"):
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
    flock = atomic_write.fcntl.flock

    def late(*args):
        (store / "lock").unlink()
        flock(*args)

    monkeypatch.setattr(atomic_write.fcntl, "flock", late)
    with pytest.raises(LedgerError, match="Another process runs the fit"):
        reserve(specs(), Ledger(path), store)


EPOCH = {"epoch_steps": 4}


class Asked(ArrayRows):
    """Rows that note which slots each release used."""

    def __init__(self):
        super().__init__(X, Y)
        self.used = []

    def blocks(self, indices=None, known=None):
        self.used.append([] if indices is None else indices.tolist())
        return super().blocks(indices, known)


def allocated(fit, rows, times, seed=None):
    """Releases of a fit of two epochs of four steps."""
    return [run_release(fit, seed, specs(**EPOCH)[0], rows) for _ in range(times)]


def everything(rows):
    return sorted(slot for used in rows.used for slot in used)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("done", [1, 2, 3])
def test_no_row_is_used_after_a_resume_within_an_epoch(tmp_path, done, seed):
    """A new allocation could use a row a second time, and the old one is gone: the rest
    of the epoch is noise. The next epoch is whole.
    """
    fit = stored(tmp_path, 8, **EPOCH)
    before = Asked()
    allocated(fit, before, done, seed)
    fit._lock.close()
    fit = resumed(fit, tmp_path / "run")
    fit.forget(done // 2)  # of a checkpoint, or none
    after = Asked()
    values = allocated(fit, after, 8 - done // 2, seed)
    rest = 4 - done
    assert after.used[:rest] == [[]] * rest
    assert len(after.used) == rest + 4
    assert everything(after) == list(range(40))
    assert len(set(everything(before))) == len(everything(before))
    assert all(np.any(value) for value in values)  # there is noise in each
    assert fit.ledger.events()[0].epochs == 2


@pytest.mark.parametrize("done", [0, 4])
def test_an_epoch_of_which_nothing_was_released_is_drawn_anew(tmp_path, done):
    """Its first release was in flight, and never observed."""
    fit = stored(tmp_path, 8, **EPOCH)
    allocated(fit, Asked(), done)

    class Failing(Asked):
        def blocks(self, indices=None, known=None):
            raise OSError

    with pytest.raises(OSError):
        allocated(fit, Failing(), 1)
    fit._lock.close()
    fit = resumed(fit, tmp_path / "run")
    after = Asked()
    allocated(fit, after, 8)
    assert len(after.used) == 8 - done
    assert everything(after) == sorted([*range(40)] * (2 - done // 4))


def test_of_two_runs_of_one_epoch_one_allocation_counts(tmp_path):
    """A copied run folder: what the loser has drawn is of no use to it."""
    fit = stored(tmp_path, 4, **EPOCH)
    twin = resumed(fit, tmp_path / "copy")
    first = Asked()

    class Meanwhile(Asked):
        def blocks(self, indices=None, known=None):
            yield from super().blocks(indices, known)
            allocated(twin, first, 1)

    with pytest.raises(LedgerError, match="has committed release"):
        allocated(fit, Meanwhile(), 1)
    second = Asked()
    allocated(fit, second, 1)  # the next of the epoch, before the twin
    assert second.used == [[]]
    with pytest.raises(LedgerError, match="never drawn again"):
        allocated(twin, first, 1)
    assert len(first.used) == 1


def test_epochs_begin_at_the_first_of_equal_releases(tmp_path):
    """Other releases before them do not move them."""
    rows = Asked()
    fit = reserve([*specs(3), *specs(4, **EPOCH)])
    assert [fit.step_of(i, 4) for i in range(3, 7)] == [0, 1, 2, 3]
    for _ in range(3):
        run_release(fit)
    allocated(fit, rows, 4)
    assert everything(rows) == list(range(40))


def test_an_allocation_never_reaches_the_disk(tmp_path):
    """No file of a run holds a row's step, in any width that numpy would write."""
    fit = stored(tmp_path, 4, **EPOCH)
    allocated(fit, None, 2)
    steps = fit.allocation._steps
    assert steps is not None
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    names = ["000000.npy", "000001.npy", "l.sqlite", "lock", "returned"]
    assert sorted(p.name for p in files) == names
    for file in files:
        for dtype in (np.int64, np.uint32, np.uint8):
            assert steps.astype(dtype).tobytes() not in file.read_bytes()


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


def test_a_value_that_lost_is_never_on_the_disk(tmp_path, monkeypatch):
    """Two noisy answers to one charged release would have twice its cost."""
    fit = stored(tmp_path)
    twin = Ledger(tmp_path / "l.sqlite").resume("hash", fit.fit_id, tmp_path / "copy")
    rows = Overtaken(twin)
    written = []
    save = np.save
    monkeypatch.setattr(
        "dphead.privacy.ledger.charge.np.save",
        lambda file, value, **k: (written.append(value), save(file, value, **k)),
    )
    with pytest.raises(LedgerError, match="has committed release"):
        run_release(fit, rows=rows)
    assert arrays(tmp_path / "run") == []
    assert arrays(tmp_path / "copy") == ["000000.npy"]
    assert len(written) == 1
    assert np.array_equal(written[0], rows.value)


def test_a_stored_value_that_is_cut_short_is_refused(tmp_path):
    fit = stored(tmp_path)
    run_release(fit)
    fit._lock.close()
    file = tmp_path / "run/000000.npy"
    for size in (file.stat().st_size - 8, 0):
        file.write_bytes(file.read_bytes()[:size] if file.exists() else b"")
        again = resumed(fit, tmp_path / "run")
        with pytest.raises(LedgerError, match="never drawn again"):
            run_release(again)
        again._lock.close()


def restored(fit, copy):
    """The fit, resumed after its ledger file was replaced by an older copy."""
    fit._lock.close()
    fit.ledger.close()
    path = Path(fit.ledger.path)
    path.write_bytes(copy)
    return Ledger(path).resume("hash", fit.fit_id, path.parent / "run")


def test_an_older_copy_of_the_ledger_draws_no_returned_release_again(tmp_path):
    """The copy has the fit, and the releases before the copy was made."""
    fit = stored(tmp_path, 3)
    first = run_release(fit)
    copy = (tmp_path / "l.sqlite").read_bytes()
    run_release(fit)
    again = restored(fit, copy)
    assert np.array_equal(run_release(again), first)
    with pytest.raises(LedgerError, match=r"release 1 .* was already returned"):
        run_release(again)
    assert arrays(tmp_path / "run") == ["000000.npy", "000001.npy"]
    again = restored(again, copy)
    with pytest.raises(LedgerError, match=r"release 1 .* was already returned"):
        again.forget(2)  # a checkpoint after both


def test_a_value_is_noted_before_a_resumed_run_returns_it(tmp_path, monkeypatch):
    """A process died between the commit and the note of a returned release."""
    fit = stored(tmp_path, 2)
    copy = (tmp_path / "l.sqlite").read_bytes()

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("dphead.privacy.ledger.charge.write_text", die)
        run_release(fit)
    fit._lock.close()
    again = resumed(fit, tmp_path / "run")
    run_release(again)
    with pytest.raises(LedgerError, match=r"release 0 .* was already returned"):
        run_release(restored(again, copy))


def test_a_note_of_another_fit_in_the_folder_does_not_count(tmp_path):
    fit = stored(tmp_path)
    run_release(fit)
    fit._lock.close()
    second = reserve(specs(), fit.ledger, tmp_path / "run")
    run_release(second)
    note = (tmp_path / "run/returned").read_text()
    assert note == f"1 {second.fit_id}"
