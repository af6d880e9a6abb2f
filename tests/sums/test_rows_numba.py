"""Rows that could leave the range in which compiled rows are the reference's."""

import numpy as np
import pytest

from dphead.privacy import transform as reference
from dphead.privacy.transform import RADIUS, WIDEST, RowTransform
from dphead.sums import rows_numba


@pytest.mark.parametrize("append", [0.0, -2.0, 1e6])
@pytest.mark.parametrize("unit_norm", [False, True])
@pytest.mark.parametrize("size", [1e-250, 1e-270, 1e-290, 1e-305, 1e-320])
def test_tiny_numbers_of_a_transform_keep_rows_within_the_clip(size, unit_norm, append):
    """Dividing by their power of two overflowed, and so did the compiled sum of squares: an entry was 16960."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 35)).astype(np.float32)
    x[4:] *= np.float32(1e-40)
    x[2] = 0
    numbers = size * rng.normal(size=35)
    for made in (RowTransform(unit_norm, None, numbers, append), RowTransform(unit_norm, numbers, None, append)):
        pairs = (
            (reference.direction_rows(made, x), rows_numba.direction_rows(made, x)),
            (reference.clipped_rows(made, x, 0.5), rows_numba.clipped_rows(made, x, 0.5)),
        )
        for slow, fast in pairs:
            assert (fast.q.astype(np.int64) ** 2).sum(axis=1).max() <= RADIUS**2
            np.testing.assert_array_equal(fast.q, slow.q)
            np.testing.assert_array_equal(fast.scale, slow.scale)


def test_rows_whose_squares_could_overflow_are_refused():
    assert RowTransform(append=1.0).width(WIDEST) == WIDEST + 1
    with pytest.raises(ValueError, match="at most"):
        RowTransform().width(WIDEST + 1)
