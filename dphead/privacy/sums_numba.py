"""Compiled loops for a CPU: the clipped softmax gradient of full batches, class sums, and float64 sums of products.

`Gradient.factors` and `sums.outer_sum` say the same with whole arrays; tests hold the two equal.
"""

import numba
import numpy as np

from dphead.privacy.sums import CHUNK, NOTHING, TINY

UNCOPIED = 1_000_000  # multiplications of a product for which OpenBLAS makes no copy of its operands
FEWEST = 16  # rows of a product
ZERO, ONE, LEAST, SMALLEST = np.float32(0), np.float32(1), np.float32(NOTHING), np.float32(TINY)


def add_softmax_gradient(
    x: np.ndarray,
    squared: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    clip_norm: float,
    out: np.ndarray,
) -> np.ndarray:
    """Add sum_i min(1, C / (||r_i|| ||x_i||)) x_i r_iᵀ, with r_i = softmax(x_i W) - e_{y_i}, to out (p, m) float64.

    x (k, p) float32, zero where a row does not count; squared (k,): their squared norms; y (k,); weights W (p, m).
    CHUNK divides k. clip_norm C: infinite where features are clipped, which bounds r_i x_iᵀ already.
    Rounding: float32 sums of at most CHUNK rows at their places, float64 across, as for `in_place` in `sums`.
    """
    weights = np.ascontiguousarray(weights, np.float32)
    few = CHUNK
    while few > FEWEST and few * weights.size > UNCOPIED:
        few //= 2
    rows = few if few * weights.size <= UNCOPIED else CHUNK
    _add(x, squared, y, weights, np.float32(clip_norm), rows, out.T)
    return out


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add(x, squared, y, weights, clip_norm, rows, out):  # type: ignore[no-untyped-def]
    p, m = weights.shape
    r, product = np.empty((rows, m), np.float32), np.empty((m, p), np.float32)
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        np.dot(part, weights, r)
        for i in range(rows):
            top = r[i, 0]
            for j in range(1, m):
                top = max(top, r[i, j])
            total = ZERO
            for j in range(m):
                r[i, j] = np.exp(r[i, j] - top)
                total += r[i, j]
            squared_residual = ZERO
            for j in range(m):
                r[i, j] = r[i, j] / total - (ONE if j == y[start + i] else ZERO)
                squared_residual += r[i, j] * r[i, j]
            norm = np.sqrt(max(squared_residual, LEAST)) * np.sqrt(max(squared[start + i], LEAST))
            factor = min(ONE, clip_norm / norm)
            counts = np.isfinite(squared_residual) and factor > SMALLEST
            for j in range(m):
                r[i, j] = r[i, j] * factor if counts else ZERO
        np.dot(r.T, part, product)
        for j in range(m):
            for l in range(p):
                out[j, l] += product[j, l]


@numba.njit(nogil=True, cache=True)
def add_rows(rows, y, keep, out):  # type: ignore[no-untyped-def]
    """Add row i of rows (k, p) float32, where keep, to row y_i of out (m, p) float64."""
    for i in range(len(rows)):
        if keep[i]:
            for l in range(rows.shape[1]):
                out[y[i], l] += rows[i, l]


@numba.njit(nogil=True, cache=True)
def add_products(products, out):  # type: ignore[no-untyped-def]
    """Add each of products (k, p, q) float32 to out (p, q) float64."""
    for product in products:
        for i in range(len(out)):
            for j in range(out.shape[1]):
                out[i, j] += product[i, j]
