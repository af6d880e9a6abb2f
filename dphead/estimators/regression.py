"""Define the scikit-learn estimator of private ridge regression.

In a private fit, each number of `X` and `y` is converted without the other numbers, and
the charge does not depend on it. A list `X` that is not a table of numbers stops the
fit before the charge.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from dphead.estimators.docstrings import documented
from dphead.estimators.fitting import HeadEstimator
from dphead.estimators.inputs import (
    as_arrays,
    checked_rows,
    require_target,
)
from dphead.estimators.labels import (
    is_given,
    label_column,
    numbers,
    private_notice,
    told,
    unread_rows,
)
from dphead.privacy.python_values import python_value
from dphead.privacy.transform import RowTransform, transformed
from dphead.solvers.regression import RidgeRegression
from dphead.solvers.settings import check_settings, typed

_BLOCK = 4096  # transforming rows takes about six times their memory in float32
_ROUNDING = 1e-6  # error of the norm of rows normalized in float32


@documented({})
@dataclass(kw_only=True, eq=False, repr=False)
class DPRegressor(RegressorMixin, HeadEstimator):
    """Fit a ridge regression of a bounded target, with differential privacy.

    The fit releases a noisy count of the rows, a noisy mean, and a noisy Gram matrix of
    centered rows. With little noise, the target is a further column of the matrix,
    which gives the weights. With much noise and many features, six noisy sums of
    clipped residuals give the weights. This needs rows of norm 1 (`row_norm` is None),
    no `ridge`, and a positive `mean_share`. If a row or its target is not finite, the
    row adds zero to every sum.

    Parameters
    ----------
    bounds : (float, float), default=None
        Public range of the target, required for a guarantee. A target outside the range
        is clipped to it. Never compute the range from the targets.
    row_norm : float, default=None
        Public clip norm of rows and of centered rows. A row and its target are clipped
        as one vector. Use None for rows of norm 1, such as the output of `Normalizer`.
        Longer rows are then scaled to norm 1, in predictions too. Centered rows are
        clipped to 0.6 times their typical length, or 0.8 times with sums of residuals.
        This length follows from the released mean and spends no further budget.
    target_weight : float, default=1.0
        Largest value of the target's column, as a multiple of row_norm, or of 1 if
        row_norm is None.
    mean_share : float, default=0.1
        Fraction of mu**2 spent to release the mean, which gives the intercept, and the
        number of rows in it. With 0, rows are not centered, and the intercept is the
        midpoint of `bounds`.
    ridge : float, default=None
        Ridge penalty, in units of the mean Gram matrix of unit rows. None sets the
        penalty from the noise.
    group_mean : bool, default=False
        Whether to replace a group's rows by their mean. A group then has one mean, so
        set `group_cap` to 1.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Weights of the features, after `head_.feature_clip`.
    intercept_ : float
        Prediction for a row of zeros.
    head_ : LinearHead
        The head. Its scores are -1 and 1 at the ends of `bounds`.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 4)) / 4
    >>> y = 10 + X @ [4.0, -2.0, 0.0, 1.0] + 0.1 * rng.normal(size=5000)
    >>> head = DPRegressor(epsilon=2.0, bounds=(5.0, 15.0)).fit(X, y)
    >>> bool(head.score(X, y) > 0.8)
    True
    """

    bounds: tuple[float, float] | None = None
    row_norm: float | None = None
    target_weight: float = 1.0
    mean_share: float = 0.1
    ridge: float | None = None

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Charge the ledger, then fit.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Array, data frame or PyTorch tensor of numbers.
        y : array-like of shape (n_rows,)
            Targets, clipped to `bounds`.
        groups : array-like of shape (n_rows,), default=None
            Group of each row, for use with group_cap.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If settings, shapes or dtypes are invalid. Nothing is charged then.
        LedgerError
            If the ledger refuses the fit, for example because it would exceed the
            budget. After the charge, if the ledger cannot be written.
        """
        check_settings(self)
        X, y, groups = as_arrays(X, y, groups)
        require_target(y)
        target = numbers(y)
        private = np.isfinite(self.epsilon)
        x, _ = checked_rows(self, X, target if private else y, y_numeric=True)
        middle, half = self._range(target)
        solver = RidgeRegression(
            row_norm=self.row_norm,
            target_weight=self.target_weight,
            mean_share=self.mean_share,
            ridge=self.ridge,
        )
        clips = private and self.row_norm is None
        scaled = clipped_target(target, middle, half)
        with np.errstate(all="ignore"):  # a signaling NaN would cause a warning
            features = _within_unit(x) if clips else x
            rows = np.column_stack([features, scaled * solver.column_size])
        given = label_column(y)

        def notice() -> str:
            what = "targets are not finite numbers"
            lost = private_notice(is_given(given), np.isfinite(target), what)
            return told(lost, unread_rows(x))

        head = self._fit_unclassed(solver, rows, groups, notice)
        self.head_ = head = replace(head, feature_clip=1.0 if clips else None)
        self.coef_: np.ndarray = half * head.weights[:, 0]
        self.intercept_: float = float(middle + half * head.intercept[0])
        return self

    def _range(self, target: np.ndarray) -> tuple[float, float]:
        """Return the midpoint and the half length of the target's range.

        With an infinite epsilon and no `bounds`, the range is the target's own, or of
        length 1 if all targets are equal. Raises ValueError unless `bounds` are two
        finite numbers, the lower first, with a finite difference.
        """
        bounds = self.bounds
        if bounds is None and not np.isfinite(self.epsilon):
            bounds = (float(target.min()), float(target.max()))
            bounds = bounds if bounds[0] < bounds[1] else (bounds[0], bounds[0] + 1.0)
        try:
            lower, upper = map(python_value, bounds)  # type: ignore[arg-type]
            # infinite if the range is too long or too far from 0
            middle, half = (lower + upper) / 2, (upper - lower) / 2
        except (TypeError, ValueError, OverflowError):
            middle = half = np.nan
        if not (abs(middle) < np.inf and 0 < half < np.inf):
            raise ValueError(
                "`bounds` must be two finite numbers, the lower first, with a finite "
                f"difference, got {typed(bounds)}. Pass the target's public range. The "
                "smallest and largest target would reveal rows."
            )
        return middle, half

    def predict(self, X: Any) -> np.ndarray:
        """Return predictions, which may lie outside `bounds`.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            New rows.

        Returns
        -------
        ndarray of shape (n,)
            Predictions. NaN for a row that is not finite.

        Raises
        ------
        ValueError
            If the rows do not match the fit. If a row is not finite and epsilon is
            infinite.
        """
        x = self._new_rows(X)
        own = self.coef_[:, None], np.array([self.intercept_])
        head = replace(self.head_, weights=own[0], intercept=own[1])
        return head.scores(x)[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _within_unit(x: np.ndarray) -> np.ndarray:
    """Return rows (n, d) in float32, with those longer than 1 scaled to norm 1.

    Rows of norm 1, up to float32's rounding, stay unchanged. Rows that are not finite
    stay not finite.
    """
    with np.errstate(all="ignore"):  # a number beyond float32 would cause a warning
        x = np.asarray(x, np.float32)
        norms = [
            transformed(RowTransform(), x[i : i + _BLOCK]).norm()
            for i in range(0, len(x), _BLOCK)
        ]
        length = np.concatenate(norms)[:, None]
        return np.where(length > 1 + _ROUNDING, x / length, x).astype(np.float32)


def clipped_target(target: np.ndarray, middle: float, half: float) -> np.ndarray:
    """Return targets (n,) scaled and clipped to [-1, 1].

    `middle` and `half` are the midpoint and half length of the range. A target that is
    not finite becomes NaN.
    """
    with np.errstate(all="ignore"):
        part = np.clip((target - middle) / half, -1.0, 1.0)
    return np.where(np.isfinite(target), part, np.nan)
