"""Private data normalisation: channel means and variances as ordinary releases [TB21
Algorithm 2].
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dphead.privacy.query import Params
from dphead.privacy.statistics import ChannelMoment
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import Answer, Ask, PlannedRelease, PublicFacts
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    CHOSEN,
    POSITIVE,
    Setting,
    check_settings,
)

N_CHANNELS = Setting("Channels of the feature map, channel-major.", AT_LEAST_ONE)
MEAN_CLIP = Setting("Clip norm of a row's channel means, public.", POSITIVE)
SQUARE_CLIP = Setting("Clip norm of its channel mean squares, public.", POSITIVE)
NOISE_MULTIPLIER = Setting("Of each of the two releases.", POSITIVE, "TB21 Table 13")
THRESHOLD = Setting("Variances count as at least so much.", POSITIVE, CHOSEN)


@dataclass(frozen=True)
class ChannelNormalization:
    """Rows become (x - mean_c) / sqrt(max(var_c, threshold)), channel by channel.

    mean_clip, square_clip: C₁ and C₂. noise_multiplier: σ_norm, fixed and charged.
    """

    n_channels: Annotated[int, N_CHANNELS]
    mean_clip: Annotated[float, MEAN_CLIP]
    square_clip: Annotated[float, SQUARE_CLIP]
    noise_multiplier: Annotated[float, NOISE_MULTIPLIER] = 8.0
    threshold: Annotated[float, THRESHOLD] = 1e-5
    norm: ClassVar[None] = None  # the length of a row afterwards is not known

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: PublicFacts, rest: float) -> list[PlannedRelease]:
        """Two releases with fixed noise."""
        means, squares = self._queries(facts)
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
        self, facts: PublicFacts, append: float
    ) -> Generator[Ask, Answer, RowTransform]:
        """The transform of every later release."""
        means, squares = self._queries(facts)
        first = yield Ask("channel means", means, Params())
        second = yield Ask("channel mean squares", squares, Params())
        mean = first.value[:, 0] / facts.n_rows
        variance = np.maximum(
            second.value[:, 0] / facts.n_rows - mean**2, self.threshold
        )
        repeat = facts.n_features // self.n_channels
        center, scale = (
            np.repeat(mean, repeat),
            np.repeat(1 / np.sqrt(variance), repeat),
        )
        return RowTransform(
            False, center.astype(np.float32), scale.astype(np.float32), append
        )

    def _queries(self, facts: PublicFacts) -> tuple[ChannelMoment, ChannelMoment]:
        if facts.n_features % self.n_channels:
            raise ValueError(
                f"n_channels must divide n_features, got n_channels={self.n_channels}, "
                f"n_features={facts.n_features}. Give the feature map's number of "
                "channels."
            )
        return ChannelMoment(facts.n_classes, 1, self.n_channels), ChannelMoment(
            facts.n_classes, 2, self.n_channels
        )
