"""Compute privacy losses of random allocation: each row is in one step of an epoch.

An epoch of t steps has a pair of distributions of t normal numbers
(proofs/allocation.md). All means are 0, except that one number, at a random place, has
mean 1 in the first distribution. Under the second distribution, the likelihood ratio is
a mean of t independent log-normal numbers.

Each log-normal number is replaced by a number on a grid, so that Fourier transforms can
compute the mean. The new number is larger in the convex order, so no divergence
decreases. Any mass lost to rounding and tails becomes the probability of an infinite
loss. The import takes seconds.

References
----------
Feldman, Shenfeld 2025; Chua et al. 2024 (balls and bins).
"""

import math

import numpy as np
from scipy.special import ndtr

from dphead.privacy.accounting.losses import (
    MAX_GRID_POINTS,
    UNIT_ROUNDOFF,
    Losses,
    composed,
    self_composed,
)

# The constants below are chosen, not measured. The first three trade tightness for time
# and memory. Omitted probability is charged as an infinite loss.
_CELLS = 50  # cells per standard deviation of one ratio
_MOST_CELLS = 2**20  # largest number of cells; a longer grid has wider cells
REACHES = (8.3, 7.0, 6.4)  # ends of the grid, in standard deviations of the logarithm
_LARGEST_EXPONENT = 700.0  # exp overflows float64 above 709
_LOWEST_PLACE = -40.0  # standard deviations; normal mass below is negligible


def epoch_losses(
    noise_multiplier: float, steps: int, direction: str, interval: float
) -> Losses:
    """Return the privacy losses of an epoch of at least two steps.

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation over the clip norm C.
    steps : int
        Steps of the epoch, at least 2.
    direction : {"removed", "added"}
        "removed" compares data with the row to data without it. "added" is the reverse.
    interval : float
        Width of the losses' grid.

    Returns
    -------
    Losses
        The losses, all infinite if no grid can hold them.

    Guarantee
    ---------
    Pessimistic: delta at every epsilon, even a negative one, is at least the delta of
    the pair.
    """
    # All mass at an infinite loss: delta is 1 at every epsilon.
    nothing = Losses(0, np.zeros(1), 1.0, interval)
    ratio = grid_of_ratio(1 / noise_multiplier, direction)
    if ratio is None:
        return nothing
    unseen, seen = ratio
    # P is the first distribution of the pair, Q the second. R is the mean of the ratios
    # W_1, W_2, ..., and E_Q[R f(R)] = E_Q[W_1 f(R)] (proofs/allocation.md, step 3). So
    # for P, only the probabilities of W_1 are multiplied, each by its W_1. A factor R
    # would multiply the errors of the whole sum by large ratios.
    if direction == "removed":
        sums = composed(self_composed(unseen, steps - 1), seen)
    else:
        sums = self_composed(unseen, steps)
    places = sums.lowest + np.arange(len(sums.chances))
    chances = np.maximum(sums.chances, 0.0)
    zero = places <= 0  # a ratio of 0 has no logarithm
    infinite = sums.infinite + float(np.sum(chances[zero]))
    # The loss is log R under P, and -log R under Q.
    sign = 1 if direction == "removed" else -1
    logs = np.log(places[~zero] * (sums.interval / steps))
    return on_grid(sign * logs, chances[~zero], infinite, interval)


def grid_of_ratio(mu: float, direction: str) -> tuple[Losses, Losses] | None:
    """Return two distributions of W = exp(mu Z - mu**2/2) on a grid.

    The first has Z ~ N(0, 1). The second has the first's probabilities times W.
    Both have values on the grid instead of losses, and `infinite` is the probability of
    values that are not on the grid or may be wrong. Return None if no grid can hold W.

    Within a cell [x, x + h], the mass A with mean B/A is divided between the two ends
    so that the mean is kept. The upper end gets (B - x A)/h. A bound on the rounding
    error of this share is added for "removed", where delta increases with W, and
    subtracted for "added".
    """
    grid = _grid(mu)
    if grid is None:
        return None
    lowest, count, width = grid
    # Ends of the cells, and the normal number z at which W = x.
    x = (lowest + np.arange(count + 1)) * width
    logs = np.log(np.maximum(x, 1e-300))
    z = logs / mu + mu / 2
    mass, mass_error = cells(z, mu, logs)
    # E[W; cell] is a normal mass too: W tilts the normal law by mu.
    mean, mean_error = cells(z - mu, mu, logs)
    start = x[:-1]
    doubt = mean_error + start * mass_error
    doubt += 4 * UNIT_ROUNDOFF * (mean + start * mass)
    sign = 1 if direction == "removed" else -1
    # Step 1 of proofs/allocation.md: (B - x A) / h, moved to the safe side.
    upper = (mean - start * mass + sign * doubt) / width
    upper = np.clip(upper, 0.0, mass)
    chances = np.zeros(count + 1)
    chances[:-1] += mass - upper
    chances[1:] += upper
    # Probabilities times W. Their sum is E[W] = 1.
    weighted = x * chances
    # Mass that rounding may have moved counts as an infinite loss.
    lost = float(np.sum(mass_error)) + 4 * UNIT_ROUNDOFF
    weighted_lost = float(np.sum(x[1:] * mass_error))
    weighted_lost += 4 * UNIT_ROUNDOFF * float(np.sum(weighted))
    unseen = Losses(lowest, chances, lost + mass_outside(z), width)
    seen = Losses(lowest, weighted, weighted_lost + mass_outside(z - mu), width)
    return unseen, seen


def _grid(mu: float) -> tuple[int, int, float] | None:
    """Return (first point, cell count, width) of W's grid, or None if exp overflows."""
    if mu * (mu / 2 + REACHES[0]) > _LARGEST_EXPONENT:
        return None
    low = high = 0.0
    # sqrt(exp(mu^2) - 1) is the standard deviation of W.
    width = math.sqrt(math.expm1(mu * mu)) / _CELLS
    # A long tail can need too many cells, so shorter grids are tried.
    for reach in REACHES:
        beyond = mu * (mu / 2 + reach)
        low = math.exp(-beyond)
        high = math.exp(beyond)
        if high - low <= _MOST_CELLS * width:
            break
    width = max(width, (high - low) / _MOST_CELLS)
    lowest = math.floor(low / width)
    count = math.ceil(high / width) - lowest
    return lowest, count, width


def cells(z: np.ndarray, mu: float, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal probability between successive z, and rounding bounds.

    z is logs / mu + mu / 2, or logs / mu - mu / 2. `logs` are the logarithms of the
    grid's points, each rounded once.
    """
    unit = UNIT_ROUNDOFF
    moved = unit * ((2 + 5 * np.abs(logs)) / mu + 4 * mu + 4 * np.abs(z))
    z = np.maximum(z, _LOWEST_PLACE)
    # a normal tail t(z) changes by at most (|z| + 1) t(z) dz, to first order
    relative = 8 * unit + 2 * (1 + np.abs(z)) * np.minimum(moved, 1.0)
    # Each difference uses the smaller tail, so that no digits cancel.
    below = ndtr(z)
    above = ndtr(-z)
    left = z[1:] < 0
    first = np.where(left, below[1:], above[:-1])
    second = np.where(left, below[:-1], above[1:])
    chances = np.maximum(first - second, 0.0)
    errors = first * np.where(left, relative[1:], relative[:-1])
    errors += second * np.where(left, relative[:-1], relative[1:])
    return chances, errors + 2 * unit * chances


def mass_outside(z: np.ndarray) -> float:
    """Return the normal probability below the first z and above the last z."""
    # Ratios beyond the grid: their mass is an infinite loss too.
    outside = float(ndtr(z[0])) + float(ndtr(-z[-1]))
    return outside * (1 + 1e-6)  # the factor is far above the effect of rounding z


def on_grid(
    values: np.ndarray, chances: np.ndarray, infinite: float, interval: float
) -> Losses:
    """Put losses on a grid so that delta does not decrease at any epsilon.

    A probability is divided between the two grid points beside its loss. The division
    keeps the probability times exp(-loss), which is the probability under the other
    distribution of the pair. Losses are raised by a bound on their rounding error. If
    the grid would have more than MAX_GRID_POINTS points, all losses become infinite.
    """
    # A larger loss is the safe side.
    raised = values + 4 * UNIT_ROUNDOFF * (2 + np.abs(values))
    points = np.floor(raised / interval)
    lowest = int(points.min()) if len(points) else 0
    length = int(points.max()) + 2 - lowest if len(points) else 1
    if length > MAX_GRID_POINTS:
        return Losses(0, np.zeros(1), 1.0, interval)
    place = (points - lowest).astype(np.int64)
    # This share keeps the chance and its product with exp(-loss).
    share = np.expm1((points + 1) * interval - raised) / math.expm1(interval)
    lower = chances * np.clip(share, 0.0, 1.0)
    found = np.bincount(place, lower, length)
    found += np.bincount(place + 1, chances - lower, length)
    # rounding of the shares, and of the additions at one point
    most = 2 * int(np.bincount(place, minlength=1).max()) + 8
    infinite += most * UNIT_ROUNDOFF * float(np.sum(chances))
    return Losses(lowest, found, min(infinite, 1.0), interval)
