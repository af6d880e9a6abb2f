"""Measure a head on labeled rows: accuracy, top-k, worst class, calibration.

Every figure is an exact function of the measured rows. A head's guarantee does not
cover these figures.
"""

import math
from typing import Any

import numpy as np
from dphead_extract.items import unit_ids

from dphead.privacy.loss import loss_named

_BINS = 15  # bins of the calibration error, as in Guo et al. 2017
_MOST_CONFUSED = 10  # classes of a matrix that fits on a screen; chosen


def accuracy(
    labels: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Return the accuracy p and its standard error.

    Parameters
    ----------
    labels, predicted : (n,) int
        Class indices; n is at least 1.
    groups : (n,) int or None
        Group id of each row; UNGROUPED means a group of its own. None: rows are
        independent.

    Returns
    -------
    (float, float)
        Accuracy and standard error, both in [0, 1].

    Notes
    -----
    Without groups, the error is binomial: sqrt(p (1 - p) / n). Rows of one group, such
    as images of one person, are not independent. So with groups, the error is the
    cluster jackknife's if that is larger: sqrt((G - 1) / G sum of (p_g - p)²), with G
    groups and the accuracy p_g without group g. One group counts as one row.

    References
    ----------
    Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference",
    section VI.B (CV3).
    """
    right = labels == predicted
    p, n = float(right.mean()), len(labels)
    error = math.sqrt(p * (1 - p) / n)
    if groups is None:
        return p, error
    names, member, sizes = np.unique(
        unit_ids(groups), return_inverse=True, return_counts=True
    )
    if (count := len(names)) == 1:
        return p, math.sqrt(p * (1 - p))
    without = (right.sum() - np.bincount(member, right)) / (n - sizes)
    jackknife = math.sqrt((count - 1) / count * np.square(without - p).sum())
    return p, max(error, jackknife)


def classified(scores: np.ndarray) -> np.ndarray:
    """Return (n,) bool: whether all scores of a row are finite, so it gets a class."""
    return np.logical_and.reduce(np.isfinite(scores), axis=1)


def predicted_classes(scores: np.ndarray) -> np.ndarray:
    """Return the index (n,) of each row's highest score, or the first of tied scores.

    A row without a class has -1.
    """
    return np.where(classified(scores), scores.argmax(axis=1), -1)


def _top_k_accuracy(labels: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Return the fraction of rows with their label among the k highest scores.

    A tie ranks the label last among the equal scores. With equal scores for all
    classes, a row is wrong unless k is n_classes.

    Parameters
    ----------
    labels : (n,) int
        Class indices.
    scores : (n, n_classes) float
        The head's scores. A row with a score that is not finite counts as wrong.
    k : int
        From 1 to n_classes.

    Returns
    -------
    float
        Fraction of rows, from 0 to 1.
    """
    own = scores[np.arange(len(labels)), labels]
    at_least = (scores >= own[:, None]).sum(axis=1)  # counts the label's own score too
    return float(((at_least <= k) & classified(scores)).mean())


def _per_class_accuracy(
    labels: np.ndarray, predicted: np.ndarray, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each class's accuracy and number of rows.

    Parameters
    ----------
    labels, predicted : (n,) int
        Class indices; a prediction of -1 is wrong.
    n_classes : int
        Number of classes.

    Returns
    -------
    (n_classes,) float
        Accuracy of each class; NaN for a class without rows.
    (n_classes,) int
        Number of rows of each class.

    """
    rows = np.bincount(labels, minlength=n_classes)
    right = np.bincount(labels[labels == predicted], minlength=n_classes)
    return np.where(rows > 0, right / np.maximum(rows, 1), np.nan), rows


def _confusion(
    labels: np.ndarray, predicted: np.ndarray, n_classes: int
) -> list[list[int]] | None:
    """Return the confusion matrix: true classes on the first axis, predicted second.

    The result is None above _MOST_CONFUSED classes.
    """
    if n_classes > _MOST_CONFUSED:
        return None
    known = predicted >= 0
    places = labels[known] * n_classes + predicted[known]
    counts = np.bincount(places, minlength=n_classes**2)
    return counts.reshape(n_classes, n_classes).tolist()


def never_predicted(metrics: dict[str, Any]) -> list[int]:
    """Return the classes that have test rows and are never predicted."""
    given = zip(metrics["per_class_n"], metrics["predicted_n"], strict=True)
    return [k for k, (rows, predicted) in enumerate(given) if rows and not predicted]


def _expected_calibration_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the mean |confidence - accuracy| over equal-width bins of the confidence.

    The 15 bins are open below and closed above, and weighted by their rows.

    Parameters
    ----------
    labels : (n,) int
        Class indices.
    probabilities : (n, n_classes) float
        Class probabilities. Rows with a value that is not finite are left out.

    Returns
    -------
    float
        The error in [0, 1]; NaN if every row was left out.

    References
    ----------
    Guo et al. 2017, equation 3. The confidence is a row's highest probability.
    """
    known = classified(probabilities)
    labels, probabilities = labels[known], probabilities[known]
    if not len(labels):
        return float("nan")
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    which = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gap = np.bincount(which, correct - confidence, _BINS)
    return float(np.abs(gap).sum() / len(labels))


def probabilities(scores: np.ndarray, loss: str = "softmax") -> np.ndarray:
    """Return class probabilities from a head's scores.

    Parameters
    ----------
    scores : (n, n_classes) float
        The head's scores.
    loss : str, default "softmax"
        `LinearHead.loss`: its link turns scores into probabilities.

    Returns
    -------
    (n, n_classes) float64
        Probabilities that add to 1 in each row; NaN for a row without a class.

    Raises
    ------
    ValueError
        If the loss is unknown.

    Notes
    -----
    The link "softmax" is the softmax of the scores. For "sigmoid", each class's sigmoid
    is divided by the sum of all sigmoids. Two classes are combined as one logit
    (s₁ - s₀)/2, so probabilities and score differences sort rows in the same order. If
    `Loss.calibrated` is false, scores are not log-odds. The order of the probabilities
    is then right, but their values are not.
    """
    z = np.where(classified(scores)[:, None], scores, np.nan).astype(np.float64)
    if loss_named(loss).link == "sigmoid":
        with np.errstate(invalid="ignore"):  # NaN stays NaN
            z = z / 2 if z.shape[1] == 2 else -np.logaddexp(0, -z)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def evaluate_labeled(
    scores: np.ndarray, labels: np.ndarray, loss: str, groups: np.ndarray | None
) -> dict[str, Any]:
    """Return `evaluate_scores` of the rows with a label among the classes."""
    known = (labels >= 0) & (labels < scores.shape[1])
    groups = None if groups is None else groups[known]
    return evaluate_scores(scores[known], labels[known], loss, groups)


def evaluate_scores(
    scores: np.ndarray,
    labels: np.ndarray,
    loss: str = "softmax",
    groups: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return all metrics of a report.

    Parameters
    ----------
    scores : (n, n_classes) float
        The head's scores. A row with a score that is not finite counts as wrong.
    labels : (n,) int
        Class indices from 0 to n_classes - 1.
    loss : str, default "softmax"
        `LinearHead.loss`.
    groups : (n,) int or None
        Group id of each row, as in `accuracy`.

    Returns
    -------
    dict
        The metrics n, n_without_class, accuracy, accuracy_se, balanced_accuracy, top5,
        worst_class, worst_class_accuracy, worst_class_n, per_class_accuracy,
        per_class_n, predicted_n, confusion and calibration_error. With groups, also
        n_groups, the number of groups of these rows. balanced_accuracy is
        the mean over classes that have rows. top5 is None for five classes or fewer.
        worst_class is the index of the class with the lowest accuracy. predicted_n has
        the number of rows that are predicted as each class. confusion is the confusion
        matrix, or None for more than ten classes.

    Raises
    ------
    ValueError
        If there are no rows, if rows and labels differ in number, or if a label is out
        of range.
    """
    n_classes = scores.shape[1]
    if labels.shape != scores.shape[:1] or not len(labels):
        raise ValueError(
            "`labels` must have one entry per row of `scores`, and at least one row is "
            f"required. Got labels of shape {labels.shape} and scores of shape "
            f"{scores.shape}. Pass the labels of the scored rows."
        )
    if labels.min() < 0 or labels.max() >= n_classes:
        raise ValueError(
            f"`labels` must be from 0 to {n_classes - 1}, got {labels.min()} to "
            f"{labels.max()}. Remove rows without a label."
        )
    predicted = predicted_classes(scores)
    value, error = accuracy(labels, predicted, groups)
    each, rows = _per_class_accuracy(labels, predicted, n_classes)
    worst = int(np.nanargmin(each))  # the first class of a tie
    return {
        "n": len(labels),
        **({} if groups is None else {"n_groups": len(np.unique(unit_ids(groups)))}),
        "n_without_class": int((predicted < 0).sum()),
        "accuracy": value,
        "accuracy_se": error,
        "balanced_accuracy": float(np.nanmean(each)),
        "top5": _top_k_accuracy(labels, scores, 5) if n_classes > 5 else None,
        "worst_class": worst,
        "worst_class_accuracy": float(each[worst]),
        "worst_class_n": int(rows[worst]),
        "per_class_accuracy": each.tolist(),
        "per_class_n": rows.tolist(),
        "predicted_n": np.bincount(
            predicted[predicted >= 0], minlength=n_classes
        ).tolist(),
        "confusion": _confusion(labels, predicted, n_classes),
        "calibration_error": _expected_calibration_error(
            labels, probabilities(scores, loss)
        ),
    }
