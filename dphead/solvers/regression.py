"""Implement ridge regression of one bounded target.

The target is one column of a noisy Gram matrix. The matrix thus holds X'X and X'y.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.components import (
    CENTERED_CLIP,
    MEAN_SHARE,
    ROW_NORM,
    CenteredGram,
)
from dphead.solvers.head import LinearHead
from dphead.solvers.ridge import WIDEST_SPECTRUM, RidgeSolver, ridge_for
from dphead.solvers.settings import POSITIVE, RIDGE, Setting, check_settings

# Share of the noise's spectral edge. The classifiers' share of 0.6 shrinks predictions:
# an argmax does not see that, R² does. Chosen by first trials on held-out training
# rows, not stored; results/centered has what it is worth.
_EDGE_SHARE = 0.4
_TARGET_WEIGHT = Setting(
    "Size of the target's column at an end of its range, as a multiple of row_norm.",
    POSITIVE,
)


@dataclass(frozen=True)
class RidgeRegression:
    """Solve w = (A + λI)⁻¹ c from one noisy Gram matrix of rows and targets.

    Parameters
    ----------
    row_norm : float, optional
        Clip norm of rows and of centered rows. None means unit rows: centered rows are
        then divided by `centered_clip` times their typical length, and clipped to 1.
    target_weight : float, default 1.0
        Size of the target's column at an end of its range, as a multiple of `row_norm`.
    mean_share : float, default 0.1
        Fraction of the budget (μ²) spent on the mean used for centering; 0 means no
        centering.
    ridge : float, optional
        λ, as a multiple of n_rows · `row_norm`². None sets λ from the noise.
    centered_clip : float, default 0.6
        Clip norm of centered unit rows, as a multiple of their typical length.

    Notes
    -----
    G = [[A, c], [cᵀ, v]] is the noisy Gram matrix of centered rows (x, target_weight ·
    row_norm · t), with the target t in [-1, 1]. A row and its target are clipped as one
    vector. The clip norm is the norm of this vector for a row with norm `row_norm` and
    a target at an end of its range. Longer vectors are scaled down to the clip norm.

    References
    ----------
    FC23, Algorithm 3, for a real target and with one release instead of two.
    """

    row_norm: Annotated[float | None, ROW_NORM] = None
    target_weight: Annotated[float, _TARGET_WEIGHT] = 1.0
    mean_share: Annotated[float, MEAN_SHARE] = 0.1
    ridge: Annotated[float | None, RIDGE] = None
    centered_clip: Annotated[float, CENTERED_CLIP] = 0.6
    name: str = "dp-ridge"

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def column_size(self) -> float:
        """Return the value of the target's column at the upper end of its range."""
        return self.target_weight * self._norm

    @property
    def _norm(self) -> float:
        return 1.0 if self.row_norm is None else self.row_norm

    @property
    def _sums(self) -> CenteredGram:
        # a row and its target are clipped together: one sensitivity for both
        whole = float(np.hypot(self._norm, self.column_size))
        centered_clip = self.centered_clip if self.row_norm is None else None
        return CenteredGram(whole, self.mean_share, centered_clip, n_targets=1)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the releases of the mean, if any, and of G.

        `facts.n_features` includes the target's column.
        """
        return self._sums.plan()

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, LinearHead]:
        """Ask for the releases, solve, and return the head that predicts t.

        The head has weights (n_features - 1, 1) and intercept (1,), which contains the
        mean.
        """
        mean, gram, _ = yield from self._sums.solve(facts)
        width = facts.n_features - 1
        least = None if self.ridge is None else self.ridge * self._norm**2
        share = _EDGE_SHARE if width <= WIDEST_SPECTRUM else None
        ridge = ridge_for(facts, gram.noise_sd, least, share)
        # G holds A and c: the corner v of the squared target is not used
        solver = RidgeSolver(gram.value[:width, :width], ridge)
        weights = solver(gram.value[:width, width]) / self.column_size
        # t = w·(x - mean) + mean of t, in units of t
        intercept = mean[width] / self.column_size - mean[:width] @ weights
        return LinearHead(
            weights[:, None], np.array([intercept]), RowTransform(), "squared"
        )
