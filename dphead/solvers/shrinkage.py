"""Shrink the eigenvalues of a noisy Gram matrix, and solve least squares with them.

All computations are post-processing of released values.

Symmetric noise with standard deviation sd on the diagonal has a known spectrum: the
semicircle up to sd sqrt(2d) (Wigner). The noise spreads the eigenvalues of the exact
matrix and rotates its eigenvectors. The released eigenvalues determine the average of
the exact matrix along a noisy eigenvector [Bun, Allez, Bouchaud and Potters 2016]. For
noise alone it is 0. For one eigenvalue e beyond the noise's edge r, it is sqrt(e² -
r²).
"""

import numpy as np

from dphead.privacy.contract import Released
from dphead.solvers.head import center_classes
from dphead.solvers.ridge import spectral_edge

# directions of the class sums are dropped if their squared length is below this share
# of the largest one
_NEARLY_ZERO = 1e-12


def _shrunk_spectrum(values: np.ndarray, gram_sd: float) -> np.ndarray:
    """Estimate the exact matrix's average along each noisy eigenvector.

    values (d,) are the noisy eigenvalues e_i. The result is
    e_i - sd² Σ_j 1 / (e_i - e_j), with the sum smoothed over edge / sqrt(d), and at
    least 0.
    """
    xp = values.__array_namespace__()
    if gram_sd == 0:
        return xp.maximum(values, 0)
    # The sum estimates d times the Hilbert transform of the spectrum. Smoothing over
    # some gaps of eigenvalues keeps the nearest ones from dominating the sum (Ledoit,
    # Wolf 2020).
    width = spectral_edge(gram_sd, len(values)) / np.sqrt(len(values))
    gaps = values[:, None] - values
    smoothed = gaps / (gaps**2 + width**2)
    return xp.maximum(values - gram_sd**2 * smoothed.sum(axis=1), 0)


def shrunk_gram(gram: Released) -> np.ndarray:
    """Return the released Gram matrix (d, d) with shrunk eigenvalues, none negative."""
    values, vectors = gram.value.__array_namespace__().linalg.eigh(gram.value)
    return (vectors * _shrunk_spectrum(values, gram.noise_sd)) @ vectors.T


def shrunk_weights(gram: Released, sums: Released, ridge: float) -> np.ndarray:
    """Return the solution W (d, m) of (Ĝ + ridge) W = S̃ H.

    Parameters
    ----------
    gram : Released
        Released Gram matrix G̃ (d, d): symmetric, with symmetric noise.
    sums : Released
        Released class sums S̃ (d, m).
    ridge : float
        Positive ridge, in units of G̃.

    Notes
    -----
    Ĝ has the shrunk eigenvalues. Within the span of S̃ H, Ĝ regains the part that
    shrinking removed. In these few fixed directions, the noise is gram_sd instead of
    the edge.
    """
    xp = gram.value.__array_namespace__()
    values, vectors = xp.linalg.eigh(gram.value)
    seen = _shrunk_spectrum(values, gram.noise_sd)
    right = vectors.T @ center_classes(sums.value)
    inverse = 1 / (seen + ridge)[:, None]
    span, missing = _between_classes(right, sums.noise_sd, values - seen)
    weights = inverse * right
    spread = inverse * span
    # (D + U M Uᵀ)⁻¹ by Woodbury, with D diagonal and M positive semidefinite
    inner = xp.eye(len(missing)) + missing @ (span.T @ spread)
    between = spread @ xp.linalg.solve(inner, missing @ (span.T @ weights))
    return vectors @ (weights - between)


def _between_classes(
    right: np.ndarray, sums_sd: float, taken: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return a basis U of the class sums, and the matrix M to add back in this basis.

    right (d, m) are the class sums in the eigenbasis, and taken (d,) is the reduction
    of each eigenvalue by shrinking. The columns of U (d, k) are orthonormal. M (k, k)
    is the reduction within the span of U, and positive semidefinite. Each direction has
    the weight 1 - noise / (squared length).
    """
    xp = right.__array_namespace__()
    span, lengths, _ = xp.linalg.svd(right, full_matrices=False)
    squares = lengths**2
    # a direction of noise alone has the mean square d sums_sd² in right (d, m)
    noise = sums_sd**2 * len(right)
    kept = squares > max(noise, _NEARLY_ZERO * squares[0])
    span = span[:, kept]
    trust = 1 - noise / squares[kept]
    missing = trust[:, None] * (span.T @ (taken[:, None] * span)) * trust
    # rounding makes it slightly asymmetric, and noise can make it indefinite
    values, vectors = xp.linalg.eigh((missing + missing.T) / 2)
    return span, (vectors * xp.maximum(values, 0)) @ vectors.T
