"""Compiled loops for a CPU: the clipped softmax gradient of full batches, class sums, and float64 sums of products.

`Gradient.factors` and `sums.outer_sum` say the same with whole arrays; tests hold the two equal.
"""

from collections.abc import Callable
from math import factorial, gcd

import numba
import numpy as np

from dphead.privacy.sums import CHUNK, NOTHING, PIECE, TINY

UNCOPIED = 1_000_000  # multiplications of a product for which OpenBLAS makes no copy of its operands
ROWS = tuple(CHUNK >> i for i in range(4))  # of a product with weights: the most without a copy, else two chunks
CACHED = 1 << 18  # entries of weights that stay in the cache; more are copied once for up to PIECE rows
ZERO, HALF, ONE, LOWEST = np.float32(0), np.float32(0.5), np.float32(1), np.float32(-np.inf)
LOG2_E, LN2_HIGH, SMALLEST = np.float32(np.log2(np.e)), np.float32(355 / 512), np.float32(-87)  # e**-87 is not denormal
LN2_LOW = np.float32(np.log(2) - 355 / 512)  # a whole number up to 126 times 355/512 is exact
E3, E4, E5, E6, E7 = (np.float32(1 / factorial(k)) for k in range(3, 8))  # e**f to 2**-27 for |f| <= log(2) / 2


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function compiled, kept on the disk for other processes where a folder for it can be written."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in the user's own folder
        return numba.njit(**options)(function)


def add_softmax_gradient(
    x: np.ndarray,
    factor: np.ndarray | None,
    append: float,
    squared: np.ndarray,
    y: np.ndarray,
    keep: np.ndarray,
    weights: np.ndarray,
    clip_norm: float,
    out: np.ndarray,
) -> np.ndarray:
    """Add sum_i min(1, C / (||r_i|| ||x_i||)) x_i r_iᵀ, with r_i = softmax(x_i W) - e_{y_i}, to out (p, m) float64.

    x_i: row i of x (k, p) float32 times factor_i (None: 1), and the constant `append`, which out and the weights W have
    a row for if it is not 0; rows not in keep (k,) add nothing whatever they hold. squared (k,): squared norms of x_i;
    y (k,). CHUNK divides k.
    clip_norm C: infinite where features are clipped, which bounds r_i x_iᵀ already.
    Rounding: float32 sums of at most CHUNK rows at their places, float64 across, as for `in_place` in `sums`.
    """
    if weights.shape != out.shape or x.shape[1] + (append != 0) != len(out):  # compiled code would not notice
        raise ValueError(
            f"weights must be those of the gradient, got shapes {weights.shape}, {x.shape[1:]} for {out.shape}. "
            "This is a defect in the solver or the row source."
        )
    factor = np.ones(len(x), np.float32) if factor is None else factor
    if len(x) % CHUNK or any(v.shape != (len(x),) for v in (factor, squared, y, keep)):
        raise ValueError(
            f"each of a multiple of {CHUNK} rows must have a factor, a norm, a class and a mask, got {x.shape=}, "
            f"{factor.shape=}, {squared.shape=}, {y.shape=}, {keep.shape=}. This is a defect in the row source."
        )
    x, weights = np.ascontiguousarray(x), np.ascontiguousarray(weights, np.float32)
    most = next((k for k in ROWS if k * weights.size <= UNCOPIED), 2 * CHUNK if weights.size <= CACHED else PIECE)
    rows = gcd(len(x), most)
    constant = append * weights[x.shape[1] :].sum(axis=0)  # of a row's scores; nothing without the constant
    # arguments, since code that is kept on the disk does not notice that a constant of `sums` has changed
    numbers, k = [np.float32(v) for v in (append, clip_norm, NOTHING, TINY)], min(rows, CHUNK)
    w, b = weights[: x.shape[1]], constant.astype(np.float32)
    _add(x, factor, squared, y, keep, w, b, *numbers, rows, k, out.T)
    return out


@_compiled
def _add(x, factor, squared, y, keep, weights, constant, append, clip_norm, nothing, tiny, rows, k, out):  # type: ignore[no-untyped-def]
    p, m = weights.shape
    z, r, changed = np.empty((m, rows), np.float32), np.empty((rows // k, m, k), np.float32), np.empty_like(x[:rows])
    products = np.zeros((2, m, p), np.float32)  # of two chunks, added at once; the second stays zero where r has one
    for start in range(0, len(x), rows):
        part, as_it_is = x[start : start + rows], True
        for i in range(start, start + rows):
            as_it_is &= keep[i] and factor[i] == ONE
        if not as_it_is:
            for i in range(rows):
                for l in range(p):
                    changed[i, l] = part[i, l] * factor[start + i] if keep[start + i] else ZERO
            part = changed
        np.dot(weights.T, part.T, z)
        for c in range(len(r)):
            for j in range(m):
                own, scores = r[c, j], z[j, c * k : (c + 1) * k]
                for i in range(k):
                    own[i] = scores[i] + constant[j]
            at = slice(start + c * k, start + (c + 1) * k)
            _residuals(r[c], squared[at], y[at], keep[at], clip_norm, nothing, tiny)
            np.dot(r[c], part[c * k : (c + 1) * k], products[c % 2])
            if c % 2 or len(r) == 1:
                for j in range(m):
                    total, one, other = out[j], products[0, j], products[1, j]
                    for l in range(p):
                        total[l] += np.float64(one[l]) + np.float64(other[l])
            if append != ZERO:
                for j in range(m):
                    out[j, p] += append * r[c, j].sum()


@_compiled
def _residuals(r, squared, y, keep, clip_norm, nothing, tiny):  # type: ignore[no-untyped-def]
    """Scores r (m, k) become softmax residuals, clipped, zero where not keep. A loop over rows is one of vectors."""
    m, k = r.shape
    top, total, factor = np.full(k, LOWEST), np.zeros(k, np.float32), np.empty(k, np.float32)
    exponent = np.empty(k, np.int32)
    power = exponent.view(np.float32)  # 2 to the exponent, whose bits are shifted to their place
    for j in range(m):
        own = r[j]
        for i in range(k):
            top[i] = max(top[i], own[i])
    for j in range(m):
        own = r[j]
        for i in range(k):
            d = own[i] - top[i]
            whole = np.floor((d if d > SMALLEST else SMALLEST) * LOG2_E + HALF)  # a number even if d is not
            exponent[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
            f = ((SMALLEST if d < SMALLEST else d) - whole * LN2_HIGH) - whole * LN2_LOW
            own[i] = (((((E7 * f + E6) * f + E5) * f + E4) * f + E3) * f + HALF) * f * f + f + ONE
        for i in range(k):
            own[i] *= power[i]
            total[i] += own[i]
    for i in range(k):
        factor[i], total[i] = ONE / total[i], ZERO
    for j in range(m):
        own = r[j]
        for i in range(k):
            own[i] = own[i] * factor[i] - (ONE if j == y[i] else ZERO)
            total[i] += own[i] * own[i]
    for i in range(k):
        norm = np.sqrt(max(total[i], nothing)) * np.sqrt(max(squared[i], nothing))
        clip = min(ONE, clip_norm / norm)
        factor[i] = clip if keep[i] and np.isfinite(total[i]) and clip > tiny else ZERO
    for j in range(m):
        own = r[j]
        for i in range(k):
            own[i] = own[i] * factor[i] if factor[i] > ZERO else ZERO


@_compiled
def add_rows(rows, y, keep, out):  # type: ignore[no-untyped-def]
    """Add row i of rows (k, p) float32, where keep, to row y_i of out (m, p) float64."""
    for i in range(len(rows)):
        if keep[i]:
            for l in range(rows.shape[1]):
                out[y[i], l] += rows[i, l]


@_compiled
def add_products(products, out):  # type: ignore[no-untyped-def]
    """Add each of products (k, p, q) float32 to out (p, q) float64, two at a time."""
    for c in range(0, len(products) - 1, 2):
        for i in range(len(out)):
            total, one, other = out[i], products[c, i], products[c + 1, i]
            for j in range(out.shape[1]):
                total[j] += np.float64(one[j]) + np.float64(other[j])
    if len(products) % 2:
        for i in range(len(out)):
            for j in range(out.shape[1]):
                out[i, j] += products[-1, i, j]
