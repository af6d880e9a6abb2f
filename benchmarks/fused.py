"""Block sums for benchmarks only: the same clipped gradient sums, several times as fast, without the rounding bound.

The row's map x → (x - c) ∘ s is folded into the weights and out of the sum, so that a batch is read twice and never
copied, and products are float32. Sums differ from `NumpySums`' by rounding alone (tests/benchmarks/test_fused.py), but
AUDIT.md, "Floating point", does not cover them: nothing that is to be private may use this.
"""

from typing import Any

import numpy as np

from dphead.privacy.mechanism import Block, NumpySums
from dphead.privacy.queries import Gradient, Params, Query, RowTransform


class FusedSums:
    """A `BlockSum`. It keeps the squared norm of each row after the transform, 8 bytes a row."""

    def __init__(self) -> None:
        self._exact = NumpySums(memory=1 << 30)
        self._transform: RowTransform | None = None
        self._squared = np.zeros(0)

    def __call__(self, query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
        """Add the block's clipped statistics to out (width, n_classes) float64; other queries go to `NumpySums`."""
        t = params.transform
        if not isinstance(query, Gradient) or query.clip != "rows" or t.unit_norm or params.weights is None:
            return self._exact(query, params, block, keep, clip_norm, out)
        x = block.x
        scale = np.ones(x.shape[1], np.float32) if t.scale is None else t.scale
        center = None if t.center is None else t.center * scale
        squared = self._norms(t, block)
        ok = keep & np.isfinite(squared) & (block.y >= 0) & (block.y < query.n_classes)
        if not np.isfinite(squared[keep]).all():
            x = np.where(ok[:, None], x, np.float32(0))
        weights = params.weights.astype(np.float32)
        rows = weights[: x.shape[1]]
        z = x @ (rows if t.scale is None else scale[:, None] * rows)
        if center is not None:
            z -= center @ rows
        if t.append:
            z += np.float32(t.append) * weights[-1]
        residual = _residual(z, block.y, query.loss)
        norm = np.sqrt((residual**2).sum(1) * np.where(ok, squared + t.append**2, 1))
        residual *= np.where(ok, np.minimum(1, clip_norm / np.maximum(norm, 1e-30)), 0).astype(np.float32)[:, None]
        total, value = residual.sum(0, dtype=np.float64), (residual.T @ x).T.astype(np.float64)
        if t.scale is not None:
            value *= t.scale[:, None]
        if center is not None:
            value -= np.outer(center, total)
        out[: x.shape[1]] += value
        if t.append:
            out[-1] += t.append * total
        return out

    def _norms(self, transform: RowTransform, block: Block) -> np.ndarray:
        """Squared norms (k,) of the transformed rows, computed when a row is first seen."""
        if transform is not self._transform:
            self._transform, self._squared = transform, np.zeros(0)
        last = int(block.index.max())
        if last >= len(self._squared):
            self._squared = np.append(self._squared, np.full(max(last + 1, 1 << 16) - len(self._squared), np.nan))
        used = block.index >= 0
        new = np.flatnonzero(used & np.isnan(self._squared[block.index]))
        for i in range(0, len(new), 256):
            part = new[i : i + 256]
            with np.errstate(all="ignore"):
                squared = transform.apply(np, block.x[part])[1]
            self._squared[block.index[part]] = np.where(np.isfinite(squared), squared, np.inf)
        return np.where(used, self._squared[block.index], 0)


def _residual(z: np.ndarray, y: np.ndarray, loss: str) -> np.ndarray:
    """Prediction minus one-hot label, (k, n_classes) float32; z is overwritten."""
    if loss == "softmax":
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
    elif loss == "sigmoid":
        z = 1 / (1 + np.exp(-np.clip(z, -80, 80)))
    known = np.flatnonzero((y >= 0) & (y < z.shape[1]))
    z[known, y[known]] -= 1
    return z
