"""Problems of a features file: equal images and groups."""

import numpy as np
import pytest
from dphead_extract.errors import FormatError
from dphead_extract.features.format import open_features, write_features
from dphead_extract.features.verify import check_blocks, verify


def test_equal_images_are_reported_within_a_split(tmp_path):
    """Images without a group are of two."""
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    x[5], x[7], x[9], x[11] = x[1], x[2], x[4], x[10]
    labels = np.arange(12) % 2
    labels[5], labels[7], labels[9] = labels[1], labels[2], 1 - labels[4]
    labels[11] = labels[10]
    group = np.array([f"p{i // 2}" for i in range(12)])
    group[5], group[7], group[9], group[11] = group[1], "p9", group[4], ""
    write_features(tmp_path / "f.h5", x, labels, ["a", "b"], group=group)
    assert verify(tmp_path / "f.h5") == [
        "equal images in two classes: 2 (rows 4 = 9)",
        "equal images in two groups: 4 (rows 2 = 7, 10 = 11)",
        "equal images in several rows: 2 (rows 1 = 5)",
    ]


def test_groups_with_the_name_of_a_missing_value_are_reported(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    group = np.array(["p1", "NA", "", "NA", "p2"])
    write_features(tmp_path / "f.h5", x, np.zeros(5, int), ["a"], group=group)
    (problem,) = verify(tmp_path / "f.h5")
    assert problem.startswith("rows of one group 'NA' (") and "2 (rows 1, 3)" in problem


def test_rows_in_no_split_are_reported(tmp_path):
    names, split = ["train", "test", "none"], [0, 2, 1, 2, 0]
    rows = {"split": split, "split_names": names}
    write_features(tmp_path / "f.h5", np.eye(5), np.zeros(5, int), ["a"], **rows)
    (problem,) = verify(tmp_path / "f.h5")
    assert problem.startswith("rows in no split, which") and "2 (rows 1, 3)" in problem


@pytest.mark.parametrize("block_rows", [-1, 0, 2])
def test_blocks_that_no_digest_covers_are_refused(tmp_path, block_rows):
    """With a negative size, no block would be compared with its digest."""
    write_features(tmp_path / "f.h5", np.ones((5, 3)), np.zeros(5, int), ["a"])
    with open_features(tmp_path / "f.h5") as file:
        file.config["block_rows"] = block_rows
        with pytest.raises(FormatError, match="do not cover its 5 rows"):
            check_blocks(file)


def test_a_column_that_hides_all_others_is_reported(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    for name, size, found in (("some", 20, 0), ("all", 1000, 1)):
        x[:, 2] = size * x[:, 1]
        path = tmp_path / f"{name}.h5"
        write_features(path, x, np.zeros(50, int), ["a"], valid=np.arange(50) > 5)
        problems = [one for one in verify(path) if "masked" not in one]
        assert len(problems) == found
    assert problems[0].startswith("column 2 has over 99.9 % of the squared length")
