"""Choosing the best of a random number of private runs: what the choice costs in all.

Papernot, Steinke 2022 ("Hyperparameter Tuning with Renyi Differential Privacy"). K
runs, K drawn secretly from a known distribution that does not depend on the data; each
run draws its settings from a public grid, and its score is part of what it releases (a
counting query with noise, say). Only the run with the best score leaves: not K, nor the
other runs, their scores or their time. What is charged is the choice as a whole; the
best run's own epsilon covers nothing.

The charge is a Renyi curve and no sum of Gaussian releases, so a ledger cannot hold it:
this module is for planning.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dphead.planning.calibration import smallest_scale
from dphead.privacy.accounting import (
    RDP_ORDERS,
    GaussianEvent,
    check,
    epsilon_from_rdp,
    rdp_curve,
    require,
)

# any other shape > 0: truncated negative binomial
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


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

    require(
        1 <= mean < math.inf,
        "the mean number of runs must be at least 1 and finite",
        "mean",
        mean,
    )
    require(shape >= 0, "shape must be at least 0", "shape", shape)
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
) -> float:
    """Epsilon of the whole choice at `delta`.

    Arguments and errors as `selection_rdp`; improved conversion.
    """
    check(delta=delta)
    return epsilon_from_rdp(
        RDP_ORDERS, selection_rdp(trial, mean, shape, relation), delta
    )


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

    Relative error 1e-6, on the safe side. ValueError if the fixed releases and the
    number of runs alone exceed it:
    even runs without any release cost a little in this accounting.
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
    return smallest_scale(cost, epsilon, 1.0, 1e-6)
