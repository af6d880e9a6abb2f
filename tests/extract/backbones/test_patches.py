"""Random patches: made by a seed, equal to their definition, and of each row alone."""

import hashlib

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
from dphead_extract.features.format import open_features
from dphead_extract.normalization import RowNorm


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Filters from fewer images: each network draws its own."""
    monkeypatch.setattr(patches, "IMAGES", 20)
    monkeypatch.setattr(patches, "PATCHES", 4000)


def images(n, colours=3, side=14, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(n, colours, side, side, generator=draw)


def defined(weights, offset, image):
    """Slowly, patch by patch: (2 * FILTERS, PLACES, PLACES) of (C, H, W) in float64."""
    image = image.double().numpy()
    steps = range(0, image.shape[1] - SIDE + 1, STRIDE)
    found = np.empty((FILTERS, len(steps), len(steps)))
    for i, top in enumerate(steps):
        for j, left in enumerate(steps):
            patch = image[:, top : top + SIDE, left : left + SIDE].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + CONTRAST)
            found[:, i, j] = weights @ patch - offset
    halves = np.concatenate([np.maximum(found, 0), np.maximum(-found, 0)])
    pooled = np.empty((2 * FILTERS, PLACES, PLACES))
    n = len(steps)
    for i in range(PLACES):
        rows = slice(i * n // PLACES, -(-(i + 1) * n // PLACES))
        for j in range(PLACES):
            columns = slice(j * n // PLACES, -(-(j + 1) * n // PLACES))
            pooled[:, i, j] = halves[:, rows, columns].mean(axis=(1, 2))
    return pooled


@pytest.mark.parametrize("colours, side", [(1, 10), (3, 14), (3, 16)])
def test_the_network_is_its_definition(colours, side):
    weights, offset = (v.astype(float) for v in filters(side, side, colours))
    x = images(2, colours, side)
    x[1] = 0.5  # no contrast at all
    found = PatchNet((side, side), colours)(x)
    wanted = np.stack([defined(weights, offset, image) for image in x])
    np.testing.assert_allclose(found, wanted, atol=2e-4)  # float32, sums of 108
    assert found.std() > 0.1


def test_filters_whiten_the_patches_that_they_were_drawn_from():
    """Their responses to patches of dead leaves, of unit filters of whitened patches,
    have the spread of one, and nothing else of a seed changes.
    """
    weights, offset = filters(32, 32, 3)
    again, _ = filters(32, 32, 3)
    assert np.array_equal(weights, again)
    assert np.array_equal(weights * patches.GRID, np.rint(weights * patches.GRID))
    windows = []
    for image in dead_leaves(32, 32, 3, 10):
        view = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE), (1, 2))
        some = view[:, ::3, ::3].reshape(3, -1, SIDE**2)
        windows.append(some.swapaxes(0, 1))
    rows = np.concatenate(windows).reshape(-1, 3 * SIDE**2)
    rows = rows - rows.mean(axis=1, keepdims=True)
    rows /= np.sqrt(rows.var(axis=1, keepdims=True) + CONTRAST)
    spread = (rows @ weights.T - offset).std(axis=0)
    assert 0.5 < np.median(spread) < 1.5
    # raw patches are far from white: their first direction has most of the variance
    assert rows.std(axis=0).mean() > 0.5


def test_another_seed_gives_other_filters_and_no_image_of_the_data_any(monkeypatch):
    digests = set()
    for seed in (0, 1):
        monkeypatch.setattr(patches, "SEED", seed)
        digests.add(hashlib.sha256(filters(16, 16, 1)[0].tobytes()).hexdigest())
    assert len(digests) == 2


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


def test_opponent_colours_are_turned_back():
    """Patches are normalised over all colours, which is no matter of the basis."""
    x = images(2)
    plain = PatchNet((14, 14), 3)(x)
    turned = torch.einsum("dc,bcij->bdij", OPPONENT, x)
    torch.testing.assert_close(
        PatchNet((14, 14), 3, OPPONENT)(turned), plain, atol=1e-4, rtol=1e-4
    )


def test_patches_joined_with_scatternet_are_both_side_by_side():
    def load(name, **more):
        return load_backbone(BackboneOptions(name, **more), (16, 16), True)

    one, two, both = (
        load(name) for name in ("scatternet", "patches", "scatternet+patches")
    )
    assert both.parts == one.parts + two.parts == ((243, 16), (2 * FILTERS, 9))
    assert both.kwargs == one.kwargs | two.kwargs | {"weight": WEIGHT}
    assert both.weights == (1.0, WEIGHT)
    assert both.weights_sha256 == two.weights_sha256 != ""
    x = images(3, side=16)
    joined = both.module(x)
    parts = [net.module(x).flatten(1) for net in (one, two)]
    assert torch.equal(joined, torch.cat(parts, dim=1))
    norm = RowNorm("local").fitted(both)
    rows = norm(joined)
    assert torch.equal(norm(joined[:1]), rows[:1])
    parts = rows.split([243 * 16, 1024 * 9], dim=1)
    for part, weight in zip(parts, both.weights, strict=True):
        size = part.norm(dim=1) / weight  # each place is nearly of length one
        assert (size > 0.8).all()
        assert (size < 1).all()


def test_what_patches_cannot_do_is_refused():
    for more, match in (
        ({"mean": (0.5,)}, "pixels from 0 to 1"),
        ({"weights": "x"}, "--weights is not an option"),
        ({"image_size": 9}, "at least 10 pixels"),
    ):
        with pytest.raises(ExtractError, match=match):
            load_backbone(BackboneOptions("patches", **more), (16, 16), True)


def test_a_features_file_of_patches_says_what_made_it(in_two_batch_sizes):
    backbone = BackboneOptions("patches", image_size=12, mirror=True)
    with open_features(in_two_batch_sizes(backbone)) as a:
        assert a.config["backbone"] == "patches"
        assert a.config["backbone_kwargs"]["filters"] == FILTERS
        assert len(a.config["weights_sha256"]) == 64
        assert a.n_features == 2 * FILTERS * PLACES**2
