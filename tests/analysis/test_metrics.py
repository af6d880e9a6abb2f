"""Metrics against hand counts, scikit-learn and their definitions."""

import numpy as np
import pytest
from dphead_extract.items import UNGROUPED
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import metrics as reference

from dphead.analysis import metrics
from dphead.privacy.loss import LOSSES


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, 400)
    scores = rng.normal(size=(400, 7)) + 1.5 * np.eye(7)[labels]
    return labels, scores


def right_and_wrong(right):
    """Scores and labels of rows that are right or wrong."""
    return np.stack([right, ~right], axis=1).astype(float), np.zeros(len(right), int)


@pytest.mark.parametrize("spread", [1, 100])
def test_rows_of_one_group_are_not_independent(spread):
    """The mean error is the spread of the accuracy over test sets of 25 groups.

    Of 400 sets, the mean error is within 15 % of the spread: each has a standard error
    of 4 % or less.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        chance = rng.beta(4 * spread, spread, 25).repeat(20)
        given = right_and_wrong(rng.random(500) < chance)
        one = metrics.evaluate_scores(*given, groups=np.arange(500) // 20)
        assert one["n_groups"] == 25
        found.append((one["accuracy"], one["accuracy_se"]))
    values, errors = np.transpose(found)
    assert errors.mean() == pytest.approx(values.std(), rel=0.15)


@pytest.mark.parametrize("sizes", [[100, 100], [180, 20], [250, *[10] * 25]])
def test_few_people_and_one_with_most_rows_make_the_error_large(sizes):
    """The binomial error would be below 0.03."""
    rng = np.random.default_rng(0)
    groups = np.arange(len(sizes)).repeat(sizes)
    errors = []
    for _ in range(200):
        right = rng.random(len(groups)) < rng.beta(4, 1, len(sizes)).repeat(sizes)
        given = right_and_wrong(right)
        errors.append(metrics.evaluate_scores(*given, groups=groups)["accuracy_se"])
    # the spread of a person's accuracy is 0.163
    true = 0.163 * np.sqrt(np.square(sizes).sum()) / np.sum(sizes)
    # 200 variances of two people have a mean within a fifth of the truth
    assert np.sqrt(np.mean(np.square(errors))) > 0.9 * true


def test_the_error_of_groups_is_never_below_that_of_independent_rows():
    """Not by chance, and not in one group; rows without a group are independent."""
    right = np.arange(100) % 2 == 0
    given = right_and_wrong(right)
    alone = metrics.evaluate_scores(*given)
    assert "n_groups" not in alone
    pairs = metrics.evaluate_scores(*given, groups=np.arange(100) // 2)
    assert pairs["accuracy_se"] == alone["accuracy_se"] == 0.05
    one = metrics.evaluate_scores(*given, groups=np.zeros(100, int))
    assert (one["accuracy_se"], one["n_groups"]) == (0.5, 1)
    none = metrics.evaluate_scores(*given, groups=np.full(100, UNGROUPED))
    assert none["n_groups"] == 100
    assert none["accuracy_se"] == pytest.approx(0.05 * (100 / 99) ** 0.5)


def test_the_five_highest_scores_agree_with_scikit_learn(rows):
    labels, scores = rows
    assert metrics.evaluate_scores(scores, labels)["top5"] == pytest.approx(
        reference.top_k_accuracy_score(labels, scores, k=5)
    )


def test_ties_and_nan_are_not_among_the_five_highest_scores():
    labels, scores = np.array([0, 0]), np.ones((2, 6))
    assert metrics.evaluate_scores(scores, labels)["top5"] == 0
    scores[1, 5] = 0
    assert metrics.evaluate_scores(scores, labels)["top5"] == 0.5
    scores[0] = [9, np.nan, 1, 2, 3, 4]
    assert metrics.evaluate_scores(scores, labels)["top5"] == 0.5


def test_per_class_accuracies_agree_with_scikit_learn(rows):
    labels, scores = rows
    predicted = scores.argmax(axis=1)
    found = metrics.evaluate_scores(np.insert(scores, 7, -100, axis=1), labels)
    each, n = found["per_class_accuracy"], found["per_class_n"]
    assert_allclose(each[:7], reference.recall_score(labels, predicted, average=None))
    assert np.isnan(each[7])
    assert n[7] == 0
    assert sum(n) == 400


def test_calibration_error_of_a_hand_example():
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    # confidence .9: accuracy 1/2; confidence .6: accuracy 1
    labels = np.array([0, 1, 0, 1])
    found = metrics.evaluate_scores(np.log(p), labels)["calibration_error"]
    assert found == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_probabilities_sum_to_one_and_keep_the_order(loss, n_classes):
    scores = (
        np.random.default_rng(1).normal(size=(50, n_classes)).astype(np.float32) * 5
    )
    scores[0] = 1e30
    scores[1] = -1e30
    p = metrics.probabilities(scores, loss)
    assert p.dtype == np.float64
    assert np.isfinite(p).all()
    assert_allclose(p.sum(axis=1), 1)
    assert_array_equal(p.argmax(axis=1), scores.argmax(axis=1))


def test_sigmoid_probabilities_are_normalized_sigmoids():
    scores = np.array([[0.3, -1.0, 2.0]])
    sigmoid = 1 / (1 + np.exp(-scores))
    assert_allclose(metrics.probabilities(scores, "sigmoid"), sigmoid / sigmoid.sum())
    pair = metrics.probabilities(np.array([[-0.7, 0.7]]), "sigmoid")
    # opposite scores: one logistic model, and its sigmoid
    assert_allclose(pair[0, 1], 1 / (1 + np.exp(-0.7)))


def test_evaluate_scores_has_every_figure(rows):
    labels, scores = rows
    out = metrics.evaluate_scores(scores, labels)
    assert out["n"] == 400
    assert len(out["per_class_accuracy"]) == 7
    assert out["accuracy"] == pytest.approx(
        reference.accuracy_score(labels, scores.argmax(axis=1))
    )
    assert out["accuracy_se"] == pytest.approx(
        np.std(labels == scores.argmax(axis=1)) / 20
    )
    assert out["worst_class_accuracy"] == min(out["per_class_accuracy"])
    matrix = reference.confusion_matrix(labels, scores.argmax(axis=1))
    assert out["confusion"] == matrix.tolist()
    assert out["predicted_n"] == matrix.sum(axis=0).tolist()
    # a class without rows is not the worst
    some = metrics.evaluate_scores(scores[labels != 6], labels[labels != 6])
    assert some["worst_class"] != 6 and some["worst_class_n"] > 0
    assert metrics.evaluate_scores(scores[:, :5], np.minimum(labels, 4))["top5"] is None


def test_a_class_with_rows_that_no_row_is_given_to_is_never_predicted():
    """Class 2 has no rows, and a matrix of more than ten classes is not made."""
    labels = np.array([0, 0, 1, 3])
    scores = np.zeros((4, 11))
    scores[:, 0], scores[3] = 1, np.nan
    out = metrics.evaluate_scores(scores, labels)
    assert metrics.never_predicted(out) == [1, 3]
    assert out["confusion"] is None
    four = metrics.evaluate_scores(scores[:, :4], labels)["confusion"]
    assert four == [[2, 0, 0, 0], [1, 0, 0, 0], [0] * 4, [0] * 4]


def test_rows_without_a_class_are_counted_and_wrong(rows):
    labels, scores = rows
    scores = scores.copy()
    scores[:40] = np.nan
    scores[40:50, 0] = np.inf  # its probabilities would be NaN
    out = metrics.evaluate_scores(scores, labels)
    rest = metrics.evaluate_scores(scores[50:], labels[50:])
    assert (out["n"], out["n_without_class"]) == (400, 50)
    assert (rest["n"], rest["n_without_class"]) == (350, 0)
    for name in ("accuracy", "top5"):
        assert out[name] == pytest.approx(rest[name] * 350 / 400)
    assert out["per_class_n"] == np.bincount(labels).tolist()
    right = np.multiply(out["per_class_accuracy"], out["per_class_n"])
    assert right.sum() == pytest.approx(rest["accuracy"] * 350)
    assert out["calibration_error"] == rest["calibration_error"]
    assert (metrics.predicted_classes(scores)[:50] == -1).all()
    assert np.isnan(metrics.probabilities(scores)[:50]).all()
    nothing = metrics.evaluate_scores(scores[:40], labels[:40])
    assert nothing["accuracy"] == 0 and np.isnan(nothing["calibration_error"])


@pytest.mark.parametrize(
    "labels", [[], [0], [0, 2], [0, -1]], ids=["none", "few", "large", "negative"]
)
def test_labels_that_are_none_of_the_rows_classes_are_refused(labels):
    with pytest.raises(ValueError, match="`labels` must"):
        metrics.evaluate_scores(np.ones((2, 2)), np.array(labels, int))
