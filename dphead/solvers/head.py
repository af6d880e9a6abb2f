"""Define the linear head and the handling of its intercept.

If a constant is appended to each row, a solver's weights have one more row. That row,
times the constant, is the intercept.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dphead.privacy.axes import PublicAxes
from dphead.privacy.loss import loss_named
from dphead.privacy.statistic_base import Params
from dphead.privacy.transform import RowTransform, transformed

_BLOCK = 4096  # rows that are scored at a time; chosen, not measured


@dataclass(frozen=True)
class AccuracyEstimate:
    """Hold the expected accuracy on new data of the same kind, with a 90 % interval.

    The estimate is computed from released values and public sizes. `low` and `high` are
    the ends of the interval.
    """

    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassAccuracy:
    """Hold the expected accuracy on each class, their mean, and the weakest class.

    Parameters
    ----------
    each : tuple of AccuracyEstimate
        One estimate for each class.
    balanced : AccuracyEstimate
        Estimate for the mean of the classes (balanced accuracy). Its interval assumes
        that the errors of all classes have the same sign.
    weakest : int
        Index of the class with the lowest estimate.
    worst : AccuracyEstimate
        Estimate for the class at `weakest`. As a minimum of noisy numbers, it is too
        low on average. The interval contains the lowest accuracy of any class with a
        probability of 90 %, and is wider than the interval in `each`.
    """

    each: tuple[AccuracyEstimate, ...]
    balanced: AccuracyEstimate
    weakest: int
    worst: AccuracyEstimate


class _StandardErrors(Protocol):
    """Define access to standard errors of the weights (`error_bars.ErrorBars`)."""

    def std(self, rows: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
        """Return standard errors (k, c) of rows @ weights @ classes.

        `rows` is (k, width), and `classes` is (m, c) for m classes.
        """
        ...


@dataclass(frozen=True, eq=False)
class LinearHead:
    """Score rows linearly: scores = transform(x) @ weights + intercept.

    Parameters
    ----------
    weights : ndarray of shape (n_features, n_classes)
        Weights for transformed rows.
    intercept : ndarray of shape (n_classes,)
        Intercept of each class.
    transform : RowTransform
        Transform of rows before scoring, as in training.
    loss : str, default "softmax"
        Name of the training loss, which maps scores to probabilities.
    estimate : AccuracyEstimate, optional
        Expected accuracy, or None without released counts.
    error_bars : ErrorBars, optional
        Standard errors of the weights due to the noise.
    class_accuracy : ClassAccuracy, optional
        Expected accuracy on each class.
    balanced : bool, optional
        Whether decisions weight all classes equally (`balancing`). None if this was not
        requested.
    feature_clip : float, optional
        Clip norm of transformed rows in predictions. None if predictions clip no row
        (`prediction_clip`).
    axes : PublicAxes, optional
        Public axes that rows are mapped to before the transform. Then `weights` has one
        row for each axis.

    Raises
    ------
    ValueError
        If `loss` is unknown.
    """

    weights: np.ndarray
    intercept: np.ndarray
    transform: RowTransform = field(default_factory=RowTransform)
    loss: str = "softmax"
    estimate: AccuracyEstimate | None = None
    error_bars: _StandardErrors | None = None
    class_accuracy: ClassAccuracy | None = None
    balanced: bool | None = None
    feature_clip: float | None = None
    axes: PublicAxes | None = None

    def __post_init__(self) -> None:
        # raises for an unknown loss, which later code would treat as softmax
        loss_named(self.loss)
        for name in ("weights", "intercept"):  # a solver may return jax arrays
            object.__setattr__(self, name, np.asarray(getattr(self, name)))

    @property
    def n_features(self) -> int:
        """Return the number of columns of rows before the axes and the transform."""
        return len(self.weights) if self.axes is None else self.axes.n_features

    def scores(self, x: np.ndarray, block: int = _BLOCK) -> np.ndarray:
        """Return the scores of rows for every class.

        Parameters
        ----------
        x : ndarray of shape (n, n_features)
            Rows before the transform.
        block : int, default 4096
            Number of rows scored at a time.

        Returns
        -------
        ndarray of shape (n, n_classes), float64
            Scores; NaN for rows that are not finite (`float_rows`).

        Raises
        ------
        ValueError
            If the rows do not have the head's width.
        """
        out = np.empty((len(x), self.weights.shape[1]))
        # in blocks: transformed rows take eight times the memory of float32 rows
        for i in range(0, len(x), block):
            rows = self._rows(x[i : i + block])
            out[i : i + block] = rows @ self.weights + self.intercept
        return out

    def scores_std(
        self, x: np.ndarray, classes: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the standard errors of scores @ classes due to the privacy noise.

        Parameters
        ----------
        x : ndarray of shape (n, n_features)
            Rows before the transform.
        classes : ndarray of shape (n_classes, c), optional
            Combinations of classes. None means each single class.

        Returns
        -------
        ndarray of shape (n, c)
            Standard errors; NaN for rows that are not finite (`float_rows`).

        Raises
        ------
        ValueError
            If the fit did not save `error_bars`, or if the rows do not have the head's
            width.
        """
        errors, append = self._asked_for(), self.transform.append
        out = np.empty(
            (len(x), self.weights.shape[1] if classes is None else classes.shape[1])
        )
        for i in range(0, len(x), _BLOCK):
            phi = self._rows(x[i : i + _BLOCK])
            phi = (
                np.pad(phi, ((0, 0), (0, 1)), constant_values=append) if append else phi
            )
            out[i : i + _BLOCK] = errors.std(phi, classes)
        return out

    def weights_std(
        self, classes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the standard errors of weights @ classes and intercept @ classes.

        Parameters and errors are as in `scores_std`.

        Returns
        -------
        weights : ndarray of shape (n_features, c)
            Standard errors of the weights.
        intercept : ndarray of shape (c,)
            Standard errors of the intercept.
        """
        append = self.transform.append
        return _split_intercept(
            self._asked_for().std(np.eye(len(self.weights) + bool(append)), classes),
            abs(append),
        )

    def _rows(self, x: np.ndarray) -> np.ndarray:
        if np.shape(x)[1:] != (self.n_features,):
            raise ValueError(
                f"Rows must have the head's {self.n_features} features, got shape "
                f"{np.shape(x)}. Make them as the training rows were made."
            )
        x = x if self.axes is None else self.axes.rows(x)
        rows = float_rows(self.transform, x)
        # Training summed clipped rows. With an intercept, the clip can change the order
        # of scores, so prediction clips too.
        if self.feature_clip is not None:
            # float64 holds the square of any float32 number, so no norm overflows
            length = np.linalg.norm(rows, axis=1, keepdims=True)
            rows *= self.feature_clip / np.maximum(length, self.feature_clip)
        return rows

    def _asked_for(self) -> _StandardErrors:
        if self.error_bars is None:
            raise ValueError(
                "This head has no standard errors. Fit dp-ls with `--error-bars` "
                "(`error_bars=True`)."
            )
        return self.error_bars


def float_rows(transform: RowTransform, x: np.ndarray) -> np.ndarray:
    """Return rows as in training before any clip, without the appended constant.

    Parameters
    ----------
    transform : RowTransform
        Transform of the head.
    x : ndarray of shape (k, n_features)
        Rows before the transform.

    Returns
    -------
    ndarray of shape (k, n_features), float64
        Transformed rows; NaN for rows that are not finite in float32, before or after
        the transform. Training adds zero for them.

    Notes
    -----
    Training and prediction share `privacy.transform.transformed`. It normalizes rows of
    any scale within float32 without overflow or underflow.
    """
    # numbers beyond float32 and signaling NaNs would warn
    with np.errstate(all="ignore"):
        rows = transformed(transform, np.asarray(x, np.float32))
        values = rows.integers * rows.scale[:, None]
    # rows that are not finite get no score, because training added zero for them
    values[~rows.finite] = np.nan
    return values


def prediction_clip(
    feature_clip: float, row_norm: float | None, mu: float
) -> float | None:
    """Return the clip norm of a head's rows, or None if no row is clipped.

    Parameters
    ----------
    feature_clip : float
        Clip norm in training.
    row_norm : float or None
        Norm of every row after the transform; None if rows keep their own norms.
    mu : float
        μ of the budget. Without noise (inf) no row is clipped.
    """
    # if no row exceeds the clip norm, predictions need no division
    longest = np.inf if row_norm is None else row_norm
    return feature_clip if feature_clip < longest and np.isfinite(mu) else None


def _split_intercept(
    weights: np.ndarray, append: float
) -> tuple[np.ndarray, np.ndarray]:
    """Split a (width, n_classes) solution into (weights, intercept).

    The solution's last row multiplies the appended constant, if there is one.
    """
    if append:
        return weights[:-1], weights[-1] * append
    return weights, np.zeros(weights.shape[1])


def join_intercept(head: LinearHead) -> np.ndarray:
    """Return weights (width, n_classes) for statistics that score rows.

    This is the inverse of `_split_intercept`.
    """
    append = head.transform.append
    return (
        np.vstack([head.weights, head.intercept / append]) if append else head.weights
    )


def params_of(head: LinearHead) -> Params:
    """Return a head's `Params` for a count, with float32 weights as in all requests."""
    return Params(head.transform, join_intercept(head).astype(np.float32))


def center_classes(value: np.ndarray) -> np.ndarray:
    """Subtract each row's mean over the classes: project scores on I - 11ᵀ/m.

    Only differences between classes affect the argmax.
    """
    return value - value.mean(axis=-1, keepdims=True)


def zero_weights(
    transform: RowTransform, sizes: tuple[int, int], initial_bias: float = 0.0
) -> np.ndarray:
    """Return weights (width, n_classes) with the score initial_bias for every class.

    sizes is (n_features, n_classes). Without an appended constant, every score is 0.
    """
    n_features, n_classes = sizes
    weights = np.zeros((transform.width(n_features), n_classes))
    if transform.append:
        weights[-1] = initial_bias / transform.append
    return weights


def head_of(
    weights: np.ndarray,
    transform: RowTransform,
    loss: str,
    feature_clip: float | None = None,
) -> LinearHead:
    """Return the head of a solution (width, n_classes)."""
    coefficients, intercept = _split_intercept(weights, transform.append)
    return LinearHead(
        coefficients, intercept, transform, loss, feature_clip=feature_clip
    )
