"""Image sources as arrays: their size and channels are declared, never found in the images."""

import numpy as np
import pytest
from PIL import Image

from dphead.endtoend.images import load_images
from extract.images import Classes


@pytest.fixture
def folder(tmp_path):
    """Six grey images of 8 x 8, of one class."""
    rng = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    for row in range(6):
        pixels = rng.integers(0, 256, (8, 8)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{row}.png")
    return tmp_path


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_one_image_of_another_colour_and_size_changes_no_other_row(folder, channels):
    grey = load_images(folder, Classes.parse("a,b"), size=8, channels=channels).x
    Image.new("RGB", (12, 9), "red").save(folder / "a" / "9.png")
    mixed = load_images(folder, Classes.parse("a,b"), size=8, channels=channels).x
    assert grey.shape == (6, channels or 3, 8, 8) and mixed.shape == (7, channels or 3, 8, 8)
    np.testing.assert_array_equal(mixed[:6], grey)


def test_image_files_need_a_declared_size(folder):
    with pytest.raises(ValueError, match="Pass --image-size"):
        load_images(folder, Classes.parse("a,b"))
