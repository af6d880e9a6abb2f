"""Compiled loops for a CPU: the clipped softmax gradient of full batches, class sums, and float64 sums of products.

`Gradient.factors` and `sums.outer_sum` say the same with whole arrays; tests hold the two equal.
"""

from collections.abc import Callable

import numba
import numpy as np

from dphead.privacy.sums import CHUNK, NOTHING, TINY

UNCOPIED = 1_000_000  # multiplications of a product for which OpenBLAS makes no copy of its operands
ROWS = (128, 64, 32, 16)  # of a product: the most of these for which there is no copy, else CHUNK
ZERO, ONE, LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function compiled, kept on the disk for other processes where a folder for it can be written."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in the user's own folder
        return numba.njit(**options)(function)


def add_softmax_gradient(
    x: np.ndarray,
    append: float,
    squared: np.ndarray,
    y: np.ndarray,
    keep: np.ndarray,
    weights: np.ndarray,
    clip_norm: float,
    out: np.ndarray,
) -> np.ndarray:
    """Add sum_i min(1, C / (||r_i|| ||x_i||)) x_i r_iᵀ, with r_i = softmax(x_i W) - e_{y_i}, to out (p, m) float64.

    x (k, p) float32, zero where not keep (k,), lacks the constant `append`, which out and the weights W have a row for
    if it is not 0, and which squared (k,), the rows' squared norms, contains; y (k,). CHUNK divides k.
    clip_norm C: infinite where features are clipped, which bounds r_i x_iᵀ already.
    Rounding: float32 sums of at most CHUNK rows at their places, float64 across, as for `in_place` in `sums`.
    """
    if weights.shape != out.shape or x.shape[1] + (append != 0) != len(out):  # compiled code would not notice
        raise ValueError(
            f"weights must be those of the gradient, got shapes {weights.shape}, {x.shape[1:]} for {out.shape}. "
            "This is a defect in the solver or the row source."
        )
    x, weights = np.ascontiguousarray(x), np.ascontiguousarray(weights, np.float32)
    rows = next((k for k in ROWS if k * weights.size <= UNCOPIED), CHUNK)
    constant = append * weights[x.shape[1] :].sum(axis=0)  # of a row's scores; nothing without the constant
    numbers = [np.float32(v) for v in (append, clip_norm, NOTHING, TINY)]  # not frozen in code that is kept on the disk
    _add(x, squared, y, keep, weights[: x.shape[1]], constant.astype(np.float32), *numbers, rows, out.T)
    return out


@_compiled
def _add(x, squared, y, keep, weights, constant, append, clip_norm, nothing, tiny, rows, out):  # type: ignore[no-untyped-def]
    p, m = weights.shape
    r, product = np.empty((rows, m), np.float32), np.empty((m, p), np.float32)
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        np.dot(part, weights, r)
        for i in range(rows):
            top = LOWEST
            for j in range(m):
                r[i, j] += constant[j]
                top = max(top, r[i, j])
            total = ZERO
            for j in range(m):
                r[i, j] = np.exp(r[i, j] - top)
                total += r[i, j]
            squared_residual = ZERO
            for j in range(m):
                r[i, j] = r[i, j] / total - (ONE if j == y[start + i] else ZERO)
                squared_residual += r[i, j] * r[i, j]
            norm = np.sqrt(max(squared_residual, nothing)) * np.sqrt(max(squared[start + i], nothing))
            factor = min(ONE, clip_norm / norm)
            counts = keep[start + i] and np.isfinite(squared_residual) and factor > tiny
            for j in range(m):
                r[i, j] = r[i, j] * factor if counts else ZERO
        np.dot(r.T, part, product)
        for j in range(m):
            for l in range(p):
                out[j, l] += product[j, l]
        if append != ZERO:
            for j in range(m):
                total = ZERO
                for i in range(rows):
                    total += r[i, j]
                out[j, p] += append * total


@_compiled
def add_rows(rows, y, keep, out):  # type: ignore[no-untyped-def]
    """Add row i of rows (k, p) float32, where keep, to row y_i of out (m, p) float64."""
    for i in range(len(rows)):
        if keep[i]:
            for l in range(rows.shape[1]):
                out[y[i], l] += rows[i, l]


@_compiled
def add_products(products, out):  # type: ignore[no-untyped-def]
    """Add each of products (k, p, q) float32 to out (p, q) float64."""
    for product in products:
        for i in range(len(out)):
            for j in range(out.shape[1]):
                out[i, j] += product[i, j]
