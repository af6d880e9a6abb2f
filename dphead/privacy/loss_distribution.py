"""Privacy loss distributions: the charge of Poisson batches and of allocated rows.

A release (of allocated rows, an epoch) is a pair of distributions, of what is seen with
and without one protected unit (proofs/poisson.md, proofs/groups.md and, for epochs,
`allocation` say which pair). Its privacy loss is the logarithm of their ratio. Here
losses are rounded up to a grid, so that releases can be composed by Fourier transforms;
what rounding may take off is added to the chance of an infinite loss (`losses`). It
takes seconds to load: import this module where it is used.

Sources: Zhu, Dong, Wang 2022 (dominating pairs); Doroshenko et al. 2022 (connect the
dots).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from scipy.special import log_ndtr

from dphead.privacy.accounting import (
    LARGEST_NOISE,
    GaussianEvent,
    check,
    epsilon_from_rdp,
    rdp_curve,
    require,
    together,
    total_mu,
)
from dphead.privacy.allocation import epoch_losses
from dphead.privacy.losses import UNIT_ROUNDOFF, Losses, composed, self_composed

# Chosen, not measured: they trade the charge's tightness for time and memory, and what
# they leave is counted.
GRID_INTERVAL = 1e-4  # of losses; in proportion for losses below 2 and above 100
LARGEST_LOSS = 1e6  # above, epsilon is called infinite
SIZE_ORDERS = (1.1, 1.5, 2, 4, 8, 16, 32, 64, 256, 2048)  # of RDP: for the grid
LARGEST_GROUP = 10_000  # rows of a unit in Poisson batches: about 20 s
TAIL_DEVIATIONS = 10.0  # standard deviations from the outer means to the grid's ends
LOOKUP_POINTS = 4096  # of x, between which a loss is looked up first
NEWTON_STEPS = 5  # leave some units of rounding of a loss, as tried
MAX_TABLE_ENTRIES = 4_000_000  # of a table of terms: 32 MB
DIRECTIONS = {  # zero_out: a removed row adds zero where it is sampled
    "zero_out": ("removed", "added"),
    "add_remove": ("removed", "added"),
    "replace_one": ("replaced",),  # the mirror image of itself
}


# A plan's calibration, its charge and its report ask for the same.
@lru_cache(maxsize=1024)
def pld_epsilon(
    events: tuple[GaussianEvent, ...],
    delta: float,
    relation: str,
    coarser: float = 1.0,
) -> float:
    """Epsilon of the composition at delta.

    Infinite if a loss may exceed 1e6, or where rounding may take all of delta off: some
    1e-13 for each release (proofs/poisson.md). coarser: as `loss_distribution`.

    Guarantee: an upper bound: as `loss_distribution`.
    """
    distribution = loss_distribution(events, relation, coarser)
    if distribution is None:
        return math.inf
    return max(losses.epsilon(delta) for losses in distribution)


def loss_distribution(
    events: Sequence[GaussianEvent], relation: str = "zero_out", coarser: float = 1.0
) -> list[Losses] | None:
    """The losses of the composition in each direction; None if one may exceed 1e6.

    coarser: how many times wider the grid is, 1 to 100. ValueError for units of several
    rows in Poisson batches under replace_one, and of more than LARGEST_GROUP, and for
    allocated rows under replace_one.

    Guarantee: pessimistic: delta at every epsilon is never below the true one.
    """
    check(relation=relation)
    require(1 <= coarser <= 100, "coarser must be 1 to 100", "coarser", coarser)
    full_mu = total_mu([e for e in events if e.is_full]) or 0.0
    secret = (e for e in events if not e.is_full and e.count)
    sampled = together(e for e in secret if e.noise_multiplier < math.inf)
    rows = max((e.rows_per_unit for e in sampled), default=1)
    pair = "groups in Poisson batches need zero_out or add_remove"
    ok = rows == 1 or relation != "replace_one"
    require(ok, pair, "relation", relation, "Use full batches.")
    steps = max((e.epoch_steps for e in sampled), default=1)
    ok = steps == 1 or relation != "replace_one"
    known = "allocated rows need zero_out or add_remove"
    require(ok, known, "relation", relation, "Use Poisson batches.")
    few = f"groups in Poisson batches must have at most {LARGEST_GROUP} rows"
    require(rows <= LARGEST_GROUP, few, "rows_per_unit", rows, "Use full batches.")
    size = _size_of_losses(full_mu, sampled, relation)
    if not size < LARGEST_LOSS:
        return None
    # a release has some millions of points at most, and 10 million terms of mixtures
    wider = max(size / 100, size * (1 + rows) / 500)
    widths = (1e-3, min(1.0, size / 2), wider)
    interval = GRID_INTERVAL * coarser * max(widths)
    nothing = Losses(0, np.ones(1), 0.0, interval)
    full = []
    if full_mu > 0:
        full.append(_connect_dots(*_full_pair(full_mu), interval))
    found = []
    for direction in DIRECTIONS[relation] if sampled else ("removed",):
        parts = list(full)
        for event in sampled:
            if event.epoch_steps > 1:
                sd = min(event.noise_multiplier, LARGEST_NOISE)  # less costs more
                one = epoch_losses(sd, event.epoch_steps, direction, interval)
            else:
                one = _connect_dots(*_sample_pair(event, direction), interval)
            parts.append(self_composed(one, event.epochs))
        parts.sort(key=lambda part: len(part.chances))
        found.append(reduce(composed, parts) if parts else nothing)
    return found


def _size_of_losses(
    full_mu: float, sampled: Sequence[GaussianEvent], relation: str
) -> float:
    """About the largest loss, but for chances of 1e-15. It sets the grid's width.

    It is that of the composition, and a fifth of what one release's may reach: losses
    that are larger by chance take points of the grid too. Allocated rows are taken for
    Poisson batches, which cost about as much.
    """
    moved = 2 if relation == "replace_one" else 1  # how far a row moves, in clip norms
    rows, largest = [], _reach(full_mu)
    for event in sampled:
        sd = event.noise_multiplier / moved / event.rows_per_unit
        if sd == 0:
            return math.inf
        prob = event.sampling_prob / event.epoch_steps
        count = event.epochs * event.epoch_steps
        poisson = replace(event, sampling_prob=prob, count=count, epoch_steps=1)
        rows.append(replace(poisson, noise_multiplier=sd, rows_per_unit=1))
        largest = max(largest, _reach(1 / sd))
    full = np.asarray(SIZE_ORDERS) * (full_mu * full_mu / 2)
    curve = rdp_curve(rows, SIZE_ORDERS) + full
    return max(epsilon_from_rdp(SIZE_ORDERS, curve, 1e-15), largest / 5)


def _reach(mu: float) -> float:
    """The loss of N(mu, 1) against N(0, 1), TAIL_DEVIATIONS above its mean."""
    return mu * (mu / 2 + TAIL_DEVIATIONS)


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal laws N(mean, sd**2), seen from N(0, sd**2).

    log_weights, means: (k,). error: what rounding may do to a logarithm of a weight.
    """

    log_weights: np.ndarray
    means: np.ndarray
    sd: float
    error: float = 0.0

    def log_ratio(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log of its density over that of N(0, sd**2) at each x, and its slope."""
        values = np.empty(len(x))
        slopes = np.empty(len(x))
        for part in self._parts(x):
            from_middle = x[part, None] - self.means / 2
            tilt = self.means * from_middle / self.sd**2
            values[part], shares = _log_sum(self.log_weights + tilt)
            slopes[part] = shares @ self.means / self.sd**2
        return values, slopes

    def log_beyond(self, x: np.ndarray, side: int) -> np.ndarray:
        """log of the chance of more than each x (side 1) or of less (side -1)."""
        values = np.empty(len(x))
        for part in self._parts(x):
            distance = self.means - x[part, None]
            tails = log_ndtr(side * distance / self.sd)
            values[part] = _log_sum(self.log_weights + tails)[0]
        return values

    def _parts(self, x: np.ndarray) -> Iterator[slice]:
        rows = max(1, MAX_TABLE_ENTRIES // len(self.means))
        for i in range(0, len(x), rows):
            yield slice(i, i + rows)


def _log_sum(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log of the sum of exp of each row, and each entry's share of it."""
    if logs.shape[1] == 1:
        return logs[:, 0], np.ones_like(logs)
    largest = logs.max(axis=1)
    parts = np.exp(logs - largest[:, None])
    total = parts.sum(axis=1)
    return largest + np.log(total), parts / total[:, None]


def _normal(mean: float, sd: float) -> Mixture:
    return Mixture(np.zeros(1), np.array([mean]), sd)


def _full_pair(mu: float) -> tuple[Mixture, Mixture]:
    """The pair of full batches of mu in all, under every relation."""
    sd = min(1 / mu, LARGEST_NOISE)  # less noise costs more
    return _normal(1.0, sd), _normal(0.0, sd)


def _sampled(event: GaussianEvent, sd: float, moved: float) -> Mixture:
    """A unit's rows, each in the sample with its probability and moving the mean."""
    q, k = event.sampling_prob, event.rows_per_unit
    log_q = math.log(q)
    log_not = math.log1p(-q)
    ways = 1
    log_weights = []
    for j in range(k + 1):
        log_ways = math.log(ways)
        log_weights.append(log_ways + j * log_q + (k - j) * log_not)
        ways = ways * (k - j) // (j + 1)
    error = 8 * UNIT_ROUNDOFF * k * (1 - log_q - log_not)
    means = moved * np.arange(k + 1)
    return Mixture(np.array(log_weights), means, sd, error)


def _sample_pair(event: GaussianEvent, direction: str) -> tuple[Mixture, Mixture]:
    """The pair of a Poisson batch of probability q: their ratio rises.

    Noise is over the clip norm C. The mixture of N(j C), j binomial (k, q) for a unit
    of k rows, and N(0) ("removed"); N(0) and the mixture of N(-j C) ("added"); the two
    mixtures ("replaced").
    """
    sd = min(event.noise_multiplier, LARGEST_NOISE)  # less noise costs more
    plain = _normal(0.0, sd)
    upper = plain if direction == "added" else _sampled(event, sd, 1.0)
    lower = plain if direction == "removed" else _sampled(event, sd, -1.0)
    return upper, lower


def _connect_dots(upper: Mixture, lower: Mixture, interval: float) -> Losses:
    """The losses whose delta at each point of a grid is above that of the pair.

    Between two points it is on their chord, since delta is convex in exp(epsilon), so
    it is nowhere below. Source: Doroshenko et al. 2022, Algorithm 1.

    With d and d' the differences of delta before and after a point, its chance is
    (d' - d exp(interval)) / (exp(interval) - 1) = (d' - d) / expm1(interval) - d. That
    is linear: max(0, 1 - exp(epsilon)) stands for a loss of 0 alone, and the rest of
    delta is small where losses are rare, so rounding does not make chances of nothing.
    Each quotient is rounded once and stands in two chances, so it takes off some UNITs
    of delta in all (proofs/poisson.md).
    """
    beyond = TAIL_DEVIATIONS * upper.sd
    least = upper.means.min() - beyond
    most = upper.means.max() + beyond
    nodes = np.linspace(least, most, LOOKUP_POINTS)
    losses, _ = _losses(upper, lower, nodes)
    losses = np.maximum.accumulate(losses)
    lowest = min(math.floor(losses[0] / interval), 0)
    highest = max(math.ceil(losses[-1] / interval), 0)
    grid = np.arange(lowest, highest + 1) * interval
    below = _excess(grid[:-lowest], upper, lower, nodes, losses, -1)
    above = _excess(grid[-lowest:], upper, lower, nodes, losses, 1)
    excess = np.concatenate([below, above])
    steps = np.diff(excess)
    slopes = steps / math.expm1(interval)
    chances = np.zeros(len(grid))
    chances[:-1] += slopes
    chances[1:] -= slopes
    chances[1:] -= steps
    chances[0] -= excess[0]
    chances[-lowest] += 1
    infinite = min(float(excess[-1]) + 40 * UNIT_ROUNDOFF, 1.0)
    return Losses(lowest, np.maximum(chances, 0.0), infinite, interval)


def _losses(
    upper: Mixture, lower: Mixture, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The privacy loss at each x, and its slope."""
    above, rise = upper.log_ratio(x)
    below, fall = lower.log_ratio(x)
    return above - below, rise - fall


def _excess(
    epsilons: np.ndarray,
    upper: Mixture,
    lower: Mixture,
    nodes: np.ndarray,
    losses: np.ndarray,
    side: int,
) -> np.ndarray:
    """Delta of the pair, less max(0, 1 - exp(epsilon)), or a little more.

    losses: those of the points `nodes`. side: 1 for epsilons of at least 0, where it is
    P(A) - exp(epsilon) Q(A), A all x of a loss above epsilon; -1 for those below 0,
    where it is exp(epsilon) Q(B) - P(B), B all other x. The point between A and B lies
    between two nodes. Where the point found has a loss of epsilon + h, at most
    expm1(|h|) P(x beyond the node outside) is missing. It is added, so nothing depends
    on how well the point is found: here by Newton's method.
    """
    inside = np.clip(epsilons, losses[0], losses[-1])
    after = np.searchsorted(losses, inside)
    after = np.clip(after, 1, len(nodes) - 1)
    low = nodes[after - 1]
    high = nodes[after]
    x = (low + high) / 2
    for _ in range(NEWTON_STEPS):
        found, slope = _losses(upper, lower, x)
        short = found < inside
        low = np.where(short, x, low)
        high = np.where(short, high, x)
        step = (inside - found) / np.maximum(slope, 1e-300)
        x = np.clip(x + step, low, high)
    outer = after - 1 if side > 0 else after
    outside = upper.log_beyond(nodes, side)[outer]
    hit = upper.log_beyond(x, side)
    false = inside + lower.log_beyond(x, side)
    found, _ = _losses(upper, lower, x)
    missed = np.expm1(np.abs(found - inside)) * np.exp(outside)
    # a loss that is flat to rounding may put the point beyond its two nodes
    missed += 4 * UNIT_ROUNDOFF
    # beyond the losses at hand: towards 0 by its slope, which is below 1, else no more
    missed += np.maximum(side * (inside - epsilons), 0.0)
    size = 1 + max(-losses[0], losses[-1])
    weights = upper.error + lower.error
    for log in (outside, hit, false):
        rounding = 100 * UNIT_ROUNDOFF * (size + np.abs(log)) + weights
        missed += np.exp(log) * rounding
    return side * (np.exp(hit) - np.exp(false)) + missed
