"""Rows of a features file as blocks: the rows in memory, streamed or loaded."""

import numpy as np
import pytest
from blocks import collect, data
from dphead_extract.features.format import FormatError, open_features, write_features

from dphead.data import features
from dphead.data.features import FeaturesRows, check_classes, load_features


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
        for chosen in (None, np.arange(0, len(wanted), 7), np.array([], int)):
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


def test_known_blocks_come_together_and_others_as_they_are_read(path, monkeypatch):
    """Slots are in order, each once, whatever is known; no more is read than that."""
    monkeypatch.setattr(features, "streamed_rows", lambda n_features: 256)
    rows, file = load_features(path[0], "train", 0)
    n = rows.n_rows
    with file:
        x = rows.features()
        for unknown in ([], [0], [700], [n - 1], [0, 1500, n - 1], range(n)):

            def known(index, unknown=unknown):
                return not set(index.tolist()) & set(unknown)

            blocks = list(rows.blocks(known=known))
            index = np.concatenate([block.index for block in blocks])
            assert np.array_equal(index[:n], np.arange(n))
            assert (index[n:] == -1).all()
            for block in blocks:
                slots = block.index[block.index >= 0]
                assert np.array_equal(block.y[: len(slots)], rows.labels()[slots])
                if not known(block.index):
                    assert len(block.index) == 256
                    assert np.array_equal(block.x[: len(slots)], x[slots])
                    continue
                assert block.x.shape == (len(block.index), 0)
                assert len(block.index) in (256, 4 * 256)
            whole = [b for b in blocks if len(b.index) > 256]
            assert bool(whole) == (len(unknown) < n)


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
    [np.arange(0, 5000, 2), np.array([0, 1, 2, 7, 2047, 2048, 2049, 4999]), None],
)
def test_parts_of_a_file_are_its_rows_in_order(tmp_path, memory, chosen):
    """Also rows near each other, far apart and on both sides of a block of the file."""
    x, y = data(5000, 6)
    write_features(tmp_path / "f.h5", x, y, ["a", "b", "c"])
    whole, file = load_features(tmp_path / "f.h5", memory=0)
    with file:
        for start, stop in ((0, 1), (1, 2500), (2500, 5000), (17, 17)):
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
        with pytest.raises(FormatError, match=r"there are \d+ label sets"):
            FeaturesRows(file, "train", memory, label_sets=sets[1:])


def test_labels_are_positions_of_the_files_own_classes_or_of_counted_ones(tmp_path):
    """A file without class names has positions alone, which grades from 1 are not."""
    x, y = np.ones((4, 2), np.float32), np.arange(4) % 3
    write_features(tmp_path / "named.h5", x, y, ["1", "2", "3"])
    write_features(tmp_path / "bare.h5", x, y)
    with open_features(tmp_path / "named.h5") as file:
        check_classes(file, np.array([1, 2, 3]))
        for others in ([2, 1, 3], ["0", "1", "2"], ["1", "2"]):
            with pytest.raises(FormatError, match="differ from the classes of"):
                check_classes(file, others)
    with open_features(tmp_path / "bare.h5") as file:
        check_classes(file, [0, 1, 2])
        check_classes(file, ["cat", "dog", "eel"])
        for others in ([1, 2, 3], ["2", "1", "0"]):
            with pytest.raises(FormatError, match="are numbers from 0"):
                check_classes(file, others)
