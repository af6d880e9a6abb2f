"""A row becomes integers, once and alone: transform, norm, clip, integer inequality.

Numbers of a head's path that are not integers are here and in five places of
`predictions`, `query` and `statistics`: moments, a score's unit, predictions, a
Hessian's weights, residuals' factors. Each operation on a row is one IEEE operation
on one of its numbers, or a sum of integers, which is the same in any order: so a row's
integers are a function of that row and of public numbers, wherever it stands and
whatever stands beside it (proofs/exactness.md has the list). That they are no longer
than the clip is not concluded from that arithmetic: it is checked, in integers.

`dphead.sums.rows_numba` does the same a row at a time; tests hold the two equal.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

# Proved in proofs/exactness.md, "Bit counts".
RADIUS = 4095  # longest integer row or residual: 128 products of entries fit in int32
FINE_BITS = 20  # of a row's largest entry before the clip
# Rows whose largest entry is below count as zeros, so that a power of two can divide.
SMALLEST_ENTRY = 2.0**-900
MAX_FEATURES = 2**22  # columns whose squares of FINE_BITS add up in int64


@dataclass(frozen=True, eq=False)
class RowTransform:
    """A map applied to each row on its own, before the clip.

    In this order: divide by the norm (`unit_norm`); subtract `center` (n_features,);
    multiply by `scale` (n_features,); divide by the norm again (`unit_norm` with a
    centre); after the clip, append the constant `append` (0: nothing). It may depend on
    public numbers and earlier releases only. Its arrays are read-only copies: rows that
    it made may be kept, and must stay the rows that it makes.
    """

    unit_norm: bool = False
    center: np.ndarray | None = None
    scale: np.ndarray | None = None
    append: float = 0.0

    def __post_init__(self) -> None:
        known = isinstance(self.append, float | int)
        if not (known and (self.append == 0 or 1e-6 <= abs(self.append) <= 1e6)):
            raise ValueError(
                "append must be a Python float, 0 or of a size in [1e-6, 1e6], got "
                f"append={self.append!r}. Rescale it."
            )
        for name in ("center", "scale"):
            values = getattr(self, name)
            if values is not None:
                own = np.array(values)
                if own.dtype.kind not in "fiu":
                    raise ValueError(
                        f"{name} must be an array of numbers, got dtype={own.dtype}. "
                        "Convert it."
                    )
                own.flags.writeable = False
                object.__setattr__(self, name, own)  # the class is frozen

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and unpickled transforms are made, and checked, like this one."""
        return type(self), (self.unit_norm, self.center, self.scale, self.append)

    def width(self, n_features: int) -> int:
        """Number of columns after the transform. ValueError if it cannot be applied."""
        for name, values in (("center", self.center), ("scale", self.scale)):
            if values is not None and np.shape(values) != (n_features,):
                raise ValueError(
                    f"{name} must have a number for each feature, got shape "
                    f"{np.shape(values)} for {n_features=}. "
                    "This is a defect in the solver."
                )
        if n_features > MAX_FEATURES:
            raise ValueError(
                f"rows must have at most {MAX_FEATURES} features, got {n_features=}. "
                "Squares of more could overflow: leave some out."
            )
        return n_features + (1 if self.append else 0)

    def equals(self, other: "RowTransform") -> bool:
        """Whether it is the same map: of the same type, with the same numbers."""
        own = (type(self), self.unit_norm, self.append)
        if own != (type(other), other.unit_norm, other.append):
            return False
        pairs: Any = ((self.center, other.center), (self.scale, other.scale))
        return all(np.array_equal(a, b) for a, b in pairs)


@dataclass(frozen=True)
class FineRows:
    """Rows as integers times a number for each row, before the clip.

    integers: (k, d) float64 whole numbers of at most 2**FINE_BITS. scale: (k,) float64;
    a row is integers * scale. squared: (k,) int64, exact sums of squares of integers.
    finite: (k,) bool; a row that is not is all zeros and counts zero.
    """

    integers: np.ndarray
    scale: np.ndarray
    squared: np.ndarray
    finite: np.ndarray

    def norm(self) -> np.ndarray:
        """(k,) float64."""
        return self.scale * np.sqrt(self.squared)


@dataclass(frozen=True)
class IntegerRows:
    """Rows on the grid.

    q: (k, width) whole numbers; scale: (k,) float64, what one of them stands for, 0 for
    a row that counts zero (then q is 0 as well).
    """

    q: np.ndarray
    scale: np.ndarray


def fine(values: np.ndarray) -> FineRows:
    """Rows (k, d) float64 rounded to FINE_BITS bits of their largest entry."""
    largest = np.abs(values).max(axis=1, initial=0.0)
    finite = np.isfinite(largest)
    known = finite & (largest >= SMALLEST_ENTRY)
    size = np.where(known, largest, 1.0)
    _, exponent = np.frexp(size)
    # a power of two: dividing by it is exact
    step = np.ldexp(1.0, exponent - FINE_BITS)
    values = np.where(known[:, None], values, 0.0)
    integers = np.rint(values / step[:, None])
    squares = integers.astype(np.int64) ** 2
    squared = squares.sum(axis=1)
    return FineRows(integers, step, squared, finite)


def transformed(transform: RowTransform, x: np.ndarray) -> FineRows:
    """Rows x (k, n_features) float32 after the transform, without the constant."""
    with np.errstate(all="ignore"):
        rows = fine(np.asarray(x, np.float64))
        if transform.unit_norm:
            rows = unit(rows)
        if transform.center is None and transform.scale is None:
            return rows
        values = rows.integers * rows.scale[:, None]
        if transform.center is not None:
            center = np.asarray(transform.center, np.float64)
            values = values - center
        if transform.scale is not None:
            scale = np.asarray(transform.scale, np.float64)
            values = values * scale
        values[~rows.finite] = np.nan
        rows = fine(values)
        if transform.unit_norm and transform.center is not None:
            rows = unit(rows)
        return rows


def unit(rows: FineRows) -> FineRows:
    """The same rows, of norm one; a row of zeros stays one."""
    scale = 1 / np.sqrt(np.maximum(rows.squared, 1))
    return FineRows(rows.integers, scale, rows.squared, rows.finite)


def direction_rows(transform: RowTransform, x: np.ndarray) -> IntegerRows:
    """Each row and its constant, brought to the length RADIUS: for clipped gradients.

    What the row's own length was is in `scale`.
    Guarantee: sum of q**2 <= RADIUS**2 for each row.
    """
    rows = transformed(transform, x)
    b = transform.append
    with np.errstate(all="ignore"):
        norm = rows.norm()
        whole = np.sqrt(norm * norm + b * b)
        width = transform.width(x.shape[1])
        length = aim(RADIUS**2, width)
        scale = np.where(whole > 0, whole / length, 1.0)
        usable = rows.finite & np.isfinite(scale)
        scale = np.where(usable, scale, 1.0)
        factor = np.where(usable, rows.scale / scale, 0.0)
        last = np.where(usable, b / scale, 0.0) if b else None
    q = within(rows.integers, factor, last, RADIUS**2)
    scale = np.where(usable, scale, 0.0)
    return IntegerRows(q.astype(np.int16), scale)


def clipped_rows(
    transform: RowTransform, x: np.ndarray, clip_norm: float
) -> IntegerRows:
    """Each row clipped to the norm R = clip_norm, then its constant b, on one grid.

    The grid's step is sqrt(R**2 + b**2) / RADIUS.
    Guarantee: the sum of q**2 is at most `clipped_bound` without the constant, whose
    entry is the same for all rows; with it at most RADIUS**2.
    """
    rows = transformed(transform, x)
    step = clipped_step(clip_norm, transform.append)
    bound, constant = clipped_bound(clip_norm, transform.append)
    with np.errstate(all="ignore"):
        length = aim(bound, x.shape[1])
        longest = length / np.sqrt(np.maximum(rows.squared, 1))
        factor = np.minimum(rows.scale / step, longest)
        factor = np.where(rows.finite, factor, 0.0)
    q = within(rows.integers, factor, None, bound)
    if transform.append:
        last = np.where(rows.finite, constant, 0)
        q = np.concatenate([q, last[:, None]], axis=1)
    scale = np.where(rows.finite, step, 0.0)
    return IntegerRows(q.astype(np.int16), scale)


def clipped_step(clip_norm: float, append: float) -> float:
    """What one unit of `clipped_rows` stands for."""
    length = np.sqrt(clip_norm * clip_norm + append * append)
    return float(length) / RADIUS


def clipped_bound(clip_norm: float, append: float) -> tuple[int, int]:
    """(bound on a row's sum of squares without the constant, the constant's entry)."""
    step = clipped_step(clip_norm, append)
    constant = int(append / step)  # towards zero
    clipped = int((clip_norm / step) ** 2)
    bound = min(clipped, RADIUS**2 - constant**2)
    return max(bound, 0), constant


def aim(bound: int, width: int) -> float:
    """Length to which rows are brought so that few exceed the bound once rounded.

    Rounding adds width / 12 to a squared norm on average, with a standard deviation of
    length / sqrt(3); this leaves three of them. What still exceeds it is truncated.
    """
    radius = float(np.sqrt(bound))
    rounding = width / (16 * max(radius, 1))
    return max(radius - 1 - rounding, 0.0)


def within(
    integers: np.ndarray, factor: np.ndarray, last: np.ndarray | None, bound: int
) -> np.ndarray:
    """integers * factor (k,), and the column `last`, as whole numbers (k, width).

    Rounded; truncated towards zero where the sum of squares exceeds the bound; zero
    where it still does. Guarantee: no row's sum of squares exceeds the bound.
    """
    values = integers * factor[:, None]
    if last is not None:
        values = np.concatenate([values, last[:, None]], axis=1)
    q = np.rint(values)
    q = np.where(fits(q, bound), q, np.trunc(values))
    q = np.where(fits(q, bound), q, 0.0)
    return q.astype(np.int64)


def fits(q: Any, bound: int) -> Any:
    """(k, 1) bool: whether the sum of squares of whole numbers q (k, w) is in the
    bound.

    A float64 sum of squares is exact up to 2**53, and rounding takes no larger one, nor
    what is not a number, below the bound.
    """
    squared = (q * q).sum(axis=1, keepdims=True)
    return squared <= float(bound)
