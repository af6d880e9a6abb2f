"""Heads trained by noisy clipped gradients: DP-SGD, DP-Adam, and DP-FC, which
preconditions them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from dphead.privacy.statistics import Gradient, Gram, Loss, Params
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import (
    Ask,
    Centering,
    LinearHead,
    PlannedRelease,
    PublicFacts,
    Steps,
    check_clip,
    check_intercept,
    split_intercept,
)
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior
from dphead.solvers.ridge import RidgeSolver, ridge_for


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
        weights = _start(facts, transform, self.initial_bias)
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
        return _head(final, transform, self.loss)


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


@dataclass(frozen=True)
class DPFC:
    """Gradient steps preconditioned by the noisy Gram matrix: W ← W - η (G̃/n + λ)⁻¹
    g̃/n [FC23 Algorithm 4].

    learning_rate: η; None is the largest step that Böhning's bound makes monotone
    without noise and clipping: 2 for softmax, 4 for sigmoid, 1 for squared. ridge: λ in
    units of the mean Gram matrix; None sets it from the noise alone (`ridge_for`).
    gram_share: the Gram matrix's share of mu²; None gives every release the same noise,
    as FC23 does.
    """

    steps: int = 10
    learning_rate: float | None = None
    ridge: float | None = None
    gram_share: float | None = 0.15
    loss: Loss = "softmax"
    clip_norm: float = 1.0
    feature_clip: float = 1.0
    intercept: float = 0.0
    initial_bias: float = 0.0
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "dp-fc"

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The feature mean, if rows are centred, the Gram matrix, and `steps`
        gradients.
        """
        check_clip(facts, self.intercept, self.feature_clip, self.centering.norm)
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
        gram = yield Ask("gram", Gram(facts.n_classes), Params(transform))
        query = Gradient(facts.n_classes, self.loss)
        rate = (
            self.learning_rate
            or {"softmax": 2.0, "sigmoid": 4.0, "squared": 1.0}[self.loss]
        )
        weights = _start(facts, transform, self.initial_bias)
        ridge = ridge_for(facts, gram.noise_sd, self.ridge)
        solve = RidgeSolver(gram.value, ridge)
        for _ in range(self.steps):
            answer = yield Ask(
                "gradient", query, Params(transform, weights.astype(np.float32))
            )
            weights = weights - rate * solve(answer.value)
        return _head(weights, transform, self.loss)


def _start(
    facts: PublicFacts, transform: RowTransform, initial_bias: float
) -> np.ndarray:
    weights = np.zeros((transform.width(facts.n_features), facts.n_classes))
    if transform.append:
        weights[-1] = initial_bias / transform.append
    return weights


def _head(weights: np.ndarray, transform: RowTransform, loss: str) -> LinearHead:
    coefficients, intercept = split_intercept(weights, transform.append)
    return LinearHead(coefficients, intercept, transform, loss)
