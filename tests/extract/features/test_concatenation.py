"""The features of several backbones side by side."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.errors import FormatError
from dphead_extract.features.concatenation import concatenate
from dphead_extract.features.format import open_features, write_features
from dphead_extract.features.rows import Header
from dphead_extract.features.verify import verify
from dphead_extract.features.writing import FeaturesWriter
from dphead_extract.run import extract
from dphead_extract.shards import Shard
from numpy.testing import assert_array_equal

from tests.extract.test_run import options


@pytest.fixture(scope="module")
def folder(tmp_path_factory, digits):
    """A folder with digits and their features by ScatterNets of two scales."""
    folder = tmp_path_factory.mktemp("concat")
    images, labels = digits
    split = np.arange(300) // 200
    np.savez(folder / "d.npz", images=images[:300], labels=labels[:300], split=split)
    extract(options(folder / "d.npz", folder / "a.h5"))
    other = BackboneOptions("scatternet", settings={"scatter_j": (2,), "scatter_l": 4})
    two = options(folder / "d.npz", folder / "b.h5", backbone=other, dtype="float16")
    extract(replace(two, same_data_as=folder / "a.h5"))
    return folder


def test_each_row_has_the_unit_vectors_of_its_own_features(folder):
    """Equal to the bit to a row computed alone: no row may change another one."""
    concatenate([folder / "a.h5", folder / "b.h5"], folder / "ab.h5")
    with (
        open_features(folder / "a.h5") as a,
        open_features(folder / "b.h5") as b,
        open_features(folder / "ab.h5") as both,
    ):
        for name in ("labels", "valid", "split", "row_digest", "salt", "dataset_id"):
            assert_array_equal(getattr(both, name), getattr(a, name))
        assert both.config["backbone"] == "scatternet+scatternet"
        assert both.dtype == np.float32
        for row in (0, 63, 64, 299):
            parts = [file.features[row].astype(float) for file in (a, b)]
            units = [x / np.sqrt(np.square(x).sum()) for x in parts]
            alone = 0.5**0.5 * np.concatenate(units).astype(np.float32)
            assert_array_equal(both.features[row], alone)
    assert verify(folder / "ab.h5") == []


@pytest.mark.parametrize(
    "name, words",
    [
        ("relabeled", "different extractions or sources"),
        ("apart", "differ in dataset_id"),
        ("again", "different extractions or sources"),
        ("imported", "Concatenate embeddings before"),
        ("shard", "Join the shards of each backbone first"),
        ("damaged", "damaged from row 64 on"),
    ],
)
def test_files_of_other_images_are_refused(folder, digits, tmp_path, name, words):
    images, labels = digits
    other = tmp_path / f"{name}.h5"
    if name == "relabeled":
        labels = labels[::-1]
        np.savez(tmp_path / "d.npz", images=images[:300], labels=labels[:300])
        given = options(tmp_path / "d.npz", other, same_data_as=folder / "a.h5")
        extract(given)
    elif name == "apart":
        extract(options(folder / "d.npz", other))
    elif name == "again":  # its digests have another key, so nothing compares images
        with open_features(folder / "a.h5") as file:
            extract(options(folder / "d.npz", other, dataset_id=file.dataset_id))
    elif name == "imported":
        write_features(other, np.ones((300, 3)), labels[:300], list("0123456789"))
    elif name == "shard":
        shard = Shard(0, 2)
        extract(options(folder / "d.npz", other, shard=shard))
        other = shard.path(other)
    else:
        shutil.copy(folder / "b.h5", other)
        with open_features(other) as file:
            place = file.features.id.get_offset() + file.features[:100].nbytes
        with open(other, "r+b") as file:
            file.seek(place)
            file.write(b"\1\1")
    with pytest.raises(FormatError, match=words):
        concatenate([folder / "a.h5", other], tmp_path / "ab.h5")
    assert not (tmp_path / "ab.h5").exists()


def test_one_file_is_not_enough(folder, tmp_path):
    with pytest.raises(FormatError, match="at least two"):
        concatenate([folder / "a.h5"], tmp_path / "ab.h5")


def test_a_changed_file_does_not_leave_the_rows_of_the_old_one(folder, tmp_path):
    """Its configuration may be the same: another number of threads, or another GPU."""
    for name in ("a.h5", "b.h5"):
        shutil.copy(folder / name, tmp_path / name)
    files = [tmp_path / "a.h5", tmp_path / "b.h5"]
    concatenate(files, tmp_path / "ab.h5")
    concatenate(files, tmp_path / "ab.h5")  # nothing is left to do
    other = BackboneOptions("scatternet", settings={"scatter_j": (2,), "scatter_l": 4})
    files[1].unlink()
    extract(
        options(
            folder / "d.npz", files[1], backbone=other, same_data_as=folder / "a.h5"
        )
    )
    with pytest.raises(FormatError, match="other versions: rows was"):
        concatenate(files, tmp_path / "ab.h5")


def made(path, bits=None, config=None, **columns):
    """Write a file of four rows, as `extract` records images; return its path."""
    rows = {"labels": np.array([0, 1, 0, 1]), "group": np.array([5, 5, 6, 6])}
    rows["row_digest"] = np.arange(64, dtype=np.uint8).reshape(4, 16)
    header = Header(
        4,
        3,
        class_names=["a", "b"],
        has_group=True,
        backbone=path.stem,
        transform={"mean": None, "bits": bits},
        config={"source_digest": "equal"} | (config or {}),
        dataset_id="0" * 32,
        salt="1" * 32,
    )
    with FeaturesWriter(path, header) as writer:
        writer.append(np.ones((4, 3)), rows | columns)
        writer.finish()
    return path


@pytest.mark.parametrize("column", ["row_digest", "labels", "group"])
def test_rows_in_another_order_are_refused(tmp_path, column):
    """The files claim to hold the same images, and only their rows tell."""
    one = made(tmp_path / "one.h5")
    with open_features(one) as file:
        turned = made(tmp_path / "two.h5", **{column: getattr(file, column)[::-1]})
    with pytest.raises(FormatError, match=f"differ in the column {column}"):
        concatenate([one, turned], tmp_path / "both.h5")


def test_a_row_masked_in_one_file_is_masked(tmp_path):
    for masks in ([1, 0, 1, 1], [1, 1, 1, 1]), ([1, 1, 1, 1], [1, 0, 1, 1]):
        files = [
            made(tmp_path / f"{name}{masks[0][1]}.h5", valid=np.array(mask, bool))
            for name, mask in zip("ab", masks, strict=True)
        ]
        concatenate(files, tmp_path / f"both{masks[0][1]}.h5")
        with open_features(tmp_path / f"both{masks[0][1]}.h5") as file:
            assert file.valid.tolist() == [True, False, True, True]
            assert not file.features[1].any()


def test_the_same_features_and_combinations_are_refused(folder, tmp_path):
    with pytest.raises(FormatError, match="the same features twice"):
        concatenate([folder / "a.h5", folder / "a.h5"], tmp_path / "x.h5")
    concatenate([folder / "a.h5", folder / "b.h5"], tmp_path / "ab.h5")
    with pytest.raises(FormatError, match="combination already"):
        concatenate([folder / "a.h5", tmp_path / "ab.h5"], tmp_path / "x.h5")


def test_images_decoded_with_other_ranges_are_refused(tmp_path):
    """`predict` decodes an image once, for all backbones."""
    files = [made(tmp_path / "one.h5"), made(tmp_path / "two.h5", bits=12)]
    with pytest.raises(FormatError, match="differ in bits: not set and 12"):
        concatenate(files, tmp_path / "both.h5")


def test_local_weights_are_recorded_for_their_own_backbone(tmp_path):
    """So `predict` asks for these weights, and for no others."""
    files = [tmp_path / "one.h5", tmp_path / "two.h5"]
    made(files[0])
    made(files[1], config={"local_weights": True})
    concatenate(files, tmp_path / "both.h5")
    with open_features(tmp_path / "both.h5") as both:
        parts = both.config["backbone_kwargs"]["parts"]
        assert [part.get("local_weights") for part in parts] == [None, True]
        assert "local_weights" not in both.config
