"""Define the form of every statistic of private rows: an integer sum over rows.

In a head's statistic, each row contributes an outer product l qᵀ of two integer
vectors, or a weighted square w q qᵀ. A subclass of `Statistic` (see `statistics`)
defines three things:

- `unit`: the real value of one integer unit of the sum.
- `sensitivity_sq`: the squared distance by which one row can move the sum, in these
  units, as a whole number.
- `factors`: the integer vectors of each row.

Symbols: x is a row after its transform. y is its class or its set of classes. R or C is
the clip norm and b the appended constant. rho is sqrt(R**2 + b**2). q holds the row's
integers, and l those of its residual or class.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, nextafter, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from dphead.privacy.predictions import MAX_SCORE_RATE, Array, IntegerWeights
from dphead.privacy.transform import (
    IntegerRows,
    RowTransform,
    clipped_rows,
    direction_rows,
)


@dataclass(frozen=True, eq=False)
class Params:
    """Hold the public numbers and earlier releases used by a statistic.

    Parameters
    ----------
    transform : RowTransform
        The map applied to each row before the clip. The default changes nothing.
    weights : ndarray of shape (width, n_classes) or (n_weights,), or None, default None
        Weights of a head, where width counts the appended constant, or the flat weights
        of a network. None for statistics that need no weights.
    """

    transform: RowTransform = field(default_factory=RowTransform)
    weights: np.ndarray | None = None


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless `value` is a Python int of at least `least`.

    NumPy integers are refused: an overflow would make the sensitivity too small.
    """
    # `type` also refuses bool, a subclass of int.
    if type(value) is not int or value < least:
        raise ValueError(
            f"{name} must be a Python int of at least {least}, got {value!r} of type "
            f"{type(value).__name__}. Convert it with int(), or use a larger number."
        )


@dataclass(frozen=True)
class Statistic:
    """Describe one statistic: a sum over rows, in integers.

    Parameters
    ----------
    n_classes : int
        Number of public classes. A row with a label outside 0..n_classes - 1 adds zero.

    Attributes
    ----------
    kind : {"outer", "gram"}
        Whether a row contributes l qᵀ or w q qᵀ.
    clips : {"features", "rows", "nothing"}
        What the clip norm bounds: a row's features, its contribution ("rows"), or
        nothing.
    axes : tuple of str or int
        Lengths of the sum's axes: "width", "n_classes" or a number.
    row_sq : int
        Squared sensitivity if a row is zeroed out, added or removed.
    replace_factor : int
        Factor on `row_sq` under replace-one.
    max_entry : int
        Largest absolute contribution of a row to an entry of the sum.
    takes_sets : bool
        Whether these bounds also hold for a row with any set of classes. Other
        statistics refuse label sets.
    """

    n_classes: int
    kind: ClassVar[Literal["outer", "gram"]] = "outer"
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "features"
    axes: ClassVar[tuple[Any, ...]] = ("width", "n_classes")
    row_sq: ClassVar[int]
    replace_factor: ClassVar[int]
    max_entry: ClassVar[int]
    takes_sets: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("n_classes", self.n_classes, 1)

    @property
    def symmetric(self) -> bool:
        """Return whether the sum, and so its noise, consists of symmetric matrices."""
        return self.kind == "gram"

    @property
    def name(self) -> str:
        """Return the statistic's name and settings for the ledger."""
        return repr(self)

    def shape(self, width: int) -> tuple[int, ...]:
        """Return the shape of the sum for transformed rows of `width` columns."""
        lengths: dict[Any, Any] = {"width": width, "n_classes": self.n_classes}
        return tuple(lengths.get(axis, axis) for axis in self.axes)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the real value of one integer unit of the sum."""
        raise NotImplementedError

    def sensitivity_sq(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """Return the squared L2 distance by which one row can move the integer sum.

        Parameters
        ----------
        relation : {"zero_out", "add_remove", "replace_one"}
            The neighboring relation.
        clip_norm : float
            Clip norm of the rows (R) or of the contributions (C). `clips` selects
            which.
        append : float, default 0.0
            The constant b appended to each row.

        Returns
        -------
        int
            The squared sensitivity, in units of the sum.

        Guarantee
        ---------
        The value bounds the squared distance under `relation` (proofs/sensitivity.md).
        """
        # One row's contribution, or the difference of two (proofs/sensitivity.md).
        return self.row_sq * (self.replace_factor if relation == "replace_one" else 1)

    def unclipped(self, largest_norm: float, params: Params) -> float:
        """Return a positive clip norm that clips no row, for fits without noise."""
        # a unit of 0 would divide by zero
        return max(self.no_clip(largest_norm, params), 1e-100)

    def no_clip(self, largest_norm: float, params: Params) -> float:
        """Return an upper bound on the norms of the vectors that this statistic clips.

        `largest_norm` is the largest norm of a transformed row.
        """
        return largest_norm

    def rows(
        self, transform: RowTransform, x: np.ndarray, clip_norm: float
    ) -> IntegerRows:
        """Return rows x (k, n_features) float32 as integers on their grid."""
        # Gradients and scores need a row's direction. `factors` clips gradients.
        if self.clips == "features":
            return clipped_rows(transform, x, clip_norm)
        return direction_rows(transform, x)

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """Return the integer vectors of each row.

        For "outer": left (k, p) and right (k, q). One of them is zero in rows where
        `chunk.keep` is False. For "gram": the rows (k, width) and their weights (k, m),
        which are zeros and ones of shape (k, 1) for a single matrix.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Chunk:
    """Hold a chunk of rows as integers.

    Parameters
    ----------
    rows : IntegerRows
        The rows as integers (`Statistic.rows`).
    y : array
        Labels, as in `Block`.
    keep : array of bool, shape (k,)
        False for rows that add zero to every sum.
    weights : IntegerWeights or None
        The weights of `Params`, rounded.
    clip_norm : float
        Clip norm of the rows (R) or of the contributions (C).
    """

    rows: IntegerRows
    y: Array
    keep: Array
    weights: IntegerWeights | None
    clip_norm: float

    def scores(self, xp: Any) -> tuple[Array, Array]:
        """Return integer scores (k, n_classes), and their unit's real value (k, 1).

        Scores are below 2**30. float64 holds each partial sum exactly, so the order of
        additions does not matter.
        """
        assert self.weights is not None
        # Whole numbers below 2**53: a library's matrix product is exact here.
        q = self.rows.q.astype(xp.float64)
        w = self.weights.w.T.astype(xp.float64)
        z = xp.matmul(q, w)
        rate = self.rows.scale[:, None] * self.weights.step
        # A rate of infinity times a score of 0 would be NaN.
        return z, xp.minimum(rate, MAX_SCORE_RATE)


def counting(statistic: Statistic, rows: IntegerRows, y: Array, used: Array) -> Array:
    """Return (k,) bool: True where `used` holds, and row and label are valid."""
    # scale is 0 for a row that is not finite, or is too long to square.
    return used & (rows.scale > 0) & labeled(statistic, y)


def labeled(statistic: Statistic, y: Array) -> Array:
    """Return (k,) bool: True for rows with a valid class or a valid label set.

    An empty label set is valid.

    Raises
    ------
    ValueError
        If `y` has label sets but the statistic takes one class per row, or if the label
        sets have a different number of classes. The check uses the shape of `y` only.
    """
    # A row with a label outside the declared classes adds zero and raises no error.
    if y.ndim == 1:
        return (y >= 0) & (y < statistic.n_classes)
    # Use shapes only: an error must not depend on a row's value.
    if not statistic.takes_sets:
        raise ValueError(
            f"{statistic.name} takes one class per row, got label sets of {y.shape[1]} "
            "classes. Use the sigmoid loss, or pass one class per row."
        )
    if y.shape[1:] != (statistic.n_classes,):
        found = ", ".join(map(str, y.shape[1:]))
        raise ValueError(
            f"Label sets must have shape (k, {statistic.n_classes}), got (k, {found}). "
            "Pass one column for each class."
        )
    return ((y == 0) | (y == 1)).all(axis=1)


def one_hot(xp: Any, y: Array, keep: Array, n_classes: int) -> Array:
    """Return each row's class as (k, n_classes) zeros and ones, int64.

    A row where `keep` is False is all zeros.
    """
    classes = xp.arange(n_classes)
    # Compare every class for every row, so that the work does not depend on labels.
    # A label that is no class equals none of them.
    same = y.astype(xp.int64)[:, None] == classes[None, :]
    return (same & keep[:, None]).astype(xp.int64)


def targets(xp: Any, chunk: Chunk, n_classes: int) -> Array:
    """Return each row's class or label set as (k, n_classes) int64.

    A class becomes zeros and a one, or only zeros where `chunk.keep` is False. A label
    set stays as it is, even if it is invalid.
    """
    if chunk.y.ndim == 1:
        return one_hot(xp, chunk.y, chunk.keep, n_classes)
    return chunk.y.astype(xp.int64)


def root(squared: int) -> float:
    """Return a float64 upper bound on the square root of a whole number."""
    value = sqrt(squared)
    # sqrt rounds to nearest, and a root too small would make the noise too small.
    while Fraction(value) ** 2 < squared:
        value = nextafter(value, inf)
    return value
