"""What stands around a fit is warned of: fitted steps of a pipeline, searches."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from dphead import DPPCA, DPPrototypeClassifier, PrivacyWarning


def make(**changes):
    settings = {"epsilon": 4.0, "delta": 1e-4, "classes": range(3)} | changes
    return DPPrototypeClassifier(**settings)


@pytest.fixture
def blobs():
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 90)
    return draw.normal(size=(90, 4)) + 3 * np.eye(
        3,
        4,
    )[y], y


def warned(fit) -> list[str]:
    """The texts of a fit's privacy warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit()
    return [str(w.message) for w in found if w.category is PrivacyWarning]


STEPS = {
    "a scaler": ([StandardScaler()], ["standardscaler"]),
    "two": (
        [
            StandardScaler(),
            Normalizer(),
            PCA(2),
        ],
        ["standardscaler", "pca"],
    ),
    "a pipeline in a pipeline": ([make_pipeline(PCA(2))], ["pipeline"]),
    "a row by itself": ([Normalizer(), FunctionTransformer(np.tanh)], []),
    "nothing": (["passthrough"], []),
}


@pytest.mark.parametrize(
    ("steps", "named"),
    STEPS.values(),
    ids=STEPS,
)
def test_a_step_that_was_fitted_to_the_same_rows_is_named(blobs, steps, named):
    pipeline = make_pipeline(*steps, make())
    texts = warned(lambda: pipeline.fit(*blobs))
    assert len(texts) == bool(named)
    for text in texts:
        assert f"before this one, {', '.join(named)}, were fitted" in text
    notes = " ".join(pipeline[-1].privacy_.notes)
    assert ("the pipeline's steps" in notes) == bool(named)


def test_only_the_steps_before_the_private_one_are_named(blobs, tmp_path):
    """Also where the pipeline's memory has each of its steps cloned."""
    pipeline = [
        Normalizer(),
        DPPCA(n_components=2),
        StandardScaler(),
        make(),
    ]
    for memory in (None, str(tmp_path)):
        (text,) = warned(
            lambda m=memory: make_pipeline(*pipeline, memory=m).fit(*blobs)
        )
        assert "before this one, standardscaler, were" in text
    first = [StandardScaler(), DPPCA(n_components=2), make()]
    texts = warned(lambda: make_pipeline(*first).fit(*blobs))
    assert len(texts) == 2


def test_steps_of_pipelines_around_are_named_and_frozen_ones_are_not(blobs):
    x, y = blobs
    frozen = FrozenEstimator(StandardScaler().fit(np.eye(4)))
    assert (
        warned(
            lambda: make_pipeline(frozen, make()).fit(
                x,
                y,
            )
        )
        == []
    )
    outer = Pipeline(
        [
            ("scale", StandardScaler()),
            (
                "inner",
                make_pipeline(
                    frozen,
                    PCA(2),
                    make(),
                ),
            ),
        ]
    )
    (text,) = warned(lambda: outer.fit(x, y))
    assert "before this one, scale, pca, were" in text


def test_a_step_that_is_private_itself_is_not_named(blobs):
    class Private(BaseEstimator):
        def fit(self, x, y=None):
            self.privacy_ = "its own"
            return self

        def transform(self, x):
            return x

    assert (
        warned(
            lambda: make_pipeline(
                Private(),
                make(),
            ).fit(*blobs)
        )
        == []
    )


def test_without_noise_there_is_nothing_to_warn_of(blobs):
    pipeline = make_pipeline(StandardScaler(), make(epsilon=np.inf))
    assert warned(lambda: pipeline.fit(*blobs)) == []
    assert warned(lambda: make().fit(*blobs)) == []


@pytest.mark.parametrize("nested", [False, True])
def test_a_grid_search_is_warned_of_in_each_of_its_fits(blobs, nested):
    model = make_pipeline(Normalizer(), make()) if nested else make()
    name = f"{'dpprototypeclassifier__' if nested else ''}rule"
    search = GridSearchCV(model, {name: ["cosine", "nearest"]}, cv=2)
    texts = warned(lambda: search.fit(*blobs))
    assert len(texts) == 5  # two candidates on two folds, and the best on all rows
    assert all("a clone whose settings were changed" in text for text in texts)
    best = search.best_estimator_[-1] if nested else search.best_estimator_
    assert any("clone whose settings" in note for note in best.privacy_.notes)


def test_a_search_in_another_process_is_a_clone_that_was_sent(blobs):
    sent = pickle.loads(pickle.dumps(clone(make())))
    assert len(warned(lambda: sent.set_params(epsilon=2.0).fit(*blobs))) == 1


def test_clones_that_were_not_chosen_between_are_not_warned_of(blobs):
    x, y = blobs
    assert (
        warned(
            lambda: cross_val_score(
                make(),
                x,
                y,
                cv=2,
            )
        )
        == []
    )
    assert (
        warned(
            lambda: (
                clone(make())
                .set_params(random_state=3)
                .fit(
                    x,
                    y,
                )
            )
        )
        == []
    )
    assert (
        warned(
            lambda: (
                make()
                .set_params(epsilon=2.0)
                .fit(
                    x,
                    y,
                )
            )
        )
        == []
    )
    candidate = clone(make()).set_params(epsilon=2.0)
    assert warned(lambda: clone(candidate).fit(x, y)) == []
