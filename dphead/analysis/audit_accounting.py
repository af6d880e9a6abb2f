"""Recompute a plan's epsilon from its releases, for `dphead audit`.

The computation is an independent check. It must not import the accountant of charges
(`dphead.privacy.accounting` and its imports), or one error could affect both. Full
batches have a closed form. Losses of sampled batches are put on a grid and composed by
a Fourier transform. Rounding goes in both directions, so the result is accurate, but
not an upper bound. The grid is so fine that rounding adds at most 0.5 % to epsilon.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.fft import irfft, rfft
from scipy.optimize import root_scalar
from scipy.stats import norm

from dphead.privacy.contract import ReleaseSpec

# Chosen. The error must stay below 1 %, the slack of `audit`.
_ROUNDED = 0.005  # largest relative error of epsilon by rounding losses to the grid
_LOST = 1e-3  # part of delta for each rare event in the proof of `_composed_epsilon`
_FIRST_ERROR = 0.002  # error of the first grid, as a fraction of the largest loss
_MOST_POINTS = 2**22  # points of the grid
_OUTCOMES = 100_001  # points of one release, within _TAILS deviations of its means
_TAILS = 12.0
_RATIO_TAILS = 7.0  # as _TAILS, for a step of an epoch (`_epoch`)
_RATIO_CELLS = 2**20  # cells from 0 to the largest likelihood ratio of such a step
# largest cell, as a part of the mean ratio of an epoch. Measured: at 0.2, epsilon is
# 0.1 % too large after one epoch of 2 steps, and 0.7 % after ten.
_WIDEST_CELL = 0.1


def recomputed_epsilon(
    specs: Sequence[ReleaseSpec], delta: float, relation: str
) -> float | None:
    """Return the recomputed epsilon of these releases at `delta`.

    Return None for random batches with a group cap above 1, if the noise of allocated
    epochs is too small for the cells of `_epoch`, and if the grid of losses would be
    too long.
    """
    full = [s for s in specs if s.sampling_prob == 1 and s.epoch_steps == 1]
    # each of a unit's `cap` rows moves the sum by 1 / sigma deviations of the noise
    mu = math.hypot(*((s.group_cap or 1) / s.noise_multiplier for s in full))
    sampled = Counter(
        (s.noise_multiplier, s.sampling_prob, s.epoch_steps, s.group_cap or 1)
        for s in specs
        if s.sampling_prob < 1 or s.epoch_steps > 1
    )
    if not sampled:
        return _gaussian_epsilon(mu, delta)
    wide = any(
        steps > 1 and _cell_width(1 / sigma) > _WIDEST_CELL * steps
        for sigma, _, steps, _ in sampled
    )
    if wide or any(cap > 1 for *_, cap in sampled):
        return None
    directions = ("removed", "added")
    if relation == "replace_one":
        directions = ("replaced",)
    found: float | None = 0.0
    for direction in directions:
        if found is not None:
            found = _composed_epsilon(mu, sampled, delta, direction, found)
    return found


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of mu-GDP at `delta`, at least 0.

    It is the root e of delta = Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu). Source:
    Balle, Wang 2018, Theorem 8.
    """

    def excess(epsilon: float) -> float:
        first = norm.logcdf(mu / 2 - epsilon / mu)
        second = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        gap = math.log(-math.expm1(min(second - first, -1e-300)))
        return float(first) + gap - log_delta

    log_delta = math.log(delta)
    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    # zCDP's epsilon is an upper bound
    high = mu * mu / 2 + mu * math.sqrt(-2 * log_delta)
    return root_scalar(excess, bracket=(0.0, high), xtol=1e-12).root


def _composed_epsilon(
    mu: float, sampled: Counter[Any], delta: float, direction: str, found: float
) -> float | None:
    """Return the larger of `found` and the smallest epsilon of one direction.

    Return None if the grid would be too long. `sampled` counts releases by (sigma, q,
    steps of an epoch, group cap).

    Notes
    -----
    If the method's epsilon e is at least `found`, the result is at most
    e / (1 - _ROUNDED). Proof: Let S be the sum of the method's n losses. `_on_grid`
    adds to each loss an independent error, which has mean 0 and two values, `grid`
    apart. By Hoeffding, the sum D of the errors is above `error` with probability at
    most exp(-2 error**2 / (n grid**2)) = `lost`, and below -`error` alike. S is outside
    [low, high] with probability at most 2 `lost` (`_range`). Otherwise, S + D is one of
    the grid's points and at most S + error. The gain (1 - exp(e - loss))+ rises with
    the loss and is at most 1, so

        delta of the grid at e + error <= delta of the method at e + 4 lost.

    Therefore the root at `delta` + 4 `lost` is at most e + error. At the end, `error`
    is at most _ROUNDED times the result. The proof takes the losses of one release as
    exact. `_OUTCOMES` makes their error far smaller, except in `_epoch`.
    """
    parts = []
    for (sigma, prob, steps, _), count in sampled.items():
        if steps > 1:
            parts.append((*_epoch(1 / sigma, steps, direction), -(-count // steps)))
        else:
            parts.append((*_poisson_batch(sigma, prob, direction), count))
    if mu > 0:
        z = np.linspace(-_TAILS, _TAILS, _OUTCOMES)
        parts.append((mu * z + mu * mu / 2, _normal_cells(z, [0.0], [1.0]), 1))
    lost = _LOST * delta
    reach = math.sqrt(sum(n for *_, n in parts) * -math.log(lost) / 2)
    spread = math.sqrt(sum(n * _variance(losses, p) for losses, p, n in parts))
    low, high = _range(parts, spread, lost)
    error = _FIRST_ERROR * max(high, found)
    while True:
        grid = error / reach
        start = math.floor((low - error) / grid)
        least = (high + error) / grid - start + 2
        if least > _MOST_POINTS:
            return None
        size = 2 ** math.ceil(math.log2(least))
        own = _grid_epsilon(parts, grid, start, size, delta + 4 * lost)
        epsilon = max(found, own)
        if error <= _ROUNDED * epsilon or epsilon == 0:
            return epsilon
        error = 0.8 * _ROUNDED * epsilon  # less, because epsilon can become smaller


def _variance(losses: np.ndarray, chances: np.ndarray) -> float:
    """Return the variance of a loss."""
    return float((losses - losses @ chances) ** 2 @ chances)


def _range(parts: list[Any], spread: float, lost: float) -> tuple[float, float]:
    """Return bounds of the sum of all losses.

    The sum is below the first with probability at most `lost`, and above the second.
    Chernoff: P(S > high) <= E exp(t S) / exp(t high), for each t > 0.
    """
    ends = []
    for sign in (-1, 1):
        found = []
        for t in sign * 4.0 ** np.arange(-3, 2) / spread:
            power = -math.log(lost)
            for losses, chances, count in parts:
                exponents = t * losses
                peak = exponents.max()
                mean = np.exp(exponents - peak) @ chances
                power += count * float(peak + np.log(mean))
            found.append(power / t)
        ends.append(sign * min(sign * end for end in found))
    return ends[0], ends[1]


def _grid_epsilon(
    parts: list[Any], grid: float, start: int, size: int, delta: float
) -> float:
    """Return the epsilon of losses that are rounded to a grid, and at least 0.

    The sum of all losses is one of `size` points from `start` on. Single losses may be
    outside these points, because indexes are sums modulo `size`.
    """
    transform = np.ones(size // 2 + 1, complex)
    for losses, chances, count in parts:
        transform *= rfft(_on_grid(losses / grid, chances, size)) ** count
    chances = np.roll(irfft(transform, size), -start)
    losses = (start + np.arange(size)) * grid

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        gain = -np.expm1(epsilon - losses[above])
        return float(chances[above] @ gain) - delta

    if excess(0.0) <= 0:
        return 0.0
    return root_scalar(excess, bracket=(0.0, losses[-1]), xtol=1e-12).root


def _on_grid(place: np.ndarray, chances: np.ndarray, size: int) -> np.ndarray:
    """Return probabilities on a grid: each is divided between two adjacent points.

    This keeps the mean. Places are taken modulo `size`.
    """
    low = np.floor(place).astype(int)
    share = place - low
    row = np.bincount(low % size, chances * (1 - share), size)
    return row + np.bincount((low + 1) % size, chances * share, size)


def _normal_cells(
    z: np.ndarray, means: Sequence[float], weights: Sequence[float]
) -> np.ndarray:
    """Return the probabilities of a normal mixture, in cells around even grid points.

    They are normalized, because the tails beyond the grid are cut off.
    """
    edges = np.append(z, 2 * z[-1] - z[-2]) - (z[1] - z[0]) / 2
    chances = np.zeros(len(z))
    for mean, weight in zip(means, weights, strict=True):
        # use the smaller tail, so that far cells keep their digits
        below = np.diff(norm.cdf(edges - mean))
        above = -np.diff(norm.sf(edges - mean))
        chances += weight * np.where(z < mean, below, above)
    return chances / chances.sum()


def _poisson_batch(
    sigma: float, prob: float, direction: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return (losses, probabilities) of one Poisson batch.

    `direction` is "removed", "added" or "replaced".
    """
    step = 1 / sigma
    z = np.linspace(-_TAILS - step, _TAILS + step, _OUTCOMES)

    def log_mixture(shift: float) -> np.ndarray:
        ratio = shift * z - shift * shift / 2
        return np.logaddexp(math.log1p(-prob), math.log(prob) + ratio)

    with_row = log_mixture(step)
    without = log_mixture(-step) if direction == "replaced" else np.zeros_like(z)
    if direction == "added":
        return without - with_row, _normal_cells(z, [0.0], [1.0])
    return with_row - without, _normal_cells(z, [0.0, step], [1 - prob, prob])


def _cell_width(mu: float) -> float:
    """Return the width of the cells of likelihood ratios of one step."""
    return math.exp(mu * (_RATIO_TAILS + mu) - mu * mu / 2) / _RATIO_CELLS


def _epoch(mu: float, steps: int, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (losses, probabilities) of an epoch with each row in one step.

    The likelihood ratio is the mean over steps of exp(mu z - mu**2/2). If the row is
    used, one z has mean mu.
    """
    z = np.linspace(-_RATIO_TAILS, _RATIO_TAILS + mu, _OUTCOMES)
    ratios = np.exp(mu * z - mu * mu / 2)
    width = _cell_width(mu)
    # the other steps' ratios have mean 1, and their sum rarely exceeds `steps` by much
    size = 2 ** math.ceil(math.log2(2 * _RATIO_CELLS + steps / width))

    def transform(mean: float) -> np.ndarray:
        chances = _normal_cells(z, [mean], [1.0])
        return rfft(_on_grid(ratios / width, chances, size))

    own = transform(0.0 if direction == "added" else mu)
    total = irfft(own * transform(0.0) ** (steps - 1), size)
    place = np.flatnonzero(total > 1e-18)
    place = place[place > 0]
    losses = np.log(place * (width / steps))
    chances = total[place] / total[place].sum()
    return (-losses if direction == "added" else losses), chances
