"""A run's folder and its charge, through crashes, other ledgers and other processes."""

import errno
import json
import os
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
from commands import (
    LS,
    charges,
    dphead,
    fit,
    fitted,
    ledger_of,
    refusal,
    report_of,
    words,
)
from dphead_extract.features.format import open_features
from sqlalchemy.engine.default import DefaultDialect

from dphead.analysis.sealed import write_json
from dphead.fit import run as fit_files
from dphead.fit import run_folder
from dphead.privacy import atomic_write
from dphead.privacy.ledger import Ledger, seals
from dphead.privacy.ledger.store import LedgerFile


class Crash(BaseException):
    """What nothing catches."""


def crashed(monkeypatch, name, when, *command, module=run_folder):
    """A command that dies before or after the first call of a function of a module."""
    whole = getattr(module, name)

    def dying(*args, **more):
        if when == "after":
            whole(*args, **more)
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(module, name, dying)
        dphead(*command)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_dies_at_its_charge_is_charged_once(
    when, features, run, monkeypatch
):
    """Its id is on the disk before the ledger has it."""
    command = ("fit", features, "-o", run, *LS)
    crashed(monkeypatch, "charge_ledger", when, *command)
    assert (run / "fit.json").exists()
    held = json.loads((run / "fit.json").read_text())["fit_id"]
    assert charges() == (when == "after")
    fitted(*command)
    assert [fit["fit_id"] for fit in ledger_of(features).fits()] == [held]
    assert report_of(run)["ledger"]["fit_id"] == held


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("settled", [True, False])
def test_a_charge_whose_commit_failed_is_looked_up_by_its_id(
    features, run, monkeypatch, written, settled
):
    """COMMIT raised although it wrote the charge, or did not. Where the disk answers
    again, this run knows; otherwise the next one.
    """
    command = ("fit", features, "-o", run, *LS)
    commit, seal = DefaultDialect.do_commit, seals.seal
    struck = []

    def failing(self, connection):
        if struck != ["charge"]:
            return commit(self, connection)
        struck.append("COMMIT")
        if written:
            commit(self, connection)
        raise sqlite3.OperationalError("disk I/O error")

    def unsynced(self):
        raise OSError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(seals, "seal", lambda book: struck.append(seal(book) or "charge"))
        patch.setattr(DefaultDialect, "do_commit", failing)
        if not settled:
            patch.setattr(LedgerFile, "_sync_folder", unsynced)
        if settled and written:
            fitted(*command)
            assert not (run / "fit.json").exists()
        else:
            said = refusal(*command)
            assert ("Nothing was charged" in said) == settled
            assert ("charged at most once" in said) == (not settled)
            assert (run / "fit.json").exists() == (not settled)
    assert struck[:2] == ["charge", "COMMIT"] and charges() == written
    if not (settled and written):
        fitted(*command)
    assert charges() == 1


def test_a_charge_that_the_ledger_still_wrote_when_it_was_looked_for_is_kept(
    features, run, monkeypatch
):
    """A server may write a lost charge after the next run has asked for its id."""
    command = ("fit", features, "-o", run, *LS)
    crashed(monkeypatch, "charge_ledger", "after", *command)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "holds", lambda self, fit_id: False)
        assert "already charged" in refusal(*command)
    fitted(*command)
    assert charges() == 1


def test_a_charge_that_came_before_a_change_of_mind_is_not_lost(
    features, run, monkeypatch
):
    """Not yet charged, other settings are another fit; charged, they are refused."""
    command = ("fit", features, "-o", run, *LS)
    crashed(monkeypatch, "charge_ledger", "before", *command)
    crashed(monkeypatch, "charge_ledger", "after", *command, "--epsilon", 2)
    assert charges() == 1
    refusal(*command)
    fitted(*command, "--epsilon", 2)
    assert charges() == 1


def test_an_interrupted_fit_is_not_charged_again_in_another_ledger(
    features, run, tmp_path, monkeypatch
):
    command = ("fit", features, "-o", run, *LS)
    other = tmp_path / "other.sqlite"
    crashed(monkeypatch, "charge_ledger", "before", *command)
    said = refusal(*command, "--ledger", other)
    assert "lacks the interrupted fit" in said
    assert Ledger(other).fits() == []
    fitted(*command)
    assert charges() == 1


def test_an_interrupted_fit_is_not_charged_again_behind_a_link_that_was_moved(
    features, run, tmp_path, monkeypatch
):
    books = [tmp_path / "first.sqlite", tmp_path / "second.sqlite"]
    link = tmp_path / "link.sqlite"
    for book in books:
        Ledger(book).close()
    link.symlink_to(books[0])
    command = ("fit", features, "-o", run, *LS, "--ledger", link)
    crashed(monkeypatch, "charge_ledger", "before", *command)
    link.unlink()
    link.symlink_to(books[1])
    said = refusal(*command)
    assert f"the ledger {books[1]} lacks the interrupted fit" in said
    assert f"Pass --ledger {books[0]}" in said
    assert Ledger(books[1]).fits() == []
    fit(features, run, "--ledger", books[0])
    assert len(Ledger(books[0]).fits()) == 1


@pytest.mark.parametrize("kept", ["releases/000000.npy", "checkpoint.npz"])
def test_what_was_released_is_not_drawn_again_for_a_ledger_that_forgot_it(
    features, run, tmp_path, kept
):
    """A ledger that was put back from before the charge: the folder's releases, or the
    checkpoint that was made of them, answer a charge that it does not hold.
    """
    (run / kept).parent.mkdir(parents=True)
    (run / kept).write_bytes(b"released")
    book = tmp_path / "book.sqlite"
    marker = {"fit_id": "a" * 32, "ledger": str(book)}
    write_json(run / "fit.json", marker)
    said = refusal("fit", features, "-o", run, *LS, "--ledger", book)
    assert "lacks the interrupted fit" in said
    assert Ledger(book).fits() == []


def test_a_refused_charge_leaves_neither_folder_nor_marker(features, run):
    fitted("ledger", "budget", features, "--epsilon", 0.5, "--delta", 1e-5)
    refusal("fit", features, "-o", run, *LS)
    assert not run.exists()
    run.mkdir()
    refusal("fit", features, "-o", run, *LS)
    assert list(run.iterdir()) == []


def test_one_process_writes_a_run_folder(features, run):
    with run_folder.locked(run):
        said = refusal("fit", features, "-o", run, *LS)
        assert "another process is writing" in said
        assert charges() == 0
    assert not run.exists()
    fit(features, run)
    assert not (run / "lock").exists()
    with (
        pytest.raises(ValueError, match="holds a finished run"),
        run_folder.locked(run),
    ):
        pass


def test_a_lock_that_was_removed_while_it_was_taken_does_not_count(run, monkeypatch):
    """Its holder ended between the open and the lock: the next one has a new file."""
    run.mkdir()
    flock = atomic_write.fcntl.flock
    names = []

    def late(lock, how):
        if not names:
            (run / "lock").unlink()
        names.append(lock.fileno())
        flock(lock, how)

    monkeypatch.setattr(atomic_write.fcntl, "flock", late)
    with run_folder.locked(run):
        assert len(names) == 2
        assert (run / "lock").exists()


def test_a_disk_that_flushes_no_folder_is_named_before_the_charge(
    features, run, monkeypatch
):
    """What `os.fsync` raises has no name of a file."""
    fsync = os.fsync

    def partly(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", partly)
    said = refusal("fit", features, "-o", run, *LS)
    assert f"The file system of {run.parent} cannot flush a folder" in said
    assert "-o for runs, --ledger or DPHEAD_HOME" in said
    assert charges() == 0


def test_records_are_on_the_disk_before_stored_releases_go(features, run, monkeypatch):
    """Each file's bytes before its name, and its name before the next file."""
    seen = []

    def spy(place, name, said):
        real = getattr(place, name)

        def spied(*given, **more):
            seen.append(said(*given))
            return real(*given, **more)

        monkeypatch.setattr(place, name, spied)

    spy(os, "fsync", lambda _: "sync")
    spy(os, "replace", lambda _, path: Path(path).name)
    spy(run_folder.shutil, "rmtree", lambda path: Path(path).name)
    fit(features, run)
    records = ["head.safetensors", "head.json", "run.toml", "report.html"]
    records += ["ledger.json", "report.json"]
    wanted = [part for name in records for part in ("sync", name, "sync")]
    first = seen.index("head.safetensors") - 1
    assert seen[first : seen.index("releases", first) + 1] == [*wanted, "releases"]


def test_what_is_private_is_the_owners_alone(features, run, monkeypatch):
    command = ("fit", features, "-o", run, *LS)
    crashed(monkeypatch, "_write", "before", *command, module=fit_files)

    def mode(path):
        return stat.S_IMODE(os.stat(path).st_mode)

    book = Path(ledger_of(features).path)
    assert mode(book) == 0o600
    assert mode(book.parent) == 0o700
    assert mode(features) == 0o600
    assert mode(run / "releases") == 0o700


def test_a_run_that_died_after_its_report_is_tidied(features, run, monkeypatch):
    command = ("fit", features, "-o", run, *LS)
    crashed(monkeypatch, "_tidy", "before", *command)
    assert (run / "report.json").exists()
    assert (run / "releases").exists()
    assert "holds a finished run" in refusal(*command)
    assert not {p.name for p in run.iterdir()} & {"releases", "fit.json", "lock"}
    assert charges() == 1


@pytest.mark.parametrize("command", ["check", "report", "export", "predict"])
def test_a_run_with_private_files_is_neither_checked_nor_used(
    command, features, run, tmp_path, monkeypatch
):
    """It died after its report. fit.json tests guesses of the rows for its holder."""
    fitting = ("fit", features, "-o", run, *LS)
    crashed(monkeypatch, "_tidy", "before", *fitting)
    more = {
        "export": ["--to", "sklearn", "-o", tmp_path / "out"],
        "predict": [features],
    }
    used = (command, run, *more.get(command, []))
    said = refusal(*used)
    assert "ended before it removed its private files" in said
    if command in ("check", "report"):  # they take the report too
        assert said == refusal(command, run / "report.json")
    assert "Repeat the command that started the run" in said
    assert "holds a finished run" in refusal(*fitting)
    assert dphead(*used).code == (command == "check")  # features of unknown origin


def test_a_run_keeps_fit_json_while_its_releases_stay(features, run, monkeypatch):
    """The disk fails as they are removed. The same command removes them later."""
    with monkeypatch.context() as failing:
        failing.setattr(run_folder.shutil, "rmtree", lambda *_, **__: None)
        fit(features, run)
    assert (run / "releases").exists() and (run / "report.json").exists()
    assert (run / "fit.json").exists()
    assert "ended before it removed its private files" in refusal("check", run)
    assert "holds a finished run" in refusal("fit", features, "-o", run, *LS)
    assert not {p.name for p in run.iterdir()} & {"releases", "fit.json", "lock"}
    assert charges() == 1


def test_only_the_folders_own_files_are_part_of_the_release(features, run):
    """A folder named releases came back, as from a copy of the unfinished run."""
    fit(features, run)
    (run / "releases").mkdir()
    said = words(dphead("check", run).out)
    assert "releases is in the run folder, but is not part of the release" in said


def test_fit_json_tests_no_guess_of_a_row(run, tmp_path, monkeypatch):
    """Whoever imports the same table has another secret than the run's file."""
    held = []
    np.savez(tmp_path / "table.npz", features=np.eye(40, 6), labels=np.arange(40) % 2)
    for name in ("own", "guess"):
        monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / f"home {name}"))
        table = ("features", "import", tmp_path / "table.npz", "--classes", "0,1")
        fitted(*table, "-o", tmp_path / f"{name}.h5")
        command = ("fit", tmp_path / f"{name}.h5", "-o", tmp_path / name, *LS)
        crashed(monkeypatch, "write_report", "before", *command, module=fit_files)
        with open_features(tmp_path / f"{name}.h5") as file:
            rows = json.loads((tmp_path / name / "fit.json").read_text())["asked"]
            held.append((file.config_hash, rows["rows"]))
        fitted(*command)
    (own, stored), (guess, other) = held
    assert own == guess
    assert stored != other


def test_a_resume_counts_the_fits_before_it_like_a_new_run(features, run, monkeypatch):
    """They can have decided the settings."""
    fit(features, run.with_name("first"))
    command = ("fit", features, "-o", run, *LS)
    assert "--tuning none is not true" in refusal(*command, "--tuning", "none")
    crashed(monkeypatch, "write_report", "before", *command, module=fit_files)
    assert "--tuning none is not true" in refusal(*command, "--tuning", "none")
    fitted(*command)


def test_a_resume_of_a_ledgers_first_fit_may_say_that_nothing_was_tuned(
    features, run, monkeypatch
):
    command = ("fit", features, "-o", run, *LS, "--tuning", "none")
    crashed(monkeypatch, "write_report", "before", *command, module=fit_files)
    fit(features, run.with_name("later"))
    fitted(*command)


def test_a_marker_that_was_changed_is_refused(features, run, monkeypatch):
    """Under another id the fit would be charged again."""
    command = ("fit", features, "-o", run, *LS)
    crashed(monkeypatch, "write_report", "before", *command, module=fit_files)
    marker = run / "fit.json"
    whole = marker.read_text()
    held = json.loads(whole)["fit_id"]
    for text in (whole.replace(held, held[::-1]), "[]", "{", '{"ledger": "x"}'):
        marker.write_text(text)
        assert "fit.json" in refusal(*command)
    marker.write_text(whole)
    fitted(*command)
    assert charges() == 1


def test_a_disk_without_locks_is_not_called_a_second_process(run, monkeypatch):
    def none(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(atomic_write.fcntl, "flock", none)
    message = "no locks .*Operation not supported.*another file system with -o"
    with pytest.raises(OSError, match=message), run_folder.locked(run):
        pass
    # the file stays: another process may hold it, where flock fails for a moment
    monkeypatch.undo()
    with run_folder.locked(run):
        pass


@pytest.mark.parametrize("name", ["lock", "releases"])
def test_a_link_in_a_run_folder_is_refused_before_the_charge(
    name, features, run, tmp_path
):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (victim := elsewhere / "000000.npy").write_text("another program's file")
    run.mkdir()
    (run / name).symlink_to(victim if name == "lock" else elsewhere)
    said = refusal("fit", features, "-o", run, *LS)
    assert f"{run / name} is a link" in said
    assert charges() == 0
    assert victim.read_text() == "another program's file"
    (run / name).unlink()
    fitted("fit", features, "-o", run, *LS)


@pytest.mark.parametrize(
    "name", ["head.safetensors", "report.json.part", "releases/000000.npy"]
)
def test_a_folder_under_the_name_of_a_file_is_refused_before_the_charge(
    name, features, run
):
    (run / name).mkdir(parents=True)
    assert f"{run / name} is a folder" in refusal("fit", features, "-o", run, *LS)
    assert charges() == 0


def test_links_under_the_names_of_a_runs_files_are_replaced(features, run, tmp_path):
    """The files of a finished run are the names that a run can have."""
    fitted("fit", features, "-o", run, *LS)
    names = [path.name for path in run.iterdir()] + ["fit.json"]
    (other := tmp_path / "other").mkdir()
    victims = tmp_path / "victims"
    victims.mkdir()
    for name in [n for n in names if n != "report.json"]:
        (other / name).symlink_to(victims / name)  # dangling, so that a run can begin
        (other / f"{name}.part").symlink_to(victims / name)
    (other / "report.json.part").symlink_to(victims / "report.json")
    fitted("fit", features, "-o", other, *LS)
    assert list(victims.iterdir()) == []
    assert not any(path.is_symlink() for path in other.iterdir())
