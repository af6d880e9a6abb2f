"""A budget counts every fit on its images: no other ledger takes a fit beside it."""

import threading

import pytest
from commands import (
    NOT_PRIVATE,
    OF_IMAGES,
    dphead,
    features_file,
    fitted,
    id_of,
    refusal,
    refused,
    report_of,
    words,
)
from core import reserve
from ledgers import specs

from dphead import DPLeastSquaresClassifier
from dphead.fit import ledgers
from dphead.fit.ledgers import charging, default_ledger_path, fix_budget, image_index
from dphead.fit.noted import notes_path
from dphead.privacy.ledger import Ledger, LedgerError

FIT = ("--method", "prototypes", "--backend", "numpy")
BUDGET = ("--epsilon", 1, "--delta", 1e-5)
INSIDE = "Pass the ledger with the budget"


@pytest.fixture
def features(tmp_path):
    return features_file(tmp_path / "f.h5", **OF_IMAGES)


def fit(features, out, *more):
    return dphead("fit", features, "-o", out, *FIT, *more)


@pytest.mark.parametrize(
    "other, more", [("other.sqlite", ()), (":memory:", ("--seed", 1, NOT_PRIVATE))]
)
def test_another_ledger_is_no_way_around_a_budget(features, tmp_path, other, more):
    """Nothing is charged, and no file is made."""
    fitted("ledger", "budget", features, *BUDGET)
    other = other if other == ":memory:" else tmp_path / other
    said = refused(fit(features, tmp_path / "run", "--ledger", other, *more))
    if other == ":memory:":
        assert "Type a file, such as ledger.sqlite" in said
    else:
        assert INSIDE in said and "budget epsilon=1" in said
    assert not (tmp_path / "other.sqlite").exists()
    assert not (tmp_path / "run").exists()
    assert fit(features, tmp_path / "run").code == 0


def test_a_budget_in_a_named_ledger_is_kept_by_the_default_one_too(features, tmp_path):
    book = tmp_path / "book.sqlite"
    Ledger(book, id_of(features)).close()
    fitted("ledger", "budget", book, *BUDGET)
    assert INSIDE in refused(fit(features, tmp_path / "run"))
    assert not default_ledger_path(id_of(features)).exists()
    assert fit(features, tmp_path / "run", "--ledger", book).code == 0


@pytest.mark.parametrize("gone", [False, True])
def test_no_budget_is_fixed_after_fits_elsewhere(features, tmp_path, gone):
    """A ledger that is gone may hold fits."""
    other = tmp_path / "other.sqlite"
    assert fit(features, tmp_path / "run", "--ledger", other).code == 0
    if gone:
        other.unlink()
    said = refusal("ledger", "budget", features, *BUDGET)
    assert "must count every fit" in said and str(other) in said
    assert ("gone or unreadable" if gone else "(1 fit for") in said


def test_a_budget_that_the_home_did_not_know_refuses_what_it_would_not_count(
    features, tmp_path
):
    """Fixed in Python, or before the ledger had a data set."""
    book = Ledger(tmp_path / "book.sqlite")
    book.set_budget(1.0, 1e-5)
    assert fit(features, tmp_path / "one").code == 0
    said = refused(fit(features, tmp_path / "two", "--ledger", book.path))
    assert "must count every fit" in said
    assert book.fits() == []


def test_a_budget_takes_no_fit_beside_a_ledger_that_is_gone(features, tmp_path):
    """It may hold fits, also where the budget was fixed without a look at it."""
    other = tmp_path / "other.sqlite"
    assert fit(features, tmp_path / "one", "--ledger", other).code == 0
    other.unlink()
    book = Ledger(tmp_path / "book.sqlite")
    book.set_budget(1.0, 1e-5)
    said = refused(fit(features, tmp_path / "two", "--ledger", book.path))
    assert "must count every fit" in said and "gone or unreadable" in said
    assert f"remove its line from {notes_path(id_of(features))}" in said
    assert book.fits() == []
    assert fit(features, tmp_path / "three").code == 0


def test_the_error_about_a_damaged_default_ledger_names_no_line(features, tmp_path):
    """No file of notes lists a default ledger."""
    assert fit(features, tmp_path / "one").code == 0
    default_ledger_path(id_of(features)).write_bytes(b"x" * 5000)
    book = Ledger(tmp_path / "book.sqlite")
    book.set_budget(1.0, 1e-5)
    said = refused(fit(features, tmp_path / "two", "--ledger", book.path))
    assert "gone or unreadable" in said and "remove its file." in said
    assert ".others" not in said


@pytest.mark.parametrize("shared", [120, 20])
def test_other_data_sets_with_the_images_keep_the_budget_too(
    features, tmp_path, shared
):
    import numpy as np

    other = features_file(tmp_path / "g.h5", seed=1, **OF_IMAGES)
    index = image_index()
    index.add(id_of(features), np.arange(200, dtype=np.uint64))
    index.add(id_of(other), np.arange(200 - shared, 400 - shared, dtype=np.uint64))
    fitted("ledger", "budget", features, *BUDGET)
    for said in (
        refused(fit(other, tmp_path / "run")),
        refusal("ledger", "budget", other, *BUDGET),
    ):
        assert f"{shared} of these images are also in data set" in said
        # a ledger takes no fit of another data set
        assert f"with --dataset-id {id_of(features)}." in said
        assert "--ledger" not in said


def test_an_estimator_keeps_the_budget_too(features, tmp_path):
    fitted("ledger", "budget", features, *BUDGET)
    books = (tmp_path / "path.sqlite", Ledger(tmp_path / "object.sqlite"), Ledger())
    for ledger in (*books, ":memory:"):
        head = DPLeastSquaresClassifier(epsilon=0.5, ledger=ledger)
        with pytest.raises(LedgerError, match=INSIDE):
            head.fit(features)
    assert all(book.fits() == [] for book in books[1:])
    assert DPLeastSquaresClassifier(epsilon=0.5).fit(features).privacy_.private


def test_no_budget_is_fixed_between_the_check_and_the_charge(features, tmp_path):
    dataset_id = id_of(features)
    book = Ledger(tmp_path / "book.sqlite", dataset_id)
    own = Ledger(default_ledger_path(dataset_id), dataset_id).path
    fixed = []

    def fix():
        try:
            fix_budget(Ledger(own, dataset_id), 1.0, 1e-5)
        except LedgerError as error:
            fixed.append(str(error))

    other = threading.Thread(target=fix)
    with charging(book):
        other.start()
        other.join(0.5)  # it waits for the lock, or is slow: either way it comes later
        reserve(specs(), book)
    other.join()
    assert fixed and "must count every fit" in fixed[0]
    assert Ledger(own).budget() is None


def test_a_resumed_fit_goes_on_in_its_own_ledger(features, tmp_path, monkeypatch):
    """It was charged before the budget was known: nothing more is."""
    run, book = tmp_path / "run", tmp_path / "book.sqlite"

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dphead.fit.run.measure", dies)
    with pytest.raises(KeyboardInterrupt):
        from dphead.fit.options import FitOptions
        from dphead.fit.run import fit_files

        fit_files(FitOptions(features=features, out=run, ledger=book))
    monkeypatch.undo()
    Ledger(default_ledger_path(id_of(features)), id_of(features)).set_budget(1.0, 1e-5)
    fit_files(FitOptions(features=features, out=run, ledger=book))
    assert report_of(run)["ledger"]["fits"] == 1


def test_show_names_the_ledgers_that_are_not_counted(features, tmp_path):
    other = tmp_path / "other.sqlite"
    assert fit(features, tmp_path / "run", "--ledger", other).code == 0
    assert fit(features, tmp_path / "run2").code == 0
    shown = words(fitted("ledger", "show", features).out)
    assert "not counted here: the ledger" in shown and "other.sqlite" in shown
    assert ledgers.noted_ledgers(id_of(features)) == [str(other)]
