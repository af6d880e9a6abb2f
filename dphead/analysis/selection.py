"""Account for choosing the best of a random number of private runs.

K, the number of runs, is drawn secretly from a public distribution. Each run draws its
settings from a public grid and releases its score privately (such as a noisy count).
Only the run with the best score is published: not K, and not the other runs, their
scores or their time. The epsilon of the choice covers all runs; the best run's own
epsilon is not a guarantee.

The bound comes from the Renyi curve of one run (Papernot, Steinke 2022, "Hyperparameter
Tuning with Renyi Differential Privacy"). It is not a sum of Gaussian releases, so
ledgers cannot hold it, and this module is for planning only.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dphead.planning.calibration import PLD_TOLERANCE, smallest_scale
from dphead.privacy.accounting import (
    RDP_ORDERS,
    GaussianEvent,
    check,
    epsilon_from_rdp,
    rdp_curve,
    require,
    total_mu,
)

# named distributions of K; other shapes > 0 are truncated negative binomials
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
_TOLERANCE = 1e-6  # relative tolerance of the noise of full batches


def selection_rdp(
    trial: Sequence[GaussianEvent],
    mean: float,
    shape: float = 1.0,
    relation: str = "zero_out",
) -> np.ndarray:
    """Return the Renyi divergence of the whole choice at each of RDP_ORDERS.

    Parameters
    ----------
    trial : sequence of GaussianEvent
        All releases of one run, its score included.
    mean : float
        Expected number of runs, at least 1.
    shape : float, default 1.0
        Distribution of the number of runs: 1 geometric, 0 logarithmic, infinite Poisson
        (possibly no run and no release), else truncated negative binomial.
    relation : str, default "zero_out"
        The neighboring relation of the releases.

    Returns
    -------
    array of float
        Upper bounds, one for each order.

    Raises
    ------
    ValueError
        If `mean` or `shape` is out of range, or `rdp_curve` has no bound.

    References
    ----------
    Papernot, Steinke 2022, Theorems 2 and 6, as in dp_accounting's
    RepeatAndSelectDpEvent.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    _check_number_of_runs(mean, shape)
    curve = rdp_curve(trial, RDP_ORDERS, relation)
    if not np.isfinite(curve).any():
        return np.full(len(RDP_ORDERS), np.inf)
    charge: Any = rdp._compute_rdp_repeat_and_select
    return np.asarray(charge(RDP_ORDERS, curve, mean, shape))


def selection_epsilon(
    trial: Sequence[GaussianEvent],
    mean: float,
    delta: float,
    shape: float = 1.0,
    relation: str = "zero_out",
) -> float:
    """Return the epsilon of the whole choice at `delta`.

    Parameters
    ----------
    trial, mean, shape, relation
        As in `selection_rdp`.
    delta : float
        The delta at which epsilon is given.

    Returns
    -------
    float
        An upper bound on epsilon, by the improved conversion of the Renyi curve.

    Raises
    ------
    ValueError
        If `mean`, `shape` or `delta` is out of range, or `rdp_curve` has no bound.
    """
    check(delta, relation)
    curve = selection_rdp(trial, mean, shape, relation)
    return epsilon_from_rdp(RDP_ORDERS, curve, delta)


def _check_number_of_runs(mean: float, shape: float) -> None:
    """Raise ValueError if the distribution of the number of runs is invalid."""
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
    """Return the smallest factor s of the noise that meets the total budget.

    The factor multiplies each noise multiplier except the entries in `fixed`.

    Parameters
    ----------
    trial, mean, shape, relation
        As in `selection_rdp`.
    epsilon, delta : float
        The total budget.
    fixed : collection of int
        Indices of the releases that keep their noise.

    Returns
    -------
    float
        The factor, with a relative error of 1e-6 (1e-4 for random batches), on the safe
        side.

    Raises
    ------
    ValueError
        If the fixed releases and the number of runs alone exceed the budget.
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
    tolerance = _TOLERANCE if total_mu(trial) is not None else PLD_TOLERANCE
    return smallest_scale(cost, epsilon, 1.0, tolerance)
