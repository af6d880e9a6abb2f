"""Rows in memory as blocks: each slot once, fixed shapes, the values as they are."""

import numpy as np
import pytest
from blocks import collect, data

from dphead.data.arrays import ArrayRows


@pytest.mark.parametrize("n", [1, 128, 129, 1000])
@pytest.mark.parametrize("block_rows", [1, 300, 5000])
def test_blocks_hold_every_row_once_as_it_is(n, block_rows):
    """Nothing is centered, scaled or shuffled on the way (defect 15), and every block
    has the same shape.
    """
    x, y = data(n)
    rows = ArrayRows(x, y, block_rows)
    index, xs, ys, shapes = collect(rows)
    assert np.array_equal(index, np.arange(n))
    assert np.array_equal(xs, x)
    assert np.array_equal(ys, y)
    assert len(shapes) == 1
    assert next(iter(shapes))[0] % 128 == 0


@pytest.mark.parametrize("n", [2048, 16_384, 37_000])
def test_rows_in_memory_come_in_few_blocks_of_which_each_core_has_as_many(
    n, monkeypatch
):
    """Four blocks together, as views; what is left, and a sample, in blocks of the
    usual size.
    """
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    x, y = data(n, 2)
    rows = ArrayRows(x, y)
    index, out, labels, shapes = collect(rows)
    assert np.array_equal(index, np.arange(n))
    assert np.array_equal(out, x)
    assert np.array_equal(labels, y)
    large = [b for b in rows.blocks() if len(b.x) == 8192]
    assert len(large) == n // 16_384 * 2
    assert all(b.x.base is not None for b in large)
    assert shapes <= {(8192, 2), (2048, 2)}
    assert {b.x.shape for b in rows.blocks(index)} == {(256, 2)}


def test_blocks_of_chosen_rows_hold_those_once():
    x, y = data(1000)
    rows = ArrayRows(x, y, 128)
    for chosen in (
        np.array([], int),
        np.array([999]),
        np.arange(0, 1000, 3),
        np.arange(1000),
    ):
        index, xs, ys, shapes = collect(rows, chosen)
        assert np.array_equal(index, chosen)
        assert np.array_equal(xs, x[chosen])
        assert np.array_equal(ys, y[chosen])
        assert shapes <= {(128, 5)}  # no shape depends on how many were drawn


def test_padding_is_marked_and_has_no_label():
    x, y = data(130)
    last = list(ArrayRows(x, y, 128).blocks())[-1]
    assert np.all(last.index[2:] == -1)
    assert np.all(last.y[2:] == -1)
    assert not last.x[2:].any()


@pytest.mark.parametrize(
    "label, kept",
    [
        (2, 2),
        (-1, -1),
        (2**32, -1),
        (2**32 + 1, -1),
        (-(2**32), -1),
        (2**31, -1),
        (2**31 - 1, 2**31 - 1),
    ],
)
def test_a_label_beyond_32_bits_does_not_come_round_to_a_class(label, kept):
    rows = ArrayRows(np.zeros((1, 2), np.float32), np.array([label], np.int64))
    assert next(rows.blocks()).y[0] == kept


def test_labels_that_are_no_numbers_count_zero_without_a_warning(recwarn):
    rows = ArrayRows(np.zeros((2, 2), np.float32), np.array([np.nan, 1.0]))
    assert next(rows.blocks()).y[:2].tolist() == [-1, 1]
    assert not recwarn


def test_values_beyond_float32_become_infinite_without_a_warning(recwarn):
    rows = ArrayRows(np.array([[1e300, 1.0]]), np.array([0]))
    assert np.isinf(next(rows.blocks()).x[0, 0])
    assert not recwarn


def test_shapes_that_do_not_match_are_refused():
    for x, y in (
        (np.zeros(3), np.zeros(3)),
        (np.zeros((3, 2)), np.zeros(2)),
        (np.zeros((3, 2)), np.zeros((3, 1))),
        (np.zeros((3, 2)), np.zeros((2, 4))),
        (np.zeros((3, 2)), np.zeros((3, 4, 2))),
    ):
        with pytest.raises(ValueError, match="must have shape"):
            ArrayRows(x, y)


@pytest.mark.parametrize("dtype", [np.uint64, float, bool])
def test_groups_that_a_cast_could_merge_or_take_apart_are_refused(dtype):
    x, y = data(6, 4)
    with pytest.raises(ValueError, match="integers that fit int64"):
        ArrayRows(x, y, groups=np.arange(6).astype(dtype), group_cap=1)
    with pytest.raises(ValueError, match="one entry per row"):
        ArrayRows(x, y, groups=np.arange(5), group_cap=1)
    assert (
        ArrayRows(
            x, y, groups=np.uint32([7] * 3 + [2**32 - 1] * 3), group_cap=1
        ).within.sum()
        == 2
    )


def test_every_pass_sees_the_array_as_it_is_then():
    """Also in the padded block: a caller who blanks rows in place must not find them in
    the next fit.
    """
    x = np.ones((300, 4), np.float32)
    rows = ArrayRows(x, np.zeros(300, int), 128)
    list(rows.blocks())
    x[:] = 7
    assert all((b.x[b.index >= 0] == 7).all() for b in rows.blocks())


def test_a_label_set_holds_ones_and_zeros_alone():
    """Each row alone; 256 must not come round to 0."""
    given = np.array([[0, 1], [256, 1], [1, 257], [-1, 0], [0, 0.5], [np.nan, 1]])
    for y, n in ((given, 6), (given[:4].astype(np.int64), 4)):
        rows = ArrayRows(np.zeros((n, 3)), y)
        found = next(rows.blocks()).y
        assert found[:n].tolist() == [[0, 1]] + [[-1, -1]] * (n - 1)
        assert found.dtype == np.int8
