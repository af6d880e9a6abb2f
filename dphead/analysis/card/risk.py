"""Compute bounds on membership inference from a report's releases."""

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

_COMPARED = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)  # epsilons for comparison
CURVE_RATES = np.geomspace(1e-4, 1, 81)  # false-positive rates of a drawn curve


@dataclass(frozen=True)
class Limits:
    """Hold upper bounds on any membership-inference attack.

    Attributes
    ----------
    epsilon : float
        The epsilon of the bounds.
    replaced : bool
        Whether they compare with a fit on another row instead, not without the row.
    hits : tuple of float
        True-positive rates at the false-positive rates REPORTED_RATES.
    guess : float
        Largest accuracy of an attack if half of the rows are members.
    curve : tuple of float
        True-positive rates at CURVE_RATES.
    own : bool
        Whether the bounds are for the run itself. The run has one object for each
        comparison, the relation's default first.
    """

    epsilon: float
    replaced: bool
    hits: tuple[float, ...]
    guess: float
    curve: tuple[float, ...]
    own: bool


def limits_of(report: dict[str, Any]) -> list[Limits]:
    """Return bounds for the run, and for Gaussian mechanisms with epsilons _COMPARED.

    The Gaussian mechanisms have the same delta and the default comparison. One with the
    run's own epsilon is left out. All bounds are sorted by epsilon. They are exact for
    full batches, and upper bounds for sampled batches.

    Raises
    ------
    ValueError
        If the run's epsilon is infinite: without noise, or with a seed.
    """
    g = report["guarantee"]
    if not math.isfinite(g["epsilon"]):
        raise ValueError(
            f"bounds on an attack need a finite epsilon, got {g['epsilon']}. Fit "
            "again with a finite epsilon and without a seed."
        )
    relation = g["neighboring_relation"]
    replaced, *_ = both = comparisons(relation)
    events = [replace(event_of(row), count=row["count"]) for row in g["releases"]]
    own = [
        _limits(g["epsilon"], events, relation, comparison, own=True)
        for comparison in both
    ]
    others = [
        _limits(
            e, [GaussianEvent(1 / mu_from_epsilon(e, g["delta"]))], relation, replaced
        )
        for e in _COMPARED
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
