"""What every statistic of the private rows is: a sum over rows, in integers.

A row's part in it is an outer product of two integer vectors, l qᵀ, or a weighted
square w q qᵀ. A class of `Query` (`statistics` has them) gives what one integer stands
for (`unit`), how far one row can move the sum, in these units (`squared_sensitivity`, a
whole number), and the vectors (`factors`).

Symbols: x a row after its transform, y its class or its set of classes, R or C the clip
norm, b the appended constant, q the row's integers, l its residual's.
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
    """What the statistic may depend on besides the row: public numbers and releases.

    weights: (width, n_classes), where width counts the appended constant; None for
    statistics that need no head.
    """

    transform: RowTransform = field(default_factory=RowTransform)
    weights: np.ndarray | None = None


def check_whole(name: str, value: Any, least: int) -> None:
    """ValueError unless a number is Python's own int: those of numpy come round, and a
    sensitivity made of them could be too small.
    """
    if type(value) is not int or value < least:
        raise ValueError(
            f"{name} must be a whole number (int) of at least {least}, got "
            f"{name}={value!r} of {type(value).__name__}. Convert it."
        )


@dataclass(frozen=True)
class Query:
    """A sum over rows.

    n_classes: the number of public classes. A row whose label is outside
    0..n_classes - 1 counts zero. kind: "outer" for l qᵀ, "gram" for w q qᵀ. clips: what
    the clip norm bounds. single: square of how far a row that goes or comes can move
    the integer sum, in L2; replaced: how many times as much where another is put in its
    place. takes_sets: whether that holds of a row with any set of classes too; other
    queries refuse label sets.
    """

    n_classes: int
    kind: ClassVar[Literal["outer", "gram"]] = "outer"
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "features"
    single: ClassVar[int]
    replaced: ClassVar[int]
    takes_sets: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("n_classes", self.n_classes, 1)

    @property
    def symmetric(self) -> bool:
        """Whether the sum is a symmetric matrix (or one a class), and its noise too."""
        return self.kind == "gram"

    @property
    def name(self) -> str:
        """The query's name and settings, as the ledger records it."""
        return repr(self)

    def shape(self, width: int) -> tuple[int, ...]:
        """Shape of the sum, for rows of `width` columns after the transform."""
        return (width, self.n_classes)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """The real number that an integer of the sum stands for."""
        raise NotImplementedError

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """Square of how far one row can move the integer sum, in L2.

        Guarantee: proofs/sensitivity.md, for "zero_out", "add_remove", "replace_one".
        """
        return self.single * (self.replaced if relation == "replace_one" else 1)

    def most(self) -> int:
        """Largest size of an entry that one row adds."""
        raise NotImplementedError

    def no_clip(self, largest_norm: float, params: Params) -> float:
        """A clip norm that clips no row of this norm, for fits without noise."""
        return largest_norm

    def rows(
        self, transform: RowTransform, x: np.ndarray, clip_norm: float
    ) -> IntegerRows:
        """The integers of rows x (k, n_features) float32."""
        if self.clips == "features":
            return clipped_rows(transform, x, clip_norm)
        return direction_rows(transform, x)

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """Integer vectors of each row.

        "outer": (left (k, p), right (k, q)), one of them zero where not keep. "gram":
        (rows (k, width), weights (k, m)), (k, 1) of zeros and ones for one matrix.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows in work, as integers.

    y: as of `Block`. keep: (k,), False for rows that count zero. weights: of `Params`,
    rounded.
    """

    rows: IntegerRows
    y: Array
    keep: Array
    weights: IntegerWeights | None
    clip_norm: float

    def scores(self, xp: Any) -> tuple[Array, Array]:
        """Scores (k, n_classes), whole numbers, and what one of them stands for (k, 1).

        Below 2**30, in float64, which holds each partial sum exactly: the order of the
        additions is nothing.
        """
        assert self.weights is not None
        q = self.rows.q.astype(xp.float64)
        w = self.weights.w.T.astype(xp.float64)
        z = xp.matmul(q, w)
        rate = self.rows.scale[:, None] * self.weights.step
        return z, xp.minimum(rate, MAX_SCORE_RATE)


def counting(query: Query, rows: IntegerRows, y: Array, used: Array) -> Array:
    """(k,) bool: slots in use whose row is finite and `labelled`."""
    return used & (rows.scale > 0) & labelled(query, y)


def labelled(query: Query, y: Array) -> Array:
    """(k,) bool: rows that have a class, or a label set, which may be empty.

    ValueError, by the shape of y alone, for label sets where the query's bound is of
    one class a row, and for those of another number of classes.
    """
    if y.ndim == 1:
        return (y >= 0) & (y < query.n_classes)
    if not query.takes_sets or y.shape[1:] != (query.n_classes,):
        raise ValueError(
            "rows with several classes need a statistic that takes label sets of its "
            f"n_classes, got {query.name} for labels of shape (n, "
            f"{', '.join(map(str, y.shape[1:]))}). Use sigmoid gradients."
        )
    return ((y == 0) | (y == 1)).all(axis=1)


def one_hot(xp: Any, y: Array, keep: Array, n_classes: int) -> Array:
    """(k, n_classes) int64."""
    classes = xp.arange(n_classes)
    same = y.astype(xp.int64)[:, None] == classes[None, :]
    return (same & keep[:, None]).astype(xp.int64)


def targets(xp: Any, chunk: Chunk, n_classes: int) -> Array:
    """(k, n_classes) int64: what a row's predictions are to be, in rows that count."""
    if chunk.y.ndim == 1:
        return one_hot(xp, chunk.y, chunk.keep, n_classes)
    return chunk.y.astype(xp.int64)


def root(squared: int) -> float:
    """The square root of a whole number, as a float64 that is not below it."""
    value = sqrt(squared)
    while Fraction(value) ** 2 < squared:
        value = nextafter(value, inf)
    return value
