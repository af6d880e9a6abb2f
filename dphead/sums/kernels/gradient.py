"""Sum softmax gradients in compiled loops, by chunks of rows.

Each chunk has scores, residuals and products. `Gradient.factors` defines the same with
whole arrays, and `verified` checks that all integers are equal.
"""

from typing import NamedTuple

import numpy as np

from dphead.privacy.contract import SumTask
from dphead.privacy.predictions import (
    MAX_POWER,
    MAX_SCORE_RATE,
    POWER_SCALE,
    POWER_TABLE_SIZE,
    POWERS_PER_NAT,
    PROBABILITY_SCALE,
    powers_of_two,
)
from dphead.privacy.query import counting
from dphead.privacy.statistics import Gradient
from dphead.privacy.transform import RADIUS, IntegerRows, aim
from dphead.sums.kernels.loops import add_pair_products, packed_weights, scores_into
from dphead.sums.kernels.processor import TILE_HEIGHT, compiled
from dphead.sums.tuning import CHUNK_ROWS, ROUNDING_SHIFT


def add_softmax_gradient(
    ask: SumTask,
    rows: IntegerRows,
    y: np.ndarray,
    used: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the gradients of rows in used slots to out (n_classes, width) int64.

    rows.q is (k, width) int16. Raises ValueError if the shapes differ.
    """
    query = ask.query
    assert isinstance(query, Gradient) and ask.weights is not None
    w = ask.weights.w
    wanted = (query.n_classes, rows.q.shape[1])
    if w.shape != wanted or out.shape != wanted:
        raise ValueError(
            f"weights must be those of the gradient, got {w.shape=}, {rows.q.shape=}, "
            f"{out.shape=}. This is a defect in the solver or the row source."
        )
    keep = counting(query, rows, y, used)
    with np.errstate(over="ignore"):
        rate = (
            np.minimum(rows.scale * ask.weights.step, MAX_SCORE_RATE) * POWERS_PER_NAT
        )
    longest = aim(RADIUS**2, query.n_classes)
    if query.clip == "rows":
        factor = rows.scale * (float(RADIUS**2) / (ask.clip_norm * PROBABILITY_SCALE))
    else:
        factor = np.full(
            len(y), longest / (query.longest_residual() * PROBABILITY_SCALE)
        )
        longest = np.inf
    rule = ResidualRule(
        powers_of_two().astype(np.int32),
        float(PROBABILITY_SCALE),
        longest,
        float(MAX_POWER),
        RADIUS**2,
    )
    assert len(rule.table) == POWER_TABLE_SIZE and rule.table[0] == POWER_SCALE
    classes = np.where(keep, y, -1).astype(np.int32)
    q = np.ascontiguousarray(rows.q)
    _add(q, classes, rate, factor, packed_weights(w), rule, CHUNK_ROWS, out)


class ResidualRule(NamedTuple):
    """Hold the numbers of `privacy.predictions` that turn scores into residuals.

    Parameters
    ----------
    table : ndarray of int32, shape (POWER_TABLE_SIZE,)
        Powers of two.
    one : float
        Number of units in a probability of 1.
    longest : float
        Length that residuals are clipped to; inf if the loss bounds it.
    max_power : float
        Largest exponent, in steps of the table.
    bound : int
        Upper bound on a residual's sum of squares.
    """

    table: np.ndarray
    one: float
    longest: float
    max_power: float
    bound: int


@compiled
def _add(q, y, rate, factor, weights, rule, size, out):
    """Add the gradients of all rows q, `size` at a time."""
    m = len(out)
    most = (m + TILE_HEIGHT - 1) // TILE_HEIGHT * TILE_HEIGHT
    z = np.empty((m, size), np.int32)
    l = np.zeros((most, size), np.int16)
    for start in range(0, len(q), size):
        stop = min(start + size, len(q))
        k = stop - start
        scores_into(q, start, stop, weights, z)
        if k < size:
            l[:] = 0
        at = slice(start, stop)
        own = z[:, :k]
        residuals = l[:m, :k]
        _residuals(own, y[at], rate[at], factor[at], rule, residuals)
        pairs = l.view(np.int32)
        if k == size:
            add_pair_products(pairs, q, start, stop, out)
        else:
            n = (k + 1) // 2
            few = np.ascontiguousarray(pairs[:, :n])
            add_pair_products(few, q, start, stop, out)


@compiled
def _residuals(z, y, rate, factor, rule, l):
    """Turn scores z (m, k) into clipped residuals l (m, k) int16; zero for negative y.

    Inner loops run over rows, so that the compiler can vectorize them. z also holds the
    intermediate results.
    """
    k = z.shape[1]
    sums = np.zeros(k, np.int64)
    share = np.empty(k)
    _to_powers(z, rate, rule, sums)
    for i in range(k):
        share[i] = rule.one / np.float64(sums[i])
        sums[i] = 0
    _to_differences(z, y, share, np.int32(rule.one), sums)
    for i in range(k):
        length = np.sqrt(np.float64(sums[i]))
        clipped = rule.longest / max(length, 1.0)
        share[i] = min(factor[i], clipped)
        sums[i] = 0
    _round_to(l, z, share, sums)
    for i in range(k):
        if sums[i] > rule.bound:
            _truncate_to(l, z, share, rule.bound, i)


@compiled
def _to_powers(z, rate, rule, sums):
    """Replace scores by powers of two of the distance to the row's largest score.

    Add the powers to `sums`.
    """
    m, k = z.shape
    table = rule.table
    max_power = rule.max_power
    powers = len(table)
    top = np.full(k, -(2**31), np.int32)
    for j in range(m):
        own = z[j]
        for i in range(k):
            top[i] = max(top[i], own[i])
    for j in range(m):
        own = z[j]
        for i in range(k):
            distance = np.int64(top[i]) - np.int64(own[i])
            steps = np.float64(distance) * rate[i]
            exponent = np.int32(min(steps, max_power))
            own[i] = table[exponent % powers] >> (exponent // powers)
            sums[i] += own[i]


@compiled
def _to_differences(z, y, share, one, squares):
    """Replace powers by predictions minus the row's class, and add their squares."""
    m, k = z.shape
    for j in range(m):
        own = z[j]
        for i in range(k):
            rounded = (own[i] * share[i] + ROUNDING_SHIFT) - ROUNDING_SHIFT
            r = np.int32(rounded)
            r -= one if j == y[i] else np.int32(0)
            r = r if y[i] >= 0 else np.int32(0)
            own[i] = r
            squares[i] += np.int64(r) * np.int64(r)


@compiled
def _round_to(l, z, factor, squares):
    """Write rounded residuals z times each row's factor to l, and add the squares."""
    m, k = z.shape
    for j in range(m):
        own = z[j]
        final = l[j]
        for i in range(k):
            rounded = (own[i] * factor[i] + ROUNDING_SHIFT) - ROUNDING_SHIFT
            final[i] = np.int32(rounded)
            stored = np.int64(final[i])
            squares[i] += stored * stored


@compiled
def _truncate_to(l, z, factor, bound, i):
    """Truncate row i's residual toward zero, or set it to zero if still too long."""
    squared = np.int64(0)
    for j in range(len(z)):
        l[j, i] = np.int32(z[j, i] * factor[i])
        stored = np.int64(l[j, i])
        squared += stored * stored
    if squared > bound:
        for j in range(len(z)):
            l[j, i] = 0
