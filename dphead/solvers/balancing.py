"""Balance decisions between classes of different sizes by logit adjustment."""

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassCounts
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request
from dphead.solvers.head import LinearHead
from dphead.solvers.settings import OFF, Setting

BALANCED = Setting(
    "Weight all classes equally: subtract the log of noisy class frequencies from "
    "the scores (auto: only if released counts show a gain).",
    source=OFF,
    option=True,
)
COUNTS = "rows of classes"  # label of the release
# Share of mu² for the counts, of the part that centering leaves. The counts' noise is
# about 10/mu rows: 37 at ε = 1 and δ = 1e-5. Chosen.
_COUNT_SHARE = 0.01


def check_balanced(balanced: bool, loss: str, intercept: float) -> None:
    """Raise ValueError if a head's scores cannot be balanced.

    The scores must be log-odds, as those of a softmax. Their intercept contains the log
    of the class frequencies, which the adjustment removes.
    """
    if balanced and (loss != "softmax" or not intercept):
        raise ValueError(
            "`--balanced` (`balanced`) needs the softmax loss and an intercept, got "
            f"the loss {loss} and the intercept {intercept:g}. Use `--loss softmax "
            "--intercept 0.3` (`loss='softmax', intercept=0.3`), or drop `--balanced`."
        )


def planned_counts(facts: ProblemInfo, rest: float) -> list[PlannedRelease]:
    """Return the release of the class counts.

    rest is the total weight of all other releases, without those of centering.
    """
    # weight / (rest + weight) = _COUNT_SHARE
    weight = rest * _COUNT_SHARE / (1 - _COUNT_SHARE)
    return [PlannedRelease(COUNTS, ClassCounts(facts.n_classes), 1.0, weight=weight)]


def balanced_head(
    facts: ProblemInfo, head: LinearHead
) -> Generator[Request, Released, LinearHead]:
    """Request the class counts, and return the head with adjusted intercepts.

    Notes
    -----
    Suppose that the scores of a softmax are log P(class | x) up to a constant. If the
    log of the class's frequency is subtracted, they are log P(x | class). The class
    with the highest score then minimizes the mean error of the classes. Scores of a
    noisy or early stopped head do not have this form. If the features predict the
    classes poorly, the rare class can be predicted too often.

    References
    ----------
    Menon et al. 2021, "Long-tail learning via logit adjustment", equation 9.
    """
    statistic = ClassCounts(facts.n_classes)
    answer = yield Request(COUNTS, statistic, Params(head.transform))
    return adjusted_head(head, frequencies(answer))


def adjusted_head(head: LinearHead, shares: np.ndarray) -> LinearHead:
    """Return the head with the log of each class's share subtracted from its scores."""
    return replace(head, intercept=head.intercept - np.log(shares), balanced=True)


def frequencies(answer: Released) -> np.ndarray:
    """Return the share of each class (n_classes,), from noisy counts.

    A class with a count below one, or below one standard deviation of its noise, may
    have no rows. Such a class gets the largest frequency, so its score gains least.
    """
    # Otherwise, a class with a tiny count would win every decision. The log of a
    # negative count is NaN.
    counts = answer.value[:, 0]
    known = counts >= max(answer.noise_sd, 1.0)
    counts = np.where(known, counts, counts.max(initial=1.0))
    return counts / counts.sum()
