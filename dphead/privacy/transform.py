"""Turn rows into integers, one by one: transform, norm, clip and an exact check.

All sums of a head are integer sums. From the transform to the sum, numbers that are not
whole occur only here and in five places of `loss`, `predictions`, `statistic_base` and
`statistics`: moments, a score's unit, predictions, a Hessian's weights and the factors
of residuals.

Each operation on a row is one IEEE operation on one number, or a maximum or a sum of
whole numbers, which is the same in any order. A row's integers are therefore a function
of that row and of public numbers, not of its position or of other rows
(proofs/exactness.md has the list).

The arithmetic does not prove that the integers are within the clip norm. An integer
check proves the bound.

`dphead/sums/kernels/rows.c` is a second implementation for one row at a time, and tests
compare the two.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

# Proved in proofs/exactness.md, "Bit counts".
# Largest norm of an integer row or residual, except of channel moments: the sum of 128
# products of entries fits in int32.
RADIUS = 4095
FINE_BITS = 20  # bits of a row's largest entry before the clip
# Rows with all entries below this become zeros, so that `fine` divides by a power of
# two that does not underflow.
SMALLEST_ENTRY = 2.0**-900
_MAX_FEATURES = 2**22  # int64 holds the sum of this many squares of FINE_BITS integers


@dataclass(frozen=True, eq=False)
class RowTransform:
    """Map each row on its own, before the clip.

    The order is: divide by the norm (`unit_norm`), subtract `center`, multiply by
    `scale`, divide by the norm again (if `unit_norm` and `center` are set), append the
    constant `append`. If features are clipped, the constant is appended after the clip.

    Parameters
    ----------
    unit_norm : bool, default False
        Whether to divide each row by its Euclidean norm.
    center : ndarray of shape (n_features,), or None, default None
        Vector to subtract.
    scale : ndarray of shape (n_features,), or None, default None
        Factor on each feature.
    append : float, default 0.0
        Constant appended to each row; 0 for none. Otherwise its absolute value must be
        in [1e-6, 1e6].

    Raises
    ------
    ValueError
        If `append` is not 0 or a Python number in this range. If `center` or `scale` is
        not an array of numbers.

    Guarantee
    ---------
    The caller must ensure that `center`, `scale` and `append` are public or come from
    earlier releases. The arrays are read-only copies, because sums may keep transformed
    rows.
    """

    unit_norm: bool = False
    center: np.ndarray | None = None
    scale: np.ndarray | None = None
    append: float = 0.0

    def __post_init__(self) -> None:
        # A huge constant would leave the row no bits of the grid. A tiny one gets none.
        known = isinstance(self.append, float | int)
        if not (known and (self.append == 0 or 1e-6 <= abs(self.append) <= 1e6)):
            raise ValueError(
                "append must be a Python float that is 0 or has an absolute value in "
                f"[1e-6, 1e6], got {self.append!r}. Use 0 for no constant."
            )
        for name in ("center", "scale"):
            values = getattr(self, name)
            if values is not None:
                # A copy: the caller may change its own array later.
                own = np.array(values)
                if own.dtype.kind not in "fiu":
                    raise ValueError(
                        f"{name} must be an array of real numbers, got {own.dtype}. "
                        f"Use np.asarray({name}, dtype=float)."
                    )
                own.flags.writeable = False
                object.__setattr__(self, name, own)  # the class is frozen

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and unpickle through the constructor, which checks the values."""
        return type(self), (self.unit_norm, self.center, self.scale, self.append)

    def width(self, n_features: int) -> int:
        """Return the number of columns after the transform.

        Raises ValueError if the transform cannot be applied to `n_features` features.
        """
        for name, values in (("center", self.center), ("scale", self.scale)):
            if values is not None and np.shape(values) != (n_features,):
                raise ValueError(
                    f"Internal error: {name} has shape {np.shape(values)} for "
                    f"{n_features} features. Please report it."
                )
        # 2**22 squares of 20-bit integers stay below 2**62.
        if n_features > _MAX_FEATURES:
            raise ValueError(
                f"Rows can have at most {_MAX_FEATURES} features, got {n_features}. "
                "With more, a sum of squares could overflow. Use fewer features."
            )
        return n_features + (1 if self.append else 0)

    def equals(self, other: "RowTransform") -> bool:
        """Return whether `other` is the same map, with the same type and numbers."""
        own = (type(self), self.unit_norm, self.append)
        if own != (type(other), other.unit_norm, other.append):
            return False
        pairs: Any = ((self.center, other.center), (self.scale, other.scale))
        return all(np.array_equal(a, b) for a, b in pairs)


@dataclass(frozen=True)
class FineRows:
    """Hold rows as integers times one number per row, before the clip.

    Parameters
    ----------
    integers : ndarray of float64, shape (k, d)
        Whole numbers of at most 2**FINE_BITS in absolute value.
    scale : ndarray of float64, shape (k,)
        A row is integers * scale.
    squared : ndarray of int64, shape (k,)
        Exact sums of squares of the integers.
    finite : ndarray of bool, shape (k,)
        Whether the row is finite. Other rows are zeros and add zero to every sum.
    """

    integers: np.ndarray
    scale: np.ndarray
    squared: np.ndarray
    finite: np.ndarray

    def norm(self) -> np.ndarray:
        """Return the norm of each row, (k,) float64."""
        return self.scale * np.sqrt(self.squared)


@dataclass(frozen=True)
class IntegerRows:
    """Hold rows as integers on their grid.

    Parameters
    ----------
    q : ndarray of shape (k, width)
        Whole numbers.
    scale : ndarray of float64, shape (k,)
        Real value of one unit of q; 1 for channel moments, which do not use it. 0, like
        q, for a row that is not finite or is too long to square.
    """

    q: np.ndarray
    scale: np.ndarray

    def part(self, run: slice) -> "IntegerRows":
        """Return the rows of a slice."""
        return IntegerRows(self.q[run], self.scale[run])


def fine(values: np.ndarray) -> FineRows:
    """Round each row (k, d) to FINE_BITS bits, relative to its largest entry."""
    # A maximum has no rounding, so it does not depend on the row's position.
    largest = np.abs(values).max(axis=1, initial=0.0)
    finite = np.isfinite(largest)
    known = finite & (largest >= SMALLEST_ENTRY)
    size = np.where(known, largest, 1.0)
    _, exponent = np.frexp(size)
    # A power of two, so division is exact. The largest entry then has FINE_BITS bits.
    step = np.ldexp(1.0, exponent - FINE_BITS)
    values = np.where(known[:, None], values, 0.0)
    # Rounding first makes the squared norm a sum of integers, exact in any order.
    integers = np.rint(values / step[:, None])
    squares = integers.astype(np.int64) ** 2
    squared = squares.sum(axis=1)
    return FineRows(integers, step, squared, finite)


def transformed(transform: RowTransform, x: np.ndarray) -> FineRows:
    """Return rows x (k, n_features) float32 transformed, without the constant."""
    with np.errstate(all="ignore"):
        # float32 to float64 is exact.
        rows = fine(np.asarray(x, np.float64))
        if transform.unit_norm:
            rows = _unit(rows)
        if transform.center is None and transform.scale is None:
            return rows
        # Each line is one IEEE operation on one entry (proofs/exactness.md).
        values = rows.integers * rows.scale[:, None]
        if transform.center is not None:
            center = np.asarray(transform.center, np.float64)
            values = values - center
        if transform.scale is not None:
            scale = np.asarray(transform.scale, np.float64)
            values = values * scale
        # Rows that are not finite are zeros, which `center` would move.
        values[~rows.finite] = np.nan
        rows = fine(values)
        if transform.unit_norm and transform.center is not None:
            rows = _unit(rows)
        return rows


def _unit(rows: FineRows) -> FineRows:
    """Return rows divided by their norm. A row of zeros stays zero."""
    # The integers stay; only the row's one float changes.
    scale = 1 / np.sqrt(np.maximum(rows.squared, 1))
    return FineRows(rows.integers, scale, rows.squared, rows.finite)


def direction_rows(transform: RowTransform, x: np.ndarray) -> IntegerRows:
    """Scale each row, with its constant, to a length near RADIUS.

    Parameters
    ----------
    transform : RowTransform
        The map applied first.
    x : ndarray of float32, shape (k, n_features)
        Rows.

    Returns
    -------
    IntegerRows
        Integers q, and a `scale` for each row. q * scale is the row, rounded.

    Guarantee
    ---------
    The sum of q**2 is at most RADIUS**2 for each row.
    """
    rows = transformed(transform, x)
    b = transform.append
    with np.errstate(all="ignore"):
        norm = rows.norm()
        # Length of the row with its constant.
        whole = np.sqrt(norm * norm + b * b)
        width = transform.width(x.shape[1])
        length = aim(RADIUS**2, width)
        scale = np.where(whole > 0, whole / length, 1.0)
        # A norm above 1e154 has no finite square: the row adds zero.
        usable = rows.finite & np.isfinite(scale)
        scale = np.where(usable, scale, 1.0)
        factor = np.where(usable, rows.scale / scale, 0.0)
        last = np.where(usable, b / scale, 0.0) if b else None
    # The check that the proof uses; everything above may be inaccurate.
    q = within(rows.integers, factor, last, RADIUS**2)
    scale = np.where(usable, scale, 0.0)
    return IntegerRows(q.astype(np.int16), scale)


def clipped_rows(
    transform: RowTransform, x: np.ndarray, clip_norm: float
) -> IntegerRows:
    """Clip each row to the norm R = `clip_norm` and append its constant b, on one grid.

    Parameters
    ----------
    transform : RowTransform
        The map applied first.
    x : ndarray of float32, shape (k, n_features)
        Rows.
    clip_norm : float
        The clip norm R.

    Returns
    -------
    IntegerRows
        The step of the grid, and so `scale`, is sqrt(R**2 + b**2) / RADIUS.

    Guarantee
    ---------
    Without the constant, a row's sum of q**2 is at most `clipped_bound`. The constant's
    entry is the same for all used rows. With it, the sum is at most RADIUS**2.
    """
    rows = transformed(transform, x)
    step = clipped_step(clip_norm, transform.append)
    bound, constant = clipped_bound(clip_norm, transform.append)
    with np.errstate(all="ignore"):
        length = aim(bound, x.shape[1])
        longest = length / np.sqrt(np.maximum(rows.squared, 1))
        # The clip: a short row keeps its length, a long one gets R.
        factor = np.minimum(rows.scale / step, longest)
        factor = np.where(rows.finite, factor, 0.0)
    # The constant comes after the check, so that it is equal for all rows.
    q = within(rows.integers, factor, None, bound)
    if transform.append:
        last = np.where(rows.finite, constant, 0)
        q = np.concatenate([q, last[:, None]], axis=1)
    scale = np.where(rows.finite, step, 0.0)
    return IntegerRows(q.astype(np.int16), scale)


def clipped_step(clip_norm: float, append: float) -> float:
    """Return the real value of one unit of `clipped_rows`."""
    # Public numbers only: the grid does not depend on a row.
    length = np.sqrt(clip_norm * clip_norm + append * append)
    return float(length) / RADIUS


def clipped_bound(clip_norm: float, append: float) -> tuple[int, int]:
    """Return the bound on a row's sum of squares, and the constant's entry.

    The bound is for the entries without the constant.
    """
    step = clipped_step(clip_norm, append)
    constant = int(append / step)  # rounds toward zero, to stay within the norm
    clipped = int((clip_norm / step) ** 2)
    bound = min(clipped, RADIUS**2 - constant**2)
    return max(bound, 0), constant


def aim(bound: int, width: int) -> float:
    """Return a target length that few rows exceed after rounding.

    Rounding adds width / 12 to a squared norm on average, with a standard deviation of
    length / sqrt(3). The length leaves room for three deviations. Rows that still
    exceed the bound are truncated.
    """
    radius = float(np.sqrt(bound))
    # Rounding lengthens a row by width / (24 radius) on average, with a deviation of
    # 0.29. So the 1 is room for three deviations.
    rounding = width / (16 * max(radius, 1))
    return max(radius - 1 - rounding, 0.0)


def within(
    integers: np.ndarray, factor: np.ndarray, last: np.ndarray | None, bound: int
) -> np.ndarray:
    """Return integers * factor (k,), and the column `last`, as integers (k, width).

    Entries are rounded. A row is truncated toward zero if its sum of squares exceeds
    the bound, and set to zero if it still does.

    Guarantee
    ---------
    No row's sum of squares exceeds the bound.
    """
    values = integers * factor[:, None]
    if last is not None:
        values = np.concatenate([values, last[:, None]], axis=1)
    q = np.rint(values)
    # Truncation never lengthens a vector that is within the bound.
    q = np.where(fits(q, bound), q, np.trunc(values))
    q = np.where(fits(q, bound), q, 0.0)
    return q.astype(np.int64)


def fits(q: Any, bound: int) -> Any:
    """Return (k, 1) bool: whether each row's sum of squares is at most the bound.

    q (k, w) holds whole numbers. A float64 sum of squares is exact up to 2**53, and
    rounding brings no larger sum below the bound. For a row with NaN it is False.
    """
    # Partial sums of nonnegative numbers never fall, whatever the order.
    squared = (q * q).sum(axis=1, keepdims=True)
    return squared <= float(bound)
