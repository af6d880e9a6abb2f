"""The compiled softmax gradient is the reference's, whatever the shapes."""

import numpy as np
import pytest
from core import D, added, hostile, integer_sum, toy
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.privacy.predictions import PROBABILITY_SCALE, powers_of_two
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import Gradient
from dphead.privacy.transform import RADIUS, RowTransform
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import ReferenceSums


@pytest.mark.parametrize("d, m", [(3, 2), (700, 10), (1281, 7), (768, 100), (70, 1001)])
@pytest.mark.parametrize("clip", ["rows", "features"])
def test_wide_rows_and_many_classes(d, m, clip):
    """Of all shapes that the compiled gradient takes apart, and the number of rows no
    multiple of its chunk.
    """
    x, y = hostile(300, d, m, d)
    for append in (0.0, 0.5):
        weights = np.random.default_rng(0).standard_normal((d + bool(append), m))
        params = Params(RowTransform(append=append), weights)
        statistic = Gradient(m, "softmax", clip)
        wanted = integer_sum(statistic, params, x, y, 0.7, block_sum=ReferenceSums())
        assert wanted.any()
        for rows in (300, 129):
            way = CpuSums()
            assert np.array_equal(
                wanted, integer_sum(statistic, params, x, y, 0.7, rows, way)
            )


@settings(max_examples=30)
@given(
    d=st.integers(1, 40),
    m=st.integers(1, 20),
    n=st.integers(16, 150),
    seed=st.integers(0, 99),
    size=st.sampled_from([1e-300, 1e-3, 1.0, 30.0, 1e3, 1e37, 1e300]),
    clip_norm=st.sampled_from([1e-6, 0.7, 1e6]),
)
def test_compiled_gradients_are_the_references(d, m, n, seed, size, clip_norm):
    """Scores far apart, ties, residuals of zero, and clips that cut everything or
    nothing.
    """
    x, y = hostile(n, d, m, seed)
    weights = size * np.random.default_rng(seed).uniform(-1, 1, (d, m))
    weights[:, : m // 3] = weights[:, :1]
    for statistic in (Gradient(m), Gradient(m, "softmax", "features")):
        sums = [
            integer_sum(
                statistic, Params(weights=weights), x, y, clip_norm, block_sum=way
            )
            for way in (CpuSums(), ReferenceSums())
        ]
        assert np.array_equal(*sums)


def test_compiled_residuals_that_are_too_long_are_truncated_or_zero(call):
    """Of two classes of equal chance: 2895.6 twice rounds to a length of 4095.6; others
    are too long or fit.
    """
    values = np.array([2895.6, 1.1 * RADIUS, 2000.7, -1.0])
    z = np.zeros((2, 128), np.int32)
    l = np.full((2, 4), 7, np.int16)
    y = np.array([0, 1, 1, -1], np.int32)
    factor = np.abs(values) / (PROBABILITY_SCALE / 2)
    table = powers_of_two().astype(np.int32)
    call("residuals", z, 2, 4, y, np.zeros(4), factor, np.inf, table, l, 4)
    assert l.tolist() == [[-2895, 0, 2001, 0], [2895, 0, -2001, 0]]


def test_the_compiled_gradient_itself_refuses_weights_of_another_shape():
    """Not only what compares it with the reference, after it has written."""
    x, y = toy(130)
    with pytest.raises(ValueError, match="do not fit the gradient"):
        added(
            CpuSums(),
            Gradient(3),
            Params(weights=np.zeros((D, 2))),
            x,
            y,
            np.arange(130),
        )
