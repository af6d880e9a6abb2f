"""Compute privacy loss distributions for Poisson batches and allocated rows.

A release (for allocated rows, an epoch) has a pair of output distributions, with and
without one unit of privacy. proofs/poisson.md, proofs/groups.md and, for epochs,
`allocation` define the pair. The privacy loss is the logarithm of their ratio.

Losses are rounded up to a grid, so that Fourier transforms can compose releases. Mass
lost to rounding is added to the probability of an infinite loss (`losses`). The import
takes seconds, so import this module where it is used.

References
----------
Zhu, Dong, Wang 2022 (dominating pairs); Doroshenko et al. 2022 (connect the dots).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from scipy.special import gammaln, log_ndtr

from dphead.privacy.accounting.allocation import epoch_losses
from dphead.privacy.accounting.events import (
    GaussianEvent,
    check,
    check_pair,
    require,
    together,
)
from dphead.privacy.accounting.gdp import total_mu
from dphead.privacy.accounting.losses import (
    UNIT_ROUNDOFF,
    Losses,
    composed,
    self_composed,
)
from dphead.privacy.accounting.rdp import LARGEST_NOISE, epsilon_from_rdp

# The constants below are chosen, unless a comment names a measurement. They trade
# tightness for time and memory. Omitted probability is charged as an infinite loss.
_GRID_INTERVAL = 1e-4  # width for losses of 2 to 100; proportional otherwise
_LARGEST_LOSS = 1e6  # epsilon is infinite if losses may exceed this
# above this mu of a unit's sampled rows, losses exceed _LARGEST_LOSS
_LARGEST_MU = 1500.0
# Renyi divergences of these orders decide the grid's width.
_SIZE_ORDERS = (1.1, 1.5, 2, 4, 8, 16, 32, 64, 256, 2048, 2**14, 2**17)
# largest number of rows of a unit in Poisson batches; its epsilon took 2 to 16 s
_LARGEST_GROUP = 10_000
LEAST_LOG_WEIGHT = -46.0  # 1e-20: rarer numbers of sampled rows are omitted
LEAST_LOG_TAIL = -41.0  # 1e-18: probability beyond each end of one release's grid
_TAIL_DEVIATIONS = 10.0  # standard deviations searched beyond the outer means
LOOKUP_POINTS = 4096  # points x between which Newton's method finds a loss
NEWTON_STEPS = 5  # enough steps to reach the rounding error, as measured
_COARSEST = 100  # largest factor on the width of the grid
# largest number of mixture terms over all points of a release's grid
_MAX_TERMS = 4_000_000
# Entries of a table of terms: 512 KB, which fit a core's cache. An epsilon took 1.2 to
# 1.4 times as long with 32 MB (times not stored).
_TABLE_ENTRIES = 2**16
DIRECTIONS = {  # under zero_out, a removed row keeps its slot and adds zero
    "zero_out": ("removed", "added"),
    "add_remove": ("removed", "added"),
    "replace_one": ("replaced",),  # its reverse has the same losses
}


# The cache serves a plan's calibration, its charge and its report.
@lru_cache(maxsize=1024)
def pld_epsilon(
    events: tuple[GaussianEvent, ...],
    delta: float,
    relation: str,
    coarser: float = 1.0,
) -> float:
    """Return the epsilon of the composition at `delta`.

    Parameters
    ----------
    events : tuple of GaussianEvent
        The releases.
    delta : float
        In (0, 1).
    relation : {"zero_out", "add_remove", "replace_one"}
        The neighboring relation.
    coarser : float, default 1.0
        As in `loss_distribution`.

    Returns
    -------
    float
        Epsilon. It is infinite if a loss may exceed 1e6, or if rounding may consume
        delta: about 1e-13 for each release (proofs/poisson.md).

    Guarantee
    ---------
    An upper bound, because `loss_distribution` is pessimistic.
    """

    def bound(direction: str, coarser: float) -> float:
        """Return an upper bound on the epsilon of one direction."""
        distribution = loss_distribution(events, relation, coarser, (direction,))
        # Without a distribution, a loss may exceed 1e6: epsilon is infinite.
        return distribution[0].epsilon(delta) if distribution else math.inf

    first, *others = DIRECTIONS[relation]
    largest = bound(first, coarser)
    for direction in others:
        # Every width gives an upper bound, and a coarse grid takes little time.
        if bound(direction, min(10 * coarser, _COARSEST)) > largest:
            largest = max(largest, bound(direction, coarser))
    return largest


def loss_distribution(
    events: Sequence[GaussianEvent],
    relation: str = "zero_out",
    coarser: float = 1.0,
    directions: Sequence[str] = (),
) -> list[Losses] | None:
    """Return the losses of the composition in each direction, or None if too large.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases.
    relation : {"zero_out", "add_remove", "replace_one"}, default "zero_out"
        The neighboring relation.
    coarser : float, default 1.0
        Factor on the width of the grid, from 1 to 100.
    directions : sequence of str, default ()
        The directions to compose; all of the relation by default.

    Returns
    -------
    list of Losses or None
        One distribution per direction. None if a loss may exceed 1e6.

    Raises
    ------
    ValueError
        If `relation` or `coarser` is invalid. For groups in Poisson batches under
        replace-one, or with more than 10,000 rows. For allocated rows under
        replace-one.

    Guarantee
    ---------
    Pessimistic: delta at every epsilon is never below the true delta.
    """
    check(relation=relation)
    known, finest = f"coarser must be 1 to {_COARSEST}", "Use 1 for the finest grid."
    require(1 <= coarser <= _COARSEST, known, "coarser", coarser, finest)
    # All full batches together are one Gaussian mechanism.
    full_mu = total_mu([e for e in events if e.is_full]) or 0.0
    # Leave out releases with infinite noise, which reveal nothing.
    secret = (e for e in events if not e.is_full and e.count)
    sampled = together(e for e in secret if e.noise_multiplier < math.inf)
    check_pair(sampled, relation)
    rows = max((e.rows_per_unit for e in sampled), default=1)
    cap = "`--group-cap` (`group_cap`)"
    few = f"{cap} in Poisson batches must be at most {_LARGEST_GROUP}"
    require(rows <= _LARGEST_GROUP, few, "--group-cap", rows, "Use full batches.")
    # Find noise that is too small before arrays are made for it.
    for event in sampled:
        rows_in_sample = max(1.0, event.sampling_prob * event.rows_per_unit)
        if event.noise_multiplier * _LARGEST_MU < rows_in_sample:
            return None
    if full_mu > _LARGEST_MU:
        return None
    both = DIRECTIONS[relation] if sampled else ("removed",)
    pairs = [_pairs(full_mu, sampled, direction) for direction in both]
    # One grid for all parts, because only equal grids can be composed.
    interval = coarser * _grid_interval(pairs)
    if interval == math.inf:
        return None
    nothing = Losses(0, np.ones(1), 0.0, interval)
    full = []
    if full_mu > 0:
        full.append(connect_dots(*full_pair(full_mu), interval))
    found = []
    for direction in directions or both:
        parts = list(full)
        for event in sampled:
            if event.epoch_steps > 1:
                sd = min(event.noise_multiplier, LARGEST_NOISE)  # safe: less noise
                one = epoch_losses(sd, event.epoch_steps, direction, interval)
            else:
                one = connect_dots(*sample_pair(event, direction), interval)
            # A power composes equal releases. Different kinds are composed one by one.
            parts.append(self_composed(one, event.epochs))
        # Short arrays first, to keep the convolutions small.
        parts.sort(key=lambda part: len(part.chances))
        found.append(reduce(composed, parts) if parts else nothing)
    return found


@dataclass(frozen=True)
class Mixture:
    """Hold a mixture of normal distributions N(mean, sd**2).

    Ratios are relative to the density of N(0, sd**2).

    Parameters
    ----------
    log_weights : ndarray of shape (k,)
        Logarithms of the weights.
    means : ndarray of shape (k,)
        Means of the distributions.
    sd : float
        Standard deviation of every distribution.
    error : float, default 0.0
        Bound on the rounding error of a log weight.
    missing : float, default 0.0
        Upper bound on the weight of distributions that were left out.
    """

    log_weights: np.ndarray
    means: np.ndarray
    sd: float
    error: float = 0.0
    missing: float = 0.0

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density at each x."""
        # Density of N(0, sd^2) times the ratio.
        plain = (x / self.sd) ** 2 / 2 + math.log(self.sd * math.sqrt(2 * math.pi))
        return self.log_ratio(x)[0] - plain

    def log_ratio(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log(density / density of N(0, sd**2)) at each x, and its slope."""
        values = np.empty(len(x))
        slopes = np.empty(len(x))
        for part in self._parts(x):
            from_middle = x[part, None] - self.means / 2
            # log of N(m, sd^2) over N(0, sd^2) at x is m (x - m / 2) / sd^2.
            tilt = self.means * from_middle / self.sd**2
            values[part], shares = _log_sum(self.log_weights + tilt)
            slopes[part] = shares @ self.means / self.sd**2
        return values, slopes

    def log_beyond(self, x: np.ndarray, side: int) -> np.ndarray:
        """Return the log probability above each x (side 1) or below (side -1)."""
        values = np.empty(len(x))
        for part in self._parts(x):
            distance = self.means - x[part, None]
            tails = log_ndtr(side * distance / self.sd)
            values[part] = _log_sum(self.log_weights + tails)[0]
        return values

    def _parts(self, x: np.ndarray) -> Iterator[slice]:
        # A table of all points and all components would not fit a cache, or memory.
        rows = max(1, _TABLE_ENTRIES // len(self.means))
        for i in range(0, len(x), rows):
            yield slice(i, i + rows)


def _log_sum(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the log of the sum of exp of each row, and the share of each entry."""
    if logs.shape[1] == 1:
        return logs[:, 0], np.ones_like(logs)
    # The largest entry is taken out, so that exp never overflows.
    # In column-major order, because numpy's maximum of many short rows is slow.
    largest = np.asfortranarray(logs).max(axis=1)
    parts = np.exp(logs - largest[:, None])
    total = parts.sum(axis=1)
    return largest + np.log(total), parts / total[:, None]


def one_normal(mean: float, sd: float) -> Mixture:
    """Return a normal distribution, as a mixture of one component."""
    return Mixture(np.zeros(1), np.array([mean]), sd)


def full_pair(mu: float) -> tuple[Mixture, Mixture]:
    """Return the pair of all full batches, with total `mu`, for every relation."""
    sd = min(1 / mu, LARGEST_NOISE)  # less noise gives a larger epsilon: safe
    return one_normal(1.0, sd), one_normal(0.0, sd)


def sampled_mixture(event: GaussianEvent, sd: float, moved: float) -> Mixture:
    """Return the mixture over the number j of a unit's sampled rows.

    Each sampled row adds `moved` to the mean. Only the numbers j in `_window` are kept.
    The ratio of successive binomial weights decreases with j. So a geometric series,
    `missing`, bounds the weight of all other numbers.
    """
    q, k = event.sampling_prob, event.rows_per_unit
    log_q = math.log(q)
    log_not = math.log1p(-q)
    first, last = _window(k, log_q, log_not, sd)
    # Exact binomials as Python ints; their logarithms round once.
    ways = math.comb(k, first)
    log_weights = []
    largest = 0.0
    # log of binomial(k, j) q^j (1 - q)^(k - j), and the sizes of its terms.
    for j in range(first, last + 1):
        log_ways = math.log(ways)
        log_weights.append(log_ways + j * log_q + (k - j) * log_not)
        largest = max(largest, log_ways - j * log_q - (k - j) * log_not)
        ways = ways * (k - j) // (j + 1)
    # Ratios of successive weights just beyond both ends of the window.
    odds = math.exp(log_q - log_not)
    below = first / (k - first + 1) / odds
    above = (k - last) / (last + 1) * odds
    missing = 0.0
    for log_weight, ratio in ((log_weights[0], below), (log_weights[-1], above)):
        # the factor 2 is far above what rounding can change
        missing += 2 * math.exp(log_weight) * ratio / (1 - ratio)
    error = 10 * UNIT_ROUNDOFF * (1 + largest)
    means = moved * np.arange(first, last + 1)
    return Mixture(np.array(log_weights), means, sd, error, missing)


def _window(k: int, log_q: float, log_not: float, sd: float) -> tuple[int, int]:
    """Return the smallest and the largest number of sampled rows to keep.

    Rare large numbers are left out. Small numbers are left out if they have a small
    share of the density ten standard deviations below 0, the lowest x that "added"
    uses. Every window is valid.
    """
    # Approximate logarithms of all binomial weights: any window is valid.
    j = np.arange(k + 1)
    logs = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
    logs += j * log_q + (k - j) * log_not
    # Numbers above `last` are too rare to matter to "removed".
    last = np.flatnonzero(logs >= LEAST_LOG_WEIGHT)[-1]
    # The weight of each number at x = -TAIL_DEVIATIONS sd, for "added".
    tilted = logs - j / sd * (_TAIL_DEVIATIONS + j / (2 * sd))
    first = np.flatnonzero(tilted >= tilted.max() + LEAST_LOG_WEIGHT)[0]
    return int(first), max(int(last), 1)


def sample_pair(event: GaussianEvent, direction: str) -> tuple[Mixture, Mixture]:
    """Return the two distributions of a Poisson batch. Their ratio increases with x.

    Values x are in units of the clip norm, so sd is the noise multiplier. A unit of k
    rows has j rows in the batch, and j is binomial (k, q). For "removed", the first
    distribution is the mixture of N(j, sd^2) over j, and the second one is N(0, sd^2).
    For "added", the first one is N(0, sd^2), and the second one is the mixture of
    N(-j, sd^2). For "replaced", they are the mixtures of N(j, sd^2) and N(-j, sd^2).
    """
    sd = min(event.noise_multiplier, LARGEST_NOISE)  # safe: less noise
    plain = one_normal(0.0, sd)
    # "replaced" has a mixture on both sides: the row is x or -x.
    upper = plain if direction == "added" else sampled_mixture(event, sd, 1.0)
    lower = plain if direction == "removed" else sampled_mixture(event, sd, -1.0)
    return upper, lower


def _pairs(
    full_mu: float, sampled: Sequence[GaussianEvent], direction: str
) -> list[tuple[Mixture, Mixture, int]]:
    """Return the pair and the count of each kind of release, for the grid's width.

    Allocated rows are approximated by Poisson batches, which have about the same
    epsilon.
    """
    pairs: list[tuple[Mixture, Mixture, int]] = []
    if full_mu > 0:
        pairs.append((*full_pair(full_mu), 1))
    for event in sampled:
        steps = event.epoch_steps
        prob = event.sampling_prob / steps
        # This sets only the width of the grid. The bound is valid for every width.
        poisson = replace(event, sampling_prob=prob, epoch_steps=1)
        pairs.append((*sample_pair(poisson, direction), event.epochs * steps))
    return pairs


def _grid_interval(
    directions: Sequence[Sequence[tuple[Mixture, Mixture, int]]],
) -> float:
    """Return the width of the losses' grid, infinite if losses exceed 1e6.

    The width is proportional to the loss that the composition exceeds with probability
    1e-15. This loss follows from the Renyi divergences of the mixtures, computed as
    sums over `quadrature_nodes`. It is taken to be at least a fifth of the largest loss
    of one release, because that loss needs grid points too. `_MAX_TERMS` limits these
    points. Every width is safe.
    """
    size = widest = 0.0
    for pairs in directions:
        curve = np.zeros(len(_SIZE_ORDERS))
        for upper, lower, count in pairs:
            x, losses = quadrature_nodes(upper, lower)
            least, most = float(losses[0]), float(losses[-1])
            # A sum over the nodes stands for the integral of the moment.
            log_chances = upper.log_density(x) + math.log(x[1] - x[0])
            for i, order in enumerate(_SIZE_ORDERS):
                moment = _log_sum((log_chances + (order - 1) * losses)[None])[0]
                # Renyi divergence of this order, as in RDP.
                curve[i] += count * max(0.0, float(moment[0]) / (order - 1))
            size = max(size, most / 5)
            terms = len(upper.means) + len(lower.means)
            widest = max(widest, (most - least) * terms / _MAX_TERMS)
        # RDP bounds the loss that is exceeded with probability 1e-15.
        size = max(size, epsilon_from_rdp(_SIZE_ORDERS, curve, 1e-15))
    if not size < _LARGEST_LOSS:
        return math.inf
    return max(_GRID_INTERVAL * max(1e-3, min(1.0, size / 2), size / 100), widest)


def connect_dots(upper: Mixture, lower: Mixture, interval: float) -> Losses:
    """Return losses whose delta is at least the pair's delta at each point of a grid.

    Between two points, delta is on their chord. Since the pair's delta is convex in
    exp(epsilon), the chord is nowhere below it. Source: Doroshenko et al. 2022,
    Algorithm 1.

    Let d and d' be the differences of delta before and after a point. The chance of the
    point is (d' - d exp(interval)) / (exp(interval) - 1), which equals
    (d' - d) / expm1(interval) - d. The formula is linear, so the code applies it to
    delta minus max(0, 1 - exp(epsilon)). An added chance of 1 at a loss of 0 stands for
    the subtracted part. The rest of delta is small where losses are rare, so its
    rounding creates little probability. Each quotient is rounded once and is part of
    two probabilities. In total, rounding reduces delta by some units of roundoff
    (proofs/poisson.md).
    """
    nodes, losses = quadrature_nodes(upper, lower)
    # 0 is always a point of the grid: max(0, 1 - exp(epsilon)) is its loss.
    lowest = min(math.floor(losses[0] / interval), 0)
    highest = max(math.ceil(losses[-1] / interval), 0)
    grid = np.arange(lowest, highest + 1) * interval
    below = excess_of(grid[:-lowest], upper, lower, nodes, losses, -1)
    above = excess_of(grid[-lowest:], upper, lower, nodes, losses, 1)
    excess = np.concatenate([below, above])
    steps = np.diff(excess)
    # Doroshenko et al. 2022, Algorithm 1: second differences of delta.
    slopes = steps / math.expm1(interval)
    chances = np.zeros(len(grid))
    chances[:-1] += slopes
    chances[1:] -= slopes
    chances[1:] -= steps
    chances[0] -= excess[0]
    chances[-lowest] += 1
    # The rest of delta at the last point counts as an infinite loss.
    infinite = min(float(excess[-1]) + 40 * UNIT_ROUNDOFF, 1.0)
    return Losses(lowest, np.maximum(chances, 0.0), infinite, interval)


def quadrature_nodes(upper: Mixture, lower: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return increasing points x and their losses.

    `upper` has probability at most exp(LEAST_LOG_TAIL) beyond each end.
    """
    beyond = _TAIL_DEVIATIONS * upper.sd
    least = upper.means.min() - beyond
    most = upper.means.max() + beyond
    # First find the two ends, beyond which the probability is 1e-18.
    x = np.linspace(least, most, LOOKUP_POINTS // 8)  # enough to find the ends
    rarer = np.minimum(upper.log_beyond(x, 1), upper.log_beyond(x, -1))
    kept = np.flatnonzero(rarer >= LEAST_LOG_TAIL)
    first = max(kept[0] - 1, 0)
    last = min(kept[-1] + 1, len(x) - 1)
    # Finer points between the ends that were found.
    nodes = np.linspace(x[first], x[last], LOOKUP_POINTS)
    losses, _ = losses_between(upper, lower, nodes)
    return nodes, np.maximum.accumulate(losses)


def losses_between(
    upper: Mixture, lower: Mixture, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the privacy loss at each x, and its slope."""
    above, rise = upper.log_ratio(x)
    below, fall = lower.log_ratio(x)
    return above - below, rise - fall


def excess_of(
    epsilons: np.ndarray,
    upper: Mixture,
    lower: Mixture,
    nodes: np.ndarray,
    losses: np.ndarray,
    side: int,
) -> np.ndarray:
    """Return an upper bound on delta of the pair minus max(0, 1 - exp(epsilon)).

    `losses` are the losses at the points `nodes`. For epsilons of at least 0, `side` is
    1 and the result is P(A) - exp(epsilon) Q(A), where A is all x with a loss above
    epsilon. For epsilons below 0, `side` is -1 and the result is exp(epsilon) Q(B) -
    P(B), where B is all other x.

    The point between A and B lies between two nodes. If the computed point has a loss
    of epsilon + h, at most expm1(|h|) P(x beyond the outer node) is missing. This bound
    is added, so the guarantee does not depend on the search by Newton's method.
    """
    # Find the two nodes around each epsilon, then Newton between them.
    inside = np.clip(epsilons, losses[0], losses[-1])
    after = np.searchsorted(losses, inside)
    after = np.clip(after, 1, len(nodes) - 1)
    low = nodes[after - 1]
    high = nodes[after]
    x = (low + high) / 2
    found, slope = losses_between(upper, lower, x)
    size = 1 + max(-losses[0], losses[-1])
    for _ in range(NEWTON_STEPS):
        if np.all(np.abs(found - inside) <= 8 * UNIT_ROUNDOFF * size):
            break
        short = found < inside
        low = np.where(short, x, low)
        high = np.where(short, high, x)
        step = (inside - found) / np.maximum(slope, 1e-300)
        # A step outside the bracket is cut: the bracket only shrinks.
        x = np.clip(x + step, low, high)
        found, slope = losses_between(upper, lower, x)
    # The outer node: the probability beyond it bounds the missing delta.
    outer = after - 1 if side > 0 else after
    outside = upper.log_beyond(nodes, side)[outer]
    hit = upper.log_beyond(x, side)
    # Hypothesis testing: P(true positive) - exp(epsilon) Q(false positive).
    false = inside + lower.log_beyond(x, side)
    missed = np.expm1(np.abs(found - inside)) * np.exp(outside)
    # If the loss is nearly constant, rounding may put the point beyond its two nodes.
    missed += 4 * UNIT_ROUNDOFF + upper.missing + lower.missing
    # Beyond the losses of the nodes, delta rises by at most the change of epsilon
    # toward 0, because its slope is below 1. In the other direction it does not rise.
    missed += np.maximum(side * (inside - epsilons), 0.0)
    # Rounding of each of the three terms, in relative size.
    weights = upper.error + lower.error
    for log in (outside, hit, false):
        rounding = 100 * UNIT_ROUNDOFF * (size + np.abs(log)) + weights
        missed += np.exp(log) * rounding
    return side * (np.exp(hit) - np.exp(false)) + missed
