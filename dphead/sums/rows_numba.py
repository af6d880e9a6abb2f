"""Compiled rows: `privacy.transform` a row at a time, for CPUs, bit for bit.

Each row's arithmetic is that of the definition: one IEEE operation on an entry, and
sums of integers. Nothing here allows a compiler to fuse or reorder floating point.
Numbers of other modules are arguments, since code kept on the disk does not notice that
they change.
"""

import math

import numpy as np

from dphead.privacy.transform import (
    FINE,
    RADIUS,
    SMALLEST,
    IntegerRows,
    RowTransform,
    aim,
    clipped_bound,
    clipped_step,
)
from dphead.sums.products_numba import ROUND, compiled

SIGN32 = np.int32(0x7FFFFFFF)
SIGN64 = np.int64(0x7FFFFFFFFFFFFFFF)
INFINITE32 = np.int32(0x7F800000)
INFINITE64 = np.int64(0x7FF0000000000000)


def direction_rows(transform: RowTransform, x: np.ndarray) -> IntegerRows:
    """`transform.direction_rows`."""
    return _rows(transform, x, None)


def clipped_rows(
    transform: RowTransform, x: np.ndarray, clip_norm: float
) -> IntegerRows:
    """`transform.clipped_rows`."""
    return _rows(transform, x, clip_norm)


def _rows(
    transform: RowTransform, x: np.ndarray, clip_norm: float | None
) -> IntegerRows:
    x = np.ascontiguousarray(x, np.float32)
    k, d = x.shape
    width = transform.width(d)
    center = _numbers(transform.center, d, 0.0)
    scale = _numbers(transform.scale, d, 1.0)
    plan = (
        transform.unit_norm,
        transform.center is not None,
        transform.scale is not None,
    )
    q = np.empty((k, width), np.int16)
    sizes = np.empty(k)
    append = float(transform.append)
    if clip_norm is None:
        length = aim(RADIUS**2, width)
        limits = (True, length, append, 0.0, RADIUS**2, FINE, SMALLEST)
    else:
        bound, constant = clipped_bound(clip_norm, append)
        step = clipped_step(clip_norm, append)
        last = float(constant)
        limits = (False, aim(bound, d), step, last, bound, FINE, SMALLEST)
    _make(x, center, scale, *plan, *limits, q, sizes)
    return IntegerRows(q, sizes)


def _numbers(values: np.ndarray | None, d: int, missing: float) -> np.ndarray:
    if values is None:
        return np.full(d, missing)
    return np.ascontiguousarray(values, np.float64)


@compiled
def _make(
    x,
    center,
    scale,
    unit,
    centered,
    scaled,
    whole,
    length,
    b,
    last,
    bound,
    fine,
    smallest,
    q,
    sizes,
):  # type: ignore[no-untyped-def]
    """Rows x to q (k, d or d + 1) and sizes (k,).

    whole: direction rows, of length `length`, with the constant b; else rows clipped to
    `length` units, of which one is b, with the constant's entry `last`.
    """
    d = x.shape[1]
    values = np.empty(d)
    for i in range(len(x)):
        step, known = _fine32(x[i], values, fine)
        if not known:
            _nothing(q[i], sizes, i)
            continue
        squared = _squared(values)
        size = 1 / math.sqrt(max(squared, 1)) if unit else step
        if centered or scaled:
            _moved(values, size, center, scale, centered, scaled)
            step, known = _fine64(values, fine, smallest)
            if not known:
                _nothing(q[i], sizes, i)
                continue
            squared = _squared(values)
            size = 1 / math.sqrt(max(squared, 1)) if unit and centered else step
        norm = size * math.sqrt(squared)
        constant = last
        if whole:
            total = math.sqrt(norm * norm + b * b)
            unit_size = total / length if total > 0 else 1.0
            if not unit_size < np.inf:
                _nothing(q[i], sizes, i)
                continue
            factor = size / unit_size
            constant = b / unit_size
            sizes[i] = unit_size
        else:
            factor = min(size / b, length / math.sqrt(max(squared, 1)))
            sizes[i] = b
        _round(values, factor, constant, whole, bound, q[i])


@compiled
def _nothing(q, sizes, i):  # type: ignore[no-untyped-def]
    q[:] = 0
    sizes[i] = 0.0


@compiled
def _fine32(row, values, fine):  # type: ignore[no-untyped-def]
    """The row as whole numbers of `fine` bits; what one stands for; whether finite."""
    bits = row.view(np.int32)
    largest = np.int32(0)
    for l in range(len(row)):
        largest = max(largest, bits[l] & SIGN32)
    if largest >= INFINITE32:
        return 1.0, False
    size = 0.0
    for l in range(len(row)):
        values[l] = row[l]
    if largest > 0:
        top = values.view(np.int64)
        most = np.int64(0)
        for l in range(len(row)):
            most = max(most, top[l] & SIGN64)
        size = _number(most)
    return _rounded(values, size, fine), True


@compiled
def _fine64(values, fine, smallest):  # type: ignore[no-untyped-def]
    bits = values.view(np.int64)
    largest = np.int64(0)
    for l in range(len(values)):
        largest = max(largest, bits[l] & SIGN64)
    if largest >= INFINITE64:
        return 1.0, False
    size = _number(largest)
    if size < smallest:
        values[:] = 0
        size = 0.0
    return _rounded(values, size, fine), True


@compiled
def _number(bits):  # type: ignore[no-untyped-def]
    """The float64 of these bits."""
    one = np.empty(1, np.int64)
    one[0] = bits
    return one.view(np.float64)[0]


@compiled
def _rounded(values, largest, fine):  # type: ignore[no-untyped-def]
    """Values divided by a power of two, and rounded to whole numbers; that power."""
    _, exponent = math.frexp(largest if largest > 0 else 1.0)
    inverse = math.ldexp(1.0, fine - exponent)
    for l in range(len(values)):
        values[l] = (values[l] * inverse + ROUND) - ROUND
    return math.ldexp(1.0, exponent - fine)


@compiled
def _squared(values):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for l in range(len(values)):
        one = np.int64(np.int32(values[l]))
        total += one * one
    return total


@compiled
def _moved(values, size, center, scale, centered, scaled):  # type: ignore[no-untyped-def]
    for l in range(len(values)):
        values[l] = values[l] * size
    if centered:
        for l in range(len(values)):
            values[l] = values[l] - center[l]
    if scaled:
        for l in range(len(values)):
            values[l] = values[l] * scale[l]


@compiled
def _round(values, factor, constant, whole, bound, q):  # type: ignore[no-untyped-def]
    """values * factor and the constant as whole numbers no longer than the bound.

    The bound is on all entries if `whole`, else on those without the constant.
    """
    d = len(values)
    append = len(q) > d
    total = np.int64(0)
    for l in range(d):
        q[l] = np.int32((values[l] * factor + ROUND) - ROUND)
        total += np.int64(q[l]) * np.int64(q[l])  # what is stored, so that none wraps
    if append:
        q[d] = np.int64((constant + ROUND) - ROUND)
        total += np.int64(q[d]) * np.int64(q[d]) if whole else 0
    if total <= bound:
        return
    total = np.int64(0)
    for l in range(d):
        q[l] = np.int32(values[l] * factor)
        total += np.int64(q[l]) * np.int64(q[l])
    if append:
        q[d] = np.int64(constant)
        total += np.int64(q[d]) * np.int64(q[d]) if whole else 0
    if total > bound:
        q[:] = 0
        if append and not whole:
            q[d] = np.int64(constant)
