"""How good a head is on labelled rows: accuracy, top-k, worst class, calibration.

Plain numpy.

Every figure is an exact function of the rows it was measured on and is not covered by a
head's guarantee.
"""

from typing import Any

import numpy as np

from dphead.privacy.predictions import Loss, unknown


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """(accuracy, its binomial standard error sqrt(p (1-p) / n)).

    labels, predicted: (n,) class positions.
    """
    correct = _same_length(labels, predicted) == predicted
    p = float(correct.mean())
    return p, float(np.sqrt(p * (1 - p) / len(correct)))


def classified(scores: np.ndarray) -> np.ndarray:
    """Return which rows (n,) have a class: those with finite scores (n, n_classes)."""
    return np.logical_and.reduce(np.isfinite(scores), axis=1)


def predicted_classes(scores: np.ndarray) -> np.ndarray:
    """Return the position (n,) of each row's highest score, the first of equals.

    A row without a class has -1.
    """
    return np.where(classified(scores), scores.argmax(axis=1), -1)


def top_k_accuracy(labels: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Share of rows whose class is among the k highest scores; classes that tie with
    the label count against it.

    labels: (n,) positions; scores: (n, n_classes). Equal scores thus cannot look like a
        success.
    """
    labels = _positions(labels, scores)
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(
            f"k must be in 1..n_classes={scores.shape[1]}, got {k=}. Choose a smaller "
            "one."
        )
    own = scores[np.arange(len(labels)), labels]
    at_least = (scores >= own[:, None]).sum(axis=1)  # its own included
    return float(((at_least <= k) & classified(scores)).mean())


def per_class_accuracy(
    labels: np.ndarray, predicted: np.ndarray, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(accuracy (n_classes,), nan for a class without rows; number of rows
    (n_classes,)).
    """
    labels = _same_length(labels, predicted)
    if labels.min() < 0 or labels.max() >= n_classes:
        raise _outside(n_classes)
    rows = np.bincount(labels, minlength=n_classes)
    right = np.bincount(labels[labels == predicted], minlength=n_classes)
    return np.where(rows > 0, right / np.maximum(rows, 1), np.nan), rows


def worst_class(
    labels: np.ndarray, predicted: np.ndarray, n_classes: int
) -> tuple[int, float, int]:
    """(class, its accuracy, its number of rows) of the class with the lowest accuracy;
    the first of equals.
    """
    each, rows = per_class_accuracy(labels, predicted, n_classes)
    worst = int(np.nanargmin(each))
    return worst, float(each[worst]), int(rows[worst])


def expected_calibration_error(
    labels: np.ndarray, probabilities: np.ndarray, bins: int = 15
) -> float:
    """Mean |confidence - accuracy| over equal-width bins of the top probability [Guo et
    al. 2017, eq. 3].

    Bins count by their rows. labels: (n,); probabilities: (n, n_classes). A bin is open
    below and closed above. Rows without a class have no confidence and are left out;
    NaN if there is no other.
    """
    labels = _positions(labels, probabilities)
    known = classified(probabilities)
    labels, probabilities = labels[known], probabilities[known]
    if not len(labels):
        return float("nan")
    confidence, correct = (
        probabilities.max(axis=1),
        probabilities.argmax(axis=1) == labels,
    )
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(which, correct - confidence, bins)
    return float(np.abs(gap).sum() / len(labels))


def probabilities(scores: np.ndarray, loss: Loss = "softmax") -> np.ndarray:
    """Class probabilities (n, n_classes) float64 from a head's scores; `loss` is
    `LinearHead.loss`.

    "softmax": the model's own probabilities. "sigmoid": each class's sigmoid, divided
    by their sum; two classes are combined as one logit (s₁ - s₀)/2, so that the order
    of rows is that of the scores. "squared": the softmax of scores that are no
    log-odds, right in order and not calibrated. ValueError for another.

    A row without a class has NaN for every class.
    """
    z = np.where(classified(scores)[:, None], scores, np.nan).astype(np.float64)
    if loss == "sigmoid":
        with np.errstate(invalid="ignore"):  # NaN stays NaN
            z = z / 2 if z.shape[1] == 2 else -np.logaddexp(0, -z)
    elif loss not in ("softmax", "squared"):
        raise unknown(loss)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def evaluate_scores(
    scores: np.ndarray, labels: np.ndarray, loss: Loss = "softmax"
) -> dict[str, Any]:
    """Every metric of a report.

    scores: (n, n_classes); labels: (n,) positions in 0..n_classes-1; loss: the head's.

    A row without a class counts as wrong.

    Keys: n, n_without_class, accuracy, accuracy_se, top5 (None for five classes or
    fewer), worst_class (its position), worst_class_accuracy, worst_class_n,
    per_class_accuracy, per_class_n, calibration_error.
    """
    n_classes = scores.shape[1]
    labels = _positions(labels, scores)
    predicted = predicted_classes(scores)
    value, error = accuracy(labels, predicted)
    each, rows = per_class_accuracy(labels, predicted, n_classes)
    worst, worst_value, worst_n = worst_class(labels, predicted, n_classes)
    return {
        "n": len(labels),
        "n_without_class": int((predicted < 0).sum()),
        "accuracy": value,
        "accuracy_se": error,
        "top5": top_k_accuracy(labels, scores, 5) if n_classes > 5 else None,
        "worst_class": worst,
        "worst_class_accuracy": worst_value,
        "worst_class_n": worst_n,
        "per_class_accuracy": each.tolist(),
        "per_class_n": rows.tolist(),
        "calibration_error": expected_calibration_error(
            labels, probabilities(scores, loss)
        ),
    }


def _same_length(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.shape != predicted.shape or not len(labels):
        raise ValueError(
            "labels and predictions must be one of each a row, at least one, got "
            f"{labels.shape=}, {predicted.shape=}. Check the rows to measure on."
        )
    return labels


def _positions(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    labels = _same_length(labels, scores[:, 0])
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise _outside(scores.shape[1])
    return labels.astype(np.int64)


def _outside(n_classes: int) -> ValueError:
    return ValueError(
        f"labels must be in 0..{n_classes - 1}, got others. Leave out rows without a "
        "label."
    )
