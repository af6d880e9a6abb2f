"""Normalize rows by released channel means and variances.

The method is the private data normalization of TB21, Algorithm 2.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ChannelMoment
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    CHOSEN,
    POSITIVE,
    Setting,
    check_settings,
)

_N_CHANNELS = Setting(
    "Number of channels of the feature map, in channel-major order.", AT_LEAST_ONE
)
_MEAN_CLIP = Setting("Public clip norm of a row's channel means.", POSITIVE)
_SQUARE_CLIP = Setting("Public clip norm of a row's channel mean squares.", POSITIVE)
_NOISE_MULTIPLIER = Setting(
    "Noise multiplier of the means, and of the mean squares.", POSITIVE, "TB21 Table 13"
)
_THRESHOLD = Setting("Lower bound on variances.", POSITIVE, CHOSEN)


@dataclass(frozen=True)
class ChannelNormalization:
    """Map rows to (x - mean_c) / sqrt(max(var_c, threshold)) for each channel c.

    Parameters
    ----------
    n_channels : int
        Number of channels of the feature map. It must divide the number of features,
        which are in channel-major order.
    mean_clip, square_clip : float
        Clip norms C₁ and C₂ of a row's channel means and channel mean squares. They
        must be public.
    noise_multiplier : float, default 8.0
        Noise multiplier σ_norm of each release: fixed, and charged to the budget.
    threshold : float, default 1e-5
        Lower bound on the variances.

    References
    ----------
    TB21, Algorithm 2.
    """

    n_channels: Annotated[int, _N_CHANNELS]
    mean_clip: Annotated[float, _MEAN_CLIP]
    square_clip: Annotated[float, _SQUARE_CLIP]
    noise_multiplier: Annotated[float, _NOISE_MULTIPLIER] = 8.0
    threshold: Annotated[float, _THRESHOLD] = 1e-5
    # the norms of transformed rows are private, so there is no public norm
    norm: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: ProblemInfo, rest: float) -> list[PlannedRelease]:
        """Return two releases with fixed noise: channel means and mean squares."""
        means, squares = self._statistics(facts)
        sigma = self.noise_multiplier
        return [
            PlannedRelease(
                "channel means", means, self.mean_clip, noise_multiplier=sigma
            ),
            PlannedRelease(
                "channel mean squares",
                squares,
                self.square_clip,
                noise_multiplier=sigma,
            ),
        ]

    def solve(
        self, facts: ProblemInfo, append: float
    ) -> Generator[Request, Released, RowTransform]:
        """Request the two channel moments, and return the transform of later sums."""
        means, squares = self._statistics(facts)
        first = yield Request("channel means", means, Params())
        second = yield Request("channel mean squares", squares, Params())
        # E x² - (E x)²: noise can make it negative, hence the threshold
        mean = first.value[:, 0] / facts.n_rows
        variance = np.maximum(
            second.value[:, 0] / facts.n_rows - mean**2, self.threshold
        )
        # channel-major: the features of a channel are consecutive
        repeat = facts.n_features // self.n_channels
        center = np.repeat(mean, repeat).astype(np.float32)
        scale = np.repeat(1 / np.sqrt(variance), repeat).astype(np.float32)
        return RowTransform(False, center, scale, append)

    def _statistics(self, facts: ProblemInfo) -> tuple[ChannelMoment, ChannelMoment]:
        if facts.n_features % self.n_channels:
            raise ValueError(
                f"`n_channels` must divide the {facts.n_features} features, got "
                f"{self.n_channels}. Use the feature map's number of channels."
            )
        m, channels = facts.n_classes, self.n_channels
        return ChannelMoment(m, 1, channels), ChannelMoment(m, 2, channels)
