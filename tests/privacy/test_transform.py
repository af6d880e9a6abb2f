"""A row becomes integers: no longer than the bound, whatever it holds, and wherever it
stands.
"""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.privacy.transform import (
    FINE_BITS,
    RADIUS,
    RowTransform,
    aim,
    clipped_bound,
    clipped_rows,
    direction_rows,
    transformed,
    within,
)

SIZES = [0.0, 1e-45, 1e-42, 2e-38, 1e-19, 1e-6, 1.0, 7.0, 1e6, 1e19, 3e38]
SHAPES = ["equal", "signs", "normal", "one-hot", "sparse", "spread", "nan", "inf"]
WIDTHS = [1, 2, 3, 17, 128, 1000, 20_000]
APPENDS = [0.0, 1e-6, -1e-6, 0.3, -1.0, 1e6, -1e6]


def row(shape, size, width, seed=0):
    """(1, width) float32."""
    rng = np.random.default_rng(seed)
    x = {
        "equal": lambda: np.ones(width),
        "signs": lambda: rng.choice([-1.0, 1.0], width),
        "normal": lambda: rng.standard_normal(width),
        "one-hot": lambda: np.eye(1, width, seed % width)[0],
        "sparse": lambda: np.where(
            np.arange(width) < 3, [1.0, -2.0, 0.5][seed % 3], 0.0
        ),
        "spread": lambda: (
            rng.standard_normal(width) * 10.0 ** rng.integers(-12, 1, width)
        ),
        "nan": lambda: np.where(np.arange(width) == seed % width, np.nan, 1.0),
        "inf": lambda: np.where(np.arange(width) == seed % width, -np.inf, 1.0),
    }[shape]()
    with np.errstate(all="ignore"):
        return (
            np.clip(x * size if size else x * 0, -3.4e38, 3.4e38).astype(np.float32)[
                None
            ]
            if shape not in ("nan", "inf")
            else x.astype(np.float32)[None]
        )


def transform_of(kind, width, append, seed=0):
    rng = np.random.default_rng(seed)
    center = rng.standard_normal(width) if "c" in kind else None
    scale = 10.0 ** rng.integers(-30, 30, width) if "s" in kind else None
    return RowTransform("u" in kind, center, scale, append)


def squared(q):
    """Sums of squares (k,), in int64, which holds them."""
    return (q.astype(np.int64) ** 2).sum(axis=1)


a_row = st.tuples(
    st.sampled_from(SHAPES),
    st.sampled_from(SIZES),
    st.sampled_from(WIDTHS),
    st.integers(0, 20),
)
KINDS = ["", "u", "c", "s", "cs", "uc", "us", "ucs"]


@settings(max_examples=400)
@given(
    a_row,
    st.sampled_from(KINDS),
    st.sampled_from(APPENDS),
    st.sampled_from([1e-6, 0.1, 1.0, 1e6]),
)
def test_no_row_is_longer_than_the_bound(spec, kind, append, clip_norm):
    """In whole numbers, for direction rows and clipped ones; a row that is not finite
    is all zeros of scale zero.
    """
    x = row(*spec)
    transform = transform_of(kind, x.shape[1], append, spec[3])
    directions = direction_rows(transform, x)
    assert directions.q.dtype == np.int16
    assert directions.q.shape == (1, transform.width(x.shape[1]))
    assert squared(directions.q)[0] <= RADIUS**2
    clipped = clipped_rows(transform, x, clip_norm)
    bound, constant = clipped_bound(clip_norm, append)
    assert bound + constant**2 <= RADIUS**2
    features = clipped.q[:, :-1] if append else clipped.q
    assert squared(features)[0] <= bound
    assert squared(clipped.q)[0] <= RADIUS**2
    if not np.isfinite(x).all():
        assert not clipped.q.any()
        assert not directions.q.any()
        assert clipped.scale[0] == directions.scale[0] == 0
    elif append:
        assert clipped.q[0, -1] in (0, constant)
        assert (clipped.scale[0] > 0) == (clipped.q[0, -1] == constant)


@settings(max_examples=100)
@given(
    a_row,
    st.sampled_from(KINDS),
    st.sampled_from(APPENDS),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_a_rows_integers_do_not_depend_on_its_place_or_its_neighbors(
    spec, kind, append, k, seed
):
    """Alone, at any place of blocks of hostile rows, in memory of any alignment and of
    other strides.
    """
    x = row(*spec)
    width = x.shape[1]
    if width > 1000:
        return
    rng = np.random.default_rng(seed)
    transform = transform_of(kind, width, append, seed)
    kinds = zip(rng.choice(SHAPES, k), rng.choice(SIZES, k), strict=True)
    block = np.concatenate([row(s, z, width, seed) for s, z in kinds])
    place = int(rng.integers(k))
    block[place] = x[0]
    memory = np.empty(block.size + 16, np.float32)
    for start in (0, 1, 3):
        moved = memory[start : start + block.size].reshape(block.shape)
        moved[:] = block
        for version in (moved, np.asfortranarray(block)):
            for make in (direction_rows, lambda t, v: clipped_rows(t, v, 0.7)):
                alone = make(transform, x)
                beside = make(transform, version)
                assert np.array_equal(alone.q[0], beside.q[place])
                assert alone.scale[0] == beside.scale[place]


@pytest.mark.parametrize("width", [1, 4, 768, 15_552])
@pytest.mark.parametrize("size", [1e-42, 1e-3, 1.0, 1e30])
def test_the_error_of_a_rows_integers_is_small(width, size):
    """Normal rows: each entry is rounded to a whole number, after the row was made
    shorter by 1 + width / 65520.
    """
    x = row("normal", size, width, 3)
    norm = np.linalg.norm(x.astype(float))
    rows = direction_rows(RowTransform(), x)
    back = rows.q[0] * rows.scale[0]
    assert np.abs(back - x[0]).max() <= rows.scale[0] * 0.51
    assert rows.scale[0] == pytest.approx(norm / aim(RADIUS**2, width), rel=1e-5)
    clipped = clipped_rows(RowTransform(), x, 10 * norm)  # not clipped
    assert (
        np.abs(clipped.q[0] * clipped.scale[0] - x[0]).max() <= clipped.scale[0] * 0.51
    )
    short = clipped_rows(RowTransform(), x, 0.1 * norm)
    real = short.q[0] * short.scale[0]
    assert (
        np.linalg.norm(real - 0.1 * x[0].astype(float))
        <= 0.1 * norm * (1 + np.sqrt(width)) / RADIUS
    )


def test_rows_that_would_be_too_long_when_rounded_are_truncated():
    """Halves of 9 round up to a sum of squares of 4 * 25 = 100; truncated it is 64.

    Others are as they were.
    """
    fitting = [9.0, 2.0, 0.0, 0.0]
    integers = np.array([[9.2] * 4, fitting, [-9.2] * 4])
    factor = np.full(3, 0.5)

    def found(bound, last=None):
        return within(integers, factor, last, bound).tolist()

    short = [4, 1, 0, 0]
    assert found(100) == [[5] * 4, short, [-5] * 4]
    assert found(99) == found(64) == [[4] * 4, short, [-4] * 4]
    assert found(63) == [[0] * 4, short, [0] * 4]
    last = np.full(3, 3.6)
    assert found(100, last)[0] == [4, 4, 4, 4, 3]
    assert found(116, last)[0] == [5, 5, 5, 5, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_what_is_not_a_number_or_beyond_all_bounds_counts_zero(bad):
    with np.errstate(all="ignore"):
        q = within(np.array([[1.0, bad], [1.0, 2.0]]), np.ones(2), None, 100)
    assert q.tolist() == [[0, 0], [1, 2]]


def test_the_fallback_is_reached_by_rows_of_many_equal_entries():
    """Entries just above a half round up, all of them: the norm would grow by the
    square root of two or more.
    """
    seen = 0
    for width in range(15_000, 20_000, 7):
        length = aim(RADIUS**2, width) / np.sqrt(width)
        rounded = np.rint(length) ** 2 * width > RADIUS**2
        q = direction_rows(RowTransform(), np.ones((1, width), np.float32)).q
        assert squared(q)[0] <= RADIUS**2
        if rounded:
            seen += 1
            assert len(np.unique(q)) == 1
            assert q[0, 0] == int(length)
    assert seen > 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_transform_is_its_definition(kind):
    """To 2**-20 of the largest entry at each of the two places where entries are
    rounded.
    """
    from definitions import transformed_row

    rng = np.random.default_rng(1)
    x = (rng.standard_normal((50, 9)) * 10.0 ** rng.integers(-5, 6, (50, 1))).astype(
        np.float32
    )
    scale = rng.uniform(0.5, 2, 9) if "s" in kind else None
    transform = RowTransform(
        "u" in kind, 0.1 * rng.standard_normal(9) if "c" in kind else None, scale
    )
    rows = transformed(transform, x)
    real = rows.integers * rows.scale[:, None]
    for one, xi in zip(real, x, strict=True):
        wanted = transformed_row(transform, xi.astype(float))
        assert np.abs(one - wanted).max() <= 1e-5 * max(
            np.abs(wanted).max(), 0.1 if "c" in kind and "u" in kind else 0
        )
    assert np.array_equal(rows.squared, squared(rows.integers))
    assert np.abs(rows.integers).max() <= 2**FINE_BITS
    np.testing.assert_allclose(rows.norm(), np.linalg.norm(real, axis=1), rtol=1e-14)


@pytest.mark.parametrize("name", ["center", "scale"])
def test_a_transforms_numbers_do_not_change_once_it_is_made(name):
    """Rows that it made are kept by its identity: they must stay what it makes."""
    values = np.array([0.5, -2.0, 1.0])
    transform = RowTransform(**{name: values})
    x = np.ones((1, 3), np.float32)
    before = direction_rows(transform, x).q
    values[0] = 7
    assert np.array_equal(direction_rows(transform, x).q, before)
    with pytest.raises(ValueError, match="read-only"):
        getattr(transform, name)[0] = 7


def test_a_row_of_zeros_stays_one():
    for kind in ("", "u", "s", "us"):
        rows = clipped_rows(
            transform_of(kind, 3, 0.0), np.zeros((2, 3), np.float32), 1.0
        )
        # it counts: as a row of its class
        assert not rows.q.any()
        assert np.all(rows.scale > 0)


@pytest.mark.parametrize("name", ["center", "scale"])
@pytest.mark.parametrize("values", [["1", "2"], [None, 1.0], [1j, 2.0], [True, False]])
def test_a_transform_of_what_are_no_numbers_is_refused(name, values):
    """Objects' own code could otherwise decide what a row becomes."""
    with pytest.raises(ValueError, match="must be an array of real numbers"):
        RowTransform(**{name: np.array(values)})


@pytest.mark.parametrize("of", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_of_a_transform_keeps_its_numbers(of):
    """Numpy would copy the center as an array that can be changed after the check."""
    made = RowTransform(True, np.ones(3), np.full(3, 2.0), 0.5)
    again = of(made)
    assert repr(again) == repr(made)
    for values in (again.center, again.scale):
        assert not values.flags.writeable


@pytest.mark.parametrize("append", [math.nan, math.inf, 1e-300, 1e200])
def test_a_constant_that_would_spoil_the_sensitivity_is_refused(append):
    with pytest.raises(ValueError, match="append"):
        RowTransform(append=append)


@pytest.mark.parametrize("append", [1e-6, -1e-6, 1e6, -1e6])
def test_constants_of_extreme_sizes(append):
    """One far larger than the row leaves nothing of the row; one far smaller is itself
    rounded to zero.
    """
    x = row("normal", 1.0, 5)
    directions = direction_rows(RowTransform(append=append), x)
    clipped = clipped_rows(RowTransform(append=append), x, 1)
    for rows in (directions, clipped):
        assert squared(rows.q)[0] <= RADIUS**2
        assert rows.q.any()
        if abs(append) > 1:
            assert not rows.q[0, :-1].any()
            assert abs(rows.q[0, -1]) >= RADIUS - 2
            assert rows.q[0, -1] * append > 0
        else:
            assert rows.q[0, -1] == 0
            assert rows.q[0, :-1].any()
