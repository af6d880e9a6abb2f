"""Limits on a membership-inference attack, from a report's releases."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dphead.analysis.tradeoff import (
    REPORTED_RATES,
    comparisons,
    max_advantage,
    true_positive_rates,
)
from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.accounting import GaussianEvent, event_of

COMPARED = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)  # epsilons that a run's is set beside
CURVE_RATES = np.geomspace(1e-4, 1, 81)  # false positive rates of a drawn curve


@dataclass(frozen=True)
class Limits:
    """The most that any membership-inference attack reaches.

    replaced: whether an unused row has another in its place, or its place is empty.
    hits: true-positive rates at false-positive rates REPORTED_RATES. guess: the share
    of right answers where membership is a toss-up. curve: true-positive rates at
    CURVE_RATES. own: whether it is the run's, not one to compare with; the first one
    that is has the relation's default comparison.
    """

    epsilon: float
    replaced: bool
    hits: tuple[float, ...]
    guess: float
    curve: tuple[float, ...]
    own: bool


def events_of(report: dict[str, Any]) -> list[GaussianEvent]:
    """What the accountant sees of a report's releases."""
    releases = report["guarantee"]["releases"]
    return [replace(event_of(row), count=row["count"]) for row in releases]


def limits_of(report: dict[str, Any]) -> list[Limits]:
    """Return the run's limits, and those of Gaussian mechanisms with COMPARED.

    They have the same delta and comparison, and are sorted by epsilon. Exact for full
    batches, upper limits for sampled ones. Raises ValueError for a run without noise.
    """
    g = report["guarantee"]
    if not math.isfinite(g["epsilon"]):
        raise ValueError(
            f"limits on an attack need a finite epsilon, got {g['epsilon']}. There are "
            "none without noise."
        )
    relation = g["neighboring_relation"]
    replaced, *_ = both = comparisons(relation)
    own = [
        _limits(g["epsilon"], events_of(report), relation, comparison, own=True)
        for comparison in both
    ]
    others = [
        _limits(
            e, [GaussianEvent(1 / mu_from_epsilon(e, g["delta"]))], relation, replaced
        )
        for e in COMPARED
        if not math.isclose(e, g["epsilon"], rel_tol=1e-3)
    ]
    return sorted([*own, *others], key=lambda limits: limits.epsilon)


def _limits(
    epsilon: float,
    events: list[GaussianEvent],
    relation: str,
    replaced: bool,
    own: bool = False,
) -> Limits:
    rates = np.concatenate([REPORTED_RATES, CURVE_RATES])
    limits = true_positive_rates(events, rates, relation, replaced=replaced).tolist()
    hits, curve = limits[: len(REPORTED_RATES)], limits[len(REPORTED_RATES) :]
    gain = max_advantage(events, relation, replaced=replaced)
    return Limits(epsilon, replaced, tuple(hits), (1 + gain) / 2, tuple(curve), own)
