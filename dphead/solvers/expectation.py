"""Estimate the accuracy of `auto`'s head on new rows.

The estimate uses noisy counts of the training rows that the head classifies correctly.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

from scipy.special import ndtr, ndtri

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassCorrectCounts, CorrectCounts
from dphead.solvers.base import ProblemInfo, Request
from dphead.solvers.centering import rows_that_count
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import AccuracyEstimate, ClassAccuracy

# Overfitting: the gap between training rows and new rows (`_overfit`). The source is
# the folder "expected" in benchmarks/results, section "What overfitting costs". The
# first four numbers are the constant and the powers in the shift of margins. They come
# from fits of five sets of features on 1,077 to 50,000 rows, measured on different
# training rows.
_MARGIN_SHIFT = 1.6
_SHIFT_POWER_OF_LENGTH, _SHIFT_POWER_OF_ROWS = 0.75, -0.2
_SHIFT_POWER_OF_WRONG = 0.15
# Above _SHIFT_CLASSES classes, the shift grows with their number: 36 fits on 20 to 100
# classes of CIFAR-100 (section "Many classes and groups, again").
_SHIFT_CLASSES, _SHIFT_POWER_OF_CLASSES = 10, 0.1
# The gap is at most this times the free parameters per unit. From trials with synthetic
# classes.
_GAP_PER_PARAMETER = 0.45
# Relative standard deviation of gaps up to _GAP_KNOWN. For larger gaps, it falls with
# the root of the gap. Of 264 intervals that should contain the measured accuracy with
# 90 % probability, 93 % do (section "Coverage by kind").
_GAP_RELATIVE_SD, _GAP_KNOWN = 0.6, 0.03
# Up to this number of classes, _GAP_RELATIVE_SD holds for large gaps too (section "Two
# classes").
_FEW_CLASSES = 5
_NORMAL_95 = 1.645  # 90 % of a standard normal is within ± this


@dataclass(frozen=True)
class Expectation:
    """Hold the expected accuracy on new rows, and its standard deviation.

    `kept` is the number of used rows, divided by n_rows. It is 1 if noise explains the
    difference. `careful`, if given, replaces `accuracy` and `sd` in `estimate`.
    """

    accuracy: float
    sd: float
    kept: float = 1.0
    careful: tuple[float, float] | None = None

    @property
    def estimate(self) -> AccuracyEstimate:
        """Return the accuracy with its 90 % interval."""
        return _interval(*(self.careful or (self.accuracy, self.sd)), _NORMAL_95)


def expected_accuracy(
    facts: ProblemInfo, descent: GradientDescent, params: Params
) -> Generator[Request, Released, Expectation]:
    """Request counts of correct and wrong rows, and return the expected accuracy."""
    answer = yield Request("correct rows", CorrectCounts(facts.n_classes), params)
    return _accuracy(facts, descent, answer)


def accuracy_of_classes(
    facts: ProblemInfo, descent: GradientDescent, answer: Released
) -> Expectation:
    """Return the expected accuracy, from released `ClassCorrectCounts`."""
    noise = math.sqrt(facts.n_classes) * answer.noise_sd
    return _accuracy(facts, descent, Released(answer.value.sum(axis=0)[:, None], noise))


def _accuracy(
    facts: ProblemInfo, descent: GradientDescent, answer: Released
) -> Expectation:
    """Return the expected accuracy, from released `CorrectCounts`."""
    # a noisy share below chance level is noise: a head can always guess
    kept, seen, noise = counted(answer, 1 / facts.n_classes)
    units = max(1.0, kept / facts.group_cap)
    found = on_all_classes(facts, descent, seen, noise, units)
    both = Released(answer.value.sum(keepdims=True), math.sqrt(2) * answer.noise_sd)
    kept = rows_that_count(both, facts.n_rows)
    return replace(found, kept=kept / facts.n_rows)


def on_all_classes(
    facts: ProblemInfo,
    descent: GradientDescent,
    seen: float,
    noise: float,
    units: float,
) -> Expectation:
    """Return the expected accuracy on new rows of all classes.

    `_overfit` and `_on_new` describe the parameters.
    """
    chance = 1 / facts.n_classes
    most = max(0.0, seen - chance)
    gap = min(_overfit(facts, descent, seen, units), most)
    found = _on_new(facts, seen, noise, units, gap)
    careful = None
    if facts.n_classes <= _FEW_CLASSES and facts.group_cap == 1:
        # Noise can make the accuracy look high and so the gap small: assume a lower
        # accuracy.
        likely = max(chance, seen - noise)
        gap = min(_overfit(facts, descent, likely, units), most)
        careful = _on_new(facts, seen, noise, units, gap, known=gap)
    return Expectation(*found, careful=careful)


def expected_of_classes(
    facts: ProblemInfo, descent: GradientDescent, params: Params
) -> Generator[Request, Released, ClassAccuracy]:
    """Request the counts of each class, and return their expected accuracies.

    The interval of the worst class comes from simultaneous intervals of all classes.
    """
    statistic = ClassCorrectCounts(facts.n_classes)
    answer = yield Request("correct rows of classes", statistic, params)
    units = max(1.0, float(answer.value.sum()) / facts.group_cap)
    found = []
    for counts in answer.value:
        own = Released(counts[:, None], answer.noise_sd)
        kept, seen, noise = counted(own, 0.0)
        # the head overfits all classes together, so `units` counts all rows
        gap = _overfit(facts, descent, seen, units)
        own_units = max(1.0, kept / facts.group_cap)
        found.append(_on_new(facts, seen, noise, own_units, gap))
    each = tuple(_interval(middle, sd, _NORMAL_95) for middle, sd in found)
    mean, mean_sd = (sum(values) / len(found) for values in zip(*found, strict=True))
    balanced = _interval(mean, mean_sd, _NORMAL_95)
    # Bonferroni: intervals that hold for all classes at once. The lowest of their
    # bounds is then a bound on the lowest accuracy.
    joint = float(ndtri(1 - (1 - float(ndtr(_NORMAL_95))) / facts.n_classes))
    bounds = [_interval(middle, sd, joint) for middle, sd in found]
    weakest = min(range(len(each)), key=lambda position: each[position].accuracy)
    worst = AccuracyEstimate(
        each[weakest].accuracy,
        min(one.low for one in bounds),
        min(one.high for one in bounds),
    )
    return ClassAccuracy(each, balanced, weakest, worst)


def _on_new(
    facts: ProblemInfo,
    seen: float,
    noise: float,
    units: float,
    gap: float,
    known: float = _GAP_KNOWN,
) -> tuple[float, float]:
    """Return the accuracy on new rows, and its standard deviation.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes.
    seen : float
        Share of training rows that the head classifies correctly.
    noise : float
        Standard deviation of the noise in `seen`.
    units : float
        Number of independent units among the used rows.
    gap : float
        Expected loss of accuracy on new rows.
    known : float
        Gap above which the relative error of gaps decreases.
    """
    # binomial variance of a share of `units` trials, not 0 where all rows are correct
    sampling = max(seen * (1 - seen), 1 / units) / units
    # With groups, large gaps have the full relative error: a gap is 0.1 to 2 times the
    # gap of independent groups. The factor depends on how similar the rows of a group
    # are, which is private (benchmarks/results/expected, "Other people").
    known = known if facts.group_cap == 1 else gap
    gap_variance = _GAP_RELATIVE_SD**2 * gap * min(gap, known)
    sd = math.sqrt(noise**2 + sampling + gap_variance)
    return seen - gap, sd


def _interval(middle: float, sd: float, deviations: float) -> AccuracyEstimate:
    """Return an estimate with the interval middle ± deviations · sd, cut to [0, 1]."""
    half = deviations * sd
    return AccuracyEstimate(middle, max(0.0, middle - half), min(1.0, middle + half))


def counted(answer: Released, least: float) -> tuple[float, float, float]:
    """Return the number of rows, the fraction of correct rows, and its noise's sd.

    Parameters
    ----------
    answer : Released
        Noisy `CorrectCounts`: correct and wrong rows.
    least : float
        Lower bound on the fraction of correct rows.

    Returns
    -------
    tuple of float
        Number of used rows, fraction of correct rows among them, and standard deviation
        of the noise in this fraction.

    Notes
    -----
    Rows without a class, unreadable or infinite rows, and rows beyond their group's cap
    are in neither count, so the two counts do not add up to n.
    """
    right, wrong = (float(v) for v in answer.value[:, 0])
    # noise can make the sum of both counts negative
    kept = max(right + wrong, answer.noise_sd, 1.0)
    # Laplace's rule of succession: the share stays below 1 even if all rows are correct
    seen = min(1 - 1 / (kept + 2), max(least, right / kept))
    return kept, seen, answer.noise_sd * math.hypot(seen, 1 - seen) / kept


def _overfit(
    facts: ProblemInfo, descent: GradientDescent, seen: float, units: float
) -> float:
    """Return the gap in accuracy between training rows and new rows.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes.
    descent : GradientDescent
        Descent that trained the head.
    seen : float
        Share of training rows that the head classifies correctly.
    units : float
        Number of used rows, divided by the group cap if groups are protected. Rows of
        a group may be similar, so the head overfits a group as a whole
        (benchmarks/results/expected).

    Returns
    -------
    float
        Accuracy on training rows minus expected accuracy on new rows.

    Notes
    -----
    The model below was fitted to measured gaps. A unit is a row or a group. Training on
    a unit increases the unit's own margin. New rows lack this increase. The code
    estimates it as a shift, in standard deviations of the margins, which are assumed to
    be Gaussian. The shift is a product of these factors:

    - A power of the length of all steps times the unit's share of n. This length bounds
      how far one unit can move the weights.
    - A negative power of the number of units, because units with similar features share
      their effect.
    - A power of the fraction of wrong rows, because correct rows have small gradients.
    - A power of the number of classes above _SHIFT_CLASSES, because classes divide the
      variance of the same features.

    The gap is at most _GAP_PER_PARAMETER times the number of free parameters per unit.

    _MARGIN_SHIFT is a compromise between data sets. No public number explains their
    differences (benchmarks/results/expected), so _GAP_RELATIVE_SD describes this
    uncertainty. The length leaves out the longer steps of `AdaptiveStepSize`, which
    occur only if classes are well separated. Rows then share directions.
    """
    # gradients are normalized to at most 1, so this is the longest path of the weights
    pull = descent.learning_rate * descent.steps / (1 - descent.momentum)
    length = facts.group_cap * pull / facts.n_rows
    shift = _MARGIN_SHIFT * length**_SHIFT_POWER_OF_LENGTH * units**_SHIFT_POWER_OF_ROWS
    shift *= (1 - seen) ** _SHIFT_POWER_OF_WRONG
    shift *= max(1.0, facts.n_classes / _SHIFT_CLASSES) ** _SHIFT_POWER_OF_CLASSES
    # Gaussian margins: a share `seen` of them is positive, and the shift moves all
    lost = seen - float(ndtr(ndtri(seen) - shift))
    # the same change of all classes' weights does not change a softmax: m - 1 are free
    n_free = (facts.n_classes - 1) * facts.n_features
    return min(lost, _GAP_PER_PARAMETER * n_free / units)
