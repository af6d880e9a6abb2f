"""Where ledgers live: never below a folder that one stands in."""

from contextlib import closing
from pathlib import Path

import pytest
from commands import (
    LS,
    dphead,
    features_file,
    fit,
    ledger_path_of,
    refusal,
    report_of,
    words,
)

from dphead.analysis.ledger_place import ledger_home
from dphead.fit import ledgers
from dphead.privacy.ledger import Ledger, LedgerError


@pytest.mark.parametrize(
    "variable, value",
    [("DPHEAD_HOME", "here"), ("XDG_DATA_HOME", "here"), ("HOME", "")],
)
def test_a_relative_home_is_refused(variable, value, tmp_path, monkeypatch):
    """Each folder would have a ledger of its own, and a budget would end at a cd."""
    features = features_file(tmp_path / "f.h5")
    for name in ("DPHEAD_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    said = refusal("fit", features, "-o", tmp_path / "run", *LS)
    assert "is a relative path" in said
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "run").exists()


def test_without_home_the_systems_is_taken_or_asked_for(tmp_path, monkeypatch):
    for name in ("DPHEAD_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert ledger_home() == Path.home() / ".local" / "share" / "dphead"

    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(LedgerError, match="is a relative path"):
        ledger_home()


def test_a_ledger_in_the_users_home_is_the_same_file_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Ledger("~/book.sqlite", "ab12").close()
    assert ledgers.data_set_of("~/book.sqlite") == "ab12"
    assert ledgers.open_ledger("~/book.sqlite").path == str(tmp_path / "book.sqlite")


def test_a_ledger_is_the_same_file_after_a_cd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ledgers.open_ledger("book.sqlite").path == str(tmp_path / "book.sqlite")
    assert ledgers.open_ledger(":memory:").path == ":memory:"
    features = features_file(tmp_path / "f.h5")
    fit(features, "run", "--ledger", "mine.sqlite")
    assert report_of(tmp_path / "run")["ledger"]["path"] == "../mine.sqlite"
    monkeypatch.chdir("/")
    assert ledger_path_of(tmp_path / "run").samefile(tmp_path / "mine.sqlite")


@pytest.mark.parametrize("variable", ["HOME", "DPHEAD_HOME"])
def test_a_home_that_is_a_link_is_named_as_the_home(tmp_path, monkeypatch, variable):
    (tmp_path / "disk").mkdir()
    (tmp_path / "alice").symlink_to(tmp_path / "disk")
    for name in ("DPHEAD_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "alice"))
    features = features_file(tmp_path / "f.h5")
    fit(features, tmp_path / "one")
    fit(features, tmp_path / "two", "--ledger", tmp_path / "q.sqlite")
    (entry,) = report_of(tmp_path / "two")["ledger"]["elsewhere"]
    assert entry["path"] == report_of(tmp_path / "one")["ledger"]["path"]
    assert "alice" not in (tmp_path / "two" / "report.json").read_text()


def test_no_file_of_a_run_holds_an_absolute_path(tmp_path, monkeypatch):
    """A folder's name may be a user's. What was typed is in run.toml alone."""
    secret = tmp_path / "secret"
    monkeypatch.setenv("HOME", str(secret))
    features = features_file(tmp_path / "f.h5")
    starts = []
    for ledger in (None, tmp_path / "b.sqlite", secret / "c.sqlite"):
        given = () if ledger is None else ("--ledger", ledger)
        run = tmp_path / f"run{len(starts)}"
        fit(features, run, *given)
        for name in ("report.json", "report.html", "ledger.json", "head.json"):
            text = (run / name).read_text()
            assert str(tmp_path) not in text and "secret" not in text
        with closing(Ledger(ledger_path_of(run), read_only=True)) as book:
            assert book.holds(report_of(run)["ledger"]["fit_id"])
        starts.append(report_of(run)["ledger"]["path"][:3])
    assert starts == ["$DP", "../", "~/c"]
    # a run that is moved does not lose a ledger that its home knows
    moved = (tmp_path / "run1").rename(tmp_path / "secret" / "run1")
    said = words(dphead("check", moved).out)
    assert "the same epsilon" in said and "not reachable" not in said
