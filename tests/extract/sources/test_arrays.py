"""Arrays that are made to break a program; what they hold is in test_images."""

import gzip
import struct

import numpy as np
import pytest
from dphead_extract.errors import ExtractError
from dphead_extract.sources.arrays import read_idx
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.opening import open_source

HEADER = b"\0\0\x08\x03" + struct.pack(">III", 2, 3, 4)


def npz(path, **arrays):
    images = np.zeros((4, 5, 5), np.uint8)
    np.savez(path, **({"images": images, "labels": np.zeros(4, int)} | arrays))
    return path


def test_an_idx_file_is_as_long_as_its_header_says(tmp_path):
    for name, pack in (("a", bytes), ("a.gz", gzip.compress)):
        path = tmp_path / name
        path.write_bytes(pack(HEADER + bytes(range(24))))
        assert read_idx(path).tolist() == np.arange(24).reshape(2, 3, 4).tolist()
        for held in (HEADER + bytes(23), HEADER + bytes(25), HEADER, b"\0\0\x08"):
            path.write_bytes(pack(held))
            with pytest.raises(ExtractError, match=r"must|cannot read|not a whole IDX"):
                read_idx(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"labels": np.float32(3)},
        {"labels": np.array(["x", None] * 2, dtype=object)},
        {"images": np.zeros((4, 0, 5), np.uint8)},
        {"images": np.uint8(3)},
        {"labels": np.uint8(3)},
        {"split": np.zeros((4, 2))},
    ],
)
def test_arrays_of_no_source_are_one_line(arrays, tmp_path):
    said = r"must|cannot read|not a whole IDX|does not unpickle"
    with pytest.raises(ExtractError, match=said):
        open_source(npz(tmp_path / "s.npz", **arrays), Classes(class_names("3")))


def idx_pair(folder, split):
    pixels = HEADER + bytes(24)
    (folder / f"{split}-images-idx3-ubyte").write_bytes(pixels)
    labels = b"\0\0\x08\x01" + struct.pack(">I", 2) + bytes(2)
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(labels)


def test_every_idx_file_of_a_folder_has_a_split_or_is_refused(tmp_path):
    for split in ("train", "t10k", "val", "._train"):
        idx_pair(tmp_path, split)
    source = open_source(tmp_path, Classes(class_names("3")))
    assert source.split_names == ["train", "validation", "test"]
    idx_pair(tmp_path, "dev")
    with pytest.raises(ExtractError, match="'dev-images-idx3-ubyte' has no split"):
        open_source(tmp_path, Classes(class_names("3")))


def test_files_beside_cifars_batches_are_counted(tmp_path):
    """A list of its own endings would hide them."""
    for name in ("data_batch_1.bin", "test_batch.bin", "holdout.bin"):
        (tmp_path / name).write_bytes(bytes(3073))
    source = open_source(tmp_path, Classes(class_names("10")))
    assert source.n_rows == 2
    assert source.left_out["files that are not of the cifar10 format"] == 1
