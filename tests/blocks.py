"""Rows for tests of blocks, and what blocks of them hold together."""

import numpy as np


def collect(rows, indices=None):
    """(index, x, y) of every used row, and the shapes of the blocks."""
    blocks = list(rows.blocks(indices))
    used = [b.index >= 0 for b in blocks]
    if not blocks:
        return (
            np.array([], int),
            np.zeros((0, rows.n_features), np.float32),
            np.array([], int),
            set(),
        )
    parts = [
        np.concatenate([getattr(b, n)[u] for b, u in zip(blocks, used, strict=True)])
        for n in ("index", "x", "y")
    ]
    return *parts, {b.x.shape for b in blocks}


def data(n, d=5, seed=0):
    """(x (n, d) float32, y (n,)) of three classes."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)).astype(np.float32), rng.integers(0, 3, n)
