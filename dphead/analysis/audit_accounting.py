"""Recompute a plan's epsilon from its releases, for `dphead audit`.

The computation is an independent check. It must not import the accountant of charges
(`dphead.privacy.accounting` and its imports), or one error could affect both. Full
batches have a closed form. Losses of sampled batches are put on a grid and composed by
a Fourier transform. Rounding goes in both directions, so the result is accurate, but
not an upper bound.
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

# Chosen; tests check that the error is far below 1 %, the slack of `audit`.
_LOSS_GRID = 2.0**-11  # spacing of losses
_LARGEST_LOSS = 128.0  # largest absolute loss of the composition
_OUTCOMES = 100_001  # points of one release, within _TAILS deviations of its means
_TAILS = 12.0
_RATIO_TAILS = 7.0  # as _TAILS, for a step of an epoch (`_epoch`)
_RATIO_CELLS = 2**20  # cells from 0 to the largest likelihood ratio of such a step


def recomputed_epsilon(
    specs: Sequence[ReleaseSpec], delta: float, relation: str
) -> float | None:
    """Return the recomputed epsilon of these releases at `delta`.

    Return None for random batches with a group cap above 1, and for privacy losses
    beyond the grid of the computation.
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
    if any(cap > 1 for *_, cap in sampled):
        return None
    directions = ("removed", "added")
    if relation == "replace_one":
        directions = ("replaced",)
    found = [_composed_epsilon(mu, sampled, delta, d) for d in directions]
    return None if None in found else max(e for e in found if e is not None)


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
    mu: float, sampled: Counter[Any], delta: float, direction: str
) -> float | None:
    """Return the smallest epsilon of one direction; None for losses beyond the grid.

    `sampled` counts releases by (sigma, q, steps of an epoch, group cap).
    """
    half = round(_LARGEST_LOSS / _LOSS_GRID)
    size = 2 * half
    parts = []
    for (sigma, prob, steps, _), count in sampled.items():
        if steps > 1:
            losses, chances = _epoch(1 / sigma, steps, direction)
            count = -(-count // steps)
        else:
            losses, chances = _poisson_batch(sigma, prob, direction)
        parts.append((losses, chances, count))
    if mu > 0:
        z = np.linspace(-_TAILS, _TAILS, _OUTCOMES)
        parts.append((mu * z + mu * mu / 2, _normal_cells(z, [0.0], [1.0]), 1))
    transform = np.ones(size // 2 + 1, complex)
    for losses, chances, count in parts:
        mean = float(losses @ chances)
        spread = float(np.sqrt(((losses - mean) ** 2) @ chances))
        if count * abs(mean) + 12 * spread * math.sqrt(count) > _LARGEST_LOSS / 2:
            return None
        place = np.clip(losses / _LOSS_GRID, -half + 1, half - 2) + half
        transform *= rfft(np.roll(_on_grid(place, chances, size), -half)) ** count
    chances = np.maximum(np.roll(irfft(transform, size), half), 0.0)
    losses = (np.arange(size) - half) * _LOSS_GRID

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        gain = -np.expm1(epsilon - losses[above])
        return float(chances[above] @ gain) - delta

    if excess(0.0) <= 0:
        return 0.0
    if excess(_LARGEST_LOSS / 2) > 0:
        return None
    return root_scalar(excess, bracket=(0.0, _LARGEST_LOSS / 2), xtol=1e-12).root


def _on_grid(place: np.ndarray, chances: np.ndarray, size: int) -> np.ndarray:
    """Return probabilities on a grid: each is divided between two adjacent points."""
    low = np.floor(place).astype(int)
    share = place - low
    row = np.bincount(low, chances * (1 - share), size)
    return row + np.bincount(low + 1, chances * share, size)


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


def _epoch(mu: float, steps: int, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (losses, probabilities) of an epoch with each row in one step.

    The likelihood ratio is the mean over steps of exp(mu z - mu**2/2). If the row is
    used, one z has mean mu.
    """
    z = np.linspace(-_RATIO_TAILS, _RATIO_TAILS + mu, _OUTCOMES)
    ratios = np.exp(mu * z - mu * mu / 2)
    width = float(ratios[-1]) / _RATIO_CELLS
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
