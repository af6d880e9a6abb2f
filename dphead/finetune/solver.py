"""Train a whole network as a solver [De22]: request noisy gradients, and descend.

All work after a release is post-processing.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from dphead.finetune.gradients import ModelGradient
from dphead.finetune.network import StepParams
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Response
from dphead.solvers.gradient import (
    AVERAGE,
    BETA2,
    EMA_DECAY,
    MOMENTUM,
    NORMALIZE,
    OPTIMIZER,
    WEIGHT_DECAY,
    Moments,
    Optimizer,
)
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.settings import (
    CLIP_NORM,
    LEARNING_RATE,
    OFF,
    Range,
    Setting,
    check_settings,
)

_UP_TO_ONE = Range("from 0 to 1", lambda v: 0 <= v <= 1)
_DAMPENING = Setting("Dampening of momentum, as in PyTorch.", _UP_TO_ONE, OFF)
_DECOUPLED = Setting("Decouple weight decay, as AdamW does.", source=OFF)


@dataclass
class Progress:
    """Hold the state of a training after `step` steps, complete for a resume.

    All of it is post-processing of releases.

    Attributes
    ----------
    step : int
        Number of steps done.
    weights, average : ndarray of shape (size,), float64
        The weights, and their moving average.
    first, second : ndarray of shape (size,), float64
        The optimizer's moments.
    center, scale : ndarray or None
        Center and scale of the rows' transform.
    estimate, class_accuracy : None
        None, because a network releases no accuracy (`LinearHead` does).
    """

    estimate: ClassVar[None] = None
    class_accuracy: ClassVar[None] = None

    step: int
    weights: np.ndarray
    average: np.ndarray
    first: np.ndarray
    second: np.ndarray
    center: np.ndarray | None = None
    scale: np.ndarray | None = None

    @property
    def transform(self) -> RowTransform:
        """Return the transform of rows before the network."""
        return RowTransform(center=self.center, scale=self.scale)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Describe the step taken for a released gradient.

    Parameters
    ----------
    optimizer : {"sgd", "adam"}, default "sgd"
        The optimizer.
    learning_rate : float, default 2.0
        Factor on the mean clipped gradient over the expected batch size.
    momentum, beta2 : float, default 0.0 and 0.999
        Momentum of the optimizer, and Adam's beta2.
    dampening : float, default 0.0
        As in TAN23 and PyTorch. It has no effect on the first step, nor without
        momentum.
    clip_norm : float, default 1.0
        Bound on the norm of a row's gradient.
    normalize : bool, default True
        Whether the gradient is also divided by the clip norm [De22].
    average : {"last", "ema"}, default "ema"
        "last" keeps the last weights. "ema" averages them with De22's warm-up,
        min(ema_decay, (1 + t) / (10 + t)).
    ema_decay : float, default 0.9999
        Decay of the moving average.
    weight_decay : float, default 0.0
        Fraction of the weights subtracted at each step.
    decoupled : bool, default False
        Whether weight decay is separate from the gradient (AdamW).

    Raises
    ------
    ValueError
        If a setting is out of range, or `dampening` is given without "sgd".
    """

    optimizer: Annotated[Optimizer, OPTIMIZER] = "sgd"
    learning_rate: Annotated[float, LEARNING_RATE] = 2.0
    momentum: Annotated[float, MOMENTUM] = 0.0
    dampening: Annotated[float, _DAMPENING] = 0.0
    beta2: Annotated[float, BETA2] = 0.999
    clip_norm: Annotated[float, CLIP_NORM] = 1.0
    normalize: Annotated[bool, NORMALIZE] = True
    average: Annotated[Literal["last", "ema"], AVERAGE] = "ema"
    ema_decay: Annotated[float, EMA_DECAY] = 0.9999
    weight_decay: Annotated[float, WEIGHT_DECAY] = 0.0
    decoupled: Annotated[bool, _DECOUPLED] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.dampening and self.optimizer != "sgd":
            raise ValueError(
                f"dampening needs optimizer 'sgd', got dampening={self.dampening}, "
                f"optimizer={self.optimizer!r}. Drop it."
            )


@dataclass(frozen=True)
class NetworkDescent(Step):
    """Train a network's weights by DP-SGD (with momentum) or DP-Adam(W).

    Parameters
    ----------
    query : ModelGradient
        The statistic that each step releases.
    start : ndarray of shape (size,)
        Initial weights, public.
    steps : int, default 100
        Number of gradients.
    sampling_prob : float, default 1.0
        Sampling rate of each step.
    epoch_steps : int, default 1
        Steps per epoch of random allocation, where each image is in one step; else 1.
    noise_multiplier : float, optional
        Fixed noise multiplier; None sets it from the budget.
    normalization : ChannelNormalization, optional
        Private normalization of feature maps [TB21 Algorithm 2].
    after : callable, optional
        Called with the state after each step.
    resumed : Progress, optional
        State to resume from.

    References
    ----------
    [De22] equation 3; [TB21] Algorithm 1. The settings of `Step` apply too.
    """

    query: ModelGradient
    start: np.ndarray = field(repr=False, compare=False)
    steps: int = 100
    sampling_prob: float = 1.0
    epoch_steps: int = 1
    noise_multiplier: float | None = None
    normalization: ChannelNormalization | None = None
    after: Callable[[Progress], None] | None = field(
        default=None, repr=False, compare=False
    )
    resumed: Progress | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Return "dp-sgd network" or "dp-adam network"."""
        return f"dp-{self.optimizer} network"

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the releases of the normalization, then `steps` gradients.

        All gradients have the same noise.
        """
        step = PlannedRelease(
            "gradient",
            self.query,
            self.clip_norm,
            1.0,
            self.sampling_prob,
            self.noise_multiplier,
            self.epoch_steps,
        )
        return [
            *(self.normalization.plan(facts, 0.0) if self.normalization else []),
            *[step] * self.steps,
        ]

    def before(self) -> int:
        """Return the number of releases before the first gradient."""
        return 2 if self.normalization else 0

    def solve(self, facts: ProblemInfo) -> Generator[Request, Response, Any]:
        """Descend and return the last `Progress`, with the weights as its `average`."""
        state = self.resumed
        if state is None:
            transform = RowTransform()
            if self.normalization is not None:
                transform = yield from self.normalization.solve(facts, 0.0)
            zero = np.zeros_like(self.start)
            state = Progress(
                0,
                self.start.copy(),
                self.start.copy(),
                zero,
                zero.copy(),
                transform.center,
                transform.scale,
            )
        moments = Moments(self.start.shape)
        transform = state.transform
        moments.first, moments.second, moments.t = state.first, state.second, state.step
        scale = 1.0 / (
            facts.n_rows
            * self.sampling_prob
            / self.epoch_steps
            * (self.clip_norm if self.normalize else 1.0)
        )
        for t in range(state.step, self.steps):
            params = StepParams(transform, state.weights.astype(np.float32), t)
            answer = yield Request("gradient", self.query, params)
            gradient = answer.value * scale
            decay = self.weight_decay * state.weights
            raw = gradient if self.decoupled else gradient + decay
            damped = 1 - self.dampening if t and self.momentum else 1.0
            direction = moments.direction(self, damped * raw)
            state.weights = state.weights - self.learning_rate * (
                direction + (decay if self.decoupled else 0.0)
            )
            warm = (
                min(self.ema_decay, (1 + t) / (10 + t))
                if self.average == "ema"
                else 0.0
            )
            state.average = warm * state.average + (1 - warm) * state.weights
            state.first, state.second, state.step = moments.first, moments.second, t + 1
            if self.after is not None:
                self.after(state)
        return state
