"""Sums of outer products over rows whose rounding error is bounded, and that bound.

Rounding makes the computed sums of neighbouring data differ by more than the exact difference (ALGORITHMS.md §5), so
the error is part of the sensitivity. What a row contributes is float32; every sum over rows is float64, because a
Poisson batch and a removed row change the places of all later rows, and with them every rounding of a float32 sum, not
of one chunk only. AUDIT.md, "Floating point", derives `slack`.
"""

from typing import Any

import numpy as np

CHUNK = 128  # block sizes are multiples of it; rows that numpy converts to float64 at a time
GRID = 1e-4  # share of the sensitivity given to rounding the result to its grid
MAX_SLACK = 0.01


def outer_sum(xp: Any, left: Any, right: Any, out: Any) -> Any:
    """Add sum_i left_i right_iᵀ, shape (p, q), to out (float64). left (k, p), right (k, q) float32, CHUNK divides k."""
    a, b = left.astype(xp.float64), right.astype(xp.float64)
    if a.shape[1] > b.shape[1]:  # the narrow side first is the faster product
        return _add(xp, out, matmul(xp, b.T, a).T)
    return _add(xp, out, matmul(xp, a.T, b))


def gram_sum(xp: Any, rows: Any, weights: Any, out: Any, same: list[int]) -> Any:
    """Add sum_i w_i rows_i rows_iᵀ to out (float64): (d, d) without weights, (m, d, d) for weights (k, m) ≥ 0.

    same: for each class the first one known, from public numbers, to have the same weights: one product serves them.
    """
    rows = rows.astype(xp.float64)
    if weights is None:
        return _add(xp, out, matmul(xp, rows.T, rows))
    roots = xp.sqrt(weights.astype(xp.float64))
    for first in sorted(set(same)):  # one class at a time bounds the memory
        scaled = rows * roots[:, first : first + 1]
        product = matmul(xp, scaled.T, scaled)
        for j in (j for j, k in enumerate(same) if k == first):
            if xp is np:
                out[j] += product
            else:
                out = out.at[j].add(product)
    return out


def slack(n_rows: int, width: int, sensitivity_dim: int, grid: float) -> float:
    """Upper bound on the share of the sensitivity that rounding can add to the distance of two neighbouring sums.

    n_rows: public number of row slots; width: columns of a row; sensitivity_dim: entries of the result;
    grid: the result's grid step over the sensitivity. Guarantee: AUDIT.md, "Floating point", derives each term.
    """
    u32, u64 = 2.0**-24, 2.0**-53
    row = (4.0 * width + 64.0) * u32  # norms, clip factors and residuals of the one row that differs
    across = 4.0 * float(n_rows) * (float(n_rows) + CHUNK) * u64  # float64 sums of n rows in any order, both data sets
    total = row + across + grid * np.sqrt(float(sensitivity_dim))
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
        bits = np.where(keep, np.int32(-1), np.int32(0))[:, None]
        return (rows.view(np.int32) & bits).view(np.float32)
    return xp.where(keep[:, None], rows, xp.float32(0))


def matmul(xp: Any, a: Any, b: Any) -> Any:
    """a @ b at the highest precision (no TF32, no bfloat16)."""
    return np.matmul(a, b) if xp is np else xp.matmul(a, b, precision="highest")
