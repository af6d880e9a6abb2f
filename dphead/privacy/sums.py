"""Sums of outer products over rows whose rounding error is bounded, and that bound.

Rounding makes the computed sums of neighbouring data differ by more than the exact difference (ALGORITHMS.md §5), so
the error is part of the sensitivity. What a row contributes is float32. Where neighbouring data have every other row at
the same place (`in_place`), chunks of 128 rows are summed in float32, twice as fast, and only the chunk of the row that
differs is rounded anew. A Poisson batch and a removed row move all later rows: there every sum over rows is float64.
AUDIT.md, "Floating point", derives `slack`.
"""

from typing import Any

import numpy as np

CHUNK = 128  # block sizes are multiples of it; rows that are summed in float32 where that is sound
PIECE = 8 * CHUNK  # rows of a block that are in work at a time: few enough for the cache, enough for Python
FEW_CLASSES = 16  # up to so many, a product with one-hot rows is the fastest class sum
STRIP = 192  # rows of a Gram matrix that numpy computes at a time, from the diagonal on
NOTHING = 1e-30  # float32 cannot divide by a smaller squared norm well: `unit_norm` calls it zero, clips call it this
TINY = 1.2e-38  # below it are float32's denormal numbers, too inexact to clip with
GRID = 1e-4  # share of the sensitivity given to rounding the result to its grid
SMALL = 1 << 18  # entries of chunks' products that numpy makes in one call
LARGE = 1 << 16  # entries of a sum from which a compiled loop, which holds no product, is faster than numpy
MAX_SLACK = 0.01


def outer_sum(xp: Any, left: Any, right: Any, out: Any, in_place: bool = False) -> Any:
    """Add sum_i left_i right_iᵀ, shape (p, q), to out (float64). left (k, p), right (k, q) float32, CHUNK divides k."""
    if left.shape[1] > right.shape[1]:  # the narrow side first is the faster product
        turned = outer_sum(xp, right, left, out.T, in_place)
        return out if xp is np else turned.T
    if xp is np:
        _chunk_sums(left, right, out, in_place)
        return out
    return out + _chunk_products(xp, left, right, in_place)


def class_sum(rows: np.ndarray, y: np.ndarray, keep: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Add sum_i rows_i e_{y_i}ᵀ over rows with keep to out (p, m) float64, in float64, without products with zeros.

    rows (k, p) float32 are zero where not keep; y (k,) is a class where keep.
    """
    from dphead.privacy.sums_numba import add_rows  # a third of a second

    if rows.shape != (len(y), len(out)) or len(keep) != len(y):  # compiled code would not notice
        raise ValueError(
            f"each row must have a class, a mask and the sum's width, got {rows.shape=}, {y.shape=}, {keep.shape=}, "
            f"{out.shape=}. This is a defect in the row source."
        )
    add_rows(rows, y, keep, out.T)
    return out


def gram_sum(xp: Any, rows: Any, weights: Any, out: Any, same: list[int], in_place: bool = False) -> Any:
    """Add sum_i w_i rows_i rows_iᵀ to out (float64): (d, d) without weights, (m, d, d) for weights (k, m) ≥ 0.

    Only the upper triangle is promised (`mirrored`). out is in C order. same: for each class the first one known, from
    public numbers, to have the same weights: one product serves them.
    """
    if weights is None:
        return _add_square(xp, rows, [()], out, in_place)
    if not in_place:
        rows, weights = rows.astype(xp.float64), weights.astype(xp.float64)
    roots = xp.sqrt(weights)
    for first in sorted(set(same)):  # one class at a time bounds the memory
        equal = [(j,) for j, k in enumerate(same) if k == first]
        out = _add_square(xp, rows * roots[:, first : first + 1], equal, out, in_place)
    return out


def mirrored(square: np.ndarray) -> np.ndarray:
    """Symmetric matrices (..., d, d) from their upper triangles, in place."""
    d = square.shape[-1]
    for i in range(0, d, STRIP):
        square[..., i + STRIP :, i : i + STRIP] = square[..., i : i + STRIP, i + STRIP :].swapaxes(-1, -2)
        corner = square[..., i : i + STRIP, i : i + STRIP]
        corner[...] = np.triu(corner) + np.triu(corner, 1).swapaxes(-1, -2)
    return square


def _chunk_sums(left: np.ndarray, right: np.ndarray, out: np.ndarray, in_place: bool) -> None:
    """Add leftᵀ right (p, q) to out: in float32 for a chunk at a time if in_place, else all in float64."""
    if not in_place:
        out += left.astype(np.float64, copy=False).T @ right.astype(np.float64, copy=False)
        return
    if out.size >= LARGE and out.flags.c_contiguous:
        from dphead.privacy.sums_numba import add_products  # a third of a second

        add_products(left, right, out)
        return
    left, right = (x.reshape(-1, CHUNK, x.shape[1]) for x in (left, right))
    together = max(1, SMALL // out.size)  # each call takes the lock for which other cores' threads wait
    products = np.empty((min(together, len(left)), *out.shape), np.float32)
    for i in range(0, len(left), together):
        part = products[: len(left) - i]
        np.matmul(left[i : i + together].mT, right[i : i + together], out=part)
        out += part.sum(0, dtype=np.float64)


def _chunk_products(xp: Any, left: Any, right: Any, in_place: bool) -> Any:
    """leftᵀ right (p, q) float64, rounded as `_chunk_sums` rounds."""
    if not in_place:
        return matmul(xp, left.astype(xp.float64).T, right.astype(xp.float64))
    chunks = matmul(xp, left.reshape(-1, CHUNK, left.shape[1]).mT, right.reshape(-1, CHUNK, right.shape[1]))
    return chunks.astype(xp.float64).sum(0)


def _add_square(xp: Any, rows: Any, places: list[tuple[int, ...]], out: Any, in_place: bool) -> Any:
    """Add rowsᵀ rows to out[place] for each of the places."""
    if xp is not np:
        product = _chunk_products(xp, rows, rows, in_place)
        for place in places:
            out = out.at[place].add(product)
        return out
    d = rows.shape[1]
    square = out if len(places) == 1 and not places[0] else np.zeros((d, d))
    if in_place and d * d >= LARGE:
        from dphead.privacy.sums_numba import add_products

        add_products(rows, None, square)
    else:
        rows = rows if in_place else rows.astype(np.float64, copy=False)
        for i in range(0, d, STRIP):
            _chunk_sums(rows[:, i : i + STRIP], rows[:, i:], square[i : i + STRIP, i:], in_place)
    if square is not out:
        for place in places:
            out[place] += square
    return out


def slack(n_rows: int, width: int, sensitivity_dim: int, grid: float, in_place: bool = False) -> float:
    """Upper bound on the share of the sensitivity that rounding can add to the distance of two neighbouring sums.

    n_rows: public number of row slots; width: columns of a row; sensitivity_dim: entries of the result;
    grid: the result's grid step over the sensitivity; in_place: whether chunks are summed in float32.
    Guarantee: AUDIT.md, "Floating point", derives each term.
    """
    u32, u64 = 2.0**-24, 2.0**-53
    row = (4.0 * width + 64.0) * u32  # norms, clip factors and residuals of the one row that differs
    across = 4.0 * float(n_rows) * (float(n_rows) + CHUNK) * u64  # float64 sums of n rows in any order, both data sets
    chunk = 2.0 * CHUNK * (CHUNK + 1) * u32 * (1 + row) if in_place else 0.0  # the one chunk that is rounded anew
    total = row + chunk + across + grid * np.sqrt(float(sensitivity_dim))
    if total > MAX_SLACK:
        raise ValueError(
            f"rounding must cost at most {MAX_SLACK:.0%} of the sensitivity, got {total:.3%} for "
            f"n_rows={n_rows}, width={width}. Split the data over several releases or reduce the width."
        )
    return total


def grid_step(sensitivity: float, size: int) -> float:
    """The power of two at or below GRID * sensitivity / sqrt(size): results are rounded to its multiples."""
    return 2.0 ** np.floor(np.log2(GRID * sensitivity / np.sqrt(float(size))))


def _add(xp: Any, out: Any, value: Any) -> Any:
    if xp is np:
        out += value
        return out
    return out + value


def squares(xp: Any, x: Any) -> Any:
    """Squared norms (k,) of rows x (k, d), in x's own precision on every device."""
    return np.einsum("ij,ij->i", x, x) if xp is np else (x * x).sum(axis=1)


def masked(xp: Any, keep: Any, rows: Any) -> Any:
    """Rows (k, d) float32 where keep (k,), exact zeros elsewhere, whatever stands there (nan too)."""
    if xp is np:  # five times faster than np.where
        if keep.all():
            return rows
        bits = np.where(keep, np.int32(-1), np.int32(0))[:, None]
        return (rows.view(np.int32) & bits).view(np.float32)
    return xp.where(keep[:, None], rows, xp.float32(0))


def scores(xp: Any, rows: Any, weights: Any) -> Any:
    """rows (k, p) @ weights (p, m) in float32; a row's scores are the same bits at every place, beside any rows.

    A library's product is not used: its kernels add the terms of some rows of a block in another order.
    """
    if xp is np:
        from dphead.privacy.sums_numba import row_scores  # a third of a second
    else:
        from dphead.privacy.sums_jax import row_scores
    return row_scores(rows, weights)


def matmul(xp: Any, a: Any, b: Any) -> Any:
    """a @ b at the highest precision (no TF32, no bfloat16)."""
    return np.matmul(a, b) if xp is np else xp.matmul(a, b, precision="highest")
