"""Image files of folders: which become rows, and what is counted."""

import numpy as np
import pytest
from dphead_extract.errors import ExtractError
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.opening import open_source
from pictures import encoded, pack
from PIL import Image

CATS_AND_DOGS = Classes(class_names("cat,dog"))


def picture(kind: str = "PNG") -> bytes:
    return encoded(np.arange(256, dtype=np.uint8).reshape(16, 16), kind)


@pytest.fixture
def folder(tmp_path):
    """Two images of each class, in a folder `data`."""
    names = ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")
    return pack(tmp_path / "data", dict.fromkeys(names, picture()))


def test_a_class_folder_that_is_a_link_is_followed(folder, tmp_path):
    (folder / "dog").rename(tmp_path / "elsewhere")
    (folder / "dog").symlink_to(tmp_path / "elsewhere")
    source = open_source(folder, CATS_AND_DOGS)
    assert source.names == ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"]
    assert source.labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("target", [".", "..", "cat"])
def test_a_link_to_a_folder_on_its_way_is_refused(folder, target):
    (folder / "cat" / "again").symlink_to(folder / target)
    with pytest.raises(ExtractError, match="leads back to"):
        open_source(folder, CATS_AND_DOGS)


@pytest.mark.parametrize(
    "ending, kind",
    [
        *(("jfif", "JPEG"), ("jpe", "JPEG"), ("jif", "JPEG"), ("apng", "PNG")),
        *(("dib", "DIB"), ("pnm", "PPM"), ("tga", "TGA")),
        *(("AVIF", "AVIF"), ("JPG", "JPEG")),
    ],
)
def test_every_common_ending_of_an_image_is_a_row(tmp_path, ending, kind):
    if kind.lower() not in {k.lower() for k in Image.registered_extensions().values()}:
        pytest.skip(f"this Pillow cannot write {kind}")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / f"1.{ending}").write_bytes(picture(kind))
    source = open_source(tmp_path, CATS_AND_DOGS)
    assert source.image(0).shape[:2] == (16, 16)
    assert not source.left_out


SYSTEMS = ("@eaDir", "#recycle", "$RECYCLE.BIN", ".thumbnails", "__MACOSX", ".@__thumb")


@pytest.mark.parametrize("name", SYSTEMS)
def test_copies_that_network_drives_and_desktops_make_are_no_rows(folder, name):
    pack(folder / "cat" / name / "1.png", {"THUMB.jpg": picture("JPEG")})
    source = open_source(folder, CATS_AND_DOGS)
    assert source.n_rows == 4 and source.left_out == {"hidden files": 1}
    assert not source.doubts


def test_folders_below_the_layout_are_told_unless_they_are_declared(folder):
    """They may be copies of pictures, or people whom no group protects."""
    pack(folder / "cat", {"thumbs/1.png": picture(), "p7/1.png": picture()})
    source = open_source(folder, CATS_AND_DOGS)
    assert source.n_rows == 6
    assert "2 folders below --layout class" in source.doubts[0]
    assert "no meaning: 2 ('p7', 'thumbs')" in source.doubts[0]
    assert not open_source(folder, CATS_AND_DOGS, layout="class/any").doubts
    assert not open_source(folder, Classes(ignore_labels=True)).doubts


def test_folders_that_are_named_like_no_split_are_told_with_their_rows(tmp_path):
    files = [f"{split}/cat/{i}.png" for split in ("train", "Testing") for i in "12"]
    pack(tmp_path, dict.fromkeys([*files, "dev/cat/1.png"], picture()))
    for split in ("all", "train"):
        source = open_source(tmp_path, CATS_AND_DOGS, split, layout="split/class")
        assert source.doubts[0].endswith("validation: 3 ('Testing': 2, 'dev': 1)")
    pack(tmp_path / "known", dict.fromkeys(["Train/cat/1.png", "val/cat/1.png"], b""))
    layout = "split/class"
    assert not open_source(tmp_path / "known", CATS_AND_DOGS, layout=layout).doubts


OTHERS = ("cat/notes.txt", "cat/more.txt", "dog/README", ".git/1.png", "__MACOSX/1.png")
COUNTS = {
    "files without an image's ending (.txt)": 2,
    "files without an image's ending (none)": 1,
    "hidden files": 2,
}


def test_what_a_folder_leaves_out_is_counted_by_reason(folder):
    for name in OTHERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(picture())
    (folder / "cat" / "gone").symlink_to(folder / "nowhere")
    source = open_source(folder, CATS_AND_DOGS)
    counts = COUNTS | {"files without an image's ending (none)": 2}
    assert source.left_out == counts
