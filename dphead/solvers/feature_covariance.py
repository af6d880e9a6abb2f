"""DP-FC: gradient steps preconditioned by one noisy Gram matrix."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from dphead.privacy.predictions import Loss
from dphead.privacy.query import Params
from dphead.privacy.statistics import Gradient, Gram
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import Answer, Ask, PlannedRelease, PublicFacts, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.head import head_of, zero_weights
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.ridge import RidgeSolver, ridge_for
from dphead.solvers.rounding import check_clip, check_intercept
from dphead.solvers.settings import (
    CLIP_NORM,
    FEATURE_CLIP,
    GRAM_SHARE,
    INITIAL_BIAS,
    INTERCEPT,
    LEARNING_RATE,
    LOSS,
    RIDGE,
    STEPS,
    Setting,
    check_settings,
)

# η at which each loss falls without noise and clipping, as its Hessian is at most the
# Gram matrix over this [Böhning 1992 for softmax; sigmoid's slope is at most 1/4]
MONOTONE_STEP = {"softmax": 2.0, "sigmoid": 4.0, "squared": 1.0}
BOHNING = "None: Böhning 1992's bound, by the loss"
GRAM_INTERCEPT = Setting(
    "Whether the Gram matrix holds the constant; without it a bias has a step of its "
    "own."
)


@dataclass(frozen=True)
class DPFC:
    """Gradient steps preconditioned by the noisy Gram matrix: W ← W - η (G̃/n + λ)⁻¹
    g̃/n [FC23 Algorithm 4].

    learning_rate: η; None is the largest step that Böhning's bound makes monotone
    without noise and clipping (MONOTONE_STEP). ridge: λ. gram_share: FC23 gives every
    release the same noise. gram_intercept: False keeps the constant in the gradients
    alone, so that the Gram matrix has the noise of the features (FC23).
    """

    steps: Annotated[int, STEPS.default_from("FC23 Tables 2-4: 1, 10 or 100")] = 10
    learning_rate: Annotated[float | None, LEARNING_RATE.default_from(BOHNING)] = None
    ridge: Annotated[float | None, RIDGE] = None
    gram_share: Annotated[float | None, GRAM_SHARE] = 0.15
    loss: Annotated[Loss, LOSS] = "softmax"
    clip_norm: Annotated[float, CLIP_NORM] = 1.0
    feature_clip: Annotated[float, FEATURE_CLIP] = 1.0
    intercept: Annotated[float, INTERCEPT] = 0.0
    gram_intercept: Annotated[bool, GRAM_INTERCEPT] = True
    initial_bias: Annotated[float, INITIAL_BIAS] = 0.0
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "dp-fc"

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The feature mean, if rows are centred, the Gram matrix, and `steps`
        gradients.
        """
        joined = self.intercept if self.gram_intercept else 0.0
        check_clip(facts, joined, self.feature_clip, self.centering.norm)
        check_intercept(facts, self.intercept, self.centering.norm)
        share = 1 / (self.steps + 1) if self.gram_share is None else self.gram_share
        gradient = PlannedRelease(
            "gradient",
            Gradient(facts.n_classes, self.loss),
            self.clip_norm,
            (1 - share) / self.steps,
        )
        gram = PlannedRelease("gram", Gram(facts.n_classes), self.feature_clip, share)
        return [*self.centering.plan(facts, 1.0), gram, *[gradient] * self.steps]

    def solve(self, facts: PublicFacts) -> Steps:
        """Release the Gram matrix once, then descend."""
        transform = yield from self.centering.solve(facts, self.intercept)
        gram = yield from self._gram(facts, transform)
        query = Gradient(facts.n_classes, self.loss)
        rate = self.learning_rate or MONOTONE_STEP[self.loss]
        sizes = facts.n_features, facts.n_classes
        weights = zero_weights(transform, sizes, self.initial_bias)
        ridge = ridge_for(facts, gram.noise_sd, self.ridge)
        solve = RidgeSolver(gram.value, ridge)
        for _ in range(self.steps):
            answer = yield Ask(
                "gradient", query, Params(transform, weights.astype(np.float32))
            )
            weights = weights - rate * solve(answer.value)
        return head_of(weights, transform, self.loss)

    def _gram(
        self, facts: PublicFacts, transform: RowTransform
    ) -> Generator[Ask, Answer, Answer]:
        """Release the Gram matrix, and border it by a constant that is not in it.

        The border needs no release: the constant's square, clipped as rows are, is
        public, and its products with the features are taken to be zero.
        """
        clip = self.feature_clip if np.isfinite(facts.mu) else np.inf
        query, constant = Gram(facts.n_classes), transform.append
        if self.gram_intercept or not constant:
            return (yield Ask("gram", query, Params(transform)))
        apart = replace(transform, append=0.0)
        answer = yield Ask("gram", query, Params(apart))
        bordered = np.pad(answer.value, (0, 1))
        bordered[-1, -1] = facts.n_rows * min(constant, clip) ** 2
        return replace(answer, value=bordered)
