"""Compute standard errors of a least-squares head due to the privacy noise.

All computations are post-processing of released values. Let W = h(G̃) S̃ H, with H = I -
11ᵀ/m. The errors are exact for the noise on S̃ given G̃, and first order for the noise
on G̃ [privacy/proofs/choices.md, claim E]. They exclude the error from sampling rows,
and the bias of the ridge.
"""

import numpy as np

from dphead.privacy.contract import Released
from dphead.solvers.head import center_classes

_BLOCK = 1024  # rows per block; chosen


class ErrorBars:
    """Compute standard errors of scores from released sums.

    Parameters
    ----------
    gram : Released
        Released Gram matrix G̃ (d, d): symmetric, with symmetric noise.
    sums : Released
        Released class sums S̃ (d, m).
    ridge, floor : float
        Parameters of h(e) = 1 / (max(e, floor) + ridge).

    Notes
    -----
    The object keeps two d x d matrices. Building it needs memory for six.
    """

    def __init__(
        self, gram: Released, sums: Released, ridge: float, floor: float
    ) -> None:
        # In the eigenbasis of G̃, a function of G̃ is a function of each eigenvalue, and
        # its derivative is the matrix of divided differences [Daleckii, Krein 1965].
        values, self._vectors = np.linalg.eigh(gram.value)
        self._h = 1 / (np.maximum(values, floor) + ridge)
        self._slopes = _slopes(values, floor, self._h)
        self._slopes *= self._slopes
        self._sums = self._vectors.T @ center_classes(sums.value)
        self._gram_sd, self._sums_sd = gram.noise_sd, sums.noise_sd

    def std(self, rows: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
        """Return the standard errors (k, c) of rows @ W @ classes.

        rows is (k, d). classes is (m, c), or None for one column per class.
        """
        classes = np.eye(self._sums.shape[1]) if classes is None else classes
        parts = [
            self._block(rows[i : i + _BLOCK] @ self._vectors, classes)
            for i in range(0, len(rows), _BLOCK)
        ]
        return np.concatenate([np.empty((0, classes.shape[1])), *parts])

    def _block(self, u: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Return the standard errors (k, c) for rows u (k, d) in the eigenbasis.

        They follow from equations (1) to (3) of claim E.
        """
        # b̃ = VᵀS̃Hc of equation (3), one column for each combination of classes
        b, squares = self._sums @ classes, u**2
        # noise variance of each entry of b
        centered = classes - classes.mean(axis=0)
        noise = self._sums_sd**2 * (centered**2).sum(axis=0)
        of_sums = np.outer(((u * self._h) ** 2).sum(axis=1), noise)
        one_way = squares @ (self._slopes @ (b**2 - noise))
        both_ways = np.stack([self._twice(u * column) for column in b.T], axis=1)
        # the bias of b̃_i b̃_j is only on the diagonal
        both_ways -= np.outer(squares @ self._slopes.diagonal(), noise)
        # Off the diagonal, symmetric noise (Z + Zᵀ)/2 has variance sd²/2. Subtracting
        # the noise of b² can leave a negative variance, which counts as 0.
        of_gram = self._gram_sd**2 / 2 * np.maximum(one_way + both_ways, 0)
        return np.sqrt(of_sums + of_gram)

    def _twice(self, v: np.ndarray) -> np.ndarray:
        """Return Σ_ij v_i slopes²_ij v_j of each row v."""
        return (v @ self._slopes * v).sum(axis=1)


def _slopes(values: np.ndarray, floor: float, h: np.ndarray) -> np.ndarray:
    """Return the quotients (h_i - h_j) / (e_i - e_j), or h' for equal eigenvalues.

    Each quotient is -h_i h_j times the same quotient of max(e, floor).
    """
    raised, above = np.maximum(values, floor), (values > floor).astype(float)
    gaps, slopes = np.subtract.outer(values, values), np.outer(above, above)
    np.divide(np.subtract.outer(raised, raised), gaps, out=slopes, where=gaps != 0)
    slopes *= -h[:, None]
    slopes *= h[None, :]
    return slopes
