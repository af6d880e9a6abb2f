"""Balance decisions between classes of different sizes by logit adjustment."""

import math
from collections.abc import Generator
from dataclasses import replace

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassCorrectCounts, ClassCounts
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.centering import kept_share, rows_that_count
from dphead.solvers.head import LinearHead, params_of
from dphead.solvers.settings import OFF, Setting

BALANCED = Setting(
    "Weight all classes equally: subtract the log of noisy class frequencies from "
    "the scores.",
    source=OFF,
    option=True,
)
COUNTS = "rows of classes"  # label of the release
# Share of mu² for the counts, in addition to the gradients. Their noise is 10/mu rows:
# 37 at ε = 1. Chosen.
_COUNT_SHARE = 0.01
# Classes are even if the largest has fewer than _EVEN times the rows of the smallest.
# They are uneven only if their noise has an excess of _EXCESS standard deviations.
# Chosen with _LIKELY_GAIN on two sets; results/calibration, "Balanced decisions".
_EVEN, _EXCESS = 1.5, 3.0
# Likely gain of balanced accuracy, and its standard deviation
_LIKELY_GAIN = 0.1
BEFORE, AFTER = "correct rows before balancing", "correct rows after balancing"


def check_balanced(balanced: bool, loss: str, intercept: float) -> None:
    """Raise ValueError if a head's scores cannot be balanced.

    The scores must be log-odds. Without an intercept, scores do not depend on how
    frequent classes are, so the adjustment would be wrong.
    """
    if balanced and (loss != "softmax" or not intercept):
        raise ValueError(
            "`balanced` needs the softmax loss and an intercept, got the loss "
            f"{loss} and the intercept {intercept:g}. Use `--loss softmax --intercept "
            "0.3` (`loss='softmax', intercept=0.3`)."
        )


def planned_counts(facts: ProblemInfo, rest: float) -> list[PlannedRelease]:
    """Return the release of the class counts.

    rest is the total weight of the other releases after centering.
    """
    # weight / (rest + weight) = _COUNT_SHARE
    weight = rest * _COUNT_SHARE / (1 - _COUNT_SHARE)
    return [PlannedRelease(COUNTS, ClassCounts(facts.n_classes), 1.0, weight=weight)]


def balanced_head(
    facts: ProblemInfo, head: LinearHead
) -> Generator[Request, Released, LinearHead]:
    """Ask for the class counts, and return the head with adjusted intercepts.

    Notes
    -----
    Suppose that the scores of a softmax are log P(class | x) up to a constant. If the
    log of the class's frequency is subtracted, they are log P(x | class). The class
    with the highest score then minimizes the mean error of the classes. Scores of a
    noisy or early stopped head do not have this form. If the features predict the
    classes poorly, the rare class can get too many rows.

    References
    ----------
    Menon et al. 2021, "Long-tail learning via logit adjustment", equation 9.
    """
    statistic = ClassCounts(facts.n_classes)
    answer = yield Request(COUNTS, statistic, Params(head.transform))
    return _adjusted(head, frequencies(answer))


def better_head(
    facts: ProblemInfo, head: LinearHead, before: Released
) -> Generator[Request, Released, LinearHead]:
    """Return the head as `balanced_head` does, or as it is where that is no better.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes.
    head : LinearHead
        Head that is not adjusted.
    before : Released
        Its correct and wrong rows of each class (`ClassCorrectCounts`).

    Notes
    -----
    The same counts of the adjusted head give the change of the balanced accuracy. Its
    normal prior has the mean and the standard deviation _LIKELY_GAIN. The head is
    adjusted if the posterior mean is positive, so noise alone rarely prevents it.

    A class that noise hides counts as the smallest of the others: the noise cannot tell
    a rare class from one without rows.
    """
    sizes, sd = _class_sizes(facts, before)
    shown = sizes >= sd
    sizes = np.where(shown, sizes, sizes[shown].min(initial=sizes.max(initial=sd)))
    adjusted = _adjusted(head, sizes / sizes.sum())
    statistic = ClassCorrectCounts(facts.n_classes)
    after = yield Request(AFTER, statistic, params_of(adjusted))
    # more correct rows are fewer wrong rows: the mean of both changes has less noise
    change = (after.value - before.value) @ np.array([0.5, -0.5])
    gain = float((change / sizes).mean())
    noise = (before.noise_sd**2 + after.noise_sd**2) / 2
    variance = noise * float((sizes**-2).sum()) / len(sizes) ** 2
    even = sizes.max() < _EVEN * sizes.min()
    worse = gain + variance / _LIKELY_GAIN <= 0
    return replace(head, balanced=False) if even or worse else adjusted


def _adjusted(head: LinearHead, shares: np.ndarray) -> LinearHead:
    """Return the head less the log of the classes' shares."""
    return replace(head, intercept=head.intercept - np.log(shares), balanced=True)


def _class_sizes(facts: ProblemInfo, before: Released) -> tuple[np.ndarray, float]:
    """Return the rows of each class, and the standard deviation of their noise.

    Sizes are closer to their mean if noise may explain the differences, so classes of
    one size stay so. Their sum is n_rows, unless the counts tell otherwise.
    """
    counts = before.value.sum(axis=1)
    variance = 2 * before.noise_sd**2
    m = len(counts)
    whole = Released(counts.sum().reshape(1, 1), math.sqrt(m * variance))
    apart = counts - counts.mean()
    # mean of the squared noise, plus _EXCESS of its standard deviations
    noise = (m - 1 + _EXCESS * math.sqrt(2 * (m - 1))) * variance
    apart *= kept_share(apart @ apart, noise)
    mean = rows_that_count(whole, facts.n_rows) / m
    # n_rows has no noise; a class has at least one row
    return mean + apart, max(math.sqrt(variance * (1 - 1 / m)), 1.0)


def frequencies(answer: Released) -> np.ndarray:
    """Return the share of each class (n_classes,), from noisy counts.

    A class with a count below one, or below one standard deviation of its noise, may
    have no rows. Such a class gets the largest frequency, so its score gains least.
    """
    # Without this floor, log of a tiny or negative count would win every decision.
    counts = answer.value[:, 0]
    known = counts >= max(answer.noise_sd, 1.0)
    counts = np.where(known, counts, counts.max(initial=1.0))
    return counts / counts.sum()
