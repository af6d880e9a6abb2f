"""Block sums for benchmarks only: the same clipped gradient sums, several times as fast, without the rounding bound.

The row's map x → (x - c) ∘ s is folded into the weights and out of the sum, so that a batch is read twice and never
copied, products are float32, and several fits on the same batches share them (`Together`). Sums differ from
`NumpySums`' by rounding alone (tests/benchmarks/test_fused.py), but AUDIT.md, "Floating point", does not cover them:
nothing that is to be private may use this.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError, Lock
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from dphead.data import ArrayRows
from dphead.privacy.mechanism import Block, BlockSum, NumpySums
from dphead.privacy.queries import Gradient, Params, Query, RowTransform
from dphead.privacy.sums import CHUNK

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """A gradient sum that one fit wants of a block. out: (width, n_classes) float64, added to."""

    query: Gradient
    params: Params
    clip_norm: float
    out: np.ndarray


class FusedSums:
    """A `BlockSum`. It keeps the squared norm of each row after each transform, 8 bytes a row."""

    def __init__(self, memory: int = 1 << 30) -> None:
        self._exact = NumpySums(memory=memory)
        self._squared: dict[tuple, np.ndarray] = {}

    def __call__(self, query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
        """Add the block's clipped statistics to out; other queries than gradients go to `NumpySums`."""
        if not fusible(query, params):
            return self._exact(query, params, block, keep, clip_norm, out)
        self.add([Asked(query, params, clip_norm, out)], [(block, keep)])  # type: ignore[arg-type]
        return out

    def add(self, asks: list[Asked], blocks: Iterable[tuple[Block, np.ndarray]]) -> None:
        """Add the clipped gradients of several fits of one loss over (block, rows to keep), with common products."""
        folded, fits, m = [_fold(a.params) for a in asks], len(asks), asks[0].query.n_classes
        weights, offset = np.hstack([w for w, _ in folded]), np.hstack([o for _, o in folded])
        transforms = [a.params.transform for a in asks]
        keys, clips = [_content(t) for t in transforms], np.array([a.clip_norm for a in asks])
        appended = np.array([t.append for t in transforms]) ** 2
        value, total = np.zeros(weights.shape[::-1], np.float32), np.zeros(fits * m)
        for block, keep in blocks:
            found = {key: self._norms(key, t, block) for key, t in zip(keys, transforms, strict=True)}
            squared = np.stack([found[key] for key in keys], axis=1)  # (rows, fits)
            known = keep & (block.y >= 0) & (block.y < m)
            ok = np.isfinite(squared) & known[:, None]
            x = block.x if ok[keep].all() else np.where(ok.any(axis=1, keepdims=True), block.x, np.float32(0))
            residual = _residual((x @ weights + offset).reshape(-1, fits, m), block.y, asks[0].query.loss)
            norm = np.sqrt((residual**2).sum(2) * np.where(ok, squared + appended, 1))
            factor = np.where(ok, np.minimum(1, clips / np.maximum(norm, 1e-30)), 0)
            flat = (residual * factor.astype(np.float32)[:, :, None]).reshape(len(x), -1)
            value += flat.T @ x
            total += flat.sum(0, dtype=np.float64)
        for i, asked in enumerate(asks):
            part = slice(i * m, (i + 1) * m)
            _unfold(asked, value[part].T.astype(np.float64), total[part])

    def _norms(self, key: tuple, transform: RowTransform, block: Block) -> np.ndarray:
        """Squared norms (k,) of the transformed rows, computed when a row is first seen."""
        squared = self._squared.get(key, np.zeros(0))
        last = int(block.index.max())
        if last >= len(squared):
            squared = np.append(squared, np.full(max(last + 1, 1 << 16) - len(squared), np.nan))
        used = block.index >= 0
        new = np.flatnonzero(used & np.isnan(squared[block.index]))
        for i in range(0, len(new), 256):
            part = new[i : i + 256]
            with np.errstate(all="ignore"):
                found = transform.apply(np, block.x[part])[1]
            squared[block.index[part]] = np.where(np.isfinite(found), found, np.inf)
        self._squared[key] = squared
        return np.where(used, squared[block.index], 0)


class Together:
    """`fits` fits on the same Poisson batches, each in a thread of its own: a batch is read once for all of them.

    The fits must have the same seed, sampling probability and order of releases, so that they draw the same rows;
    RuntimeError if one does not.
    """

    def __init__(self, rows: ArrayRows, fits: int) -> None:
        self._rows, self._sums = rows, FusedSums(memory=0)
        self._asked: list[tuple[Asked, np.ndarray] | None] = [None] * fits
        self._barrier, self._lock = Barrier(fits, self._add), Lock()
        self._known: dict[tuple, np.ndarray] = {}

    def rows(self) -> "_Named":
        """Rows for each of the fits: batches are only named, since `_add` reads them."""
        return _Named(self._rows)

    def run(self, fit: Callable[[int], T]) -> list[T]:
        """fit(position) for every position at once, a thread each; if one fails, all do, and its error is raised."""

        def one(i: int) -> T:
            try:
                return fit(i)
            except BaseException:
                self._barrier.abort()  # or the others would wait for ever
                raise

        with threadpool_limits(1, "blas"), ThreadPoolExecutor(len(self._asked)) as pool:
            running = [pool.submit(one, i) for i in range(len(self._asked))]
        errors = [error for future in running if (error := future.exception())]
        if errors:
            raise next((e for e in errors if not isinstance(e, BrokenBarrierError)), errors[0])
        return [future.result() for future in running]

    def block_sum(self, fit: int) -> BlockSum:
        """How the fit of that position sums, called from `run`."""

        def add(query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
            if block.x.strides[0]:  # rows that were read
                return self._full(query, params, block, keep, clip_norm, out)
            if not fusible(query, params):
                raise TypeError(
                    f"fits on common batches must ask for gradients, got {query.name}. Run them one by one."
                )
            self._asked[fit] = Asked(query, params, clip_norm, out), block.index[keep]  # type: ignore[arg-type]
            self._barrier.wait()
            return out

        return add

    def _full(self, query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
        """A block of a full batch. What needs no head is the same for every fit, and is computed once."""
        if params.weights is not None:
            return self._sums(query, params, block, keep, clip_norm, out)
        key = query, clip_norm, int(block.index[0]), _content(params.transform), params.transform.unit_norm
        with self._lock:
            if key not in self._known:
                self._known[key] = self._sums(query, params, block, keep, clip_norm, np.zeros_like(out))
        out += self._known[key]
        return out

    def _add(self) -> None:
        asked = [a for a in self._asked if a is not None]
        indices = asked[0][1]
        if not all(np.array_equal(other, indices) for _, other in asked):
            raise RuntimeError("fits on common batches must draw the same rows, got different ones.")
        if len({a.query for a, _ in asked}) > 1:
            raise RuntimeError("fits on common batches must have one loss, got several.")
        self._sums.add([a for a, _ in asked], ((b, b.index >= 0) for b in self._rows.blocks(indices)))


class _Named:
    """Rows whose batches are one block of indices, with zeros that take no memory for features."""

    def __init__(self, rows: ArrayRows) -> None:
        self._rows, self.group_cap = rows, rows.group_cap
        self.n_rows, self.n_features = rows.n_rows, rows.n_features

    def blocks(self, indices: np.ndarray | None = None) -> Iterator[Block]:
        if indices is None:
            yield from self._rows.blocks()
            return
        size = CHUNK * max(1, -(-len(indices) // CHUNK))
        index = np.append(indices, np.full(size - len(indices), -1))
        yield Block(index, np.broadcast_to(np.float32(0), (size, self.n_features)), np.full(size, -1, np.int32))


def fusible(query: Query, params: Params) -> bool:
    """Whether the sum is one of clipped gradients of rows that are not scaled one by one."""
    return isinstance(query, Gradient) and query.clip == "rows" and not params.transform.unit_norm and (
        params.weights is not None
    )  # fmt: skip


def _content(transform: RowTransform) -> tuple:
    """Equal for equal maps of a row, whatever they append."""
    return tuple(None if v is None else v.tobytes() for v in (transform.center, transform.scale))


def _fold(params: Params) -> tuple[np.ndarray, np.ndarray]:
    """(weights (d, m) float32, offset (m,)) that give for a row what the head gives for the transformed row."""
    t, weights = params.transform, np.asarray(params.weights, np.float32)
    d = len(weights) - 1 if t.append else len(weights)
    rows = weights[:d] if t.scale is None else t.scale[:, None] * weights[:d]
    offset = np.zeros(weights.shape[1], np.float32)
    if t.center is not None:
        offset -= t.center @ rows
    if t.append:
        offset += np.float32(t.append) * weights[-1]
    return rows, offset


def _unfold(asked: Asked, value: np.ndarray, total: np.ndarray) -> None:
    """Add to asked.out what value (d, m), a sum over rows as they are, is for transformed rows. total: of residuals."""
    t = asked.params.transform
    if t.center is not None:
        value -= np.outer(t.center, total)
    if t.scale is not None:
        value *= t.scale[:, None]
    asked.out[: len(value)] += value
    if t.append:
        asked.out[-1] += t.append * total


def _residual(z: np.ndarray, y: np.ndarray, loss: str) -> np.ndarray:
    """Prediction minus one-hot label, (k, fits, n_classes) float32; z is overwritten."""
    if loss == "softmax":
        z -= z.max(axis=2, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=2, keepdims=True)
    elif loss == "sigmoid":
        z = 1 / (1 + np.exp(-np.clip(z, -80, 80)))
    known = np.flatnonzero((y >= 0) & (y < z.shape[2]))
    z[known, :, y[known]] -= 1
    return z
