"""Images are decoded to canonical 8-bit arrays, each by itself."""

import contextlib
import gzip
import io
import json
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pictures
import pytest
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.errors import ExtractError
from dphead_extract.images import (
    PixelRange,
    UnreadableImage,
    decode_image,
    open_picture,
    sample_bits,
    stored_samples,
)
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.listing import Layout
from dphead_extract.sources.opening import open_source
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from pictures import encoded, pack
from PIL import Image

DRAW = np.random.default_rng(0)
PICTURE = DRAW.integers(0, 256, (6, 9, 3)).astype(np.uint8)


# ---- decoding


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200))
def test_broken_files_raise_unreadable_only(junk, cut):
    for data in (
        junk,
        encoded(PICTURE)[:cut],
        b"\x89PNG\r\n\x1a\n" + junk,
        b"GIF89a" + junk,
    ):
        with contextlib.suppress(UnreadableImage):  # any other exception is a failure
            assert decode_image(data).dtype == np.uint8


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt"])
def test_long_texts_of_a_png_do_not_make_its_pixels_unreadable(kind):
    text = zlib.compress(b"x" * (3 << 20))
    more = {b"zTXt": b"history\0\0", b"iTXt": b"XML:com.adobe.xmp\0\1\0\0\0"}[kind]
    data = pictures.png(pictures.GRAY, 0, 8, pictures.chunk(kind, more + text))
    with pytest.raises(ValueError, match="MAX_TEXT_CHUNK"):  # of Pillow alone
        Image.open(io.BytesIO(data)).load()
    assert_array_equal(decode_image(data), pictures.GRAY)
    assert sample_bits(data) == 8
    assert stored_samples(data) is None
    with pytest.raises(UnreadableImage):  # damaged beside its texts
        decode_image(data[:-40])


def test_a_thin_strip_is_cut_before_it_is_enlarged(monkeypatch):
    sizes, resize = [], Image.Image.resize

    def seen(self, size, *args, **kwargs):
        sizes.append(size)
        return resize(self, size, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "resize", seen)
    strip = np.zeros((1, 60_001), np.uint8)
    strip[0, 29_998:30_003] = 200  # the middle
    backbones = [
        BackboneOptions("scatternet", image_size=32),
        BackboneOptions("test_resnet", image_size=32, random_weights=True),
    ]
    for options in backbones:
        backbone = load_backbone(options, (32, 32), False)
        for image in (strip, strip.T):
            assert (backbone.prepare(image) == 200).all()
    assert len(sizes) == 4
    assert max(width * height for width, height in sizes) < 100 * 32 * 32


# levels that converting colors twice may cost, measured
LOSSY = {"jpeg ycck": 4, "tiff YCbCr": 3}


@pytest.mark.parametrize("name", pictures.meant())
def test_a_file_is_decoded_by_what_its_samples_mean(name):
    data, expected = pictures.meant()[name]
    found = decode_image(data)
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    # one level: two ways of rounding, and JPEG of the best quality
    assert np.abs(found - expected.astype(float)).max() <= LOSSY.get(name, 1)


@pytest.mark.parametrize("name", pictures.unclear())
def test_samples_that_mean_nothing_for_certain_are_refused_by_name(name):
    data, reason = pictures.unclear()[name]
    with pytest.raises(UnreadableImage, match=reason):
        decode_image(data)


def test_declared_bits_are_those_of_the_samples_whatever_holds_them():
    shorter = pictures.WIDE >> 4  # 12 bits, as many radiographs are stored in 16
    expected = shorter / 4095 * 255
    twelve = PixelRange(bits=12)
    for data in (
        pictures.png(shorter.astype(">u2"), 0),
        pictures.tiff(shorter),
        pictures.tiff(shorter.astype(np.uint32), packed=True),
        pictures.tiff(4095 - shorter, photometric=0),
        pictures.tiff((shorter.astype(int) - 2048).astype(np.int16), kind=2),
        b"P5 48 40 65535\n" + shorter.astype(">u2").tobytes(),
        b"P5 48 40 4095\n" + shorter.astype(">u2").tobytes(),
    ):
        found = decode_image(data, twelve)
        assert len(np.unique(found)) > 150  # by their full range 15 levels are left
        assert_allclose(found, expected, atol=0.5)  # rounding
    # an image that is not of 12 bits would be nearly white
    with pytest.raises(UnreadableImage, match="outside the range from 0 to 4095"):
        decode_image(pictures.png(pictures.WIDE.astype(">u2"), 0), twelve)


def test_a_declared_intensity_is_black_and_white_and_values_beyond_are_cut():
    values = np.array([[-1000, -200, 0, 100, 400, 3000]])
    expected = np.array([[0, 0, 85, 128, 255, 255]])
    declared = PixelRange(intensity=(-200.0, 400.0))
    for data in (
        pictures.tiff(values.astype(np.int16), kind=2),
        pictures.tiff(values.astype(np.int32), kind=2, order=">"),
        pictures.tiff(values.astype(np.float32), kind=3, packed=True),
    ):
        assert (decode_image(data, declared) == expected).all()
    inverted = pictures.tiff(values.astype(np.float32), photometric=0, kind=3)
    assert (decode_image(inverted, declared) == 255 - expected).all()
    with pytest.raises(UnreadableImage, match="NaN or infinity"):
        nan = pictures.tiff(np.full((2, 3), np.nan, np.float32), kind=3)
        decode_image(nan, declared)


@pytest.mark.parametrize("declared", [{"bits": 12}, {"intensity": (0.0, 4095.0)}])
def test_a_declared_range_moves_no_8_bit_image_and_no_color_is_guessed(declared):
    declared = PixelRange(**declared)
    for name, (data, expected) in pictures.meant().items():
        deep = any(bits in name for bits in ("12 bits", "16 bits"))
        if not deep and "tiff turned" not in name:
            assert_array_equal(decode_image(data, declared), decode_image(data), name)
        if "16 bits" in name and expected.ndim == 3:
            with pytest.raises(UnreadableImage, match="colors of more than 8 bits"):
                decode_image(data, declared)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"bits": 0}, "--bits must be from 1 to 32, got 0"),
        ({"bits": 12, "intensity": (0, 1)}, "--bits and --intensity both"),
        ({"intensity": (1, 1)}, "needs LOW < HIGH"),
        ({"intensity": (-1e308, 1e308)}, "needs LOW < HIGH"),
    ],
)
def test_a_range_that_is_none_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        PixelRange(**given)


@pytest.mark.parametrize("kind", ["files", "npz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_an_index_knows_images_again_whatever_range_is_declared(tmp_path, kind, dtype):
    """Another range would open another budget for the same images."""
    values = np.stack([pictures.GRAY, 255 - pictures.GRAY]).astype(dtype)
    path = tmp_path / "a.npz"
    np.savez(path, images=values)
    if kind == "files":
        signed = 2 if dtype is np.int16 else 1
        files = (pictures.tiff(image, kind=signed) for image in values)
        path = pack(tmp_path / "files", ((f"{i}.tiff", f) for i, f in enumerate(files)))
    known = []
    ranges = [PixelRange(12), PixelRange(9), PixelRange(None, (0, 255))]
    ranges += [] if dtype is np.int16 else [PixelRange()]
    for pixels in ranges:
        source = open_source(path, Classes(ignore_labels=True), pixels=pixels)
        part = source.part(1, 2)
        forms = part.forms(part.raw(0), part.image(0))
        known.append(tuple(form.tobytes() for form in forms))
    assert len(set(known)) == 1


def lossless(gray):
    """Lossless copies of a picture of 8 bits, and the ranges that they need."""
    rgb = np.repeat(gray[..., None], 3, axis=-1) if gray.ndim == 2 else gray
    opaque = np.concatenate([rgb, np.full_like(rgb[..., :1], 255)], axis=-1)
    files = {
        "png": encoded(gray),
        "rgb": encoded(rgb),
        "rgba": encoded(opaque),
        "bmp": encoded(rgb, "BMP"),
        "tiff": encoded(rgb, "TIFF", compression="tiff_lzw"),
        "webp": encoded(rgb, "WEBP", lossless=True),
        "turned": encoded(np.rot90(rgb), "TIFF", exif=pictures.exif(6)),
        "16 bits of a color": pictures.png(rgb.astype(np.uint16) * 257, 2),
    }
    given = {name: (data, PixelRange()) for name, data in files.items()}
    if gray.ndim == 3:
        return given
    la = np.stack([gray, np.full_like(gray, 255)], axis=-1)
    palette = Image.fromarray(gray).convert("P")
    for name, data in {
        "gray and opaque": encoded(la),
        "palette": encoded(palette),
        "gif": encoded(palette, "GIF"),
        "16 bits": pictures.png(gray.astype(np.uint16) * 257, 0),
    }.items():
        given[name] = data, PixelRange()
    as_they_are = encoded(gray.astype(np.uint16), "TIFF")
    given["8 of 16 bits"] = as_they_are, PixelRange(8)
    given["signed"] = pictures.tiff(gray.astype(np.int16), kind=2), PixelRange(12)
    floats = pictures.tiff(gray.astype(np.float32), kind=3)
    given["floats"] = floats, PixelRange(None, (0, 255))
    return given


def forms_of(folder, data, pixels):
    """The forms of the only image of a folder or an npz."""
    path = folder / "a.npz"
    if isinstance(data, bytes):
        path = pack(folder / "files", {"a.img.png": data})
    else:
        np.savez(path, images=data[None])
    source = open_source(path, Classes(ignore_labels=True), pixels=pixels)
    return source.forms(source.raw(0), source.image(0))


@pytest.mark.parametrize("image", [pictures.GRAY, pictures.COLOR], ids=["gray", "rgb"])
def test_lossless_copies_of_an_image_have_one_canonical_form(tmp_path, image):
    """It is the image itself, and earlier versions' form is another one at most."""
    for name, (data, pixels) in lossless(image).items():
        own, *others = forms_of(tmp_path, data, pixels)
        assert own.dtype == np.uint8, name
        assert_array_equal(own, image, err_msg=name)
        if pixels == PixelRange():  # what a version before canonical forms stored
            assert any(np.array_equal(f, decode_image(data)) for f in (own, *others))
    for array in (image, image / 255, image.astype(np.uint16) * 257):
        assert_array_equal(forms_of(tmp_path, array, PixelRange())[0], image)


def test_samples_of_more_bits_have_one_canonical_form_in_every_container(tmp_path):
    """And two images that differ in their low bits have two."""
    values = pictures.GRAY.astype(np.int32) * 16 + 3
    copies = [encoded(values.astype(np.uint16))]
    for dtype in (np.int16, np.int32, np.uint16, np.float32):
        kind = {"i": 2, "u": 1, "f": 3}[np.dtype(dtype).kind]
        copies += [values.astype(dtype), pictures.tiff(values.astype(dtype), kind=kind)]
    copies.append(pictures.tiff(values.astype(np.int16), kind=2, packed=True))
    found = [forms_of(tmp_path, one, PixelRange(None, (0, 4095)))[0] for one in copies]
    assert len({(form.dtype.str, form.tobytes()) for form in found}) == 1
    assert_array_equal(found[0], values)
    other = forms_of(tmp_path, (values ^ 1).astype(np.uint16), PixelRange(12))[0]
    assert not np.array_equal(other, values)


def test_copies_that_are_read_with_8_bits_have_a_form_of_16_bit_samples(tmp_path):
    """Pillow reads only the upper bytes of colors. dphead rounds shares of white."""
    gray = pictures.GRAY.astype(np.uint16) * 250 + 7
    colors = np.repeat(gray[..., None], 3, axis=-1)
    clear = np.full_like(gray, 65535)
    found = forms_of(tmp_path, pictures.png(gray.astype(">u2"), 0), PixelRange())
    assert_array_equal(found[0], gray)
    for samples, color in (
        (colors, 2),
        (np.dstack([gray, clear]), 4),
        (np.dstack([colors, clear]), 6),
    ):
        data = pictures.png(samples.astype(">u2"), color)
        assert_array_equal(forms_of(tmp_path, data, PixelRange())[0], found[-1])
    copy = forms_of(tmp_path, pictures.tiff(colors, 2), PixelRange())[0]
    assert_array_equal(copy, found[-1])
    shares = (gray / 65535).astype(np.float32)
    assert_array_equal(forms_of(tmp_path, shares, PixelRange())[0], found[-2])
    real = pictures.COLOR.astype(np.uint16) * 250 + 7
    array = forms_of(tmp_path, real, PixelRange())
    file = forms_of(tmp_path, pictures.png(real.astype(">u2"), 2), PixelRange())
    assert_array_equal(array[0], real)
    assert_array_equal(array[-1], file[0])


@pytest.mark.parametrize(
    "takes", [{"input_size": [1, 9, 9]}, {"colors": 1, "image_size": [9, 9]}]
)
def test_an_export_refuses_what_its_extraction_would_refuse(tmp_path, takes):
    facts = {"features": {"transform": {**takes, "bits": 12}}}
    (tmp_path / "head.json").write_text(json.dumps(facts))
    (tmp_path / "gray.tiff").write_bytes(pictures.tiff(pictures.WIDE >> 4))
    (tmp_path / "color.png").write_bytes(encoded(pictures.COLOR))
    picture = open_picture(tmp_path / "gray.tiff", tmp_path)
    assert picture.mode == "L"
    assert_array_equal(np.asarray(picture), pictures.GRAY)
    with pytest.raises(UnreadableImage, match="the network needs gray images"):
        open_picture(tmp_path / "color.png", tmp_path)


# ---- classes


def test_classes_from_the_command_line(tmp_path):
    assert class_names("3") == ["0", "1", "2"]
    assert class_names("cat, dog") == ["cat", "dog"]
    (tmp_path / "names").write_text("a b\n\nc\n")
    assert class_names(f"@{tmp_path / 'names'}") == ["a b", "c"]
    for bad in ("a,a", "a,,b", "", "@nowhere", "0"):
        with pytest.raises(ExtractError):
            class_names(bad)
    with pytest.raises(ExtractError, match="cannot be combined"):
        Classes(class_names("a,b"), folder_names_public=True)


@pytest.mark.parametrize(
    "classes, labels, message",
    [
        ("cat,dog", ["cats", "dogs"], "the label 'cats' and 1 more"),
        ("cat,dog", ["cat", "dgo"], r"the label 'dgo'\. Add.*--allow-unlabeled"),
        ("3", np.array([0, 3]), "the label '3'"),
    ],
)
def test_a_label_that_is_no_class_is_refused(classes, labels, message):
    """A budget would be spent on a head that has learned nothing."""
    with pytest.raises(ExtractError, match=message):
        Classes(class_names(classes)).encode(labels, 2)
    kept = Classes(class_names(classes), allow_unlabeled=True).encode(labels, 2)[0]
    assert kept[1] == -1


def test_class_names_stay_private_until_declared(tmp_path):
    add(tmp_path, ["cat/1.png", "dog/1.png"])
    with pytest.raises(ExtractError, match="--classes is required") as error:
        open_source(tmp_path)
    assert "cat" not in str(error.value)
    source = open_source(tmp_path, Classes(folder_names_public=True))
    assert source.class_names == ["cat", "dog"]
    assert source.classes_declared == "folder-names-flag"
    assert (open_source(tmp_path, Classes(ignore_labels=True)).labels == -1).all()


# ---- folders and manifests


def test_folder_order_splits_and_labels(tmp_path):
    hidden = ["train/cat/.hidden.png", "train/cat/notes.txt"]
    names = ["test/dog/z.png", "train/cat/sub/b.JPG", "train/dog/a.png"]
    add(tmp_path, [*names[::-1], *hidden])
    declared = Classes(class_names("cat,dog"))
    source = open_source(tmp_path, declared, layout="split/class")
    assert list(source.names) == names
    assert source.labels.tolist() == [1, 0, 1]
    assert source.split_names == ["train", "validation", "test", "none"]
    assert source.split.tolist() == [2, 0, 0]
    assert_array_equal(source.image(2), PICTURE)
    train = open_source(tmp_path, declared, "train")
    assert (train.n_rows, train.split_names) == (2, ["train"])
    with pytest.raises(ExtractError, match=r"no image in split validation"):
        open_source(tmp_path, declared, "validation")
    with pytest.raises(ExtractError, match=r"--split is required.*test"):
        open_source(tmp_path, declared, None, "split/class")
    assert open_source(tmp_path / "train", declared, None).split_names == ["all"]


def add(path, names):
    """Images of these names, or bytes by name, as a folder."""
    if not isinstance(names, dict):
        names = [(name, encoded(PICTURE)) for name in names]
    return pack(path, names)


def said(path, layout, split="all", classes="cat,dog"):
    """Name -> (label, name of the split) of each row, and the names of the splits."""
    declared = Classes(class_names(classes), allow_unlabeled=True)
    source = open_source(path, declared, split, layout)
    splits = [source.split_names[code] for code in source.split]
    return dict(
        zip(source.names, zip(source.labels.tolist(), splits, strict=True), strict=True)
    ), source.split_names


@pytest.mark.parametrize(
    "other", ["x.png", "data/x.png", "extra/cat/x.png", "train/x.png", "a/b/c/d.png"]
)
@pytest.mark.parametrize(
    "layout, before",
    [("class", ""), ("any/class", "data/"), ("split/class", "train/"), (None, "")],
)
def test_one_path_changes_the_label_and_the_split_of_no_other_row(
    tmp_path, other, layout, before
):
    # so that another layout gives other labels, and is not refused
    classes = "cat,dog,data,train"
    names = [f"{before}{label}/{i}.png" for label in ("cat", "dog") for i in range(3)]
    alone, splits = said(add(tmp_path / "alone", names), layout, classes=classes)
    beside, same = said(
        add(tmp_path / "beside", [*names, other]), layout, classes=classes
    )
    assert [label for label, _ in alone.values()] == [0, 0, 0, 1, 1, 1]
    assert same == splits
    assert {name: beside[name] for name in alone} == alone
    assert set(beside) == {*alone, other}


def test_a_layout_that_is_another_is_refused_with_what_to_declare(tmp_path):
    wrapped, splits, both = (
        add(tmp_path / str(i), [f"{first}/cat/1.png", f"{second}/dog/2.png"])
        for i, (first, second) in enumerate(
            [("data", "data"), ("train", "test"), ("data/train", "data/test")]
        )
    )
    with pytest.raises(
        ExtractError, match=r"of a class \(0, 1, 2, \.\.\.\).*--classes"
    ):
        open_source(wrapped, Classes(class_names("5")))
    asked = r"folder of a class.*under --layout class.*--layout"
    for path in (wrapped, splits, both):
        with pytest.raises(ExtractError, match=asked):
            said(path, None)
    assert said(splits, None, "train")[0] == {"train/cat/1.png": (0, "train")}
    found = said(both, "any/split/class", "test")
    assert found == ({"data/test/dog/2.png": (1, "test")}, ["test"])
    with pytest.raises(ExtractError, match=r"needs a --layout with a split"):
        said(wrapped, "any/class", "train")
    public = Classes(folder_names_public=True)
    with pytest.raises(
        ExtractError, match=r"names of splits.*--layout split/class, or --layout class"
    ):
        open_source(splits, public)
    assert open_source(splits, public, layout="class").class_names == ["test", "train"]


@pytest.mark.parametrize(
    "text",
    ["split", "class/class", "split/split/class", "any/any"],
)
def test_a_layout_names_a_class_once(text):
    with pytest.raises(
        ExtractError,
        match=r"class once and split at most once.*Examples: class, split/class",
    ):
        Layout.parse(text)


@pytest.mark.parametrize("text", ["", "label", "/class", "class/", "site/class"])
def test_a_word_that_is_no_part_of_a_layout_is_named(text):
    word = (text or "/").replace("class", "").strip("/")
    with pytest.raises(ExtractError, match=f"unknown word '{word}'.*any/class"):
        Layout.parse(text)


def test_a_layout_or_columns_of_another_source_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 3), np.uint8))
    with pytest.raises(ExtractError, match=r"without a table or arrays.*Remove"):
        open_source(tmp_path / "a.npz", layout="class")
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(ExtractError, match="must be a folder"):
        open_source(tmp_path / "a.txt")


def test_splits_are_those_declared_whatever_the_rows_say(tmp_path):
    add(tmp_path, ["x/1.png"])
    manifest, arrays = tmp_path / "m.csv", tmp_path / "a.npz"
    images = np.zeros((2, 3, 3), np.uint8)
    every = ["train", "validation", "test", "none"]
    for column, cell, more, names in (
        (",split", ",train", {"split": ["train", "train"]}, every),
        ("", "", {}, ["all"]),
    ):
        manifest.write_text(f"path,label{column}\nx/1.png,a{cell}\n")
        np.savez(arrays, images=images, **more)
        assert open_source(manifest, Classes(class_names("a"))).split_names == names
        assert open_source(arrays).split_names == names


def test_a_manifest_lists_its_rows_in_order(tmp_path):
    add(tmp_path, ["x/1.png", "x/2.png"])
    path = tmp_path / "m.csv"
    path.write_text("path,label\nx/2.png,b\nx/gone.png,a\n")
    source = open_source(path, Classes(class_names("a,b")))
    assert list(source.names) == ["x/2.png", "x/gone.png"]
    with pytest.raises(UnreadableImage):
        source.image(1)
    for text, message in (
        ("file,label\nx/1.png,a\n", "columns"),
        ("path,label,grup\nx/1.png,a,p\n", "has no role"),
        ("path,split\nx/1.png,holdout\n", "split must be one of"),
        ("path,label\n,a\n", "Line 2 .* no image path"),
        # a quote takes no other line
        ('path,label\n1.png,"a\n2.png,b"\n3.png,b\n', "line 2"),
        ("path,label,group\n\n1.png,a\n", "line 2 of"),
    ):
        path.write_text(text)
        with pytest.raises(ExtractError, match=message):
            open_source(path, Classes(class_names("a")))


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    """Its rows would be missing in silence."""
    add(tmp_path / "images", ["cat/1.png", "dog/2.png"])
    scandir = os.scandir

    def forbidden(folder):
        if str(folder).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(
        ExtractError, match=r"dog' cannot be read \(Permission denied\)"
    ):
        open_source(tmp_path / "images", Classes(class_names("cat,dog")))


HUGE = """
import sys
from PIL import Image
from dphead_extract.images import decode_image
Image.MAX_IMAGE_PIXELS = 800
print(decode_image(sys.stdin.buffer.read()).shape)
"""


def test_a_huge_image_is_decoded_in_silence_or_is_none(monkeypatch):
    """Up to twice Pillow's limit it only warns, in lines of its own source."""
    data = encoded(np.zeros((30, 40, 3), np.uint8))
    done = subprocess.run([sys.executable, "-c", HUGE], input=data, capture_output=True)
    assert (done.stdout, done.stderr) == (b"(30, 40, 3)\n", b"")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(UnreadableImage, match="DecompressionBombError"):
        decode_image(data)


# ---- arrays


def idx(values):
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return header + values.tobytes()


def test_idx_pairs_plain_and_gz(tmp_path):
    images = DRAW.integers(0, 256, (5, 4, 3)).astype(np.uint8)
    files = {}
    for name, values in (("images", images), ("labels", np.arange(5, dtype=np.uint8))):
        end = f"{name}-idx{values.ndim}-ubyte"
        files[f"train-{end}"] = idx(values)
        files[f"t10k-{end}.gz"] = gzip.compress(idx(values[:2]))
    add(tmp_path, files)
    declared = Classes(class_names("4"), allow_unlabeled=True)
    source = open_source(tmp_path, declared)
    assert source.labels.tolist() == [0, 1, 2, 3, -1, 0, 1]
    assert source.split.tolist() == [0] * 5 + [1] * 2
    assert_array_equal(source.image(4), images[4])
    assert open_source(tmp_path, declared, "test").n_rows == 2
    assert open_source(tmp_path / "train-images-idx3-ubyte", declared).n_rows == 5


def test_cifar_10_and_100(tmp_path):
    pixels = DRAW.integers(0, 256, (3, 3072)).astype(np.uint8)

    def write(name, *labels):
        rows = np.concatenate([np.tile(np.uint8(labels), (3, 1)), pixels], 1)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(rows.tobytes())

    for batch in (10, 2):  # in the order of their numbers
        write(f"ten/data_batch_{batch}.bin", batch)
    write("ten/test_batch.bin", 3)
    source = open_source(tmp_path / "ten", Classes(class_names("11")))
    assert source.labels.tolist() == [2] * 3 + [10] * 3 + [3] * 3
    assert source.split_names == ["train", "test"]
    assert source.image(1)[:, :, 2].ravel().tolist() == pixels[1, 2048:].tolist()
    write("hundred/train.bin", 1, 77)
    hundred = open_source(tmp_path / "hundred", Classes(class_names("100")))
    assert hundred.labels.tolist() == [77] * 3
    path = tmp_path / "hundred" / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ExtractError, match="whole records of 3074"):
        open_source(tmp_path / "hundred", Classes(class_names("100")))


def test_npz(tmp_path):
    path, images = tmp_path / "a.npz", DRAW.random((4, 5, 5, 1))
    split = ["train", "test", "train", "test"]
    np.savez(path, images=images, labels=np.array(["a", "b", "b", "c"]), split=split)
    source = open_source(path, Classes(class_names("a,b")), "train")
    assert source.labels.tolist() == [0, 1]
    assert source.arrays.shape == (2, 5, 5)
    assert_array_equal(source.image(1), np.rint(images[2, :, :, 0] * 255))


@pytest.mark.parametrize(
    "dtype, declared, expected",
    [
        ("uint16", {}, [0, 0, 16]),
        ("uint16", {"bits": 12}, [0, 6, 255]),
        ("int64", {"bits": 13}, [128, 131, 255]),
        ("float32", {"intensity": (0, 255)}, [0, 100, 255]),
        ("bool", {"bits": 12}, [0, 255, 255]),
    ],
)
def test_arrays_become_8_bit_by_what_is_declared(tmp_path, dtype, declared, expected):
    images = np.tile([0, 100, 4095], (2, 3, 1)).astype(dtype)
    np.savez(tmp_path / "a.npz", images=images)
    source = open_source(tmp_path / "a.npz", pixels=PixelRange(**declared))
    assert source.image(1)[0].tolist() == expected


@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.float32])
def test_arrays_without_a_known_range_are_refused(tmp_path, dtype):
    np.savez(tmp_path / "a.npz", images=np.full((2, 3, 3), 100, dtype))
    wanted = "outside the range from 0 to 1: declare --intensity"
    if dtype is not np.float32:
        wanted = "declare --bits or --intensity"
    with pytest.raises(ExtractError, match=wanted):
        open_source(tmp_path / "a.npz")
    if dtype is np.float32:
        with pytest.raises(ExtractError, match="declare --intensity, not --bits"):
            open_source(tmp_path / "a.npz", pixels=PixelRange(bits=8))
    declared = PixelRange(intensity=(0, 200))
    assert (open_source(tmp_path / "a.npz", pixels=declared).image(0) == 128).all()


def test_arrays_that_no_one_reads_are_counted(tmp_path):
    """Such as whose an image is, under another name."""
    images, patient = np.zeros((2, 3, 3), np.uint8), np.arange(2)
    np.savez(tmp_path / "a.npz", images=images, patient=patient)
    source = open_source(tmp_path / "a.npz")
    assert +source.left_out == {"arrays of another name ('patient')": 1}


def test_files_beside_arrays_are_counted(tmp_path):
    """They may be the images that the user meant."""
    for split in ("train", "t10k"):
        pixels = bytes([0, 0, 8, 3]) + np.array([2, 3, 3], ">u4").tobytes() + bytes(18)
        labels = bytes([0, 0, 8, 1]) + np.array([2], ">u4").tobytes() + bytes(2)
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(pixels)
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    pack(tmp_path, {"cat/1.png": b"", "cat/2.png": b""})
    source = open_source(tmp_path, Classes(["0", "1"]), "train")
    assert source.left_out["files that are not of the idx format"] == 2
