"""Train heads by noisy clipped gradients: DP-SGD and DP-Adam."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import Gradient
from dphead.solvers.balancing import (
    BALANCED,
    balanced_head,
    check_balanced,
    planned_counts,
)
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.descent import Descent
from dphead.solvers.head import head_of, zero_weights
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior
from dphead.solvers.rounding import check_intercept
from dphead.solvers.settings import (
    BELOW_ONE,
    CLIP_NORM,
    COUNT,
    INITIAL_BIAS,
    INTERCEPT,
    LEARNING_RATE,
    LOSS,
    NOT_NEGATIVE,
    OFF,
    PROBABILITY,
    STEPS,
    TRIALS,
    Setting,
    check_settings,
)

Optimizer = Literal["sgd", "adam"]
Average = Literal["last", "mean", "ema"]

OPTIMIZER = Setting(
    "Optimizer: DP-SGD or DP-Adam.", source="the method's name", settable=False
)
MOMENTUM = Setting("Momentum; beta1 of Adam.", BELOW_ONE, "TB21 Table 13", option=True)
BETA2 = Setting("Decay of Adam's squared gradients.", BELOW_ONE, "Kingma, Ba 2015")
_SAMPLING_PROB = Setting(
    "Sampling rate of Poisson batches; 1: the full batch.", PROBABILITY
)
_EPOCH_STEPS = Setting(
    "Steps of an epoch of random allocation, in which each row is in one step; 1: no "
    "allocation.",
    COUNT,
)
NORMALIZE = Setting(
    "Also divide the gradient by the clip norm, as De22 does.", source=OFF
)
AVERAGE = Setting(
    "Iterate to return: the last, the mean, or the moving average.", source=OFF
)
EMA_DECAY = Setting("Decay of the moving average.", BELOW_ONE, "De22 appendix C")
WEIGHT_DECAY = Setting(
    "Weight decay, added to the gradient.", NOT_NEGATIVE, OFF, option=True
)
_PRIOR = Setting("Public initial weights.", source=OFF, settable=False)


@dataclass(frozen=True)
class GradientDescent:
    """Run DP-SGD with momentum, or DP-Adam, on full, Poisson or allocated batches.

    Parameters
    ----------
    learning_rate : float, default 8.0
        Factor on the mean clipped gradient: the noisy sum, divided by the expected
        batch size. With `normalize`, this mean is also divided by the clip norm.
    average : {"last", "mean", "ema"}, default "last"
        Iterate to return. "ema" is the moving average with De22's warm-up: its decay at
        step t is min(ema_decay, (1 + t)/(10 + t)).
    balanced : bool, default False
        Whether decisions weight all classes equally (`balancing`).
    prior : PublicPrior, optional
        Public head to start from. None starts at `initial_bias` for every class.

    References
    ----------
    FC23, Algorithm 1. TB21, Algorithm 1. De22.
    """

    optimizer: Annotated[Optimizer, OPTIMIZER] = "sgd"
    steps: Annotated[int, STEPS.default_from(TRIALS)] = 30
    learning_rate: Annotated[float, LEARNING_RATE.default_from(TRIALS)] = 8.0
    momentum: Annotated[float, MOMENTUM] = 0.9
    beta2: Annotated[float, BETA2] = 0.999
    loss: Annotated[str, LOSS] = "softmax"
    clip_norm: Annotated[float, CLIP_NORM] = 1.0
    sampling_prob: Annotated[float, _SAMPLING_PROB] = 1.0
    epoch_steps: Annotated[int, _EPOCH_STEPS] = 1
    normalize: Annotated[bool, NORMALIZE] = False
    average: Annotated[Average, AVERAGE] = "last"
    ema_decay: Annotated[float, EMA_DECAY] = 0.9999
    weight_decay: Annotated[float, WEIGHT_DECAY] = 0.0
    intercept: Annotated[float, INTERCEPT] = 0.0
    initial_bias: Annotated[float, INITIAL_BIAS] = 0.0
    balanced: Annotated[bool, BALANCED] = False
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    prior: Annotated[PublicPrior | None, _PRIOR] = None
    takes_jax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_balanced(self.balanced, self.loss, self.intercept)

    @property
    def name(self) -> str:
        """Return "dp-sgd" or "dp-adam"."""
        return f"dp-{self.optimizer}"

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the centering releases, and `steps` gradients of equal noise.

        The class counts follow if decisions are balanced.

        Raises ValueError if the intercept is too large for the rows, or if the prior
        does not have the head's shape.
        """
        check_intercept(facts, self.intercept, self.centering.norm)
        if self.prior is not None:
            self.prior.check(facts.n_features, facts.n_classes)
        statistic = Gradient(facts.n_classes, self.loss)
        step = PlannedRelease(
            "gradient",
            statistic,
            self.clip_norm,
            1.0,
            self.sampling_prob,
            epoch_steps=self.epoch_steps,
        )
        # to first order, mu² of a Poisson batch is q² times that of a full batch
        # (central limit)
        rest = self.steps * self._share**2
        counts = planned_counts(facts, rest) if self.balanced else []
        rest += sum(one.weight for one in counts)
        return [*self.centering.plan(facts, rest), *[step] * self.steps, *counts]

    @property
    def _share(self) -> float:
        """Return the expected share of the rows in a batch."""
        return self.sampling_prob / self.epoch_steps

    def _start(self, weights: np.ndarray) -> Descent:
        """Return the state before the first step."""
        return Descent.start(weights)

    def solve(
        self,
        facts: ProblemInfo,
        lengthen: Callable[[np.ndarray, float], float] | None = None,
    ) -> Steps:
        """Take the gradient steps, and return the head of the chosen iterate.

        Parameters
        ----------
        facts : ProblemInfo
            Public sizes and budget.
        lengthen : callable, optional
            Function that returns a factor on the learning rate. It gets the scaled mean
            gradient (width, n_classes) and the standard deviation of its noise.
        """
        transform = yield from self.centering.solve(facts, self.intercept)
        statistic = Gradient(facts.n_classes, self.loss)
        sizes = facts.n_features, facts.n_classes
        weights = zero_weights(transform, sizes, self.initial_bias)
        if self.prior is not None:
            weights += self.prior.start(transform, weights.shape)
        state = self._start(weights)
        # Divide by the expected batch size, never by the size of the drawn batch. The
        # drawn size is private, and a division by it would change the sensitivity.
        clip_norm = self.clip_norm if self.normalize else 1.0
        scale = 1.0 / (facts.n_rows * self._share * clip_norm)
        for _ in range(self.steps):
            params = Params(transform, state.weights.astype(np.float32))
            answer = yield Request("gradient", statistic, params)
            gradient = answer.value * scale
            factor = lengthen(gradient, answer.noise_sd * scale) if lengthen else 1.0
            state.advance(gradient, self.learning_rate * factor, self)
        head = head_of(state.average, transform, self.loss)
        return (yield from balanced_head(facts, head)) if self.balanced else head
