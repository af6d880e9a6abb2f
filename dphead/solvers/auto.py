"""Implement `auto`: a head with no hyperparameters to set.

The rules in `auto_rules` set the number of steps, the step size and the scaling from
public numbers, the budget and released values.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from dphead.privacy.statistics import (
    ClassCorrectCounts,
    ClassCounts,
    CorrectCounts,
)
from dphead.solvers.auto_rules import (
    DESCENT,
    SCALE_SHARE,
    WIDEST_UNNOISED_GRAM,
    AdaptiveStepSize,
    center_noise,
    center_share,
    count_shares,
    is_strong,
    private_descent,
    unnoised_descent,
    unnoised_dpfc,
)
from dphead.solvers.balancing import BALANCED, check_balanced
from dphead.solvers.balancing_rule import AFTER, BEFORE, better_head
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.expectation import (
    Expectation,
    accuracy_of_classes,
    expected_accuracy,
    expected_of_classes,
)
from dphead.solvers.feature_covariance import DPFC
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import LinearHead, params_of
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    OFF,
    POSITIVE,
    Range,
    Setting,
    check_settings,
)
from dphead.solvers.temperature import FirstGradient, cooled, temperature

_Scale = Literal["auto", "always", "never"]
_ESTIMATE = Setting("Spend 1 to 3 % of mu² to estimate the accuracy.")
_PER_CLASS_SHARE = Setting(
    "Fraction of mu² spent to measure the accuracy of each class.",
    Range("from 0 to 0.5", lambda v: 0 <= v <= 0.5),
    OFF,
    option=True,
)
_PRIOR = Setting(
    "Public initial weights (features, classes): an .npy file, or in Python an array.",
    source=OFF,
    option=True,
)
_BY_RULE = "None: `auto_rules`"
_SCALE = Setting(
    "Scale features: auto, always or never.", source="ablation", settable=False
)
_STEPS_OF_RULE = Setting(
    "Number of gradient steps.", AT_LEAST_ONE, _BY_RULE, settable=False
)
_MOVE = Setting(
    "Logits by which noise alone may move a weight.", POSITIVE, _BY_RULE, settable=False
)
_DESCENT_OF_RULE = Setting(
    "Settings of the descent that no rule sets.", source="`auto_rules`", settable=False
)


@dataclass(frozen=True)
class Auto:
    """Run full-batch gradient descent with automatic settings, then count correct rows.

    Parameters
    ----------
    estimate : bool, default True
        Spend 1 to 3 % of the budget (μ²) to estimate the accuracy on new rows. With
        `balanced`, this part also covers the counts that balance decisions.
    per_class_share : float, default 0
        Fraction of the budget (μ²) spent to estimate the accuracy of each class.
    prior : PublicPrior, optional
        Public head to start from.
    balanced : bool, default False
        Whether decisions weight all classes equally (`balancing`), unless released
        counts show that this is no better. The counts share the budget of `estimate`,
        if the fit has it.

    Notes
    -----
    In a fit with noise:

    - The step size lets noise alone move each weight by `move` over the whole descent
      (`private_descent`). Smaller steps lose signal. With larger steps, noise grows
      faster than signal.
    - Steps are longer if classes are well separated (`AdaptiveStepSize`), unless `move`
      or `prior` is set, or labels are sets of classes.
    - With softmax and no prior, there are more and longer steps if rows have few
      features and little noise. The head is the last iterate, not the moving average,
      if noise hides many classes.
    - Features of centered rows are scaled (`Centering.scale_share`) if n·μ is at least
      twice their number and their sizes differ.
    - If there are few rows, the fraction of μ² for the mean used for centering is
      larger than `centering.share` (`center_share`).
    - With softmax, scores are divided by a temperature, estimated from released values
      (`temperature`).

    Without noise, `DPFC` replaces the descent if the Gram matrix is narrow enough and
    `steps`, `move` and `prior` are not set.

    The fields `scale`, `steps`, `move` and `descent` serve ablations only
    (benchmarks/results/ablation).
    """

    estimate: Annotated[bool, _ESTIMATE] = True
    per_class_share: Annotated[float, _PER_CLASS_SHARE] = 0.0
    prior: Annotated[PublicPrior | None, _PRIOR] = None
    balanced: Annotated[bool, BALANCED] = False
    scale: Annotated[_Scale, _SCALE] = "auto"
    steps: Annotated[int | None, _STEPS_OF_RULE] = None
    move: Annotated[float | None, _MOVE] = None
    descent: Annotated[GradientDescent, _DESCENT_OF_RULE] = DESCENT
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "auto"
    takes_jax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_balanced(self.balanced, self.descent.loss, self.descent.intercept)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the centering releases, the gradients, and the counts.

        The centering releases include the feature squares if features may be scaled.
        A fit that uses DP-FC (`_preconditioned`) has the releases of DP-FC.
        """
        if self._preconditioned(facts):
            return self._without_noise(facts).plan(facts)
        releases = self.descent_for(facts).plan(facts)
        # Weights are relative: with this total, the counts get their shares of mu², and
        # the descent keeps the remaining part.
        whole = sum(p.weight for p in releases) / (1 - self._counts_share(facts))
        for label, (statistic, share) in self._counts(facts).items():
            one = statistic(facts.n_classes)
            releases.append(PlannedRelease(label, one, 1.0, whole * share))
        return releases

    def solve(self, facts: ProblemInfo) -> Steps:
        """Take the gradient steps, request the counts, and return the head."""
        if self._preconditioned(facts):
            return (yield from self._without_noise(facts).solve(facts))
        descent = self.descent_for(facts)
        # The rule that lengthens steps was tested for softmax without a prior only. For
        # sigmoids, trials with 0.6 to 3 logits instead of 0.9 were within 1.5
        # points at ε = 1 and 8, on synthetic labels and digits (not stored).
        softmax = descent.loss == "softmax"
        planned = self.move or self.prior or not softmax or _exact(facts)
        first = FirstGradient(None if planned else AdaptiveStepSize(facts, descent))
        head = yield from descent.solve(facts, first)
        found = before = None
        # weights before the temperature, which does not change the predicted classes
        asked = params_of(head)
        if self.balanced and not _exact(facts):
            statistic = ClassCorrectCounts(facts.n_classes)
            before = yield Request(BEFORE, statistic, asked)
            if self._estimates(facts):
                found = accuracy_of_classes(facts, descent, before)
        elif self._estimates(facts):
            found = yield from expected_accuracy(facts, descent, asked)
        if softmax and not _exact(facts):
            head = cooled(head, self._temperature(facts, first, head, found))
        if before is not None:
            noise, center = None, descent.centering
            # a prior's intercept does not follow the frequencies of these rows
            if isinstance(center, Centering) and center.share and not self.prior:
                noise = center_noise(facts, center.share)
            head = yield from better_head(facts, head, before, noise)
            asked = params_of(head)
            if found:  # the estimate above is for the head before balancing
                found = yield from expected_accuracy(facts, descent, asked)
        head = replace(head, estimate=found and found.estimate)
        if self._class_share(facts):
            classes = yield from expected_of_classes(facts, descent, asked)
            head = replace(head, class_accuracy=classes)
        return head

    def _temperature(
        self,
        facts: ProblemInfo,
        first: FirstGradient,
        head: LinearHead,
        found: Expectation | None,
    ) -> float:
        """Return the temperature of a head's scores (`temperature`)."""
        descent = self.descent_for(facts)
        margin = None
        # the margin is known only for rows of norm 1 and a descent from zero weights
        if found and not self.prior and descent.centering.norm:
            value, sd = first.margin(head, descent.learning_rate, descent.clip_norm)
            margin = value / found.kept, sd / found.kept
        return temperature(facts, found, margin)

    def _preconditioned(self, facts: ProblemInfo) -> bool:
        """Return whether this fit uses DP-FC: no noise, few features, no overrides."""
        asked = self.steps or self.move or self.prior
        narrow = facts.n_features < WIDEST_UNNOISED_GRAM
        return _exact(facts) and narrow and not asked

    def _without_noise(self, facts: ProblemInfo) -> DPFC:
        """Return the DP-FC solver for fits without noise.

        The solver regularizes by early stopping in directions of little variance.
        """
        solver = unnoised_dpfc(self.descent.loss)
        centering = self._centering(facts)
        return replace(solver, balanced=self.balanced, centering=centering)

    def _centering(self, facts: ProblemInfo) -> Centering | ChannelNormalization:
        centering = self.centering
        if not isinstance(centering, Centering):
            return centering
        centering = replace(centering, share=center_share(facts, centering.share))
        # The release of mean squares takes 1 % of mu², even if scaling by them then
        # changes nothing. So a weak budget is not spent on it.
        strong = self.scale == "auto" and is_strong(facts)
        if self.scale == "always" or strong:
            return replace(centering, scale_share=SCALE_SHARE)
        return centering

    def descent_for(self, facts: ProblemInfo) -> GradientDescent:
        """Return the gradient descent for these public sizes and this budget."""
        centering = self._centering(facts)
        descent = replace(self.descent, centering=centering, prior=self.prior)
        if _exact(facts):
            descent = unnoised_descent(facts, descent)
            steps = self.steps or descent.steps
            return replace(descent, steps=steps, balanced=self.balanced)
        left = 1 - SCALE_SHARE
        if isinstance(centering, Centering):
            left -= centering.share
        # the rule needs n·mu of the gradients, not of the whole budget
        left *= 1 - self._counts_share(facts)
        strength = facts.mu * facts.n_rows * math.sqrt(left)
        return private_descent(facts, descent, strength, self.steps, self.move)

    def _counts(self, facts: ProblemInfo) -> dict[str, tuple[type[ClassCounts], float]]:
        """Return the statistic and the share of μ² of each count, by its label.

        Labels are in the order of the releases.
        """
        if _exact(facts):
            return {}
        counts: dict[str, tuple[type[ClassCounts], float]] = {}
        before, after, last = count_shares(facts, self.balanced)
        if self.balanced:
            counts[BEFORE] = ClassCorrectCounts, before
            counts[AFTER] = ClassCorrectCounts, after
        if self._estimates(facts):
            counts["correct rows"] = CorrectCounts, last
        if own := self._class_share(facts):
            counts["correct rows of classes"] = ClassCorrectCounts, own
        return counts

    def _estimates(self, facts: ProblemInfo) -> bool:
        """Return whether the fit counts correct rows to estimate the accuracy."""
        # Without noise, the count would be the exact training accuracy. Means of groups
        # are easier to classify than images, so their count would be too high.
        return self.estimate and not _exact(facts) and not facts.group_mean

    def _class_share(self, facts: ProblemInfo) -> float:
        """Return the share of μ² for the counts of each class, 0 without noise.

        Raises ValueError if `per_class_share` is set and rows are means of groups.
        """
        if self.per_class_share and facts.group_mean:
            raise ValueError(
                "`per_class_share` needs images, and `group_mean` replaces them by "
                f"means, got per_class_share {self.per_class_share}. Drop one of the "
                "two."
            )
        return 0.0 if _exact(facts) else self.per_class_share

    def _counts_share(self, facts: ProblemInfo) -> float:
        """Return the share of μ² of all counts."""
        return sum(share for _, share in self._counts(facts).values())


def _exact(facts: ProblemInfo) -> bool:
    """Return whether sums carry no noise."""
    return math.isinf(facts.mu)
