"""The ridge that keeps a noisy Gram matrix positive, from public numbers alone."""

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dphead.solvers.base import PublicFacts

FLOOR = 1e-4  # of n_rows: the mean Gram matrix of unit rows has trace 1
SPECTRAL_MAX = 2048  # widest Gram matrix whose spectrum is computed
# of the noise's spectral edge; chosen on training rows of CIFAR-10 and digits
EDGE, EDGE_WIDE = 0.6, 1.2


def ridge_for(facts: PublicFacts, gram_sd: float, ridge: float | None) -> float:
    """Ridge in units of the summed Gram matrix.

    ridge: the user's, in units of the mean one, or None for the rule.

    The rule is a share of sd sqrt(2d), the edge of the spectrum of symmetric noise
    (Wigner), known before any data: below the edge where eigenvalues that noise made
    negative are raised one by one, above it for wide matrices.
    """
    if ridge is not None:
        return ridge * facts.n_rows
    share = EDGE if facts.n_features <= SPECTRAL_MAX else EDGE_WIDE
    return FLOOR * facts.n_rows + share * gram_sd * np.sqrt(2.0 * facts.n_features)


class RidgeSolver:
    """Solves (gram + ridge I) w = right, with what noise made negative raised.

    gram: (d, d) symmetric.

    Up to SPECTRAL_MAX columns, eigenvalues of gram below -ridge/2 count as -ridge/2;
    beyond, the ridge grows until the sum is positive definite. ridge and floor: what it
    solves with, w = right / (max(e, floor) + ridge) on the spectrum.
    """

    def __init__(self, gram: np.ndarray, ridge: float) -> None:
        eye = np.eye(len(gram))
        self.floor = -0.5 * ridge if len(gram) <= SPECTRAL_MAX else -np.inf
        if np.isfinite(self.floor) and not _positive(gram - self.floor * eye):
            values, vectors = np.linalg.eigh(gram)
            gram = (vectors * np.maximum(values, self.floor)) @ vectors.T
        while True:
            try:
                self._factor = cho_factor(
                    gram + ridge * eye, overwrite_a=True, check_finite=False
                )
                self.ridge = ridge
                return
            except LinAlgError:
                ridge = 1.25 * ridge + 1e-12 * abs(np.trace(gram))

    def __call__(self, right: np.ndarray) -> np.ndarray:
        """The solution for right (d,) or (d, k)."""
        return cho_solve(self._factor, right, check_finite=False)


def _positive(matrix: np.ndarray) -> bool:
    try:
        cho_factor(matrix, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return False
    return True
