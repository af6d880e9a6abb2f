"""Define the scikit-learn estimator of private principal components."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dphead.data.device_rows import DeviceRows
from dphead.estimators.docstrings import documented
from dphead.estimators.fitting import HeadEstimator
from dphead.estimators.inputs import as_arrays, checked_rows
from dphead.estimators.labels import unread_rows
from dphead.solvers.components import PrincipalComponents
from dphead.solvers.head import float_rows
from dphead.solvers.settings import check_settings


@documented({})
@dataclass(kw_only=True, eq=False, repr=False)
class DPPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, HeadEstimator):
    """Compute principal components of rows, with differential privacy.

    The fit releases a noisy count of the rows, a noisy mean, and a noisy Gram matrix of
    centered rows. The components are eigenvectors of the Gram matrix, so their number
    does not change epsilon. A row that is not finite adds zero to every sum.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, at most n_features.
    row_norm : float, default=None
        Public clip norm of rows and of centered rows. Never compute it from the rows.
        Use None for rows of norm 1, such as the output of `Normalizer`. Centered rows
        are then clipped to their typical length. This length follows from the released
        mean and spends no further budget.
    mean_share : float, default=0.1
        Fraction of mu**2 spent to release the mean and the number of rows in it. 0
        means no centering: neither is released.
    group_mean : bool, default=False
        Whether to replace a group's rows by their mean. A group then has one mean, so
        set `group_cap` to 1.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Unit vectors, in order of decreasing variance.
    mean_ : ndarray of shape (n_features,)
        The noisy mean; zeros if `mean_share` is 0.
    explained_variance_ : ndarray of shape (n_components,)
        Noisy variances of the clipped rows along the components, at least 0. Noise
        biases the largest variance upward.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Explained variances divided by the noisy total variance.
    noise_sd_ : float
        Standard deviation of the noise that the Gram matrix adds to a diagonal entry
        of the covariance matrix. It excludes the noise of the mean and of the count.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPPCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 8)) * [0.5, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    >>> pca = DPPCA(n_components=2, epsilon=2.0).fit(X)
    >>> pca.transform(X).shape
    (5000, 2)
    >>> bool(abs(pca.components_[0, 0]) > 0.9)
    True
    """

    n_components: int = 2
    row_norm: float | None = None
    mean_share: float = 0.1

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Charge the ledger, then compute the components.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Array, data frame or PyTorch tensor of numbers.
        y : None
            Not used.
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
        X, groups = as_arrays(X, groups)
        x, _ = checked_rows(self, X)
        solver = PrincipalComponents(self.n_components, self.row_norm, self.mean_share)
        head = self._fit_unclassed(solver, x, groups, lambda: unread_rows(x))
        self.components_: np.ndarray = head.weights.T
        center = head.transform.center
        assert center is not None  # the center is zero if no mean was released
        self.mean_: np.ndarray = center
        kept = np.maximum(head.variances, 0.0)[: self.n_components]
        total = float(head.variances.sum())
        self.explained_variance_ = kept
        self.explained_variance_ratio_ = kept / total if total > 0 else kept * 0.0
        self.noise_sd_: float = head.noise_sd
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, then return the coordinates of the rows, as in pipelines.

        Parameters and errors are as in `fit`. Raises ValueError for rows that several
        processes share, because `transform` cannot read them.
        """
        (X,) = as_arrays(X)
        if isinstance(X, DeviceRows):
            X.require_one_process()
        return super().fit_transform(X, y, **fit_params)

    def transform(self, X: Any) -> np.ndarray:
        """Return the coordinates of rows along the components.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            New rows.

        Returns
        -------
        ndarray of shape (n, n_components)
            Coordinates. NaN for a row that is not finite.

        Raises
        ------
        ValueError
            If the rows do not match the fit. If a row is not finite and epsilon is
            infinite.
        """
        x = self._new_rows(X)
        return float_rows(self.head_.transform, x) @ self.components_.T

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Return the rows (n, n_features) with these coordinates (n, n_components)."""
        check_is_fitted(self)
        return np.asarray(*as_arrays(X)) @ self.components_ + self.mean_
