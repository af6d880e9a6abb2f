"""Rows as blocks: each slot once, fixed shapes, the values as they are, from memory and
from disk.
"""

import numpy as np
import pytest

from dphead.rows.arrays import ArrayRows
from dphead.rows.blocks import CHUNK, to_float32
from dphead.rows.features import FeaturesRows, load_features, split_slots
from extract.format import FormatError, open_features, write_features


def collect(rows, indices=None):
    """(index, x, y) of every used row, and the shapes of the blocks."""
    blocks = list(rows.blocks(indices))
    used = [b.index >= 0 for b in blocks]
    if not blocks:
        return (
            np.array([], int),
            np.zeros((0, rows.n_features), np.float32),
            np.array([], int),
            set(),
        )
    parts = [
        np.concatenate(
            [
                getattr(b, n)[u]
                for b, u in zip(
                    blocks,
                    used,
                    strict=True,
                )
            ]
        )
        for n in ("index", "x", "y")
    ]
    return *parts, {b.x.shape for b in blocks}


def data(n, d=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)).astype(np.float32), rng.integers(0, 3, n)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("block_rows", [1, 128, 300, 5000])
def test_blocks_hold_every_row_once_as_it_is(n, block_rows):
    """Nothing is centred, scaled or shuffled on the way (defect 15), and every block
    has the same shape.
    """
    x, y = data(n)
    rows = ArrayRows(x, y, block_rows)
    index, xs, ys, shapes = collect(rows)
    assert np.array_equal(index, np.arange(n))
    assert np.array_equal(xs, x)
    assert np.array_equal(ys, y)
    assert len(shapes) == 1
    assert next(iter(shapes))[0] % CHUNK == 0


@pytest.mark.parametrize("n", [2048, 16_383, 16_384, 37_000])
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
    rows = ArrayRows(
        np.zeros((1, 2), np.float32),
        np.array([label], np.int64),
    )
    assert next(rows.blocks()).y[0] == kept


def test_labels_that_are_no_numbers_count_zero_without_a_warning(recwarn):
    rows = ArrayRows(
        np.zeros((2, 2), np.float32),
        np.array([np.nan, 1.0]),
    )
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
        with pytest.raises(ValueError, match="Reshape"):
            ArrayRows(x, y)


@pytest.fixture(params=["float32", "float16"])
def path(tmp_path, request):
    """5,000 rows in two interleaved splits, some unreadable."""
    x, y = data(5000, 6)
    split = np.arange(5000) % 3 // 2
    valid = np.ones(5000, bool)
    valid[[4, 4999]] = False
    x[~valid] = 0
    write_features(
        tmp_path / "f.h5",
        x.astype(request.param),
        y,
        ["a", "b", "c"],
        split=split,
        split_names=["train", "test"],
        valid=valid,
    )
    return (
        tmp_path / "f.h5",
        x.astype(request.param).astype(np.float32),
        y,
        split,
        valid,
    )


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_split_on_disk_is_the_same_rows_streamed_or_loaded(path, memory):
    path, x, y, split, valid = path
    rows, file = load_features(path, "train", memory)
    with file:
        wanted = np.flatnonzero(split == 0)
        # an unreadable image keeps its place, so n is public
        assert rows.n_rows == len(wanted)
        for chosen in (
            None,
            np.arange(0, len(wanted), 7),
            np.array([], int),
        ):
            index, xs, ys, _ = collect(rows, chosen)
            slots = wanted if chosen is None else wanted[chosen]
            assert np.array_equal(
                index, np.arange(len(wanted)) if chosen is None else chosen
            )
            assert np.array_equal(xs, x[slots])
            assert xs.dtype == np.float32
            assert np.array_equal(ys, np.where(valid, y, -1)[slots])
        assert np.array_equal(rows.features(), x[wanted])
        assert np.array_equal(rows.labels(), np.where(valid, y, -1)[wanted])


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_label_sets_stand_in_place_of_a_files_labels(path, memory):
    """Of the split's rows in their order; an unreadable image has none."""
    path, _, _, split, valid = path
    wanted = np.flatnonzero(split == 0)
    sets = np.random.default_rng(0).integers(0, 2, (len(wanted), 5))
    with open_features(path) as file:
        rows = FeaturesRows(file, "train", memory, label_sets=sets)
        known = np.where(valid[wanted, None], sets, -1)
        for chosen in (np.arange(len(wanted)), np.arange(0, len(wanted), 7)):
            blocks = list(rows.blocks(chosen))
            y = np.concatenate([b.y for b in blocks])
            index = np.concatenate([b.index for b in blocks])
            assert y.shape == (len(index), 5) and y.dtype == np.int8
            assert np.array_equal(y[index >= 0], known[chosen])
            assert (y[index < 0] == -1).all()
        assert np.array_equal(rows.labels(), known)
        with pytest.raises(FormatError, match="one for each of the split's"):
            FeaturesRows(file, "train", memory, label_sets=sets[1:])


def test_a_label_set_holds_ones_and_zeros_alone():
    """Each row alone; 256 must not come round to 0."""
    given = np.array([[0, 1], [256, 1], [1, 257], [-1, 0], [0, 0.5], [np.nan, 1]])
    for y, n in ((given, 6), (given[:4].astype(np.int64), 4)):
        rows = ArrayRows(np.zeros((n, 3)), y)
        found = next(rows.blocks()).y
        assert found[:n].tolist() == [[0, 1]] + [[-1, -1]] * (n - 1)
        assert found.dtype == np.int8


def test_features_that_are_known_are_not_read_from_disk(path, monkeypatch):
    rows, file = load_features(path[0], "train", 0)
    read = []
    real = FeaturesRows._read
    monkeypatch.setattr(
        FeaturesRows,
        "_read",
        lambda self, index, *a: (read.append(index[0]), real(self, index, *a)),
    )
    with file:
        everything = list(rows.blocks())
        read.clear()
        blocks = list(rows.blocks(known=lambda index: index[0] == 0))
        assert blocks[0].x.shape == (len(everything[0].x), 0)
        assert read == [block.index[0] for block in everything[1:]]
        for block, whole in zip(blocks, everything, strict=True):
            assert np.array_equal(block.index, whole.index)
            assert np.array_equal(block.y, whole.y)


def test_a_file_with_several_splits_needs_a_name(path):
    with load_features(path[0], "test")[1] as file:
        for name in (None, "validation"):
            with pytest.raises(FormatError, match="split"):
                split_slots(file, name)


def test_the_reader_does_not_outlive_an_error(path):
    """An error of the consumer ends the read-ahead thread instead of hanging."""
    rows, file = load_features(path[0], "train", 0)
    with file:
        blocks = rows.blocks()
        next(blocks)
        blocks.close()
    assert isinstance(rows, FeaturesRows)


@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize(
    "chosen",
    [
        np.arange(0, 5000, 2),
        np.array([0, 1, 2, 7, 2047, 2048, 2049, 4999]),
        None,
    ],
)
def test_parts_of_a_file_are_its_rows_in_order(tmp_path, memory, chosen):
    """Also rows near each other, far apart and on both sides of a block of the file."""
    x, y = data(5000, 6)
    write_features(tmp_path / "f.h5", x, y, ["a", "b", "c"])
    whole, file = load_features(tmp_path / "f.h5", memory=0)
    with file:
        for start, stop in (
            (0, 1),
            (1, 2500),
            (2500, 5000),
            (17, 17),
        ):
            part = whole.part(start, stop, memory)
            assert (part.n_rows, part.streamed) == (
                stop - start,
                memory == 0 and stop > start,
            )
            wanted = (
                None
                if chosen is None
                else chosen[(chosen >= start) & (chosen < stop)] - start
            )
            index, xs, ys, _ = collect(part, wanted)
            slots = np.arange(stop - start) if wanted is None else wanted
            assert np.array_equal(index, slots)
            assert np.array_equal(xs, x[start:stop][slots])
            assert np.array_equal(ys, y[start:stop][slots])


def test_every_float16_becomes_the_float32_of_the_same_value():
    halves = (
        np.arange(2**16, dtype=np.uint16)
        .view(np.float16)
        .reshape(
            256,
            256,
        )
    )
    out = np.empty(halves.shape, np.float32)
    to_float32(halves, out)
    finite = np.isfinite(halves)
    expected = halves.astype(np.float32)
    # signs of zero too
    assert np.array_equal(out[finite].view(np.int32), expected[finite].view(np.int32))
    assert not np.isfinite(out[~finite]).any()


def test_a_cap_on_groups_holds_for_the_whole_file_and_not_for_each_part(tmp_path):
    x, y = data(400, 6)
    write_features(tmp_path / "f.h5", x, y, ["a", "b", "c"], group=np.arange(400) % 2)
    whole, file = load_features(tmp_path / "f.h5", memory=0, group_cap=3)
    with file:
        kept = [
            whole.part(start, start + 100, 1 << 20).within.sum()
            for start in range(0, 400, 100)
        ]
    assert kept == [6, 0, 0, 0]


@pytest.mark.parametrize("dtype", [np.uint64, float, bool])
def test_groups_that_a_cast_could_merge_or_take_apart_are_refused(dtype):
    x, y = data(6, 4)
    with pytest.raises(ValueError, match="of a dtype that int64 holds"):
        ArrayRows(x, y, groups=np.arange(6).astype(dtype), group_cap=1)
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
