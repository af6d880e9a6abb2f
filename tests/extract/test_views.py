"""Views are shifted and mirrored images, and a row is the mean of their features."""

from operator import or_

import numpy as np
import pytest
import torch
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.features.format import open_features
from dphead_extract.normalization import RowNorm
from dphead_extract.run import extract
from dphead_extract.views import Views
from numpy.testing import assert_allclose, assert_array_equal

from tests.extract.test_run import datasets, options


@pytest.mark.parametrize("shape", [(16, 24), (16, 24, 3)])
@pytest.mark.parametrize("flip", [True, False])
def test_a_view_is_a_part_of_the_padded_image(shape, flip):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    padded = np.pad(image, [(2, 2), (3, 3), (0, 0)][: len(shape)], mode="reflect")
    windows = {
        padded[i : i + 16, j : j + 24].tobytes() for i in range(5) for j in range(7)
    }
    views = Views(30, flip).of(image)
    assert [v.shape for v in views] == [shape] * 30
    straight = [v.tobytes() in windows for v in views]
    turned = [v[:, ::-1].tobytes() in windows for v in views]
    assert all(map(or_, straight, turned))
    assert all(straight) is not flip


def test_views_depend_on_the_image_alone():
    """Where it is a view of a larger array, too; a changed pixel draws other shifts."""
    many = np.random.default_rng(1).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    image, other = many[:, :, 0], many[:, :, 0].copy()
    other[3, 4] ^= 1
    first, again, moved = (
        np.array(Views(8).of(x)) for x in (image, image.copy(), other)
    )
    assert np.array_equal(first, again)
    assert (first != moved).sum() > 8 * 9  # were it a pixel, 8
    assert np.array_equal(Views().of(image)[0], image)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("removed", [0, 57])
def test_a_removed_image_changes_no_bit_of_any_other_row(
    digits, tmp_path, views, removed
):
    """All later rows move up a place, one into the batch before, and the last batch has
    a row less.
    """
    rows = np.arange(100)
    found = []
    for name, kept in (("whole", rows), ("less", np.delete(rows, removed))):
        np.savez(tmp_path / f"{name}.npz", images=digits[0][kept])
        out = tmp_path / f"{name}.h5"
        extract(options(tmp_path / f"{name}.npz", out, views=Views(views)))
        found.append(datasets(out)["features"])
    assert_array_equal(np.delete(found[0], removed, axis=0), found[1])


@pytest.mark.parametrize("views", [1, 3])
def test_a_network_sees_one_shape_of_batches(digits_npz, tmp_path, monkeypatch, views):
    """Of 107 rows, in blocks of 64 and batches of 16, the last batch has 11: as a batch
    of its own it would be rounded by other kernels.
    """
    shapes = set()
    forward = ScatterNet.forward

    def watched(net, images):
        if len(images) > 6:  # one of those by which a network is tried has no more
            shapes.add(tuple(images.shape))
        return forward(net, images)

    monkeypatch.setattr(ScatterNet, "forward", watched)
    out = tmp_path / "f.h5"
    sizes = {"limit": 107, "block_rows": 64, "batch_size": 16}
    extract(options(digits_npz, out, views=Views(views), **sizes))
    assert {shape[0] for shape in shapes} == {16 * views}


def test_a_row_is_the_mean_over_its_views_and_their_mirror_images(
    digits, digits_npz, tmp_path
):
    one = BackboneOptions("scatternet", scatter_j=(1,), mirror=True)
    choice = {"backbone": one, "normalize": RowNorm("unit")}
    extract(options(digits_npz, tmp_path / "one.h5", **choice))
    extract(options(digits_npz, tmp_path / "f.h5", views=Views(2, False), **choice))
    views = Views(2, False).of(digits[0][200])
    sides = np.stack([side for v in views for side in (v, v[:, ::-1])])
    images = torch.from_numpy(sides.astype(np.float32) / 255)[:, None]
    # each side is normalized before the mean
    wanted = RowNorm("unit")(ScatterNet(1, (8, 8), 8)(images)).mean(0)
    with (
        open_features(tmp_path / "f.h5") as file,
        open_features(tmp_path / "one.h5") as one,
    ):
        # float32 sums in another order
        assert_allclose(file.rows(200, 201)[0], wanted, atol=1e-5)
        assert file.config["transform"]["mirror"] is True
        # a head of averaged rows fits rows of one view
        assert file.feature_space == one.feature_space
        assert file.views == {"count": 2, "flip": False, "keyed_by": "image"}
        assert one.views == {}
