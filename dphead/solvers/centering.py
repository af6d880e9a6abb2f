"""Subtract a noisy mean from unit rows, and scale them to unit norm again."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ChannelMoment, RowCounts
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.settings import BELOW_ONE, OFF, Setting, check_settings

# Let q be the mean square of each feature. Features are scaled if mean(q²) / mean(q)²
# is at least this. The ratio is 1 if all features have the same size, and 70 for
# ScatterNet's features before any transform; chosen.
_SCALE_FROM_RATIO = 2.0
# power of q in the scale; a standardization has -1/2; chosen
_SCALE_POWER = -0.25
# added to q / mean(q), so that no scale is far above the others; chosen
_SMALLEST_SQUARE = 0.01
_COUNT = "row count"  # label of the release
LEAST_NORM = 1e-12  # lower bound on a vector's norm, against division by zero; chosen
# part of the mean's share that the count of used rows gets; chosen: with the default
# share, the count's noise is 2 % of the rows at an n·mu of 1,200
_COUNT_PART = 0.1
# The count replaces n_rows if the two differ by more than this number of standard
# deviations of the count's noise; chosen.
_COUNT_DEVIATIONS = 2.0
# lower bound on the typical length of centered rows, which noise could make 0; chosen
_SHORTEST = 0.1


CENTER_SHARE = Setting(
    "Fraction of mu² spent to release the mean used for centering and the number of "
    "rows in it. 0: no centering. If there are few rows, auto increases the fraction, "
    "to at most 0.1.",
    BELOW_ONE,
    option=True,
)
UNIT_NORM = Setting(
    "Scale each row to unit norm first. Centering needs this.", option=True
)
_SCALE_SHARE = Setting(
    "Fraction of mu² spent to release the features' mean squares, for scaling.",
    BELOW_ONE,
    OFF,
)


@dataclass(frozen=True)
class Centering:
    """Scale rows to unit norm, subtract a noisy mean, and scale them again.

    Parameters
    ----------
    share : float, default 0.02
        Fraction of the budget (μ²) spent to release the mean used for centering and the
        number of used rows. 0 means no centering.
    unit_norm : bool, default True
        False keeps the norms of rows, and does not center them. A clip norm must then
        fit the features' scale.
    scale_share : float, default 0
        Fraction of the budget (μ²) spent to release mean squares of centered features.
        Features are divided by the fourth root of their noisy mean squares, and rows
        are scaled to unit norm again. Features are not scaled if their mean squares are
        nearly equal (_SCALE_FROM_RATIO).
    """

    share: Annotated[float, CENTER_SHARE] = 0.02
    unit_norm: Annotated[bool, UNIT_NORM] = True
    scale_share: Annotated[float, _SCALE_SHARE] = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def norm(self) -> float | None:
        """Return the norm of a transformed row, or None if rows keep their own."""
        return 1.0 if self.unit_norm else None

    def plan(self, facts: ProblemInfo, rest: float) -> list[PlannedRelease]:
        """Return the releases of the count, the mean and the squares, if any.

        rest is the total weight of all other releases.
        """
        # the mean has a bounded sensitivity only if rows have bounded norms
        if not self.unit_norm or self.share <= 0:
            return []
        # rest is the part of mu² that centering leaves
        whole = rest / (1 - self.share - self.scale_share)
        plan = planned_mean("feature mean", facts.n_classes, 1.0, whole * self.share)
        if self.scale_share > 0:
            # With many features, the clip is far below 1: the squares of a unit row
            # have a small norm unless one feature has nearly all of its length.
            squares = ChannelMoment(facts.n_classes, 2)
            clip = _square_clip(facts.n_features)
            plan.append(
                PlannedRelease(
                    "feature squares", squares, clip, weight=whole * self.scale_share
                )
            )
        return plan

    def solve(
        self, facts: ProblemInfo, append: float
    ) -> Generator[Request, Released, RowTransform]:
        """Request the planned releases, and return the transform of later releases."""
        if not self.unit_norm or self.share <= 0:
            return RowTransform(self.unit_norm, append=append)
        unit = RowTransform(unit_norm=True)
        center, n_rows = yield from noisy_mean(
            "feature mean", facts.n_classes, facts.n_rows, unit
        )
        # A mean of unit rows lies in the unit ball. Projecting on a convex set that
        # holds the exact mean never increases the error.
        center /= max(1.0, float(np.linalg.norm(center)))
        centered = RowTransform(True, center.astype(np.float32), None, append)
        if self.scale_share <= 0:
            return centered
        answer = yield Request(
            "feature squares",
            ChannelMoment(facts.n_classes, 2),
            Params(replace(centered, append=0.0)),
        )
        # Mean squares over their own mean, which is 1 / n_features for unit rows. This
        # n_rows may be the noisy count, so that only used rows are averaged.
        over_mean = facts.n_features / n_rows
        relative = over_mean * answer.value[:, 0]
        noise = over_mean * answer.noise_sd
        # E (s + z)² = s² + noise²: subtract the part of the noise
        mean_square = float(np.mean(relative**2)) - noise**2
        if mean_square < _SCALE_FROM_RATIO * float(np.mean(relative)) ** 2:
            return centered
        # noise can make a square negative; the added part bounds the scale's ratio
        relative = np.maximum(relative, 0.0) + max(_SMALLEST_SQUARE, noise)
        return replace(centered, scale=(relative**_SCALE_POWER).astype(np.float32))


def planned_mean(
    label: str, n_classes: int, clip_norm: float, weight: float
) -> list[PlannedRelease]:
    """Return the releases of `noisy_mean`: the count of rows, and their sum."""
    count, mean = RowCounts(n_classes), ChannelMoment(n_classes)
    part = weight * _COUNT_PART
    return [
        PlannedRelease(_COUNT, count, 1.0, weight=part),
        PlannedRelease(label, mean, clip_norm, weight=weight - part),
    ]


def noisy_mean(
    label: str, n_classes: int, n_rows: int, transform: RowTransform
) -> Generator[Request, Released, tuple[np.ndarray, float]]:
    """Request the count and the sum of the used rows, and return mean and count.

    The mean (n_features,) is shrunk (`_shrunk`). Rows beyond a group's cap, rows
    without a class, and unreadable or infinite rows add zero to the sum. If the sum
    were divided by n_rows, the mean would be too short (results/ablation, "rows without
    a class or beyond a cap").
    """
    answer = yield Request(_COUNT, RowCounts(n_classes), Params(transform))
    counted = rows_that_count(answer, n_rows)
    answer = yield Request(label, ChannelMoment(n_classes), Params(transform))
    return _shrunk(answer.value[:, 0], answer.noise_sd) / counted, counted


def rows_that_count(answer: Released, n_rows: int) -> float:
    """Return n_rows, or the noisy count if noise does not explain the difference.

    A noisy count is raised to at least 1 and at least one standard deviation of its
    noise: a sum divided by a smaller count could be huge.
    """
    found = float(answer.value[0, 0])
    if abs(found - n_rows) <= _COUNT_DEVIATIONS * answer.noise_sd:
        return float(n_rows)
    return max(found, answer.noise_sd, 1.0)


def typical_length(mean: np.ndarray) -> float:
    """Return the root of the mean squared distance of unit rows from a released mean.

    Parameters
    ----------
    mean : ndarray of shape (n_features,)
        The shrunk mean c̃ of `noisy_mean`.

    Returns
    -------
    float
        sqrt(1 - ‖c̃‖²), at least 0.1; or 1 if ‖c̃‖ is at least 1, since then the rows
        cannot be unit rows.

    Notes
    -----
    Unit rows with the mean c have the mean squared distance 1 - 2 c·c̃ + ‖c̃‖² from c̃.
    Let r be the noisy mean, with E‖r‖² = ‖c‖² + D. The shrinkage c̃ = (1 - D/‖r‖²) r
    makes c·c̃ and ‖c̃‖² nearly equal on average over the noise, if there are many
    features.
    """
    squared = float(mean @ mean)
    return 1.0 if squared >= 1 else float(np.sqrt(max(_SHORTEST**2, 1 - squared)))


def _square_clip(n_features: int) -> float:
    """Return the clip norm for the squares of a unit row, at most 1.

    If the d features are Gaussian, the squares have a norm of about sqrt(3/d). The
    result is twice this norm.
    """
    return min(1.0, 2 * float(np.sqrt(3 / n_features)))


def _shrunk(mean: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return the positive-part James-Stein estimate: zero if noise dominates."""
    return mean * kept_share(mean @ mean, len(mean) * noise_sd**2)


def kept_share(squared: np.ndarray, noise: np.ndarray | float) -> np.ndarray:
    """Return the James-Stein factor, which shrinks noisy vectors.

    E ||r||² = ||exact||² + d sd² for a noisy vector r (d,). The factor is
    1 - d sd² / ||r||², or 0 if that is negative. James and Stein (1961) use d - 2
    instead of d, and keep a negative factor.

    Parameters
    ----------
    squared : array of float
        Squared lengths of the noisy vectors.
    noise : array of float, or float
        Expected squared lengths of their noise.
    """
    return np.maximum(1 - noise / np.maximum(squared, LEAST_NORM**2), 0)
