"""The last iterate is what it is said to be, and so are a row's bounds."""

import numpy as np
import pytest

from benchmarks.experiments import last_iterate
from dphead.data.arrays import ArrayRows


def test_the_last_iterate_is_gradient_descent(tiny):
    x, y = tiny
    m = y.max() + 1
    rates = np.array([2.0, 0.5])
    weights = last_iterate.last_iterates(
        ArrayRows(x, y, 128), rates, np.zeros(2), 1, 2, 0
    )
    unit = np.c_[
        x / np.linalg.norm(x, axis=1, keepdims=True), np.full(len(x), last_iterate.BIAS)
    ]
    order = np.random.default_rng(0).permutation(len(x))
    for rate, found in zip(rates, weights, strict=True):
        w = np.zeros((x.shape[1] + 1, m))
        for index in (order[::2], order[1::2]):
            p = np.exp(unit[index] @ w)
            p /= p.sum(1, keepdims=True)
            residual = p - np.eye(m)[y[index]]
            w -= rate * unit[index].T @ residual / len(index)
        np.testing.assert_allclose(found, w, atol=1e-5)


def test_a_step_beyond_the_theorem_is_refused(tiny):
    x, y = tiny
    with pytest.raises(ValueError, match="a step must be at most"):
        last_iterate.last_iterates(
            ArrayRows(x, y), np.array([4.0]), np.ones(1), 1, 2, 0
        )


def test_the_bounds_of_a_row_hold():
    rng = np.random.default_rng(1)
    for _ in range(50):
        x = rng.normal(size=4)
        x = np.append(x / np.linalg.norm(x), last_iterate.BIAS)
        p = rng.dirichlet(np.full(3, 0.3))
        gradient = np.linalg.norm(x) * np.linalg.norm(p - np.eye(3)[0])
        curve = np.diag(p) - np.outer(p, p)
        curvature = x @ x * np.linalg.eigvalsh(curve)[-1]
        assert gradient <= last_iterate.LIPSCHITZ
        assert curvature <= last_iterate.SMOOTHNESS
