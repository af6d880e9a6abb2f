"""λ of noisy least squares from what was released: a loss whose noise is taken out by
Stein's lemma.

Plugging the released G̃ and S̃ into the training loss fits their noise. For W = h(G̃)
S̃ H, H = I - 11ᵀ/m, and any bounded Lipschitz h, `risk` is unbiased for the training
loss tr(WᵀGW) - 2 tr(WᵀSH) of the exact sums [privacy/proofs/choices.md, claim S; Stein
1981]. Everything here is post-processing.
"""

import numpy as np

from dphead.solvers.head import center_classes
from dphead.solvers.ridge import FLOOR_OVER_RIDGE, spectral_edge

N_CANDIDATES = 25  # of λ; chosen
MOST_COLUMNS = 4096  # of a matrix whose spectrum is computed; chosen
# the least λ: of the edge of the noise's spectrum, and of n; chosen
LEAST_EDGE_SHARE, LEAST_OF_ROWS = 0.3, 1e-4
LEAST_RANGE = 10  # the greatest λ over the least; chosen


class SpectralRidge:
    """The released sums in the eigenbasis of G̃, where every λ is cheap.

    gram: (d, d) symmetric with symmetric noise of gram_sd (that of its diagonal); sums:
        (d, m), noise of sums_sd.
    h(e) = 1 / (max(e, -λ/2) + λ): the inverse of G̃ + λ, but bounded by 2/λ where noise
    made G̃ indefinite.
    """

    def __init__(
        self, gram: np.ndarray, gram_sd: float, sums: np.ndarray, sums_sd: float
    ) -> None:
        self._values, self._vectors = np.linalg.eigh(gram)
        self._sums = self._vectors.T @ center_classes(sums)
        self._energy = (self._sums**2).sum(axis=1)
        self._gram_sd, self._sums_sd = gram_sd, sums_sd

    def weights(self, ridge: float) -> np.ndarray:
        """W = h(G̃) S̃ H, (d, m)."""
        return self._vectors @ (self._inverse(ridge)[:, None] * self._sums)

    def risk(self, ridge: float) -> float:
        """Unbiased for the training loss at one λ, up to a constant."""
        h = self._inverse(ridge)
        spent = 2 * self._sums_sd**2 * (self._sums.shape[1] - 1) * h.sum()
        return (
            self.plug_in(ridge) - self._gram_sd**2 * self._divergence(h, ridge) + spent
        )

    def plug_in(self, ridge: float) -> float:
        """The loss with released sums in place of exact ones: it rewards fitting their
        noise.
        """
        h = self._inverse(ridge)
        quadratic = (self._values * h**2 * self._energy).sum()
        return float(quadratic - 2 * (h * self._energy).sum())

    def best(self, ridges: np.ndarray) -> float:
        """The λ of the least risk."""
        return float(ridges[int(np.argmin([self.risk(float(r)) for r in ridges]))])

    @staticmethod
    def floor(ridge: float) -> float:
        """What an eigenvalue counts as at least."""
        return FLOOR_OVER_RIDGE * ridge

    def _inverse(self, ridge: float) -> np.ndarray:
        return 1 / (np.maximum(self._values, self.floor(ridge)) + ridge)

    def _divergence(self, h: np.ndarray, ridge: float) -> float:
        """Σ_ij ∂M_ij/∂G̃_ij over symmetric directions, M = WWᵀ (proofs/choices.md,
        claim S, equation 2).

        Quotients (h_i - h_j)/(e_i - e_j) are -q_ij h_i h_j, where q is 1 between
        eigenvalues above the floor, 0 between those below, and in [0, 1] across.
        """
        floor = self.floor(ridge)
        low = self._values < floor
        up, pull = ~low, h**2 * self._energy
        inner = np.zeros_like(h)  # Σ_i q_ij h_i
        inner[up] = h[up].sum()
        if low.any():
            across = (self._values[up] - floor)[None, :] / (
                self._values[up][None, :] - self._values[low][:, None]
            )
            inner[up] += h[low] @ across
            inner[low] = across @ h[up]
        return -float((inner * pull).sum() + (h[up] * pull[up]).sum())


def candidates(n_rows: float, gram_sd: float, n_features: int) -> np.ndarray:
    """λ from LEAST_EDGE_SHARE of the edge of the noise's spectrum (or LEAST_OF_ROWS n)
    up to n, where W is the class-sum head.
    """
    edge = spectral_edge(LEAST_EDGE_SHARE * gram_sd, n_features)
    low = max(LEAST_OF_ROWS * n_rows, edge)
    high = max(float(n_rows), LEAST_RANGE * low)
    return np.geomspace(low, high, N_CANDIDATES)
