"""What seals find: any change in a charge, and releases out of order."""

import contextlib
import json
import sqlite3

import pytest
from core import reserve
from ledgers import DELTA, damaged, filled, run_release, specs

from dphead.privacy.accounting import filter_order
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger.seals import seal
from dphead.privacy.ledger.store import SUM


@pytest.mark.parametrize(
    "table, column, value",
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
        assert "1 to 0" not in str(ledger.verify())
        with pytest.raises(LedgerError, match="is damaged: "):
            reserve(specs(1, 50.0), ledger)
        ledger.close()


@pytest.mark.parametrize(
    "statement, sealed",
    [
        ("INSERT INTO meta VALUES ('budget', '{}')", False),
        ("INSERT INTO meta VALUES ('moved', 'x')", False),
        ("INSERT INTO releases VALUES ('x', 0, 'x', 1e9, 1, '{}')", False),
        ("INSERT INTO meta VALUES ('budget', '{}')", True),
    ],
)
def test_what_no_seal_holds_is_damage(path, statement, sealed):
    """Nor is a budget that was fixed after a fit, whatever holds it."""
    ledger = Ledger(path, "data")
    reserve(specs(1, 20.0), ledger)
    with ledger.transaction():
        ledger.query(statement)
        if sealed:
            seal(ledger)
    assert ledger.verify() != []


@pytest.mark.parametrize(
    "before, fits, key, epsilon, delta, is_sum, damage",
    [
        (None, 1, "budget", 4.0, DELTA, False, "a budget was fixed after 1 fits"),
        (None, 2, "budget 0", 4.0, DELTA, False, "a budget was fixed after 2 fits"),
        (5.0, 1, "budget 1", 3.0, DELTA, False, "a budget was fixed after 1 fits"),
        (5.0, 1, "budget 1", 3.0, DELTA, True, None),
        (5.0, 0, "budget 1", 3.0, DELTA, False, None),
        (5.0, 1, "budget 1", 4.9, 0.5, True, "a budget is not within all earlier ones"),
        (
            5.0,
            0,
            "budget 1",
            4.9,
            0.5,
            False,
            "a budget is not within all earlier ones",
        ),
        (5.0, 1, "budget 1", 9.0, DELTA, True, None),  # it allows no further fit
    ],
)
def test_a_budget_after_a_fit_is_damage_or_the_limit_of_a_sum(
    path, before, fits, key, epsilon, delta, is_sum, damage
):
    """Whatever its key. A role that may charge can write it with a seal."""
    ledger = Ledger(path, "data")
    if before is not None:
        ledger.set_budget(before, DELTA)
    for _ in range(fits):
        reserve(specs(1, 20.0), ledger)
    order = filter_order(epsilon, delta)
    budget = json.dumps({"epsilon": epsilon, "delta": delta, "order": order})
    with ledger.transaction():
        for fact, value in {key: budget, SUM: "true"}.items():
            if fact != SUM or is_sum:
                ledger.set_once(fact, value)
        seal(ledger)
    assert ledger.verify() == ([] if damage is None else [damage])


def test_a_fit_that_is_gone_is_found(path):
    filled(path)
    for table in ("releases", "fits"):
        whole = path.read_bytes()
        query = f"DELETE FROM {table} WHERE rowid = (SELECT MIN(rowid) FROM {table})"
        assert damaged(path, query).verify() != []
        path.write_bytes(whole)


def test_fits_without_a_seal_are_found(path):
    filled(path)
    ledger = damaged(path, "DELETE FROM seals WHERE rowid > 2")
    assert ledger.verify() == ["no seal covers the fits after fit 1"]
    with pytest.raises(LedgerError, match="is damaged: "):
        reserve(specs(1, 50.0), ledger)


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
    assert ledger.meta("budget") is None  # it was fixed
    assert any("not as SQLite wrote it" in found for found in ledger.verify())
    with pytest.raises(LedgerError, match="is damaged: "):
        reserve(specs(1, 50.0), ledger)
    with pytest.raises(LedgerError, match="is damaged: "):
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
    with pytest.raises(LedgerError, match="is damaged: "):
        ledger.resume("hash", fit.fit_id, store)


@pytest.mark.parametrize("after", ["BY releases.fit_id", "FROM meta", "FROM seals"])
def test_a_charge_by_another_process_is_no_damage(path, monkeypatch, after):
    """Between any two queries of a check; its refusal would tell the holder to put back
    an old copy.
    """
    filled(path)
    ledger = Ledger(path)
    other = Ledger(path)
    read = ledger.query
    late = []

    def charged(query, *values):
        found = read(query, *values)
        if after in str(query) and not late:
            late.append(query)
            with contextlib.suppress(LedgerError):  # the file is locked, or free
                run_release(reserve(specs(1, 50.0), other), spec=specs(1, 50.0)[0])
        return found

    other._db.execute("PRAGMA busy_timeout = 0")
    monkeypatch.setattr(ledger, "query", charged)
    assert ledger.verify() == []
    assert late
    assert Ledger(path).verify() == []
