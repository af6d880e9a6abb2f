"""What an attacker gains: limits on a membership attack, from a report's releases."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dphead.analysis.tradeoff import REPORTED_RATES, max_advantage, tradeoff
from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.accounting import GaussianEvent, event_of

COMPARED = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)  # epsilons that a run's is set beside
CURVE_RATES = np.geomspace(1e-4, 1, 81)  # false positive rates of a drawn curve


@dataclass(frozen=True)
class Limits:
    """The most that any membership attack reaches.

    hits: true positive rates at false positive rates REPORTED_RATES; guess: the share
    of right answers where membership is a toss-up; curve: true positive rates at
    CURVE_RATES. own: whether it is the run's, not one to compare with.
    """

    epsilon: float
    hits: tuple[float, ...]
    guess: float
    curve: tuple[float, ...]
    own: bool


def events_of(report: dict[str, Any]) -> list[GaussianEvent]:
    """What the accountant sees of a report's releases."""
    releases = report["guarantee"]["releases"]
    return [replace(event_of(row), count=row["count"]) for row in releases]


def limits_of(report: dict[str, Any]) -> list[Limits]:
    """The run's, and those of Gaussian mechanisms with COMPARED at the same delta, by
    epsilon. ValueError for a run without noise.

    Exact for full batches; an upper limit for sampled ones.
    """
    g = report["guarantee"]
    if not math.isfinite(g["epsilon"]):
        raise ValueError(
            f"limits on an attack need a finite epsilon, got {g['epsilon']}. There are "
            "none without noise."
        )
    own = _limits(g["epsilon"], events_of(report), g["neighboring_relation"], own=True)
    others = [
        _limits(e, [GaussianEvent(1 / mu_from_epsilon(e, g["delta"]))])
        for e in COMPARED
        if not math.isclose(e, g["epsilon"], rel_tol=1e-3)
    ]
    return sorted([own, *others], key=lambda limits: limits.epsilon)


def _limits(
    epsilon: float,
    events: list[GaussianEvent],
    relation: str = "zero_out",
    own: bool = False,
) -> Limits:
    rates = np.concatenate([REPORTED_RATES, CURVE_RATES])
    misses = tradeoff(events, rates, relation)
    hits = tuple(1 - float(miss) for miss in misses[: len(REPORTED_RATES)])
    curve = tuple(1 - float(miss) for miss in misses[len(REPORTED_RATES) :])
    gain = max_advantage(events, relation)
    return Limits(epsilon, hits, (1 + gain) / 2, curve, own)
