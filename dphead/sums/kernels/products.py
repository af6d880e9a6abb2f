"""Compute exact products of 16-bit integers on a CPU.

Compiled loops (`loops`) check no bounds. Callers use these functions, which check
shapes and types first. No sum may overflow. A row and a residual are int16 vectors of
norm at most 4095, so a product of two entries is below 2**24. The sum of CHUNK_ROWS =
128 products fits in int32, and int64 holds all other sums.
"""

import numpy as np

from dphead.sums.kernels.loops import add_sorted_rows, add_squares


def add_gram(rows: np.ndarray, out: np.ndarray) -> None:
    """Add sum_i row_i row_iᵀ to the upper triangle of `out`.

    Parameters
    ----------
    rows : ndarray of int16, shape (k, d)
        Integer rows, with entries of at most 4095.
    out : ndarray of int64, shape (d, d)
        Sum in C order. Entries below the diagonal are unspecified.

    Raises
    ------
    ValueError
        If shapes or types do not match.
    """
    _check_integers(rows)
    _check_sum(out, (rows.shape[1], rows.shape[1]))
    add_squares(np.ascontiguousarray(rows), out)


def add_class_rows(
    rows: np.ndarray, y: np.ndarray, keep: np.ndarray, out: np.ndarray
) -> None:
    """Add each kept row i of `rows` to row y_i of `out`.

    Parameters
    ----------
    rows : ndarray of int16, shape (k, d)
        Integer rows.
    y : ndarray of int, shape (k,)
        Classes: from 0 to m - 1 for kept rows.
    keep : ndarray of bool, shape (k,)
        False for rows that add zero to every sum.
    out : ndarray of int64, shape (m, d)
        Class sums in C order.

    Raises
    ------
    ValueError
        If shapes, types or classes do not match.
    """
    _check_integers(rows)
    _check_sum(out, (len(out), rows.shape[1]))
    if y.shape != (len(rows),) or keep.shape != y.shape or keep.dtype != bool:
        raise ValueError(
            f"Internal error: {len(rows)} rows have {y.shape} classes and a "
            f"{keep.dtype} mask of shape {keep.shape}. Please report it."
        )
    used = np.flatnonzero(keep)
    # sorted by class, so that four rows of a class are added in one loop
    used = used[np.argsort(y[used], kind="stable")]
    classes = y[used]
    if len(used) and not 0 <= classes.min() <= classes.max() < len(out):
        raise ValueError(
            f"Internal error: a kept row has no class from 0 to {len(out) - 1}. Please "
            "report it."
        )
    add_sorted_rows(np.ascontiguousarray(rows), used, classes, out)


def _check_integers(rows: np.ndarray) -> None:
    if rows.ndim != 2 or rows.dtype != np.int16:
        raise ValueError(
            f"Internal error: rows must be an int16 matrix, got {rows.dtype} of shape "
            f"{rows.shape}. Please report it."
        )


def _check_sum(out: np.ndarray, shape: tuple[int, ...]) -> None:
    fits = out.shape == shape and out.dtype == np.int64
    if not (fits and out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(
            f"Internal error: a sum must be int64 of shape {shape} in C order, got "
            f"{out.dtype} of shape {out.shape}. Please report it."
        )
