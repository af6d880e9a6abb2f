"""The ridge that keeps a noisy Gram matrix invertible, from public numbers alone."""

import numpy as np

from dphead.solvers.base import PublicFacts

FLOOR = 1e-4  # of n_rows: the mean Gram matrix of unit rows has trace 1
EDGE = 0.6  # of the noise's spectral edge; chosen on training rows of CIFAR-10 and digits, flat within a factor of two


def ridge_for(facts: PublicFacts, gram_sd: float, ridge: float | None) -> float:
    """Ridge in units of the summed Gram matrix. ridge: the user's, in units of the mean one, or None for the rule.

    The rule is a share of sd sqrt(2d), the edge of the spectrum of symmetric noise (Wigner), known before any data.
    """
    if ridge is not None:
        return ridge * facts.n_rows
    return FLOOR * facts.n_rows + EDGE * gram_sd * np.sqrt(2.0 * facts.n_features)


def symmetric_positive(gram: np.ndarray, ridge: float) -> np.ndarray:
    """gram + ridge I, its spectrum raised to at least ridge/2 if noise has pushed it below. gram: (d, d) symmetric."""
    d = gram.shape[-1]
    shifted = gram + ridge * np.eye(d)
    try:
        np.linalg.cholesky(shifted - 0.5 * ridge * np.eye(d))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(gram)
        return (vectors * (np.maximum(values, -0.5 * ridge) + ridge)) @ vectors.T
    return shifted
