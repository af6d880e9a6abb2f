"""What may be asked of the private rows: one class a statistic, all of it in integers.

A row's statistic is an outer product of two integer vectors, l qᵀ, or a weighted square
w q qᵀ. A class gives what one integer stands for (`unit`), how far one row can move the
sum, in these units (`squared_sensitivity`, a whole number), and the vectors
(`factors`). `dphead.analysis.definitions` says the same one row at a time in real
numbers, to be read against the papers; proofs/sensitivity.md has the table and the
proofs.

Symbols: x a row after its transform, y its class or its set of classes, R or C the clip
norm, b the appended constant, q the row's integers, l its residual's.
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
# Grids: what stands for one. The finer, the less rounding and the longer the integers,
# whose bit counts proofs/exactness.md adds up; each was chosen, not measured.
MOMENT_RADIUS = 2**20  # longest vector of channel moments
COUNT_SCALE = 2**10  # a counted row: the grid is then fine beside any noise
HESSIAN_SCALE = 2**6  # the largest weight p (1 - p) of a Hessian, 1/4
PROBABILITY_SCALE = 2**16  # a probability of one
POWER_TABLE_SIZE = 2**11  # entries of the table of powers of two
POWER_SCALE = 2**15  # what the table calls one
POWERS_PER_NAT = POWER_TABLE_SIZE * 1.4426950408889634  # times log2(e): entries
MAX_POWER = 16 * POWER_TABLE_SIZE - 1  # powers below 2**-16 count as this one
# Bounds (proofs/exactness.md).
MAX_WEIGHT = 1e100  # above, a weight counts as zero; all do if none reaches 1e-100
MAX_SQUARED_RESIDUAL = 2**24  # of a squared loss, 256 in real numbers
MAX_SCORE_RATE = 1e290  # of scores' units: a larger one times 0 would be no number
MAX_INTEGER_WEIGHT = 2**15 - 1  # int16
MAX_WEIGHT_NORM = 2**18  # of a class's integer weights: scores are then below 2**30


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
    """Weights (width, n_classes) rounded; beyond MAX_WEIGHT or not finite is zero.

    The same on every machine: operations on single entries, and sums of integers.
    """
    weights = np.asarray(weights, np.float64).T
    with np.errstate(invalid="ignore"):
        weights = np.where(np.abs(weights) <= MAX_WEIGHT, weights, 0.0)
    largest = float(np.abs(weights).max(initial=0.0))
    if largest < 1 / MAX_WEIGHT:
        zeros = np.zeros(weights.shape, np.int16)
        return IntegerWeights(zeros, 0.0)
    parts = np.rint(weights / largest * 2.0**20).astype(np.int64)
    squared = (parts**2).sum(axis=1)
    length = float(np.sqrt(float(squared.max())))
    longest = largest * length / 2**20
    room = MAX_WEIGHT_NORM - 2 * np.sqrt(weights.shape[1])  # rounding may lengthen them
    step = max(largest / MAX_INTEGER_WEIGHT, longest / room)
    w = np.rint(weights / step)
    return IntegerWeights(w.astype(np.int16), step)


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


@cache
def powers_of_two() -> np.ndarray:
    """(POWER_TABLE_SIZE,) int64: POWER_SCALE * 2**(-i / POWER_TABLE_SIZE), rounded."""
    with localcontext(prec=30):  # decimal arithmetic is the same on every machine
        step = Decimal(2) ** (Decimal(-1) / POWER_TABLE_SIZE)
        half = Decimal("0.5")
        powers = (POWER_SCALE * step**i for i in range(POWER_TABLE_SIZE))
        table = [int(value + half) for value in powers]
    return np.array(table, np.int64)


def power(xp: Any, distance: Array, rate: Array) -> Array:
    """POWER_SCALE * e**-(distance * rate), as int64.

    distance: (k, m) whole numbers >= 0, of scores; rate: (k, 1) what one stands for.
    The exponent is truncated to 1 / POWER_TABLE_SIZE of a power of two.
    """
    table = xp.asarray(powers_of_two())
    exponent = distance * (rate * POWERS_PER_NAT)
    exponent = xp.minimum(exponent, float(MAX_POWER)).astype(xp.int64)
    return xp.take(table, exponent % POWER_TABLE_SIZE) >> (exponent // POWER_TABLE_SIZE)


def probabilities(xp: Any, z: Array, rate: Array, loss: Loss) -> Array:
    """Predictions (k, m), as int64 parts of PROBABILITY_SCALE.

    z: (k, m) scores, whole numbers; rate: (k, 1), what one of them stands for.
    """
    if loss == "softmax":
        distance = z.max(axis=1, keepdims=True) - z
        e = power(xp, distance, rate)
        total = e.sum(axis=1, keepdims=True)
        one = float(PROBABILITY_SCALE) / total.astype(xp.float64)
        share = e.astype(xp.float64) * one
        return xp.rint(share).astype(xp.int64)
    if loss == "sigmoid":
        e = power(xp, xp.abs(z), rate)
        larger = POWER_SCALE * PROBABILITY_SCALE // (POWER_SCALE + e)
        return xp.where(z >= 0, larger, PROBABILITY_SCALE - larger)
    most = float(MAX_SQUARED_RESIDUAL)
    value = xp.clip(z * (rate * float(PROBABILITY_SCALE)), -most, most)
    return xp.rint(value).astype(xp.int64)


def shortened(xp: Any, residual: Array, factor: Array) -> Array:
    """residual (k, m) * factor (k, 1), no longer than RADIUS, as int64.

    Rounded; truncated towards zero where the sum of squares exceeds RADIUS**2; zero
    where it still does. Guarantee: no sum of squares exceeds RADIUS**2.
    """
    value = residual.astype(xp.float64) * factor
    l = xp.rint(value)
    l = xp.where(fits(l, RADIUS**2), l, xp.trunc(value))
    l = xp.where(fits(l, RADIUS**2), l, 0.0)
    return l.astype(xp.int64)


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
        super().__post_init__()
        if self.clip not in ("rows", "features"):
            raise ValueError(
                f"clip must be rows or features, got clip={self.clip!r}. Choose one."
            )
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

    @property
    def takes_sets(self) -> bool:  # type: ignore[override]
        """A sigmoid's prediction is of its class alone."""
        return self.loss == "sigmoid"

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
        residual = float(np.linalg.norm(columns) * whole + 1)
        return residual * whole

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The rows, and their residuals times min(1, C / (||r|| ||x||))."""
        z, rate = chunk.scores(xp)
        p = probabilities(xp, z, rate, self.loss)
        r = p - PROBABILITY_SCALE * targets(xp, chunk, self.n_classes)
        r = xp.where(chunk.keep[:, None], r, 0)
        longest = aim(RADIUS**2, self.n_classes)
        if self.clip == "features":
            factor = longest / (self._longest() * PROBABILITY_SCALE)
            return chunk.rows.q, shortened(xp, r, factor)
        squared = (r * r).sum(axis=1, keepdims=True)
        length = xp.sqrt(squared.astype(xp.float64))
        whole = float(RADIUS**2) / (chunk.clip_norm * PROBABILITY_SCALE)
        unclipped = chunk.rows.scale[:, None] * whole
        clipped = longest / xp.maximum(length, 1.0)
        factor = xp.minimum(unclipped, clipped)
        return chunk.rows.q, shortened(xp, r, factor)

    def _longest(self) -> float:
        """Largest norm of a residual whose loss bounds it."""
        squared = 2.0 if self.loss == "softmax" else self.n_classes
        return float(np.sqrt(squared))


@dataclass(frozen=True)
class Gram(Query):
    """The Gram matrix: sum of x xᵀ, rows clipped to R [FC23 Algorithms 3 and 4]."""

    kind: ClassVar[Literal["outer", "gram"]] = "gram"
    single: ClassVar[int] = RADIUS**4  # rho²
    replaced: ClassVar[int] = 2
    takes_sets: ClassVar[bool] = True  # no label is in it

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

    takes_sets: ClassVar[bool] = False

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

    takes_sets: ClassVar[bool] = True  # no label is in it

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """That of a Gram matrix whose largest weight is 1/4."""
        return super().unit(clip_norm, append) / (4 * HESSIAN_SCALE)

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """sqrt(m) rho² / 4; replaced sqrt(2 m) rho² / 4 (claim H)."""
        single = super().squared_sensitivity(relation, clip_norm, append)
        return self.n_classes * HESSIAN_SCALE**2 * single

    def most(self) -> int:
        """A square of an entry, weighted."""
        return HESSIAN_SCALE * RADIUS**2

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The rows, and weights 4 p (1 - p) of HESSIAN_SCALE (k, n_classes)."""
        z, rate = chunk.scores(xp)
        p = probabilities(xp, z, rate, "sigmoid")
        part = (p * (PROBABILITY_SCALE - p)).astype(xp.float64)
        unit = 4.0 * HESSIAN_SCALE / PROBABILITY_SCALE**2
        weight = xp.rint(part * unit)
        known = (weight >= 0) & (weight <= float(HESSIAN_SCALE))
        weight = xp.where(known, weight, 0.0)
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
    single: ClassVar[int] = COUNT_SCALE**2  # one row
    replaced: ClassVar[int] = 2  # of two classes

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_classes, 1)."""
        return (self.n_classes, 1)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """A part of a row."""
        return 1 / COUNT_SCALE

    def most(self) -> int:
        """One row."""
        return COUNT_SCALE

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The classes, and one row each."""
        classes = one_hot(xp, chunk.y, chunk.keep, self.n_classes)
        return classes, _counted(xp, chunk.keep)


@dataclass(frozen=True)
class CorrectCounts(ClassCounts):
    """Numbers of rows that the weights give their own class, and that they do not,
    shape (2, 1).

    Rows are not clipped. A tie is not correct. Each row that counts is in one of the
    two, so that their sum is the number of rows that count, and a row that comes or
    goes moves them by no more than it would move one of them; one that is replaced can
    move both.
    """

    def shape(self, width: int) -> tuple[int, ...]:
        """(2, 1)."""
        return (2, 1)

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """One of two, by whether the row's own class has the highest score, and one row
        each.
        """
        z, _ = chunk.scores(xp)
        own = one_hot(xp, chunk.y, chunk.keep, self.n_classes) > 0
        others = xp.where(own, -xp.inf, z).max(axis=1)
        score = xp.where(own, z, -xp.inf).max(axis=1)
        wrong = xp.where(score > others, 0, 1)
        return one_hot(xp, wrong, chunk.keep, 2), _counted(xp, chunk.keep)


@dataclass(frozen=True)
class ChannelMoment(Query):
    """Means of a row's channels (power 1), or of their squares (2), clipped to C.

    [TB21 Algorithm 2]. A row is n_channels blocks of equal length (channel-major).
    n_channels = 0 means that every feature is its own channel.
    """

    power: Literal[1, 2] = 1
    n_channels: int = 0
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "rows"
    takes_sets: ClassVar[bool] = True  # no label is in it

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("power", self.power, 1)
        check_whole("n_channels", self.n_channels, 0)
        if self.power > 2:
            raise ValueError(
                "moments are means or means of squares, got "
                f"power={self.power}. Use 1 or 2."
            )

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_channels, 1)."""
        return (self.n_channels or width, 1)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """A part of C."""
        return clip_norm / MOMENT_RADIUS

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """C; replaced 2 C, or sqrt(2) C for squares, which are not negative."""
        replaced = 4 if self.power == 1 else 2
        return MOMENT_RADIUS**2 * (replaced if relation == "replace_one" else 1)

    def most(self) -> int:
        """An entry."""
        return MOMENT_RADIUS

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
        sums = powers.reshape(len(x), channels, -1).sum(axis=2)
        sums = sums.astype(np.float64)
        with np.errstate(all="ignore"):
            power = fine.scale if self.power == 1 else fine.scale * fine.scale
            one = power * (channels / x.shape[1])
            largest = np.maximum(np.abs(sums).max(axis=1), 1.0)
            share = sums / largest[:, None]  # within [-1, 1]: no square overflows
            share = np.rint(share * 2.0**20)  # whole numbers, whose squares add exactly
            squared = (share.astype(np.int64) ** 2).sum(axis=1)
            norm = np.sqrt(squared)
            size = one * largest / 2.0**20
            most = aim(MOMENT_RADIUS**2, channels)
            unclipped = size / (clip_norm / MOMENT_RADIUS)
            clipped = most / np.maximum(norm, 1)
            factor = np.minimum(unclipped, clipped)
            usable = fine.finite & np.isfinite(factor)
        factor = np.where(usable, factor, 0.0)
        q = within(share, factor, None, MOMENT_RADIUS**2)
        return IntegerRows(q, np.where(usable, 1.0, 0.0))

    def factors(self, xp: Any, chunk: "Chunk") -> tuple[Array, Array]:
        """The moments of rows that count."""
        return chunk.rows.q, chunk.keep[:, None].astype(xp.int64)


def _counted(xp: Any, keep: Array) -> Array:
    return COUNT_SCALE * keep[:, None].astype(xp.int64)


def root(squared: int) -> float:
    """The square root of a whole number, as a float64 that is not below it."""
    value = sqrt(squared)
    while Fraction(value) ** 2 < squared:
        value = nextafter(value, inf)
    return value
