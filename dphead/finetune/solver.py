"""Implement end-to-end training [De22] as a solver.

It requests a noisy gradient for each step, and updates the weights. All work after a
release is post-processing.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dphead.finetune.gradients import ModelGradient
from dphead.finetune.network import StepParams
from dphead.finetune.settings import Step
from dphead.privacy.contract import Released
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.descent import Descent
from dphead.solvers.normalization import ChannelNormalization


@dataclass(eq=False)
class TrainingState(Descent):
    """Hold the state of a training after `step` steps, with all that a resume needs.

    All of it is post-processing of releases. Arrays of weights have the shape (size,).

    Attributes
    ----------
    center, scale : ndarray or None
        Center and scale of the rows' transform.
    estimate, class_accuracy, balanced : None
        None, because a network releases no counts (`LinearHead` does).
    """

    estimate: ClassVar[None] = None
    class_accuracy: ClassVar[None] = None
    balanced: ClassVar[None] = None

    center: np.ndarray | None = None
    scale: np.ndarray | None = None

    @property
    def transform(self) -> RowTransform:
        """Return the transform that is applied to inputs before the network."""
        return RowTransform(center=self.center, scale=self.scale)


@dataclass(frozen=True)
class NetworkDescent(Step):
    """Train a network's weights by DP-SGD (with momentum) or DP-Adam(W).

    All parameters of `Step` are accepted too.

    Parameters
    ----------
    statistic : ModelGradient
        The statistic that each step releases.
    start : ndarray of shape (size,)
        Initial weights, public.
    steps : int, default 100
        Number of gradient steps.
    sampling_prob : float, default 1.0
        Sampling rate of each step.
    epoch_steps : int, default 1
        Number of steps per epoch under random allocation: each image is in one random
        step of an epoch. 1 means no random allocation.
    noise_multiplier : float, optional
        Fixed noise multiplier; None sets it from the budget.
    normalization : ChannelNormalization, optional
        Private normalization of feature maps [TB21 Algorithm 2].
    after : callable, optional
        Called with the state after each step.
    resumed : TrainingState, optional
        State to resume from.

    References
    ----------
    [De22] equation 3; [TB21] Algorithm 1.
    """

    statistic: ModelGradient
    start: np.ndarray = field(repr=False, compare=False)
    steps: int = 100
    sampling_prob: float = 1.0
    epoch_steps: int = 1
    noise_multiplier: float | None = None
    normalization: ChannelNormalization | None = None
    after: Callable[[TrainingState], None] | None = field(
        default=None, repr=False, compare=False
    )
    resumed: TrainingState | None = field(default=None, repr=False, compare=False)

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
            self.statistic,
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

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, TrainingState]:
        """Take the remaining steps, and return the last state.

        The trained weights are its `average`. Its `weights` are the last iterate.
        """
        state = self.resumed
        if state is None:
            transform = RowTransform()
            if self.normalization is not None:
                transform = yield from self.normalization.solve(facts, 0.0)
            state = TrainingState.start(
                self.start, center=transform.center, scale=transform.scale
            )
        transform = state.transform
        batch = facts.n_rows * self.sampling_prob / self.epoch_steps
        scale = 1.0 / (batch * (self.clip_norm if self.normalize else 1.0))
        for t in range(state.step, self.steps):
            params = StepParams(transform, state.weights.astype(np.float32), t)
            answer = yield Request("gradient", self.statistic, params)
            rate = self.rate(t, self.steps)
            state.advance(
                answer.value * scale, rate, self, self.dampening, self.decoupled
            )
            if self.after is not None:
                self.after(state)
        return state
