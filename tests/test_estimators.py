"""The scikit-learn classifiers: its conventions, and what a private fit must not do."""

import pickle
import warnings

import numpy as np
import pytest
from definitions import means_of_groups
from dphead_extract.features.format import FormatError, write_features
from estimators.methods import METHODS
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import dphead
from dphead.analysis.metrics import probabilities
from dphead.estimators import guarantee, inputs
from dphead.fit.ledgers import default_ledger_path
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.solvers.head import float_rows

LeastSquares = dphead.DPLeastSquaresClassifier


all_methods = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


@pytest.fixture
def features(tmp_path, blobs):
    """A features file with a train and a test split; (path, dataset_id)."""
    x, y = blobs
    path = tmp_path / "features.h5"
    split = (np.arange(300) >= 200).astype(int)
    names = ["cat", "dog", "bird"]
    return path, write_features(
        path, x.astype(np.float32), y, names, split=split, split_names=["train", "test"]
    )


@pytest.mark.parametrize(
    "other", [0.5, 2**70, -1, np.longdouble(1), np.float32(1), None]
)
def test_a_rows_numbers_do_not_depend_on_the_type_of_other_rows(other):
    """A list of integers becomes int64, or float64 where one row has a fraction:
    float32 rounds them another way.
    """
    listed = [[16958066872287233, 2**60 + 2**36 + 1], [1, 2]]
    whole = inputs.row_numbers([*listed, [1, 0]])
    mixed = inputs.row_numbers([*listed, [other, 0]])
    assert_array_equal(np.float32(whole[:2]), np.float32(mixed[:2]))
    for array in (np.array(listed), np.array(listed, np.longdouble)):
        assert_array_equal(np.float32(inputs.row_numbers(array)), np.float32(mixed[:2]))


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_remove"])
def test_privacy_states_the_guarantee(relation, blobs):
    nominal = 250 if relation == "add_remove" else None
    given = {"classes": range(3), "relation": relation, "nominal_n": nominal}
    p = dphead.DPAutoClassifier(epsilon=2.0, delta=1e-5, **given).fit(*blobs).privacy_
    assert p.private
    assert p.neighboring_relation == relation
    assert p.delta == 1e-5
    assert p.epsilon == pytest.approx(2.0, rel=1e-6)
    assert p.epsilon <= 2.0
    assert p.n_rows == (nominal or 300)
    counted = zip(p.releases, p.noise_multipliers, strict=True)
    assert p.mu == pytest.approx(sum(r["count"] / s**2 for r, s in counted) ** 0.5)
    assert "noise_multipliers=(" in repr(p)
    one_fit, out_of_sight = p.notes
    assert one_fit.startswith("Only this fit is counted, in a ledger in memory.")
    assert out_of_sight.startswith("Earlier steps fitted to the same data")
    assert p.profiles


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_repeats_the_fit_and_is_not_private(seed, blobs):
    """Also the seed that is false in Python."""
    model = LeastSquares(classes=range(3), random_state=seed)
    first, second = (clone(model).fit(*blobs) for _ in range(2))
    assert_array_equal(first.head_.weights, second.head_.weights)
    privacy = first.privacy_
    assert not privacy.private and privacy.epsilon == np.inf
    assert privacy.nominal_epsilon == pytest.approx(model.epsilon, rel=1e-6)
    assert privacy.mu is privacy.rho is None and privacy.profiles == {}
    assert guarantee.SEEDED in privacy.notes
    assert first.ledger_.spent(1e-5).epsilon == np.inf
    assert f"seed {seed}: not private" in first.ledger_.fits()[0]["description"]
    other = clone(model).set_params(random_state=8).fit(*blobs)
    assert not np.array_equal(other.head_.weights, first.head_.weights)


# Nothing raises because of a row


@pytest.mark.parametrize("method", METHODS[:2], ids=lambda m: m.__name__)
def test_hostile_rows_count_zero_and_raise_nothing(method, blobs):
    x, y = blobs
    x = np.vstack([x, np.ones((6, 8))])
    y = np.concatenate([y, [0, 1, 2, 77, -5, 3]]).astype(float)
    x[-6:-3, 0] = np.nan, np.inf, 1e300
    y[0] = np.nan
    clean = x.copy()
    clean[[0, *range(-6, 0)]] = np.nan
    model = method(classes=range(3), random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dphead.PrivacyWarning)  # of the seed
        dirty = clone(model).fit(x, y)
        wiped = clone(model).fit(clean, y)
    assert_array_equal(dirty.head_.weights, wiped.head_.weights)


class Hostile(int):
    """A label that stops whoever looks at it."""

    def __hash__(self):
        raise SystemExit(3)

    def __eq__(self, other):
        raise KeyboardInterrupt


def test_no_code_of_a_label_runs():
    """It would after the charge, and what it raises would tell that the row is
    there.
    """
    strange = [Hostile(1), np.void(b"1"), np.datetime64("nat"), np.timedelta64(5)]
    labels = inputs.label_column([0, 1, *strange, np.int8(1), True, 1.0])
    found = inputs.positions(labels, np.array([0, 1])).tolist()
    assert found == [0, 1, *[-1] * len(strange), 1, 1, 1]


@pytest.mark.parametrize("row", [[1.0, "3"], [1.0, b"3"]])
def test_a_text_in_a_list_of_features_is_refused_whatever_the_other_rows_hold(row):
    for other in ([2.0, 2.0], [None, 2.0]):
        with pytest.raises(ValueError, match=r"real numeric dtype|only numbers"):
            dphead.DPPrototypeClassifier(classes=range(2)).fit([row, other], [0, 1])


@all_methods
def test_a_private_number_of_rows_may_be_any(method, blobs):
    model = method(classes=range(3), relation="add_remove", nominal_n=300, delta=1e-3)
    for n in (0, 1):
        x, y = (part[:n] for part in blobs)
        assert model.fit(x, y).privacy_.epsilon <= 1
        assert model.predict(blobs[0]).shape == (300,)
        with pytest.raises(
            ValueError, match=r"minimum of 1 is|as many rows as classes"
        ):
            method(classes=range(3)).fit(x, y)


@pytest.mark.parametrize("value", [np.inf, 1e300])
def test_a_row_that_is_not_finite_has_no_class(blobs, value):
    """1e300 is beyond float32, which training holds rows in."""
    x, y = blobs
    settings = {"epsilon": 8.0, "classes": range(3), "error_bars": True}
    model = LeastSquares(**settings).fit(x, y)
    bad = x.copy()
    bad[[1, 2], 3] = value
    for numbers in (model.predict_proba, model.decision_function, model.decision_std):
        found = numbers(bad)
        assert np.flatnonzero(np.isnan(found).all(axis=1)).tolist() == [1, 2]
        assert_allclose(np.delete(found, [1, 2], 0), np.delete(numbers(x), [1, 2], 0))
    with pytest.raises(ValueError, match=r"2 of 300 rows have no class"):
        model.predict(bad)
    right = model.predict(x) == y
    right[[1, 2]] = False
    weights = np.arange(300)
    assert model.score(bad, y) == right.mean()
    found = model.score(bad, y.tolist(), sample_weight=weights)
    assert found == pytest.approx(np.average(right, weights=weights))


# Refusals, before anything is charged


def test_a_large_delta_can_be_confirmed(blobs):
    model = LeastSquares(classes=range(3), delta=0.01, allow_large_delta=True)
    with pytest.warns(dphead.PrivacyWarning, match="delta must be below 1/n"):
        model.fit(*blobs)
    assert any("delta must be below" in note for note in model.privacy_.notes)


# Ledgers


def test_a_pickled_estimator_finds_its_ledger_from_another_folder_or_none(
    blobs, tmp_path, monkeypatch
):
    x, y = blobs
    monkeypatch.chdir(tmp_path)
    book = Ledger("book.sqlite")
    model = LeastSquares(classes=range(3), ledger=book).fit(x, y)
    fits = model.ledger_.fits()
    kept = pickle.dumps(model)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert pickle.loads(kept).ledger_.fits() == fits != []
    book.close()
    (tmp_path / "book.sqlite").rename(tmp_path / "moved.sqlite")
    with pytest.raises(LedgerError, match="ledger of this fit is missing"):
        _ = pickle.loads(kept).ledger_
    assert list(other.iterdir()) == []
    assert not (tmp_path / "book.sqlite").exists()
    alone = pickle.loads(pickle.dumps(LeastSquares(classes=range(3)).fit(x, y)))
    assert not hasattr(alone, "ledger_")
    assert_array_equal(
        pickle.loads(kept).decision_function(x), model.decision_function(x)
    )


# Conventions


@all_methods
@pytest.mark.parametrize("n_classes", [2, 3])
def test_coefficients_reproduce_the_scores(method, n_classes, blobs):
    x, y = blobs
    x = x[y < n_classes]
    y = np.array(["b", "a", "c"])[y[y < n_classes]]
    model = method(epsilon=8.0, classes=["b", "a", "c"][:n_classes]).fit(x, y)
    assert_array_equal(model.classes_, ["a", "b", "c"][:n_classes])
    assert model.coef_.shape == (1 if n_classes == 2 else 3, 8)
    assert model.intercept_.shape == model.coef_.shape[:1]
    rows = float_rows(model.head_.transform, x.astype(np.float32))
    wanted = rows[:, :8] @ model.coef_.T + model.intercept_
    scores = model.decision_function(x)
    assert_allclose(
        scores, wanted[:, 0] if n_classes == 2 else wanted, rtol=1e-4, atol=1e-4
    )
    p = model.predict_proba(x)
    assert_allclose(p, probabilities(model.head_.scores(x), model.head_.loss))
    assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(x))


# Features files


def test_a_features_file_brings_its_classes_and_its_ledger(features, blobs):
    (path, dataset_id), (x, y) = features, blobs
    model = LeastSquares(split="train").fit(path)
    assert_array_equal(model.classes_, ["cat", "dog", "bird"])
    assert model.n_features_in_ == 8
    assert model.privacy_.n_rows == 200
    assert model.ledger_.path == str(default_ledger_path(dataset_id))
    assert not any("Only this fit" in note for note in model.privacy_.notes)
    clone(model).fit(path)
    assert len(model.ledger_.fits()) == 2
    model = LeastSquares(split="train", ledger=":memory:", random_state=3).fit(path)
    arrays = x[:200].astype(np.float32), y[:200]
    of_arrays = LeastSquares(classes=range(3), random_state=3).fit(*arrays)
    assert_array_equal(model.head_.weights, of_arrays.head_.weights)
    names = np.array(["cat", "dog", "bird"])[y]
    right = model.score(x[200:], names[200:])
    assert model.score(path, split="test") == pytest.approx(right)
    for of in (model.predict, model.decision_function):
        assert_array_equal(of(str(path), split="test"), of(x[200:]))


@pytest.mark.parametrize("more", [{"random_state": 0}, {"epsilon": np.inf}])
@pytest.mark.parametrize("make", [LeastSquares, dphead.DPPCA], ids=["head", "pca"])
def test_a_fit_without_a_guarantee_needs_a_ledger_of_its_own(
    features, blobs, tmp_path, make, more
):
    """Its epsilon is infinite, and no ledger ever forgets a charge."""
    (path, _), (x, y) = features, blobs
    given = (x,) if make is dphead.DPPCA else (x, y)
    more = more if make is dphead.DPPCA else {**more, "classes": range(3)}
    book = Ledger()
    make(ledger=book, **{**more, "random_state": None, "epsilon": 1.0}).fit(*given)
    for ledger in (tmp_path / "book.sqlite", book):
        with pytest.raises(LedgerError, match="a ledger of its own"):
            make(ledger=ledger, **more).fit(*given)
    assert len(book.fits()) == 1
    if make is LeastSquares:
        own = {key: value for key, value in more.items() if key != "classes"}
        with pytest.raises(LedgerError, match="a ledger of its own"):
            make(split="train", **own).fit(path)
        make(split="train", ledger=":memory:", **own).fit(path)
    assert make(ledger=Ledger(), **more).fit(*given).privacy_.epsilon == np.inf
    assert make(**more).fit(*given).privacy_.epsilon == np.inf


def test_files_that_do_not_fit_are_refused(features, tmp_path, blobs):
    path, _ = features
    x, y = blobs
    fit = LeastSquares(split="train").fit
    with pytest.raises(FormatError, match="split"):
        LeastSquares().fit(path)
    with pytest.raises(ValueError, match="own labels"):
        fit(path, y)
    with pytest.raises(FormatError, match="is not a features file"):
        fit(tmp_path / "none.h5")
    with pytest.raises(ValueError, match="differ from the classes of"):
        LeastSquares(split="train", classes=["dog", "cat", "bird"]).fit(path)
    write_features(
        tmp_path / "other.h5",
        x.astype(np.float32),
        y,
        ["cat", "dog", "bird"],
        backbone="another",
    )
    with pytest.raises(ValueError, match="head's backbone"):
        fit(path).predict(tmp_path / "other.h5")
    with pytest.raises(LedgerError, match="belongs to data set"):
        LeastSquares(ledger=fit(path).ledger_).fit(tmp_path / "other.h5")


def test_groups_need_a_cap_and_a_cap_needs_groups(blobs):
    x, y = blobs
    groups = np.arange(300) // 3

    def fit(cap, groups):
        model = LeastSquares(delta=1e-4, classes=range(3), group_cap=cap)
        return model.fit(x, y, groups=groups)

    capped = fit(2, groups).privacy_
    unit = "one person (group) with all their rows, of which at most 2 count"
    assert capped.protected_unit == unit
    assert capped.mu == pytest.approx(fit(None, None).privacy_.mu)
    for cap, given in ((None, groups), (2, None)):
        with pytest.raises(ValueError, match="need each other"):
            fit(cap, given)
    for wrong in (groups > 50, groups * 1j, groups[:-1]):
        with pytest.raises(ValueError, match="numbers of at most 64 bits"):
            fit(2, wrong)


def test_a_files_groups_need_a_decision(blobs, tmp_path):
    """A cap, or that each image is protected for itself alone: then a note says so."""
    x, y = blobs
    path = tmp_path / "grouped.h5"
    names = ["cat", "dog", "bird"]
    write_features(
        path, x.astype(np.float32), y.astype(np.int32), names, group=np.arange(300) // 3
    )
    book = Ledger()

    def make(**more):
        given = {"epsilon": 4.0, "delta": 1e-4, "ledger": book} | more
        return dphead.DPPrototypeClassifier(**given)

    with pytest.raises(ValueError, match=r"group_cap=K to .*or protect='image' to"):
        make().fit(path)
    with pytest.raises(ValueError, match="Drop one of the two"):
        make(protect="image", group_cap=2).fit(path)
    assert not book.fits()
    apart = make(protect="image").fit(path)
    assert any("protect='image' confirms" in note for note in apart.privacy_.notes)
    capped = make(group_cap=2, ledger=Ledger()).fit(path)
    open_ended = make(epsilon=np.inf, ledger=Ledger()).fit(path)
    assert not any(
        "several rows" in note
        for m in (capped, open_ended)
        for note in m.privacy_.notes
    )


def test_a_file_without_class_names_takes_those_declared(tmp_path, blobs):
    x, y = blobs
    write_features(tmp_path / "bare.h5", x.astype(np.float32), y)
    with pytest.raises(ValueError, match="classes public"):
        LeastSquares().fit(tmp_path / "bare.h5")
    model = LeastSquares(epsilon=8.0, classes=["x", "y", "z"]).fit(tmp_path / "bare.h5")
    assert model.score(tmp_path / "bare.h5") > 0.8


def test_a_setting_is_a_parameter_or_in_settings_not_both(blobs):
    x, y = blobs
    given = {"method": "dp-ls", "classes": range(3), "delta": 1e-4}
    model = dphead.DPHeadClassifier(
        unit_norm=True,
        settings={"unit_norm": False},
        ledger=(book := Ledger()),
        **given,
    )
    with pytest.raises(ValueError, match="'unit_norm' in both"):
        model.fit(x, y)
    assert not book.fits()
    model.set_params(unit_norm=None).fit(x, y)


def test_means_of_groups_stand_for_their_rows(blobs, tmp_path):
    """As if each group had its means alone; files are in privacy/test_group_means."""
    x, y = blobs
    groups = np.arange(300) // 5
    given = {"delta": 1e-4, "random_state": 0, "classes": range(3), "group_cap": 2}
    model = LeastSquares(group_mean=True, **given).fit(x, y, groups=groups)
    means, labels = means_of_groups(x.astype(np.float32), y, groups, 2)
    alone = LeastSquares(**given).fit(means, labels, groups=groups)
    assert_array_equal(model.coef_, alone.coef_)
    unit = "one person (group) with all their rows, of which at most 2 means count"
    assert model.privacy_.protected_unit == unit
    model.save(tmp_path / "run")
    loaded = dphead.DPHeadClassifier.load(tmp_path / "run")
    assert loaded.group_mean and loaded.privacy_.protected_unit == unit
    auto = dphead.DPAutoClassifier(group_mean=True, **given).fit(x, y, groups=groups)
    assert auto.expected_accuracy_ is None
    sets = np.eye(3, dtype=int)[y]
    book = Ledger()
    with pytest.raises(ValueError, match="`group_mean` must be False for label sets"):
        dphead.DPMultiLabelClassifier(
            group_mean=True, group_cap=2, delta=1e-4, ledger=book
        ).fit(x, sets, groups=groups)
    assert not book.fits()


def test_too_few_rows_for_the_noise_are_told_before_the_charge(tmp_path):
    """Not for enough rows; the text has no row and no label in it."""
    ledger = tmp_path / "ledger.sqlite"
    x = np.random.default_rng(0).normal(size=(40, 300))
    y = np.arange(40) % 2
    given = {"epsilon": 0.5, "delta": 1e-5, "classes": [0, 1]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="worth about 98 rows") as told:
            dphead.DPAutoClassifier(**given, ledger=ledger).fit(x, y)
        assert "on average. Too few rows: " in str(told.value)
        assert "comes first: a larger epsilon: 2.9 instead of 0.5; a" in str(told.value)
        assert not ledger.exists()
        dphead.DPAutoClassifier(**given).fit(x[:, :8], y)
