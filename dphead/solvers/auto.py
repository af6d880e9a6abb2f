"""`auto`: a head with nothing to choose.

Steps, step size and scaling follow from public numbers and the budget.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from dphead.privacy.statistics import CorrectCount, Params
from dphead.solvers.base import Answer, Ask, PlannedRelease, PublicFacts, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import AccuracyEstimate, LinearHead, join_intercept
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior

# with little noise, longer steps on normalised gradients of unit rows were not better
LONGEST = 640.0
# of `_overfit`, and the share of it that is not known
PULL, FREEDOM, UNSURE = 2.3, 0.45, 0.6
MOVE = 0.9  # what noise alone may move a weight, in logits of unit rows
# the same from a prior where there is little signal: there is less far to go
PRIOR_MOVE = 0.6
# share of variance between ten classes from which steps are longer; by how much at most
APART, STRETCH = 0.2, 1.8
CLEAR = 0.1  # what noise may move that share
SCALE_SHARE = 0.01
# the average damps large steps that few features would make oscillate
DESCENT = GradientDescent(
    momentum=0.0,
    clip_norm=0.3,
    normalize=True,
    average="ema",
    ema_decay=0.9,
    intercept=0.3,
)


@dataclass(frozen=True)
class Auto:
    """Full-batch gradient descent that sets itself, and a count of the training rows
    that its head gets right.

    The step size is the one at which noise alone moves each weight by `move` over the
    whole descent (`rate`). Smaller steps leave signal behind; beyond, noise grows
    faster than signal. Features are scaled by a noisy standardisation where n·mu is at
    least twice their number and they turn out to differ in size. Steps are longer where
    classes turn out to lie far apart (`Lengthening`), unless `move` is given or there
    is a prior. estimate: spend 1 to 10 % of mu² on the count. prior: a public head to
    start from. The other fields are for measuring what each part is worth
    (benchmarks/ablation.py): scale, one of auto, always, never; steps and move, None
    for the rule; descent, what no rule sets.
    """

    estimate: bool = True
    prior: PublicPrior | None = None
    scale: Literal["auto", "always", "never"] = "auto"
    steps: int | None = None
    move: float | None = None
    descent: GradientDescent = DESCENT
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "auto"

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
                    "correct rows", CorrectCount(facts.n_classes), 1.0, weight
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
        centering, strength = self.centering, facts.mu * facts.n_rows
        clear = strength >= 2 * facts.n_features
        scaled = self.scale == "always" or (self.scale == "auto" and clear)
        if scaled and isinstance(centering, Centering):
            centering = replace(centering, scale_share=SCALE_SHARE)
        # the gradients'; 3 % for centring and scaling
        share = 0.97 * (1 - self._count_share(facts))
        # wide features take more, and DP-FC's Gram matrix too
        longest = 100 * max(1.0, facts.n_features / 1280)
        steps = self.steps or round(min(longest, max(60, 120 * strength / 1e4)))
        move = self.move or (MOVE if self.prior is None or clear else PRIOR_MOVE)
        speed = rate(strength * math.sqrt(share), steps, self.descent.momentum, move)
        return replace(
            self.descent,
            steps=steps,
            learning_rate=speed,
            centering=centering,
            prior=self.prior,
        )

    def _count_share(self, facts: PublicFacts) -> float:
        """1 % of mu², or what brings the count's noise down to a point of accuracy, but
        10 % at most.

        Nothing without privacy: the rows' own count would then be published, and far
        above new rows' accuracy.
        """
        if not self.estimate or math.isinf(facts.mu):
            return 0.0
        return min(0.1, max(0.01, (100 / (facts.mu * facts.n_rows)) ** 2))

    def _expected(
        self, facts: PublicFacts, descent: GradientDescent, head: LinearHead
    ) -> Generator[Ask, Answer, AccuracyEstimate]:
        weights = join_intercept(head).astype(np.float32)
        answer = yield Ask(
            "correct rows",
            CorrectCount(facts.n_classes),
            Params(head.transform, weights),
        )
        n = facts.n_rows
        seen = min(1.0, max(1 / facts.n_classes, float(answer.value[0, 0]) / n))
        gap = _overfit(facts, descent, seen)
        sd = math.sqrt(
            (answer.noise_sd / n) ** 2
            + max(seen * (1 - seen), 1 / n) / n
            + (UNSURE * gap) ** 2
        )
        middle = seen - gap
        return AccuracyEstimate(
            middle, max(0.0, middle - 1.645 * sd), min(1.0, middle + 1.645 * sd)
        )


class Lengthening:
    """Longer steps for a descent from zero where classes turn out to lie far apart,
    from its first gradients alone.

    At zero weights, n_classes - 1 times the squared norm of the mean clipped gradient
    over the clip norm is, for classes of equal size, the share of the rows' variance
    that lies between classes, and is divided by the decimal logarithm of n_classes,
    since finer cells of the same rows hold more of it. As many gradients are averaged
    as bring its noise down to CLEAR; if that takes more than a quarter of the steps, it
    stays unknown. APART and more of it lengthens the steps that follow in proportion,
    up to STRETCH: where classes' scores are further apart, noise may move them by more.
    benchmarks/results/ablation has the gains.
    """

    def __init__(self, facts: PublicFacts, descent: GradientDescent) -> None:
        longest = LONGEST * (1 - descent.momentum)
        self._most = (
            min(STRETCH, longest / descent.learning_rate)
            if descent.learning_rate
            else 1.0
        )
        self._factor, self._features = 1.0, facts.n_features
        self._unit = (facts.n_classes - 1) / math.log10(facts.n_classes)
        self._allowed, self._seen, self._sum = descent.steps / 4, 0, np.zeros(())

    def __call__(self, gradient: np.ndarray, noise_sd: float) -> float:
        """The factor for this step.

        gradient: (width, n_classes) mean gradient over the clip norm, with its noise.
        """
        # without the intercept's, which holds classes' sizes
        rows = gradient[: self._features]
        spread = self._unit * noise_sd**2
        wanted = max(1, math.ceil(spread * math.sqrt(2 * rows.size) / CLEAR))
        if self._seen < wanted <= self._allowed:
            self._sum, self._seen = self._sum + rows, self._seen + 1
            if self._seen == wanted:
                mean = self._sum / wanted
                share = (
                    self._unit * float((mean**2).sum()) - spread * rows.size / wanted
                )
                self._factor, self._sum = (
                    min(self._most, max(1.0, share / APART)),
                    np.zeros(()),
                )
        return self._factor


def rate(
    strength: float, steps: int, momentum: float = DESCENT.momentum, move: float = MOVE
) -> float:
    """Step on normalised gradients at which noise alone moves a weight by `move`.

    strength: n·mu of all steps together.

    The mean clipped gradient over the clip norm has noise sqrt(steps)/strength a step,
    which momentum multiplies by 1/(1 - momentum), and `steps` independent steps by
    their square root. LONGEST bounds it where there is little noise.
    """
    return (1 - momentum) * min(LONGEST, move * strength / steps)


def _overfit(facts: PublicFacts, descent: GradientDescent, seen: float) -> float:
    """How much better a head does on its training rows, of which it gets the share
    `seen` right, than on new ones.

    A row pulls the head towards itself by at most the length of all steps over n, which
    moves its own margin; less where many rows share its directions, hence the second
    power of n. If margins are Gaussian, that many of their deviations are lost on new
    rows. Free parameters save at most their number over n. PULL is a compromise between
    held-out training rows of CIFAR-10's MobileNetV2 features (2.8 for fits on 2,000 and
    on 40,000) and of digits (1 to 2.5): it depends on how few directions the features
    have, which is not public. Hence UNSURE: with it 90 % intervals held 92 % of these.
    What `Lengthening` adds does not count: where classes lie far apart, rows share
    directions, which took back more (benchmarks/results/expected).
    """
    length = (
        descent.learning_rate * descent.steps / (1 - descent.momentum) / facts.n_rows
    )
    shift = PULL * length**0.8 * facts.n_rows**-0.3
    lost = seen - float(ndtr(ndtri(seen) - shift))
    return min(lost, FREEDOM * (facts.n_classes - 1) * facts.n_features / facts.n_rows)
