"""Block sums for benchmarks only: the same clipped gradient sums, several times as
fast, not exact.

The row's map x → (x - c) ∘ s, with or without unit norms before and after, is folded
into the weights and out of the sum, so that a batch is read twice and never copied,
products are float32, and several fits on the same batches share them (`Together`). Sums
differ from `CpuSums`' by rounding alone (tests/benchmarks/test_fused.py), but no proof
covers
them: nothing that is to be private may use this.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from dphead.planning.plan import make_plan
from dphead.privacy.contract import Block, Known
from dphead.privacy.noise import NoiseSource
from dphead.privacy.predictions import unknown
from dphead.privacy.query import Params, Query
from dphead.privacy.statistics import Gradient
from dphead.privacy.transform import RowTransform
from dphead.rows.arrays import ArrayRows
from dphead.rows.blocks import CHUNK
from dphead.runs.loop import FitResult, Run, fit_head
from dphead.solvers.base import PublicFacts, Solver
from dphead.solvers.head import SMALLEST, float_rows
from dphead.sums.cpu import CpuSums
from dphead.sums.door import Door
from dphead.sums.reference import Ask

T = TypeVar("T")


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

    def is_compared(self, query: Query) -> bool:
        """Never: `door` is not to compare."""
        return False

    def norms(self, ask: Ask, block: Block) -> np.ndarray:
        """As `CpuSums`."""
        return self._exact.norms(ask, block)

    def rows(self, ask: Ask, block: Block) -> Any:
        """The block itself, for gradients."""
        return block if fusible(ask.query, ask.params) else self._exact.rows(ask, block)

    def add(
        self, ask: Ask, rows: Any, y: np.ndarray, used: np.ndarray, out: np.ndarray
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
        keys = [_content(t) for t in transforms]
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
        squared = float_rows(transform, x)[1]
        squared = np.where(np.isfinite(squared), squared, np.inf)
        finite = np.isfinite(squared)
        return np.stack(
            [np.where(finite, inner, 0), np.where(finite, outer, 0), squared]
        ).astype(np.float32)


def _inverse(squared: np.ndarray) -> np.ndarray:
    return np.where(squared > SMALLEST, 1 / np.sqrt(squared), np.float32(0))


def rounded(ask: Ask, value: np.ndarray) -> np.ndarray:
    """A float sum as int64, in units of its query."""
    return np.rint(
        value / ask.query.unit(ask.clip_norm, ask.params.transform.append)
    ).astype(np.int64)


class Together:
    """`fits` fits on the same batches, each in a thread of its own: a batch is read
    once for all of them.

    Poisson batches: the fits must have the same seed, sampling probability and order of
    releases, so that they draw the same rows; RuntimeError if one does not. A fit that
    ends leaves the others to go on.
    """

    def __init__(self, rows: ArrayRows, fits: int) -> None:
        self._rows, self._sums, self._exact = rows, FusedSums(), CpuSums()
        self._running, self._round = fits, 0
        self._asked: dict[int, tuple[Asked, np.ndarray]] = {}
        self._failed, self._changed, self._lock = False, Condition(), Lock()
        self._known: dict[tuple, np.ndarray] = {}

    def rows(self) -> "_Named":
        """Rows for each of the fits: batches are only named, since `_add` reads
        them.
        """
        return _Named(self._rows)

    def run(self, fit: Callable[[int], T]) -> list[T]:
        """fit(position) for every position at once, a thread each; if one fails, all
        do, and its error is raised.
        """

        def one(i: int) -> T:
            try:
                found = fit(i)
                self._leave()
                return found
            except BaseException:
                self._leave(failed=True)  # or the others would wait for ever
                raise

        with threadpool_limits(1, "blas"), ThreadPoolExecutor(self._running) as pool:
            running = [pool.submit(one, i) for i in range(self._running)]
        errors = [error for future in running if (error := future.exception())]
        if errors:
            raise next(
                (e for e in errors if not isinstance(e, _OtherFailedError)), errors[0]
            )
        return [future.result() for future in running]

    def summer(self, fit: int) -> Door:
        """How the fit of that position sums, called from `run`."""
        return Door(_OfFit(self, fit))

    def _wait(self, fit: int, asked: Asked, indices: np.ndarray) -> None:
        with self._changed:
            self._asked[fit], now = (asked, indices), self._round
            self._add_if_complete()
            self._changed.wait_for(lambda: self._round > now or self._failed)
            if self._round == now:
                raise _OtherFailedError("another fit on these batches failed")

    def _leave(self, failed: bool = False) -> None:
        with self._changed:
            self._running -= 1
            self._failed |= failed
            self._changed.notify_all()
            if not self._failed:
                self._add_if_complete()

    def _add_if_complete(self) -> None:
        if self._asked and len(self._asked) == self._running:
            self._add([self._asked[i] for i in sorted(self._asked)])
            self._asked, self._round = {}, self._round + 1
            self._changed.notify_all()

    def _one(self, ask: Ask, indices: np.ndarray, out: np.ndarray) -> np.ndarray:
        """A sum that is not shared; over all rows, one that needs no head is the same
        for every fit.
        """
        transform = ask.params.transform
        key = ask.query, ask.clip_norm, _content(transform), transform.append
        shared = ask.params.weights is None and len(indices) == self._rows.n_rows
        with self._lock:
            value = self._known.get(key) if shared else None
            if value is None:
                value = np.zeros_like(out)
                for block in self._blocks(indices):
                    rows = self._exact.rows(ask, block)
                    value = self._exact.add(ask, rows, block.y, block.index >= 0, value)
            if shared:
                self._known[key] = value
        out += value
        return out

    def _blocks(self, indices: np.ndarray) -> Iterator[Block]:
        return self._rows.blocks(None if len(indices) == self._rows.n_rows else indices)

    def _add(self, asked: list[tuple[Asked, np.ndarray]]) -> None:
        indices = asked[0][1]
        if not all(np.array_equal(other, indices) for _, other in asked):
            raise RuntimeError(
                "fits on common batches must draw the same rows, got different ones."
            )
        if len({a.query for a, _ in asked}) > 1:
            raise RuntimeError(
                "fits on common batches must have one loss, got several."
            )
        self._sums.add_all(
            [a for a, _ in asked], ((b, b.index >= 0) for b in self._blocks(indices))
        )


def fit_together(
    rows: ArrayRows,
    facts: PublicFacts,
    fits: Sequence[tuple[Solver, int, float]],
    delta: float,
) -> list[FitResult]:
    """Full-batch fits of each (solver, seed, epsilon), in that order."""
    together = Together(rows, len(fits))

    def fit(i: int) -> FitResult:
        solver, seed, epsilon = fits[i]
        plan = make_plan(solver, facts, epsilon=epsilon, delta=delta)
        run = Run(noise=NoiseSource(seed), summer=together.summer(i))
        return fit_head(solver, together.rows(), facts, plan, run)

    return together.run(fit)


class _OfFit:
    """The `BlockSum` of one of the fits: blocks only name their rows."""

    parallel = False

    def __init__(self, together: Together, fit: int) -> None:
        self._together, self._fit = together, fit

    def is_compared(self, query: Query) -> bool:
        """Never."""
        return False

    def norms(self, ask: Ask, block: Block) -> np.ndarray:
        """Of the rows that the block names."""
        exact = CpuSums()
        indices = block.index[block.index >= 0]
        found = [
            exact.norms(ask, b)[b.index >= 0] for b in self._together._blocks(indices)
        ]
        return np.pad(np.concatenate(found), (0, len(block.index) - len(indices)))

    def rows(self, ask: Ask, block: Block) -> Block:
        """The names."""
        return block

    def add(
        self, ask: Ask, rows: Block, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """The sum, made with those of the other fits."""
        indices = rows.index[used]
        if not fusible(ask.query, ask.params):
            return self._together._one(ask, indices, out)
        assert isinstance(ask.query, Gradient)
        value = np.zeros(out.shape)
        asked = Asked(ask.query, ask.params, ask.clip_norm, value)
        self._together._wait(self._fit, asked, indices)
        out += rounded(ask, value)
        return out


class _OtherFailedError(RuntimeError):
    """What ends a fit whose batch another one will never ask for."""


class _Named:
    """Rows whose batches are one block of indices, with zeros that take no memory for
    features.
    """

    def __init__(self, rows: ArrayRows) -> None:
        self._rows, self.group_cap = rows, rows.group_cap
        self.n_rows, self.n_features = rows.n_rows, rows.n_features

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        indices = np.arange(self.n_rows) if indices is None else indices
        size = CHUNK * max(1, -(-len(indices) // CHUNK))
        index = np.append(indices, np.full(size - len(indices), -1))
        yield Block(
            index,
            np.broadcast_to(np.float32(0), (size, self.n_features)),
            np.full(size, -1, np.int32),
        )


def fusible(query: Query, params: Params) -> bool:
    """Whether the sum is one of gradients clipped row by row."""
    return (
        isinstance(query, Gradient)
        and query.clip == "rows"
        and params.weights is not None
    )


def _content(transform: RowTransform) -> tuple:
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
