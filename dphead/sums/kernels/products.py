"""Compute exact products of 16-bit integers on a CPU.

Compiled loops (`loops`) check no bounds. Callers use these functions, which check
shapes and types first. No sum may overflow. A row and a residual are int16 vectors of
norm at most 4095, so a product of two entries is below 2**24. The sum of CHUNK_ROWS =
128 products fits in int32, and int64 holds all other sums.
"""

import numpy as np

from dphead.sums.kernels.loops import (
    add_all_products,
    add_sorted_rows,
    packed_weights,
    scores_into,
)


def scores(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the products of all rows and weights.

    Parameters
    ----------
    rows : ndarray of int16, shape (k, d)
        Integer rows.
    weights : ndarray of int16, shape (m, d)
        Integer weights.

    Returns
    -------
    ndarray of int32, shape (m, k)
        Scores. They are exact, in any order of additions, if ||row|| ||weight|| <
        2**31.

    Raises
    ------
    ValueError
        If shapes or types differ.
    """
    _check_integers(rows, weights)
    if rows.shape[1] != weights.shape[1]:
        raise ValueError(
            f"each weight must have a column of the rows, got {rows.shape=}, "
            f"{weights.shape=}. This is a defect in a query."
        )
    out = np.empty((len(weights), len(rows)), np.int32)
    rows = np.ascontiguousarray(rows)
    scores_into(rows, 0, len(rows), packed_weights(weights), out)
    return out


def add_products(left: np.ndarray, right: np.ndarray | None, out: np.ndarray) -> None:
    """Add sum_i left_i right_iᵀ to `out`.

    Parameters
    ----------
    left : ndarray of int16, shape (k, p)
        Left factors, with entries of at most 4095.
    right : ndarray of int16, shape (k, q), or None
        Right factors, with entries of at most 4095. None adds left_i left_iᵀ to the
        upper triangle of `out`; entries below it are unspecified.
    out : ndarray of int64, shape (p, q)
        Sum in C order.

    Raises
    ------
    ValueError
        If shapes or types do not match.
    """
    upper = right is None
    right = left if right is None else right
    _check_integers(left, right)
    _check_sum(out, (left.shape[1], right.shape[1]))
    if len(left) != len(right):
        raise ValueError(
            f"both sides must have the same rows, got {left.shape=}, {right.shape=}. "
            "This is a defect in a query."
        )
    left = np.ascontiguousarray(left)
    right = np.ascontiguousarray(right)
    add_all_products(left, right, upper, out)


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
    _check_integers(rows, rows)
    _check_sum(out, (len(out), rows.shape[1]))
    if y.shape != (len(rows),) or keep.shape != y.shape or keep.dtype != bool:
        raise ValueError(
            f"each row must have a class and a mask, got {rows.shape=}, {y.shape=}, "
            f"{keep.shape=}, {keep.dtype=}. This is a defect in the row source."
        )
    used = np.flatnonzero(keep)
    used = used[np.argsort(y[used], kind="stable")]
    classes = y[used]
    if len(used) and not 0 <= classes.min() <= classes.max() < len(out):
        raise ValueError(
            f"each row that is kept must be of a class below {len(out)}, got others. "
            "This is a defect in a query: such rows are not kept."
        )
    add_sorted_rows(np.ascontiguousarray(rows), used, classes, out)


def _check_integers(*arrays: np.ndarray) -> None:
    if any(x.ndim != 2 or x.dtype != np.int16 for x in arrays):
        shapes = [(x.shape, str(x.dtype)) for x in arrays]
        raise ValueError(
            f"rows must be matrices of int16, got {shapes}. "
            "This is a defect in a query."
        )


def _check_sum(out: np.ndarray, shape: tuple[int, ...]) -> None:
    fits = out.shape == shape and out.dtype == np.int64
    if not (fits and out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(
            f"a sum must be int64, in C order and of shape {shape}, got {out.shape=}, "
            f"{out.strides=}, {out.dtype=}. This is a defect in a query."
        )
