"""Rows brought to the unit sphere around a noisy mean."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from dphead.privacy.query import Params
from dphead.privacy.statistics import ChannelMoment, RowCounts
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import Answer, Ask, PlannedRelease, PublicFacts
from dphead.solvers.settings import BELOW_ONE, OFF, Setting, check_settings

# mean of squares over square of the mean, of the features' mean squares, from which
# they are scaled: 1 if all have one size, 70 for ScatterNet's as they are; chosen
SCALE_FROM_RATIO = 2.0
# of the mean squares: half of a standardisation, which has -1/2; chosen
SCALE_POWER = -0.25
# added to the mean squares over their mean, so that no scale is far above the others';
# chosen
SMALLEST_SQUARE = 0.01
COUNT = "rows that count"  # its release
NEARLY_ZERO = 1e-300  # instead of the squared length of a mean of zeros
# of the mean's share, for the number of rows that count; chosen: its noise is 2 % of
# the rows where n·mu is 1,200
COUNT_PART = 0.1
# deviations of its noise by which that number must differ from n_rows to count as
# another; chosen
COUNT_DEVIATIONS = 2.0


CENTER_SHARE = Setting(
    "Share of mu² for the noisy mean that rows are centred by, and the number of rows "
    "that it is of; 0 for no centre.",
    BELOW_ONE,
    option=True,
)
UNIT_NORM = Setting("Bring rows to the unit sphere first.", option=True)
SCALE_SHARE = Setting("Share of mu² for the features' sizes.", BELOW_ONE, OFF)


@dataclass(frozen=True)
class Centering:
    """How rows are brought to the unit sphere: unit norm, and a noisy mean of unit rows
    subtracted.

    unit_norm: False leaves rows as they are (a clip norm must then fit the features'
    scale). scale_share: of the noisy mean squares of centred rows, each of which is
    divided by the mean squares' power 1/4 and brought to the sphere again, unless they
    turn out to be nearly even (SCALE_FROM_RATIO). clip_width: the number of features
    by which their squares are clipped; None takes that of the rows.
    """

    share: Annotated[float, CENTER_SHARE] = 0.02
    unit_norm: Annotated[bool, UNIT_NORM] = True
    scale_share: Annotated[float, SCALE_SHARE] = 0.0
    clip_width: int | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def norm(self) -> float | None:
        """The length of a row afterwards, None if it is the row's own."""
        return 1.0 if self.unit_norm else None

    def plan(self, facts: PublicFacts, rest: float) -> list[PlannedRelease]:
        """The releases of the count and the mean, if any; `rest` is the total weight of
        the others.
        """
        if not self.unit_norm or self.share <= 0:
            return []
        whole = rest / (1 - self.share - self.scale_share)
        plan = planned_mean("feature mean", facts.n_classes, 1.0, whole * self.share)
        if self.scale_share > 0:
            squares = ChannelMoment(facts.n_classes, 2)
            clip = square_clip(self.clip_width or facts.n_features)
            plan.append(
                PlannedRelease(
                    "feature squares", squares, clip, weight=whole * self.scale_share
                )
            )
        return plan

    def solve(
        self, facts: PublicFacts, append: float
    ) -> Generator[Ask, Answer, RowTransform]:
        """The transform of every later release."""
        if not self.unit_norm or self.share <= 0:
            return RowTransform(self.unit_norm, append=append)
        unit = RowTransform(unit_norm=True)
        center, n_rows = yield from noisy_mean(
            "feature mean", facts.n_classes, facts.n_rows, unit
        )
        # a mean of unit rows lies in the unit ball
        center /= max(1.0, float(np.linalg.norm(center)))
        centered = RowTransform(True, center.astype(np.float32), None, append)
        if self.scale_share <= 0:
            return centered
        answer = yield Ask(
            "feature squares",
            ChannelMoment(facts.n_classes, 2),
            Params(replace(centered, append=0.0)),
        )
        # mean squares over their own mean, which is 1 / n_features for unit rows
        over_mean = facts.n_features / n_rows
        relative = over_mean * answer.value[:, 0]
        noise = over_mean * answer.noise_sd
        mean_square = float(np.mean(relative**2)) - noise**2
        if mean_square < SCALE_FROM_RATIO * float(np.mean(relative)) ** 2:
            return centered
        relative = np.maximum(relative, 0.0) + max(SMALLEST_SQUARE, noise)
        return replace(centered, scale=(relative**SCALE_POWER).astype(np.float32))


def planned_mean(
    label: str, n_classes: int, clip_norm: float, weight: float
) -> list[PlannedRelease]:
    """What `noisy_mean` asks for: how many rows count, and their sum."""
    count, mean = RowCounts(n_classes), ChannelMoment(n_classes)
    part = weight * COUNT_PART
    return [
        PlannedRelease(COUNT, count, 1.0, weight=part),
        PlannedRelease(label, mean, clip_norm, weight=weight - part),
    ]


def noisy_mean(
    label: str, n_classes: int, n_rows: int, transform: RowTransform
) -> Generator[Ask, Answer, tuple[np.ndarray, float]]:
    """(the mean (n_features,) of the rows that count, shrunk by its noise; their
    number).

    Rows beyond a group's cap, without a class or unreadable add nothing to the sum:
    over n_rows it would be too short (results/ablation, "rows that do not count").
    """
    answer = yield Ask(COUNT, RowCounts(n_classes), Params(transform))
    counted = rows_that_count(answer, n_rows)
    answer = yield Ask(label, ChannelMoment(n_classes), Params(transform))
    return shrunk(answer.value[:, 0], answer.noise_sd) / counted, counted


def rows_that_count(answer: Answer, n_rows: int) -> float:
    """n_rows, unless more than noise says otherwise; not below the noise, which could
    make a centre of any length.
    """
    found = float(answer.value[0, 0])
    if abs(found - n_rows) <= COUNT_DEVIATIONS * answer.noise_sd:
        return float(n_rows)
    return max(found, answer.noise_sd, 1.0)


def square_clip(n_features: int) -> float:
    """Twice the norm that the squares of a unit row have if its features are Gaussian,
    sqrt(3/d).
    """
    return min(1.0, 2 * float(np.sqrt(3 / n_features)))


def shrunk(mean: np.ndarray, noise_sd: float) -> np.ndarray:
    """Positive-part James-Stein: a mean that is mostly noise is not subtracted."""
    squared = max(float(mean @ mean), NEARLY_ZERO)
    return mean * max(0.0, 1 - len(mean) * noise_sd**2 / squared)
