"""Bound the privacy profile of the best of a random number of runs.

The bound uses the profile of one run; dphead/privacy/proofs/selection.md has the
claims. Let f be the generating function of the number of runs. A run beaten by a share
t of all runs is the best with density f'(1 - t). The profile of one run bounds the
change of that density between neighboring data sets at each t. Like `selection.py`,
this module is for planning only.

Reference: Koskela, Redberg, Wang 2024 ("Privacy Profiles for Private Selection"), with
one factor for all t.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dphead.privacy.accounting import (
    GaussianEvent,
    compose_epsilon,
    log_delta,
    total_mu,
)

# Chosen: twice as many of both lowered epsilon by less than 1e-3.
_LINES = 1000  # lines above the trade-off of one run
_KNOTS = 100  # knots of the bound on the density
# The last line covers one run's tail beyond this share of delta / mean.
_REACH_SHARE = 1e-2
_MOST_REACH = 600.0  # exp overflows beyond, where the bound is infinite
_ROUNDING = 1e-12  # bound on relative errors of logarithms and sums, some 2**-53
_Profile = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class NumberOfRuns:
    """Hold the distribution of K: truncated negative binomial, or Poisson.

    With f(z) the mean of z**K, f'(1 - t) is mean (1 + rate t)**-(1 + shape). It is mean
    exp(-mean t) for Poisson (shape infinite). The halting probability is 1 / (1 +
    rate).
    """

    mean: float
    shape: float
    rate: float

    @classmethod
    def of(cls, mean: float, shape: float) -> "NumberOfRuns":
        """Return the distribution with this mean (>= 1) and shape (>= 0)."""
        if math.isinf(shape):
            return cls(mean, shape, mean)
        low = 0.0
        high = 1.0
        while _mean(high, shape) < mean:
            high *= 2
        while low < (middle := (low + high) / 2) < high:
            if _mean(middle, shape) < mean:
                low = middle
            else:
                high = middle
        return cls(mean, shape, high)

    def log_density(self, t: np.ndarray) -> np.ndarray:
        """Return log f'(1 - t) / mean at each t, decreasing from 0."""
        if math.isinf(self.shape):
            return -self.rate * t
        return -(1 + self.shape) * np.log1p(self.rate * t)

    @property
    def rounding(self) -> float:
        """Return a bound on the rounding error of `log_density`.

        The bound includes the rounding of the rate.
        """
        return _ROUNDING * (1 - float(self.log_density(np.ones(1))[0]))


def _mean(rate: float, shape: float) -> float:
    """Return the mean of the truncated negative binomial distribution.

    Reference: Papernot, Steinke 2022, Definition 1.
    """
    log = math.log1p(rate)
    power = shape * log
    return rate / (log if power == 0 else -math.expm1(-power) / shape)


def profile_epsilon(
    trial: Sequence[GaussianEvent],
    mean: float,
    delta: float,
    shape: float,
    relation: str = "zero_out",
) -> float:
    """Return the epsilon of the whole choice at `delta`, from the profile of one run.

    Parameters
    ----------
    trial : sequence of GaussianEvent
        All releases of one run, its score included.
    mean, shape : float
        The distribution of the number of runs (`NumberOfRuns`).
    delta : float
        The delta at which epsilon is given.
    relation : str, default "zero_out"
        The neighboring relation of the releases.

    Returns
    -------
    float
        Epsilon. It is infinite without a bound: if losses of one run exceed 600, or if,
        with Poisson batches, delta / mean is within rounding.

    Guarantee
    ---------
    It is never below the true value.
    """
    reach = compose_epsilon(trial, _REACH_SHARE * delta / mean, relation)
    if not reach < _MOST_REACH:
        return math.inf
    deltas = run_profile(trial, relation)
    runs = NumberOfRuns.of(mean, shape)
    shifts, weights = density_bound(runs, deltas, reach)

    def met(candidate: float) -> bool:
        found = weights @ deltas(candidate - shifts)
        return mean * float(found) * (1 + _ROUNDING) <= delta

    if met(0.0):
        return 0.0
    low = 0.0
    high = 1.1 * (reach + float(shifts[-1]))
    if not met(high):
        return math.inf
    while high - low > _ROUNDING * high and low < (middle := (low + high) / 2) < high:
        if met(middle):
            high = middle
        else:
            low = middle
    # add the largest rounding error of candidate - shifts
    return high + 4e-16 * (high + float(shifts[-1]))


def run_profile(trial: Sequence[GaussianEvent], relation: str) -> _Profile:
    """Return a function for delta of one run at each epsilon of either sign.

    The profile covers both directions.
    """
    mu = total_mu(trial)
    if mu is None:
        from dphead.privacy.accounting.pld import loss_distribution  # takes seconds

        directions = loss_distribution(trial, relation) or []
    else:
        directions = []

    def above(epsilons: np.ndarray) -> np.ndarray:
        if mu == 0:
            return np.zeros_like(epsilons)
        if mu is not None:
            logs = [log_delta(mu, float(e)) for e in epsilons]
            return np.exp(logs) + 1e-300  # exp may round subnormals down
        return np.max([losses.deltas(epsilons) for losses in directions], axis=0)

    def deltas(epsilons: np.ndarray) -> np.ndarray:
        found = above(np.abs(epsilons))
        # below 0 from the other direction: 1 - exp(epsilon) (1 - delta(-epsilon))
        below = np.minimum(epsilons, 0.0)
        mirrored = np.exp(below) * found - np.expm1(below)
        return np.where(epsilons < 0, mirrored, found)

    return deltas


def density_bound(
    runs: NumberOfRuns, deltas: _Profile, reach: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return shifts s and weights w that bound the delta of the choice.

    mean * sum of w delta(epsilon - s) is at least the delta of the choice at each
    epsilon.

    Notes
    -----
    Let a = f'(1 - t) be the density of a run that a share t beat, and b = f'(1 - t')
    its density under the neighbor. t' is at most each line exp(e) t + delta(e). In a
    cell of t that is bounded by one line, a / b is largest at an end, and a at the
    first end. So (a - b z)+ is at most H(z), the largest of some (top (1 - z /
    ratio))+. H is convex, and so below a chord between any two z = exp(s).
    """
    epsilons = np.unique(np.linspace(-reach, reach, _LINES))[::-1]
    slopes = np.append(np.exp(epsilons), 0.0)
    offsets = np.append(deltas(epsilons), 1.0)
    # cells end at intersections of lines; other cells would be valid too
    meet = np.diff(offsets) / -np.diff(slopes)
    meet = np.maximum.accumulate(np.clip(meet, 0.0, 1.0))
    edges = np.concatenate([[0.0], meet, [1.0]])
    some = np.diff(edges) > 0
    ratios = []
    for ends in (edges[:-1], edges[1:]):
        theirs = runs.log_density(slopes * ends + offsets)
        ratios.append(runs.log_density(ends) - theirs)
    ratio = np.maximum(*ratios)[some] + 2 * runs.rounding
    top = np.exp(runs.log_density(edges[:-1][some]) + runs.rounding)
    shifts = np.linspace(0.0, ratio.max(), _KNOTS)
    # H at 0 and at each shift except the last, where it is 0
    points = np.append(-np.inf, shifts[:-1])
    over = -np.expm1(np.minimum(points[:, None] - ratio, 0.0))
    heights = np.max(top * over, axis=1)
    weights = np.zeros(_KNOTS)
    for i in reversed(range(_KNOTS)):
        share = -np.expm1(points[i] - shifts[i:])
        lacking = heights[i] - share[1:] @ weights[i + 1 :]
        weights[i] = max(lacking, 0.0) / share[0]
    return shifts, weights
