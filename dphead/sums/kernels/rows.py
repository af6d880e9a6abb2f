"""Make the integer rows of `privacy.transform` by compiled loops, bit for bit.

Each row's arithmetic follows the definition: one IEEE operation on an entry at a time,
and sums of integers. The compiler may not fuse or reorder floating-point operations, so
no loop here is compiled with `fastmath`.
"""

import math
from typing import Any

import numpy as np

from dphead.privacy.statistics import MOMENT_RADIUS, ChannelMoment
from dphead.privacy.transform import (
    FINE_BITS,
    RADIUS,
    SMALLEST_ENTRY,
    IntegerRows,
    RowTransform,
    aim,
    clipped_bound,
    clipped_step,
)
from dphead.sums.kernels.processor import compiled
from dphead.sums.tuning import ROUNDING_SHIFT

# Bits of float64 numbers (IEEE 754): a mask without the sign, and infinity. Without the
# sign, the bits sort like absolute values, and NaNs come after infinity.
_WITHOUT_SIGN = np.int64(0x7FFFFFFFFFFFFFFF)
_INFINITY = np.int64(0x7FF0000000000000)
# Grid of moments before the clip, as in `ChannelMoment.rows`: squares of 2**20 add up
# exactly in int64.
_MOMENT_GRID = 2.0**20


def integer_rows(
    transform: RowTransform, x: np.ndarray, clip_norm: float | None = None
) -> IntegerRows:
    """Return the integers of `clipped_rows` for rows x (k, d) float32.

    Without a clip norm, return the integers of `direction_rows`. Both functions are in
    `privacy.transform`.
    """
    k, d = x.shape
    width = transform.width(d)
    append = float(transform.append)
    if clip_norm is None:
        limits = (True, aim(RADIUS**2, width), append, 0.0, RADIUS**2)
    else:
        bound, constant = clipped_bound(clip_norm, append)
        step = clipped_step(clip_norm, append)
        limits = (False, aim(bound, d), step, float(constant), bound)
    q = np.empty((k, width), np.int16)
    return _filled(_make, transform, x, limits, q)


def moment_rows(
    statistic: ChannelMoment, transform: RowTransform, x: np.ndarray, clip_norm: float
) -> IntegerRows:
    """Return the integers of `ChannelMoment.rows` if each feature is a channel.

    q is int32.
    """
    most = aim(MOMENT_RADIUS**2, x.shape[1])
    step = clip_norm / MOMENT_RADIUS
    limits = (statistic.power == 2, step, most)
    q = np.empty(x.shape, np.int32)
    return _filled(_make_moments, transform, x, limits, q)


def norms(transform: RowTransform, x: np.ndarray) -> np.ndarray:
    """Return the norms (k,) of transformed rows x (k, d) float32, 0 if not finite."""
    return _filled(_norms, transform, x, (), np.empty(0)).scale


def _filled(
    make: Any, transform: RowTransform, x: np.ndarray, limits: tuple, q: np.ndarray
) -> IntegerRows:
    """Fill q by a compiled loop over rows, and return it as `IntegerRows`."""
    x = np.ascontiguousarray(x, np.float32)
    sizes = np.empty(len(x))
    center, scale = transform.center, transform.scale
    flags = (transform.unit_norm, center is not None, scale is not None)
    d = x.shape[1]
    plan = (*flags, _numbers(center, d, 0.0), _numbers(scale, d, 1.0))
    make(x, plan, limits, q, sizes)
    return IntegerRows(q, sizes)


def _numbers(values: np.ndarray | None, d: int, missing: float) -> np.ndarray:
    if values is None:
        return np.full(d, missing)
    # A copy, because numba would compile the loop again for a read-only array.
    return np.array(values, np.float64)


@compiled
def _make(x, plan, limits, q, sizes):
    """Write the integers of rows x to q (k, d or d + 1), and their sizes to sizes (k,).

    limits is (whole, length, b, last, bound). If `whole`, the rows are direction rows
    of length `length`, with the constant b. Otherwise, rows are clipped to `length`
    units of size b, with the constant's entry `last`.
    """
    whole, length, b, last, bound = limits
    values = np.empty(x.shape[1])  # one row at a time: it stays in the L1 cache
    for i in range(len(x)):
        known, squared, size = _transformed(x[i], plan, values)
        if not known:
            _nothing(q[i], sizes, i)
            continue
        norm = size * math.sqrt(squared)
        constant = last
        if whole:
            total = math.sqrt(norm * norm + b * b)
            unit_size = total / length if total > 0 else 1.0
            if not unit_size < np.inf:  # also False for NaN
                _nothing(q[i], sizes, i)
                continue
            factor = size / unit_size
            constant = b / unit_size
            sizes[i] = unit_size
        else:
            # the smaller of "not clipped" and "clipped to length units"
            factor = min(size / b, length / math.sqrt(max(squared, 1)))
            sizes[i] = b
        _round(values, factor, constant, whole, bound, q[i])


@compiled
def _make_moments(x, plan, limits, q, sizes):
    """Write moments of rows x to q (k, d) int32 and sizes (k,), each feature a channel.

    limits is (squares, step, longest): whether to square, the size of one unit, and the
    length that rows are clipped to.
    """
    squares, step, longest = limits
    values = np.empty(x.shape[1])
    for i in range(len(x)):
        known, _, size = _transformed(x[i], plan, values)
        if not known:
            _nothing(q[i], sizes, i)
            continue
        if squares:
            size = size * size
            for l in range(len(values)):
                values[l] = values[l] * values[l]  # whole and below 2**53, so exact
        largest = max(_number(_largest(values)), 1.0)
        for l in range(len(values)):
            values[l] = (
                values[l] / largest * _MOMENT_GRID + ROUNDING_SHIFT
            ) - ROUNDING_SHIFT
        norm = math.sqrt(_squared(values))
        factor = min(size * largest / _MOMENT_GRID / step, longest / max(norm, 1.0))
        if not abs(factor) < np.inf:
            _nothing(q[i], sizes, i)
            continue
        _round(values, factor, 0.0, True, MOMENT_RADIUS**2, q[i])
        sizes[i] = 1.0


@compiled
def _norms(x, plan, limits, q, sizes):
    """Write the norms of transformed rows x (k, d) to sizes (k,)."""
    values = np.empty(x.shape[1])
    for i in range(len(x)):
        _, squared, size = _transformed(x[i], plan, values)
        sizes[i] = size * math.sqrt(squared)


@compiled
def _transformed(row, plan, values):
    """Transform a row, and return (whether finite, sum of squares, size of one unit).

    `values` gets the row as whole numbers of that unit.
    """
    unit, centered, scaled, center, scale = plan
    for l in range(len(row)):
        values[l] = row[l]  # exact: every float32 is a float64
    size, known = _fine(values)
    if not known:
        return False, np.int64(0), 1.0
    squared = _squared(values)
    if unit:
        size = 1 / math.sqrt(max(squared, 1))
    if centered or scaled:
        _moved(values, size, center, scale, centered, scaled)
        # the transform moves entries off the grid: round them to FINE_BITS bits again
        size, known = _fine(values)
        if not known:
            return False, np.int64(0), 1.0
        squared = _squared(values)
        # unit rows that are only scaled keep their new norms
        if unit and centered:
            size = 1 / math.sqrt(max(squared, 1))
    return True, squared, size


@compiled
def _nothing(q, sizes, i):
    q[:] = 0
    sizes[i] = 0.0


@compiled
def _largest(values):
    """Return the bits of the largest absolute value, which sort like the values."""
    bits = values.view(np.int64)
    largest = np.int64(0)
    for l in range(len(values)):
        largest = max(largest, bits[l] & _WITHOUT_SIGN)
    return largest


@compiled
def _fine(values):
    """Round values to whole numbers of FINE_BITS bits, in place.

    Return the size of one unit, and whether all values are finite.
    """
    largest = _largest(values)
    if largest >= _INFINITY:
        return 1.0, False
    size = _number(largest)
    if size < SMALLEST_ENTRY:
        # dividing by the power of two of such a number would overflow
        values[:] = 0
        size = 0.0
    return _rounded(values, size), True


@compiled
def _number(bits):
    """Reinterpret int64 bits as float64."""
    one = np.empty(1, np.int64)
    one[0] = bits
    return one.view(np.float64)[0]


@compiled
def _rounded(values, largest):
    """Divide values by a power of two and round them. Return the power."""
    _, exponent = math.frexp(largest if largest > 0 else 1.0)
    inverse = math.ldexp(1.0, FINE_BITS - exponent)
    for l in range(len(values)):
        values[l] = (values[l] * inverse + ROUNDING_SHIFT) - ROUNDING_SHIFT
    return math.ldexp(1.0, exponent - FINE_BITS)


@compiled
def _squared(values):
    """Return the sum of squares of whole numbers of FINE_BITS bits, in int64."""
    total = np.int64(0)
    for l in range(len(values)):
        one = np.int64(np.int32(values[l]))
        total += one * one
    return total


@compiled
def _moved(values, size, center, scale, centered, scaled):
    """Compute (values * size - center) * scale in place, as `transform.transformed`."""
    # separate loops, so that no target fuses a product and a difference
    for l in range(len(values)):
        values[l] = values[l] * size
    if centered:
        for l in range(len(values)):
            values[l] = values[l] - center[l]
    if scaled:
        for l in range(len(values)):
            values[l] = values[l] * scale[l]


@compiled
def _round(values, factor, constant, whole, bound, q):
    """Round values * factor and the constant to whole numbers within the bound.

    The bound applies to the sum of squares of all entries if `whole`, otherwise of the
    entries without the constant. If the rounded entries exceed the bound, they are
    truncated. If the truncated entries exceed it too, they are zero.
    """
    d = len(values)
    append = len(q) > d
    total = np.int64(0)
    for l in range(d):
        rounded = (values[l] * factor + ROUNDING_SHIFT) - ROUNDING_SHIFT
        q[l] = np.int32(rounded)
        # the stored value, so that the bound also holds for an entry that wrapped
        stored = np.int64(q[l])
        total += stored * stored
    if append:
        q[d] = np.int64((constant + ROUNDING_SHIFT) - ROUNDING_SHIFT)
        total += np.int64(q[d]) * np.int64(q[d]) if whole else 0
    if total <= bound:
        return
    total = np.int64(0)
    for l in range(d):
        q[l] = np.int32(values[l] * factor)
        stored = np.int64(q[l])
        total += stored * stored
    if append:
        q[d] = np.int64(constant)
        total += np.int64(q[d]) * np.int64(q[d]) if whole else 0
    if total > bound:
        q[:] = 0
        if append and not whole:
            q[d] = np.int64(constant)
