"""Fit without classes: principal components, and the regression of a bounded number.

Rows are converted before the charge, each number by itself, and none of their values
decides anything there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from dphead.data.arrays import ArrayRows
from dphead.estimators import parameters
from dphead.estimators.fitting import (
    Data,
    Fitted,
    carry_out,
    head_plan,
    public_rows,
)
from dphead.estimators.inputs import (
    as_arrays,
    check_grouped,
    group_ids,
    private_rows,
    refuse_weights,
    unmasked,
)
from dphead.estimators.labels import (
    column,
    is_given,
    numbers,
    private_notice,
    told,
    unread_rows,
)
from dphead.estimators.leakage_warnings import WatchedMixin
from dphead.estimators.ledger import LedgerMixin
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import ProblemInfo, Solver
from dphead.solvers.components import PrincipalComponents
from dphead.solvers.head import float_rows
from dphead.solvers.regression import RidgeRegression
from dphead.solvers.settings import check_settings, is_a, shown


@dataclass(kw_only=True, eq=False, repr=False)
class _Unclassed(WatchedMixin, LedgerMixin, BaseEstimator):
    """Hold the parameters of the guarantee, and fit rows that have no class."""

    epsilon: parameters.Epsilon = 1.0
    delta: parameters.Delta = 1e-5
    row_norm: float = 1.0
    mean_share: float = 0.1
    relation: parameters.Relation = "zero_out"
    nominal_n: parameters.NominalN = None
    group_cap: parameters.GroupCap = None
    ledger: parameters.LedgerPlace = None
    allow_large_delta: parameters.Confirmed = False
    random_state: parameters.Seed = None

    def _rows(self, X: Any, y: Any = None) -> Any:
        """Return rows, checked as a fit may; y is checked too if nothing is private."""
        check_settings(self)
        if np.isfinite(self.epsilon):
            return private_rows(self, X)
        x: Any = X
        if y is None:
            return validate_data(self, x)
        x, _ = validate_data(self, x, y, y_numeric=True)
        return x

    def _fitted(
        self,
        solver: Solver,
        rows: np.ndarray,
        groups: Any,
        notice: Callable[[], str] = str,
    ) -> Fitted:
        """Fit on `rows`, with one dummy class; `notice` is that of `Data`."""
        check_grouped(groups, self.group_cap)
        if groups is not None:
            groups = group_ids(groups, len(rows))
        facts = ProblemInfo(public_rows(self, len(rows)), rows.shape[1], 1)
        one_class = np.zeros(len(rows), np.int64)
        cap = self.group_cap
        data = Data(
            lambda: ArrayRows(rows, one_class, groups=groups, group_cap=cap),
            facts,
            notice=notice,
        )
        done = carry_out(
            self,
            data,
            lambda: head_plan(self, solver, facts),
            description=solver.name,
        )
        self.head_, self.privacy_, self._ledger = done.head, done.privacy, done.ledger
        return done

    def _new_rows(self, X: Any, transform: RowTransform) -> np.ndarray:
        """Return rows X after a transform, NaN where training masks the row."""
        check_is_fitted(self)
        (X,) = map(unmasked, as_arrays(X))
        finite = not np.isfinite(self.epsilon)
        x: Any = validate_data(self, X, reset=False, ensure_all_finite=finite)
        return float_rows(transform, x)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.epsilon != np.inf
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class DPPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Unclassed):
    """Principal components of rows, with differential privacy.

    One noisy mean and one noisy Gram matrix of centred rows are released; components
    are the Gram matrix's eigenvectors, so any number of them costs the same. A row that
    is not finite counts zero.

    Parameters
    ----------
    n_components : int, default=2
        How many components, at most n_features.
    epsilon : float, default=1.0
        The budget: whoever sees the components, and knows every row but one, can tell
        whether that row was used only as well as (epsilon, delta) allows. Infinity
        turns clipping and noise off: not private.
    delta : float, default=1e-5
        Of the budget; below 1/n_rows.
    row_norm : float, default=1.0
        A public number: rows, and rows around the mean, that are longer are shortened
        to it. Never take it from the rows; `Normalizer` before this brings them to 1.
    mean_share : float, default=0.1
        Share of mu**2 for the mean; 0 does not centre rows.
    relation, nominal_n, group_cap, ledger, allow_large_delta, random_state
        As of `DPClassifier`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Unit vectors, the first of the largest variance.
    mean_ : ndarray of shape (n_features,)
        The noisy mean.
    explained_variance_ : ndarray of shape (n_components,)
        Variances along the components, at least 0; the largest are too large by noise.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Over the noisy total variance.
    noise_sd_ : float
        Of the noise of an entry of the covariance matrix's diagonal.
    n_features_in_, head_, privacy_, ledger_
        As of `DPClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPPCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 8)) * [0.5, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    >>> pca = DPPCA(n_components=2, epsilon=2.0, row_norm=1.0).fit(X)
    >>> pca.transform(X).shape
    (5000, 2)
    >>> bool(abs(pca.components_[0, 0]) > 0.9)
    True
    """

    n_components: int = 2

    def fit(self, X: Any, y: Any = None, groups: Any = None, **refused: Any) -> "DPPCA":
        """Charge the ledger, then release.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Numbers; also a PyTorch tensor.
        y : ignored
        groups : array-like of shape (n_rows,), default=None
            Whose a row is, with group_cap.
        **refused
            sample_weight is refused.

        Returns
        -------
        self

        Raises
        ------
        ValueError, LedgerError
            With nothing charged.
        """
        refuse_weights(refused)
        X, groups = as_arrays(X, groups)
        x = self._rows(X)
        solver = PrincipalComponents(self.n_components, self.row_norm, self.mean_share)
        head = self._fitted(solver, x, groups, lambda: unread_rows(x)).head
        self.components_ = head.weights.T
        self.mean_ = head.transform.center
        kept = np.maximum(head.variances, 0.0)[: self.n_components]
        total = float(head.variances.sum())
        self.explained_variance_ = kept
        self.explained_variance_ratio_ = kept / total if total > 0 else kept * 0.0
        self.noise_sd_ = head.noise_sd
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> np.ndarray:
        """Return coordinates (n, n_components); NaN for a row that is not finite."""
        rows = self._new_rows(X, self.head_.transform)
        return rows @ self.components_.T

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Rows (n, n_features) of coordinates (n, n_components)."""
        check_is_fitted(self)
        return np.asarray(*as_arrays(X)) @ self.components_ + self.mean_


@dataclass(kw_only=True, eq=False, repr=False)
class DPRegressor(RegressorMixin, _Unclassed):
    """Ridge regression of a bounded number, with differential privacy.

    One noisy mean and one noisy Gram matrix of centred rows, with the target as a
    further column, are released; the rest is arithmetic. A row or target that is not
    finite counts zero.

    Parameters
    ----------
    bounds : (float, float), default=None
        The public range of the target, needed for a guarantee; what lies outside is
        moved to its nearer end. Never take it from the targets.
    epsilon : float, default=1.0
        The budget: whoever sees the fit, and knows every row but one, can tell whether
        that row was used only as well as (epsilon, delta) allows. Infinity turns
        clipping and noise off: not private.
    delta : float, default=1e-5
        Of the budget; below 1/n_rows.
    row_norm : float, default=1.0
        A public number, the norm of a row of features: with its target, a longer row is
        shortened. `Normalizer` before this brings rows to 1.
    target_weight : float, default=1.0
        Size of the target's column beside row_norm.
    mean_share : float, default=0.1
        Share of mu**2 for the mean, which gives the intercept; 0: none.
    ridge : float, default=None
        In units of the mean Gram matrix of unit rows; None sets it from the noise
        alone.
    relation, nominal_n, group_cap, ledger, allow_large_delta, random_state
        As of `DPClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Weights of rows as they are.
    intercept_ : float
        Added to them.
    n_features_in_, head_, privacy_, ledger_
        As of `DPClassifier`; the head gives the target as a part of its range.

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
    target_weight: float = 1.0
    ridge: float | None = None

    def fit(self, X: Any, y: Any, groups: Any = None, **refused: Any) -> "DPRegressor":
        """Charge the ledger, then release and solve.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Numbers; also a PyTorch tensor.
        y : array-like of shape (n_rows,)
            Targets.
        groups : array-like of shape (n_rows,), default=None
            Whose a row is, with group_cap.
        **refused
            sample_weight is refused.

        Returns
        -------
        self

        Raises
        ------
        ValueError, LedgerError
            With nothing charged.
        """
        refuse_weights(refused)
        X, y, groups = as_arrays(X, y, groups)
        if y is None:
            raise ValueError(
                "This estimator requires y to be passed, but the target y is None. "
                "Pass the targets."
            )
        x, target = self._rows(X, y), numbers(y)
        check_consistent_length(x, target)
        middle, half = self._range(target)
        settings = (self.row_norm, self.target_weight, self.mean_share, self.ridge)
        solver = RidgeRegression(*settings)
        scaled = clipped_target(target, middle, half)
        with np.errstate(all="ignore"):  # a signalling NaN of float32 would warn
            rows = np.column_stack([x, scaled * solver.column_size])
        given = column(y)

        def notice() -> str:
            what = "targets are no finite number"
            lost = private_notice(is_given(given), np.isfinite(target), what)
            return told(lost, unread_rows(x))

        head = self._fitted(solver, rows, groups, notice).head
        self.coef_ = half * head.weights[:, 0]
        self.intercept_ = float(middle + half * head.intercept[0])
        return self

    def _range(self, target: np.ndarray) -> tuple[float, float]:
        """Return the middle of the target's range, and half its length."""
        bounds = self.bounds
        if bounds is None and not np.isfinite(self.epsilon):
            bounds = (float(target.min()), float(target.max()))
            bounds = bounds if bounds[0] < bounds[1] else (bounds[0], bounds[0] + 1.0)
        lower, upper = _two_numbers(bounds)
        # NaN where they are not two numbers; infinite where half their length is
        if not 0 < (upper - lower) / 2 < np.inf:
            raise ValueError(
                "bounds must be declared: two finite numbers, the lower first, got "
                f"bounds={shown(bounds)}. Pass the public range of the target: its own "
                "smallest and largest value would reveal rows."
            )
        return (lower + upper) / 2, (upper - lower) / 2

    def predict(self, X: Any) -> np.ndarray:
        """Return targets (n,), which may lie outside the range.

        A row that is not finite has NaN.
        """
        return self._new_rows(X, RowTransform()) @ self.coef_ + self.intercept_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def clipped_target(target: np.ndarray, middle: float, half: float) -> np.ndarray:
    """Return targets (n,) scaled and clipped to [-1, 1]; NaN where not finite.

    Each number is converted alone.
    """
    with np.errstate(all="ignore"):
        part = np.clip((target - middle) / half, -1.0, 1.0)
    return np.where(np.isfinite(target), part, np.nan)


def _two_numbers(bounds: Any) -> tuple[float, float]:
    """Return the two bounds, NaN for anything else."""
    given = bounds.tolist() if isinstance(bounds, np.ndarray) else bounds
    pair = isinstance(given, tuple | list) and len(given) == 2
    if not pair or not all(is_a(part, float) for part in given):
        return np.nan, np.nan
    return float(given[0]), float(given[1])
