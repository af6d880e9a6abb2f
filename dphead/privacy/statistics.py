"""Define the statistics of private rows, each as one Python class.

Each defines how far one row can move its integer sum. proofs/sensitivity.md has
the table and the proofs. `statistic_base` defines the symbols. `tests/definitions.py`
defines the same statistics one row at a time in real numbers, for comparison with
the papers. docs/papers.md lists the papers [FC23], [TB21] and [De22].
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dphead.privacy.loss import Sigmoid, loss_named
from dphead.privacy.predictions import PROBABILITY_SCALE, Array, shortened
from dphead.privacy.statistic_base import (
    Chunk,
    Params,
    Statistic,
    check_whole,
    one_hot,
    targets,
)
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

# Grids: each integer stands for the number in its comment. All were chosen, not
# measured.
MOMENT_RADIUS = 2**20  # the clip norm C of channel moments
_COUNT_SCALE = 2**10  # one counted row
_HESSIAN_SCALE = 2**6  # 1/4, the largest weight p (1 - p) of a Hessian


@dataclass(frozen=True)
class Gradient(Statistic):
    """Sum the gradients of a linear head's loss, shape (width, n_classes).

    Parameters
    ----------
    n_classes : int
        Number of public classes.
    loss : str, default "softmax"
        Name of the training loss (`loss.LOSSES`).
    clip : {"rows", "features"}, default "rows"
        "rows" clips a row's gradient r xᵀ to C by its norm ||r|| ||x|| [FC23 Algorithms
        1, 4; TB21; De22]. "features" clips x to R instead, and the loss bounds the
        residual r [FC23 Algorithm 2]. "features" needs a finite `longest_residual`.

    Raises
    ------
    ValueError
        If `clip` or `loss` is unknown, or for "features" with an unbounded loss.
    """

    # In real numbers the root of row_sq is C. With features clipped it is sqrt(2) rho
    # for softmax, and sqrt(m) rho for m sigmoids.
    # ||l q^T|| = ||l|| ||q||: each factor is at most RADIUS.
    row_sq = RADIUS**4
    replace_factor = 2**2  # two opposite gradients
    max_entry = RADIUS**2
    loss: str = "softmax"
    clip: Literal["rows", "features"] = "rows"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip not in ("rows", "features"):
            raise ValueError(
                f"clip must be rows or features, got {self.clip!r}. Use rows to clip "
                "gradients."
            )
        # The bound on the residual is needed if only the features are clipped.
        longest = self.longest_residual()  # refuses a loss that is not defined
        if self.clip == "features" and np.isinf(longest):
            raise ValueError(
                "clip='features' needs a loss with bounded residuals, got the "
                f"{self.loss} loss. Use clip='rows'."
            )

    @property
    def clips(self) -> str:  # type: ignore[override]
        """Return the name of the vectors that `clip_norm` bounds."""
        return self.clip

    @property
    def takes_sets(self) -> bool:  # type: ignore[override]
        """Return whether rows may have label sets (`Loss.takes_sets`)."""
        return loss_named(self.loss).takes_sets

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the real value of one integer unit of the sum.

        It is C / RADIUS**2 for clipped rows. For clipped features, it is the unit of a
        row times the unit of a residual.
        """
        if self.clip == "rows":
            return clip_norm / RADIUS**2
        # With its constant, x has a norm of at most rho. The loss bounds r.
        return clipped_step(clip_norm, append) * self.longest_residual() / RADIUS

    def no_clip(self, largest_norm: float, params: Params) -> float:
        """Return an upper bound on the norms of the vectors that `clip` selects."""
        if self.clip == "features":
            return largest_norm
        append = params.transform.append
        whole = float(np.hypot(largest_norm, append))
        # A residual may grow with the scores, and scores grow with the weights.
        weights = 0.0 if params.weights is None else np.linalg.norm(params.weights)
        return self.longest_residual(float(weights * whole)) * whole

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the rows, and their residuals times min(1, C / (||r|| ||x||)).

        For clipped features, residuals are divided by the loss's bound instead.
        """
        z, rate = chunk.scores(xp)
        # r = p - y, in parts of PROBABILITY_SCALE: the gradient is r x^T.
        p = loss_named(self.loss).predictions(xp, z, rate)
        r = p - PROBABILITY_SCALE * targets(xp, chunk, self.n_classes)
        r = xp.where(chunk.keep[:, None], r, 0)
        longest = aim(RADIUS**2, self.n_classes)
        if self.clip == "features":
            factor = longest / (self.longest_residual() * PROBABILITY_SCALE)
            return chunk.rows.q, shortened(xp, r, factor)
        # De22 equation 4: the factor min(1, C / (||r|| ||x||)), by one division.
        squared = (r * r).sum(axis=1, keepdims=True)
        length = xp.sqrt(squared.astype(xp.float64))
        whole = float(RADIUS**2) / (chunk.clip_norm * PROBABILITY_SCALE)
        unclipped = chunk.rows.scale[:, None] * whole
        clipped = longest / xp.maximum(length, 1.0)
        factor = xp.minimum(unclipped, clipped)
        return chunk.rows.q, shortened(xp, r, factor)

    def longest_residual(self, score_norm: float = np.inf) -> float:
        """Return the loss's bound on residuals (`Loss.longest_residual`)."""
        return loss_named(self.loss).longest_residual(self.n_classes, score_norm)


@dataclass(frozen=True)
class Gram(Statistic):
    """Sum x xᵀ (the Gram matrix), rows clipped to R [FC23 Algorithms 3 and 4]."""

    kind = "gram"
    row_sq = RADIUS**4  # (rho²)², in units of the sum
    replace_factor = 2  # <x xᵀ, z zᵀ> is never negative
    max_entry = RADIUS**2
    takes_sets = True  # the sum uses no label
    axes = ("width", "width")

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the real value of one integer unit: a row's unit, squared."""
        return clipped_step(clip_norm, append) ** 2

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the rows, with weight 1 for used rows and 0 for other rows."""
        return chunk.rows.q, chunk.keep[:, None].astype(xp.int64)


@dataclass(frozen=True)
class ClassGrams(Gram):
    """Sum x xᵀ for each class, shape (n_classes, width, width) [FC23 Algorithm 3].

    Each row has one label, so the sensitivity is the same as for `Gram`.
    """

    takes_sets = False
    axes = ("n_classes", "width", "width")

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the rows, and their classes as weights of zero and one."""
        return chunk.rows.q, targets(xp, chunk, self.n_classes)


@dataclass(frozen=True)
class SigmoidHessians(ClassGrams):
    """Sum the Hessians of n_classes one-vs-rest logistic losses [FC23 Algorithm 2].

    The Hessian of a class is the sum of p (1 - p) x xᵀ. The sensitivity is for the
    matrices of all classes together.
    """

    max_entry = _HESSIAN_SCALE * RADIUS**2
    takes_sets = True  # the sum uses no label

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the unit of a Gram matrix, divided by 4 _HESSIAN_SCALE."""
        return super().unit(clip_norm, append) / (4 * _HESSIAN_SCALE)

    @property
    def row_sq(self) -> int:  # type: ignore[override]
        """Return the square of sqrt(n_classes) rho² / 4, in units of the sum.

        Each of the n_classes weights is at most 1/4: claim H of proofs/sensitivity.md.
        """
        return self.n_classes * _HESSIAN_SCALE**2 * RADIUS**4

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the rows, and weights 4 p (1 - p) in units of 1 / _HESSIAN_SCALE.

        The weights have shape (k, n_classes).
        """
        z, rate = chunk.scores(xp)
        p = Sigmoid().predictions(xp, z, rate)
        # Whole numbers below 2**32, exact in float64.
        part = (p * (PROBABILITY_SCALE - p)).astype(xp.float64)
        unit = 4.0 * _HESSIAN_SCALE / PROBABILITY_SCALE**2
        weight = xp.rint(part * unit)
        # The bound of claim H, checked for every weight.
        known = (weight >= 0) & (weight <= float(_HESSIAN_SCALE))
        weight = xp.where(known, weight, 0.0)
        weight = xp.where(chunk.keep[:, None], weight, 0.0)
        return chunk.rows.q, weight.astype(xp.int64)


@dataclass(frozen=True)
class ClassSums(Statistic):
    """Sum x e_yᵀ (the class sums), shape (width, n_classes) [FC23 Algorithm 3's b]."""

    max_entry = RADIUS

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the real value of one integer unit, which is a row's unit."""
        return clipped_step(clip_norm, append)

    def sensitivity_sq(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """Return the square of rho, or of max(2 R, sqrt(2) rho) under replace-one.

        The value is in units of the sum. Each row has one label.
        """
        if relation != "replace_one":
            return RADIUS**2
        # Same class: the constants cancel, 4 R^2. Two classes: 2 rho^2.
        bound, _ = clipped_bound(clip_norm, append)
        return max(4 * bound, 2 * RADIUS**2)

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the rows, and their classes."""
        return chunk.rows.q, targets(xp, chunk, self.n_classes)


@dataclass(frozen=True)
class ClassCounts(Statistic):
    """Count the rows of each class, shape (n_classes, 1)."""

    clips = "nothing"
    row_sq = _COUNT_SCALE**2  # one row
    replace_factor = 2  # two counts change by one each
    max_entry = _COUNT_SCALE
    axes = ("n_classes", 1)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the real value of one integer unit: 1 / _COUNT_SCALE of a row."""
        return 1 / _COUNT_SCALE

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the classes, and one count for each used row."""
        return targets(xp, chunk, self.n_classes), _counted(xp, chunk.keep)


@dataclass(frozen=True)
class CorrectCounts(ClassCounts):
    """Count correctly and wrongly classified rows, shape (2, 1).

    Rows are not clipped. A tie is wrong. Each used row is in one of the two numbers, so
    their sum is the number of used rows. Adding, removing or zeroing out a row changes
    at most one number. Replacing a row can change both numbers.
    """

    axes = (2, 1)

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return each row's entry, correct or wrong, and one count for each used row.

        A row is correct if its own class has the highest score, above all others.
        """
        z, _ = chunk.scores(xp)
        # A tie counts as wrong, so each row is in exactly one entry.
        own = targets(xp, chunk, self.n_classes) > 0
        others = xp.where(own, -xp.inf, z).max(axis=1)
        score = xp.where(own, z, -xp.inf).max(axis=1)
        wrong = xp.where(score > others, 0, 1)
        return one_hot(xp, wrong, chunk.keep, 2), _counted(xp, chunk.keep)


@dataclass(frozen=True)
class ClassCorrectCounts(CorrectCounts):
    """Count correctly and wrongly classified rows of each class, shape (n_classes, 2).

    Each used row is in one entry: the correct or the wrong count of its class.
    """

    axes = ("n_classes", 2)

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the classes, and each used row's count in one of two columns."""
        columns, row = super().factors(xp, chunk)
        return targets(xp, chunk, self.n_classes), columns * row


@dataclass(frozen=True)
class RowCounts(ClassCounts):
    """Count the used rows, shape (1, 1).

    A row is used if it is finite, has a valid label and is within the cap of its group.
    Under replace-one, the number changes by at most 1.
    """

    replace_factor = 1
    takes_sets = True  # a row is counted once, whatever the number of its classes
    axes = (1, 1)

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return 1 and _COUNT_SCALE for each used row, and zeros for other rows."""
        return chunk.keep[:, None].astype(xp.int64), _counted(xp, chunk.keep)


@dataclass(frozen=True)
class ChannelMoment(Statistic):
    """Sum each row's channel means, or channel means of squares, clipped to C.

    Parameters
    ----------
    n_classes : int
        Number of public classes.
    power : {1, 2}, default 1
        1 for means, 2 for means of squares.
    n_channels : int, default 0
        A row is `n_channels` blocks of equal length (channel-major). 0 means that every
        feature is its own channel.

    References
    ----------
    [TB21 Algorithm 2].
    """

    power: Literal[1, 2] = 1
    n_channels: int = 0
    clips = "rows"
    row_sq = MOMENT_RADIUS**2  # C², in units of the sum
    max_entry = MOMENT_RADIUS
    takes_sets = True  # the sum uses no label

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("power", self.power, 1)
        check_whole("n_channels", self.n_channels, 0)
        if self.power > 2:
            raise ValueError(
                f"power must be 1 or 2, got {self.power}. Use 2 for means of squares."
            )

    def shape(self, width: int) -> tuple[int, ...]:
        """Return (number of channels, 1)."""
        return (self.n_channels or width, 1)

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the real value of one integer unit: C / MOMENT_RADIUS."""
        return clip_norm / MOMENT_RADIUS

    @property
    def replace_factor(self) -> int:  # type: ignore[override]
        """Return 4 for means, and 2 for means of squares.

        Two rows' means differ by at most 2 C. Their means of squares are not negative,
        and differ by at most sqrt(2) C.
        """
        return 4 if self.power == 1 else 2

    def no_clip(self, largest_norm: float, params: Params) -> float:
        """Return `largest_norm` for means, and its square for means of squares.

        The vector of a row's means has at most the row's norm. The vector of its means
        of squares has at most the squared norm.
        """
        return largest_norm**self.power

    def rows(
        self, transform: RowTransform, x: np.ndarray, clip_norm: float
    ) -> IntegerRows:
        """Return the rows' moments as integers on a grid, clipped."""
        if transform.append:
            raise ValueError(
                "Channel moments need rows without an appended constant, got a "
                f"transform with append {transform.append}. Use append=0."
            )
        fine = transformed(transform, x)
        channels = self.n_channels or x.shape[1]
        # TB21 Algorithm 2: means of channels, or of their squares.
        powers = fine.integers.astype(np.int64) ** self.power
        sums = powers.reshape(len(x), channels, -1).sum(axis=2)
        sums = sums.astype(np.float64)
        with np.errstate(all="ignore"):
            power = fine.scale if self.power == 1 else fine.scale * fine.scale
            # Mean over a channel: the sum divided by the channel's length.
            one = power * (channels / x.shape[1])
            largest = np.maximum(np.abs(sums).max(axis=1), 1.0)
            share = sums / largest[:, None]  # within [-1, 1]: no square overflows
            share = np.rint(share * 2.0**20)  # whole numbers: their squares add exactly
            squared = (share.astype(np.int64) ** 2).sum(axis=1)
            norm = np.sqrt(squared)
            size = one * largest / 2.0**20
            most = aim(MOMENT_RADIUS**2, channels)
            unclipped = size / (clip_norm / MOMENT_RADIUS)
            clipped = most / np.maximum(norm, 1)
            factor = np.minimum(unclipped, clipped)
            usable = fine.finite & np.isfinite(factor)
        # The check that the proof uses (`within`).
        factor = np.where(usable, factor, 0.0)
        q = within(share, factor, None, MOMENT_RADIUS**2)
        return IntegerRows(q, np.where(usable, 1.0, 0.0))

    def factors(self, xp: Any, chunk: Chunk) -> tuple[Array, Array]:
        """Return the moments of the used rows."""
        return chunk.rows.q, chunk.keep[:, None].astype(xp.int64)


def _counted(xp: Any, keep: Array) -> Array:
    return _COUNT_SCALE * keep[:, None].astype(xp.int64)
