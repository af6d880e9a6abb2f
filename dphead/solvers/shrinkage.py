"""Least squares from a noisy Gram matrix whose spectrum is shrunk by the noise's law;
everything here is post-processing, and looks at nothing but what was released.

Symmetric noise of standard deviation sd on the diagonal has a spectrum of known law,
the semicircle up to sd sqrt(2d) (Wigner). It spreads the eigenvalues of what it is
added to and turns the eigenvectors. What the exact matrix has along a noisy
eigenvector, on average, follows from the released eigenvalues alone [Bun, Allez,
Bouchaud and Potters 2016]: 0 within noise alone, sqrt(e² - r²) of one e beyond its
edge r.
"""

import numpy as np

from dphead.solvers.base import PublicFacts
from dphead.solvers.head import center_classes
from dphead.solvers.ridge import ridge_for, spectral_edge

# columns of the widest matrix that is treated so: of 3,969, its spectrum takes longer
# than the pass over the data, and is worth two points (results/ablation)
WIDEST_SHRUNK = 4096
# of the noise's spectral edge; of 0.15 to 0.4 on held-out rows of CIFAR-10, CIFAR-100
# and digits (results/ablation)
EDGE_SHARE = 0.3
NEARLY_ZERO = 1e-12  # of the longest direction of the class sums, squared


def shrunk_ridge(facts: PublicFacts, gram_sd: float, ridge: float | None) -> float:
    """As `ridge_for`, with a smaller share of the noise's edge."""
    return ridge_for(facts, gram_sd, ridge, EDGE_SHARE)


def shrunk_spectrum(values: np.ndarray, gram_sd: float) -> np.ndarray:
    """What the exact matrix has, on average, along the eigenvectors of eigenvalues (d,)
    of a noisy one, not negative.

    It is e_i - sd² Σ_j 1 / (e_i - e_j), the sum smoothed over edge / sqrt(d).
    """
    if gram_sd == 0:
        return np.maximum(values, 0)
    width = spectral_edge(gram_sd, len(values)) / np.sqrt(len(values))
    gaps = np.subtract.outer(values, values)
    smoothed = gaps**2
    smoothed += width**2
    np.divide(gaps, smoothed, out=gaps)
    return np.maximum(values - gram_sd**2 * gaps.sum(axis=1), 0)


def shrunk_weights(
    gram: np.ndarray, gram_sd: float, sums: np.ndarray, sums_sd: float, ridge: float
) -> np.ndarray:
    """(d, m) solution of (Ĝ + ridge) W = S̃ H.

    gram: (d, d) symmetric with symmetric noise of gram_sd (that of its diagonal); sums:
        (d, m), noise of sums_sd; ridge: positive.

    Ĝ has the shrunk spectrum, and within the span of S̃ H also what G̃ says there and
    the shrinking took away: in so few directions, known beforehand, an entry's noise is
    gram_sd and not the edge.
    """
    values, vectors = np.linalg.eigh(gram)
    seen = shrunk_spectrum(values, gram_sd)
    right = vectors.T @ center_classes(sums)
    inverse = 1 / (seen + ridge)[:, None]
    span, missing = _between_classes(right, sums_sd, values - seen)
    weights = inverse * right
    spread = inverse * span
    # (D + U M Uᵀ)⁻¹ by Woodbury, D diagonal and M not negative
    inner = np.eye(len(missing)) + missing @ (span.T @ spread)
    weights -= spread @ np.linalg.solve(inner, missing @ (span.T @ weights))
    return vectors @ weights


def _between_classes(
    right: np.ndarray, sums_sd: float, taken: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(U, M): U (d, k) orthonormal directions of the class sums, and M (k, k) what
    shrinking took from the Gram matrix there, without its negative part.

    right: (d, m) sums in the eigenbasis; taken: (d,) of each eigenvalue. A direction
    counts by the share of its square that noise does not explain.
    """
    span, lengths, _ = np.linalg.svd(right, full_matrices=False)
    squares = lengths**2
    noise = sums_sd**2 * len(right)
    kept = squares > max(noise, NEARLY_ZERO * squares[0])
    span = span[:, kept]
    trust = 1 - noise / squares[kept]
    missing = trust[:, None] * (span.T @ (taken[:, None] * span)) * trust
    values, vectors = np.linalg.eigh((missing + missing.T) / 2)
    return span, (vectors * np.maximum(values, 0)) @ vectors.T
