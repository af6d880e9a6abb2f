"""Choose λ of noisy least squares by Stein's unbiased risk estimate.

The training loss of the released G̃ and S̃ rewards fitting their noise. Stein's lemma
removes this bias. Let W = h(G̃) S̃ H, with H = I - 11ᵀ/m and any bounded Lipschitz h.
Then `risk` is unbiased for the training loss tr(WᵀGW) - 2 tr(WᵀSH) of the exact sums
[privacy/proofs/choices.md, claim S; Stein 1981]. Everything here is post-processing.
"""

import numpy as np

from dphead.privacy.contract import Released
from dphead.solvers.head import center_classes
from dphead.solvers.ridge import FLOOR_OVER_RIDGE, spectral_edge

_N_CANDIDATES = 25  # number of λ to try; chosen
# smallest λ, as a share of the edge of the noise's spectrum, and of n; chosen
_LEAST_EDGE_SHARE, _LEAST_OF_ROWS = 0.3, 1e-4
_LEAST_RANGE = 10  # the largest λ is at least this many times the smallest one; chosen


class SpectralRidge:
    """Hold the released sums in the eigenbasis of G̃, for fast trials of λ.

    Parameters
    ----------
    gram : Released
        Released Gram matrix G̃ (d, d): symmetric, with symmetric noise.
    sums : Released
        Released class sums S̃ (d, m).

    Notes
    -----
    h(e) = 1 / (max(e, -λ/2) + λ). This is the inverse of G̃ + λ, but bounded by 2/λ if
    noise made G̃ indefinite.
    """

    def __init__(self, gram: Released, sums: Released) -> None:
        self._values, self._vectors = np.linalg.eigh(gram.value)
        self._sums = self._vectors.T @ center_classes(sums.value)
        self._energy = (self._sums**2).sum(axis=1)
        self._gram_sd, self._sums_sd = gram.noise_sd, sums.noise_sd

    def weights(self, ridge: float) -> np.ndarray:
        """Return W = h(G̃) S̃ H, (d, m)."""
        return self._vectors @ (self._inverse(ridge)[:, None] * self._sums)

    def risk(self, ridge: float) -> float:
        """Return an unbiased estimate of the loss at one λ, up to a constant."""
        h = self._inverse(ridge)
        # equation (1) of claim S: the plug-in loss, corrected for the noise of S̃ and
        # G̃
        spent = 2 * self._sums_sd**2 * (self._sums.shape[1] - 1) * h.sum()
        return (
            self.plug_in(ridge) - self._gram_sd**2 * self._divergence(h, ridge) + spent
        )

    def plug_in(self, ridge: float) -> float:
        """Return the loss of the released sums, without a correction for noise."""
        h = self._inverse(ridge)
        quadratic = (self._values * h**2 * self._energy).sum()
        return float(quadratic - 2 * (h * self._energy).sum())

    def best(self, ridges: np.ndarray) -> float:
        """Return the λ with the lowest risk."""
        return float(ridges[int(np.argmin([self.risk(float(r)) for r in ridges]))])

    @staticmethod
    def floor(ridge: float) -> float:
        """Return the lower bound on eigenvalues for this λ."""
        return FLOOR_OVER_RIDGE * ridge

    def _inverse(self, ridge: float) -> np.ndarray:
        return 1 / (np.maximum(self._values, self.floor(ridge)) + ridge)

    def _divergence(self, h: np.ndarray, ridge: float) -> float:
        """Return Σ_ij ∂M_ij/∂G̃_ij over symmetric directions, with M = WWᵀ.

        This is equation 2 of claim S (proofs/choices.md). The quotients
        (h_i - h_j)/(e_i - e_j) are -q_ij h_i h_j. q is 1 between two eigenvalues above
        the floor, 0 between two below it, and in [0, 1] otherwise.
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
    """Return the λ to try, from the smallest to the largest.

    The smallest λ is _LEAST_EDGE_SHARE of the edge of the noise's spectrum, and at
    least _LEAST_OF_ROWS n. The largest λ is n, where W is nearly the class-sum head, or
    _LEAST_RANGE times the smallest λ if this is larger.
    """
    # far below the edge, the estimate is too noisy to compare values of λ (claim S)
    edge = spectral_edge(_LEAST_EDGE_SHARE * gram_sd, n_features)
    low = max(_LEAST_OF_ROWS * n_rows, edge)
    high = max(float(n_rows), _LEAST_RANGE * low)
    return np.geomspace(low, high, _N_CANDIDATES)
