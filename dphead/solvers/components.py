"""Compute principal components from a noisy mean and one noisy Gram matrix."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from dphead.privacy.query import Params
from dphead.privacy.statistics import Gram
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Response
from dphead.solvers.centering import noisy_mean, planned_mean
from dphead.solvers.head import LinearHead
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    BELOW_ONE,
    POSITIVE,
    Setting,
    check_settings,
)

_N_COMPONENTS = Setting("Number of components, at most n_features.", AT_LEAST_ONE)
ROW_NORM = Setting("Clip norm of rows.", POSITIVE)
MEAN_SHARE = Setting(
    "Fraction of mu² spent on the mean used for centering; 0: no centering.",
    BELOW_ONE,
)


@dataclass(frozen=True)
class CenteredGram:
    """Release a mean, and the Gram matrix of the rows around it.

    The mean comes with the number of rows that count. Rows are clipped to `row_norm` in
    both. Everything else is post-processing of these releases. `mean_share` is the
    fraction of the budget (μ²) spent on the mean; 0 means no centering.
    """

    row_norm: float
    mean_share: float

    def plan(self) -> list[PlannedRelease]:
        """Return the releases of the mean, if any, and of G."""
        share = self.mean_share
        gram = PlannedRelease("gram", Gram(1), self.row_norm, 1 - share)
        if not share:
            return [gram]
        return [*planned_mean("mean", 1, self.row_norm, share), gram]

    def solve(
        self, facts: ProblemInfo
    ) -> Generator[Request, Response, tuple[np.ndarray, Response, float]]:
        """Ask for the releases, and return the mean (n_features,), G, and row count."""
        mean, n_rows = np.zeros(facts.n_features), float(facts.n_rows)
        if self.mean_share:
            mean, n_rows = yield from noisy_mean(
                "mean", 1, facts.n_rows, RowTransform()
            )
            length = float(np.linalg.norm(mean))
            if np.isfinite(facts.mu):  # the mean of clipped rows is no longer than they
                mean /= max(1.0, length / self.row_norm)
        params = Params(RowTransform(center=mean if self.mean_share else None))
        gram = yield Request("gram", Gram(1), params)
        return mean, gram, n_rows


@dataclass(frozen=True, eq=False)
class Components(LinearHead):
    """Hold principal components as a head: scores are the coordinates of a row.

    The weights (n_features, k) are the components, from the largest variance on.

    Parameters
    ----------
    variances : ndarray of shape (n_features,)
        All eigenvalues of the noisy Gram matrix over n, from the largest on.
        Eigenvalues below zero are noise.
    noise_sd : float
        Standard deviation of the noise on a diagonal entry of the Gram matrix, over n.
    """

    variances: np.ndarray = field(default_factory=lambda: np.zeros(0))
    noise_sd: float = 0.0


@dataclass(frozen=True)
class PrincipalComponents:
    """Return the leading eigenvectors of a noisy Gram matrix of centered rows.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1; the mean is added here.
    """

    n_components: Annotated[int, _N_COMPONENTS]
    row_norm: Annotated[float, ROW_NORM] = 1.0
    mean_share: Annotated[float, MEAN_SHARE] = 0.1
    name: str = "dp-pca"

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the releases of the mean, if any, and of G.

        Raises ValueError if there are more components than features.
        """
        if self.n_components > facts.n_features:
            raise ValueError(
                "n_components must be at most the number of features, got "
                f"n_components={self.n_components}, "
                f"n_features={facts.n_features}. Correct it."
            )
        return CenteredGram(self.row_norm, self.mean_share).plan()

    def solve(self, facts: ProblemInfo) -> Generator[Request, Response, Components]:
        """Ask for the releases, and return the leading eigenvectors."""
        sums = CenteredGram(self.row_norm, self.mean_share)
        mean, gram, n_rows = yield from sums.solve(facts)
        values, vectors = np.linalg.eigh(gram.value)
        values, vectors = values[::-1], vectors[:, ::-1]
        kept = vectors[:, : self.n_components]
        largest = np.abs(kept).argmax(axis=0)
        signs = np.sign(kept[largest, np.arange(self.n_components)])
        return Components(
            kept * signs,  # fixed signs: the same matrix gives the same components
            np.zeros(self.n_components),
            RowTransform(center=mean),
            "squared",
            variances=values / n_rows,
            noise_sd=gram.noise_sd / n_rows,
        )
