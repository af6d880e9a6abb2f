"""Sum softmax gradients in compiled loops, by chunks of rows.

The loops compute scores, residuals and products for each chunk. `Gradient.factors`
defines the same values with whole arrays, and `verified` checks that all integers are
equal.
"""

import numpy as np

from dphead.privacy.contract import SumTask
from dphead.privacy.predictions import (
    MAX_POWER,
    MAX_SCORE_RATE,
    POWER_TABLE_SIZE,
    POWERS_PER_NAT,
    PROBABILITY_SCALE,
    powers_of_two,
)
from dphead.privacy.statistic_base import counting
from dphead.privacy.statistics import Gradient
from dphead.privacy.transform import RADIUS, IntegerRows, aim
from dphead.sums.kernels.loops import add_pair_products, packed_weights, scores_into
from dphead.sums.kernels.processor import TILE_HEIGHT, compiled
from dphead.sums.tuning import CHUNK_ROWS, ROUNDING_SHIFT

# Compiled into the loops: the cache's name has a hash of all files with such numbers.
_TABLE = powers_of_two().astype(np.int32)


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
    statistic = ask.statistic
    assert isinstance(statistic, Gradient) and ask.weights is not None
    w = ask.weights.w
    wanted = (statistic.n_classes, rows.q.shape[1])
    if w.shape != wanted or out.shape != wanted:
        raise ValueError(
            f"Internal error: weights of shape {w.shape} and a sum of shape "
            f"{out.shape} do not fit the gradient of shape {wanted}. Please report it."
        )
    keep = counting(statistic, rows, y, used)
    # as `Chunk.scores`: one rounding each, so that the product is the reference's
    with np.errstate(over="ignore"):
        rate = (
            np.minimum(rows.scale * ask.weights.step, MAX_SCORE_RATE) * POWERS_PER_NAT
        )
    # few residuals of this length exceed RADIUS after rounding (`aim`)
    longest = aim(RADIUS**2, statistic.n_classes)
    if statistic.clip == "rows":
        factor = rows.scale * (float(RADIUS**2) / (ask.clip_norm * PROBABILITY_SCALE))
    else:
        # features are clipped, so the loss bounds the residual: no clip per row
        factor = np.full(
            len(y), longest / (statistic.longest_residual() * PROBABILITY_SCALE)
        )
        longest = np.inf
    classes = np.where(keep, y, -1).astype(np.int32)
    q = np.ascontiguousarray(rows.q)
    # numba would compile the loop again for weights in Fortran order
    packed = packed_weights(np.ascontiguousarray(w))
    _add(q, classes, rate, factor, packed, longest, out)


@compiled
def _add(q, y, rate, factor, weights, longest, out):
    """Add the gradients of all rows q, CHUNK_ROWS at a time.

    Residuals are clipped to the length `longest`; inf if the loss bounds them.
    """
    m = len(out)
    # a tile of products takes TILE_HEIGHT classes; classes beyond m stay zero
    most = (m + TILE_HEIGHT - 1) // TILE_HEIGHT * TILE_HEIGHT
    z = np.empty((m, CHUNK_ROWS), np.int32)
    l = np.zeros((most, CHUNK_ROWS), np.int16)
    for start in range(0, len(q), CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, len(q))
        k = stop - start
        scores_into(q, start, stop, weights, z)
        if k < CHUNK_ROWS:
            l[:] = 0  # otherwise the last pair would hold a row of the chunk before
        at = slice(start, stop)
        own = z[:, :k]
        residuals = l[:m, :k]
        _residuals(own, y[at], rate[at], factor[at], longest, residuals)
        pairs = l.view(np.int32)
        if k == CHUNK_ROWS:
            add_pair_products(pairs, q, start, stop, out)
        else:
            n = (k + 1) // 2
            few = np.ascontiguousarray(pairs[:, :n])
            add_pair_products(few, q, start, stop, out)


@compiled
def _residuals(z, y, rate, factor, longest, l):
    """Turn scores z (m, k) into clipped residuals l (m, k) int16, or 0 if y < 0.

    Inner loops run over rows, so that the compiler can vectorize them. z also holds the
    intermediate results.
    """
    k = z.shape[1]
    # sums of powers, then of squares: int64, as 2**16 squared times 2**20 classes
    sums = np.zeros(k, np.int64)
    share = np.empty(k)
    _to_powers(z, rate, sums)
    # one division for each row, then a product for each class, as the reference
    for i in range(k):
        share[i] = PROBABILITY_SCALE / np.float64(sums[i])
        sums[i] = 0
    _to_differences(z, y, share, sums)
    for i in range(k):
        length = np.sqrt(np.float64(sums[i]))
        clipped = longest / max(length, 1.0)
        share[i] = min(factor[i], clipped)
        sums[i] = 0
    _round_to(l, z, share, sums)
    for i in range(k):
        if sums[i] > RADIUS**2:
            _truncate_to(l, z, share, i)


@compiled
def _to_powers(z, rate, sums):
    """Replace each score by `power` of its distance from the row's largest score.

    `predictions.power` defines the values. They are also added to `sums`.
    """
    m, k = z.shape
    # distances to the largest score are not negative: no power exceeds 1
    top = np.full(k, -(2**31), np.int32)
    for j in range(m):
        own = z[j]
        for i in range(k):
            top[i] = max(top[i], own[i])
    for j in range(m):
        own = z[j]
        for i in range(k):
            distance = np.int64(top[i]) - np.int64(own[i])
            # at most one rounding in float64: the reference does the same product
            steps = np.float64(distance) * rate[i]
            exponent = np.int32(min(steps, MAX_POWER))
            place = exponent % POWER_TABLE_SIZE
            own[i] = _TABLE[place] >> (exponent // POWER_TABLE_SIZE)
            sums[i] += own[i]


@compiled
def _to_differences(z, y, share, squares):
    """Replace powers by predictions minus the one-hot class, and add their squares."""
    m, k = z.shape
    one = np.int32(PROBABILITY_SCALE)
    for j in range(m):
        own = z[j]
        for i in range(k):
            rounded = (own[i] * share[i] + ROUNDING_SHIFT) - ROUNDING_SHIFT
            r = np.int32(rounded)
            r -= one if j == y[i] else np.int32(0)
            # a selection instead of a branch keeps the loop vectorized
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
            # the square of the stored int16, so that an overflow would be seen
            stored = np.int64(final[i])
            squares[i] += stored * stored


@compiled
def _truncate_to(l, z, factor, i):
    """Truncate row i's residual toward zero, or set it to zero if still too long."""
    squared = np.int64(0)
    for j in range(len(z)):
        l[j, i] = np.int32(z[j, i] * factor[i])
        stored = np.int64(l[j, i])
        squared += stored * stored
    if squared > RADIUS**2:
        for j in range(len(z)):
            l[j, i] = 0
