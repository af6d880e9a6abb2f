"""The accuracy that `auto` expects of its head on new rows, from noisy counts of what
the head gets right among its own.
"""

import math
from collections.abc import Generator

from scipy.special import ndtr, ndtri

from dphead.privacy.query import Params
from dphead.privacy.statistics import ClassCorrectCounts, CorrectCounts
from dphead.solvers.auto_rules import (
    GAP_PER_PARAMETER,
    GAP_RELATIVE_SD,
    MARGIN_SHIFT,
    NORMAL_95,
    SHIFT_CLASSES,
    SHIFT_POWER_OF_CLASSES,
    SHIFT_POWER_OF_LENGTH,
    SHIFT_POWER_OF_ROWS,
    SHIFT_POWER_OF_WRONG,
)
from dphead.solvers.base import Answer, Ask, PublicFacts
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import AccuracyEstimate, ClassAccuracy


def expected_accuracy(
    facts: PublicFacts, descent: GradientDescent, params: Params
) -> Generator[Ask, Answer, AccuracyEstimate]:
    """Ask for the counts of right and wrong rows; never below chance."""
    answer = yield Ask("correct rows", CorrectCounts(facts.n_classes), params)
    kept, seen, noise = counted(answer, 1 / facts.n_classes)
    units = max(1.0, kept / facts.group_cap)
    chance = 1 / facts.n_classes
    gap = min(overfit(facts, descent, seen, units), max(0.0, seen - chance))
    middle, sd = on_new(seen, noise, units, gap)
    return interval(middle, sd, NORMAL_95)


def expected_of_classes(
    facts: PublicFacts, descent: GradientDescent, params: Params
) -> Generator[Ask, Answer, ClassAccuracy]:
    """Ask for those of each class; of the worst, the ends of all classes' intervals."""
    query = ClassCorrectCounts(facts.n_classes)
    answer = yield Ask("correct rows of classes", query, params)
    units = max(1.0, float(answer.value.sum()) / facts.group_cap)
    found = []
    for counts in answer.value:
        own = Answer(counts[:, None], answer.noise_sd)
        kept, seen, noise = counted(own, 0.0)
        gap = overfit(facts, descent, seen, units)
        own_units = max(1.0, kept / facts.group_cap)
        found.append(on_new(seen, noise, own_units, gap))
    each = tuple(interval(middle, sd, NORMAL_95) for middle, sd in found)
    # of all classes at once (Bonferroni): the least of their bounds is a bound of the
    # least
    joint = float(ndtri(1 - (1 - float(ndtr(NORMAL_95))) / facts.n_classes))
    bounds = [interval(middle, sd, joint) for middle, sd in found]
    weakest = min(range(len(each)), key=lambda position: each[position].accuracy)
    worst = AccuracyEstimate(
        each[weakest].accuracy,
        min(one.low for one in bounds),
        min(one.high for one in bounds),
    )
    return ClassAccuracy(each, weakest, worst)


def on_new(seen: float, noise: float, units: float, gap: float) -> tuple[float, float]:
    """(accuracy on new rows, its standard deviation) of the share that is seen of
    `units` that count, with its noise, less what is lost on new rows.
    """
    sampling = max(seen * (1 - seen), 1 / units) / units
    sd = math.sqrt(noise**2 + sampling + (GAP_RELATIVE_SD * gap) ** 2)
    return seen - gap, sd


def interval(middle: float, sd: float, deviations: float) -> AccuracyEstimate:
    """So many standard deviations to each side, within 0 and 1."""
    half = deviations * sd
    return AccuracyEstimate(middle, max(0.0, middle - half), min(1.0, middle + half))


def counted(answer: Answer, least: float) -> tuple[float, float, float]:
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


def overfit(
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
