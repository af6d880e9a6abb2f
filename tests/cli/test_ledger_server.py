"""Commands with a team's ledger: `ledger init`, `ledger move`, `DPHEAD_LEDGER`."""

import json
import os
import uuid
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import (
    dphead,
    fitted,
    id_of,
    ledger_of,
    refused,
    report_of,
    words,
)
from core import reserve
from ledgers import specs

from benchmarks.faults.servers import CLIENT, OWNER
from dphead import DPHeadClassifier
from dphead.analysis.ledger_place import opened_beside
from dphead.analysis.protected import counts_all_fits
from dphead.cli.budget import offer_budget
from dphead.fit import ledgers as module
from dphead.fit.ledgers import (
    fix_budget,
    image_index,
    move_ledger,
    other_ledgers,
    read_known,
)
from dphead.privacy.ledger import Ledger, LedgerError, moving, seals

LS = ("--method", "dp-ls", "--backend", "numpy", "--delta", 1e-3)


@pytest.fixture
def url(team, monkeypatch):
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    return team.url(CLIENT)


def secrets_in(folder, *texts):
    """What a folder's files, and texts, say of the server, its users and the home."""
    said = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    said += " ".join(texts).encode()
    names = ("127.0.0.1", "secret", CLIENT, OWNER, "postgresql://")
    return [name for name in names if name.encode() in said]


def test_fits_are_charged_to_the_teams_ledger(features, url, tmp_path):
    """In the run folder, the export and what is printed: no host, user or password."""
    said = fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-3)
    run = tmp_path / "run"
    done = fitted("fit", features, "-o", run, *LS, "--epsilon", 1)
    assert "charged to the team's ledger" in words(done.out)
    book = Ledger(url, id_of(features), read_only=True)
    assert len(book.fits()) == 1 and book.budget()["epsilon"] == 3
    assert report_of(run)["ledger"]["path"] == book.path
    shown = fitted("ledger", "show", features)
    assert book.path in shown.out.replace("\n           ", "")
    assert dphead("check", run).code in (0, 1)
    other = tmp_path / "other"
    fitted("fit", features, "-o", other, *LS, "--epsilon", 1, "--ledger", url)
    assert len(book.fits()) == 2
    assert "--ledger" not in (other / "run.toml").read_text()
    for each in (said, done, shown):
        assert secrets_in(run, each.out, each.err) == []
    assert secrets_in(other) == []
    assert not module.default_ledger_path(id_of(features)).exists()
    too_much = dphead("fit", features, "-o", tmp_path / "x", *LS, "--epsilon", 3)
    assert "would exceed the budget" in refused(too_much)


def test_check_says_that_a_restored_backup_lacks_a_fit(
    features, team, url, tmp_path, monkeypatch
):
    """Its seals are whole, so the ledger alone cannot say so."""
    run = tmp_path / "run"
    fitted("fit", features, "-o", run, *LS, "--epsilon", 1)
    team.run("CREATE DATABASE restored")
    restored = team.url(OWNER).replace("/postgres", "/restored")
    fitted("ledger", "init", restored)
    book = Ledger(restored, id_of(features))
    assert book.verify() == [] and book.fits() == []
    done = dphead("check", run, "--ledger", restored, "--json")
    names = [one["name"] for one in json.loads(done.out)["findings"]]
    assert "fit not in the ledger" in names
    monkeypatch.setenv("DPHEAD_LEDGER", restored)
    with pytest.raises(LedgerError, match="on another server"):
        Ledger(report_of(run)["ledger"]["path"])


def test_a_restored_database_does_not_hide_the_ledger_of_its_name(
    features, team, url, tmp_path, monkeypatch
):
    """It has the id of the server, so its ledgers have the same names."""
    run = tmp_path / "run"
    fitted("fit", features, "-o", run, *LS, "--epsilon", 1)
    others = "FROM pg_stat_activity WHERE datname = 'postgres' AND pid <> "
    team.run(f"SELECT pg_terminate_backend(pid) {others} pg_backend_pid()")
    team.run("CREATE DATABASE night TEMPLATE postgres")
    night = team.url(OWNER).replace("/postgres", "/night")
    fitted("fit", features, "-o", tmp_path / "later", *LS, "--epsilon", 1)
    for given in ((), ("--ledger", night)):
        done = dphead("check", run, *given, "--json")
        found = {one["name"]: one["what"] for one in json.loads(done.out)["findings"]}
        assert ("(2 fits" in found.get("fits in another ledger", "")) == bool(given)
    # the copy takes no charge
    fitted(
        "fit", features, "-o", tmp_path / "3", *LS, "--epsilon", 1, "--ledger", night
    )
    assert report_of(tmp_path / "3")["ledger"]["fits"] == 3
    copy = Ledger(night, id_of(features))
    with pytest.raises(LedgerError, match="in a copy of the team's database"):
        fix_budget(copy, 3.0, 1e-3)
    with pytest.raises(LedgerError, match="in a copy of the team's database"):
        DPHeadClassifier(epsilon=1, delta=1e-3, ledger=copy).fit(features)
    assert len(copy.fits()) == 1
    # a ledger that the copy names is in the copy
    assert len(opened_beside(copy.path, copy).fits()) == 1
    book = Ledger(tmp_path / "file.sqlite", "cd34" * 8)
    assert move_ledger(book, night).url == os.environ["DPHEAD_LEDGER"]
    monkeypatch.delenv("DPHEAD_LEDGER")
    assert "(gone or unreadable" in dphead("check", run, "--ledger", night).out


def test_a_moved_ledger_keeps_its_budget_and_takes_no_more_charges(
    features, url, tmp_path, monkeypatch
):
    monkeypatch.delenv("DPHEAD_LEDGER")
    fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-3)
    run = tmp_path / "run"
    fitted("fit", features, "-o", run, *LS, "--epsilon", 1)
    file = ledger_of(features)
    before, budget = file.fits(), file.budget()
    for _ in range(2):  # the second finishes what is finished
        moved = fitted("ledger", "move", features, url)
        assert "1 fit" in moved.out and secrets_in(tmp_path / "run", moved.out) == []
    book = Ledger(url, id_of(features))
    assert book.fits() == before and book.budget() == budget and book.verify() == []
    assert "Moved" in fitted("ledger", "show", file.path).out
    again = dphead("fit", features, "-o", tmp_path / "no", *LS, "--epsilon", 1)
    assert again.code == 2 and len(ledger_of(features).fits()) == 1
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    fitted("fit", features, "-o", tmp_path / "two", *LS, "--epsilon", 1)
    assert len(book.fits()) == 2
    too_much = dphead("fit", features, "-o", tmp_path / "x", *LS, "--epsilon", 2.9)
    assert "would exceed the budget" in refused(too_much)


def test_show_names_the_file_beside_an_empty_ledger_on_the_server(
    features, url, tmp_path, monkeypatch
):
    monkeypatch.delenv("DPHEAD_LEDGER")
    fitted("fit", features, "-o", tmp_path / "run", *LS, "--epsilon", 1)
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    said = words(fitted("ledger", "show", features).out)
    assert f"not counted here: the ledger {ledger_of(features).path} (1 fit" in said


def test_a_damaged_place_of_a_moved_ledger_is_unknown(
    features, url, tmp_path, monkeypatch
):
    """The closed file lacks later fits, and a role that may charge can damage it."""
    monkeypatch.delenv("DPHEAD_LEDGER")
    fitted("fit", features, "-o", tmp_path / "run", *LS, "--epsilon", 1)
    fitted("ledger", "move", features, url)
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    assert read_known(tmp_path / "run").fits is not None
    book = Ledger(url, id_of(features))
    with book.transaction():
        book.set_once("x", "y")  # without a seal
    with pytest.raises(LedgerError, match="is damaged"):
        read_known(tmp_path / "run")


def test_a_move_that_died_between_its_two_ledgers_leaves_none_that_takes_charges(
    features, url, monkeypatch, tmp_path
):
    monkeypatch.delenv("DPHEAD_LEDGER")
    fitted("fit", features, "-o", tmp_path / "run", *LS, "--epsilon", 1)
    with monkeypatch.context() as patch:
        patch.setattr(moving, "copy_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            moving.move(ledger_of(features), Ledger(url, id_of(features)))
    target = Ledger(url, id_of(features))
    assert target.fits() == []
    # another member, whose budget would not count the charges of the first ledger
    said = ""
    try:
        target.set_budget(3.0, 1e-5)
    except LedgerError as error:
        said = str(error)
    assert "moves a ledger here" in said and target.budget() is None
    with pytest.raises(LedgerError, match="moves a ledger here"):
        reserve(specs(1, 20.0), target)
    other = Ledger(tmp_path / "other.sqlite", id_of(features))
    other.set_budget(1.0, 1e-5)
    with pytest.raises(LedgerError, match="An earlier move of another ledger"):
        moving.move(other, target)
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    known = {one.path: one.fits for one in other_ledgers(id_of(features))}
    assert known[target.path] is None
    with pytest.raises(LedgerError, match="was moved to"):
        ledger_of(features).set_once("x", "y")
    fitted("ledger", "move", features, url)
    assert len(Ledger(url, id_of(features)).fits()) == 1
    reserve(specs(1, 20.0), target)
    assert not target.verify()


def test_a_target_that_is_charged_meanwhile_is_not_blocked(url, tmp_path, monkeypatch):
    """Another member charges it after the first look at it."""
    dataset_id = uuid.uuid4().hex
    source, target = Ledger(tmp_path / "l.sqlite", dataset_id), Ledger(url, dataset_id)
    reserve(specs(1, 20.0), source)
    check = moving._check_target

    def late(one, other):
        check(one, other)
        monkeypatch.setattr(moving, "_check_target", check)
        reserve(specs(1, 20.0), target)

    monkeypatch.setattr(moving, "_check_target", late)
    with pytest.raises(LedgerError, match="already has fits"):
        moving.move(source, target)
    reserve(specs(1, 20.0), target)
    reserve(specs(1, 20.0), source)


def test_two_ledgers_of_a_data_set_do_not_become_one(url, tmp_path):
    dataset_id = uuid.uuid4().hex
    books = [Ledger(tmp_path / f"{i}.sqlite", dataset_id) for i in range(2)]
    for book in books:
        book.set_budget(1.0, 1e-5)
        reserve(specs(1, 20.0), book)
    moving.move(books[0], Ledger(url, dataset_id))
    with pytest.raises(LedgerError, match="already has fits or a budget"):
        moving.move(books[1], Ledger(url, dataset_id))
    reserve(specs(1, 20.0), books[1])  # it stays where it was
    with pytest.raises(LedgerError, match="same data set"):
        moving.move(books[1], Ledger(url, f"{dataset_id}2"))


def test_a_teams_ledger_is_not_passed_by_for_a_file(
    features, url, tmp_path, monkeypatch
):
    """With a budget there, fits of the same images are refused elsewhere."""
    fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-3)
    own = ("--ledger", tmp_path / "own.sqlite")
    done = dphead("fit", features, "-o", tmp_path / "run", *LS, "--epsilon", 1, *own)
    assert "the ledger with the budget" in refused(done)
    monkeypatch.delenv("DPHEAD_LEDGER")  # the home still knows of it
    for command in (
        ("fit", features, "-o", tmp_path / "b", *LS, "--epsilon", 1),
        ("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-3),
    ):
        said = refused(dphead(*command))
        assert "DPHEAD_LEDGER is not set" in said and "Set DPHEAD_LEDGER to" in said
    assert not ledger_of(features).fits() and ledger_of(features).budget() is None


def test_a_file_takes_no_charge_that_other_members_would_not_count(
    features, url, tmp_path
):
    """They find the images on the server, and no ledger of them."""
    own = ("--ledger", tmp_path / "own.sqlite")
    fit = ("fit", features, "-o", tmp_path / "run", *LS, "--epsilon", 1)
    said = words(refused(dphead(*fit, *own)))
    assert "the other members of the team would not count its fits" in said
    with pytest.raises(LedgerError, match="Drop --ledger"):
        fix_budget(Ledger(tmp_path / "b.sqlite", id_of(features)), 1.0, 1e-3)
    fitted(*fit)
    assert len(Ledger(url, id_of(features)).fits()) == 1


def test_the_budget_of_images_is_set_by_the_name_of_their_ledger(url, tmp_path, capsys):
    """`dphead finetune` prints it: images have no features file."""
    name = uuid.uuid4().hex
    plan = SimpleNamespace(private=True, epsilon=1.0, delta=1e-3)
    progress = SimpleNamespace(say=print, paused=nullcontext)
    options = SimpleNamespace(
        ledger=None, features=tmp_path, out=tmp_path / "run", new_data_set=True
    )
    source = SimpleNamespace(dataset_id=name, grouped=False)
    fit = SimpleNamespace(announced=plan, about=SimpleNamespace(source=source))
    offer_budget(fit, options, progress, ask=False)
    said = words(capsys.readouterr().out).replace("\\ ", "")
    place = Ledger(url, name).path
    images = np.frombuffer(os.urandom(80), np.uint64)
    assert f"dphead ledger budget {place} --epsilon 3 --delta 0.001 Then" in said
    assert f"--dataset-id {name}, not --new-data-set" in said
    limit = ("--epsilon", 3, "--delta", 1e-3)
    # a mistyped name would be the budget of no images
    assert "No index of images or people knows" in refused(
        dphead("ledger", "budget", place, *limit)
    )
    image_index().add(name, images)
    fitted("ledger", "budget", place, *limit)
    # a name is the id of a data set, also before its ledger has a row
    same = uuid.uuid4().hex
    image_index().add(same, images)
    said = words(refused(dphead("ledger", "budget", place.replace(name, same), *limit)))
    assert "with the budget epsilon=3 in the ledger" in said
    assert Ledger(url, name).budget()["epsilon"] == 3
    assert "type a features file" in refused(dphead("ledger", "budget", url, *limit))
    assert "SOURCE must be a file" in refused(dphead("ledger", "move", place, url))


@pytest.mark.parametrize("sealed", [False, True])
def test_a_ledger_counts_until_the_place_it_moved_to_holds_its_charges(
    features, url, tmp_path, sealed
):
    """A role that may charge can add that it moved, and a move can be interrupted."""
    fitted("ledger", "budget", features, "--epsilon", 1, "--delta", 1e-3)
    book = Ledger(url, id_of(features))
    own = ("--ledger", tmp_path / "own.sqlite")
    with book.transaction():
        book.set_once("moved", book.path if sealed else "x")
        if sealed:
            seals.seal(book)
    done = dphead("fit", features, "-o", tmp_path / "r", *LS, "--epsilon", 1, *own)
    assert "the ledger with the budget" in refused(done)


def test_an_estimator_never_holds_a_servers_url(url, tmp_path):
    """It is shown, pickled and saved with its parameters."""
    with pytest.raises(LedgerError, match="server's URL"):
        DPHeadClassifier(ledger=url)
    estimator = DPHeadClassifier()
    with pytest.raises(LedgerError, match="server's URL"):
        estimator.set_params(ledger=url)
    for other in (Path(url), url.replace("postgresql", "POSTGRESQL")):
        with pytest.raises(LedgerError, match="not shown"):
            DPHeadClassifier(ledger=other)
    assert secrets_in(tmp_path, repr(estimator)) == []


def test_a_command_shows_nothing_of_a_text_that_is_no_url(
    features, tmp_path, monkeypatch
):
    for text in ("POSTGRESQL://ann:secret@db/x", "pgsql://ann:secret@db/x"):
        run = tmp_path / "run"
        uses = (
            ("fit", features, "-o", run, *LS, "--epsilon", 1, "--ledger", text),
            ("ledger", "show", text),
            ("ledger", "verify", text),
            ("ledger", "init", text),
            ("ledger", "move", features, text),
            ("ledger", "budget", text, "--epsilon", 1, "--delta", 1e-5),
        )
        for use in uses:
            done = dphead(*use)
            assert done.code and "secret" not in done.out + done.err, use
        assert not run.exists()
    for text in ("mysql://me:secret@host/db", "/home/secret.sqlite"):
        monkeypatch.setenv("DPHEAD_LEDGER", text)
        done = dphead(*uses[0][:-2])
        assert "DPHEAD_LEDGER must have" in refused(done) and "secret" not in done.err


def test_a_saved_estimator_names_no_server(features, url, tmp_path):
    model = DPHeadClassifier(method="dp-ls", delta=1e-3).fit(features)
    model.save(tmp_path / "run")
    assert secrets_in(tmp_path / "run", repr(model)) == []
    ledger = report_of(tmp_path / "run")["ledger"]
    assert ledger["path"] == Ledger(url, id_of(features), read_only=True).path
    assert ledger["fits"] == 1 and ledger["elsewhere"] == []
    assert DPHeadClassifier.load(tmp_path / "run").predict(features).shape == (240,)


def test_a_reader_without_the_index_of_images_reads_all_else(
    features, url, team, tmp_path, monkeypatch
):
    """As the documentation grants it. A missing right is named, and no further one."""
    run = tmp_path / "run"
    fitted("fit", features, "-o", run, *LS, "--epsilon", 1)
    for statement in (
        "CREATE ROLE dora LOGIN PASSWORD 'secret'",
        "GRANT USAGE ON SCHEMA dphead TO dora",
        "GRANT SELECT ON ALL TABLES IN SCHEMA dphead TO dora",
        "REVOKE SELECT ON dphead.images, dphead.secret FROM dora",
    ):
        team.run(statement)
    monkeypatch.setenv("DPHEAD_LEDGER", team.url("dora"))
    shown = words(fitted("ledger", "show", features).out)
    assert "epsilon 1 spent in 1 fit" in shown
    told = (
        shown,
        dphead("check", run).out,
        fitted("report", run, "-o", tmp_path / "report.html").err,
    )
    for text in told:
        assert "shared images are not known here" in words(text)
    found = read_known(run)
    found.report["data"]["image_index"] = "0a"  # as in a run of extracted images
    assert not counts_all_fits(found.report_now())  # which an export states
    rights = "grant it USAGE on schema dphead, and {} on dphead.{}, then"
    with pytest.raises(LedgerError, match=rights.format("SELECT", "images")):
        other_ledgers(id_of(features))  # as a charge does
    with pytest.raises(LedgerError, match=rights.format("INSERT", "fits")):
        reserve(specs(1, 8.0), Ledger(team.url("dora"), id_of(features)))
