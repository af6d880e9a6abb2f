"""Patches of maps: made by a seed, equal to their definition, and of each row alone."""

import numpy as np
import pytest
import torch
from dphead_extract.backbones import deep_patches
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.deep_patches import FLOOR, SIDE, DeepPatches
from dphead_extract.backbones.fixed_filters import OPPONENT
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.errors import ExtractError
from dphead_extract.features.format import open_features

FILTERS = 6
PLACES = deep_patches.PLACES


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few filters from few images: each network draws its own."""
    monkeypatch.setattr(deep_patches, "FILTERS", FILTERS)
    monkeypatch.setattr(deep_patches, "BETWEEN", 5)
    monkeypatch.setattr(deep_patches, "COUNT", 20)
    monkeypatch.setattr(deep_patches, "PATCHES", 300)


def images(n, colours=3, side=14, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(n, colours, side, side, generator=draw)


def network(colours=3, side=14, basis=None, layers=1):
    return DeepPatches(ScatterNet(1, (side, side), 2), colours, basis, layers)


def defined(net, image):
    """Slowly, place by place, in float64: (2 * FILTERS, h, w) of (C, H, W)."""
    maps = net.first(image[None])[0]
    maps = signed_sqrt(maps.double().numpy())
    for layer in net.layers[:-1]:
        border = (1, 1)
        padded = np.pad(maps, ((0, 0), border, border), mode="reflect")
        found = halves(layer, padded)
        maps = signed_sqrt(squares(found))
    last = net.layers[-1]
    return pooled(halves(last, maps))


def signed_sqrt(maps):
    roots = np.sqrt(np.abs(maps))
    return np.sign(maps) * roots


def squares(found):
    """Means over squares of 2 x 2 places."""
    side = found.shape[1] // 2
    means = np.empty((len(found), side, side))
    for i in range(side):
        rows = slice(2 * i, 2 * i + 2)
        for j in range(side):
            columns = slice(2 * j, 2 * j + 2)
            square = found[:, rows, columns]
            means[:, i, j] = square.mean(axis=(1, 2))
    return means


def halves(layer, maps):
    mean = layer.mean.double().numpy()
    spread = layer.spread.double().numpy()
    kernels = layer.kernels.double().numpy()
    offset = layer.offset.double().numpy()
    maps = (maps - mean) / spread
    lengths = np.sqrt((maps**2).sum(axis=0))
    maps = maps / (lengths + 1)
    steps = maps.shape[1] - SIDE + 1
    found = np.empty((kernels.shape[1], steps, steps))
    for i in range(steps):
        rows = slice(i, i + SIDE)
        for j in range(steps):
            columns = slice(j, j + SIDE)
            patch = maps[:, rows, columns].ravel()
            products = patch @ kernels - offset
            size = np.sqrt((products**2).mean())
            found[:, i, j] = products / (size + FLOOR)
    positive = np.maximum(found, 0)
    negative = np.maximum(-found, 0)
    return np.concatenate([positive, negative])


def pooled(found):
    steps = found.shape[1]
    places = min(PLACES, steps)
    pooled = np.empty((len(found), places, places))
    for i in range(places):
        rows = slice(i * steps // places, -(-(i + 1) * steps // places))
        for j in range(places):
            columns = slice(j * steps // places, -(-(j + 1) * steps // places))
            pooled[:, i, j] = found[:, rows, columns].mean(axis=(1, 2))
    return pooled


@pytest.mark.parametrize(
    "colours, side, layers, places",
    [(1, 8, 1, 2), (3, 10, 1, 3), (3, 14, 1, 3), (1, 14, 2, 1), (3, 24, 2, 3)],
)
def test_the_network_is_its_definition(colours, side, layers, places):
    net = network(colours, side, layers=layers)
    assert len(net.layers) == layers
    x = images(2, colours, side)
    x[1] = 0.5  # no contrast at all
    found = net(x)
    assert found.shape == (2, 2 * FILTERS, places, places)
    wanted = np.stack([defined(net, image) for image in x])
    np.testing.assert_allclose(found, wanted, atol=1e-4)  # float32, sums of hundreds
    assert found.std() > 0.1


def test_filters_whiten_the_patches_that_they_were_drawn_from():
    """Of unit filters of whitened patches, responses have about the spread of one, less
    what is added to the eigenvalues; those of patches as they are differ in size.
    """
    maps = torch.randn(50, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    maps[:, 0] *= 30
    patches = torch.nn.functional.unfold(maps, SIDE).transpose(1, 2).flatten(0, 1)
    kernels, offset = deep_patches._filters(patches, FILTERS)
    spread = (patches @ kernels - offset).std(dim=0)
    assert 0.1 < spread.min() < spread.max() < 1.5
    alone = patches.std(dim=0)
    assert alone.max() > 20 * alone.min()


def test_a_seed_makes_all_of_it_and_no_image_of_the_data_any(monkeypatch):
    def kernels():
        return [layer.kernels for layer in network(layers=2).layers]

    one = kernels()
    assert all(map(torch.equal, one, kernels()))
    monkeypatch.setattr(deep_patches, "SEED", 1)
    assert not any(map(torch.equal, one, kernels()))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_rows_bits_depend_on_no_other_row_nor_on_its_place(layers):
    """In batches of one shape, as extraction makes them."""
    net = network(layers=layers)
    x = images(20)
    whole = net(x)
    assert torch.equal(net(x.flip(0)).flip(0), whole)
    for k in (1, 7, 19):
        assert torch.equal(net(x.roll(k, 0)).roll(-k, 0), whole)
    others = x.clone()
    others[1:] = 1 - others[1:]
    assert torch.equal(net(others)[0], whole[0])


def test_opponent_colours_are_of_the_images_and_of_the_synthetic_ones():
    """A network of turned images is not that of plain ones, and both are of unit
    channels on synthetic images.
    """
    plain, turned = (network(basis=basis).layers[0] for basis in (None, OPPONENT))
    assert plain.mean.shape == turned.mean.shape
    assert not torch.allclose(plain.mean, turned.mean)
    (leaves, noise) = deep_patches._synthetic((14, 14), 3, OPPONENT)
    assert leaves.shape == noise.shape == (20, 3, 14, 14)
    luminance = noise[:, 0] * 3**0.5 / 3  # of pixels from 0 to 1, the mean colour
    assert 0.3 < luminance.mean() < 0.7


def test_what_deep_patches_cannot_do_is_refused():
    for more, match in (
        ({"mean": (0.5,)}, "pixels from 0 to 1"),
        ({"weights": "x"}, "--weights is not an option"),
        ({"image_size": 8}, "maps of at least 3 places"),
    ):
        with pytest.raises(ExtractError, match=match):
            load_backbone(BackboneOptions("deep-patches", **more), (16, 16), True)


def test_a_features_file_of_deep_patches_says_what_made_it(in_two_batch_sizes):
    backbone = BackboneOptions("deep-patches", scatter_j=(1,), mirror=True)
    with open_features(in_two_batch_sizes(backbone)) as a:
        assert a.config["backbone"] == "deep-patches"
        assert a.config["backbone_kwargs"] == {"J": 1, "L": 8} | deep_patches.SETTINGS
        assert a.n_features == 2 * FILTERS * 2**2


def test_finer_scales_have_more_layers_until_all_maps_are_as_small():
    def loaded(scales):
        options = BackboneOptions(
            "deep-patches",
            scatter_j=scales,
            image_size=32,
        )
        return load_backbone(options, (32, 32), True)

    both = loaded((1, 2))
    fine, coarse = both.module.nets
    assert fine.first.J == 1
    assert coarse.first.J == 2
    assert len(fine.layers) == 2
    assert len(coarse.layers) == 1
    part = (2 * FILTERS, PLACES**2)
    assert both.parts == (part, part)
    assert both.weights == ()
    assert both.kwargs["J"] == [1, 2]
    assert both.kwargs["between"] == 5
    alone = loaded((2,))
    assert "between" not in alone.kwargs
    x = images(3, side=32)
    wanted = alone.module(x).flatten(1)
    width = wanted.shape[1]
    found = both.module(x)
    assert torch.equal(found[:, width:], wanted)
    assert found[:, :width].std() > 0
