"""Choose the ridge that keeps a noisy Gram matrix positive definite.

The rule uses public numbers only.
"""

from importlib import import_module
from typing import Any

import numpy as np

from dphead.solvers.base import ProblemInfo

# share of n_rows, for a mean Gram matrix of unit rows, which has trace 1; chosen
_RIDGE_WITHOUT_NOISE = 1e-4
# Columns of the widest Gram matrix with a computed spectrum: with 3,969 columns, the
# spectrum took longer than the pass over the data (commit 6269ee1).
WIDEST_SPECTRUM = 2048
# Default ridges, as shares of the noise's spectral edge: for matrices of at most
# WIDEST_SPECTRUM columns, and for wider ones. From trials on training rows of CIFAR-10
# and digits, not stored. The first share is within 0.25 points of the best of 25 values
# of λ (results/ablation).
_EDGE_SHARE, _EDGE_SHARE_WIDE = 0.6, 1.2
# lower bound on eigenvalues, as a multiple of the ridge; chosen
FLOOR_OVER_RIDGE = -0.5
# Growth of a ridge while the matrix is indefinite: a factor, and a part of the trace so
# that a ridge of 0 grows too; chosen.
_GROWTH, _GROWTH_OF_TRACE = 1.25, 1e-12


def spectral_edge(gram_sd: float, width: int) -> float:
    """Return the approximate largest eigenvalue of a symmetric noise matrix (Wigner).

    gram_sd is the standard deviation of the noise on the diagonal.
    """
    return gram_sd * float(np.sqrt(2.0 * width))


def ridge_for(
    facts: ProblemInfo, gram_sd: float, ridge: float | None, share: float | None = None
) -> float:
    """Return the ridge in units of the summed Gram matrix, or of the summed Hessian.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes.
    gram_sd : float
        Standard deviation of the noise on the diagonal of this matrix.
    ridge : float or None
        The user's ridge, in units of the mean matrix. None uses the rule below.
    share : float, optional
        The rule's share of the edge of the noise's spectrum. None uses _EDGE_SHARE, or
        _EDGE_SHARE_WIDE above WIDEST_SPECTRUM features.

    Notes
    -----
    The rule is 1e-4 n_rows plus a share of the edge of the noise's spectrum. The share
    is below 1 if negative eigenvalues are raised one by one, and above 1 for wide
    matrices.
    """
    if ridge is not None:
        return ridge * facts.n_rows
    if share is None:
        narrow = facts.n_features <= WIDEST_SPECTRUM
        share = _EDGE_SHARE if narrow else _EDGE_SHARE_WIDE
    # even without noise, because features can be linearly dependent
    least = _RIDGE_WITHOUT_NOISE * facts.n_rows
    return least + spectral_edge(share * gram_sd, facts.n_features)


class RidgeSolver:
    """Solve (gram + ridge I) w = right, with negative eigenvalues raised.

    Parameters
    ----------
    gram : ndarray of shape (d, d)
        Symmetric matrix, possibly indefinite due to noise.
    ridge : float
        First ridge to try.

    Attributes
    ----------
    ridge, floor : float
        Parameters of the solution w = right / (max(e, floor) + ridge) in the
        eigenbasis.

    Notes
    -----
    Up to WIDEST_SPECTRUM columns, eigenvalues of gram below -ridge/2 are raised to
    -ridge/2. For wider matrices, the ridge grows until the sum is positive definite.
    """

    def __init__(self, gram: np.ndarray, ridge: float) -> None:
        xp = gram.__array_namespace__()
        eye = xp.eye(len(gram))
        narrow = len(gram) <= WIDEST_SPECTRUM
        self.floor = FLOOR_OVER_RIDGE * ridge if narrow else -np.inf
        # Cholesky first: it is much faster than eigh, and most matrices need no floor.
        if np.isfinite(self.floor) and _factored(gram - self.floor * eye) is None:
            values, vectors = xp.linalg.eigh(gram)
            # with floor = -ridge/2, no eigenvalue of gram + ridge is below ridge/2
            gram = (vectors * xp.maximum(values, self.floor)) @ vectors.T
        while (factor := _factored(gram + ridge * eye)) is None:
            ridge = _GROWTH * ridge + _GROWTH_OF_TRACE * float(abs(gram.trace()))
        self._factor, self.ridge = factor, ridge

    def __call__(self, right: np.ndarray) -> Any:
        """Return the solution for right (d,) or (d, k)."""
        linalg = _linalg_of(self._factor[0])
        return linalg.cho_solve(self._factor, right, check_finite=False)


def _factored(matrix: Any) -> tuple[Any, bool] | None:
    """Return the Cholesky factor of a matrix; None if it is not positive definite."""
    factor_of = _linalg_of(matrix).cho_factor
    try:
        factor, lower = factor_of(matrix, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        return None
    # jax returns NaN instead of an error
    return None if np.isnan(factor[-1, -1]) else (factor, lower)


def _linalg_of(matrix: Any) -> Any:
    """Return SciPy's or jax's linear algebra. Imported here: networks need neither."""
    jax = "" if isinstance(matrix, np.ndarray) else "jax."
    return import_module(f"{jax}scipy.linalg")
