"""Block sums for benchmarks only: the same clipped gradient sums, several times as
fast, not exact.

The row's map x → (x - c) ∘ s, with or without unit norms before and after, is folded
into the weights and out of the sum, so that a batch is read twice and never copied,
products are float32, and several fits on the same batches share them (`together`). Sums
differ from `CpuSums`' by rounding alone (tests/benchmarks/test_fused.py), but no proof
covers them: nothing that is to be private may use this.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dphead.privacy.contract import Block
from dphead.privacy.predictions import unknown
from dphead.privacy.query import Params, Statistic
from dphead.privacy.statistics import Gradient
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import float_rows
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import SumTask

SMALLEST = 1e-30  # float32 divides badly by a smaller squared norm; chosen


@dataclass(frozen=True)
class Asked:
    """A gradient sum that one fit wants of a block.

    out: (width, n_classes) float64, added to.
    """

    query: Gradient
    params: Params
    clip_norm: float
    out: np.ndarray


class FusedSums:
    """A `BlockSum`.

    It keeps three numbers of each row after each transform: the factors of its norms,
    and its norm.
    """

    parallel = False

    def __init__(self) -> None:
        self._exact = CpuSums()
        self._known: dict[tuple, np.ndarray] = {}

    def is_compared(self, query: Statistic) -> bool:
        """Never: `door` is not to compare."""
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """As `CpuSums`."""
        return self._exact.norms(ask, block)

    def rows(self, ask: SumTask, block: Block) -> Any:
        """The block itself, for gradients."""
        return block if fusible(ask.query, ask.params) else self._exact.rows(ask, block)

    def add(
        self, ask: SumTask, rows: Any, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Add the block's clipped statistics to out; other queries than gradients go to
        `CpuSums`.
        """
        if not fusible(ask.query, ask.params):
            return self._exact.add(ask, rows, y, used, out)
        assert isinstance(ask.query, Gradient)
        value = np.zeros(out.shape)
        asked = Asked(ask.query, ask.params, ask.clip_norm, value)
        self.add_all([asked], [(rows, used)])
        out += rounded(ask, value)
        return out

    def add_all(
        self, asks: list[Asked], blocks: Iterable[tuple[Block, np.ndarray]]
    ) -> None:
        """Add the clipped gradients of several fits of one loss over (block, rows to
        keep), with common products.
        """
        fits = len(asks)
        m = asks[0].query.n_classes
        weights, offset, bias = (
            np.stack(part, axis=-2)
            for part in zip(*(_fold(a.params) for a in asks), strict=True)
        )
        weights = weights.reshape(len(weights), -1)
        transforms = [a.params.transform for a in asks]
        keys = [content(t) for t in transforms]
        clips = np.array([a.clip_norm for a in asks])
        appended = np.array([t.append for t in transforms]) ** 2
        value = np.zeros(weights.shape[::-1], np.float32)
        totals = np.zeros((2, fits, m))
        for block, keep in blocks:
            found = {
                key: self._norms(key, t, block)
                for key, t in zip(keys, transforms, strict=True)
            }
            # (rows, fits) each
            inner, outer, squared = np.stack([found[key] for key in keys], axis=2)
            known = keep & (block.y >= 0) & (block.y < m)
            ok = np.isfinite(squared) & known[:, None]
            x = (
                block.x
                if ok[keep].all()
                else np.where(ok.any(axis=1, keepdims=True), block.x, np.float32(0))
            )
            z = (x @ weights).reshape(-1, fits, m)
            z *= (inner * outer)[:, :, None]
            z += outer[:, :, None] * offset + bias
            residual = residual_of(z, block.y, asks[0].query.loss)
            norm = np.sqrt((residual**2).sum(2) * np.where(ok, squared + appended, 1))
            factor = np.where(ok, np.minimum(1, clips / np.maximum(norm, 1e-30)), 0)
            residual *= factor.astype(np.float32)[:, :, None]
            totals[1] += residual.sum(0, dtype=np.float64)
            residual *= outer[:, :, None]
            totals[0] += residual.sum(0, dtype=np.float64)
            residual *= inner[:, :, None]
            value += residual.reshape(len(x), -1).T @ x
        for i, asked in enumerate(asks):
            _unfold(
                asked,
                value[i * m : (i + 1) * m].T.astype(np.float64),
                totals[0, i],
                totals[1, i],
            )

    def _norms(self, key: tuple, transform: RowTransform, block: Block) -> np.ndarray:
        """(3, k) float32: the factor before and after centre and scale, and the
        transformed row's squared norm.
        """
        known = self._known.get(key, np.zeros((3, 0), np.float32))
        last = int(block.index.max())
        if last >= known.shape[1]:
            room = max(last + 1, 1 << 16) - known.shape[1]
            known = np.concatenate(
                [known, np.full((3, room), np.nan, np.float32)], axis=1
            )
        used = block.index >= 0
        new = np.flatnonzero(used & np.isnan(known[2, block.index]))
        for i in range(0, len(new), 256):
            part = new[i : i + 256]
            known[:, block.index[part]] = _measured(transform, block.x[part])
        self._known[key] = known
        return np.where(used, known[:, block.index], np.float32(0))


def _measured(transform: RowTransform, x: np.ndarray) -> np.ndarray:
    """`FusedSums._norms` of rows x; the squared norm is infinite for a row that is not
    finite.
    """
    with np.errstate(all="ignore"):
        ones = np.ones(len(x), np.float32)
        inner = outer = ones
        if transform.unit_norm:
            inner = _inverse(np.einsum("ij,ij->i", x, x))
            if transform.center is not None:
                moved = (x * inner[:, None] - transform.center) * (
                    1 if transform.scale is None else transform.scale
                )
                outer = _inverse(np.einsum("ij,ij->i", moved, moved))
        rows = float_rows(transform, x)
        squared = np.einsum("ij,ij->i", rows, rows)
        squared = np.where(np.isfinite(squared), squared, np.inf)
        finite = np.isfinite(squared)
        return np.stack(
            [np.where(finite, inner, 0), np.where(finite, outer, 0), squared]
        ).astype(np.float32)


def _inverse(squared: np.ndarray) -> np.ndarray:
    return np.where(squared > SMALLEST, 1 / np.sqrt(squared), np.float32(0))


def rounded(ask: SumTask, value: np.ndarray) -> np.ndarray:
    """A float sum as int64, in units of its query."""
    return np.rint(
        value / ask.query.unit(ask.clip_norm, ask.params.transform.append)
    ).astype(np.int64)


def fusible(query: Statistic, params: Params) -> bool:
    """Whether the sum is one of gradients clipped row by row."""
    return (
        isinstance(query, Gradient)
        and query.clip == "rows"
        and params.weights is not None
    )


def content(transform: RowTransform) -> tuple:
    """Equal for equal maps of a row, whatever they append."""
    arrays = (
        None if v is None else v.tobytes() for v in (transform.center, transform.scale)
    )
    return transform.unit_norm, *arrays


def _fold(params: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weights (d, m), offset (m,), bias (m,)) float32: a row x has the scores (x @
    weights + offset) + bias.

    With unit norms, x and the bracket are multiplied by the row's factors before and
    after.
    """
    t = params.transform
    weights = np.asarray(params.weights, np.float32)
    d = len(weights) - 1 if t.append else len(weights)
    rows = weights[:d] if t.scale is None else t.scale[:, None] * weights[:d]
    zero = np.zeros(weights.shape[1], np.float32)
    offset = zero if t.center is None else -(t.center @ rows)
    return rows, offset, np.float32(t.append) * weights[-1] if t.append else zero


def _unfold(
    asked: Asked, value: np.ndarray, inside: np.ndarray, total: np.ndarray
) -> None:
    """Add to asked.out what value (d, m), a sum over rows as they are, is for
    transformed rows.

    inside, total: (m,) sums of the residuals, with and without the rows' factors after
        centre and scale.
    """
    t = asked.params.transform
    if t.center is not None:
        value -= np.outer(t.center, inside)
    if t.scale is not None:
        value *= t.scale[:, None]
    asked.out[: len(value)] += value
    if t.append:
        asked.out[-1] += t.append * total


def residual_of(z: np.ndarray, y: np.ndarray, loss: str) -> np.ndarray:
    """Prediction minus one-hot label, (k, fits, n_classes) float32; z is overwritten.
    ValueError for a loss that is not defined here.
    """
    if loss == "softmax":
        z -= z.max(axis=2, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=2, keepdims=True)
    elif loss == "sigmoid":
        z = 1 / (1 + np.exp(-np.clip(z, -80, 80)))
    elif loss != "squared":
        raise unknown(loss)
    known = np.flatnonzero((y >= 0) & (y < z.shape[2]))
    z[known, :, y[known]] -= 1
    return z
