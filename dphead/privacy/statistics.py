"""What may be asked of the private rows: one class a statistic, all of it in integers.

Each says how far one row can move its sum; proofs/sensitivity.md has the table and the
proofs, and the symbols are those of `query`. `tests/definitions.py` says the
same one row at a time in real numbers, to be read against the papers.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dphead.privacy.predictions import (
    LOSSES,
    PROBABILITY_SCALE,
    Array,
    Loss,
    probabilities,
    shortened,
    unknown,
)
from dphead.privacy.query import Chunk, Params, Query, check_whole, one_hot, targets
from dphead.privacy.transform import (
    RADIUS,
    IntegerRows,
    RowTransform,
    aim,
    clipped_bound,
    clipped_step,
    transformed,
    within,
)

# Grids: what stands for one, as in `predictions`; each was chosen, not measured.
MOMENT_RADIUS = 2**20  # longest vector of channel moments
COUNT_SCALE = 2**10  # a counted row: the grid is then fine beside any noise
HESSIAN_SCALE = 2**6  # the largest weight p (1 - p) of a Hessian, 1/4


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
        if self.loss not in LOSSES:
            raise unknown(self.loss)
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
        return clipped_step(clip_norm, append) * self.longest_residual() / RADIUS

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
            return self.longest_residual() * whole
        columns = np.linalg.norm(params.weights, axis=0)
        residual = float(np.linalg.norm(columns) * whole + 1)
        return residual * whole

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """The rows, and their residuals times min(1, C / (||r|| ||x||))."""
        z, rate = chunk.scores(xp)
        p = probabilities(xp, z, rate, self.loss)
        r = p - PROBABILITY_SCALE * targets(xp, chunk, self.n_classes)
        r = xp.where(chunk.keep[:, None], r, 0)
        longest = aim(RADIUS**2, self.n_classes)
        if self.clip == "features":
            factor = longest / (self.longest_residual() * PROBABILITY_SCALE)
            return chunk.rows.q, shortened(xp, r, factor)
        squared = (r * r).sum(axis=1, keepdims=True)
        length = xp.sqrt(squared.astype(xp.float64))
        whole = float(RADIUS**2) / (chunk.clip_norm * PROBABILITY_SCALE)
        unclipped = chunk.rows.scale[:, None] * whole
        clipped = longest / xp.maximum(length, 1.0)
        factor = xp.minimum(unclipped, clipped)
        return chunk.rows.q, shortened(xp, r, factor)

    def longest_residual(self) -> float:
        """Largest norm of a residual whose loss bounds it; of a squared loss, where
        all weights are zero. ValueError for a loss that is not defined here.
        """
        if self.loss == "softmax":
            return float(np.sqrt(2.0))
        if self.loss not in ("sigmoid", "squared"):
            raise unknown(self.loss)
        return float(np.sqrt(self.n_classes))


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

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
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

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
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

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
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

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
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

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
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

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
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
class ClassCorrectCounts(CorrectCounts):
    """`CorrectCounts` of the rows of each class, shape (n_classes, 2).

    Each row that counts is in one entry: of its own class, correct or not.
    """

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_classes, 2)."""
        return (self.n_classes, 2)

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """The classes, and one row each in one of two columns."""
        columns, row = super().factors(xp, chunk)
        return one_hot(xp, chunk.y, chunk.keep, self.n_classes), columns * row


@dataclass(frozen=True)
class RowCounts(ClassCounts):
    """Number of rows that count, shape (1, 1), whatever their classes.

    Where a row is put in the place of one, both count and the sum stays, or one does.
    """

    replaced: ClassVar[int] = 1
    takes_sets: ClassVar[bool] = True  # a row counts once, of however many classes

    def shape(self, width: int) -> tuple[int, ...]:
        """(1, 1)."""
        return (1, 1)

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """One, and one row each."""
        return chunk.keep[:, None].astype(xp.int64), _counted(xp, chunk.keep)


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

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """The moments of rows that count."""
        return chunk.rows.q, chunk.keep[:, None].astype(xp.int64)


def _counted(xp: Any, keep: Array) -> Array:
    return COUNT_SCALE * keep[:, None].astype(xp.int64)
