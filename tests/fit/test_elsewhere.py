"""Fits on the same images that a run's own ledger does not count are named, wherever
they were charged, and settings are never said to be no choice then.
"""

import errno
import json
import os
import pickle
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from commands import (
    OF_IMAGES,
    charges,
    dphead,
    features_file,
    fitted,
    id_of,
    ledger_path_of,
    refusal,
    report_of,
    words,
)
from dphead_extract.errors import ExtractError
from dphead_extract.features.format import open_features
from dphead_extract.shards import blocks_of

from dphead import DPLeastSquaresClassifier
from dphead.analysis.card.page import dpia, model_card, page
from dphead.analysis.ledger_place import ledger_home
from dphead.analysis.protected import public_statement
from dphead.analysis.records import read_run
from dphead.estimators.fitting import PrivacyWarning
from dphead.export.trained import guarantee_of
from dphead.fit import run as fit_run
from dphead.fit.ledgers import (
    RowGroups,
    charged_elsewhere,
    charging,
    data_set_of,
    default_ledger_path,
    image_index,
    read_known,
)
from dphead.fit.noted import note_ledger, noted_ledgers
from dphead.privacy.atomic_write import ForeignFile
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.rounding import as_declared

FIT = ("--method", "prototypes", "--backend", "numpy")
LARGE = ("--allow-large-delta", "--tuning", "public data")
FINDING = "fits in another ledger"


@pytest.fixture
def features(tmp_path):
    return features_file(tmp_path / "f.h5", **OF_IMAGES)


def findings(run, *more):
    found = json.loads(dphead("check", run, "--json", *more).out)
    return {f["name"]: f["what"] for f in found["findings"]}


def indexed(features):
    """Add images to the index, as the images of all rows of a features file."""
    image_index().add(id_of(features), np.arange(240, dtype=np.uint64))
    with open_features(features) as file:
        rows = (file.dataset_id, file.salt, blocks_of(file))
    image_index().mark_blocks(*rows)


def fit(features, out, *more):
    fitted("fit", features, "-o", out, *FIT, *more)
    return report_of(out)


def test_fits_for_rows_and_for_people_are_not_added_up(tmp_path):
    """A person with 10 rows has 10 times the mu of a fit that protects single rows."""
    people = np.arange(240) // 10
    features = features_file(tmp_path / "f.h5", group=people, **OF_IMAGES)
    fit(features, tmp_path / "one", "--protect", "image")
    given = ("--group-cap", 10, "--ledger", tmp_path / "p.sqlite", *LARGE)
    report = fit(features, tmp_path / "two", *given)
    assert "1 fit for single rows under zero_out on the" in report["statement"]
    assert "only for one relation and one unit" in report["statement"]
    found = json.loads(dphead("check", tmp_path / "two", "--json").out)["findings"]
    (finding,) = [one for one in found if one["name"] == FINDING]
    assert "1 fit for single rows under zero_out" in finding["what"]
    assert "all ledgers with the relation and the unit" in finding["todo"]
    first = dphead("check", tmp_path / "one", "--json").out
    assert "1 fit for groups under zero_out" in first
    (tmp_path / "p.sqlite").unlink()
    assert "gone or unreadable" in dphead("check", tmp_path / "one", "--json").out


def test_a_later_guarantee_names_ledgers_that_were_charged_meanwhile(
    features, tmp_path
):
    run = tmp_path / "one"
    fit(features, run)
    indexed(features)
    facts = {"class_names": []}
    before = guarantee_of(run, read_known(run), facts)["statement"]
    assert before == public_statement(report_of(run))
    fit(features, tmp_path / "two", "--ledger", tmp_path / "q.sqlite", *LARGE)
    now = guarantee_of(run, read_known(run), facts)["statement"]
    assert (
        "The ledger q.sqlite holds at least 1 fit for single rows under zero_out" in now
    )


def test_what_is_published_names_no_folder_of_a_ledger(features, tmp_path):
    (folder := tmp_path / "alice").mkdir()
    run = tmp_path / "run"
    fit(features, tmp_path / "other", "--ledger", folder / "q.sqlite")
    report = fit(features, run, "--ledger", tmp_path / "al", *LARGE)
    facts = {"class_names": []}
    stated = guarantee_of(run, read_known(run), facts)["statement"]
    for text in (stated, page(report), model_card(report), dpia(report)):
        assert "q.sqlite holds at least 1 fit" in words(text)
        assert "alice" not in text


def test_a_fresh_ledger_beside_the_data_sets_own(features, tmp_path):
    first = fit(features, tmp_path / "one")
    assert (first["tuning"], first["ledger"]["elsewhere"]) == ("none", [])
    assert FINDING not in findings(tmp_path / "one")
    fresh = tmp_path / "fresh.sqlite"
    command = ("fit", features, *FIT, "--ledger", fresh, "-o", tmp_path / "two")
    for where in (command, command[:-4] + command[-2:]):
        said = refusal(*where, "--tuning", "none")
        assert "--tuning none is not true" in said
    assert charges() == 1
    assert not fresh.exists()
    done = fitted("fit", features, "-o", tmp_path / "two", *FIT, "--ledger", fresh)
    said, report = words(done.out), report_of(tmp_path / "two")
    assert "charged to the ledger fresh.sqlite" in said
    assert "1 fit, in this ledger only" in said
    card = (tmp_path / "two/report.html").read_text()
    assert "One ledger counts all known fits" not in card
    own = first["ledger"]["path"]
    assert report["tuning"] == "NOT ACCOUNTED"
    (entry,) = report["ledger"]["elsewhere"]
    with closing(Ledger(ledger_path_of(tmp_path / "one"))) as book:
        identity = book.meta("identity")
    rows = "single rows under zero_out"
    kept = {"path": own, "fits": 1, "identity": identity, "protects": rows}
    assert entry == kept | {"of": "the same data set"}
    for text in (report["statement"], *report["warnings"]):
        assert f"{own} holds at least 1 fit for {rows} on the same data set" in text
    assert "Other fits from the same data are counted" not in report["statement"]
    # what the run says of other ledgers came from the images, without noise
    assert "leaves the run, except the list of other ledgers" in report["statement"]
    assert (
        "No other number that depends on these rows leaves the run."
        in first["statement"]
    )
    theirs = str(ledger_path_of(tmp_path / "one"))
    assert theirs in findings(tmp_path / "two")[FINDING]
    # and the first fit's total leaves out the second
    assert str(fresh) in findings(tmp_path / "one")[FINDING]
    # so who publishes the first run learns of the second
    for command in (("report", tmp_path / "one"), ("export", tmp_path / "one")):
        more = ("--to", "torch") if command[0] == "export" else ()
        said = words(fitted(*command, *more).err)
        assert f"ledger does not count the ledger {fresh} (1 fit " in said


@pytest.mark.parametrize("home", ["another", ""])
def test_another_home_finds_the_ledgers_that_a_report_lists(
    features, tmp_path, monkeypatch, home
):
    fit(features, tmp_path / "one")
    fit(features, tmp_path / "two", "--ledger", tmp_path / "fresh.sqlite")
    monkeypatch.setenv("DPHEAD_HOME", home and str(tmp_path / home))
    found = findings(tmp_path / "two").get(FINDING, "")
    assert "with fits on the same data set" in found
    said = words(fitted("report", tmp_path / "two").err)
    assert "this run's ledger does not count" in said


def test_a_home_that_knows_one_other_ledger_still_names_those_of_a_report(
    features, tmp_path, monkeypatch
):
    fit(features, tmp_path / "one", "--ledger", tmp_path / "q.sqlite")
    fit(features, tmp_path / "two")
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "another"))
    fit(features, tmp_path / "three", "--ledger", tmp_path / "r.sqlite")
    done = json.loads(dphead("check", tmp_path / "two", "--json").out)
    found = [f["what"] for f in done["findings"] if f["name"] == FINDING]
    assert len(found) == 2
    assert "r.sqlite (1 fit " in found[0] and "q.sqlite with fits" in found[1]


@pytest.mark.parametrize("home", ["", "another"])
def test_a_merged_ledger_is_no_longer_elsewhere(tmp_path, monkeypatch, home):
    """Also for a home that does not know it."""
    groups = [str(i // 2) for i in range(240)]
    features, unit = features_file(tmp_path / "f.h5", group=groups), ("--group-cap", 2)
    fit(features, tmp_path / "one", *unit, "--ledger", tmp_path / "q.sqlite")
    fit(features, tmp_path / "two", *unit)
    assert "q.sqlite" in findings(tmp_path / "two")[FINDING]
    fitted("ledger", "people", "clinic", features)
    if home:
        monkeypatch.setattr("dphead.fit.ledgers.other_ledgers", lambda *_: [])
    assert FINDING not in findings(tmp_path / "two")
    # an empty ledger at the old path has none of its fits
    (tmp_path / "q.sqlite").unlink()
    Ledger(tmp_path / "q.sqlite").set_budget(1.0, 1e-5)
    assert "q.sqlite" in findings(tmp_path / "two")[FINDING]


def test_a_ledger_that_is_gone_is_named(features, tmp_path):
    gone = tmp_path / "gone.sqlite"
    fit(features, tmp_path / "one", "--ledger", gone)
    gone.unlink()
    report = fit(features, tmp_path / "two")
    assert report["tuning"] == "NOT ACCOUNTED"
    said = "../gone.sqlite is missing or unreadable, and may hold fits"
    assert said in report["statement"]
    assert "gone or unreadable" in findings(tmp_path / "two")[FINDING]


@pytest.mark.parametrize("content", [b"", b"x" * 5000])
def test_a_default_ledger_that_cannot_be_read_is_named(features, tmp_path, content):
    """Refused there, a user goes on with another file: the first fit still counts."""
    own = Path(fit(features, tmp_path / "one")["ledger"]["path"])
    default = default_ledger_path(own.stem)
    assert default.exists()
    default.write_bytes(content)
    report = fit(features, tmp_path / "two", "--ledger", tmp_path / "other.sqlite")
    assert report["tuning"] == "NOT ACCOUNTED"
    (elsewhere,) = report["ledger"]["elsewhere"]
    assert elsewhere["fits"] is None
    assert own.name in elsewhere["path"]


def test_a_runs_own_ledger_is_not_another(features, tmp_path):
    """By another name, or moved since."""
    book = tmp_path / "book.sqlite"
    os.symlink(book, tmp_path / "link.sqlite")
    fit(features, tmp_path / "one", "--ledger", book)
    second = fit(features, tmp_path / "two", "--ledger", tmp_path / "link.sqlite")
    assert second["ledger"]["elsewhere"] == []
    (tmp_path / "link.sqlite").unlink()
    moved = tmp_path / "moved.sqlite"
    book.rename(moved)
    assert FINDING not in findings(tmp_path / "one", "--ledger", moved)


def test_a_damaged_ledger_is_listed_beside_a_copy(features, tmp_path):
    """It can have later fits."""
    book, copy = tmp_path / "book.sqlite", tmp_path / "copy.sqlite"
    fit(features, tmp_path / "one", "--ledger", book)
    copy.write_bytes(book.read_bytes())
    book.write_bytes(book.read_bytes()[:5000])
    found = findings(tmp_path / "one", "--ledger", copy)
    assert str(book) in found.get(FINDING, "")


def sharing(path, other, count):
    """The index says that two files of 200 images share so many of them."""
    index = image_index()
    index.add(id_of(path), np.arange(200, dtype=np.uint64))
    start = 200 - count
    index.add(id_of(other), np.arange(start, start + 200, dtype=np.uint64))


def test_another_data_set_with_the_same_images(features, tmp_path):
    other = features_file(tmp_path / "g.h5", seed=1, backbone="resnet50")
    sharing(features, other, 120)
    first = fit(features, tmp_path / "one")
    assert FINDING not in findings(tmp_path / "one")
    report = fit(other, tmp_path / "two")
    assert report["tuning"] == "NOT ACCOUNTED"
    (entry,) = report["ledger"]["elsewhere"]
    shared = {"path": first["ledger"]["path"], "fits": 1, "of": "some of the images"}
    assert shared.items() <= entry.items()
    for run, theirs in (("one", other), ("two", features)):
        assert f"{id_of(theirs)}, which holds 120" in findings(tmp_path / run)[FINDING]


def test_a_report_does_not_count_images_that_are_shared(features, tmp_path):
    """How many they are is a function of private images; the screen may say it."""
    texts = set()
    other = features_file(tmp_path / "g.h5", seed=1, backbone="resnet50")
    fit(features, tmp_path / "one")
    for count in (40, 60, 123):
        sharing(features, other, count)
        facts = [e.fact() for e in charged_elsewhere(id_of(other), ":memory:")]
        assert len(facts) == 1
        texts.add(json.dumps(facts))
    assert len(texts) == 1


def test_a_few_images_in_common_are_no_finding(features, tmp_path):
    other = features_file(tmp_path / "g.h5", seed=1, backbone="resnet50")
    sharing(features, other, 9)
    fit(features, tmp_path / "one")
    assert fit(other, tmp_path / "two")["ledger"]["elsewhere"] == []


def test_images_that_several_data_sets_share_in_small_parts_are_a_finding(
    features, tmp_path
):
    """Two times 9 of 200 images: each is below a twentieth, and both are not."""
    others = [
        features_file(tmp_path / f"{name}.h5", seed=seed, backbone=f"resnet{seed}")
        for seed, name in enumerate("gh", 1)
    ]
    index = image_index()
    index.add(id_of(features), np.arange(200, dtype=np.uint64))
    for i, other in enumerate(others):
        shared, own = np.arange(9) + 9 * i, np.arange(191) + 1000 * (i + 1)
        index.add(id_of(other), np.concatenate([shared, own]).astype(np.uint64))
        done = fit(other, tmp_path / f"run{i}")
        assert done["ledger"]["elsewhere"] == []
    report = fit(features, tmp_path / "run")
    assert [one["fits"] for one in report["ledger"]["elsewhere"]] == [1, 1]
    assert id_of(features) in findings(tmp_path / "run0")[FINDING]


def test_check_says_where_the_index_does_not_know_the_images(features, tmp_path):
    fit(features, tmp_path / "run")
    indexed(features)
    fit(features, tmp_path / "later")
    unknown = "can fail to recognize fits on the same images"
    assert unknown in words(dphead("check", tmp_path / "run").out)
    assert unknown not in words(dphead("check", tmp_path / "later").out)


def test_a_report_names_a_ledger_that_was_charged_while_the_run_trained(
    features, tmp_path, monkeypatch
):
    """It reads the totals of its own ledger when it is written, too."""
    write = fit_run.write_report

    def charged_meanwhile(*given, **more):
        with monkeypatch.context() as once:
            once.setattr(fit_run, "write_report", write)
            fit(features, tmp_path / "other", "--ledger", tmp_path / "p.sqlite")
        return write(*given, **more)

    monkeypatch.setattr(fit_run, "write_report", charged_meanwhile)
    for fits in (1, 2):
        report = fit(features, tmp_path / f"run{fits}", "--allow-large-delta")
        found = report["ledger"]["elsewhere"]
        assert [(one["path"], one["fits"]) for one in found] == [("../p.sqlite", fits)]
        assert report["tuning"] == "NOT ACCOUNTED"
        told = [one for one in report["warnings"] if "p.sqlite" in one]
        assert len(told) == 1 and f"p.sqlite holds at least {fits} fit" in told[0]
        assert told[0] in report["statement"]
        (tmp_path / "other").rename(tmp_path / f"other{fits}")


def test_another_ledger_at_the_place_of_a_missing_one_is_not_taken_for_it(
    features, tmp_path, monkeypatch
):
    q, run = tmp_path / "q.sqlite", tmp_path / "run"
    fit(features, tmp_path / "other", "--ledger", q)
    q.rename(tmp_path / "unmounted")
    listed = fit(features, run, *LARGE)["ledger"]["elsewhere"]
    assert [one["fits"] for one in listed] == [None]
    Ledger(q).set_budget(1.0, 1e-3)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))
    assert read_known(run).report_now()["ledger"]["elsewhere"] == listed


def test_an_estimator_warns_of_them(features, tmp_path):
    def fitted_to(ledger):
        head = DPLeastSquaresClassifier(epsilon=1.0, ledger=ledger)
        return head.fit(features)

    first = fitted_to(None)
    assert not any("ledger" in note for note in first.privacy_.notes[:-1])
    for ledger in (tmp_path / "path.sqlite", Ledger(tmp_path / "object.sqlite")):
        with pytest.warns(PrivacyWarning, match="holds at least 1 fit for single rows"):
            head = fitted_to(ledger)
        assert any("no total of this" in note for note in head.privacy_.notes)
    assert len(noted_ledgers(id_of(features))) == 2


def test_a_pickled_estimator_has_no_number_of_shared_images(features, tmp_path):
    other = features_file(tmp_path / "g.h5", seed=1, backbone="resnet50")
    sharing(features, other, 120)
    fit(features, tmp_path / "one")
    head = pickle.loads(pickle.dumps(DPLeastSquaresClassifier(epsilon=1.0).fit(other)))
    (known,) = vars(head)["_beside"]
    assert known.keys() == {"path", "fits", "identity", "of", "protects"}
    assert known["path"] == f"$DPHEAD_HOME/ledgers/{id_of(features)}.sqlite"
    assert known["of"] == "some of the images"
    # an earlier version kept this
    vars(head)["_beside"] = charged_elsewhere(id_of(other), head.ledger_.path)
    (again,) = vars(pickle.loads(pickle.dumps(head)))["_beside"]
    assert isinstance(again, dict) and again["of"] == "some of the images"


def test_a_named_ledger_needs_no_home(features, tmp_path, monkeypatch):
    monkeypatch.setenv("DPHEAD_HOME", "relative")
    report = fit(features, tmp_path / "run", "--ledger", tmp_path / "book.sqlite")
    assert report["ledger"]["elsewhere"] == []
    assert dphead("check", tmp_path / "run").code == 0


@pytest.mark.parametrize(
    "rows", ["images", "unknown images", "imported", "people", "new people"]
)
def test_a_report_counts_all_fits_only_of_rows_that_dphead_recognizes(tmp_path, rows):
    """Declared people are not enough: a copy of the rows may declare none."""
    more = OF_IMAGES if "images" in rows else {"group": [str(i) for i in range(240)]}
    features, run = features_file(tmp_path / "f.h5", **more), tmp_path / "run"
    if rows == "images":
        indexed(features)
    elif "people" in rows:
        new = ["--new-people"] if rows == "new people" else []
        fitted("ledger", "people", "clinic", features, *new)
    unit = ("--group-cap", 1) if "group" in more else ()
    fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-5)
    report = fit(features, run, "--epsilon", 1, "--delta", 1e-5, *unit)
    recognized = rows == "images"
    known = report["data"]["image_index"]
    assert known == (image_index().public_id(id_of(features)) if recognized else None)
    card = words((run / "report.html").read_text())
    assert ("One ledger counts all known fits; a limit" in card) == recognized
    counted = "Other fits from the same data are counted" in report["statement"]
    assert counted == recognized
    written = guarantee_of(run, read_known(run), {"class_names": []})
    assert (written["budget_of_all_fits"] is not None) == recognized
    outside = "to recognize fits on the same rows in another ledger."
    checked = words(dphead("check", run).out)
    assert [outside in text for text in (report["statement"], checked)] == [
        rows == "people"
    ] * 2


@pytest.mark.parametrize("home", ["other", "relative", "without its entry"])
def test_where_images_are_not_known_a_run_states_no_total(tmp_path, monkeypatch, home):
    """Another ledger can have fits of the images, which this home does not know."""
    features = features_file(tmp_path / "f.h5", **OF_IMAGES)
    indexed(features)
    book = Ledger(tmp_path / "book.sqlite", id_of(features))
    book.set_budget(3.0, 1e-3)
    head = DPLeastSquaresClassifier(epsilon=1.0, delta=1e-3, ledger=book).fit(features)
    head.save(tmp_path / "run")
    if home == "without its entry":
        image_index().add("f" * 32, np.arange(9, dtype=np.uint64))
        for lost in (f"images/{id_of(features)}.digests", "images/noted"):
            (ledger_home() / lost).unlink()
        (ledger_home() / "ledgers/images.sizes").unlink()
    else:
        there = home if home == "relative" else str(tmp_path / home)
        monkeypatch.setenv("DPHEAD_HOME", there)
    head.save(tmp_path / "again")
    found = read_known(tmp_path / "run")
    written = guarantee_of(tmp_path / "run", found, {"class_names": []})
    for said in (written["statement"], report_of(tmp_path / "again")["statement"]):
        assert "Other fits from the same data are counted" not in said
        assert "can fail to recognize fits on the same images" in said
    assert written["budget_of_all_fits"] is None
    assert "shared images are not known here" in words(
        dphead("check", tmp_path / "run").out
    )


def test_images_of_a_file_are_known_only_if_this_home_has_read_all_of_them(
    tmp_path, monkeypatch
):
    """Not if one shard was extracted in another home, under the same id."""
    pixels = np.random.default_rng(0).integers(0, 255, (32, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", images=pixels, label=np.arange(32) % 2)

    def extracted(name, network, *more):
        made = ("--backbone", "scatternet", "--scatter-j", 1, "--scatter-l", network)
        out = ("-o", tmp_path / name, "--classes", 2, "--block-rows", 16)
        fitted("extract", tmp_path / "x.npz", *out, *made, *more)
        return tmp_path / name

    def known(path):
        report = fit(path, path.with_suffix(""), *LARGE)
        return report["data"]["image_index"] is not None

    path = tmp_path / "x.h5"
    for name, shard in (("other", "1/2"), ("own", "0/2")):
        monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / name))
        extracted("x.h5", 1, "--shard", shard)
    shards = sorted(tmp_path.glob("x.shard-*.h5"))
    fitted("features", "join", *shards, "-o", path)
    assert image_index().knows(id_of(path))
    assert [known(one) for one in (*shards, path)] == [True, False, False]
    other = extracted("y.h5", 2, "--same-data-as", path)  # it reads all images
    both = tmp_path / "both.h5"
    fitted("features", "concat", path, other, "-o", both)
    assert known(other) and known(both)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "other"))
    both = both.rename(tmp_path / "there.h5")
    assert not known(both)


def test_arrays_with_a_ledger_do_not_count_fits_in_other_ledgers(tmp_path):
    ledger = Ledger(tmp_path / "book.sqlite")
    ledger.set_budget(3.0, 1e-3)
    head = DPLeastSquaresClassifier(
        epsilon=1.0, delta=1e-3, classes=[0, 1], ledger=ledger
    )
    head.fit(np.random.default_rng(0).random((40, 3)), np.arange(40) % 2)
    head.save(tmp_path / "run")
    said = report_of(tmp_path / "run")["statement"]
    assert "guarantee for all fits in this ledger is epsilon = 3" in said
    assert "can fail to recognize fits on the same rows" in said
    assert "Other fits from the same data are counted" not in said


def test_arrays_in_the_ledger_of_a_data_set_name_its_other_ledgers(features, tmp_path):
    """The arrays have no data set, and their ledger has one."""
    fit(features, tmp_path / "one")
    other = tmp_path / "other.sqlite"
    fit(features, tmp_path / "two", "--ledger", other)
    own = str(ledger_path_of(tmp_path / "one"))
    head = DPLeastSquaresClassifier(epsilon=1.0, classes=[0, 1], ledger=other)
    said = f"/{Path(own).name} holds at least 1 fit for single rows under zero_out on"
    with pytest.warns(PrivacyWarning, match=said):
        head.fit(np.random.default_rng(0).random((40, 3)), np.arange(40) % 2)
    head.save(tmp_path / "run")
    (elsewhere,) = report_of(tmp_path / "run")["ledger"]["elsewhere"]
    assert (elsewhere["fits"], elsewhere["of"]) == (1, "the same data set")
    assert own in findings(tmp_path / "run")[FINDING]


def test_notes_are_the_owners_and_a_line_each(tmp_path):
    for path in ("/a.sqlite", "/b\n.sqlite", "/a.sqlite", ":memory:"):
        note_ledger(path, "ab12")
    note_ledger(str(default_ledger_path("ab12")), "ab12")
    assert noted_ledgers("ab12") == ["/a.sqlite", "/b\n.sqlite"]
    notes = ledger_home() / "ledgers" / "ab12.others"
    assert notes.stat().st_mode & 0o777 == 0o600
    notes.write_text("no JSON\n")
    with pytest.raises(ValueError, match="each line must be a ledger"):
        noted_ledgers("ab12")


def told(book, **rows):
    """The error of a charge."""
    try:
        with charging(book, **rows):
            return "charged"
    except (LedgerError, ForeignFile, ExtractError) as error:
        return str(error)


def failing(name, error, after=0):
    """A function of `os` that fails, or writes a few bytes first."""
    held, ours = getattr(os, name), ledger_home()

    def fails(file, *more):
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
        if not str(path).startswith(f"{ours}/ledgers/"):
            return held(file, *more)
        if after:
            return held(file, more[0][:after])
        raise OSError(error, os.strerror(error))

    return patch.object(os, name, fails)


@pytest.mark.parametrize(
    "name, error, after",
    [
        ("write", errno.ENOSPC, 0),
        ("write", errno.ENOSPC, 5),
        ("fsync", errno.EIO, 0),
        ("open", errno.EMFILE, 0),
    ],
)
def test_a_home_that_fails_to_note_a_ledger_charges_nothing(
    tmp_path, name, error, after
):
    """A later budget would not count the fit. A part of a line is no damaged file."""
    note_ledger("/first.sqlite", "ab12")
    with closing(Ledger(tmp_path / "own.sqlite", "ab12")) as book:
        with failing(name, error, after):
            assert "No fit was charged" in told(book)
        with charging(book):
            pass
    assert noted_ledgers("ab12") == ["/first.sqlite", str(tmp_path / "own.sqlite")]


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_read_only_home_keeps_no_notes(tmp_path, error):
    (ledger_home() / "ledgers").mkdir(parents=True)
    with (
        closing(Ledger(tmp_path / "own.sqlite", "ab12")) as book,
        failing("open", error),
    ):
        assert "cannot be locked or listed" in told(book)  # one file of another user
        with patch.object(os, "access", return_value=False):
            assert told(book) == "charged"
    assert noted_ledgers("ab12") == []


def test_a_note_and_its_files_name_are_durable_before_the_charge(tmp_path):
    """Also the note of a process that died before it was durable."""
    synced, held = [], os.fsync

    def noted(file):
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        held(file)

    with closing(Ledger(tmp_path / "own.sqlite", "ab12")) as book:
        for _ in range(2):
            synced.clear()
            with patch.object(os, "fsync", noted), charging(book):
                folder = ledger_home() / "ledgers"
                assert synced[-2:] == [str(folder / "ab12.others"), str(folder)]


@pytest.mark.parametrize("name", ["lock", "ab12.others", "../people/lock"])
def test_a_link_in_the_homes_folder_is_refused_and_switches_nothing_off(name, tmp_path):
    """A home that is not writable keeps no notes, but a link must be told."""
    folder = ledger_home() / "ledgers"
    folder.mkdir(parents=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with closing(Ledger(tmp_path / "own.sqlite", "ab12")) as book:
        assert "is a link" in told(book, rows=RowGroups("ab12", None))
    assert not (tmp_path / "elsewhere").exists()


def test_a_ledger_of_another_home_hides_no_ledger_of_a_report(
    features, tmp_path, monkeypatch
):
    """The default ledgers of a data set have one name in all homes."""
    fit(features, tmp_path / "one")
    fit(features, tmp_path / "two", "--ledger", tmp_path / "p.sqlite", *LARGE)
    assert str(ledger_path_of(tmp_path / "one")) in findings(tmp_path / "two")[FINDING]
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "second"))
    fitted("ledger", "budget", features, "--epsilon", 2, "--delta", 1e-5)
    own = f"$DPHEAD_HOME/ledgers/{id_of(features)}.sqlite with fits"
    assert own in findings(tmp_path / "two").get(FINDING, "")
    # with as many fits, it is still not that ledger
    fit(features, tmp_path / "three", *LARGE)
    assert own in findings(tmp_path / "two")[FINDING]


def test_an_older_copy_of_a_ledger_hides_no_ledger_of_a_report(features, tmp_path):
    fit(features, tmp_path / "one")
    own = ledger_path_of(tmp_path / "one")
    older = own.read_bytes()
    fit(features, tmp_path / "two", *LARGE)
    fit(features, tmp_path / "run", "--ledger", tmp_path / "p.sqlite", *LARGE)
    reported = f"$DPHEAD_HOME/ledgers/{own.name} with fits"
    assert reported not in findings(tmp_path / "run")[FINDING]
    own.write_bytes(older)
    assert reported in findings(tmp_path / "run")[FINDING]


def stated_now(run):
    """What an export of a run states."""
    return guarantee_of(run, read_known(run), {"class_names": []})


def test_an_export_without_its_ledger_states_no_present_sum(
    features, tmp_path, monkeypatch
):
    """Nor a budget, which a later merge can have ended."""
    indexed(features)
    fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-5)
    fit(features, tmp_path / "run", "--epsilon", 1, "--delta", 1e-5)
    assert "never exceeded" in stated_now(tmp_path / "run")["statement"]
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "second"))
    stated = stated_now(tmp_path / "run")
    assert stated["budget_of_all_fits"] is None
    assert "Later fits and merges are unknown here" in stated["statement"]
    assert "so far" not in stated["statement"]


def test_the_default_ledger_of_another_home_is_not_the_runs_own(
    features, tmp_path, monkeypatch
):
    """It has the same name. Its sum and its budget leave the run's own fit out."""
    indexed(features)
    run, own = tmp_path / "run", ("--delta", 1e-5)
    fitted("ledger", "budget", features, "--epsilon", 3, *own)
    report = fit(features, run, "--epsilon", 1, *own)
    assert stated_now(run)["budget_of_all_fits"]["epsilon"] == 3
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "second"))
    fitted("ledger", "budget", features, "--epsilon", 9, *own)
    fit(features, tmp_path / "two", "--epsilon", 0.1, *own)
    known, stated = read_known(run), stated_now(run)
    assert known.spent_now.epsilon == report["ledger"]["total_epsilon"]
    assert stated["budget_of_all_fits"] is None
    ((_, entry),) = known.elsewhere
    assert entry["path"] == report["ledger"]["path"]
    other = f"A different ledger {id_of(features)}.sqlite holds at least 1 fit"
    assert other in stated["statement"]
    assert "is not reachable, so" in words(fitted("report", run).err)
    assert "second/ledgers" in findings(run)[FINDING]


def test_a_ledger_of_other_rows_in_the_place_of_a_runs_own_states_no_sum(tmp_path):
    """Arrays have no data set that could be compared."""
    rows = np.random.default_rng(0).random((40, 3))
    for name, epsilon in (("two", 0.1), ("one", 2.0)):
        (tmp_path / name).mkdir()
        given = {"ledger": tmp_path / name / "q.sqlite", "delta": 1e-3}
        head = DPLeastSquaresClassifier(epsilon=epsilon, classes=[0, 1], **given)
        head.fit(rows, np.arange(40) % 2)
    head.save(tmp_path / "one/run")
    copy = shutil.copytree(tmp_path / "one/run", tmp_path / "two/run")
    assert "is not reachable, so" in words(fitted("report", copy).err)
    assert f"was epsilon = {as_declared(2.0)}" in stated_now(copy)["statement"]
    with pytest.raises(LedgerError, match="Nothing was exported"):
        guarantee_of(copy, read_run(copy, tmp_path / "two/q.sqlite"), {})


def fit_arrays(book) -> DPLeastSquaresClassifier:
    """Charge a fit of the same arrays to a ledger."""
    rows = np.random.default_rng(0).random((40, 3))
    head = DPLeastSquaresClassifier(
        epsilon=1.0, delta=1e-3, classes=[0, 1], ledger=book
    )
    return head.fit(rows, np.arange(40) % 2)


def test_an_older_copy_of_the_ledger_of_arrays_is_listed_with_its_later_fits(tmp_path):
    """Arrays have no data set that could name it, and no home needs to know it."""
    book, run = tmp_path / "p.sqlite", tmp_path / "run"
    charge = partial(fit_arrays, book)
    charge()
    older = book.read_bytes()
    charge().save(run)
    night = shutil.copy(book, tmp_path / "night.sqlite")
    book.write_bytes(older)
    charge()
    charge()
    assert f"{book} (3 fits" in findings(run).get(FINDING, "")
    # a copy with all fits of the report lacks the later fits too
    found = findings(run, "--ledger", night)
    assert "fit not in the ledger" not in found
    assert f"{book} (3 fits" in found.get(FINDING, "")
    out = tmp_path / "export"
    done = dphead("export", run, "--to", "sklearn", "-o", out, "--ledger", night)
    assert done.code == 0 and f"{book} (3 fits" in words(done.err)
    assert f"{book} (3 fits" in words(fitted("report", run, "--ledger", night).err)


def test_an_older_copy_with_as_many_fits_does_not_count_the_run(tmp_path):
    book, run = tmp_path / "p.sqlite", tmp_path / "run"
    charge = partial(fit_arrays, book)
    head = charge()
    older = book.read_bytes()
    charge()
    head.save(run)
    book.write_bytes(older)
    charge()
    assert len(Ledger(book).fits()) == report_of(run)["ledger"]["fits"]
    assert "fit not in the ledger" in findings(run)


@pytest.mark.parametrize("lost", ["its own", "a later"])
def test_a_run_is_not_exported_with_an_older_copy_of_its_ledger(
    features, tmp_path, lost
):
    """Its budget and its sum would leave a fit out."""
    run, moved = tmp_path / "run", tmp_path / "moved.sqlite"
    fit(features, tmp_path / "one")
    book = ledger_path_of(tmp_path / "one")
    older = book.read_bytes()
    head = DPLeastSquaresClassifier(epsilon=1.0).fit(features)
    if lost == "a later":
        older = book.read_bytes()
    fit(features, tmp_path / "two", *LARGE)
    head.save(run)
    moved.write_bytes(book.read_bytes())
    book.write_bytes(older)
    said = refusal("export", run, "--to", "sklearn", "-o", tmp_path / "export")
    assert "Restore a copy with all fits in another place" in said
    assert not (tmp_path / "export").exists()
    found = findings(run)
    assert "fit not in the ledger" in found
    assert str(book) in found.get(FINDING, "")  # it can have later fits
    said = words(fitted("report", run).err)
    assert "copy with all fits" in said and "not reachable" not in said
    # the home knows a copy with all fits
    fit(features, tmp_path / "three", *LARGE, "--ledger", moved)
    assert "fit not in the ledger" not in findings(run)
    assert len(read_known(run).fits) == 4
    # and the older copy is another ledger, because later fits can be charged to it
    assert str(book) in findings(run)["fits in another ledger"]


def test_a_link_to_the_report_of_a_run_is_checked_as_the_report(features, tmp_path):
    run, link = tmp_path / "run", tmp_path / "link.json"
    fit(features, run)
    link.symlink_to(run / "report.json")
    assert dphead("check", link).code == 0
    about = [f'{key} = "a"' for key in ("institution", "purpose", "contact")]
    about += ["date = 2026-11-27", "max_epsilon = 0.1"]
    (run / "about.toml").write_text("\n".join(about))
    fit(features, tmp_path / "two")
    told = dphead("check", link).out
    assert "stated limit exceeded by other fits" in told
    assert told == dphead("check", run / "report.json").out
    (run / "fit.json").write_text("{}")
    assert refusal("check", link) == refusal("check", run / "report.json")


def test_whose_a_ledger_is(tmp_path):
    Ledger(tmp_path / "a.sqlite", "ab12").close()
    Ledger(tmp_path / "b.sqlite").close()
    found = [data_set_of(tmp_path / f"{name}.sqlite") for name in "abc"]
    assert found == ["ab12", None, None]
    assert not (tmp_path / "c.sqlite").exists()
