"""Implement DP-Newton: one-vs-rest logistic regression by noisy Newton steps."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import Gradient, SigmoidHessians
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.head import head_of, prediction_clip, zero_weights
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.ridge import RidgeSolver, ridge_for
from dphead.solvers.rounding import check_clip
from dphead.solvers.settings import (
    FEATURE_CLIP,
    INITIAL_BIAS,
    INTERCEPT,
    LEARNING_RATE,
    RIDGE,
    SHARE,
    STEPS,
    TRIALS,
    Setting,
    check_settings,
)

_HESSIAN_SHARE = Setting("Fraction of mu² for the Hessians.", SHARE, TRIALS)


@dataclass(frozen=True)
class Newton:
    """Take noisy Newton steps on the sigmoid loss of each class, with clipped features.

    Parameters
    ----------
    learning_rate : float, default 1.0
        Step length η.
    ridge : float, optional
        λ, in units of the mean Hessian. None sets λ from the noise.
    hessian_share : float, default 0.2
        Fraction of the budget (μ²) for the Hessians, of the part that centering leaves.
        Gradients get the rest.

    Notes
    -----
    One step is θ_j ← θ_j - η (H̃_j + λ)⁻¹ g̃_j for each class j.

    References
    ----------
    FC23, Algorithm 2.
    """

    steps: Annotated[int, STEPS.default_from(TRIALS)] = 1
    learning_rate: Annotated[float, LEARNING_RATE.default_from("Newton's own")] = 1.0
    ridge: Annotated[float | None, RIDGE] = None
    feature_clip: Annotated[float, FEATURE_CLIP] = 1.0
    intercept: Annotated[float, INTERCEPT] = 0.0
    initial_bias: Annotated[float, INITIAL_BIAS] = 0.0
    hessian_share: Annotated[float, _HESSIAN_SHARE] = 0.2
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "dp-newton"
    takes_jax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the centering releases, then two for each step: gradient, Hessians.

        Raises ValueError if the intercept or the clip norm does not fit the rows.
        """
        check_clip(facts, self.intercept, self.feature_clip, self.centering.norm)
        gradient, hessians = self._statistics(facts)
        # Both releases of a step use the same rows. At equal noise σ, the plan charges
        # 2/σ² for both. No row is the worst case of both, so 1.286/σ² could suffice
        # (proofs/sensitivity.md).
        share = self.hessian_share / self.steps
        step = [
            PlannedRelease(
                "gradient", gradient, self.feature_clip, 1 / self.steps - share
            ),
            PlannedRelease("hessians", hessians, self.feature_clip, share),
        ]
        return [*self.centering.plan(facts, 1.0), *step * self.steps]

    def solve(self, facts: ProblemInfo) -> Steps:
        """Take the Newton steps, class by class, and return the head."""
        gradient, hessians = self._statistics(facts)
        transform = yield from self.centering.solve(facts, self.intercept)
        sizes = facts.n_features, facts.n_classes
        weights = zero_weights(transform, sizes, self.initial_bias)
        for _ in range(self.steps):
            params = Params(transform, weights.astype(np.float32))
            g = yield Request("gradient", gradient, params)
            h = yield Request("hessians", hessians, params)
            ridge = ridge_for(facts, h.noise_sd, self.ridge)
            # Hessian, ridge and gradient are sums over n rows, so the factor n cancels.
            # One-vs-rest losses: the classes' Newton systems are independent.
            steps = [
                RidgeSolver(h.value[j], ridge)(g.value[:, j])
                for j in range(facts.n_classes)
            ]
            xp = g.value.__array_namespace__()
            weights = weights - self.learning_rate * xp.stack(steps, axis=1)
        # scores of clipped and unclipped rows differ, so prediction clips too
        clip = prediction_clip(self.feature_clip, self.centering.norm, facts.mu)
        return head_of(weights, transform, "sigmoid", clip)

    def _statistics(self, facts: ProblemInfo) -> tuple[Gradient, SigmoidHessians]:
        m = facts.n_classes
        return Gradient(m, "sigmoid", "features"), SigmoidHessians(m)
