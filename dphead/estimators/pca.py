"""Define the principal components of rows, with differential privacy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dphead.estimators.fitting import GroupCap, GroupMean, PrivateEstimator
from dphead.estimators.inputs import as_arrays, checked_rows, refuse_weights
from dphead.estimators.labels import unread_rows
from dphead.solvers.components import PrincipalComponents
from dphead.solvers.head import float_rows
from dphead.solvers.settings import check_settings


@dataclass(kw_only=True, eq=False, repr=False)
class DPPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):
    """Principal components of rows, with differential privacy.

    One noisy mean and one noisy Gram matrix of centered rows are released; components
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
    delta : float, default=None
        Of the budget; below 1/n_rows. None: 1e-5.
    row_norm : float, default=None
        A public number. Rows, and rows around the mean, are clipped to this norm. Never
        take it from the rows. None is for rows of norm 1, which `Normalizer` before
        this gives. Rows around the mean are then clipped to their typical length, which
        the released mean tells at no further cost.
    mean_share : float, default=0.1
        Fraction of mu**2 spent on the mean; 0: no centering.
    relation, nominal_n, group_cap, group_mean, ledger, allow_large_delta, random_state
        As of `DPClassifier`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Unit vectors, the first of the largest variance.
    mean_ : ndarray of shape (n_features,)
        The noisy mean.
    explained_variance_ : ndarray of shape (n_components,)
        Variances along the components, at least 0, of the clipped rows; noise makes the
        largest too large.
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
    >>> pca = DPPCA(n_components=2, epsilon=2.0).fit(X)
    >>> pca.transform(X).shape
    (5000, 2)
    >>> bool(abs(pca.components_[0, 0]) > 0.9)
    True
    """

    n_components: int = 2
    row_norm: float | None = None
    mean_share: float = 0.1
    group_cap: GroupCap = None
    group_mean: GroupMean = False

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
        check_settings(self)
        X, groups = as_arrays(X, groups)
        x, _ = checked_rows(self, X)
        solver = PrincipalComponents(self.n_components, self.row_norm, self.mean_share)
        head = self._fit_unclassed(solver, x, groups, lambda: unread_rows(x))
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
        x = self._new_rows(X)
        return float_rows(self.head_.transform, x) @ self.components_.T

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Rows (n, n_features) of coordinates (n, n_components)."""
        check_is_fitted(self)
        return np.asarray(*as_arrays(X)) @ self.components_ + self.mean_
