"""`auto`: a head with nothing to choose.

Steps, step size and scaling follow from public numbers and the budget.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from scipy.special import ndtr, ndtri

from dphead.privacy.query import Params
from dphead.privacy.statistics import ClassCorrectCounts, CorrectCounts
from dphead.solvers.auto_rules import (
    DESCENT,
    GAP_PER_PARAMETER,
    GAP_RELATIVE_SD,
    LENGTHEN_AT_MOST,
    LENGTHEN_FROM_SHARE,
    LIKELY_SHARE,
    LIKELY_SHARE_SD,
    LONGEST_STEP,
    MARGIN_SHIFT,
    MOVE_LOGITS,
    NORMAL_95,
    PRIOR_MOVE_LOGITS,
    SCALE_SHARE,
    SHARE_SD,
    SHIFT_CLASSES,
    SHIFT_POWER_OF_CLASSES,
    SHIFT_POWER_OF_LENGTH,
    SHIFT_POWER_OF_ROWS,
    SHIFT_POWER_OF_WRONG,
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
from dphead.solvers.base import Answer, Ask, PlannedRelease, PublicFacts, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.feature_covariance import DPFC
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import (
    AccuracyEstimate,
    ClassAccuracy,
    join_intercept,
)
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
    measuring what each part is worth (benchmarks/experiments/ablation.py).
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
        releases = self._descent(facts).plan(facts)
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
        descent = self._descent(facts)
        planned = self.move is not None or self.prior is not None or _exact(facts)
        head = yield from descent.solve(
            facts, None if planned else Lengthening(facts, descent)
        )
        params = Params(head.transform, join_intercept(head).astype(np.float32))
        if self._count_share(facts):
            found = yield from _expected(facts, descent, params)
            head = replace(head, estimate=found)
        if self._class_share(facts):
            classes = yield from _of_classes(facts, descent, params)
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

    def _descent(self, facts: PublicFacts) -> GradientDescent:
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


def _expected(
    facts: PublicFacts, descent: GradientDescent, params: Params
) -> Generator[Ask, Answer, AccuracyEstimate]:
    answer = yield Ask("correct rows", CorrectCounts(facts.n_classes), params)
    kept, seen, noise = _counted(answer, 1 / facts.n_classes)
    units = max(1.0, kept / facts.group_cap)
    chance = 1 / facts.n_classes
    gap = min(_overfit(facts, descent, seen, units), max(0.0, seen - chance))
    middle, sd = _on_new(seen, noise, units, gap)
    return _interval(middle, sd, NORMAL_95)


def _of_classes(
    facts: PublicFacts, descent: GradientDescent, params: Params
) -> Generator[Ask, Answer, ClassAccuracy]:
    query = ClassCorrectCounts(facts.n_classes)
    answer = yield Ask("correct rows of classes", query, params)
    units = max(1.0, float(answer.value.sum()) / facts.group_cap)
    found = []
    for counts in answer.value:
        own = Answer(counts[:, None], answer.noise_sd)
        kept, seen, noise = _counted(own, 0.0)
        gap = _overfit(facts, descent, seen, units)
        own_units = max(1.0, kept / facts.group_cap)
        found.append(_on_new(seen, noise, own_units, gap))
    each = tuple(_interval(middle, sd, NORMAL_95) for middle, sd in found)
    # of all classes at once (Bonferroni): the least of their bounds is a bound of the
    # least
    joint = float(ndtri(1 - (1 - float(ndtr(NORMAL_95))) / facts.n_classes))
    bounds = [_interval(middle, sd, joint) for middle, sd in found]
    weakest = min(range(len(each)), key=lambda position: each[position].accuracy)
    worst = AccuracyEstimate(
        each[weakest].accuracy,
        min(one.low for one in bounds),
        min(one.high for one in bounds),
    )
    return ClassAccuracy(each, weakest, worst)


def _on_new(seen: float, noise: float, units: float, gap: float) -> tuple[float, float]:
    """(accuracy on new rows, its standard deviation) of the share that is seen of
    `units` that count, with its noise, less what is lost on new rows.
    """
    sampling = max(seen * (1 - seen), 1 / units) / units
    sd = math.sqrt(noise**2 + sampling + (GAP_RELATIVE_SD * gap) ** 2)
    return seen - gap, sd


def _interval(middle: float, sd: float, deviations: float) -> AccuracyEstimate:
    half = deviations * sd
    return AccuracyEstimate(middle, max(0.0, middle - half), min(1.0, middle + half))


def _counted(answer: Answer, least: float) -> tuple[float, float, float]:
    """(number of rows that count, share of them that the head gets right, standard
    deviation of the noise in that share), from noisy `CorrectCounts`. least: the share
    is no smaller.

    Rows without a class, unreadable or beyond their group's cap are in neither count,
    and n says nothing of how many they are.
    """
    right, wrong = (float(v) for v in answer.value[:, 0])
    kept = max(right + wrong, answer.noise_sd, 1.0)
    # a count of all rows is no certainty: the rule of succession
    seen = min(1 - 1 / (kept + 2), max(least, right / kept))
    return kept, seen, answer.noise_sd * math.hypot(seen, 1 - seen) / kept


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


def _overfit(
    facts: PublicFacts, descent: GradientDescent, seen: float, units: float
) -> float:
    """How much better a head does on its training rows, of which it gets the share
    `seen` right, than on new ones.

    units: rows that count, or groups of them that are protected together: their rows
    may be alike, and then pull together (results/expected).

    A unit pulls the head towards itself by at most the length of all steps times its
    share of n, which moves its own margin; less where many units share its directions,
    hence a further power of their number, and less once it is right, hence one of the
    share that is wrong. If margins are Gaussian, that many of their deviations are lost
    on new rows, and more among many classes, which divide the same features' variance.
    Free parameters save at most their number over that of units. MARGIN_SHIFT is a
    compromise between data sets, which differ by no public number that was found
    (benchmarks/results/expected). Hence GAP_RELATIVE_SD. What `Lengthening` adds does
    not count: where classes lie far apart, rows share directions.
    """
    pull = descent.learning_rate * descent.steps / (1 - descent.momentum)
    length = facts.group_cap * pull / facts.n_rows
    shift = MARGIN_SHIFT * length**SHIFT_POWER_OF_LENGTH * units**SHIFT_POWER_OF_ROWS
    shift *= (1 - seen) ** SHIFT_POWER_OF_WRONG
    shift *= max(1.0, facts.n_classes / SHIFT_CLASSES) ** SHIFT_POWER_OF_CLASSES
    lost = seen - float(ndtr(ndtri(seen) - shift))
    n_free = (facts.n_classes - 1) * facts.n_features
    return min(lost, GAP_PER_PARAMETER * n_free / units)
