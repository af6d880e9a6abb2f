"""What all statistics share: whole numbers that are Python's, exact scores, and rows
that count zero.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from core import NAMES, STATISTICS, D, M, integer_sum, one_block, toy
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.privacy.contract import SumTask
from dphead.privacy.predictions import integer_weights
from dphead.privacy.statistic_base import Chunk, Params, root
from dphead.privacy.statistics import ChannelMoment, Gradient
from dphead.privacy.transform import RowTransform
from dphead.sums.cpu import CpuSums

CENTER = np.array([0.5, -1.0, 0.25, 2.0], np.float32)


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@pytest.mark.parametrize("n", [np.int64(17), np.int32(17), 17.0, True, 0, -1, None])
def test_numbers_that_come_round_are_refused(statistic, n):
    """Of numpy's int64, 17 * 2**12 * 4095**4 is 5 % of itself."""
    others = {k: v for k, v in vars(statistic).items() if k != "n_classes"}
    with pytest.raises(ValueError, match="n_classes must be a Python int"):
        type(statistic)(n_classes=n, **others)


@settings(max_examples=40)
@given(st.sampled_from([1, 3, 64, 2000]), st.integers(1, 5), st.integers(0, 9))
def test_scores_are_exact_whole_numbers(width, m, seed):
    """Beyond 2**24, where float32 would round them by the order of its additions."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((7, width)).astype(np.float32)
    weights = integer_weights(rng.standard_normal((width, m)))
    rows = Gradient(m).rows(RowTransform(), x, 1.0)
    z, rate = Chunk(rows, np.zeros(7, int), np.ones(7, bool), weights, 1.0).scores(np)
    assert np.array_equal(z, rows.q.astype(np.int64) @ weights.w.T.astype(np.int64))
    assert np.abs(z).max() > 2**24 or width > 1
    assert np.array_equal(rate[:, 0], rows.scale * weights.step)


def test_padding_and_bad_rows_count_zero_after_a_transform_that_moves_them():
    """A center moves zero rows off zero, so masking before the transform would count
    them (defect 13).
    """
    x, y = toy(5)
    bad = np.array(
        [
            [np.nan, 0, 0, 0],
            [np.inf, 1, 1, 1],
            [1, -np.inf, 0, 0],
            [1, 1, 1, 1],
            [1, 1, 1, 1],
        ],
        np.float32,
    )
    for statistic in STATISTICS:
        if isinstance(statistic, ChannelMoment):
            transform = RowTransform(False, CENTER)
        else:
            transform = RowTransform(False, CENTER, None, 1.0)
        params = Params(transform, np.ones((transform.width(D), M)))
        block, used = one_block(x, y)
        block.x[5:] = 7.0  # padding that is not even zero
        block.y[5:] = 0
        for way in (CpuSums(compiled=False), CpuSums()):
            alone = integer_sum(statistic, params, x, y, block_sum=way)
            labels = np.concatenate([y, [0, 1, 2, -1, M]])
            mixed = integer_sum(
                statistic, params, np.concatenate([x, bad]), labels, block_sum=way
            )
            assert np.array_equal(alone, mixed)
            assert not integer_sum(
                statistic, params, bad, np.array([0, 1, 2, -1, M]), block_sum=way
            ).any()
            ask = SumTask(statistic, params, 1.0)
            out = np.zeros_like(alone)
            out = way.add(ask, way.rows(ask, block), block.y, used, out)
            upper = np.triu if statistic.symmetric else np.asarray
            assert np.array_equal(upper(alone), upper(out))


@given(st.integers(0, 2**110))
def test_the_root_of_a_sensitivity_sq_is_not_below_it(squared):
    assert Fraction(root(squared)) ** 2 >= squared
    assert root(squared) <= math.sqrt(squared) * (1 + 1e-15)
