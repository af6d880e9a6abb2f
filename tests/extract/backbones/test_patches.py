"""Random patches: made by a seed, equal to their definition, and of each row alone."""

import numpy as np
import pytest
import torch
from dphead_extract.backbones import patches
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.fixed_filters import OPPONENT
from dphead_extract.backbones.patches import (
    CONTRAST,
    FILTERS,
    PLACES,
    SIDE,
    STRIDE,
    WEIGHT,
    PatchNet,
    dead_leaves,
    filters,
)
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.errors import ExtractError
from dphead_extract.normalization import RowNorm


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Filters from fewer images: each network draws its own."""
    monkeypatch.setattr(patches, "IMAGES", 20)
    monkeypatch.setattr(patches, "PATCHES", 4000)


def images(n, colors=3, side=14, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(n, colors, side, side, generator=draw)


def defined(weights, offset, image):
    """In float64, by patches: (PLACES, PLACES, 2 * FILTERS) of (C, H, W)."""
    view = np.lib.stride_tricks.sliding_window_view
    windows = view(image.double().numpy(), (SIDE, SIDE), (1, 2))[:, ::STRIDE, ::STRIDE]
    n = windows.shape[1]
    patches = np.moveaxis(windows, 0, 2).reshape(n, n, -1)
    patches = patches - patches.mean(axis=2, keepdims=True)
    patches /= np.sqrt(patches.var(axis=2, keepdims=True) + CONTRAST)
    found = patches @ weights.T - offset
    halves = np.concatenate([found, -found], 2).clip(0)
    cuts = [slice(i * n // PLACES, -(-(i + 1) * n // PLACES)) for i in range(PLACES)]
    return np.array([[halves[r, c].mean((0, 1)) for c in cuts] for r in cuts])


@pytest.mark.parametrize("colors, side", [(1, 10), (3, 16)])
def test_the_network_is_its_definition(colors, side):
    weights, offset = (v.astype(float) for v in filters(side, side, colors))
    x = images(2, colors, side)
    x[1] = 0.5  # no contrast at all
    found = PatchNet((side, side), colors)(x).permute(0, 2, 3, 1)
    wanted = np.stack([defined(weights, offset, image) for image in x])
    np.testing.assert_allclose(found, wanted, atol=2e-4)  # float32, sums of 108
    assert found.std() > 0.1


def test_filters_whiten_the_patches_that_they_were_drawn_from(monkeypatch):
    """Responses of unit filters to whitened patches have a spread of about one."""
    weights, offset = filters(32, 32, 3)
    assert np.array_equal(weights, filters(32, 32, 3)[0])
    assert np.array_equal(weights * patches.GRID, np.rint(weights * patches.GRID))
    view = np.lib.stride_tricks.sliding_window_view
    found = []
    for image in dead_leaves(32, 32, 3, 10):
        windows = view(image, (SIDE, SIDE), (1, 2))[:, ::3, ::3]
        found.append(np.moveaxis(windows, 0, 2).reshape(-1, 3 * SIDE**2))
    rows = np.concatenate(found)
    rows = rows - rows.mean(axis=1, keepdims=True)
    rows /= np.sqrt(rows.var(axis=1, keepdims=True) + CONTRAST)
    assert 0.5 < np.median((rows @ weights.T - offset).std(axis=0)) < 1.5
    monkeypatch.setattr(patches, "SEED", 1)
    assert not np.array_equal(weights, filters(32, 32, 3)[0])


def test_a_rows_bits_depend_on_no_other_row_nor_on_its_place():
    net = PatchNet((14, 14), 3)
    x = images(5)
    whole = net(x)
    assert torch.equal(net(x.flip(0)).flip(0), whole)
    for k in range(5):
        assert torch.equal(net(x[k : k + 1]), whole[k : k + 1])
    others = x.clone()
    others[1:] = 1 - others[1:]
    assert torch.equal(net(others)[0], whole[0])
    held = images(5).to(memory_format=torch.channels_last)
    assert torch.equal(net(held)[:1], net(held[:1]))


def test_opponent_colors_are_turned_back():
    """Patches are normalized over all colors, which is no matter of the basis."""
    x = images(2)
    plain = PatchNet((14, 14), 3)(x)
    turned = torch.einsum("dc,bcij->bdij", OPPONENT, x)
    torch.testing.assert_close(
        PatchNet((14, 14), 3, OPPONENT)(turned), plain, atol=1e-4, rtol=1e-4
    )


def test_patches_joined_with_scatternet_are_both_side_by_side():
    names = ("scatternet", "patches", "scatternet+patches")
    one, two, both = (
        load_backbone(BackboneOptions(name), (16, 16), True) for name in names
    )
    assert both.parts == one.parts + two.parts == ((243, 16), (2 * FILTERS, 9))
    assert both.kwargs == one.kwargs | two.kwargs | {"weight": WEIGHT}
    assert both.weights_sha256 == two.weights_sha256 != ""
    x = images(3, side=16)
    parts = [net.module(x).flatten(1) for net in (one, two)]
    assert torch.equal(both.module(x), torch.cat(parts, dim=1))
    rows = RowNorm("local").fitted(both)(both.module(x))
    for part, weight in zip(rows.split([3888, 9216], 1), (1, WEIGHT), strict=True):
        # each place is nearly of length one
        assert ((part.norm(dim=1) / weight - 0.9).abs() < 0.1).all()


def test_what_patches_cannot_do_is_refused():
    for more, match in (
        ({"mean": (0.5,)}, "pixels from 0 to 1"),
        ({"weights": "x"}, "--weights is not an option"),
        ({"image_size": 9}, "at least 10 pixels"),
    ):
        with pytest.raises(ExtractError, match=match):
            load_backbone(BackboneOptions("patches", **more), (16, 16), True)
