"""Public axes: a row's products depend on that row alone, and are exact."""

import pickle

import numpy as np
import pytest
from definitions import products_with_axes
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.privacy import axes as module
from dphead.privacy.axes import PublicAxes

D, N = 5, 3
VALUES = st.sampled_from(
    [0.0, 1.0, -1.0, 0.1, 1e-45, 1e30, -3e38, 3.4e38, np.nan, np.inf, -np.inf]
) | st.floats(width=32)
ROWS = st.lists(st.lists(VALUES, min_size=D, max_size=D), min_size=1, max_size=9)
RNG = np.random.default_rng(0)
AXES = PublicAxes(np.linalg.qr(RNG.normal(size=(D, N)))[0])


@given(ROWS, st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_products_with_axes_are_those_of_the_definition(rows, together):
    """Bit for bit, in exact fractions, however many rows are mapped at a time."""
    x = np.array(rows, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TOGETHER", together)
        found = AXES.rows(x)
    wanted = [products_with_axes(row, AXES.values) for row in x]
    assert found.dtype == np.float32
    assert np.array_equal(found, np.array(wanted), equal_nan=True)


def test_products_of_wide_rows_of_equal_entries_are_exact_at_every_place():
    """The largest partial sums that there can be, whole numbers below 2**53."""
    d = 4096
    axis = np.full((d, 2), d**-0.5)
    axis[::2, 1] *= -1
    axes = PublicAxes(axis)
    row = np.full(d, 1 - 2.0**-20, np.float32)
    place = RNG.normal(size=(37, d)).astype(np.float32)
    place[[0, 17, 36]] = row
    found = axes.rows(place)
    assert np.array_equal(found[0], axes.rows(row[None])[0])
    assert np.array_equal(found[0], found[17]) and np.array_equal(found[0], found[36])
    assert found[0].tolist() == products_with_axes(row, axes.values)


def test_bad_rows_stay_bad_and_rows_of_zeros_stay_zero():
    x = np.ones((4, D), np.float32)
    x[0] = 0
    x[1, 2], x[2, 0] = np.nan, np.inf
    found = AXES.rows(x)
    assert not found[0].any() and np.isnan(found[1:3]).all()
    assert np.isfinite(found[3]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        np.full((D, N), np.nan),
        np.full((D, N), np.inf),
        np.full((D, N), 1e9),
        np.ones(D),
        np.ones((D, 0)),
        np.ones((D, N), int),
        np.full((2**14, 1), 0.9),  # a sum of products could exceed 2**53
    ],
)
def test_axes_whose_products_could_be_inexact_are_refused(wrong):
    with pytest.raises(ValueError, match="axes must be"):
        PublicAxes(wrong)


def test_axes_are_a_copy_that_nobody_changes_and_survive_pickling():
    given = np.eye(D, N)
    axes = PublicAxes(given)
    given[:] = 0
    assert axes.values[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        axes.values[0, 0] = 2
    again = pickle.loads(pickle.dumps(axes))
    assert np.array_equal(again.values, axes.values)
