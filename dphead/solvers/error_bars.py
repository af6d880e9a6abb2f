"""How far the privacy noise moves a least-squares head: standard errors from what was
released alone.

For W = h(G̃) S̃ H, H = I - 11ᵀ/m: exact for the noise on S̃ given G̃, first order for
the noise on G̃ [privacy/proofs/choices.md, claim E].
Sampling of the rows is not in them, nor is the bias of the ridge. Everything here is
post-processing.
"""

import numpy as np

from dphead.solvers.head import center_classes

BLOCK = 1024  # rows at a time; chosen


class ErrorBars:
    """The released sums in the eigenbasis of G̃.

    gram: (d, d) symmetric with symmetric noise of gram_sd (that of its diagonal); sums:
        (d, m), noise of sums_sd.
    h(e) = 1 / (max(e, floor) + ridge). Two d x d matrices are kept, six are in memory
    while they are made.
    """

    def __init__(
        self,
        gram: np.ndarray,
        gram_sd: float,
        sums: np.ndarray,
        sums_sd: float,
        ridge: float,
        floor: float,
    ) -> None:
        values, self._vectors = np.linalg.eigh(gram)
        self._h = 1 / (np.maximum(values, floor) + ridge)
        self._slopes = _slopes(values, floor, self._h)
        self._slopes *= self._slopes
        self._sums = self._vectors.T @ center_classes(sums)
        self._gram_sd, self._sums_sd = gram_sd, sums_sd

    def std(self, rows: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
        """Standard errors (k, c) of rows @ W @ classes.

        rows: (k, d); classes: (m, c), None for each one.
        """
        classes = np.eye(self._sums.shape[1]) if classes is None else classes
        parts = [
            self._block(rows[i : i + BLOCK] @ self._vectors, classes)
            for i in range(0, len(rows), BLOCK)
        ]
        return np.concatenate([np.empty((0, classes.shape[1])), *parts])

    def _block(self, u: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Equations (1) to (3) of claim E. u: (k, d) rows in the eigenbasis."""
        b, squares = self._sums @ classes, u**2
        # of each entry of b
        centered = classes - classes.mean(axis=0)
        noise = self._sums_sd**2 * (centered**2).sum(axis=0)
        of_sums = np.outer(((u * self._h) ** 2).sum(axis=1), noise)
        one_way = squares @ (self._slopes @ (b**2 - noise))
        both_ways = np.stack([self._twice(u * column) for column in b.T], axis=1)
        both_ways -= np.outer(squares @ self._slopes.diagonal(), noise)
        of_gram = self._gram_sd**2 / 2 * np.maximum(one_way + both_ways, 0)
        return np.sqrt(of_sums + of_gram)

    def _twice(self, v: np.ndarray) -> np.ndarray:
        """Σ_ij v_i slopes²_ij v_j of each row v."""
        return (v @ self._slopes * v).sum(axis=1)


def _slopes(values: np.ndarray, floor: float, h: np.ndarray) -> np.ndarray:
    """(h_i - h_j) / (e_i - e_j), and h' where they are equal: -h_i h_j times the same
    quotient of max(e, floor).
    """
    raised, above = np.maximum(values, floor), (values > floor).astype(float)
    gaps, slopes = np.subtract.outer(values, values), np.outer(above, above)
    np.divide(np.subtract.outer(raised, raised), gaps, out=slopes, where=gaps != 0)
    slopes *= -h[:, None]
    slopes *= h[None, :]
    return slopes
