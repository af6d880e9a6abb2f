"""Sums of outer products over rows whose rounding error is bounded, and that bound.

Rounding makes the computed sums of neighbouring data differ by more than the exact difference (ALGORITHMS.md §5), so
the error is part of the sensitivity. Inner float32 products run over at most `CHUNK` rows; everything across chunks,
and every Gram matrix, is float64. AUDIT.md, "Floating point", derives `slack`.
"""

from typing import Any

import numpy as np

CHUNK = 128  # rows in one float32 product
GRID = 1e-4  # share of the sensitivity given to rounding the result to its grid
MAX_SLACK = 0.01


def outer_sum(xp: Any, left: Any, right: Any, out: Any) -> Any:
    """Add sum_i left_i right_iᵀ, shape (p, q), to out (float64). left: (k, p), right: (k, q), float32, k % CHUNK == 0."""
    a = left.reshape(-1, CHUNK, left.shape[1])
    b = right.reshape(-1, CHUNK, right.shape[1])
    if left.shape[1] > right.shape[1]:  # the narrow side first is the faster product
        return _add(xp, out, _matmul(xp, b.swapaxes(1, 2), a).sum(axis=0, dtype=xp.float64).T)
    return _add(xp, out, _matmul(xp, a.swapaxes(1, 2), b).sum(axis=0, dtype=xp.float64))


def gram_sum(xp: Any, rows: Any, weights: Any, out: Any) -> Any:
    """Add sum_i w_i rows_i rows_iᵀ to out (float64): (d, d) if weights is None, else (m, d, d) for weights (k, m) ≥ 0."""
    rows = rows.astype(xp.float64)
    if weights is None:
        return _add(xp, out, _matmul(xp, rows.T, rows))
    roots = xp.sqrt(weights.astype(xp.float64))
    for j in range(weights.shape[1]):  # one class at a time bounds the memory
        scaled = rows * roots[:, j : j + 1]
        product = _matmul(xp, scaled.T, scaled)
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
    inner = 2.0 * CHUNK * CHUNK * u32  # two sums of CHUNK clipped rows, each entry within CHUNK ulps of the exact sum
    row = (4.0 * width + 64.0) * u32  # norms, clip factors and residuals of the one row that differs
    across = 4.0 * float(n_rows) * (float(n_rows) + CHUNK) * u64  # float64 sums over all rows, both data sets
    total = inner + row + across + grid * np.sqrt(float(sensitivity_dim))
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


def _matmul(xp: Any, a: Any, b: Any) -> Any:
    return np.matmul(a, b) if xp is np else xp.matmul(a, b, precision="highest")
