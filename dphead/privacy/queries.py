"""What may be asked of the private rows: clipped sums of per-row statistics, and how far one row can move them.

Every statistic here is an outer product of two row vectors, so its norm is the product of theirs and its clipped sum is
one matrix product: no per-row gradient, Gram matrix or Hessian is ever formed. `dphead/analysis/definitions.py` says
the same one row at a time in float64, to be read against the papers; tests hold the two equal.

Symbols (ALGORITHMS.md): x a row of n_features numbers after its transform, y its class, R or C the clip norm.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from dphead.privacy.sums import FEW_CLASSES, NOTHING, TINY, class_sum, gram_sum, masked, outer_sum, scores, squares

Loss = Literal["softmax", "sigmoid", "squared"]
COMPILED = 1 << 12  # entries of a gradient from which compiling pays


@dataclass(frozen=True, eq=False)
class RowTransform:
    """A map applied to each row on its own, before the clip; it may use public numbers and earlier releases only.

    In this order: divide by the norm (`unit_norm`); subtract `center` (n_features,); multiply by `scale` (n_features,);
    divide by the norm again (`unit_norm` with a centre); after the clip, append the constant `append` (0: nothing).
    """

    unit_norm: bool = False
    center: np.ndarray | None = None
    scale: np.ndarray | None = None
    append: float = 0.0

    def __post_init__(self) -> None:
        if not (self.append == 0 or 1e-6 <= abs(self.append) <= 1e6):
            raise ValueError(f"append must be 0 or have a size in [1e-6, 1e6], got append={self.append}. Rescale it.")

    def width(self, n_features: int) -> int:
        """Number of columns after the transform."""
        return n_features + (1 if self.append else 0)

    def equals(self, other: "RowTransform") -> bool:
        """Whether it is the same map: of the same type, with the same numbers."""
        own, others = ((t.center, t.scale) for t in (self, other))
        same = all(np.array_equal(a, b) for a, b in zip(own, others, strict=True))  # type: ignore[arg-type]  # None too
        return same and (type(self), self.unit_norm, self.append) == (type(other), other.unit_norm, other.append)

    def apply(self, xp: Any, x: Any) -> tuple[Any, Any]:
        """Return (k, n_features) float32 transformed rows, without the constant, and their (k,) squared norms.

        A row whose squared norm is not finite in float32 at any point comes back with a non-finite squared norm.
        """
        squared = squares(xp, x)
        bad = squared - squared  # nan where not finite, 0 elsewhere
        if self.unit_norm:
            x = x * _inverse_norm(xp, squared)[:, None]  # a new array: numpy may write to it from here on
        if self.center is not None:
            center = xp.asarray(self.center, dtype=x.dtype)[None, :]
            if self.unit_norm:
                x -= center
            else:
                x = x - center
        if self.scale is not None:
            x = x * xp.asarray(self.scale, dtype=x.dtype)[None, :]
        if self.unit_norm or self.center is not None or self.scale is not None:
            squared = squares(xp, x)
        if self.unit_norm and self.center is not None:
            bad = bad + (squared - squared)
            x *= _inverse_norm(xp, squared)[:, None]
            squared = xp.where(squared > NOTHING, xp.ones_like(squared), squared - squared)
        return x, squared + bad


@dataclass(frozen=True, eq=False)
class Params:
    """What the statistic may depend on besides the row: public numbers and earlier releases.

    weights: (width, n_classes), where width counts the appended constant; None for statistics that need no head.
    """

    transform: RowTransform = field(default_factory=RowTransform)
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Query:
    """A sum over rows. Subclasses give `sensitivity`, `shape` and `factors`.

    n_classes: the number of public classes. A row whose label is outside 0..n_classes-1 contributes zero.
    """

    n_classes: int
    kind: ClassVar[Literal["outer", "classes", "gram"]] = "outer"
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "features"

    @property
    def symmetric(self) -> bool:
        """Whether the sum is a symmetric matrix (or one a class), and its noise too."""
        return self.kind == "gram"

    @property
    def name(self) -> str:
        """The query's name and settings, as the ledger records it."""
        return repr(self)

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """L2 distance that one row can move the sum. Table in ALGORITHMS.md §1; proofs in AUDIT.md."""
        raise NotImplementedError

    def shape(self, width: int) -> tuple[int, ...]:
        """Shape of the sum, for rows of `width` columns after the transform: (width, n_classes) if not overridden."""
        return (width, self.n_classes)

    def clipped_sum(
        self,
        params: Params,
        x: Any,
        y: Any,
        keep: Any,
        clip_norm: float,
        out: Any,
        xp: Any = np,
        prepared: tuple[Any, Any] | None = None,
        in_place: bool = False,
    ) -> Any:
        """Add the clipped statistics of a block of rows to `out` (float64, `shape`) and return it.

        x: (k, n_features) float32, y: (k,) int, keep: (k,) bool: other rows contribute exactly zero. 128 divides k.
        prepared: `params.transform.apply(xp, x)` if it is known; it is not changed. in_place: `sums`, on rounding.
        Of a symmetric sum only the upper triangle is promised.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            phi, squared = prepared or params.transform.apply(xp, x)
            keep = keep & xp.isfinite(squared) & (y >= 0) & (y < self.n_classes)
            factor, b = None, xp.float32(params.transform.append)
            if self.clips == "features":
                factor = _factor(xp, clip_norm, squared)
                squared = squared * factor * factor
            squared = xp.where(keep, squared + b * b, xp.float32(0))
            if self.compiled(xp, in_place, out.shape):
                return self._add_compiled(out, params, phi, factor, squared, y, keep, clip_norm)
            if factor is not None:
                own = xp is np and prepared is None and phi is not x  # an array that nobody else reads
                phi = np.multiply(phi, factor[:, None], out=phi) if own else phi * factor[:, None]
            phi = masked(xp, keep, phi)
            if params.transform.append:
                phi = xp.concatenate([phi, xp.where(keep, b, xp.float32(0))[:, None]], axis=1)
            return self._add(xp, out, in_place, params, phi, squared, y, keep, clip_norm)

    def _add(self, xp: Any, out: Any, in_place: bool, params: Params, *rows: Any) -> Any:
        """Add the statistics of clipped rows to `out`. rows: the other arguments of `factors`."""
        left, right = self.factors(xp, params, *rows)
        if self.kind == "gram":
            return gram_sum(xp, left, right, out, self.same(params), in_place)
        return outer_sum(xp, left, right, out, in_place)

    def compiled(self, xp: Any, in_place: bool, shape: tuple[int, ...]) -> bool:
        """Whether a compiled loop clips, masks and adds the rows: from public sizes and the plan."""
        return False

    def _add_compiled(self, out: Any, params: Params, phi: Any, factor: Any, *rows: Any) -> Any:
        """Add the statistics of transformed rows, each to be multiplied by its factor, to `out`."""
        raise NotImplementedError

    def same(self, params: Params) -> list[int]:
        """For each class, the first with the same weighted Gram matrix whatever the rows are (public numbers only)."""
        return list(range(self.n_classes))

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """Row vectors (left, right) whose outer products are the statistics ("outer"), or rows and weights ("gram")."""
        raise NotImplementedError

    def _one_hot(self, xp: Any, y: Any, keep: Any) -> Any:
        return ((y[:, None] == xp.arange(self.n_classes, dtype=xp.int32)[None, :]) & keep[:, None]).astype(xp.float32)


@dataclass(frozen=True)
class ChannelMoment(Query):
    """Per-channel means of the row (power 1) or of its squares (power 2), clipped [TB21 Algorithm 2].

    A row is n_channels blocks of equal length (channel-major). n_channels = 0 means every feature is its own channel.
    """

    power: Literal[1, 2] = 1
    n_channels: int = 0
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "rows"

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """C; replace-one 2C for means, sqrt(2) C for squares, which are non-negative and so at most orthogonal."""
        replaced = 2.0 if self.power == 1 else np.sqrt(2.0)
        return clip_norm * (replaced if relation == "replace_one" else 1.0)

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_channels, 1)."""
        return (self.n_channels or width, 1)

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """Left: the moments (k, channels); right: the clip factor (k, 1)."""
        channels = self.n_channels or phi.shape[1]
        moments = phi.reshape(phi.shape[0], channels, -1)
        moments = (moments * moments if self.power == 2 else moments).mean(axis=2, dtype=xp.float32)
        norm2 = squares(xp, moments)
        ok = keep & xp.isfinite(norm2)
        factor = xp.where(ok, _factor(xp, clip_norm, norm2), xp.float32(0))
        return xp.where(ok[:, None], moments, xp.float32(0)), factor[:, None]


@dataclass(frozen=True)
class Gram(Query):
    """The Gram matrix G = sum of x xᵀ, rows clipped to R [FC23 Algorithms 3 and 4]."""

    kind: ClassVar[Literal["outer", "gram"]] = "gram"

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """R²; replace-one sqrt(2) R², since ||xxᵀ - zzᵀ||² = ||x||⁴ + ||z||⁴ - 2(x·z)²."""
        radius2 = clip_norm**2 + append**2
        return radius2 * (np.sqrt(2.0) if relation == "replace_one" else 1.0)

    def shape(self, width: int) -> tuple[int, ...]:
        """(width, width)."""
        return (width, width)

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """The rows themselves, all of weight one."""
        return phi, None


@dataclass(frozen=True)
class ClassGrams(Gram):
    """Gram matrices A_j = sum of x xᵀ over class j, shape (n_classes, width, width) [FC23 Algorithm 3].

    One label a row: the sensitivity is the Gram matrix's.
    """

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_classes, width, width)."""
        return (self.n_classes, width, width)

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """The rows, and their class as 0/1 weights: every class costs a full pass, so no shape depends on labels."""
        return phi, self._one_hot(xp, y, keep)


@dataclass(frozen=True)
class SigmoidHessians(ClassGrams):
    """Hessians of the n_classes one-vs-rest logistic losses: p(1-p) x xᵀ at each class, jointly [FC23 Algorithm 2]."""

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """sqrt(m) R²/4; replace-one sqrt(2m) R²/4 (AUDIT.md, claim H)."""
        return np.sqrt(self.n_classes) / 4 * super().sensitivity(clip_norm, relation, append)

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """The rows, and weights p(1-p) (k, n_classes)."""
        p = _probabilities(xp, scores(xp, phi, xp.asarray(params.weights, dtype=xp.float32)), "sigmoid")
        return phi, xp.where(keep[:, None] & xp.isfinite(p), p * (1 - p), xp.float32(0))

    def same(self, params: Params) -> list[int]:
        """Classes of equal weights have equal Hessians: all of them at the zero start."""
        if not isinstance(params.weights, np.ndarray):  # traced by jax: unknown
            return super().same(params)
        columns = [column.tobytes() for column in params.weights.T]
        return [columns.index(column) for column in columns]


@dataclass(frozen=True)
class ClassSums(Query):
    """Class sums S = sum of x e_yᵀ, shape (width, n_classes), rows clipped to R [FC23 Algorithm 3's b]."""

    kind: ClassVar[Literal["outer", "classes", "gram"]] = "classes"

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """sqrt(R²+b²) (one label a row); replace-one max(2R, sqrt(2) sqrt(R²+b²)), b the appended constant."""
        radius = float(np.hypot(clip_norm, append))
        return max(2 * clip_norm, np.sqrt(2.0) * radius) if relation == "replace_one" else radius

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """Left: the rows; right: one-hot classes."""
        return phi, self._one_hot(xp, y, keep)

    def _add(self, xp: Any, out: Any, in_place: bool, params: Params, *rows: Any) -> Any:
        if xp is np and self.n_classes > FEW_CLASSES:
            phi, _, y, keep, _ = rows
            return class_sum(phi, y, keep, out)
        return super()._add(xp, out, in_place, params, *rows)


@dataclass(frozen=True)
class GramAndSums(Gram):
    """G above Sᵀ, the transposed class sums: two releases' sums in one pass over the rows, for `release` alone."""

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """None: it is not released, `Gram` and `ClassSums` are."""
        raise NotImplementedError("the two sums of one pass are released apart")

    def shape(self, width: int) -> tuple[int, ...]:
        """(width + n_classes, width)."""
        return (width + self.n_classes, width)

    def _add(self, xp: Any, out: Any, in_place: bool, params: Params, *rows: Any) -> Any:
        width = out.shape[1]
        gram = super()._add(xp, out[:width], in_place, params, *rows)
        sums = ClassSums(self.n_classes)._add(xp, out[width:].T, in_place, params, *rows)
        return out if xp is np else xp.concatenate([gram, sums.T])


@dataclass(frozen=True)
class Gradient(Query):
    """Gradient of a linear head's loss, shape (width, n_classes).

    clip = "rows": the row's gradient r xᵀ is clipped to C by its norm ||r||·||x|| [FC23 Algorithms 1, 4; TB21; De22].
    clip = "features": x is clipped to R instead and the loss bounds the residual r [FC23 Algorithm 2].
    """

    loss: Loss = "softmax"
    clip: Literal["rows", "features"] = "rows"

    def __post_init__(self) -> None:
        if self.clip == "features" and self.loss == "squared":
            raise ValueError(
                "a squared loss has no bounded residual, got clip='features', loss='squared'. Use clip='rows'."
            )

    @property
    def clips(self) -> str:  # type: ignore[override]
        """What `clip_norm` bounds."""
        return self.clip

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """C (rows clipped); features clipped: sqrt(2) R for softmax, sqrt(m) R for m sigmoids. Replace-one: twice."""
        single = clip_norm
        if self.clip == "features":
            residual = np.sqrt(2.0) if self.loss == "softmax" else np.sqrt(self.n_classes)
            single = residual * float(np.hypot(clip_norm, append))
        return single * (2.0 if relation == "replace_one" else 1.0)

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """Left: the rows; right: the residuals times min(1, C / (||r|| ||x||))."""
        z = scores(xp, phi, xp.asarray(params.weights, dtype=xp.float32))
        residual = _probabilities(xp, z, self.loss) - self._one_hot(xp, y, keep)
        norm2 = squares(xp, residual)
        ok = keep & xp.isfinite(norm2)
        factor = xp.ones_like(norm2)
        if self.clip == "rows":
            factor = _factor(xp, clip_norm, norm2, squared)
        return phi, xp.where(ok[:, None], residual * factor[:, None], xp.float32(0))

    def _add_compiled(self, out: Any, params: Params, phi: Any, factor: Any, *rows: Any) -> Any:
        from dphead.privacy.sums_numba import add_softmax_gradient  # half a second, where it pays only

        squared, y, keep, clip_norm = rows
        clip, append = clip_norm if self.clip == "rows" else np.inf, params.transform.append
        return add_softmax_gradient(phi, factor, append, squared, y, keep, np.asarray(params.weights), clip, out)

    def compiled(self, xp: Any, in_place: bool, shape: tuple[int, ...]) -> bool:
        """Softmax gradients of full batches on a CPU, where it pays."""
        return xp is np and in_place and self.loss == "softmax" and self._pays(shape[0] * shape[1])

    def _pays(self, size: int) -> bool:
        """Whether the compiled loop is the faster one, for so many entries of the result."""
        return size >= COMPILED


@dataclass(frozen=True)
class ClassCounts(Query):
    """Number of rows of each class, shape (n_classes, 1)."""

    clips: ClassVar[Literal["features", "rows", "nothing"]] = "nothing"

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """1; replace-one sqrt(2)."""
        return float(np.sqrt(2.0)) if relation == "replace_one" else 1.0

    def shape(self, width: int) -> tuple[int, ...]:
        """(n_classes, 1)."""
        return (self.n_classes, 1)

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """Left: one-hot classes; right: ones."""
        return self._one_hot(xp, y, keep), keep[:, None].astype(xp.float32)


@dataclass(frozen=True)
class CorrectCount(Query):
    """Number of rows that the weights give their own class, shape (1, 1). A tie is not correct.

    Rows are not clipped: they are scored as `LinearHead.scores` would score them.
    """

    clips: ClassVar[Literal["features", "rows", "nothing"]] = "nothing"

    def sensitivity(self, clip_norm: float, relation: str, append: float = 0.0) -> float:
        """1, under every relation: a row counts 0 or 1."""
        return 1.0

    def shape(self, width: int) -> tuple[int, ...]:
        """(1, 1)."""
        return (1, 1)

    def factors(self, xp: Any, params: Params, phi: Any, squared: Any, y: Any, keep: Any, clip_norm: float) -> Any:
        """Left: 1 where the row's own class has the highest score; right: ones."""
        z = scores(xp, phi, xp.asarray(params.weights, dtype=xp.float32))
        own = self._one_hot(xp, y, keep) > 0
        best = xp.where(own, xp.float32(-np.inf), z).max(axis=1)
        correct = keep & (xp.where(own, z, xp.float32(-np.inf)).max(axis=1) > best)
        return correct[:, None].astype(xp.float32), keep[:, None].astype(xp.float32)


def _factor(xp: Any, clip_norm: float, *squared: Any) -> Any:
    """min(1, C / norm), the norm a product of square roots; a square too small for float32 counts as NOTHING, not 0."""
    norm = xp.ones_like(squared[0])
    for s in squared:
        norm = norm * xp.sqrt(xp.maximum(s, xp.float32(NOTHING)))
    factor = xp.minimum(xp.float32(1), xp.float32(clip_norm) / norm)
    return xp.where(factor > xp.float32(TINY), factor, xp.float32(0))


def _inverse_norm(xp: Any, squared: Any) -> Any:
    return xp.where(squared > NOTHING, 1 / xp.sqrt(squared), xp.zeros_like(squared))


def _probabilities(xp: Any, z: Any, loss: Loss) -> Any:
    """Predictions whose difference from the one-hot label is the loss's residual."""
    if loss == "softmax":
        e = xp.exp(z - z.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)
    if loss == "sigmoid":
        e = xp.exp(-xp.abs(z))
        return xp.where(z >= 0, 1 / (1 + e), e / (1 + e))
    return z
