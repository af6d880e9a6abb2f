"""A linear head, the rows that it scores, and its intercept's row of weights."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dphead.privacy.predictions import LOSSES, Loss, unknown
from dphead.privacy.transform import RowTransform, transformed


@dataclass(frozen=True)
class AccuracyEstimate:
    """The accuracy expected on new data of the same kind, with a 90 % interval, from
    private releases alone.
    """

    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy expected on each class, and of the class where it is least.

    worst: of the class at position `weakest`, the least of noisy numbers, which is
    below the true least on average. Its interval holds the least accuracy of any class
    with 90 %, whichever class that is: it is wider than that of `each` there.
    """

    each: tuple[AccuracyEstimate, ...]
    weakest: int
    worst: AccuracyEstimate


@dataclass(frozen=True)
class Selection:
    """Which of several networks' features a head is of, and what a small head on each
    was expected to get right, from private releases alone.
    """

    chosen: int
    trials: tuple[AccuracyEstimate, ...]


class StandardErrors(Protocol):
    """How far the noise moves weights: `solvers.error_bars.ErrorBars`."""

    def std(self, rows: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
        """Standard errors (k, c) of rows (k, width) @ weights @ classes (m, c)."""
        ...


@dataclass(frozen=True, eq=False)
class LinearHead:
    """scores = transform(x) @ weights + intercept.

    feature_clip: rows that are longer after the transform are shortened to it, as in
    training; None for a head that was trained on whole rows (`prediction_clip`).
    weights: (n_features, n_classes); intercept: (n_classes,).

    loss: how scores become probabilities ("softmax", "sigmoid", or "squared", whose
    scores are not calibrated). ValueError for another.
    estimate: what the solver expects of the head, or None if it did not ask.
    error_bars: how far the noise moves it, or None.
    class_accuracy: what is expected of each class, or None.
    selection: how its features were chosen among several networks', or None.
    """

    weights: np.ndarray
    intercept: np.ndarray
    transform: RowTransform = field(default_factory=RowTransform)
    loss: Loss = "softmax"
    estimate: AccuracyEstimate | None = None
    error_bars: StandardErrors | None = None
    class_accuracy: ClassAccuracy | None = None
    selection: Selection | None = None
    feature_clip: float | None = None

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise unknown(self.loss)

    def scores(self, x: np.ndarray, block: int = 4096) -> np.ndarray:
        """Return scores (n, n_classes) float64 of rows x (n, n_features).

        A row that training masks has the score NaN for every class. Raises ValueError
        for rows of another width.
        """
        out = np.empty((len(x), self.weights.shape[1]))
        for i in range(0, len(x), block):
            rows = self._rows(x[i : i + block])
            out[i : i + block] = rows @ self.weights + self.intercept
        return out

    def scores_std(
        self, x: np.ndarray, classes: np.ndarray | None = None, block: int = 4096
    ) -> np.ndarray:
        """Standard errors (n, c) of scores @ classes due to the privacy noise.

        classes: (n_classes, c), None for each. A row that training masks has NaN.

        Raises ValueError for a head without `error_bars`, as all do that did not ask
        for them.
        """
        errors, append = self._asked_for(), self.transform.append
        out = np.empty(
            (len(x), self.weights.shape[1] if classes is None else classes.shape[1])
        )
        for i in range(0, len(x), block):
            phi = self._rows(x[i : i + block])
            phi = (
                np.pad(phi, ((0, 0), (0, 1)), constant_values=append) if append else phi
            )
            out[i : i + block] = errors.std(phi, classes)
        return out

    def weights_std(
        self, classes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Standard errors of (weights @ classes, intercept @ classes): (n_features, c)
        and (c,). As `scores_std`.
        """
        append = self.transform.append
        return split_intercept(
            self._asked_for().std(np.eye(len(self.weights) + bool(append)), classes),
            abs(append),
        )

    def _rows(self, x: np.ndarray) -> np.ndarray:
        if np.shape(x)[1:] != (len(self.weights),):
            raise ValueError(
                f"rows must have the head's {len(self.weights)} columns, got "
                f"shape={np.shape(x)}. Extract them alike."
            )
        rows = float_rows(self.transform, x)
        if self.feature_clip is not None:
            # float64 holds the square of any row of float32
            length = np.linalg.norm(rows, axis=1, keepdims=True)
            rows *= self.feature_clip / np.maximum(length, self.feature_clip)
        return rows

    def _asked_for(self) -> StandardErrors:
        if self.error_bars is None:
            raise ValueError(
                "standard errors need a fit with error_bars, got none. Fit dp-ls with "
                "error_bars=True."
            )
        return self.error_bars


def float_rows(transform: RowTransform, x: np.ndarray) -> np.ndarray:
    """Return rows x (k, n_features) as training sees them, float64, before any clip.

    Training and prediction share `privacy.transform.transformed`: rows of any scale
    that float32 holds keep their direction. The appended constant is left out. A row
    that training masks is NaN: it is not finite, in itself or in float32.
    """
    with np.errstate(all="ignore"):  # numbers beyond float32, and signalling NaNs
        rows = transformed(transform, np.asarray(x, np.float32))
        values = rows.integers * rows.scale[:, None]
    values[~rows.finite] = np.nan
    return values


def prediction_clip(
    feature_clip: float, row_norm: float | None, mu: float
) -> float | None:
    """Return the clip of a head's rows, or None where no row is longer.

    row_norm: the length of rows after the transform, None if it is their own. mu: of
    the budget; without noise nothing is clipped.
    """
    longest = np.inf if row_norm is None else row_norm
    return feature_clip if feature_clip < longest and np.isfinite(mu) else None


def split_intercept(
    weights: np.ndarray, append: float
) -> tuple[np.ndarray, np.ndarray]:
    """(weights, intercept) of a (width, n_classes) solution whose last row multiplies
    the appended constant.
    """
    if append:
        return weights[:-1], weights[-1] * append
    return weights, np.zeros(weights.shape[1])


def join_intercept(head: LinearHead) -> np.ndarray:
    """(width, n_classes): the inverse of `split_intercept`, for a query that scores
    rows.
    """
    append = head.transform.append
    return (
        np.vstack([head.weights, head.intercept / append]) if append else head.weights
    )


def center_classes(value: np.ndarray) -> np.ndarray:
    """Project class scores on I - 11ᵀ/m: only differences between classes reach the
    argmax.
    """
    return value - value.mean(axis=-1, keepdims=True)


def zero_weights(
    transform: RowTransform, sizes: tuple[int, int], initial_bias: float = 0.0
) -> np.ndarray:
    """(width, n_classes) weights that score initial_bias for every row and class.

    sizes: (n_features, n_classes).
    """
    n_features, n_classes = sizes
    weights = np.zeros((transform.width(n_features), n_classes))
    if transform.append:
        weights[-1] = initial_bias / transform.append
    return weights


def head_of(
    weights: np.ndarray,
    transform: RowTransform,
    loss: Loss,
    feature_clip: float | None = None,
) -> LinearHead:
    """The head of a (width, n_classes) solution."""
    coefficients, intercept = split_intercept(weights, transform.append)
    return LinearHead(
        coefficients, intercept, transform, loss, feature_clip=feature_clip
    )
