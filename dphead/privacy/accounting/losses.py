"""Represent privacy losses on a grid, and compose releases.

Rounding only increases losses. Mass lost to rounding or Fourier transforms becomes the
probability of an infinite loss (proofs/poisson.md). The import takes seconds, so import
this module where it is used.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

UNIT_ROUNDOFF = 2.0**-53  # relative rounding error of one float64 operation
# The constants below are chosen, not measured. The first three trade tightness for time
# and memory. Omitted probability is charged as an infinite loss.
TAIL_MASS = 1e-15  # probability cut at each end of a composition
_CHERNOFF_ORDERS = (1, 2, 3, 5, 8, 13, 20)  # orders of the bound that finds these ends
MAX_GRID_POINTS = 2**23  # points of a composition, 67 MB; beyond, losses are infinite
LOOP_POINTS = 2**18  # points of the longest array that a loop in Python sums


@dataclass(frozen=True)
class Losses:
    """Hold a distribution of privacy losses on a grid, in one direction of the pair.

    Parameters
    ----------
    lowest : int
        Grid index of the first loss.
    chances : ndarray of shape (n,)
        Probabilities of the losses lowest * interval, (lowest + 1) * interval, ...
    infinite : float
        Probability of an infinite loss.
    interval : float
        Width of the grid.
    """

    lowest: int
    chances: np.ndarray
    infinite: float
    interval: float

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Return delta at each epsilon of at least 0.

        Guarantee
        ---------
        The result is not below the sum of chance * (1 - exp(epsilon - loss)) over the
        losses above epsilon, plus `infinite`.
        """
        return self._deltas(epsilons, self._all_tails)

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on the least epsilon >= 0 that satisfies `delta`.

        Infinite if there is none.
        """
        tails = losses, above, scaled = self._tails(delta)
        grid = np.concatenate([[0.0], losses[:-1]])

        def enough(i: int) -> bool:
            """Return whether delta is small enough at a point of the grid."""
            return bool(self._deltas(grid[i], tails) <= delta)

        # delta falls with epsilon, so the first point that is small enough decides.
        first = bisect_left(range(len(grid)), True, key=enough)
        if first == len(grid):
            return math.inf
        if first == 0:
            return 0.0
        point = float(np.nextafter(float(grid[first]), np.inf))
        # Between two points of the grid, delta is linear in exp(epsilon).
        # A smaller delta and a larger epsilon are the safe side of rounding.
        lowered = delta * (1 - 8 * UNIT_ROUNDOFF)
        rest = self.infinite + above[first - 1] - lowered
        if scaled[first - 1] <= 0 or rest <= 0:
            return point
        between = grid[first] + np.log(rest / scaled[first - 1])
        raised = between * (1 + 8 * UNIT_ROUNDOFF)
        return float(np.clip(raised, 0.0, point))

    @cached_property
    def mass(self) -> float:
        """Return the sum of all probabilities, at least 1."""
        return max(1.0, float(np.sum(self.chances)) + self.infinite)

    @cached_property
    def _all_tails(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._tails(math.inf)

    def _deltas(
        self, epsilons: np.ndarray, tails: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> np.ndarray:
        # delta(e) = sum over losses L > e of p(L) (1 - exp(e - L)), plus `infinite`.
        losses, above, scaled = tails
        asked = np.asarray(epsilons, np.longdouble)
        first = np.searchsorted(losses[:-1], asked, side="right")
        # Exponents are relative to the next loss, so exp never overflows.
        shares = np.exp(asked - losses[first])
        deltas = self.infinite + above[first] - shares * scaled[first]
        rounded = deltas * (1 + 4 * UNIT_ROUNDOFF)
        return np.asarray(rounded + 1e-300, float)  # 1e-300 covers subnormals

    def _tails(self, delta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positive losses l, and the sums `above` and `scaled` over L >= l.

        `above` sums p(L). `scaled` sums p(L) exp(l - L), which cannot overflow. The
        last entries are a loss of inf and two sums of 0. `above` includes a bound on
        its rounding error. Small losses whose deltas certainly exceed `delta` are left
        out.
        """
        start = max(0, 1 - self.lowest)
        positive = np.maximum(self.chances[start:], 0)
        chances = positive.astype(np.longdouble)[::-1]
        above = np.cumsum(chances)
        # At l - 1, delta exceeds 0.6 of the mass from l on, because 1 - 1/e > 0.6.
        fewer = int(np.searchsorted(above, (delta - self.infinite) / 0.6, "right"))
        count = min(len(above), fewer + 1 + math.ceil(1 / self.interval))
        # scaled[i] = chance[i] + ratio * scaled[i + 1]: a recursive filter.
        ratio = np.exp(-np.longdouble(self.interval))
        scaled = _filtered(chances[:count], ratio)
        end = self.lowest + len(self.chances)
        steps = np.arange(end - count, end, dtype=np.longdouble)
        losses = steps * np.longdouble(self.interval)
        largest = float(losses[-1]) if len(losses) else 0.0
        unit = np.finfo(np.longdouble).eps
        # Rounding of n additions and of the losses (proofs/poisson.md, step 4).
        rounding = 4 * (len(above) + largest + 20) * unit
        zero = np.zeros(1, np.longdouble)
        above = np.append(above[:count][::-1], zero) * (1 + rounding)
        return np.append(losses, np.inf), above, np.append(scaled[::-1], zero)


def self_composed(one: Losses, count: int) -> Losses:
    """Return the losses of `count` equal releases together.

    A bound on the mass lost in transforms is added to the probability of an infinite
    loss. All losses are infinite if the grid would have too many points, or if rounding
    made the sum of the probabilities too large.
    """
    if count == 1:
        return one
    low, high = self_composed_ends(one.chances, count)
    points = high - low + 1
    longest = max(points, len(one.chances))
    too_long = high < low or longest > MAX_GRID_POINTS
    if too_long or count * math.log(one.mass) > 1:
        return Losses(0, np.zeros(1), 1.0, one.interval)
    size: Any = next_fast_len(longest, real=True)
    # proofs/poisson.md, step 3: p* = ifft(fft(p)^n).
    power = np.asarray(rfft(one.chances, size)) ** count
    composed = np.asarray(irfft(power, size))
    # The transform is cyclic: the kept part starts at `low`.
    chances = np.roll(composed, -low)[:points]
    mass = one.mass**count
    # Probability that any of `count` releases has an infinite loss.
    share = min(one.infinite / one.mass, 1 - UNIT_ROUNDOFF)
    finite = math.log1p(-share)
    infinite = TAIL_MASS - mass * math.expm1(count * finite)
    # A power multiplies the relative error of the transform by `count`.
    norm = _norm(chances) / mass
    share = count * (_transform_error(size) + 16 * UNIT_ROUNDOFF)
    # s ||p*||^((n-1)/n) + 2 s^2 for the power, t ||p*|| for the inverse.
    forward = share * norm ** (1 - 1 / count) + 2 * share**2
    backward = _transform_error(size) * norm
    infinite += mass * math.sqrt(size) * (forward + backward)
    return Losses(one.lowest * count + low, chances, infinite, one.interval)


def self_composed_ends(chances: np.ndarray, count: int) -> tuple[int, int]:
    """Return the first and the last index to keep in a sum of `count` equal releases.

    By a Chernoff bound, losses beyond these ends have probability at most TAIL_MASS.
    The bound is that of dp_accounting's `compute_self_convolve_bounds`. Orders are at
    most 20 / points, so exp cannot overflow, and no slower sum of logarithms is needed.
    """
    points = len(chances)
    places = np.arange(points)
    low, high = 0, (points - 1) * count
    # The best order, in units of 1 / points, is smaller for a sum of many releases.
    for scale in (1.0, count**-0.5):
        for order in _CHERNOFF_ORDERS:
            for tilt in (order * scale / points, -order * scale / points):
                moment = float(np.sum(chances * np.exp(tilt * places)))
                if moment <= 0:
                    continue
                end = (count * math.log(moment) + math.log(2 / TAIL_MASS)) / tilt
                if tilt > 0:
                    high = min(high, math.ceil(end))
                else:
                    low = max(low, math.floor(end))
    return low, high


def composed(first: Losses, second: Losses) -> Losses:
    """Return the losses of two releases together.

    A bound on the mass lost in transforms is added to the probability of an infinite
    loss. The largest losses, with probability at most TAIL_MASS, become infinite too.
    The smallest losses are raised to the first kept loss.
    """
    points = len(first.chances) + len(second.chances) - 1
    size: Any = next_fast_len(points, real=True)
    product = np.asarray(rfft(first.chances, size)) * rfft(second.chances, size)
    chances = np.asarray(irfft(product, size))[:points]
    # Three transforms, each with its own error bound.
    norms = _norm(first.chances) * second.mass + _norm(second.chances) * first.mass
    norms += _norm(chances)
    infinite = first.infinite * second.mass + second.infinite * first.mass
    infinite += math.sqrt(size) * _transform_error(size) * norms
    chances = np.maximum(chances, 0.0)
    # Cut both ends, so that a chain of compositions does not grow.
    start = int(np.searchsorted(np.cumsum(chances), TAIL_MASS))
    from_the_end = np.cumsum(chances[::-1])
    stop = len(chances) - int(np.searchsorted(from_the_end, TAIL_MASS))
    if stop <= start:
        return Losses(0, np.zeros(1), 1.0, first.interval)
    infinite += float(np.sum(chances[stop:]))
    # Raising a small loss to a larger one is safe.
    chances[start] += np.sum(chances[:start])
    lowest = first.lowest + second.lowest + start
    return Losses(lowest, chances[start:stop], infinite, first.interval)


def _filtered(chances: np.ndarray, ratio: np.longdouble) -> np.ndarray:
    """Return y with y[i] = chances[i] + ratio * y[i - 1].

    The import of scipy.signal takes longer than a loop over a short array.
    """
    if len(chances) > LOOP_POINTS:
        from scipy.signal import lfilter

        one = np.ones(1, np.longdouble)
        return np.asarray(lfilter(one, np.append(one, -ratio), chances))
    sums = accumulate(chances, lambda last, chance: chance + ratio * last)
    return np.fromiter(sums, np.longdouble, len(chances))


def _norm(chances: np.ndarray) -> float:
    """Return the L2 norm, without BLAS, whose threads wait for each other."""
    return math.sqrt(np.sum(np.square(chances)))


def _transform_error(size: int) -> float:
    """Return a bound on the relative error of a Fourier transform up to this size.

    Each doubling counts the rounding of eight operations. Source: Higham 2002, Theorem
    24.2.
    """
    return 8 * UNIT_ROUNDOFF * math.log2(size)
