"""Privacy loss distributions: the charge of Poisson batches.

A release is a pair of distributions, of what is seen with and without one protected
unit (proofs/poisson.md, proofs/groups.md say which pair). Its privacy loss is the
logarithm of their ratio. Here losses are rounded up to a grid, so that releases can be
composed by Fourier transforms; what rounding may take off is added to the chance of an
infinite loss. It takes seconds to load: import this module where it is used.

Sources: Balle, Barthe, Gaboardi 2018 (one row); Zhu, Dong, Wang 2022 (dominating
pairs); Doroshenko et al. 2022 (connect the dots). dp_accounting has the other pairs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np
from dp_accounting.pld.common import self_convolve
from dp_accounting.pld.privacy_loss_mechanism import (
    AdjacencyType,
    GaussianPrivacyLoss,
    MixtureGaussianPrivacyLoss,
    MonotonePrivacyLoss,
)
from scipy.fft import next_fast_len
from scipy.signal import fftconvolve
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from dphead.privacy.accounting import (
    LARGEST_NOISE,
    PLD_MIN_DELTA,
    GaussianEvent,
    check,
    epsilon_from_rdp,
    rdp_curve,
    require,
    together,
    total_mu,
)

INTERVAL = 1e-4  # width of the grid; above epsilon = 100 wider in proportion
LARGEST_LOSS = 1e6  # above, epsilon is called infinite
SIZE_ORDERS = (2, 4, 8, 16, 32, 64)  # RDP orders that tell the size of the losses
UNIT = 2.0**-53  # what one operation rounds by, relative to its result
CUT = 1e-15  # chance of losses beyond the ends of a composition: called infinite
RAREST = 1e-7  # rarer rows have losses that rounding hides from dp_accounting
RARELY_NONE = 1e-6  # less is not resolved by 1 - (the chance that some row is sampled)
Deltas = Callable[[np.ndarray], np.ndarray]  # of increasing epsilons


@dataclass(frozen=True)
class Losses:
    """A distribution of privacy losses on a grid, in one direction of the pair.

    chances: (n,) of the losses lowest * interval, (lowest + 1) * interval, ...
    infinite: the chance of an infinite loss.
    """

    lowest: int
    chances: np.ndarray
    infinite: float
    interval: float

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Delta at each epsilon of at least 0.

        Guarantee: not below sum of chance * (1 - exp(epsilon - loss)) over the losses
        above epsilon, plus `infinite`.
        """
        losses, above, scaled = self._tails
        first = np.searchsorted(losses, epsilons, side="right")
        growth = np.exp(np.asarray(epsilons, np.longdouble))
        deltas = self.infinite + above[first] - growth * scaled[first]
        return np.asarray(deltas * (1 + 4 * UNIT), float)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon of at least 0 with `deltas` of at most delta, or above it.

        Infinite where there is none.
        """
        losses, above, scaled = self._tails
        grid = np.concatenate([[0.0], losses])
        enough = self.deltas(grid) <= delta
        if not enough[-1]:
            return math.inf
        first = int(np.argmax(enough))
        if first == 0:
            return 0.0
        # between two points of the grid, delta is linear in exp(epsilon)
        rest = self.infinite + above[first - 1] - delta * (1 - 8 * UNIT)
        if scaled[first - 1] <= 0 or rest <= 0:
            return float(grid[first])
        between = float(np.log(rest / scaled[first - 1])) * (1 + 8 * UNIT)
        return min(max(between, 0.0), float(grid[first]))

    @cached_property
    def _tails(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positive losses l, and sums over all from each on of p and of p exp(-l).

        Sums have one entry more, 0, and what their rounding may have taken off p.
        """
        start = max(0, 1 - self.lowest)
        steps = np.arange(start, len(self.chances), dtype=np.longdouble) + self.lowest
        losses = steps * np.longdouble(self.interval)
        chances = np.maximum(self.chances[start:], 0).astype(np.longdouble)
        rounding = 2 * (len(losses) + 20) * np.finfo(np.longdouble).eps
        zero = np.zeros(1, np.longdouble)
        above = np.concatenate([np.cumsum(chances[::-1])[::-1], zero])
        scaled = chances * np.exp(-losses)
        scaled = np.concatenate([np.cumsum(scaled[::-1])[::-1], zero])
        return losses, above * (1 + rounding), scaled


# A plan's calibration, its charge and its report ask for the same.
@lru_cache(maxsize=1024)
def pld_epsilon(
    events: tuple[GaussianEvent, ...],
    delta: float,
    relation: str,
    coarser: float = 1.0,
) -> float:
    """Epsilon of the composition at delta.

    Infinite if a loss may exceed 1e6, or where rounding may take all of delta off
    (proofs/poisson.md): at 1e-10 from some 1,000 releases on. coarser: as
    `loss_distribution`. ValueError for a delta below PLD_MIN_DELTA.

    Guarantee: an upper bound: as `loss_distribution`.
    """
    enough = f"pld needs delta of at least {PLD_MIN_DELTA}"
    require(delta >= PLD_MIN_DELTA, enough, "delta", delta, "Use rdp.")
    distribution = loss_distribution(events, relation, coarser)
    if distribution is None:
        return math.inf
    return max(losses.epsilon(delta) for losses in distribution)


def loss_distribution(
    events: Sequence[GaussianEvent], relation: str = "zero_out", coarser: float = 1.0
) -> list[Losses] | None:
    """The losses of the composition in each direction; None if one may exceed 1e6.

    coarser: how many times wider the grid is. ValueError for units of several rows in
    Poisson batches under replace_one.

    Guarantee: pessimistic: delta at every epsilon is never below the true one.
    """
    check(relation=relation)
    full_mu = total_mu([e for e in events if e.sampling_prob == 1]) or 0.0
    sampled = (e for e in events if e.sampling_prob < 1 and e.count)
    poisson = together(e for e in sampled if e.noise_multiplier < math.inf)
    groups = any(e.rows_per_unit > 1 for e in poisson)
    require(
        not groups or relation != "replace_one",
        "groups in Poisson batches need zero_out or add_remove",
        "relation",
        relation,
        "Use full batches.",
    )
    size = _size_of_losses(full_mu, poisson, relation)
    if not size < LARGEST_LOSS:
        return None
    interval = INTERVAL * coarser
    if groups:
        interval *= 10  # a mixture's losses take seconds to invert
    interval *= max(1.0, size / 100)
    directions = [AdjacencyType.REMOVE, AdjacencyType.ADD]
    if relation == "replace_one":
        directions = [AdjacencyType.REPLACE]
    if not poisson:
        directions = [AdjacencyType.REMOVE]  # full batches are the same in all
    composed = []
    for direction in directions:
        parts = [_full_batches(full_mu, interval)] if full_mu > 1e-100 else []
        for event in poisson:
            one = _poisson_batch(event, direction, interval)
            parts.append(_self_composed(one, int(event.count)))
        nothing = Losses(0, np.ones(1), 0.0, interval)
        composed.append(reduce(_composed, parts) if parts else nothing)
    return composed


def _size_of_losses(
    full_mu: float, poisson: Sequence[GaussianEvent], relation: str
) -> float:
    """About the largest loss: it sets the width of the grid and nothing else."""
    moved = 2 if relation == "replace_one" else 1  # how far a row moves, in clip norms
    rows = []
    for event in poisson:
        sd = event.noise_multiplier / moved / event.rows_per_unit
        rows.append(replace(event, noise_multiplier=sd, rows_per_unit=1))
    full = np.asarray(SIZE_ORDERS) * (full_mu * full_mu / 2)
    curve = rdp_curve(rows, SIZE_ORDERS) + full
    return epsilon_from_rdp(SIZE_ORDERS, curve, 1e-15)


def _full_batches(mu: float, interval: float) -> Losses:
    """The pair N(0, 1), N(mu, 1), under every relation and in both directions.

    A full batch's noise is over the relation's own sensitivity, so nothing is doubled
    under replace_one.
    """
    losses = GaussianPrivacyLoss(1 / mu)
    return _connect_dots(lambda e: _gaussian_deltas(e, mu), losses, interval)


def _poisson_batch(
    event: GaussianEvent, direction: AdjacencyType, interval: float
) -> Losses:
    """The pair of one Poisson batch of probability q, with noise over the clip norm C.

    A row: N(0) and (1-q) N(0) + q N(C), and where it is replaced
    (1-q) N(0) + q N(C) and (1-q) N(0) + q N(-C). A unit of k rows: N(0) and the mixture
    of N(j C), where j is binomial (k, q).
    """
    sd = min(event.noise_multiplier, LARGEST_NOISE)  # less noise costs more
    q, k = event.sampling_prob, event.rows_per_unit
    if k > 1:
        return _group_batch(sd, q, k, direction, interval)
    losses = GaussianPrivacyLoss(sd, sampling_prob=q, adjacency_type=direction)
    if direction == AdjacencyType.REPLACE:
        return _connect_dots(_deltas_of(losses), losses, interval)
    added = direction == AdjacencyType.ADD
    return _connect_dots(lambda e: _row_deltas(e, q, sd, added), losses, interval)


def _gaussian_deltas(epsilons: np.ndarray, mu: float) -> np.ndarray:
    """Delta of the pair N(0, 1), N(mu, 1). Source: Balle, Wang 2018, Theorem 8."""
    t = mu / 2 - epsilons / mu
    return ndtr(t) - np.exp(epsilons + log_ndtr(t - mu))


def _row_deltas(epsilons: np.ndarray, q: float, sd: float, added: bool) -> np.ndarray:
    """Delta of (1-q) N(0) + q N(1) against N(0), both with noise sd; `added`: reversed.

    Without sampling the loss at a point is l; with it, it is log(1 - q + q exp(l)), and
    less that for the reverse. Delta is that of the points where it is above epsilon:
    where l is above `level` (below, for the reverse).
    """
    e = -epsilons if added else epsilons
    none = math.log1p(-q)  # the loss, or less it, of a sample without the row
    inside = e > none
    e = e[inside]
    level = e - math.log(q) + np.log(-np.expm1(none - e))
    if added:
        deltas = np.zeros(len(epsilons))
        plain = ndtr(sd * level + 0.5 / sd)
        moved = log_ndtr(sd * level - 0.5 / sd)
        deltas[inside] = -np.expm1(none - e) * plain - np.exp(math.log(q) - e + moved)
        return deltas
    deltas = -np.expm1(epsilons)
    moved = ndtr(0.5 / sd - sd * level)
    plain = log_ndtr(-0.5 / sd - sd * level)
    deltas[inside] = q * moved - np.exp(math.log(q) + level + plain)
    return deltas


def _group_batch(
    sd: float, q: float, k: int, direction: AdjacencyType, interval: float
) -> Losses:
    """The pair of a unit of k rows, by dp_accounting's mixture."""
    # More sampling costs more: a sample at q is a thinned one at more than q.
    chances = np.asarray(binom.pmf(range(k + 1), k, max(q, RAREST)))
    if chances[0] < RARELY_NONE:
        # One row where there was none costs more.
        chances[1] += chances[0]
        chances[0] = 0.0
        # so that their sum is at least 1, also in float
        chances = np.minimum(chances * (1 + 1e-14) / chances.sum(), 1.0)
    rows = range(k + 1)
    losses = _GroupLosses(sd, rows, chances.tolist(), adjacency_type=direction)
    lost = _lost_by_inversion(sd, k)
    return _connect_dots(_deltas_of(losses), losses, interval, lost)


def _lost_by_inversion(sd: float, k: int) -> float:
    """At least what dp_accounting's mixture of k rows may lose of delta at a point.

    Its bisection finds the point t where the loss is a given one, but for h = 1e-6. The
    loss changes by at most k / sd**2 per unit there, and h k / sd**2 < 1 wherever a
    loss is below 1e6. So at most the integral over h of a density, at most 0.4 / sd,
    times exp(h k / sd**2) - 1 is lost: below 0.3 h**2 k / sd**3. Numbers of size
    (k / sd)**2 are rounded too.
    """
    return 0.3e-12 * k / sd**3 + 1e-14 * (1 + (k / sd) ** 2)


def _deltas_of(losses: Any) -> Deltas:
    """Delta at each epsilon, by dp_accounting."""
    return lambda epsilons: np.asarray(losses.get_delta_for_epsilon(epsilons))


def _connect_dots(
    deltas: Deltas, losses: MonotonePrivacyLoss, interval: float, lost: float = 0.0
) -> Losses:
    """The losses whose delta at each point of the grid is that of `deltas`, or above.

    Between two points it is on their chord, since delta is convex in exp(epsilon), so
    it is nowhere below. `losses` says where the grid ends. lost: what `deltas` may lack
    besides rounding. Source: Doroshenko et al. 2022, Algorithm 1.

    With d and d' the differences of delta before and after a point, its chance is
    (d' - d exp(interval)) / (exp(interval) - 1) = (d' - d) / expm1(interval) - d. Each
    quotient is rounded once and stands in two chances, so rounding takes off some UNITs
    of delta in all (proofs/poisson.md).
    """
    ends: Any = losses.connect_dots_bounds()
    lowest = math.floor(ends.epsilon_lower / interval)
    highest = math.ceil(ends.epsilon_upper / interval)
    grid = np.arange(lowest, highest + 1) * interval
    lost += 100 * UNIT * (1 + max(-grid[0], grid[-1]))
    curve = np.minimum(deltas(grid) + lost, 1.0)
    curve = np.maximum.accumulate(curve[::-1])[::-1]
    steps = np.diff(curve)
    slopes = steps / math.expm1(interval)
    chances = np.zeros(len(grid))
    chances[:-1] += slopes
    chances[1:] -= slopes
    chances[1:] -= steps
    chances[0] += 1 - curve[0]
    chances = np.maximum(chances, 0.0)
    infinite = min(float(curve[-1]) + 20 * UNIT, 1.0)
    return Losses(lowest, chances, infinite, interval)


def _self_composed(one: Losses, count: int) -> Losses:
    """`count` releases at once. What the transforms may lose becomes infinite."""
    if count == 1:
        return one
    offset, chances = self_convolve(one.chances, count, CUT)
    chances = np.asarray(chances)
    infinite = CUT - math.expm1(count * math.log1p(-one.infinite))
    size: Any = next_fast_len(max(len(one.chances), len(chances)))
    norm = float(np.linalg.norm(chances))
    forward = count * (_transform_error(size) + 16 * UNIT) * norm ** (1 - 1 / count)
    backward = _transform_error(size) * norm
    infinite += math.sqrt(size) * (forward + backward)
    return Losses(one.lowest * count + offset, chances, infinite, one.interval)


def _composed(first: Losses, second: Losses) -> Losses:
    """Both, one after the other. What the transforms may lose becomes infinite."""
    chances = fftconvolve(first.chances, second.chances)
    size: Any = next_fast_len(len(chances), real=True)
    norms = [np.linalg.norm(p) for p in (first.chances, second.chances, chances)]
    lost = math.sqrt(size) * _transform_error(size) * float(sum(norms))
    infinite = first.infinite + second.infinite + lost
    lowest = first.lowest + second.lowest
    return Losses(lowest, chances, infinite, first.interval)


def _transform_error(size: int) -> float:
    """Bound on the relative error of a Fourier transform of at most that size.

    Eight operations' rounding for each doubling. Source: Higham 2002, Theorem 24.2.
    """
    return 8 * UNIT * math.log2(size)


class _GroupLosses(MixtureGaussianPrivacyLoss):
    """dp_accounting's mixture, without its jump beside the extreme loss.

    A sample without any row of the unit bounds the loss on one side, by -log P(none).
    dp_accounting takes a loss within 1e-8 + 1e-5 of that size (np.isclose) for the
    bound itself, and loses up to as much of delta.
    """

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Delta at increasing epsilons; beside the extreme loss on a chord.

        Delta is convex in exp(epsilon), so a chord is above it, and at and beyond the
        extreme it is known: 0, or 1 - exp(epsilon).
        """
        deltas: Any = super().get_delta_for_epsilon(epsilon)
        if self._sampling_prob == 1:
            return deltas
        extreme = -math.log1p(-self._sampling_prob)
        gap = 1e-7 + 2e-5 * extreme  # more than isclose's, and than any rounding
        if self.adjacency_type == AdjacencyType.ADD:
            low, high = extreme - gap, extreme + gap
            before = np.flatnonzero(epsilon <= low)
            left, top = -math.inf, 1.0
            if len(before):
                left, top = epsilon[before[-1]], deltas[before[-1]]
            right, bottom = high, 0.0
        else:
            low, high = -extreme - gap, -extreme + gap
            after = np.flatnonzero(epsilon >= high)
            left, top = low, -math.expm1(low)
            right, bottom = high, top  # delta does not grow
            if len(after):
                right, bottom = epsilon[after[0]], deltas[after[0]]
        near = (epsilon > low) & (epsilon < high)
        start = math.exp(left - right)
        weight = (np.exp(epsilon[near] - right) - start) / (1 - start)
        deltas[near] = top + weight * (bottom - top)
        return deltas
