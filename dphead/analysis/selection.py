"""Choosing the best of a random number of private runs: what the choice costs in all.

K runs, K drawn secretly from a known distribution that does not depend on the data;
each run draws its settings from a public grid, and its score is part of what it
releases (a counting query with noise, say). Only the run with the best score leaves:
not K, nor the other runs, their scores or their time. What is charged is the choice as
a whole; the best run's own epsilon covers nothing.

Two bounds, of which the less counts: from the privacy profile of one run
(`selection_profile.py`, nearly always the less), and from its Renyi curve (Papernot,
Steinke 2022, "Hyperparameter Tuning with Renyi Differential Privacy"). Neither is a sum
of Gaussian releases, so a ledger cannot hold it: this module is for planning.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dphead.analysis.selection_profile import profile_epsilon
from dphead.planning.calibration import PLD_TOLERANCE, smallest_scale
from dphead.privacy.accounting import (
    RDP_ORDERS,
    GaussianEvent,
    check,
    epsilon_from_rdp,
    in_one_step,
    rdp_curve,
    require,
    total_mu,
)

# any other shape > 0: truncated negative binomial
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
TOLERANCE = 1e-6  # relative, of the noise of full batches
BOUNDS = ("auto", "profile", "rdp")


def selection_rdp(
    trial: Sequence[GaussianEvent],
    mean: float,
    shape: float = 1.0,
    relation: str = "zero_out",
    orders: Sequence[float] = RDP_ORDERS,
) -> np.ndarray:
    """Renyi divergence of the whole choice at each order (> 1).

    trial: all releases of one run, its score included.

    mean: expected number of runs, at least 1. shape: 1 geometric, 0 logarithmic,
    infinite Poisson (which may run nothing and release nothing), else the truncated
    negative binomial's. A bound at one order uses the trial's at all orders, so pass
    many. ValueError for a mean or shape out of range, and where `rdp_curve` has no
    bound.
    Source: Papernot, Steinke 2022, Theorems 2 and 6, as in dp_accounting's
    RepeatAndSelectDpEvent.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    _check_number_of_runs(mean, shape)
    curve = rdp_curve(trial, orders, relation)
    if not np.isfinite(curve).any():
        return np.full(len(orders), np.inf)
    charge: Any = rdp._compute_rdp_repeat_and_select
    return np.asarray(charge(orders, curve, mean, shape))


def selection_epsilon(
    trial: Sequence[GaussianEvent],
    mean: float,
    delta: float,
    shape: float = 1.0,
    relation: str = "zero_out",
    bound: str = "auto",
) -> float:
    """Epsilon of the whole choice at `delta`.

    Arguments as `selection_rdp`. bound: "profile", "rdp" (improved conversion), or
    "auto", the less of both; allocated rows have the first alone, and so have Poisson
    batches under replace_one or of units of several rows. ValueError for a mean, shape
    or delta out of range, and where the bound that was asked for does not apply.

    Guarantee: an upper bound (proofs/selection.md).
    """
    check(delta, relation)
    known = f"bound must be one of {BOUNDS}"
    require(bound in BOUNDS, known, "bound", bound)
    _check_number_of_runs(mean, shape)
    found = math.inf
    if bound != "rdp":
        found = profile_epsilon(trial, mean, delta, shape, relation)
        if any(e.epoch_steps > 1 for e in trial):
            known = in_one_step(trial)
            found = min(found, profile_epsilon(known, mean, delta, shape, relation))
    if bound == "rdp" or (bound == "auto" and _has_rdp(trial, relation)):
        curve = selection_rdp(trial, mean, shape, relation)
        found = min(found, epsilon_from_rdp(RDP_ORDERS, curve, delta))
    return found


def _has_rdp(trial: Sequence[GaussianEvent], relation: str) -> bool:
    """Whether `rdp_curve` has a bound."""
    random = [e for e in trial if e.count and not e.is_full]
    one_row = all(e.rows_per_unit == e.epoch_steps == 1 for e in random)
    return not random or (relation != "replace_one" and one_row)


def _check_number_of_runs(mean: float, shape: float) -> None:
    """ValueError for a law of the number of runs that there is not."""
    require(
        1 <= mean < math.inf,
        "the mean number of runs must be at least 1 and finite",
        "mean",
        mean,
    )
    require(shape >= 0, "shape must be at least 0", "shape", shape)


def selection_calibrate(
    trial: Sequence[GaussianEvent],
    mean: float,
    epsilon: float,
    delta: float,
    shape: float = 1.0,
    relation: str = "zero_out",
    fixed: Collection[int] = (),
) -> float:
    """Smallest s such that multiplying each noise multiplier not in `fixed` (indices)
    by s meets the total budget.

    Relative error 1e-6 (1e-4 of random batches), on the safe side. ValueError if the
    fixed releases and the number of runs alone exceed it.
    """
    require(
        0 < epsilon < math.inf,
        "epsilon must be positive and finite",
        "epsilon",
        epsilon,
    )
    free = [i for i, e in enumerate(trial) if i not in fixed and e.count]
    require(
        bool(free), "at least one release must be free to scale", "fixed", tuple(fixed)
    )
    require(
        all(trial[i].noise_multiplier > 0 for i in free),
        "noise to be scaled must be positive",
        "noise",
        0,
    )

    def cost(scale: float) -> float:
        factors = [scale if i in free else 1.0 for i in range(len(trial))]
        scaled = [
            replace(e, noise_multiplier=e.noise_multiplier * f)
            for e, f in zip(trial, factors, strict=True)
        ]
        return selection_epsilon(scaled, mean, delta, shape, relation)

    least = cost(1e12 / min(trial[i].noise_multiplier for i in free))
    hint = "Raise the budget or the fixed noise, or run less often."
    require(
        least < epsilon,
        f"a choice with these fixed releases costs {least:.4g}",
        "epsilon",
        epsilon,
        hint,
    )
    tolerance = TOLERANCE if total_mu(trial) is not None else PLD_TOLERANCE
    return smallest_scale(cost, epsilon, 1.0, tolerance)
