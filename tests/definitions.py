"""What each statistic of `dphead.privacy.statistics` means, to read beside the papers.

One row at a time, in float64. Nothing may run on these: tests hold the integer sums to
the sum of `per_example` over rows, within the grid's rounding.
Symbols: phi a row after transform, clip and appended constant; y its class, or its
    label set (n_classes,) of ones and zeros; C or R the clip norm.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from dphead.privacy.statistic_base import Params, Statistic
from dphead.privacy.statistics import (
    ChannelMoment,
    ClassCorrectCounts,
    ClassCounts,
    ClassGrams,
    ClassSums,
    CorrectCounts,
    Gradient,
    Gram,
    RowCounts,
    SigmoidHessians,
)
from dphead.privacy.transform import FINE_BITS, RowTransform

Label = int | np.ndarray


def per_example(
    statistic: Statistic, params: Params, x: np.ndarray, y: Label, clip_norm: float
) -> np.ndarray:
    """The clipped statistic of one row x (n_features,), of shape
    `statistic.shape(width)`; zero if it does not count.
    """
    phi = transformed_row(params.transform, np.asarray(x, np.float64))
    if phi is None or not is_label(y, statistic.n_classes):
        return np.zeros(statistic.shape(params.transform.width(len(x))))
    if statistic.clips == "features":
        phi = clip(phi, clip_norm)
    if params.transform.append:
        phi = np.append(phi, params.transform.append)
    return STATISTICS[type(statistic)](statistic, params, phi, y, clip_norm)


def transformed_row(transform: RowTransform, x: np.ndarray) -> np.ndarray | None:
    """The row after its transform, (n_features,); None if it is not finite."""

    def unit(v: np.ndarray) -> np.ndarray:
        largest = float(np.abs(v).max(initial=0.0))
        if largest == 0:
            return np.zeros_like(v)
        v = v / largest
        return v / np.linalg.norm(v)

    if not counts(x):
        return None
    if transform.unit_norm:
        x = unit(x)
    if transform.center is not None:
        x = x - transform.center
    if transform.scale is not None:
        x = x * transform.scale
    if not counts(x):
        return None
    return unit(x) if transform.unit_norm and transform.center is not None else x


def is_label(y: Label, n_classes: int) -> bool:
    """Whether it is a class, or says yes or no of each class."""
    if np.ndim(y) == 0:
        return bool(0 <= y < n_classes)
    return all(one in (0, 1) for one in np.asarray(y))


def counts(v: np.ndarray) -> bool:
    """Whether a vector is finite: another contributes nothing."""
    return bool(np.all(np.isfinite(v)))


def clip(value: np.ndarray, clip_norm: float) -> np.ndarray:
    """value, scaled down to the norm `clip_norm` if its own is larger."""
    norm = float(np.linalg.norm(value))
    return value if norm <= clip_norm else value * (clip_norm / norm)


def predictions(scores: np.ndarray, loss: str) -> np.ndarray:
    """Probabilities (m,) of scores (m,): softmax; m independent sigmoids; or the scores
    themselves (squared loss). ValueError for a loss that is not defined here.
    """
    if loss == "softmax":
        e = np.exp(scores - scores.max())
        return e / e.sum()
    if loss == "sigmoid":
        return 0.5 + 0.5 * np.tanh(scores / 2)
    if loss != "squared":
        raise ValueError(f"no definition of {loss=}")
    return scores


def _channel_moment(
    statistic: ChannelMoment, params: Params, phi: np.ndarray, y: int, clip_norm: float
) -> np.ndarray:
    channels = statistic.n_channels or len(phi)
    moments = (phi.reshape(channels, -1) ** statistic.power).mean(axis=1)
    return (clip(moments, clip_norm) if counts(moments) else np.zeros(channels))[
        :, None
    ]


def _gram(
    statistic: Gram, params: Params, phi: np.ndarray, y: int, clip_norm: float
) -> np.ndarray:
    return np.outer(phi, phi)


def _class_grams(
    statistic: ClassGrams, params: Params, phi: np.ndarray, y: int, clip_norm: float
) -> np.ndarray:
    value = np.zeros(statistic.shape(len(phi)))
    value[y] = np.outer(phi, phi)
    return value


def _hessians(
    statistic: SigmoidHessians,
    params: Params,
    phi: np.ndarray,
    y: int,
    clip_norm: float,
) -> np.ndarray:
    p = predictions(phi @ np.asarray(params.weights, np.float64), "sigmoid")
    return (p * (1 - p))[:, None, None] * np.outer(phi, phi)


def _class_sums(
    statistic: ClassSums, params: Params, phi: np.ndarray, y: int, clip_norm: float
) -> np.ndarray:
    return np.outer(phi, np.eye(statistic.n_classes)[y])


def _gradient(
    statistic: Gradient, params: Params, phi: np.ndarray, y: Label, clip_norm: float
) -> np.ndarray:
    p = predictions(phi @ np.asarray(params.weights, np.float64), statistic.loss)
    target = np.eye(statistic.n_classes)[y] if np.ndim(y) == 0 else y
    gradient = np.outer(phi, p - target)
    return clip(gradient, clip_norm) if statistic.clip == "rows" else gradient


def _class_counts(
    statistic: ClassCounts, params: Params, phi: np.ndarray, y: int, clip_norm: float
) -> np.ndarray:
    return np.eye(statistic.n_classes)[y][:, None]


def _correct_counts(
    statistic: CorrectCounts, params: Params, phi: np.ndarray, y: int, clip_norm: float
) -> np.ndarray:
    scores = phi @ np.asarray(params.weights, np.float64)
    correct = float(scores[y] > np.delete(scores, y).max())
    return np.array([[correct], [1 - correct]])


def _class_correct_counts(
    statistic: ClassCorrectCounts,
    params: Params,
    phi: np.ndarray,
    y: int,
    clip_norm: float,
) -> np.ndarray:
    value = np.zeros((statistic.n_classes, 2))
    value[y] = _correct_counts(statistic, params, phi, y, clip_norm)[:, 0]
    return value


def _row_counts(
    statistic: RowCounts, params: Params, phi: np.ndarray, y: Label, clip_norm: float
) -> np.ndarray:
    return np.ones((1, 1))


STATISTICS: dict[type[Statistic], Callable[..., np.ndarray]] = {
    ChannelMoment: _channel_moment,
    Gram: _gram,
    ClassGrams: _class_grams,
    SigmoidHessians: _hessians,
    ClassSums: _class_sums,
    Gradient: _gradient,
    ClassCounts: _class_counts,
    CorrectCounts: _correct_counts,
    ClassCorrectCounts: _class_correct_counts,
    RowCounts: _row_counts,
}


def means_of_groups(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray, cap: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows and classes that count where the means of groups do: a group's first
    slots hold the means of its finite rows of each class, for its `cap` lowest classes.

    -1 in y and groups is no class and no group. NaN stands for the mean of no row.
    """
    rows, labels = np.zeros_like(x), np.full(len(y), -1)
    for group in range(len(y)):  # the group that begins in this slot
        own = (
            [group] if groups[group] == -1 else np.flatnonzero(groups == groups[group])
        )
        if own[0] != group:
            continue
        classes = sorted({int(y[i]) for i in own if y[i] >= 0})[:cap]
        for slot, label in zip(own, classes, strict=False):
            finite = [x[i] for i in own if y[i] == label and counts(x[i])]
            total = np.zeros(x.shape[1])
            for row in finite:
                total = total + row.astype(np.float64)
            labels[slot] = label
            rows[slot] = total / len(finite) if finite else np.nan
    return rows, labels


def products_with_axes(row: np.ndarray, axes: np.ndarray) -> list[float]:
    """The products of a float32 row (d,) with axes (d, n), rounded to float32: exact
    fractions of its entries, which are rounded to FINE_BITS bits of the largest one.
    """
    if not counts(row):
        return [np.nan] * axes.shape[1]
    _, exponent = np.frexp(float(np.abs(row).max()))
    step = Fraction(2) ** (int(exponent) - FINE_BITS)
    entries = [step * round(Fraction(float(v)) / step) for v in row]
    products = [
        sum(v * Fraction(float(a)) for v, a in zip(entries, axis, strict=True))
        for axis in axes.T
    ]
    with np.errstate(over="ignore"):
        return np.array(products, np.float64).astype(np.float32).tolist()
