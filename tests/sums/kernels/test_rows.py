"""Compiled rows are those of `privacy.transform`, bit for bit."""

import numpy as np
import pytest
from core import hostile
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.privacy import transform
from dphead.privacy.contract import Block
from dphead.privacy.statistic_base import Params
from dphead.privacy.transform import RADIUS, RowTransform
from dphead.sums import kernels
from dphead.sums.reference import row_norms


def check(way, x, clip_norm):
    for slow, fast in (
        (transform.direction_rows(way, x), kernels.integer_rows(way, x)),
        (
            transform.clipped_rows(way, x, clip_norm),
            kernels.integer_rows(way, x, clip_norm),
        ),
    ):
        assert (fast.q.astype(np.int64) ** 2).sum(axis=1).max() <= RADIUS**2
        np.testing.assert_array_equal(fast.q, slow.q)
        np.testing.assert_array_equal(fast.scale, slow.scale)
    block = Block(np.arange(len(x)), x, np.zeros(len(x), np.int32))
    np.testing.assert_array_equal(kernels.norms(way, x), row_norms(Params(way), block))


@settings(max_examples=80)
@given(
    kind=st.sampled_from(["", "u", "c", "s", "cs", "uc", "us", "ucs"]),
    append=st.sampled_from([0.0, 1e-6, -0.3, 1.0, 1e6, -1e6]),
    d=st.integers(1, 60),
    seed=st.integers(0, 99),
    clip_norm=st.sampled_from([1e-6, 0.7, 1e6]),
)
def test_compiled_rows_are_the_definitions(kind, append, d, seed, clip_norm):
    rng = np.random.default_rng(seed)
    x, _ = hostile(64, d, 2, seed)
    center = rng.standard_normal(d) if "c" in kind else None
    scale = 10.0 ** rng.integers(-30, 30, d) if "s" in kind else None
    check(RowTransform("u" in kind, center, scale, append), x, clip_norm)


@pytest.mark.parametrize("width", [8191, 15_552, 20_000])
def test_wide_rows_of_equal_entries_are_truncated_alike(width):
    """Where rounding all entries up would make the row too long."""
    x = np.ones((4, width), np.float32) * np.array(
        [[1], [1e-40], [-3], [3e38]], np.float32
    )
    check(RowTransform(), x, 1.0)
    check(RowTransform(append=0.5), x, 1.0)


@pytest.mark.parametrize("whole", [True, False])
def test_the_constant_counts_where_the_bound_is_on_the_whole_row(call, whole):
    """3.6 and a constant of 3.6 round to a sum of squares of 32, and truncate to 18;
    without the constant 16 and 9.
    """
    for bound, of_all, of_features in (
        (32, [4, 4], [4, 4]),
        (31, [3, 3], [4, 4]),
        (17, [0, 0], [4, 4]),
        (15, [0, 0], [3, 3]),
        (8, [0, 0], [0, 3]),
    ):
        q = np.full(2, 7, np.int16)
        how = np.array([1 + (whole << 32), 0, bound])  # three int32, int64
        call("to_integers", np.array([3.6]), 1, 1.0, 3.6, how, q)
        assert q.tolist() == (of_all if whole else of_features)


@pytest.mark.parametrize("append", [0.0, -2.0, 1e6])
@pytest.mark.parametrize("unit_norm", [False, True])
@pytest.mark.parametrize("size", [1e-250, 1e-270, 1e-290, 1e-305, 1e-320])
def test_tiny_numbers_of_a_transform_keep_rows_within_the_clip(size, unit_norm, append):
    """Dividing by their power of two overflowed, and so did the compiled sum of
    squares: an entry was 16960.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 35)).astype(np.float32)
    x[4:] *= np.float32(1e-40)
    x[2] = 0
    numbers = size * rng.normal(size=35)
    for made in (
        RowTransform(unit_norm, None, numbers, append),
        RowTransform(unit_norm, numbers, None, append),
    ):
        check(made, x, 0.5)


def test_rows_whose_squares_could_overflow_are_refused():
    assert RowTransform(append=1.0).width(2**22) == 2**22 + 1
    with pytest.raises(ValueError, match="at most"):
        RowTransform().width(2**22 + 1)
