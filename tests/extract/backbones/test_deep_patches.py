"""Patches of maps: made by a seed, equal to their definition, and of each row alone."""

import numpy as np
import pytest
import torch
from dphead_extract.backbones import deep_patches
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.deep_patches import DeepPatches
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.errors import ExtractError

FILTERS = 6
SIDE, PLACES = 3, 3  # of a patch, and of the output
FLOOR = 0.1  # added to the root mean square


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few filters from few images: each network draws its own."""
    monkeypatch.setattr(deep_patches, "FILTERS", FILTERS)
    monkeypatch.setattr(deep_patches, "BETWEEN", 5)
    monkeypatch.setattr(deep_patches, "N_SYNTHETIC", 20)
    monkeypatch.setattr(deep_patches, "PATCHES", 300)


def images(n, colors=3, side=14, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(n, colors, side, side, generator=draw)


def network(colors=3, side=14, basis=None, layers=1):
    return DeepPatches(ScatterNet(1, (side, side), 2), colors, basis, layers)


def defined(net, image):
    """In float64, by windows of maps: (h, w, 2 * FILTERS) of (C, H, W)."""
    maps = signed_sqrt(net.first(image[None])[0].double().numpy())
    for layer in net.layers[:-1]:
        found = halves(layer, np.pad(maps, ((0, 0), (1, 1), (1, 1)), mode="reflect"))
        side = found.shape[1] // 2
        squares = found[:, : 2 * side, : 2 * side].reshape(-1, side, 2, side, 2)
        maps = signed_sqrt(squares.mean(axis=(2, 4)))
    found = halves(net.layers[-1], maps)
    steps = found.shape[1]
    n = min(PLACES, steps)
    cuts = [slice(i * steps // n, -(-(i + 1) * steps // n)) for i in range(n)]
    return np.array([[found[:, r, c].mean((1, 2)) for c in cuts] for r in cuts])


def signed_sqrt(maps):
    return np.sign(maps) * np.sqrt(np.abs(maps))


def halves(layer, maps):
    mean, spread, kernels, offset = (
        getattr(layer, name).double().numpy()
        for name in ("mean", "spread", "kernels", "offset")
    )
    maps = (maps - mean) / spread
    maps = maps / (np.linalg.norm(maps, axis=0) + 1)
    windows = np.lib.stride_tricks.sliding_window_view(maps, (SIDE, SIDE), (1, 2))
    patches = np.moveaxis(windows, 0, 2).reshape(*windows.shape[1:3], -1)
    found = patches @ kernels - offset
    found /= np.sqrt((found**2).mean(axis=2, keepdims=True)) + FLOOR
    return np.moveaxis(np.concatenate([found, -found], 2).clip(0), 2, 0)


@pytest.mark.parametrize(
    "colors, side, layers, places",
    [(1, 8, 1, 2), (3, 14, 1, 3), (1, 14, 2, 1), (3, 24, 2, 3)],
)
def test_the_network_is_its_definition(colors, side, layers, places):
    net = network(colors, side, layers=layers)
    assert len(net.layers) == layers
    x = images(2, colors, side)
    x[1] = 0.5  # no contrast at all
    found = net(x)
    assert found.shape == (2, 2 * FILTERS, places, places)
    wanted = np.stack([defined(net, image) for image in x])
    found = found.permute(0, 2, 3, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-4)  # float32, sums of hundreds
    assert found.std() > 0.1


def test_finer_scales_have_more_layers_until_all_maps_are_as_small():
    options = BackboneOptions(
        "deep-patches", settings={"scatter_j": (1, 2)}, image_size=24
    )
    both = load_backbone(options, (24, 24), False)
    assert [(net.first.J, len(net.layers)) for net in both.module.nets] == [
        (1, 2),
        (2, 1),
    ]
    assert both.parts == ((2 * FILTERS, PLACES**2),) * 2
    settings = {"scatter_j": (1, 2), "scatter_l": 8}
    own = {"filters": FILTERS, "between": 5, "side": SIDE, "places": PLACES}
    assert both.kwargs == settings | own | {"whiten": 1.0, "seed": 0}
    assert both.module(images(3, 1, 24)).std(dim=0).median() > 0


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


def test_what_deep_patches_cannot_do_is_refused():
    for more, match in (
        ({"mean": (0.5,)}, "--mean is not an option"),
        ({"weights": "x"}, "--weights is not an option"),
        ({"image_size": 8}, "at least 3 x 3 positions"),
    ):
        with pytest.raises(ExtractError, match=match):
            load_backbone(BackboneOptions("deep-patches", **more), (16, 16), True)
