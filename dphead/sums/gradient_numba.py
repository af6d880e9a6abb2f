"""The compiled softmax gradient: scores, residuals, products of CHUNK rows at a time.

`Gradient.factors` says the same with whole arrays; `door` holds the two equal.
"""

import numpy as np

from dphead.privacy.statistics import (
    LOWEST,
    ONE,
    POWERS,
    PROBABILITY,
    RATE,
    STEEPEST,
    Gradient,
    counting,
    powers_of_two,
)
from dphead.privacy.transform import RADIUS, IntegerRows, aim
from dphead.sums.products_numba import (
    CHUNK,
    HEIGHT,
    ROUND,
    _add_products,
    _packed,
    _scores,
    compiled,
)
from dphead.sums.reference import Ask


def add_softmax_gradient(
    ask: Ask,
    rows: IntegerRows,
    y: np.ndarray,
    used: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the gradients of rows in slots that are used to out (n_classes, width) int64.

    rows.q: (k, width) int16. ValueError if the weights do not fit.
    """
    query = ask.query
    assert isinstance(query, Gradient) and ask.weights is not None
    w = ask.weights.w
    if w.shape != (query.n_classes, rows.q.shape[1]) or out.shape != w.shape:
        raise ValueError(
            f"weights must be those of the gradient, got {w.shape=}, {rows.q.shape=}, "
            f"{out.shape=}. This is a defect in the solver or the row source."
        )
    keep = counting(query, rows, y, used)
    with np.errstate(over="ignore"):
        rate = np.minimum(rows.scale * ask.weights.step, STEEPEST) * RATE
    longest = aim(RADIUS**2, query.n_classes)
    if query.clip == "rows":
        factor = rows.scale * (float(RADIUS**2) / (ask.clip_norm * PROBABILITY))
    else:
        factor = np.full(len(y), longest / (query._longest() * PROBABILITY))
        longest = np.inf
    numbers = (float(PROBABILITY), longest, float(LOWEST), RADIUS**2)
    classes = np.where(keep, y, -1).astype(np.int32)
    table = powers_of_two().astype(np.int32)
    assert len(table) == POWERS and table[0] == ONE
    q = np.ascontiguousarray(rows.q)
    _add(q, classes, rate, factor, _packed(w), table, *numbers, CHUNK, out)


@compiled
def _add(q, y, rate, factor, weights, table, one, longest, lowest, bound, size, out):  # type: ignore[no-untyped-def]
    m = len(out)
    most = (m + HEIGHT - 1) // HEIGHT * HEIGHT
    z = np.empty((m, size), np.int32)
    l = np.zeros((most, size), np.int16)
    for start in range(0, len(q), size):
        stop = min(start + size, len(q))
        k = stop - start
        _scores(q, start, stop, weights, z)
        if k < size:
            l[:] = 0
        at = slice(start, stop)
        _residuals(
            z[:, :k],
            y[at],
            rate[at],
            factor[at],
            table,
            one,
            longest,
            lowest,
            bound,
            l[:m, :k],
        )
        pairs = l.view(np.int32)
        if k == size:
            _add_products(pairs, q, start, stop, out)
        else:
            few = np.ascontiguousarray(pairs[:, : (k + 1) // 2])
            _add_products(few, q, start, stop, out)


@compiled
def _residuals(z, y, rate, factor, table, one, longest, lowest, bound, l):  # type: ignore[no-untyped-def]
    """Scores z (m, k) to clipped residuals l (m, k) int16; zero where y is negative.

    A loop over rows is one of vectors. z is used for what is made on the way.
    """
    m, k = z.shape
    powers = len(table)
    top = np.full(k, -(2**31), np.int32)
    total = np.zeros(k, np.int64)
    share = np.empty(k)
    for j in range(m):
        own = z[j]
        for i in range(k):
            top[i] = max(top[i], own[i])
    for j in range(m):
        own = z[j]
        for i in range(k):
            distance = np.float64(np.int64(top[i]) - np.int64(own[i]))
            exponent = np.int32(min(distance * rate[i], lowest))
            own[i] = table[exponent % powers] >> (exponent // powers)
            total[i] += own[i]
    for i in range(k):
        share[i] = one / np.float64(total[i])
        total[i] = 0
    whole = np.int32(one)
    for j in range(m):
        own = z[j]
        for i in range(k):
            r = np.int32((own[i] * share[i] + ROUND) - ROUND)
            r -= whole if j == y[i] else np.int32(0)
            r = r if y[i] >= 0 else np.int32(0)
            own[i] = r
            total[i] += np.int64(r) * np.int64(r)
    for i in range(k):
        length = np.sqrt(np.float64(total[i]))
        clipped = longest / max(length, 1.0)
        share[i] = min(factor[i], clipped)
        total[i] = 0
    for j in range(m):
        own = z[j]
        final = l[j]
        for i in range(k):
            final[i] = np.int32((own[i] * share[i] + ROUND) - ROUND)
            total[i] += np.int64(final[i]) * np.int64(final[i])
    for i in range(k):
        if total[i] <= bound:
            continue
        squared = np.int64(0)
        for j in range(m):
            l[j, i] = np.int32(z[j, i] * share[i])
            squared += np.int64(l[j, i]) * np.int64(l[j, i])
        if squared > bound:
            for j in range(m):
                l[j, i] = 0
