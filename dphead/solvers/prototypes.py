"""Implement prototype heads, which compare rows with noisy class means."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Steps
from dphead.solvers.centering import LEAST_NORM, Centering, kept_share
from dphead.solvers.head import LinearHead, prediction_clip
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.rounding import check_clip
from dphead.solvers.settings import (
    CHOSEN,
    FEATURE_CLIP,
    INTERCEPT,
    Setting,
    check_settings,
)

Rule = Literal["cosine", "nearest"]
_RULE = Setting(
    "cosine: score by the angle to a class's mean, seen from the middle of all "
    "classes. nearest: score by the squared distance to the mean."
)
_COUNTING = INTERCEPT.default_from(f"{CHOSEN}; its class sums give the counts")


@dataclass(frozen=True)
class Prototypes:
    """Score rows by noisy class means from one release of class sums.

    Parameters
    ----------
    rule : {"cosine", "nearest"}, default "cosine"
        Score by the angle to a class's mean, seen from the middle of all classes, or by
        the squared distance to the mean.
    intercept : float, default 0.25
        Constant appended to each row, positive. The class sums of this constant give
        the number of rows of each class.
    """

    rule: Annotated[Rule, _RULE] = "cosine"
    intercept: Annotated[float, _COUNTING] = 0.25
    feature_clip: Annotated[float, FEATURE_CLIP] = 1.0
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "prototypes"

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the centering releases and the class sums.

        Raises ValueError if the intercept is 0, or if the intercept or the clip norm
        does not fit the rows.
        """
        check_clip(facts, self.intercept, self.feature_clip, self.centering.norm)
        if self.intercept == 0:
            raise ValueError(
                "`intercept` must be positive to count the rows of a class, got 0. Use "
                "0.25."
            )
        return [
            *self.centering.plan(facts, 1.0),
            PlannedRelease("class sums", ClassSums(facts.n_classes), self.feature_clip),
        ]

    def solve(self, facts: ProblemInfo) -> Steps:
        """Divide the class sums by the noisy counts, and return the head.

        A count is at least 1 and at least one standard deviation of its noise.
        """
        transform = yield from self.centering.solve(facts, self.intercept)
        sums = yield Request(
            "class sums", ClassSums(facts.n_classes), Params(transform)
        )
        # a smaller count may be noise alone, and a sum divided by it could be huge
        fewest = max(1.0, sums.noise_sd / self.intercept)
        # the last row sums the appended constant over the rows of each class
        counts = np.maximum(sums.value[-1] / self.intercept, fewest)
        means = sums.value[:-1] / counts
        if self.rule == "cosine":
            middle = _middle(means, sums.noise_sd / counts)
            arms = means - middle[:, None]
            # unit vectors, because norms depend on the noise and the number of classes
            weights = arms / np.maximum(np.linalg.norm(arms, axis=0), LEAST_NORM)
            intercept = -middle @ weights
        else:
            # -||x - mean||² without ||x||², which is the same for every class
            weights = 2 * means
            intercept = -(means**2).sum(axis=0)
        clip = prediction_clip(self.feature_clip, self.centering.norm, facts.mu)
        return LinearHead(weights, intercept, transform, "squared", feature_clip=clip)


def _middle(means: np.ndarray, noise_sd: np.ndarray) -> np.ndarray:
    """Return the average (d,) of the class means (d, m), shrunk by their noise.

    noise_sd (m,) is the noise of a mean's entries. The mean of all rows lies near a
    common class, so a boundary through it would divide that class. Each mean, and then
    their average, is shrunk because rare classes have noisy means (James and Stein
    1961).
    """
    d, m = means.shape
    noise = d * noise_sd**2
    kept = kept_share((means**2).sum(axis=0), noise)
    middle = (means * kept).mean(axis=1)
    return middle * kept_share(middle @ middle, (kept**2 @ noise) / m**2)
