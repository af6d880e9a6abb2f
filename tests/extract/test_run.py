"""Extraction from images to a features file: the same bytes however it was run."""

import stat
from dataclasses import replace

import numpy as np
import pytest
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.errors import ExtractError, FormatError, ResumableError
from dphead_extract.features.format import open_features
from dphead_extract.features.writing import FeaturesWriter
from dphead_extract.images import PixelRange, UnreadableImage
from dphead_extract.index import ImageIndex
from dphead_extract.normalization import RowNorm
from dphead_extract.run import ExtractOptions, extract
from dphead_extract.shards import blocks_of
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.image import Source
from numpy.testing import assert_allclose, assert_array_equal
from pictures import encoded, pack
from PIL import Image

TEN = Classes(class_names("10"))


def options(source, output, **changes):
    network = BackboneOptions("scatternet", settings={"scatter_j": (1,)})
    defaults = {
        "backbone": network,
        "classes": TEN,
        "batch_size": 32,
        "block_rows": 64,
        "workers": 2,
    }
    return ExtractOptions(source, output, **(defaults | changes))


def datasets(path):
    with open_features(path) as file:
        names = ("labels", "valid", "split", "row_digest", "block_digest")
        return {
            "features": file.features[:],
            **{name: getattr(file, name) for name in names},
        }


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_digits_from_images_to_file(digits_npz, digits, tmp_path):
    seen = []
    out = tmp_path / "f.h5"
    summary = extract(options(digits_npz, out), lambda *done: seen.append(done))
    assert (summary.n_rows, summary.n_features, summary.problems) == (300, 144, [])
    assert seen[0] == (0, 300, "extracting features") and seen[-1][:2] == (300, 300)
    assert seen == sorted(seen)
    with open_features(out) as file:
        assert file.class_names == list("0123456789")
        assert_array_equal(file.labels, digits[1][:300])
        assert set(file.config["library_versions"]) >= {"torch", "timm", "numpy"}
    names = tmp_path / "f.h5.names.csv"
    assert stat.S_IMODE(names.stat().st_mode) == 0o600
    assert names.read_text().splitlines()[1] == "0,npz:0"
    assert b"npz:0" not in out.read_bytes()


def gray(bits, depth=16):
    values = np.linspace(0, 2**bits - 1, 256).reshape(16, 16)
    return values.astype(f"u{depth // 8}")


@pytest.mark.parametrize(
    "brightest, depth, told",
    [(12, 16, True), (14, 16, True), (16, 16, False), (8, 8, False)],
)
def test_images_that_use_little_of_their_range_are_told_and_not_stored(
    tmp_path, brightest, depth, told
):
    """12 bits in files of 16 bits become 17 of 256 levels."""
    images = [gray(depth // 2, depth), gray(brightest, depth)]
    files = {f"{i}/x.png": encoded(image) for i, image in enumerate(images)}
    sources = [pack(tmp_path / "files", files), tmp_path / "a.npz"]
    np.savez(sources[1], images=np.stack(images), labels=[0, 1])
    for k, source in enumerate(sources):
        network = BackboneOptions("scatternet", image_size=16, channels=1)
        own = options(source, tmp_path / f"{k}.h5", backbone=network)
        problems = extract(own).problems
        assert len(problems) == told
        assert all("--bits N" in problem for problem in problems)
        assert b"gray levels" not in (tmp_path / f"{k}.h5").read_bytes()
        pixels = PixelRange(bits=depth)
        network = BackboneOptions(
            "scatternet", image_size=16, channels=1, pixels=pixels
        )
        own = options(source, tmp_path / f"{k}b.h5", backbone=network)
        assert extract(own).problems == []


def test_same_command_again_does_nothing_and_another_is_refused(digits_npz, tmp_path):
    out = tmp_path / "f.h5"
    extract(options(digits_npz, out))
    before = out.read_bytes()
    assert extract(options(digits_npz, out)).already_complete
    with pytest.raises(
        FormatError, match=r"normalization\.kind was none, and is now unit"
    ):
        extract(options(digits_npz, out, normalize=RowNorm("unit")))
    np.savez(digits_npz, images=np.zeros((300, 8, 8), np.uint8))
    with pytest.raises(FormatError, match=r"other images or labels|split_names"):
        extract(options(digits_npz, out))
    assert out.read_bytes() == before


def test_a_second_backbone_shares_the_data_sets_id(digits_npz, tmp_path):
    first = extract(options(digits_npz, tmp_path / "a.h5"))
    same_data = {"same_data_as": tmp_path / "a.h5", "normalize": RowNorm("unit")}
    named = {"dataset_id": first.dataset_id, "normalize": RowNorm("unit")}
    for name, how in (("b", same_data), ("c", named)):
        second = extract(options(digits_npz, tmp_path / f"{name}.h5", **how))
        assert second.dataset_id == first.dataset_id
    # its digests have another key, so `features concat` could not compare images
    with pytest.raises(FormatError, match="begun without --same-data-as"):
        extract(options(digits_npz, tmp_path / "c.h5", **same_data))
    images = np.array(np.load(digits_npz)["images"])
    images[250, 0, 0] += 1
    np.savez(digits_npz, images=images)
    with pytest.raises(ExtractError, match="These images differ"):
        extract(options(digits_npz, tmp_path / "d.h5", **same_data))
    assert sorted(p.name for p in tmp_path.glob("d.h5*")) == []
    # the images of a refused command do not join the data set
    index = ImageIndex(tmp_path / "index")
    with pytest.raises(ExtractError, match="These images differ"):
        extract(options(digits_npz, tmp_path / "d.h5", index=index, **same_data))
    assert not index.knows(first.dataset_id)
    assert sorted(p.name for p in tmp_path.glob("d.h5*")) == []
    with pytest.raises(FormatError, match="300 rows, and this source has 10"):
        extract(options(digits_npz, tmp_path / "d.h5", limit=10, **same_data))


def test_an_image_that_becomes_unreadable_while_it_is_compared_is_no_other_image(
    digits_npz, tmp_path, monkeypatch
):
    """A volume can go away, and the same command then finds the images again."""
    made = options(digits_npz, tmp_path / "a.h5")
    extract(made)
    index = ImageIndex(tmp_path / "index")
    again = replace(
        made, output=tmp_path / "b.h5", same_data_as=made.output, index=index
    )
    decode, decoded = Source.decode, []

    def later(*of):
        decoded.append(1)
        if len(decoded) > 300:  # the images were checked once
            raise UnreadableImage("The volume is away.")
        return decode(*of)

    monkeypatch.setattr(Source, "decode", later)
    with pytest.raises(ExtractError) as raised:
        extract(again)
    assert isinstance(raised.value, ResumableError), raised.value
    monkeypatch.setattr(Source, "decode", decode)
    assert extract(again).problems == []


def test_files_of_several_backbones_have_the_rows_of_single_files(
    digits_npz, tmp_path, monkeypatch
):
    """Also after a kill, and though the backbones' batches differ."""
    other = BackboneOptions("scatternet", settings={"scatter_j": (2,)}, mirror=True)
    more = {"backbone": other, "normalize": RowNorm("unit"), "batch_size": 10}
    first = options(digits_npz, tmp_path / "a.h5")
    extract(first)
    extract(options(digits_npz, tmp_path / "b.h5", same_data_as=first.output, **more))
    alone = [datasets(tmp_path / name) for name in ("a.h5", "b.h5")]

    again = [replace(first, output=tmp_path / "c.h5", same_data_as=first.output)]
    again.append(options(digits_npz, tmp_path / "d.h5", **more))

    append, appended = FeaturesWriter.append, []

    def killed(writer, *block):
        appended.append(writer.path)
        if len(appended) == 4:
            raise ResumableError("The disk is full.")
        return append(writer, *block)

    monkeypatch.setattr(FeaturesWriter, "append", killed)
    with pytest.raises(ResumableError):
        extract(again[0], beside=again[1:])
    monkeypatch.setattr(FeaturesWriter, "append", append)
    seen = []
    extract(again[0], lambda done, *_: seen.append(done), beside=again[1:])
    assert seen[0] == 64
    for name, rows in zip(("c.h5", "d.h5"), alone, strict=True):
        assert same(datasets(tmp_path / name), rows)


@pytest.fixture
def folder(tmp_path, digits):
    files = {f"{'ab'[i % 2]}/{i:02}.png": encoded(digits[0][i]) for i in range(20)}
    return pack(tmp_path / "images", files)


def test_missing_images_are_counted_and_named(folder, tmp_path):
    table = folder / "table.csv"
    table.write_text("path\na/00.png\na.png\nb/01.png\nb/c.jpg\n")
    listed = r"2 of 4 images are unreadable: a\.png \(the file .* exist\), b/c\.jpg"
    with pytest.raises(ExtractError, match=listed):
        extract(options(table, tmp_path / "f.h5", **scatternet(image_size=8)))


def test_unreadable_images_are_listed_or_masked(folder, tmp_path):
    (folder / "a" / "04.png").write_bytes(b"junk")
    choice = scatternet(image_size=8)
    with pytest.raises(ExtractError, match=r"images are unreadable: a/04\.png"):
        extract(options(folder, tmp_path / "f.h5", **choice))
    assert list(tmp_path.glob("f.h5*")) == []
    summary = extract(
        options(folder, tmp_path / "f.h5", skip_unreadable=True, **choice)
    )
    assert summary.n_rows == 20
    assert summary.problems == ["masked rows (unreadable, or not finite): 1 (a/04.png)"]
    with open_features(tmp_path / "f.h5") as file:
        assert not file.valid[2]
        assert not file.features[2].any()
        assert file.valid.sum() == 19
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(
        ExtractError, match="all 20 images of the source are unreadable"
    ):
        extract(options(folder, tmp_path / "g.h5", skip_unreadable=True, **choice))


@pytest.mark.parametrize("checked", ["another image", "an unreadable file"])
def test_an_image_that_changes_after_it_was_checked_is_refused(
    folder, tmp_path, checked
):
    """The index has the image that was checked, not the one that replaced it."""
    path = folder / "a" / "04.png"
    now = path.read_bytes()
    if checked == "another image":
        Image.new("RGB", (12, 9), "red").save(path)
    else:
        path.write_bytes(b"junk")

    def replaced(done, total, phase):
        if phase == "extracting features":
            path.write_bytes(now)

    index = ImageIndex(tmp_path / "index")
    given = {"skip_unreadable": True, "index": index, **scatternet(image_size=8)}
    with pytest.raises(ResumableError, match="An image changed after dphead checked"):
        extract(options(folder, tmp_path / "f.h5", **given), replaced)
    assert list(tmp_path.glob("f.h5")) == []
    summary = extract(options(folder, tmp_path / "g.h5", **given))
    with open_features(summary.path) as file:
        assert file.valid.all()
        assert index.has_blocks(file.dataset_id, file.salt, blocks_of(file))


AB = {"classes": Classes(class_names("a,b"))}


def scatternet(**changes):
    return {
        "backbone": BackboneOptions(
            "scatternet", settings={"scatter_j": (1,)}, **changes
        ),
        **AB,
    }


def test_one_image_of_another_color_and_size_changes_no_other_row(folder, tmp_path):
    """Gray images are three equal channels, whether or not one of them has colors."""
    found = {}
    for name in ("gray", "mixed"):
        extract(options(folder, tmp_path / f"{name}.h5", **scatternet(image_size=8)))
        found[name] = datasets(tmp_path / f"{name}.h5")["features"]
        Image.new("RGB", (12, 9), "red").save(folder / "b" / "99.png")
    assert found["gray"].shape == (20, 3 * 144)
    assert found["mixed"].shape == (21, 3 * 144)
    assert_array_equal(found["mixed"][:20], found["gray"])
    assert_array_equal(found["gray"][:, :144], found["gray"][:, 144:288])


def test_scatternet_of_image_files_needs_a_declared_size_whatever_they_hold(
    folder, tmp_path
):
    for name in ("one size", "two sizes"):
        with pytest.raises(ExtractError, match=r"--image-size is required for"):
            extract(options(folder, tmp_path / f"{name}.h5", **AB))
        Image.new("L", (12, 9)).save(folder / "b" / "99.png")
    assert list(tmp_path.glob("*.h5*")) == []


@pytest.mark.parametrize(
    "declared, picture, message",
    [
        ({"channels": 1}, ("RGB", (8, 8)), "--channels 3"),
        ({"interpolation": "none"}, ("L", (12, 9)), "and type --image-size H,W"),
    ],
)
def test_an_image_that_does_not_fit_what_is_declared_is_refused(
    folder, tmp_path, declared, picture, message
):
    choice = scatternet(image_size=8, **declared)
    columns = extract(options(folder, tmp_path / "f.h5", **choice)).n_features
    assert columns == 144 * declared.get("channels", 3)
    Image.new(*picture).save(folder / "b" / "99.png")
    with pytest.raises(ExtractError, match=message):
        extract(options(folder, tmp_path / "g.h5", **choice))
    assert list(tmp_path.glob("g.h5*")) == []


def test_a_size_of_two_sides_cuts_the_middle_of_what_covers_it(folder, tmp_path):
    choice = scatternet(image_size=(8, 4), channels=1)
    extract(options(folder, tmp_path / "f.h5", **choice))
    with open_features(tmp_path / "f.h5") as file:
        assert file.features.shape == (20, 9 * 4 * 2)
        assert file.config["transform"]["image_size"] == [8, 4]
        assert file.config["transform"]["colors"] == 1


def test_arrays_have_the_channels_that_are_declared_or_their_own(
    digits, digits_npz, tmp_path
):
    """Colors are never dropped without a word."""
    three = scatternet(channels=3)["backbone"]
    extract(options(digits_npz, tmp_path / "f.h5", backbone=three))
    found = datasets(tmp_path / "f.h5")["features"].reshape(300, 3, 144)
    # float32 products of another place
    assert_allclose(found, np.repeat(found[:, :1], 3, axis=1), atol=1e-6)
    np.savez(tmp_path / "rgb.npz", images=np.repeat(digits[0][:9, :, :, None], 3, 3))
    one = scatternet(channels=1)["backbone"]
    with pytest.raises(ExtractError, match="--channels 3"):
        extract(options(tmp_path / "rgb.npz", tmp_path / "g.h5", backbone=one))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"amp": "bfloat16", "device": "cpu"}, "needs a GPU"),
        ({"normalize": RowNorm("group", 4)}, "must divide the 9 channels"),
        ({"same_data_as": "nowhere.h5"}, "is not a features file"),
    ],
)
def test_bad_options_leave_nothing_behind(digits_npz, tmp_path, changes, message):
    with pytest.raises(FormatError, match=message):
        extract(options(digits_npz, tmp_path / "f.h5", **changes))
    assert list(tmp_path.glob("f.h5*")) == []


def test_a_full_disk_keeps_what_can_be_resumed(digits_npz, tmp_path, monkeypatch):
    """The finished file has the bytes of another that goes on from the same part."""
    calls = []

    def full(path):
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")

    out = tmp_path / "f.h5"
    monkeypatch.setattr("dphead_extract.features.writing.sync_path", full)
    with pytest.raises(FormatError, match="Free some space"):
        extract(options(digits_npz, out))
    monkeypatch.undo()
    seen = []
    extract(options(digits_npz, tmp_path / "f.h5"), lambda done, *_: seen.append(done))
    assert seen[0] == 128


def test_verify_says_what_is_wrong_with_a_file(digits_npz, tmp_path):
    from commands import dphead

    out = tmp_path / "f.h5"
    assert dphead("verify", digits_npz).code == 2
    nine = Classes(class_names("9"), allow_unlabeled=True)
    extract(options(digits_npz, out, classes=nine))
    done = dphead("verify", out)
    assert done.code == 1 and "outside the classes" in done.err


def test_a_mirrored_row_is_the_mean_over_an_image_and_its_mirror_image(
    digits, digits_npz, tmp_path
):
    network = BackboneOptions("scatternet", settings={"scatter_j": (1,)}, mirror=True)
    local = {"normalize": RowNorm("local")}
    turned = tmp_path / "turned.npz"
    np.savez(turned, images=digits[0][:300, :, ::-1])
    extract(options(digits_npz, tmp_path / "f.h5", backbone=network, **local))
    extract(options(digits_npz, tmp_path / "one.h5", **local))
    extract(options(turned, tmp_path / "two.h5", **local))
    # each side is normalized before the mean
    sides = [datasets(tmp_path / f"{name}.h5")["features"] for name in ("one", "two")]
    with open_features(tmp_path / "f.h5") as file:
        assert_array_equal(file.features[:], (sides[0] + sides[1]) / 2)
        assert file.config["transform"]["mirror"] is True
