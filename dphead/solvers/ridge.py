"""The ridge that keeps a noisy Gram matrix invertible, from public numbers alone."""

import numpy as np

from dphead.solvers.base import PublicFacts

FLOOR = 1e-4  # of n_rows: the mean Gram matrix of unit rows has trace 1


def ridge_for(facts: PublicFacts, gram_sd: float, sums_sd: float, ridge: float | None) -> float:
    """Ridge in units of the summed Gram matrix. ridge: the user's, in units of the mean one, or None for the rule.

    The rule is the edge of the Gram noise's spectrum, sd sqrt(2d) for symmetric noise (Wigner), plus what the noise on
    the class sums or gradients needs; both are known before any data is read.
    """
    if ridge is not None:
        return ridge * facts.n_rows
    edge = gram_sd * np.sqrt(2.0 * facts.n_features)
    return FLOOR * facts.n_rows + edge + sums_sd * np.sqrt(facts.n_classes)


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
