"""Implement DP-FC: gradient steps preconditioned by one noisy Gram matrix."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.loss import loss_named
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import Gradient, Gram
from dphead.privacy.transform import RowTransform
from dphead.solvers.balancing import (
    BALANCED,
    balanced_head,
    check_balanced,
    planned_counts,
)
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.head import head_of, zero_weights
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.ridge import WIDEST_SPECTRUM, RidgeSolver, ridge_for
from dphead.solvers.rounding import check_clip, check_intercept
from dphead.solvers.settings import (
    CLIP_NORM,
    FEATURE_CLIP,
    INITIAL_BIAS,
    INTERCEPT,
    LEARNING_RATE,
    LOSS,
    RIDGE,
    SHARE,
    SHRINK,
    STEPS,
    TRIALS,
    Setting,
    check_settings,
)
from dphead.solvers.shrinkage import shrunk_gram

# Ridge of a shrunk matrix, as a share of the noise's spectral edge. Chosen among 0.3 to
# 0.6 on held-out rows (results/ablation, "DP-FC's preconditioner").
_SHRUNK_SHARE = 0.4
_BOHNING = "None: Böhning 1992's bound, by the loss"
_GRAM_SHARE = Setting(
    "Fraction of mu² for the Gram matrix; in Python, None: the same noise as the "
    "gradients.",
    SHARE,
    TRIALS,
    option=True,
)
_GRAM_INTERCEPT = Setting(
    "Include the intercept in the Gram matrix; otherwise the intercept has its own "
    "step."
)


@dataclass(frozen=True)
class DPFC:
    """Take gradient steps preconditioned by the noisy Gram matrix.

    Parameters
    ----------
    steps : int, default 10
        Number of gradient steps.
    learning_rate : float, optional
        Step length η. None uses the loss's `monotone_step`, at which no step increases
        the loss without noise and clipping.
    ridge : float, optional
        λ, in units of the mean Gram matrix. None sets λ from the noise.
    gram_share : float or None, default 0.15
        Fraction of the budget (μ²) for the Gram matrix, of the part that centering
        leaves. Gradients share the rest. None gives both the same noise, as in FC23.
    gram_intercept : bool, default True
        Whether the Gram matrix includes the appended constant. If False, only the
        gradients include the constant, so the noise of the Gram matrix does not grow
        with the constant (FC23).
    shrink : bool, default True
        Remove the noise's part from the eigenvalues of G̃ (`shrunk_gram`). It has no
        effect without noise or with more than 2,048 columns.
    balanced : bool, default False
        Whether decisions weight all classes equally (`balancing`).

    Notes
    -----
    One step is W ← W - η (G̃/n + λ)⁻¹ g̃/n.

    References
    ----------
    FC23, Algorithm 4.
    """

    steps: Annotated[int, STEPS.default_from("FC23 Tables 2-4: 1, 10 or 100")] = 10
    learning_rate: Annotated[float | None, LEARNING_RATE.default_from(_BOHNING)] = None
    ridge: Annotated[float | None, RIDGE] = None
    gram_share: Annotated[float | None, _GRAM_SHARE] = 0.15
    loss: Annotated[str, LOSS] = "softmax"
    clip_norm: Annotated[float, CLIP_NORM] = 1.0
    feature_clip: Annotated[float, FEATURE_CLIP] = 1.0
    intercept: Annotated[float, INTERCEPT] = 0.0
    gram_intercept: Annotated[bool, _GRAM_INTERCEPT] = True
    initial_bias: Annotated[float, INITIAL_BIAS] = 0.0
    shrink: Annotated[bool, SHRINK] = True
    balanced: Annotated[bool, BALANCED] = False
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "dp-fc"
    takes_jax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_balanced(self.balanced, self.loss, self.intercept)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the centering releases, the Gram matrix, and `steps` gradients.

        The class counts follow if decisions are balanced.

        Raises ValueError if the intercept or a clip norm does not fit the rows.
        """
        joined = self.intercept if self.gram_intercept else 0.0
        check_clip(facts, joined, self.feature_clip, self.centering.norm)
        check_intercept(facts, self.intercept, self.centering.norm)
        # equal shares of mu² are equal noise multipliers: FC23 charges (T + 1) / (2σ²)
        share = 1 / (self.steps + 1) if self.gram_share is None else self.gram_share
        gradient = PlannedRelease(
            "gradient",
            Gradient(facts.n_classes, self.loss),
            self.clip_norm,
            (1 - share) / self.steps,
        )
        gram = PlannedRelease("gram", Gram(facts.n_classes), self.feature_clip, share)
        # the shares of the Gram matrix and the gradients add up to 1
        counts = planned_counts(facts, 1.0) if self.balanced else []
        rest = 1.0 + sum(one.weight for one in counts)
        steps = [gradient] * self.steps
        return [*self.centering.plan(facts, rest), gram, *steps, *counts]

    def solve(self, facts: ProblemInfo) -> Steps:
        """Release the Gram matrix once, take the steps, and return the head."""
        transform = yield from self.centering.solve(facts, self.intercept)
        solve = yield from self._preconditioner(facts, transform)
        statistic = Gradient(facts.n_classes, self.loss)
        # Böhning 1992: the Hessian is at most G/2 (softmax) or G/4 (sigmoid). So steps
        # of length 2 or 4 never increase the loss, without noise and clipping.
        rate = self.learning_rate or loss_named(self.loss).monotone_step
        sizes = facts.n_features, facts.n_classes
        weights = zero_weights(transform, sizes, self.initial_bias)
        for _ in range(self.steps):
            answer = yield Request(
                "gradient", statistic, Params(transform, weights.astype(np.float32))
            )
            # Gram matrix, ridge and gradient are sums over n rows, so the factor n
            # cancels
            weights = weights - rate * solve(answer.value)
        head = head_of(weights, transform, self.loss)
        return (yield from balanced_head(facts, head)) if self.balanced else head

    def _preconditioner(
        self, facts: ProblemInfo, transform: RowTransform
    ) -> Generator[Request, Released, RidgeSolver]:
        """Release the Gram matrix, and return a solver for it plus the ridge.

        With `shrink`, the eigenvalues of a noisy matrix are shrunk first, unless it has
        more than WIDEST_SPECTRUM columns.

        A constant outside the Gram matrix becomes a border, which needs no release. The
        border has n times the square of the clipped constant, which is public, and zero
        for the products of the constant with features.
        """
        statistic, constant = Gram(facts.n_classes), transform.append
        bordered = constant and not self.gram_intercept
        rows = replace(transform, append=0.0) if bordered else transform
        released = yield Request("gram", statistic, Params(rows))
        gram, share = released.value, None
        if self.shrink and released.noise_sd and len(gram) <= WIDEST_SPECTRUM:
            gram, share = shrunk_gram(released), _SHRUNK_SHARE
        if bordered:
            # without noise, rows are not clipped, and neither is the constant
            clip = self.feature_clip if np.isfinite(facts.mu) else np.inf
            xp = gram.__array_namespace__()
            edge = xp.zeros((len(gram), 1))
            square = xp.full((1, 1), facts.n_rows * min(constant, clip) ** 2)
            gram = xp.block([[gram, edge], [edge.T, square]])
        ridge = ridge_for(facts, released.noise_sd, self.ridge, share)
        return RidgeSolver(gram, ridge)
