"""Heads trained by noisy clipped gradients: DP-SGD and DP-Adam."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from dphead.privacy.statistics import Gradient, Loss, Params
from dphead.solvers.base import Ask, PlannedRelease, PublicFacts, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.head import head_of, zero_weights
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior
from dphead.solvers.rounding import check_intercept


@dataclass(frozen=True)
class GradientDescent:
    """DP-SGD with momentum, or DP-Adam, on full or Poisson batches [FC23 Algorithm 1;
    TB21 Algorithm 1; De22].

    learning_rate multiplies the mean clipped gradient (the sum over the expected batch
    size), also divided by the clip norm if `normalize` (De22's form). average: return
    the mean of the iterates, their moving average ("ema", De22's warm-up min(ema_decay,
    (1+t)/(10+t))) or the last one. intercept: the constant appended to each row (0:
    none).
    sampling_prob: 1 is the full batch. extra: a private normalisation's releases and
        transform, or None.
    prior: where the descent starts, or None for zero.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    steps: int = 30
    learning_rate: float = 8.0
    momentum: float = 0.9
    beta2: float = 0.999
    loss: Loss = "softmax"
    clip_norm: float = 1.0
    sampling_prob: float = 1.0
    normalize: bool = False
    average: Literal["last", "mean", "ema"] = "last"
    ema_decay: float = 0.9999
    weight_decay: float = 0.0
    intercept: float = 0.0
    initial_bias: float = 0.0
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    prior: PublicPrior | None = None

    @property
    def name(self) -> str:
        """dp-sgd or dp-adam."""
        return f"dp-{self.optimizer}"

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The feature mean, if rows are centred, and `steps` gradients of equal
        noise.
        """
        check_intercept(facts, self.intercept, self.centering.norm)
        if self.prior is not None:
            self.prior.check(facts.n_features, facts.n_classes)
        query = Gradient(facts.n_classes, self.loss)
        step = PlannedRelease(
            "gradient", query, self.clip_norm, 1.0, self.sampling_prob
        )
        return [
            *self.centering.plan(facts, self.steps * self.sampling_prob**2),
            *[step] * self.steps,
        ]

    def solve(
        self,
        facts: PublicFacts,
        lengthen: Callable[[np.ndarray, float], float] | None = None,
    ) -> Steps:
        """Descend, and return the chosen iterate.

        lengthen: from the mean gradient (width, n_classes) and its noise's deviation, a
            factor on the learning rate.
        """
        transform = yield from self.centering.solve(facts, self.intercept)
        query = Gradient(facts.n_classes, self.loss)
        sizes = facts.n_features, facts.n_classes
        weights = zero_weights(transform, sizes, self.initial_bias)
        if self.prior is not None:
            weights += self.prior.start(transform, weights.shape)
        average, state = weights.copy(), Moments(weights.shape)
        scale = 1.0 / (
            facts.n_rows
            * self.sampling_prob
            * (self.clip_norm if self.normalize else 1.0)
        )
        for t in range(self.steps):
            answer = yield Ask(
                "gradient", query, Params(transform, weights.astype(np.float32))
            )
            gradient = answer.value * scale
            rate = self.learning_rate * (
                lengthen(gradient, answer.noise_sd * scale) if lengthen else 1.0
            )
            weights = weights - rate * state.direction(
                self, gradient + self.weight_decay * weights
            )
            decay = (
                min(self.ema_decay, (1 + t) / (10 + t))
                if self.average == "ema"
                else t / (t + 1)
            )
            average = decay * average + (1 - decay) * weights
        final = weights if self.average == "last" else average
        return head_of(final, transform, self.loss)


class OptimizerSettings(Protocol):
    """optimizer: "sgd" or "adam"; momentum is Adam's beta1."""

    @property
    def optimizer(self) -> str: ...
    @property
    def momentum(self) -> float: ...
    @property
    def beta2(self) -> float: ...


class Moments:
    """Momentum buffers of one run."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.first, self.second, self.t = np.zeros(shape), np.zeros(shape), 0

    def direction(self, solver: OptimizerSettings, gradient: np.ndarray) -> np.ndarray:
        """The step's direction for a noisy mean gradient."""
        self.t += 1
        if solver.optimizer == "sgd":
            self.first = solver.momentum * self.first + gradient
            return self.first
        self.first = solver.momentum * self.first + (1 - solver.momentum) * gradient
        self.second = solver.beta2 * self.second + (1 - solver.beta2) * gradient**2
        first = self.first / (1 - solver.momentum**self.t)
        second = self.second / (1 - solver.beta2**self.t)
        return first / (np.sqrt(second) + 1e-12)
