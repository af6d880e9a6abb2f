"""Compute principal components from a noisy mean, a noisy count and a Gram matrix."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import Gram
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.centering import noisy_mean, planned_mean, typical_length
from dphead.solvers.head import LinearHead
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    BELOW_ONE,
    POSITIVE,
    Setting,
    check_settings,
)

_N_COMPONENTS = Setting("Number of components, at most n_features.", AT_LEAST_ONE)
ROW_NORM = Setting("Clip norm of rows; None: unit rows.", POSITIVE)
CENTERED_CLIP = Setting(
    "Clip norm of centered unit rows, as a multiple of their typical length.",
    POSITIVE,
    "benchmarks/results/centered",
)
MEAN_SHARE = Setting(
    "Fraction of mu² spent to release the mean used for centering and the number of "
    "rows in it. 0: no centering.",
    BELOW_ONE,
)


@dataclass(frozen=True)
class CenteredGram:
    """Release a count of the rows, a mean, and the Gram matrix of the centered rows.

    Rows are clipped to `clip_norm`, and centered rows are clipped again. All other
    results are post-processing of these releases. `mean_share` is the fraction of the
    budget (μ²) spent to release the mean and the count. 0 means no centering, so
    neither is released.

    If `centered_clip` is given, the rows must be unit rows. If the fit has noise and
    centers rows, it divides them by `centered_clip` times their typical length before
    they are clipped. The last `n_targets` columns are not features and are not divided.
    """

    clip_norm: float
    mean_share: float
    centered_clip: float | None
    n_targets: int = 0

    def plan(self) -> list[PlannedRelease]:
        """Return the releases: the count and the mean, if any, and the Gram matrix."""
        share = self.mean_share
        # one class: the labels of these rows are not used
        gram = PlannedRelease("gram", Gram(1), self.clip_norm, 1 - share)
        if not share:
            return [gram]
        return [*planned_mean("mean", 1, self.clip_norm, share), gram]

    def solve(
        self, facts: ProblemInfo
    ) -> Generator[Request, Released, tuple[np.ndarray, Released, float]]:
        """Request the releases, and return the mean (n_features,), G, and row count.

        G is the Gram matrix of centered rows before the division. Its `noise_sd` is the
        standard deviation for the features' entries.
        """
        width = facts.n_features - self.n_targets
        mean, n_rows = np.zeros(facts.n_features), float(facts.n_rows)
        unit = np.ones(facts.n_features)
        transform = RowTransform()
        if self.mean_share:
            mean, n_rows = yield from noisy_mean("mean", 1, facts.n_rows, transform)
            # without noise, rows are not clipped, and neither is their mean
            if np.isfinite(facts.mu):
                # a mean of rows of norm at most `clip_norm` has at most this norm
                length = float(np.linalg.norm(mean))
                mean /= max(1.0, length / self.clip_norm)
                if self.centered_clip is not None:
                    unit[:width] = self.centered_clip * typical_length(mean[:width])
            transform = RowTransform(center=mean, scale=1 / unit)
        gram = yield Request("gram", Gram(1), Params(transform))
        # undo the division by `unit`: products of columns i, j get unit_i unit_j back
        value = gram.value * np.outer(unit, unit)
        return mean, Released(value, gram.noise_sd * unit[0] ** 2), n_rows


@dataclass(frozen=True, eq=False)
class Components(LinearHead):
    """Hold principal components as a head: scores are the coordinates of a row.

    The weights (n_features, k) are the components, in order of decreasing variance.

    Parameters
    ----------
    variances : ndarray of shape (n_features,)
        All eigenvalues of the noisy Gram matrix divided by n, in decreasing order.
        Eigenvalues below zero are noise.
    noise_sd : float
        Standard deviation of the Gram matrix's own noise on a diagonal entry. It
        excludes the noise of the mean, the clip length and the count.
    """

    variances: np.ndarray = field(default_factory=lambda: np.zeros(0))
    noise_sd: float = 0.0


@dataclass(frozen=True)
class PrincipalComponents:
    """Return the leading eigenvectors of a noisy Gram matrix of centered rows.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1, which has no centering.
    """

    n_components: Annotated[int, _N_COMPONENTS]
    row_norm: Annotated[float | None, ROW_NORM] = None
    mean_share: Annotated[float, MEAN_SHARE] = 0.1
    centered_clip: Annotated[float, CENTERED_CLIP] = 1.0
    name: str = "dp-pca"

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def _sums(self) -> CenteredGram:
        if self.row_norm is None:
            return CenteredGram(1.0, self.mean_share, self.centered_clip)
        return CenteredGram(self.row_norm, self.mean_share, None)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the releases: the count and the mean, if any, and the Gram matrix.

        Raises ValueError if there are more components than features.
        """
        if self.n_components > facts.n_features:
            raise ValueError(
                f"`n_components` must be at most {facts.n_features}, the number of "
                f"features, got {self.n_components}. Use fewer components."
            )
        return self._sums.plan()

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, Components]:
        """Request the releases, and return the leading eigenvectors."""
        mean, gram, n_rows = yield from self._sums.solve(facts)
        values, vectors = np.linalg.eigh(gram.value)
        # eigh sorts in increasing order
        values, vectors = values[::-1], vectors[:, ::-1]
        kept = vectors[:, : self.n_components]
        largest = np.abs(kept).argmax(axis=0)
        signs = np.sign(kept[largest, np.arange(self.n_components)])
        return Components(
            kept * signs,  # fix signs, so that a matrix has unique components
            np.zeros(self.n_components),
            RowTransform(center=mean),
            "squared",
            variances=values / n_rows,
            # noise of the diagonal; eigenvalues of noise alone reach sqrt(2 d) times it
            noise_sd=gram.noise_sd / n_rows,
        )
