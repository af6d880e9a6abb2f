"""Where ledgers live: never below a folder that one stands in."""

from pathlib import Path

import pytest
from commands import dphead, features_file, fitted, refused, report_of

from dphead.privacy.ledger import LedgerError
from dphead.runs import ledgers

LS = ("--method", "dp-ls", "--backend", "numpy")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DPHEAD_HOME", "here"),
        ("DPHEAD_HOME", "./here"),
        ("XDG_DATA_HOME", "here"),
        ("HOME", ""),
        ("HOME", "."),
    ],
)
def test_a_relative_home_is_refused(variable, value, tmp_path, monkeypatch):
    """Each folder would have a ledger of its own, and a budget would end at a cd."""
    features = features_file(tmp_path / "f.h5")
    for name in ("DPHEAD_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    said = refused(dphead("fit", features, "-o", tmp_path / "run", *LS))
    assert f"{variable} must be an absolute path" in said
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "run").exists()


def test_without_home_the_systems_is_taken_or_asked_for(tmp_path, monkeypatch):
    for name in ("DPHEAD_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert ledgers.ledger_home() == Path.home() / ".local" / "share" / "dphead"

    def nobody():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(LedgerError, match="HOME must be"):
        ledgers.ledger_home()


def test_an_empty_variable_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("DPHEAD_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert ledgers.ledger_home() == tmp_path / "dphead"


def test_a_ledger_is_the_same_file_after_a_cd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ledgers.open_ledger("book.sqlite").path == str(tmp_path / "book.sqlite")
    assert ledgers.open_ledger(":memory:").path == ":memory:"
    features = features_file(tmp_path / "f.h5")
    fitted("fit", features, "-o", "run", *LS, "--ledger", "mine.sqlite")
    path = report_of(tmp_path / "run")["ledger"]["path"]
    assert path == str(tmp_path / "mine.sqlite")
