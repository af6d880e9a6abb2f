"""`auto`: a head with nothing to choose.

Steps, step size and scaling follow from public numbers and the budget.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from scipy.special import ndtr, ndtri

from dphead.privacy.statistics import CorrectCounts, Params
from dphead.solvers.auto_rules import (
    DESCENT,
    GAP_PER_PARAMETER,
    GAP_RELATIVE_SD,
    GRADIENTS_SHARE,
    LENGTHEN_AT_MOST,
    LENGTHEN_FROM_SHARE,
    LONGEST_STEP,
    LOOK_AT_MOST,
    MARGIN_SHIFT,
    MOVE_LOGITS,
    NORMAL_95,
    PRIOR_MOVE_LOGITS,
    SCALE_SHARE,
    SHARE_SD,
    SHIFT_POWER_OF_LENGTH,
    SHIFT_POWER_OF_ROWS,
    count_share,
    is_strong,
    number_of_steps,
    rate,
)
from dphead.solvers.base import Answer, Ask, PlannedRelease, PublicFacts, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import AccuracyEstimate, LinearHead, join_intercept
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    OFF,
    POSITIVE,
    Setting,
    check_settings,
)

Scale = Literal["auto", "always", "never"]
ESTIMATE = Setting("Spend 1 to 10 % of mu² on the accuracy to expect.")
PRIOR = Setting(
    "A .npy of public weights (features, classes) to start from.",
    source=OFF,
    option=True,
)
BY_RULE = "None: `auto_rules`"
SCALE = Setting("Whether features are scaled.", source="ablation", settable=False)
STEPS_OF_RULE = Setting("Gradient steps.", AT_LEAST_ONE, BY_RULE, settable=False)
MOVE = Setting(
    "Logits by which noise alone may move a weight.", POSITIVE, BY_RULE, settable=False
)
DESCENT_OF_RULE = Setting("What no rule sets.", source="`auto_rules`", settable=False)


@dataclass(frozen=True)
class Auto:
    """Full-batch gradient descent that sets itself, and a count of the training rows
    that its head gets right.

    The step size is the one at which noise alone moves each weight by `move` over the
    whole descent (`rate`). Smaller steps leave signal behind; beyond, noise grows
    faster than signal. Features are scaled by a noisy standardisation where n·mu is at
    least twice their number and they turn out to differ in size. Steps are longer where
    classes turn out to lie far apart (`Lengthening`), unless `move` is given or there
    is a prior. Its numbers: `auto_rules`. Fields beside estimate and prior are for
    measuring what each part is worth (benchmarks/experiments/ablation.py).
    """

    estimate: Annotated[bool, ESTIMATE] = True
    prior: Annotated[PublicPrior | None, PRIOR] = None
    scale: Annotated[Scale, SCALE] = "auto"
    steps: Annotated[int | None, STEPS_OF_RULE] = None
    move: Annotated[float | None, MOVE] = None
    descent: Annotated[GradientDescent, DESCENT_OF_RULE] = DESCENT
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "auto"

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The feature mean, the feature squares if rows are scaled, the gradients, and
        the count.
        """
        releases = self._descent(facts).plan(facts)
        share, rest = self._count_share(facts), sum(p.weight for p in releases)
        if share:
            weight = rest * share / (1 - share)
            releases.append(
                PlannedRelease(
                    "correct rows", CorrectCounts(facts.n_classes), 1.0, weight
                )
            )
        return releases

    def solve(self, facts: PublicFacts) -> Steps:
        """Descend, then count."""
        descent = self._descent(facts)
        planned = self.move is not None or self.prior is not None
        head = yield from descent.solve(
            facts, None if planned else Lengthening(facts, descent)
        )
        if self._count_share(facts):
            return replace(
                head, estimate=(yield from self._expected(facts, descent, head))
            )
        return head

    def _descent(self, facts: PublicFacts) -> GradientDescent:
        centering = self.centering
        strong = is_strong(facts)
        scaled = self.scale == "always" or (self.scale == "auto" and strong)
        if scaled and isinstance(centering, Centering):
            centering = replace(centering, scale_share=SCALE_SHARE)
        share = GRADIENTS_SHARE * (1 - self._count_share(facts))
        strength = facts.mu * facts.n_rows * math.sqrt(share)
        steps = self.steps or number_of_steps(facts)
        near = self.prior is not None and not strong
        move = self.move or (PRIOR_MOVE_LOGITS if near else MOVE_LOGITS)
        return replace(
            self.descent,
            steps=steps,
            learning_rate=rate(strength, steps, self.descent.momentum, move),
            centering=centering,
            prior=self.prior,
        )

    def _count_share(self, facts: PublicFacts) -> float:
        """Nothing without privacy: the rows' own count would then be published, and far
        above new rows' accuracy.
        """
        if not self.estimate or math.isinf(facts.mu):
            return 0.0
        return count_share(facts)

    def _expected(
        self, facts: PublicFacts, descent: GradientDescent, head: LinearHead
    ) -> Generator[Ask, Answer, AccuracyEstimate]:
        weights = join_intercept(head).astype(np.float32)
        answer = yield Ask(
            "correct rows",
            CorrectCounts(facts.n_classes),
            Params(head.transform, weights),
        )
        n = facts.n_rows
        seen = float(answer.value[0, 0]) / n
        seen = min(1.0, max(1 / facts.n_classes, seen))
        gap = _overfit(facts, descent, seen)
        noise = answer.noise_sd / n
        sampling = max(seen * (1 - seen), 1 / n) / n
        sd = math.sqrt(noise**2 + sampling + (GAP_RELATIVE_SD * gap) ** 2)
        half = NORMAL_95 * sd
        middle = seen - gap
        return AccuracyEstimate(
            middle, max(0.0, middle - half), min(1.0, middle + half)
        )


class Lengthening:
    """Longer steps for a descent from zero where classes turn out to lie far apart,
    from its first gradients alone.

    At zero weights, n_classes - 1 times the squared norm of the mean clipped gradient
    over the clip norm is, for classes of equal size, the share of the rows' variance
    that lies between classes, and is divided by the decimal logarithm of n_classes,
    since finer cells of the same rows hold more of it. As many gradients are averaged
    as bring its noise down to SHARE_SD; if that takes more than LOOK_AT_MOST of the
    steps, it stays unknown. LENGTHEN_FROM_SHARE and more of it lengthens the steps that
    follow in proportion, up to LENGTHEN_AT_MOST: where classes' scores are further
    apart, noise may move them by more.
    """

    def __init__(self, facts: PublicFacts, descent: GradientDescent) -> None:
        longest = LONGEST_STEP * (1 - descent.momentum)
        self._most = min(LENGTHEN_AT_MOST, longest / descent.learning_rate)
        self._factor = 1.0
        self._n_features = facts.n_features
        # a squared norm's share of the variance
        self._unit = (facts.n_classes - 1) / math.log10(facts.n_classes)
        self._allowed = LOOK_AT_MOST * descent.steps
        self._seen = 0
        self._sum = np.zeros(())

    def __call__(self, gradient: np.ndarray, noise_sd: float) -> float:
        """The factor for this step.

        gradient: (width, n_classes) mean gradient over the clip norm, with its noise.
        """
        # without the intercept's, which holds classes' sizes
        rows = gradient[: self._n_features]
        spread = self._unit * noise_sd**2
        wanted = max(1, math.ceil(spread * math.sqrt(2 * rows.size) / SHARE_SD))
        if self._seen < wanted <= self._allowed:
            self._sum = self._sum + rows
            self._seen += 1
            if self._seen == wanted:
                mean = self._sum / wanted
                found = self._unit * float((mean**2).sum())
                share = found - spread * rows.size / wanted
                factor = max(1.0, share / LENGTHEN_FROM_SHARE)
                self._factor = min(self._most, factor)
                self._sum = np.zeros(())
        return self._factor


def _overfit(facts: PublicFacts, descent: GradientDescent, seen: float) -> float:
    """How much better a head does on its training rows, of which it gets the share
    `seen` right, than on new ones.

    A row pulls the head towards itself by at most the length of all steps over n, which
    moves its own margin; less where many rows share its directions, hence a further
    power of n. If margins are Gaussian, that many of their deviations are lost on new
    rows. Free parameters save at most their number over n. MARGIN_SHIFT is a compromise
    between data sets: it depends on how few directions the features have, which is not
    public. Hence GAP_RELATIVE_SD. What `Lengthening` adds does not count: where classes
    lie far apart, rows share directions, which took back more
    (benchmarks/results/expected).
    """
    n = facts.n_rows
    length = descent.learning_rate * descent.steps / (1 - descent.momentum) / n
    shift = MARGIN_SHIFT * length**SHIFT_POWER_OF_LENGTH * n**SHIFT_POWER_OF_ROWS
    lost = seen - float(ndtr(ndtri(seen) - shift))
    n_free = (facts.n_classes - 1) * facts.n_features
    return min(lost, GAP_PER_PARAMETER * n_free / n)
