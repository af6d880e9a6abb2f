"""Estimators as run folders: saved, checked, loaded, predicted with and exported."""

import pickle

import numpy as np
import pytest
from commands import dphead, features_file, id_of, words
from core import reserve, toy
from exports import holds
from ledgers import specs
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dphead import (
    DPAutoClassifier,
    DPFeatureCovarianceClassifier,
    DPHeadClassifier,
    DPMultiLabelClassifier,
)
from dphead.analysis.records import read_run
from dphead.analysis.sealed import write_json
from dphead.export.sklearn_head import load_head
from dphead.fit.ledgers import read_known
from dphead.privacy.ledger import Ledger, LedgerError, seals
from dphead.privacy.ledger.store import MERGED, MOVED

X, Y = toy(120)
CLASSES = [0, 1, 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    ledger = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    model = DPFeatureCovarianceClassifier(
        epsilon=3, delta=1e-3, classes=CLASSES, ledger=ledger, unit_norm=True
    )
    return model.fit(X, Y)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("saved") / "run"
    model.save(out)
    return out


def test_a_class_that_no_file_can_hold_is_refused_before_the_charge():
    """The fit would be charged, and `save` would fail."""
    ledger = Ledger()
    names = np.array(["a", "b\ud800", "c"])
    model = DPAutoClassifier(classes=names, ledger=ledger, delta=1e-3)
    with pytest.raises(ValueError, match="which UTF-8 cannot encode"):
        model.fit(X, names[Y])
    assert ledger.count_fits() == 0


def test_a_loaded_classifier_predicts_as_the_one_that_was_saved(model, run):
    found = DPHeadClassifier.load(run)
    assert found.classes_.tolist() == CLASSES
    assert_array_equal(found.predict_proba(X), model.predict_proba(X))
    assert_array_equal(found.coef_, model.coef_)
    assert found.score(X, Y) == model.score(X, Y)
    assert found.privacy_.epsilon == model.privacy_.epsilon
    assert found.privacy_.private


def test_classes_keep_their_type(tmp_path):
    for classes in ([False, True], [0.5, 2.5], ["a", "b"]):
        model = DPAutoClassifier(classes=classes, delta=1e-3)
        model.fit(X, np.array(classes)[(Y > 0).astype(int)])
        model.save(tmp_path / str(classes[0]))
        found = DPHeadClassifier.load(tmp_path / str(classes[0]))
        assert found.classes_.tolist() == classes
        assert found.expected_accuracy_ == model.expected_accuracy_ is not None


def test_a_saved_run_passes_the_checks_of_runs(run, model):
    """Its report follows from its releases and from the ledger that it names."""
    found = read_run(run)
    assert found.report["guarantee"]["epsilon"] == model.privacy_.epsilon
    assert found.report["ledger"]["fit_id"] == model.ledger_.fits()[0]["fit_id"]
    assert len(found.fits) == 1
    assert "the same epsilon" in words(dphead("check", run).out)
    assert (run / "report.html").stat().st_size > 0
    with pytest.raises(ValueError, match="holds a finished run"):
        model.save(run)


def test_an_exported_classifier_scores_alike(model, tmp_path):
    """Exports themselves are compared in tests/export."""
    written = model.export("sklearn", tmp_path / "out")
    assert written.guarantee["epsilon"] == model.privacy_.epsilon
    found = load_head(written.folder)
    assert found.predict(X).tolist() == [str(k) for k in model.predict(X)]
    assert_allclose(found.decision_function(X), model.head_.scores(X), atol=1e-4)


def test_the_report_holds_the_notes_of_the_fit_and_its_tuning(run, model, tmp_path):
    assert read_run(run).report["warnings"] == list(model.privacy_.notes)
    assert read_run(run).report["tuning"] == "NOT ACCOUNTED"  # unit_norm was set
    model.save(tmp_path / "run", tuning="public data")
    assert read_run(tmp_path / "run").report["tuning"] == "public data"


def test_fits_that_a_ledger_in_memory_counted_are_not_called_one_fit(tmp_path):
    ledger, run = Ledger(), tmp_path / "run"
    ledger.set_budget(3.0, 1e-3)
    given = {"delta": 1e-3, "classes": CLASSES, "ledger": ledger}
    for _ in range(2):
        model = DPFeatureCovarianceClassifier(epsilon=1, **given).fit(X, Y)
    with pytest.raises(ValueError, match="tuning none is not true"):
        model.save(run, tuning="none")
    assert any("the fits in this in-memory ledger" in n for n in model.privacy_.notes)
    model.save(run)
    checked = words(dphead("check", run).out)
    assert "only fits of one ledger are counted" in checked
    statement = read_run(run).report["statement"]
    assert "The guarantee for all fits in this ledger is epsilon = 3" in statement
    assert "other fits from the same data add to the privacy loss" in statement
    page = words((run / "report.html").read_text())
    for text in (checked, statement, page):
        assert "nly this fit" not in text
    card = words(dphead("report", run, "--card", "-o", "-").out)
    assert "all fits in this ledger" in page and "| all fits in this ledger |" in card


def test_a_saved_run_names_no_absolute_path_of_a_ledger(tmp_path, monkeypatch):
    features = features_file(tmp_path / "f.h5")
    for name in ("r.sqlite", "q.sqlite"):
        DPFeatureCovarianceClassifier(epsilon=1, ledger=tmp_path / name).fit(features)
    model = DPFeatureCovarianceClassifier(epsilon=1).fit(features)
    model.save(run := tmp_path / "run")
    dphead("report", run, "--card")
    assert [name for name in holds(run) if name != "run.toml"] == []
    assert "The ledger q.sqlite holds at least 1 fit" in words(
        (run / "README.md").read_text()
    )
    (warned,) = [one for one in read_run(run).report["warnings"] if "q.sqlite" in one]
    assert "The ledger ../q.sqlite holds at least 1 fit" in warned
    # another home does not know the ledger, but the fit did
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "another"))
    reserve(specs(1, 8.0), Ledger(tmp_path / "q.sqlite"))
    model.save(later := tmp_path / "later")
    for kept in (elsewhere(later), read_known(run).report_now()["ledger"]["elsewhere"]):
        assert sorted(one["fits"] for one in kept) == [1, 2]
    now = warned.replace("1 fit", "2 fits")
    assert now in read_run(later).report["warnings"]
    with pytest.raises(ValueError, match="tuning none is not true"):
        model.save(tmp_path / "none", tuning="none")


def elsewhere(run):
    return read_run(run).report["ledger"]["elsewhere"]


def test_a_saved_run_names_a_ledger_of_the_home_of_its_fit_by_that_home(
    tmp_path, monkeypatch
):
    """Here, DPHEAD_HOME has a ledger of the same name, and the user's home differs."""
    home = tmp_path / "alice_smith"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DPHEAD_HOME", str(home / "dphead"))
    features = features_file(tmp_path / "f.h5")
    given = {"epsilon": 1, "delta": 1e-3}
    for ledger in (None, home / "h.sqlite", tmp_path / "q.sqlite"):
        model = DPFeatureCovarianceClassifier(ledger=ledger, **given).fit(features)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "second"))
    for _ in range(2):
        DPFeatureCovarianceClassifier(**given).fit(features)
    pickle.loads(pickle.dumps(model)).save(run := tmp_path / "run")
    name = f"$DPHEAD_HOME/ledgers/{id_of(features)}.sqlite"
    entries = [(one["path"], one["fits"]) for one in elsewhere(run)]
    assert entries == [(name, 2), (name, 1), ("~/h.sqlite", 1)]
    assert [file.name for file in run.iterdir() if b"alice" in file.read_bytes()] == []
    # a third home knows none of them
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "third"))
    stated = read_known(run).report_now()["ledger"]["elsewhere"]
    assert [(one["path"], one["fits"]) for one in stated] == entries


def test_a_saved_run_keeps_an_entry_with_more_fits_than_the_ledger_of_now(tmp_path):
    """The ledger of now is an older copy of the other ledger, or of the run's own."""
    features, q = features_file(tmp_path / "f.h5"), tmp_path / "q.sqlite"
    for _ in range(2):
        older = q.exists() and q.read_bytes()
        DPFeatureCovarianceClassifier(epsilon=1, ledger=q).fit(features)
    model = DPFeatureCovarianceClassifier(epsilon=1).fit(features)
    q.write_bytes(older)
    model.save(run := tmp_path / "run")
    assert [one["fits"] for one in elsewhere(run)] == [1, 2]


def test_a_saved_run_lists_a_copy_of_its_own_ledger(tmp_path, monkeypatch):
    """The copy has the same identity, and counts its own fits."""
    features, given = features_file(tmp_path / "f.h5"), {"epsilon": 1, "delta": 1e-3}
    own, copy = tmp_path / "own.sqlite", tmp_path / "copy.sqlite"
    DPFeatureCovarianceClassifier(ledger=own, **given).fit(features)
    copy.write_bytes(own.read_bytes())
    for ledger in (copy, own):
        model = DPFeatureCovarianceClassifier(ledger=ledger, **given).fit(features)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "second"))
    model.save(run := tmp_path / "run")
    for found in (elsewhere(run), read_known(run).report_now()["ledger"]["elsewhere"]):
        assert [(one["path"], one["fits"]) for one in found] == [("../copy.sqlite", 2)]


def test_a_pickled_classifier_has_no_time_and_one_of_an_earlier_version_is_saved(
    model, tmp_path
):
    """A time shows the private number of rows. The settings of that fit are unknown."""
    assert vars(model)["_result"].seconds == 0
    state = {key: value for key, value in vars(model).items() if key != "_chosen"}
    state |= {"unit_norm": None, "_ledger": model.ledger_.path}
    earlier = DPFeatureCovarianceClassifier()
    earlier.__setstate__(state)
    earlier.save(tmp_path / "run")
    assert read_run(tmp_path / "run").report["tuning"] == "NOT ACCOUNTED"


def test_a_saved_run_has_the_settings_and_the_other_ledgers_of_its_own_fit(tmp_path):
    """Neither parameters that are set later nor a fit that is refused change them."""
    features, q = features_file(tmp_path / "f.h5"), tmp_path / "q.sqlite"
    DPFeatureCovarianceClassifier(epsilon=1, ledger=q).fit(features)
    model = DPFeatureCovarianceClassifier(epsilon=1, clip_norm=0.5).fit(features)
    model.set_params(clip_norm=None, relation="replace_one", ledger=tmp_path / "r")
    DPFeatureCovarianceClassifier(epsilon=1, ledger=tmp_path / "r").fit(features)
    with pytest.raises(LedgerError, match="need the relation of its first fit"):
        model.fit(features)
    model.set_params(relation="zero_out", ledger=None)
    DPFeatureCovarianceClassifier(epsilon=1, ledger=q).fit(features)
    model.save(run := tmp_path / "run")
    report = read_run(run).report
    assert report["method"]["settings"]["clip_norm"] == 0.5
    assert report["tuning"] == "NOT ACCOUNTED"
    entries = {one["path"]: one["fits"] for one in report["ledger"]["elsewhere"]}
    assert entries == {"../q.sqlite": 2, "../r": 1}
    assert [name for name in holds(run) if name != "run.toml"] == []


def test_parameters_that_are_set_after_a_fit_do_not_decide_its_tuning(tmp_path):
    features = features_file(tmp_path / "f.h5")
    model = DPFeatureCovarianceClassifier(epsilon=1, clip_norm=0.5).fit(features)
    model.set_params(clip_norm=None).save(tmp_path / "run")
    assert read_run(tmp_path / "run").report["tuning"] == "NOT ACCOUNTED"


@pytest.mark.parametrize("counted", [True, False])
def test_a_fit_of_a_search_is_not_saved_as_one_without_tuning(tmp_path, counted):
    """Its report warns that the clone has changed settings, as in a grid search."""
    ledger = tmp_path / "book.sqlite" if counted else None
    model = DPFeatureCovarianceClassifier(delta=1e-3, classes=CLASSES, ledger=ledger)
    model = clone(model).set_params(epsilon=2).fit(X, Y)
    with pytest.raises(ValueError, match="clone with changed settings"):
        model.save(tmp_path / "none", tuning="none")
    model.save(run := tmp_path / "run")
    assert read_run(run).report["tuning"] == "NOT ACCOUNTED"


def test_settings_that_are_changed_after_the_fit_of_a_clone_are_no_search(tmp_path):
    given = {"delta": 1e-3, "classes": CLASSES, "ledger": tmp_path / "book.sqlite"}
    model = clone(DPFeatureCovarianceClassifier(**given)).fit(X, Y)
    model.set_params(epsilon=2).save(run := tmp_path / "run")
    assert read_run(run).report["tuning"] == "none"


def test_a_pickled_classifier_charges_the_same_ledger_in_another_folder(
    tmp_path, monkeypatch
):
    """A ledger that starts there would not count the earlier fit."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    given = {"delta": 1e-3, "classes": CLASSES, "ledger": "book.sqlite"}
    kept = pickle.dumps(DPFeatureCovarianceClassifier(**given).fit(X, Y))
    monkeypatch.chdir(tmp_path / "second")
    assert len(pickle.loads(kept).fit(X, Y).ledger_.fits()) == 2
    assert not list((tmp_path / "second").iterdir())


def test_a_fit_that_its_ledger_lacks_is_not_saved(tmp_path):
    """An older copy of the ledger has a total below the fit's own epsilon."""
    book = tmp_path / "book.sqlite"
    given = {"delta": 1e-3, "classes": CLASSES, "ledger": book}
    DPFeatureCovarianceClassifier(epsilon=0.5, **given).fit(X, Y)
    older = book.read_bytes()
    model = DPFeatureCovarianceClassifier(epsilon=2, **given).fit(X, Y)
    book.write_bytes(older)
    loaded = pickle.loads(pickle.dumps(model))
    for use in (lambda: loaded.save(tmp_path / "run"), lambda: loaded.ledger_):
        with pytest.raises(LedgerError, match="does not have this fit"):
            use()
    assert not (tmp_path / "run" / "report.json").exists()


@pytest.mark.parametrize("merged", [True, False])
def test_a_fit_whose_sum_an_interrupted_merge_made_unknown_is_not_saved(
    tmp_path, merged
):
    """Nor one whose ledger was moved to a place that cannot be read."""
    book = Ledger(tmp_path / "book.sqlite")
    model = DPFeatureCovarianceClassifier(epsilon=0.5, delta=1e-3, classes=CLASSES)
    model.set_params(ledger=book).fit(X, Y)
    with book.transaction():
        if merged:
            book.set_once(MERGED, "ab" * 16)
        book.set_once(MOVED, str(tmp_path / "merged.sqlite"))
        seals.seal(book)
    told = "the sum of all fits is unknown" if merged else "fits after this fit are"
    for use in (lambda: model.save(tmp_path / "run"), lambda: model.ledger_):
        with pytest.raises(LedgerError, match=told):
            use()
    assert not (tmp_path / "run" / "report.json").exists()


def test_a_run_of_a_ledger_in_memory_says_that_later_fits_are_unknown(tmp_path):
    model = DPFeatureCovarianceClassifier(epsilon=1, delta=1e-3, classes=CLASSES)
    model.fit(X, Y).save(tmp_path / "run")
    said = "the ledger was in memory, so later fits in it are unknown"
    assert said in words(dphead("check", tmp_path / "run").out)
    assert said in words(dphead("report", tmp_path / "run").err)


def test_an_interrupted_run_is_not_replaced(tmp_path):
    """Its charge would be lost."""
    model = DPFeatureCovarianceClassifier(epsilon=1, delta=1e-3, classes=CLASSES)
    model.fit(X, Y)
    (run := tmp_path / "run").mkdir()
    write_json(run / "fit.json", {"fit_id": "ab", "ledger": "x", "asked": {}})
    with pytest.raises(ValueError, match="holds an interrupted run"):
        model.save(run)
    assert (run / "fit.json").exists()


def test_a_seeded_fit_is_saved_as_not_private(tmp_path):
    model = DPAutoClassifier(epsilon=1, delta=1e-3, classes=CLASSES, random_state=0)
    with pytest.warns(UserWarning, match="random_state"):
        model.fit(X, Y)
    model.save(tmp_path / "run")
    found = DPHeadClassifier.load(tmp_path / "run")
    assert found.privacy_.epsilon == np.inf
    assert not found.privacy_.private


def test_classes_read_off_labels_and_label_sets_are_not_saved(tmp_path):
    seen = DPAutoClassifier(epsilon=np.inf).fit(X, Y)
    with pytest.raises(ValueError, match="needs declared classes"):
        seen.save(tmp_path / "run")
    sets = DPMultiLabelClassifier(epsilon=np.inf, classes=CLASSES)
    sets.fit(X, np.eye(3, dtype=int)[Y])
    with pytest.raises(ValueError, match="one class per row"):
        sets.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
