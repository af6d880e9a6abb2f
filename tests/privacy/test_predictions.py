"""Weights on a grid, and residuals that are no longer than the bound."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.privacy.predictions import integer_weights, shortened

MAX_INTEGER_WEIGHT = 2**15 - 1
MAX_WEIGHT_NORM = 2**18


@settings(max_examples=80)
@given(
    width=st.sampled_from([1, 2, 5, 64, 3000]),
    m=st.integers(1, 40),
    seed=st.integers(0, 9),
    size=st.sampled_from([1e-99, 1e-45, 1e-3, 1.0, 1e6, 1e38, 9e99]),
    shape=st.sampled_from(["normal", "equal", "one", "spread"]),
)
def test_weights_become_16_bit_integers_of_bounded_length(width, m, seed, size, shape):
    """So that scores are below 2**30. Each is within half a step of the weight."""
    rng = np.random.default_rng(seed)
    weights = {
        "normal": rng.standard_normal((width, m)),
        "equal": np.ones((width, m)),
        "one": np.zeros((width, m)),
        "spread": rng.standard_normal((width, m))
        * 10.0 ** rng.integers(-9, 9, (width, m)),
    }[shape]
    weights[0, 0] = 1.0 if shape == "one" else weights[0, 0]
    weights *= size / np.abs(weights).max()
    grid = integer_weights(weights)
    w = grid.w.astype(np.int64)
    assert grid.w.dtype == np.int16
    assert grid.w.shape == (m, width)
    assert np.abs(w).max() <= MAX_INTEGER_WEIGHT
    assert (w**2).sum(axis=1).max() <= MAX_WEIGHT_NORM**2
    assert 4095**2 * MAX_WEIGHT_NORM**2 < 2**60
    assert np.abs(w * grid.step - weights.T).max() <= grid.step * (0.5 + 1e-9)
    longest = np.sqrt((w**2).sum(axis=1).max())
    # the grid is no coarser than that
    assert np.abs(
        w
    ).max() == MAX_INTEGER_WEIGHT or longest >= 0.99 * MAX_WEIGHT_NORM - np.sqrt(width)


def test_weights_that_are_not_finite_or_all_zero_count_as_zero():
    grid = integer_weights(np.array([[np.nan, 1.0], [np.inf, -2.0], [-np.inf, 0.5]]))
    assert not grid.w[0].any()
    assert grid.w[1].tolist() == [
        MAX_INTEGER_WEIGHT // 2 + 1,
        -MAX_INTEGER_WEIGHT,
        (MAX_INTEGER_WEIGHT + 2) // 4,
    ]
    # one beyond the largest
    found = integer_weights(np.array([[1.0, 2e100], [3.0, 1.0]]))
    assert found.w.tolist()[1][0] == 0
    for nothing in (
        np.zeros((3, 2)),
        np.full((3, 2), np.nan),
        np.full((3, 2), 5e-324),
        np.full((3, 2), 1e308),
    ):
        grid = integer_weights(nothing)
        assert not grid.w.any()
        assert grid.step == 0


def test_residuals_that_would_be_too_long_are_truncated_or_zero():
    """64 entries of 511.75 round to a length of 4096; truncated it is 4088.

    Of 513 nothing helps.
    """
    residual = np.array([[2047] * 64, [-2047] * 64, [2052] * 64, [2044] * 64])
    l = shortened(np, residual, np.full((4, 1), 0.25))
    found = [np.unique(row).tolist() for row in l]
    assert found == [[511], [-511], [0], [511]]
