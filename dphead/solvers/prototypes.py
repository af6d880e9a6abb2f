"""Implement prototype heads: a noisy mean for each class, nearest or cosine."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Steps
from dphead.solvers.centering import Centering
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

_SHORTEST_MEAN = 1e-12  # lower bound on a mean's norm, against division by zero; chosen
Rule = Literal["cosine", "nearest"]
_RULE = Setting("Score by the angle to a class's mean, or by the squared distance.")
_COUNTING = INTERCEPT.default_from(f"{CHOSEN}; its class sums give the counts")


@dataclass(frozen=True)
class Prototypes:
    """Score rows by noisy class means from one release of class sums.

    Parameters
    ----------
    rule : {"cosine", "nearest"}, default "cosine"
        Score by the angle to a class's mean, or by the squared distance.
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
        # a smaller count is noise, and would make a mean of any length
        fewest = max(1.0, sums.noise_sd / self.intercept)
        # the last row sums the appended constant over the rows of each class
        counts = np.maximum(sums.value[-1] / self.intercept, fewest)
        means = sums.value[:-1] / counts
        if self.rule == "cosine":
            norms = np.linalg.norm(means, axis=0)
            # with columns of length one, the number of rows of a class cancels
            weights = means / np.maximum(norms, _SHORTEST_MEAN)
            return LinearHead(weights, np.zeros(facts.n_classes), transform, "squared")
        clip = prediction_clip(self.feature_clip, self.centering.norm, facts.mu)
        # -||x - mean||² without ||x||², which is the same for every class
        squared = (means**2).sum(axis=0)
        return LinearHead(2 * means, -squared, transform, "squared", feature_clip=clip)
