"""What may be asked of the private rows: one class a statistic, all of it in integers.

A row's statistic is an outer product of two integer vectors, l qᵀ, or a weighted square
w q qᵀ. A class gives what one integer stands for (`unit`), how far one row can move the
sum, in these units (`squared_sensitivity`, a whole number), and the vectors
(`factors`). `dphead.analysis.definitions` says the same one row at a time in real
numbers, to be read against the papers; proofs/sensitivity.md has the table and the
proofs.

Symbols: x a row after its transform, y its class, R or C the clip norm, b the appended
constant, q the row's integers, l its residual's.
"""

from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from math import inf, nextafter, sqrt
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from dphead.privacy.transform import (
    RADIUS,
    IntegerRows,
    RowTransform,
    aim,
    clipped_bound,
    clipped_rows,
    clipped_step,
    direction_rows,
    fits,
    transformed,
    within,
)

Loss = Literal["softmax", "sigmoid", "squared"]
Array = Any  # of numpy, or of jax.numpy where `xp` is that
MOMENT = 2**20  # longest vector of channel moments
COUNT = 2**10  # what a counted row adds: the grid is then fine beside any noise
HESSIAN = 2**6  # largest weight p (1 - p) of a Hessian
PROBABILITY = 2**16  # integers of a probability
POWERS = 2**11  # entries of the table of powers of two
ONE = 2**15  # what the table calls 1
RATE = POWERS * 1.4426950408889634  # of the table's entries, for a power of e
LOWEST = 16 * POWERS - 1  # powers below 2**-16 count as this one
HUGE = 1e100  # a larger weight, or all if none exceeds 1 / HUGE, counts as zero
SQUARED = 2**24  # largest residual of a squared loss, 256 in real numbers
STEEPEST = 1e290  # of scores' units: a larger one times 0 would be no number
WEIGHT = 2**15 - 1  # largest integer weight
WEIGHTS = 2**18  # longest integer weights of a class: scores are then below 2**30


@dataclass(frozen=True, eq=False)
class Params:
    """What the statistic may depend on besides the row: public numbers and releases.

    weights: (width, n_classes), where width counts the appended constant; None for
    statistics that need no head.
    """

    transform: RowTransform = field(default_factory=RowTransform)
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class IntegerWeights:
    """Public weights on a grid.

    w: (n_classes, width) int16; step: what one of them stands for, 0 if all are zero.
    """

    w: np.ndarray
    step: float


def integer_weights(weights: np.ndarray) -> IntegerWeights:
    """Weights (width, n_classes) rounded; those beyond HUGE or not finite count zero.

    The same on every machine: operations on single entries, and sums of integers.
    """
    weights = np.asarray(weights, np.float64).T
    with np.errstate(invalid="ignore"):
        weights = np.where(np.abs(weights) <= HUGE, weights, 0.0)
    largest = float(np.abs(weights).max(initial=0.0))
    if largest < 1 / HUGE:
        return IntegerWeights(np.zeros(weights.shape, np.int16), 0.0)
    parts = np.rint(weights / largest * 2.0**20).astype(np.int64)
    longest = largest * float(np.sqrt(float((parts**2).sum(axis=1).max()))) / 2**20
    room = WEIGHTS - 2 * np.sqrt(weights.shape[1])  # rounding may lengthen them
    step = max(largest / WEIGHT, longest / room)
    return IntegerWeights(np.rint(weights / step).astype(np.int16), step)


@dataclass(frozen=True)
class Query:
    """A sum over rows.

    n_classes: the number of public classes. A row whose label is outside
    0..n_classes - 1 counts zero. kind: "outer" for l qᵀ, "gram" for w q qᵀ. clips: what
    the clip norm bounds. single: square of how far a row that goes or comes can move
    the integer sum, in L2; replaced: how many times as much where another is put in its
    place.
    """

    n_classes: int
    kind: ClassVar[Literal["outer", "gram"]] = "outer"
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "features"
    single: ClassVar[int]
    replaced: ClassVar[int]

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

    y, keep: (k,); keep is False for rows that count zero. weights: of `Params`,
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
        z = xp.matmul(
            self.rows.q.astype(xp.float64), self.weights.w.T.astype(xp.float64)
        )
        rate = self.rows.scale[:, None] * self.weights.step
        return z, xp.minimum(rate, STEEPEST)


def counting(query: Query, rows: IntegerRows, y: Array, used: Array) -> Array:
    """(k,) bool: slots in use whose row is finite and has a class."""
    return used & (rows.scale > 0) & (y >= 0) & (y < query.n_classes)


def one_hot(xp: Any, y: Array, keep: Array, n_classes: int) -> Array:
    """(k, n_classes) int64."""
    same = y.astype(xp.int64)[:, None] == xp.arange(n_classes)[None, :]
    return (same & keep[:, None]).astype(xp.int64)


@cache
def powers_of_two() -> np.ndarray:
    """(POWERS,) int64: ONE * 2**(-i / POWERS), rounded."""
    with localcontext(prec=30):  # decimal arithmetic is the same on every machine
        step = Decimal(2) ** (Decimal(-1) / POWERS)
        table = [int(ONE * step**i + Decimal("0.5")) for i in range(POWERS)]
    return np.array(table, np.int64)


def power(xp: Any, distance: Array, rate: Array) -> Array:
    """ONE * e**-(distance * rate), as int64.

    distance: (k, m) whole numbers >= 0, of scores; rate: (k, 1) what one stands for.
    The exponent is truncated to 1 / POWERS of a power of two.
    """
    table = xp.asarray(powers_of_two())
    exponent = distance * (rate * RATE)
    exponent = xp.minimum(exponent, float(LOWEST)).astype(xp.int64)
    return xp.take(table, exponent % POWERS) >> (exponent // POWERS)


def probabilities(xp: Any, z: Array, rate: Array, loss: Loss) -> Array:
    """Predictions (k, m), as int64 parts of PROBABILITY.

    z: (k, m) scores, whole numbers; rate: (k, 1), what one of them stands for.
    """
    if loss == "softmax":
        e = power(xp, z.max(axis=1, keepdims=True) - z, rate)
        total = e.sum(axis=1, keepdims=True)
        share = e.astype(xp.float64) * (float(PROBABILITY) / total.astype(xp.float64))
        return xp.rint(share).astype(xp.int64)
    if loss == "sigmoid":
        e = power(xp, xp.abs(z), rate)
        larger = ONE * PROBABILITY // (ONE + e)
        return xp.where(z >= 0, larger, PROBABILITY - larger)
    value = xp.clip(z * (rate * float(PROBABILITY)), -float(SQUARED), float(SQUARED))
    return xp.rint(value).astype(xp.int64)


def shortened(xp: Any, residual: Array, factor: Array) -> Array:
    """residual (k, m) * factor (k, 1), no longer than RADIUS, as int64.

    Rounded; truncated towards zero where the sum of squares exceeds RADIUS**2; zero
    where it still does. Guarantee: no sum of squares exceeds RADIUS**2.
    """
    value = residual.astype(xp.float64) * factor
    l = xp.rint(value)
    l = xp.where(fits(l, RADIUS**2), l, xp.trunc(value))
    return xp.where(fits(l, RADIUS**2), l, 0.0).astype(xp.int64)


@dataclass(frozen=True)
class Gradient(Query):
    """Gradient of a linear head's loss, shape (width, n_classes).

    clip = "rows": the row's gradient r xᵀ is clipped to C by its norm ||r|| ||x|| [FC23
    Algorithms 1, 4; TB21; De22]. clip = "features": x is clipped to R instead and the
    loss bounds the residual r [FC23 Algorithm 2].
    """

    # C; features clipped: sqrt(2) rho for softmax, sqrt(m) rho for m sigmoids
    single: ClassVar[int] = RADIUS**4
    replaced: ClassVar[int] = 2**2
    loss: Loss = "softmax"
    clip: Literal["rows", "features"] = "rows"

    def __post_init__(self) -> None:
        if self.loss not in get_args(Loss):
            raise ValueError(
                f"loss must be one of {get_args(Loss)}, got loss={self.loss!r}. "
                "Choose one."
            )
        if self.clip == "features" and self.loss == "squared":
            raise ValueError(
                "a squared loss has no bounded residual, got clip='features', "
                "loss='squared'. Use clip='rows'."
            )

    @property
    def clips(self) -> str:  # type: ignore[override]
        """What `clip_norm` bounds."""
        return self.clip

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """C / RADIUS**2; features clipped: a row's unit times a residual's."""
        if self.clip == "rows":
            return clip_norm / RADIUS**2
        return clipped_step(clip_norm, append) * self._longest() / RADIUS

    def most(self) -> int:
        """A product of two entries."""
        return RADIUS**2

    def no_clip(self, largest_norm: float, params: Params) -> float:
        """The largest norm of a residual times that of a row."""
        if self.clip == "features":
            return largest_norm
        append = params.transform.append
        whole = float(np.hypot(largest_norm, append))
        if self.loss != "squared" or params.weights is None:
            return self._longest() * whole
        columns = np.linalg.norm(params.weights, axis=0)
        return float(np.linalg.norm(columns) * whole + 1) * whole

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The rows, and their residuals times min(1, C / (||r|| ||x||))."""
        z, rate = chunk.scores(xp)
        p = probabilities(xp, z, rate, self.loss)
        r = p - PROBABILITY * one_hot(xp, chunk.y, chunk.keep, self.n_classes)
        r = xp.where(chunk.keep[:, None], r, 0)
        longest = aim(RADIUS**2, self.n_classes)
        if self.clip == "features":
            factor = longest / (self._longest() * PROBABILITY)
            return chunk.rows.q, shortened(xp, r, factor)
        length = xp.sqrt((r * r).sum(axis=1, keepdims=True).astype(xp.float64))
        whole = float(RADIUS**2) / (chunk.clip_norm * PROBABILITY)
        unclipped = chunk.rows.scale[:, None] * whole
        clipped = longest / xp.maximum(length, 1.0)
        return chunk.rows.q, shortened(xp, r, xp.minimum(unclipped, clipped))

    def _longest(self) -> float:
        """Largest norm of a residual whose loss bounds it."""
        return float(np.sqrt(2.0 if self.loss == "softmax" else self.n_classes))


@dataclass(frozen=True)
class Gram(Query):
    """The Gram matrix: sum of x xᵀ, rows clipped to R [FC23 Algorithms 3 and 4]."""

    kind: ClassVar[Literal["outer", "gram"]] = "gram"
    single: ClassVar[int] = RADIUS**4  # rho²
    replaced: ClassVar[int] = 2

    def shape(self, width: int) -> tuple[int, ...]:
        """(width, width)."""
        return (width, width)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """A row's unit, squared."""
        return clipped_step(clip_norm, append) ** 2

    def most(self) -> int:
        """A square of an entry."""
        return RADIUS**2

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The rows, all of weight one."""
        return chunk.rows.q, chunk.keep[:, None].astype(xp.int64)


@dataclass(frozen=True)
class ClassGrams(Gram):
    """Gram matrices of each class, (n_classes, width, width) [FC23 Algorithm 3].

    One label a row: the sensitivity is the Gram matrix's.
    """

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_classes, width, width)."""
        return (self.n_classes, width, width)

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The rows, and their class as weights of zero and one."""
        classes = one_hot(xp, chunk.y, chunk.keep, self.n_classes)
        return chunk.rows.q, classes


@dataclass(frozen=True)
class SigmoidHessians(ClassGrams):
    """Hessians of n_classes one-vs-rest logistic losses [FC23 Algorithm 2].

    The sum of p (1 - p) x xᵀ for each class, all classes jointly.
    """

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """That of a Gram matrix whose largest weight is 1/4."""
        return super().unit(clip_norm, append) / (4 * HESSIAN)

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """sqrt(m) rho² / 4; replaced sqrt(2 m) rho² / 4 (claim H)."""
        single = super().squared_sensitivity(relation, clip_norm, append)
        return self.n_classes * HESSIAN**2 * single

    def most(self) -> int:
        """A square of an entry, weighted."""
        return HESSIAN * RADIUS**2

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The rows, and weights 4 p (1 - p) of HESSIAN (k, n_classes)."""
        p = probabilities(xp, *chunk.scores(xp), "sigmoid")
        part = (p * (PROBABILITY - p)).astype(xp.float64)
        weight = xp.rint(part * (4.0 * HESSIAN / PROBABILITY**2))
        fits = (weight >= 0) & (weight <= float(HESSIAN))
        weight = xp.where(fits, weight, 0.0)
        weight = xp.where(chunk.keep[:, None], weight, 0.0)
        return chunk.rows.q, weight.astype(xp.int64)


@dataclass(frozen=True)
class ClassSums(Query):
    """Class sums: sum of x e_yᵀ, (width, n_classes) [FC23 Algorithm 3's b]."""

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """A row's unit."""
        return clipped_step(clip_norm, append)

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """rho (one label a row); replaced max(2 R, sqrt(2) rho)."""
        if relation != "replace_one":
            return RADIUS**2
        bound, _ = clipped_bound(clip_norm, append)
        return max(4 * bound, 2 * RADIUS**2)

    def most(self) -> int:
        """An entry."""
        return RADIUS

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The rows, and their classes."""
        classes = one_hot(xp, chunk.y, chunk.keep, self.n_classes)
        return chunk.rows.q, classes


@dataclass(frozen=True)
class ClassCounts(Query):
    """Number of rows of each class, shape (n_classes, 1)."""

    clips: ClassVar[Literal["features", "rows", "nothing"]] = "nothing"
    single: ClassVar[int] = COUNT**2  # one row
    replaced: ClassVar[int] = 2  # of two classes

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_classes, 1)."""
        return (self.n_classes, 1)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """A part of a row."""
        return 1 / COUNT

    def most(self) -> int:
        """One row."""
        return COUNT

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The classes, and one row each."""
        classes = one_hot(xp, chunk.y, chunk.keep, self.n_classes)
        return classes, _counted(xp, chunk.keep)


@dataclass(frozen=True)
class CorrectCount(ClassCounts):
    """Number of rows that the weights give their own class, shape (1, 1).

    Rows are not clipped. A tie is not correct.
    """

    replaced: ClassVar[int] = 1  # a row counts 0 or 1

    def shape(self, width: int) -> tuple[int, ...]:
        """(1, 1)."""
        return (1, 1)

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """One where the row's own class has the highest score, and one row each."""
        z, _ = chunk.scores(xp)
        own = one_hot(xp, chunk.y, chunk.keep, self.n_classes) > 0
        others = xp.where(own, -xp.inf, z).max(axis=1)
        correct = xp.where(own, z, -xp.inf).max(axis=1) > others
        correct = (chunk.keep & correct)[:, None]
        return correct.astype(xp.int64), _counted(xp, chunk.keep)


@dataclass(frozen=True)
class ChannelMoment(Query):
    """Means of a row's channels (power 1), or of their squares (2), clipped to C.

    [TB21 Algorithm 2]. A row is n_channels blocks of equal length (channel-major).
    n_channels = 0 means that every feature is its own channel.
    """

    power: Literal[1, 2] = 1
    n_channels: int = 0
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "rows"

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_channels, 1)."""
        return (self.n_channels or width, 1)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """A part of C."""
        return clip_norm / MOMENT

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """C; replaced 2 C, or sqrt(2) C for squares, which are not negative."""
        replaced = 4 if self.power == 1 else 2
        return MOMENT**2 * (replaced if relation == "replace_one" else 1)

    def most(self) -> int:
        """An entry."""
        return MOMENT

    def no_clip(self, largest_norm: float, params: Params) -> float:
        """Means are no longer than the row, and mean squares than its square."""
        return largest_norm**self.power

    def rows(
        self, transform: RowTransform, x: np.ndarray, clip_norm: float
    ) -> IntegerRows:
        """The moments on a grid: sums of integers, divided and clipped."""
        if transform.append:
            raise ValueError(
                "moments are of the features alone, got a transform with "
                f"append={transform.append}. Leave the constant out."
            )
        fine = transformed(transform, x)
        channels = self.n_channels or x.shape[1]
        powers = fine.integers.astype(np.int64) ** self.power
        sums = powers.reshape(len(x), channels, -1).sum(axis=2).astype(np.float64)
        with np.errstate(all="ignore"):
            power = fine.scale if self.power == 1 else fine.scale * fine.scale
            one = power * (channels / x.shape[1])
            largest = np.maximum(np.abs(sums).max(axis=1), 1.0)
            share = sums / largest[:, None]  # within [-1, 1]: no square overflows
            share = np.rint(share * 2.0**20)  # whole numbers, whose squares add exactly
            norm = np.sqrt((share.astype(np.int64) ** 2).sum(axis=1))
            size = one * largest / 2.0**20
            most = aim(MOMENT**2, channels)
            factor = np.minimum(size / (clip_norm / MOMENT), most / np.maximum(norm, 1))
            usable = fine.finite & np.isfinite(factor)
        q = within(share, np.where(usable, factor, 0.0), None, MOMENT**2)
        return IntegerRows(q, np.where(usable, 1.0, 0.0))

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The moments of rows that count."""
        return chunk.rows.q, chunk.keep[:, None].astype(xp.int64)


def _counted(xp: Any, keep: Array) -> Array:
    return COUNT * keep[:, None].astype(xp.int64)


def root(squared: int) -> float:
    """The square root of a whole number, as a float64 that is not below it."""
    value = sqrt(squared)
    while Fraction(value) ** 2 < squared:
        value = nextafter(value, inf)
    return value
