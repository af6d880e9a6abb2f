"""DPMultiLabelClassifier: rows of several classes, fitted and predicted."""

import warnings

import numpy as np
import pytest
import torch
from dphead_extract.features.format import FormatError, write_features
from scipy.sparse import csr_matrix

import dphead
from dphead import DPMultiLabelClassifier
from dphead.privacy.ledger import Ledger

N, D, M = 600, 8, 3
METHODS = ["auto", "dp-sgd", "dp-adam", "dp-fc", "dp-newton"]


@pytest.fixture
def rows():
    """(n, d) rows, and the sets of classes that they lie toward."""
    draw = np.random.default_rng(0)
    sets = draw.integers(0, 2, (N, M))
    return draw.normal(size=(N, D)) + 4 * sets @ np.eye(M, D), sets


def head(**changes):
    return DPMultiLabelClassifier(**({"epsilon": 8.0} | changes))


def same(one, other):
    assert np.array_equal(one.head_.weights, other.head_.weights)
    assert np.array_equal(one.head_.intercept, other.head_.intercept)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_gradients_learns_each_class(rows, method):
    """A chance of one in eight."""
    x, sets = rows
    ours = head(method=method).fit(x, sets)
    assert ours.score(x, sets) > 0.6
    assert (ours.predict(x) == sets).mean(axis=0).min() > 0.8
    assert ours.privacy_.private


def test_scores_are_the_logits_of_each_class_by_itself(rows):
    x, sets = rows
    x[7] = np.nan
    ours = head(classes=["tall", "red", "old"]).fit(x, sets)
    scores = ours.decision_function(x)
    assert scores.shape == (N, M) and ours.coef_.shape == (M, D)
    assert ours.intercept_.shape == (M,)
    assert ours.classes_.tolist() == ["tall", "red", "old"]
    assert np.flatnonzero(np.isnan(scores).all(axis=1)).tolist() == [7]
    with pytest.raises(ValueError, match=r"1 of .* rows have no class"):
        ours.predict(x)
    score, there = ours.score(x, sets), np.arange(N) != 7
    x, sets, scores = x[there], sets[there], scores[there]
    p = ours.predict_proba(x)
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-scores.astype(float))))
    assert np.array_equal(ours.predict(x), p > 0.5)
    whole = (ours.predict(x) == sets).all(axis=1)
    assert score == whole.sum() / N
    weight = np.arange(len(x))
    weighted = np.average(whole, weights=weight)
    assert ours.score(x, sets, weight) == pytest.approx(weighted)


def test_the_same_sets_in_any_container_give_the_same_head(rows):
    x, sets = rows
    one = head(random_state=0).fit(x, sets)
    for other in (
        sets.astype(np.float32),
        [tuple(row) for row in sets.tolist()],
        csr_matrix(sets),
        torch.tensor(sets, dtype=torch.bool),
    ):
        same(one, head(random_state=0).fit(x, other))


@pytest.mark.parametrize("bad", [2, 0.5, np.nan, 2**40])
def test_a_set_of_other_numbers_counts_as_a_row_that_is_not_there(rows, bad):
    """In silence: whether there is one must not be seen."""
    x, sets = rows
    x[9], sets[9] = 8 * (np.arange(D) < M), 1  # every class is predicted
    there = sets.astype(float)
    there[9, 1] = bad
    gone = x.copy()
    gone[9] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dphead.PrivacyWarning)  # of the seed
        ours = head(random_state=0).fit(x, there)
    same(ours, head(random_state=0).fit(gone, sets))
    if float(bad).is_integer():
        same(ours, head(random_state=0).fit(x, there.astype(np.int64)))
    right = (ours.predict(x) == there).all(axis=1)
    assert ours.score(x, there) == right.sum() / N


@pytest.mark.parametrize(
    "change, said",
    [
        ({"method": "dp-ls"}, r"'dp-ls' with these settings cannot"),
        ({"settings": {"estimate": True}}, r"'auto' with these settings cannot"),
        (
            {"method": "dp-sgd", "settings": {"loss": "softmax"}},
            r"one class per row.* with the sigmoid loss",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_nothing_charged(rows, change, said):
    ledger = Ledger()
    with pytest.raises(ValueError, match=said):
        head(ledger=ledger, **change).fit(*rows)
    assert ledger.fits() == []


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda y: y[:, 0], "must be an indicator matrix"),
        (lambda y: y[:, :1], "two columns or more"),
        (lambda y: y.astype(str), "must be an indicator matrix"),
        (lambda y: [[0, 1], [1]] * (N // 2), "MultiLabelBinarizer"),
        (lambda y: y[1:], "inconsistent numbers of samples"),
        (lambda y: None, "target y is None"),
    ],
)
def test_labels_of_another_shape_or_kind_are_refused(rows, change, said):
    x, sets = rows
    ledger = Ledger()
    with pytest.raises(ValueError, match=said):
        head(ledger=ledger).fit(x, change(sets))
    assert ledger.fits() == []


def test_a_features_file_takes_sets_of_its_rows(rows, tmp_path):
    """Its ledger counts the fit; an unreadable image counts zero, and so do rows beyond
    the cap of their group.
    """
    x, sets = rows
    path = tmp_path / "f.h5"
    x = x.astype(np.float32)
    split = np.arange(N) % 3 // 2
    x[3] = 0
    group = np.arange(N) // 6
    more = {"group": group, "split": split, "split_names": ["train", "test"]}
    valid = np.arange(N) != 3
    write_features(path, x, np.full(N, -1, np.int32), ["a", "b"], valid=valid, **more)
    there = split == 0
    given = {"split": "train", "group_cap": 2}
    ours = head(random_state=0, ledger=":memory:", **given).fit(path, sets[there])
    x[3] = np.nan
    theirs = head(random_state=0, group_cap=2)
    theirs.fit(x[there], sets[there], group[there])
    same(ours, theirs)
    assert head(**given).fit(path, sets[there]).ledger_.path != ":memory:"
    found = ours.score(path, sets[~there], split="test")
    assert found == theirs.score(x[~there], sets[~there])
    for y, error, said in (
        (sets, FormatError, "The split has 400 rows"),
        (None, ValueError, "target y is None"),
    ):
        with pytest.raises(error, match=said):
            head(**given).fit(path, y)
    with pytest.raises(ValueError, match="has its own groups"):
        head(split="train").fit(path, sets[there], sets[there][:, 0])
    assert len(ours.ledger_.fits()) == 1


def test_a_frames_columns_are_the_classes_in_their_order():
    """Permuted columns would train each class on the labels of another."""
    pandas = pytest.importorskip("pandas")
    x, ledger = np.zeros((20, 2)), Ledger()
    y = pandas.DataFrame({"a": [0, 1] * 10, "b": [1, 0] * 10, "c": [1, 1] * 10})

    def fitted(classes, frame):
        given = {"method": "dp-sgd", "delta": 1e-3, "ledger": ledger}
        return DPMultiLabelClassifier(classes=classes, **given).fit(x, frame)

    numbered = y.set_axis([2, 0, 1], axis=1)
    for classes, frame in (
        (["a", "b", "c"], y[["b", "a", "c"]]),
        (["a", "b", "d"], y),
        ([0, 1, 2], numbered),
    ):
        with pytest.raises(ValueError, match=r"order of `classes`.*`y\[list"):
            fitted(classes, frame)
    assert ledger.fits() == []
    assert fitted(None, y).classes_.tolist() == ["a", "b", "c"]
    assert fitted([7, 8, 9], y.set_axis(range(3), axis=1)).classes_.tolist() == [
        7,
        8,
        9,
    ]
    model = fitted(["a", "b", "c"], y)
    assert model.score(x, y) == model.score(x, y.to_numpy())
    with pytest.raises(ValueError, match="order of `classes`"):
        model.score(x, y[["c", "b", "a"]])
