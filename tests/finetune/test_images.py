"""Image sources as arrays: their size and channels are declared, never found in the
images.
"""

import numpy as np
import pytest
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.opening import open_source
from pictures import drawn, encoded, pack
from PIL import Image

from dphead.finetune.images import load_images

CLASSES = Classes(class_names("a,b"))


@pytest.fixture
def folder(tmp_path):
    """Six gray images of 8 x 8, of one class."""
    return pack(tmp_path, {f"a/{i}.png": drawn(i) for i in range(6)})


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_one_image_of_another_color_and_size_changes_no_other_row(folder, channels):
    gray = load_images(open_source(folder, CLASSES), 8, channels)[0].x
    Image.new("RGB", (12, 9), "red").save(folder / "a" / "9.png")
    mixed = load_images(open_source(folder, CLASSES), 8, channels)[0].x
    assert gray.shape == (6, channels or 3, 8, 8)
    assert mixed.shape == (7, channels or 3, 8, 8)
    np.testing.assert_array_equal(mixed[:6], gray)


def test_image_files_need_a_declared_size(folder):
    with pytest.raises(ValueError, match="Try --image-size"):
        load_images(open_source(folder, CLASSES))


def test_doubtful_images_are_told(folder, capsys):
    dark = np.arange(64).reshape(8, 8).astype(np.uint16)
    pack(folder / "a" / "copies", {"1.png": encoded(dark)})
    load_images(open_source(folder, CLASSES), 8)
    told = " ".join(capsys.readouterr().err.split())
    assert "! private, for the data holder only: images in 1 folders below" in told
    assert "They use at most 1 of 256 gray levels" in told
