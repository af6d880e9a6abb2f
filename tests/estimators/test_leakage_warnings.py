"""What stands around a fit is warned of: fitted steps of a pipeline, searches."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from dphead import DPPCA, DPAutoClassifier, DPPrototypeClassifier, PrivacyWarning
from dphead.privacy.ledger import Ledger


def make(**changes):
    settings = {"epsilon": 4.0, "delta": 1e-4, "classes": range(3)} | changes
    return DPPrototypeClassifier(**settings)


def warned(fit) -> list[str]:
    """The texts of a fit's privacy warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit()
    return [str(w.message) for w in found if w.category is PrivacyWarning]


def told_of_classes(**changes) -> list[str]:
    """The warnings of a fit of `auto` on classes that are never predicted, if any."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4)), np.zeros(300, int)
    given = {"classes": range(2), "epsilon": 8.0, "delta": 1e-4} | changes
    model = DPAutoClassifier(**given)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(x, y)
    return [str(w.message) for w in found if "class" in str(w.message)]


def test_a_fit_tells_of_classes_that_no_released_number_shows_predicted(capsys):
    """In the words of the command. The warning stops no fit that was charged."""
    (untold,) = told_of_classes()
    assert untold.startswith("No released number tells whether each class is ever pre")
    assert "(`per_class_share`)" in untold
    (unshown,) = told_of_classes(per_class_share=0.3)
    assert "no number shows that these classes are ever predicted" in unshown.lower()
    assert ": 1. Measure them" in unshown
    assert told_of_classes(epsilon=np.inf) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().fit(np.ones((300, 4)), np.zeros(300, int))
    assert untold[:20] in capsys.readouterr().err


STEPS = {
    "a scaler": ([StandardScaler()], ["standardscaler"]),
    "two": ([StandardScaler(), Normalizer(), PCA(2)], ["standardscaler", "pca"]),
    "a pipeline in a pipeline": ([make_pipeline(PCA(2))], ["pipeline"]),
    "a row by itself": ([Normalizer(), FunctionTransformer(np.tanh)], []),
    "nothing": (["passthrough"], []),
}


@pytest.mark.parametrize("steps, named", STEPS.values(), ids=STEPS)
def test_a_step_that_was_fitted_to_the_same_rows_is_named(blobs, steps, named):
    pipeline = make_pipeline(*steps, make())
    texts = warned(lambda: pipeline.fit(*blobs))
    assert len(texts) == bool(named)
    for text in texts:
        assert f"earlier pipeline steps {', '.join(named)} were fitted" in text
    notes = " ".join(pipeline[-1].privacy_.notes)
    assert ("The earlier pipeline steps" in notes) == bool(named)


def test_only_the_steps_before_the_private_one_are_named(blobs, tmp_path):
    """Also where the pipeline's memory has each of its steps cloned."""
    pipeline = [Normalizer(), DPPCA(n_components=2), StandardScaler(), make()]
    for memory in (None, str(tmp_path)):
        (text,) = warned(
            lambda m=memory: make_pipeline(*pipeline, memory=m).fit(*blobs)
        )
        assert "earlier pipeline steps standardscaler were" in text
    first = [StandardScaler(), DPPCA(n_components=2), make()]
    texts = warned(lambda: make_pipeline(*first).fit(*blobs))
    assert len(texts) == 2


def test_a_step_of_dphead_without_privacy_is_named(blobs):
    steps = DPPCA(n_components=2, epsilon=np.inf), make()
    texts = warned(lambda: make_pipeline(*steps).fit(*blobs))
    assert any("earlier pipeline steps dppca were" in text for text in texts)


def test_steps_of_pipelines_around_are_named_and_frozen_ones_are_not(blobs):
    x, y = blobs
    frozen = FrozenEstimator(StandardScaler().fit(np.eye(8)))
    assert warned(lambda: make_pipeline(frozen, make()).fit(x, y)) == []
    outer = Pipeline(
        [("scale", StandardScaler()), ("inner", make_pipeline(frozen, PCA(2), make()))]
    )
    (text,) = warned(lambda: outer.fit(x, y))
    assert "earlier pipeline steps scale, pca were" in text


@pytest.mark.parametrize("nested", [False, True])
def test_a_grid_search_is_warned_of_once_and_noted_in_each_fit(blobs, nested):
    model = make_pipeline(Normalizer(), make()) if nested else make()
    name = f"{'dpprototypeclassifier__' if nested else ''}rule"
    search = GridSearchCV(model, {name: ["cosine", "nearest"]}, cv=2)
    (text,) = warned(lambda: search.fit(*blobs))
    assert "a clone with changed settings" in text
    assert "fits on overlapping rows add up" in text
    best = search.best_estimator_[-1] if nested else search.best_estimator_
    assert any("clone with changed settings" in note for note in best.privacy_.notes)


MANY_FITS = {
    "cross_val_score": lambda model, x, y: cross_val_score(model, x, y, cv=3),
    "calibration": lambda model, x, y: CalibratedClassifierCV(model, cv=2).fit(x, y),
    "clones by hand": lambda model, x, y: [clone(model).fit(x, y) for _ in range(2)],
}


@pytest.mark.parametrize("fit", MANY_FITS.values(), ids=MANY_FITS)
def test_several_fits_of_clones_are_warned_of_once(blobs, fit):
    (text,) = warned(lambda: fit(make(), *blobs))
    assert "fits on overlapping rows add up" in text
    assert "No ledger adds these fits up" in text


@pytest.mark.parametrize("relation", ["zero_out", "add_remove"])
def test_folds_that_one_row_decides_are_warned_of(blobs, relation):
    """Without the first row, the folds of nearly all others change."""
    hidden = {"nominal_n": 200} if relation == "add_remove" else {}
    model = make(relation=relation, **hidden)
    (text,) = warned(lambda: cross_val_score(model, *blobs, cv=2))
    assert ("chooses folds by positions or labels" in text) == (relation != "zero_out")


def test_a_seed_in_clones_is_warned_of_once(blobs):
    """An ensemble seeds its clones itself, and then they are not private."""
    x, y = blobs
    seeded = "random_state is fixed"
    for model in (make(random_state=0), make()):
        bagging = BaggingClassifier(model, n_estimators=3)
        texts = warned(lambda m=bagging: m.fit(x, y))
        assert sum(seeded in text for text in texts) == 1
        assert len(texts) == 2  # of the seed, and of several fits
        assert all(one.privacy_.epsilon == np.inf for one in bagging.estimators_)


def test_the_warning_has_the_total_of_the_ledger(blobs, tmp_path):
    """Two fits of epsilon = 4 spend more than 4 and less than 8; a ledger with a budget
    counts them too.
    """
    x, y = blobs
    for ledger in (tmp_path / "book.sqlite", Ledger()):
        model = make(ledger=ledger)
        (text,) = warned(lambda m=model: cross_val_score(m, x, y, cv=4))
        book = Ledger(ledger) if isinstance(ledger, Path) else ledger
        assert len(book.fits()) == 4
        said = float(re.search(r"total is epsilon ([\d.]+)\.", text)[1])
        assert 4 < said < book.spent(1e-4).epsilon
