"""Implement the regression of one bounded target.

The target is one column of a noisy Gram matrix, which thus holds X'X and X'y. If there
is much noise (`_takes_steps`), gradient steps on clipped residuals replace this
solution. A noisy Gram matrix of the features preconditions them.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import Gradient, Gram
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.centering import noisy_mean, planned_mean, typical_length
from dphead.solvers.components import (
    CENTERED_CLIP,
    MEAN_SHARE,
    ROW_NORM,
    CenteredGram,
)
from dphead.solvers.head import LinearHead
from dphead.solvers.ridge import WIDEST_SPECTRUM, RidgeSolver, ridge_for
from dphead.solvers.settings import POSITIVE, RIDGE, Setting, check_settings
from dphead.solvers.shrinkage import shrunk_gram

# Default ridge, as a share of the noise's spectral edge. The classifiers' share of 0.6
# shrinks predictions, which changes R² but no argmax. Chosen by first trials on
# held-out training rows (not stored). results/centered has the R² with this share.
_EDGE_SHARE = 0.4
# Steps on residuals are taken below this n·mu per feature. Above, the noise of a Gram
# matrix is small, and clipping biases the weights; results/tables, "Regression".
_NOISY = 50
# With fewer features, both ways have little noise, and clipping loses more. In the same
# section, steps lost R² in four of five cells with 3 to 13 features, and gained at 64.
_FEWEST_FEATURES = 64
# Largest residual of a row of norm sqrt(1 + _CONSTANT²), at each step, in units of half
# of the target's range. Later residuals are smaller, and so is their noise. These
# bounds, _GRAM_SHARE and _STEPS_CLIP come from first trials on the digits of MNIST (not
# stored). results/tables has the R² with them.
_RESIDUALS = (0.5, 0.5, 0.3, 0.3, 0.2, 0.2)
_GRAM_SHARE = 0.4  # share of mu² of the features' Gram matrix
# Centered rows are divided by this multiple of their typical length. A smaller multiple
# would clip more rows in the Gram matrix but not in the residuals. Steps would then be
# too long.
_STEPS_CLIP = 0.8
_CONSTANT = 0.5  # appended to rows, for the intercept; chosen
# Size of the target's column in rows for residuals. It is small, so that it hardly
# lengthens a row, but is still many steps of the integer grid; chosen.
_TARGET_COLUMN = 0.125
_TARGET_WEIGHT = Setting(
    "Size of the target's column, for a target at an end of the range, as a multiple "
    "of row_norm.",
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
        Size of the target's column, for a target at an end of the range, as a multiple
        of `row_norm`.
    mean_share : float, default 0.1
        Fraction of the budget (μ²) spent to release the mean used for centering and the
        number of rows in it. 0 means no centering.
    ridge : float, optional
        λ, as a multiple of n_rows · `row_norm`². None sets λ from the noise.
    centered_clip : float, default 0.6
        Clip norm of centered unit rows, as a multiple of their typical length.

    Notes
    -----
    The weights come from the steps w ← w + (A + λ)⁻¹ Σ r x if rows are centered unit
    rows of at least 64 features, noise is large (`_NOISY`), and no ridge is given. A is
    the noisy Gram matrix of the centered features, and r x is a row's residual t - w·x
    times the row, clipped.

    Otherwise, G = [[A, c], [cᵀ, v]] is the noisy Gram matrix of centered rows (x,
    target_weight · row_norm · t), with the target t in [-1, 1]. A row and its target
    are clipped as one vector. The clip norm is the norm of this vector for a row with
    norm `row_norm` and a target at an end of the range. Longer vectors are scaled down
    to the clip norm.

    References
    ----------
    FC23, Algorithm 3, for a real target, with A and c in one release.
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
        """Return the releases: count and mean, the Gram matrix, and residuals, if any.

        `facts.n_features` includes the target's column.
        """
        if not self._takes_steps(facts):
            return self._sums.plan()
        rest = 1 - self.mean_share
        gram = PlannedRelease("gram", Gram(1), 1.0, rest * _GRAM_SHARE)
        # a row of norm 1 with the constant, times the largest residual
        norms = [one * float(np.hypot(1, _CONSTANT)) for one in _RESIDUALS]
        share = rest * (1 - _GRAM_SHARE) / len(norms)
        residuals = [
            PlannedRelease("residuals", Gradient(1, "squared"), norm, share)
            for norm in norms
        ]
        mean = planned_mean("mean", 1, self._sums.clip_norm, self.mean_share)
        return [*mean, gram, *residuals]

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, LinearHead]:
        """Request the releases, solve, and return the head that predicts t.

        The head has weights (n_features - 1, 1) and intercept (1,), which contains the
        mean.
        """
        if self._takes_steps(facts):
            return (yield from self._by_steps(facts))
        mean, gram, _ = yield from self._sums.solve(facts)
        width = facts.n_features - 1
        least = None if self.ridge is None else self.ridge * self._norm**2
        share = _EDGE_SHARE if width <= WIDEST_SPECTRUM else None
        ridge = ridge_for(facts, gram.noise_sd, least, share)
        # G holds A and c; its corner v, the sum of squared targets, is not used
        solver = RidgeSolver(gram.value[:width, :width], ridge)
        weights = solver(gram.value[:width, width]) / self.column_size
        # t = w·(x - mean) + mean of t, in units of t
        intercept = mean[width] / self.column_size - mean[:width] @ weights
        return LinearHead(
            weights[:, None], np.array([intercept]), RowTransform(), "squared"
        )

    def _takes_steps(self, facts: ProblemInfo) -> bool:
        """Return whether weights come from steps on clipped residuals."""
        unit = self.row_norm is None and self.ridge is None and self.mean_share > 0
        width = facts.n_features - 1
        noisy = facts.mu * facts.n_rows < _NOISY * width
        return unit and noisy and width >= _FEWEST_FEATURES

    def _by_steps(self, facts: ProblemInfo) -> Generator[Request, Released, LinearHead]:
        """Request the releases, take the steps, and return the head that predicts t."""
        width = facts.n_features - 1
        whole = self._sums.clip_norm
        mean, n_rows = yield from noisy_mean("mean", 1, facts.n_rows, RowTransform())
        mean /= max(1.0, float(np.linalg.norm(mean)) / whole)
        unit = _STEPS_CLIP * typical_length(mean[:width])
        scale = np.append(np.full(width, 1 / unit), 0.0)
        rows = RowTransform(center=mean, scale=scale)
        answer = yield Request("gram", Gram(1), Params(rows))
        gram = Released(answer.value[:width, :width], answer.noise_sd)
        ridge = ridge_for(facts, gram.noise_sd, None, _EDGE_SHARE)
        narrow = width <= WIDEST_SPECTRUM
        solver = RidgeSolver(shrunk_gram(gram) if narrow else gram.value, ridge)
        scale = np.append(scale[:width], _TARGET_COLUMN / self.column_size)
        rows = RowTransform(center=mean, scale=scale, append=_CONSTANT)
        statistic = Gradient(1, "squared")
        # with this weight of the target's column, each score is minus the residual
        weights, own = np.zeros(width), -1 / _TARGET_COLUMN
        constant = 0.0
        for _ in _RESIDUALS:
            # Each row counts as a row of the only class, so the gradient subtracts 1
            # from its score. This term adds the 1 back.
            last = constant + 1 / _CONSTANT
            joined = np.append(weights, [own, last])[:, None].astype(np.float32)
            answer = yield Request("residuals", statistic, Params(rows, joined))
            gradient = answer.value[:, 0]
            weights = weights - solver(gradient[:width])
            constant -= gradient[-1] / (n_rows * _CONSTANT**2)
        weights = weights / unit
        middle = mean[width] / self.column_size + constant * _CONSTANT
        return LinearHead(
            weights[:, None],
            np.array([middle - mean[:width] @ weights]),
            RowTransform(),
            "squared",
        )
