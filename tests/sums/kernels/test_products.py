"""Compiled products of integers are those of plain int64, whatever the shapes."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dphead.privacy import predictions, statistics, transform
from dphead.sums import kernels

CHUNK_ROWS, PANEL_ROWS = 128, 512
TOP = 4095  # the largest entry of a row or a residual
# the fixtures only call functions
FIXTURES = [HealthCheck.function_scoped_fixture]
SHAPES = {
    "k": st.one_of(st.integers(0, 9), st.integers(120, 137), st.integers(500, 650)),
    "p": st.integers(1, 120),
    "q": st.one_of(st.integers(1, 70), st.integers(90, 200)),
    "seed": st.integers(0, 9),
}


def integers(seed, shape, top=TOP):
    """Entries up to the top of either sign."""
    return np.random.default_rng(seed).integers(-top, top + 1, shape).astype(np.int16)


def product(a, b):
    """aᵀ b in int64."""
    return a.T.astype(np.int64) @ b.astype(np.int64)


@pytest.fixture
def add_products(call):
    """Add leftᵀ right as the gradient does: residuals have classes first."""

    def added(left, right, out):
        for i in range(0, len(left), PANEL_ROWS):
            part, rows = left[i : i + PANEL_ROWS], right[i : i + PANEL_ROWS]
            k, m = part.shape
            panel = np.full((m, PANEL_ROWS), 999, np.int16)  # after k: not read
            panel[:, :k] = part.T
            shape = (k, right.shape[1])
            call("add_residuals", panel, m, np.ascontiguousarray(rows), *shape, out)

    return added


@pytest.fixture
def scores(call):
    def scored(rows, weights):
        m, d = weights.shape
        packed = np.empty((m, d + 32), np.int16)
        call("pack_weights", np.ascontiguousarray(weights), m, d, packed)
        found = []
        for i in range(0, len(rows), CHUNK_ROWS):
            part = np.ascontiguousarray(rows[i : i + CHUNK_ROWS])
            out = np.full((m, CHUNK_ROWS), 7, np.int32)
            call("score", part, *part.shape, packed, m, out)
            found.append(out[:, : len(part)])
        return np.concatenate([np.empty((m, 0), np.int32), *found], axis=1)

    return scored


def test_the_sources_have_the_constants_of_the_definitions():
    text = "".join(
        file.read_text() for file in Path(kernels.__file__).parent.glob("*.[ch]")
    )
    found = dict(re.findall(r"#define (\w+) +([^/\n]+)", text))
    wanted = vars(predictions) | vars(statistics) | vars(transform)
    shared = found.keys() & wanted.keys()
    assert shared >= {
        "FINE_BITS",
        "MAX_POWER",
        "MOMENT_RADIUS",
        "POWER_TABLE_SIZE",
        "PROBABILITY_SCALE",
        "RADIUS",
        "SMALLEST_ENTRY",
    }
    sizes = {"POWER_TABLE_SIZE": predictions.POWER_TABLE_SIZE}
    for name in shared:
        number = found[name].strip().replace("0x1p-900", "2.0**-900")
        assert eval(number, sizes) == wanted[name], name


@settings(max_examples=20, deadline=None, suppress_health_check=FIXTURES)
@given(**SHAPES)
def test_products_of_any_shape_are_exact(add_products, k, p, q, seed):
    left = integers(seed, (k, p))
    right = integers(seed + 1, (k, q))
    out = np.ones((p, q), np.int64)
    add_products(left, right, out)
    assert np.array_equal(out, 1 + product(left, right))


@settings(max_examples=20, deadline=None, suppress_health_check=FIXTURES)
@given(k=SHAPES["k"], q=SHAPES["q"], seed=SHAPES["seed"])
def test_a_square_of_any_shape_is_exact_from_its_diagonal_on(k, q, seed):
    x = integers(seed, (k, q))
    out = np.ones((q, q), np.int64)
    kernels.add_gram(x, out)
    assert np.array_equal(np.triu(out), np.triu(1 + product(x, x)))


@settings(max_examples=20, deadline=None, suppress_health_check=FIXTURES)
@given(k=st.integers(0, 40), m=SHAPES["p"], d=SHAPES["q"], seed=SHAPES["seed"])
def test_scores_of_any_shape_are_exact(scores, k, m, d, seed):
    """Norms of rows and weights multiply to less than 2**31."""
    rows = integers(seed, (k, d))
    weights = integers(seed + 1, (m, d), 2**31 // d // TOP)
    wanted = product(weights.T, rows.T)
    assert np.array_equal(scores(rows, weights), wanted)


@pytest.mark.parametrize("k, d, m", [(9, 1700, 400), (17, 15552, 2)])
def test_scores_are_exact_across_the_blocks_of_columns_and_weights(scores, k, d, m):
    rows = integers(0, (k, d), 99)
    weights = integers(1, (m, d), 999)
    wanted = product(weights.T, rows.T)
    assert np.array_equal(scores(rows, weights), wanted)


@pytest.mark.parametrize("p", [1, 2, 10, 16, 17, 49])
@pytest.mark.parametrize("sign", [1, -1])
def test_nothing_overflows_where_every_row_has_its_norm_at_one_place(
    add_products, p, sign
):
    """128 products of 4095 and 4095 are 2**31 less 2**20: one row more is too many."""
    left = np.zeros((1000, p), np.int16)
    right = np.zeros((1000, 70), np.int16)
    left[:, -1], right[:, -1] = sign * TOP, TOP
    out = np.zeros((p, 70), np.int64)
    add_products(left, right, out)
    assert np.array_equal(out, product(left, right))
    square = np.zeros((70, 70), np.int64)
    kernels.add_gram(right, square)
    assert np.array_equal(square, product(right, right))


@pytest.mark.parametrize("weight", [32767, -32768])
def test_scores_reach_the_ends_of_int32(scores, weight):
    rows = np.zeros((3, 40), np.int16)
    weights = np.zeros((2, 40), np.int16)
    rows[:, 7:23], weights[:, 7:23] = TOP, weight  # 16 * 4095 * 2**15 < 2**31
    assert np.array_equal(scores(rows, weights), product(weights.T, rows.T))


@pytest.mark.parametrize("kept", [0, 1, 5, 299])
def test_rows_are_added_to_their_classes_whatever_their_number(kept):
    rng = np.random.default_rng(kept)
    rows = integers(0, (299, 37))
    y = rng.integers(0, 9, 299)
    keep = np.zeros(299, bool)
    keep[rng.permutation(299)[:kept]] = True
    y[~keep] = 10**6
    out = np.ones((9, 37), np.int64)
    kernels.add_class_rows(rows, y, keep, out)
    wanted = 1 + product((y[:, None] == np.arange(9))[keep], rows[keep])
    assert np.array_equal(out, wanted)


def test_rows_of_any_memory_layout_are_exact(add_products, scores):
    """Rows and weights that are parts of others, or turned."""
    left = integers(0, (7, 300)).T
    right = integers(1, (300, 90))[:, ::2]
    out = np.zeros((7, 45), np.int64)
    add_products(left, right, out)
    assert np.array_equal(out, product(left, right))
    assert np.array_equal(scores(right, right[:3]), product(right[:3].T, right.T))


@pytest.mark.parametrize(
    "rows, out, words",
    [
        ((9, 3), np.zeros((3, 4), int), "a sum must be int64"),
        ((9, 3), np.zeros((3, 6), int)[:, ::2], "in C order"),
        ((9, 3), np.zeros((3, 3)), "a sum must be int64"),
        ((9,), np.zeros((3, 3), int), "an int16 matrix"),
    ],
)
def test_rows_that_do_not_fit_their_sum_are_refused(rows, out, words):
    """Compiled loops check no bounds."""
    with pytest.raises(ValueError, match=words):
        kernels.add_gram(np.ones(rows, np.int16), out)


@pytest.mark.parametrize(
    "y, keep, width, words",
    [
        ([0, 1], [1, 1, 1], 4, "3 rows have"),
        ([0, 1, 2], [1, 1, 1], 4, "no class from 0 to 1"),
        ([0, 1, -1], [1, 1, 1], 4, "no class from 0 to 1"),
        ([0, 1, 1], [1, 1, 1], 5, "a sum must be int64"),
    ],
)
def test_class_rows_that_do_not_fit_are_refused(y, keep, width, words):
    out = np.zeros((2, width), np.int64)
    with pytest.raises(ValueError, match=words):
        kernels.add_class_rows(
            integers(0, (3, 4)), np.array(y), np.array(keep, bool), out
        )
