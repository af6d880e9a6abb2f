"""`auto`: a head with nothing to choose.

Steps, step size and scaling follow from public numbers and the budget.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from dphead.privacy.query import Params
from dphead.privacy.statistics import ClassCorrectCounts, CorrectCounts
from dphead.solvers.auto_rules import (
    DESCENT,
    LENGTHEN_AT_MOST,
    LENGTHEN_FROM_SHARE,
    LIKELY_SHARE,
    LIKELY_SHARE_SD,
    LONGEST_STEP,
    MOVE_LOGITS,
    PRIOR_MOVE_LOGITS,
    SCALE_SHARE,
    SHARE_SD,
    UNNOISED_DECAY,
    UNNOISED_DESCENT_STEPS,
    UNNOISED_INTERCEPT,
    UNNOISED_MOMENTUM,
    UNNOISED_RATE,
    UNNOISED_RIDGE,
    UNNOISED_STEPS,
    WIDEST_UNNOISED_GRAM,
    center_share,
    count_share,
    is_strong,
    number_of_steps,
    rate,
)
from dphead.solvers.base import PlannedRelease, PublicFacts, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.expectation import expected_accuracy, expected_of_classes
from dphead.solvers.feature_covariance import DPFC
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import join_intercept
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    BELOW_ONE,
    OFF,
    POSITIVE,
    UP_TO_HALF,
    Setting,
    check_settings,
)

Scale = Literal["auto", "always", "never"]
ESTIMATE = Setting("Spend 1 to 3 % of mu² on the accuracy to expect.")
PER_CLASS_SHARE = Setting(
    "Share of mu² for the accuracy of each class, the worst one's above all.",
    UP_TO_HALF,
    OFF,
    option=True,
)
PRIOR = Setting(
    "A .npy of public weights (features, classes) to start from.",
    source=OFF,
    option=True,
)
BY_RULE = "None: `auto_rules`"
SCALE = Setting("Whether features are scaled.", source="ablation", settable=False)
STEPS_OF_RULE = Setting("Gradient steps.", AT_LEAST_ONE, BY_RULE, settable=False)
COUNT_SHARE_OF_RULE = Setting(
    "Share of mu² for the count.", BELOW_ONE, BY_RULE, settable=False
)
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
    least twice their number and they turn out to differ in size. The centre has more
    than `centering.share` where rows are few (`center_share`). Steps are longer where
    classes turn out to lie far apart (`Lengthening`), unless `move` is given or there
    is a prior. Its numbers: `auto_rules`. Fields beside those that are options are for
    measuring what each part is worth (benchmarks/results/ablation).
    """

    estimate: Annotated[bool, ESTIMATE] = True
    per_class_share: Annotated[float, PER_CLASS_SHARE] = 0.0
    prior: Annotated[PublicPrior | None, PRIOR] = None
    scale: Annotated[Scale, SCALE] = "auto"
    steps: Annotated[int | None, STEPS_OF_RULE] = None
    move: Annotated[float | None, MOVE] = None
    counted: Annotated[float | None, COUNT_SHARE_OF_RULE] = None
    descent: Annotated[GradientDescent, DESCENT_OF_RULE] = DESCENT
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "auto"

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The feature mean, the feature squares if rows are scaled, the gradients, and
        the counts.
        """
        if self._preconditioned(facts):
            return self._without_noise(facts).plan(facts)
        releases = self.descent_for(facts).plan(facts)
        counts = {
            "correct rows": (CorrectCounts, self._count_share(facts)),
            "correct rows of classes": (ClassCorrectCounts, self._class_share(facts)),
        }
        whole = sum(p.weight for p in releases) / (1 - self._counts_share(facts))
        for label, (query, share) in counts.items():
            if share:
                releases.append(
                    PlannedRelease(label, query(facts.n_classes), 1.0, whole * share)
                )
        return releases

    def solve(self, facts: PublicFacts) -> Steps:
        """Descend, then count."""
        if self._preconditioned(facts):
            return (yield from self._without_noise(facts).solve(facts))
        descent = self.descent_for(facts)
        planned = self.move is not None or self.prior is not None or _exact(facts)
        head = yield from descent.solve(
            facts, None if planned else Lengthening(facts, descent)
        )
        params = Params(head.transform, join_intercept(head).astype(np.float32))
        if self._count_share(facts):
            found = yield from expected_accuracy(facts, descent, params)
            head = replace(head, estimate=found)
        if self._class_share(facts):
            classes = yield from expected_of_classes(facts, descent, params)
            head = replace(head, class_accuracy=classes)
        return head

    def _preconditioned(self, facts: PublicFacts) -> bool:
        """Whether there is no noise, nothing else was asked for, and a Gram matrix is
        at hand.
        """
        asked = self.steps or self.move or self.prior
        narrow = facts.n_features < WIDEST_UNNOISED_GRAM
        return _exact(facts) and narrow and not asked

    def _without_noise(self, facts: PublicFacts) -> DPFC:
        """DP-FC stops early in directions of little variance, and needs few steps."""
        return DPFC(
            steps=UNNOISED_STEPS,
            ridge=UNNOISED_RIDGE,
            intercept=UNNOISED_INTERCEPT,
            centering=self._centering(facts),
        )

    def _centering(self, facts: PublicFacts) -> Centering | ChannelNormalization:
        centering = self.centering
        if not isinstance(centering, Centering):
            return centering
        centering = replace(centering, share=center_share(facts, centering.share))
        strong = self.scale == "auto" and is_strong(facts)
        if self.scale == "always" or strong:
            return replace(centering, scale_share=SCALE_SHARE)
        return centering

    def descent_for(self, facts: PublicFacts) -> GradientDescent:
        """The descent, for public sizes and a budget."""
        centering = self._centering(facts)
        if _exact(facts):
            return replace(
                self.descent,
                steps=self.steps or UNNOISED_DESCENT_STEPS,
                learning_rate=UNNOISED_RATE,
                momentum=UNNOISED_MOMENTUM,
                weight_decay=UNNOISED_DECAY / facts.n_rows,
                intercept=UNNOISED_INTERCEPT,
                normalize=False,
                average="last",
                centering=centering,
                prior=self.prior,
            )
        left = 1 - SCALE_SHARE
        if isinstance(centering, Centering):
            left -= centering.share
        left *= 1 - self._counts_share(facts)
        strength = facts.mu * facts.n_rows * math.sqrt(left)
        steps = self.steps or number_of_steps(facts)
        near = self.prior is not None and not is_strong(facts)
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
        if not self.estimate or _exact(facts):
            return 0.0
        return count_share(facts) if self.counted is None else self.counted

    def _class_share(self, facts: PublicFacts) -> float:
        """Nothing without privacy, as `_count_share`."""
        return 0.0 if _exact(facts) else self.per_class_share

    def _counts_share(self, facts: PublicFacts) -> float:
        return self._count_share(facts) + self._class_share(facts)


def _exact(facts: PublicFacts) -> bool:
    """Whether sums carry no noise."""
    return math.isinf(facts.mu)


class Lengthening:
    """Longer steps for a descent from zero where classes turn out to lie far apart,
    from its first gradients alone.

    At zero weights, n_classes - 1 times the squared norm of the mean clipped gradient
    over the clip norm is, for classes of equal size, the share of the rows' variance
    that lies between classes, and is divided by the decimal logarithm of n_classes,
    since finer cells of the same rows hold more of it. Gradients are averaged until its
    noise is down to SHARE_SD; before that, the share is what is likely of any data
    (LIKELY_SHARE), corrected by what was seen, each by its precision. So steps are
    somewhat longer while nothing is known: where noise hides the classes to the end,
    that gained or cost nothing. LENGTHEN_FROM_SHARE and more of it lengthens the steps
    that follow in proportion, up to LENGTHEN_AT_MOST: where classes' scores are further
    apart, noise may move them by more.
    """

    def __init__(self, facts: PublicFacts, descent: GradientDescent) -> None:
        longest = LONGEST_STEP * (1 - descent.momentum)
        self._most = min(LENGTHEN_AT_MOST, longest / descent.learning_rate)
        self._factor = 1.0
        self._n_features = facts.n_features
        # a squared norm's share of the variance
        self._unit = (facts.n_classes - 1) / math.log10(facts.n_classes)
        self._known = False
        self._seen = 0
        self._sum = np.zeros(())

    def __call__(self, gradient: np.ndarray, noise_sd: float) -> float:
        """The factor for this step.

        gradient: (width, n_classes) mean gradient over the clip norm, with its noise.
        """
        if not self._known:
            # without the intercept's, which holds classes' sizes
            rows = gradient[: self._n_features]
            self._sum = self._sum + rows
            self._seen += 1
            spread = self._unit * noise_sd**2 / self._seen
            sd = spread * math.sqrt(2 * rows.size)
            squared = float((self._sum**2).sum()) / self._seen**2
            share = self._unit * squared - spread * rows.size
            self._known = sd <= SHARE_SD
            if not self._known:
                trust = LIKELY_SHARE_SD**2 / (LIKELY_SHARE_SD**2 + sd**2)
                share = LIKELY_SHARE + trust * (share - LIKELY_SHARE)
            self._factor = min(self._most, max(1.0, share / LENGTHEN_FROM_SHARE))
        return self._factor
