"""Ridge regression of one bounded number: the target is a column of a noisy Gram
matrix, which then holds X'X and X'y.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dphead.privacy.transform import RowTransform
from dphead.solvers.base import Answer, Ask, PlannedRelease, PublicFacts
from dphead.solvers.components import MEAN_SHARE, ROW_NORM, CenteredGram
from dphead.solvers.head import LinearHead
from dphead.solvers.ridge import RidgeSolver, ridge_for
from dphead.solvers.settings import POSITIVE, RIDGE, Setting, check_settings

TARGET_WEIGHT = Setting(
    "Size of the target's column at an end of its range, beside row_norm.", POSITIVE
)


@dataclass(frozen=True)
class RidgeRegression:
    """w = (A + λI)⁻¹ c, where G = [[A, c], [cᵀ, v]] is the noisy Gram matrix of centred
    rows (x, weight · t), and t in [-1, 1] is the target (FC23 Algorithm 3 for a real
    target; one release in place of two).

    A row and its target are clipped together, to the norm that a row of `row_norm` with
    a target at an end of its range has: a longer one counts less, and is not bent.
    ridge: in units of the mean Gram matrix.
    """

    row_norm: Annotated[float, ROW_NORM] = 1.0
    target_weight: Annotated[float, TARGET_WEIGHT] = 1.0
    mean_share: Annotated[float, MEAN_SHARE] = 0.1
    ridge: Annotated[float | None, RIDGE] = None
    name: str = "dp-ridge"

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def column_size(self) -> float:
        """What the target's column holds where the target is at the upper end."""
        return self.target_weight * self.row_norm

    @property
    def _sums(self) -> CenteredGram:
        whole = float(np.hypot(self.row_norm, self.column_size))
        return CenteredGram(whole, self.mean_share)

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The mean, if any, and G. facts: n_features counts the target's column."""
        return self._sums.plan()

    def solve(self, facts: PublicFacts) -> Generator[Ask, Answer, LinearHead]:
        """Release both, solve, and put the mean into the intercept: weights
        (n_features - 1, 1) and intercept (1,) of t.
        """
        mean, gram, _ = yield from self._sums.solve(facts)
        width = facts.n_features - 1
        least = None if self.ridge is None else self.ridge * self.row_norm**2
        ridge = ridge_for(facts, gram.noise_sd, least)
        solver = RidgeSolver(gram.value[:width, :width], ridge)
        weights = solver(gram.value[:width, width]) / self.column_size
        intercept = mean[width] / self.column_size - mean[:width] @ weights
        return LinearHead(
            weights[:, None], np.array([intercept]), RowTransform(), "squared"
        )
