"""Normalization of a row looks at no other row."""

import numpy as np
import pytest
import torch
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.errors import ExtractError
from dphead_extract.normalization import RowNorm
from dphead_extract.synthetic import synthetic_features, synthetic_images


def test_group_norm_is_torchs():
    x = torch.randn(4, 12, 3, 3) * 5 + 2
    for groups in (1, 3, 12):
        expected = torch.nn.functional.group_norm(x, groups).flatten(1)
        torch.testing.assert_close(
            RowNorm("group", groups)(x), expected, rtol=1e-5, atol=1e-5
        )


def test_unit_norm_and_zero_rows():
    x = torch.randn(3, 5)
    x[1] = 0
    out = RowNorm("unit")(x)
    torch.testing.assert_close(out.norm(dim=1), torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("norm", [RowNorm(), RowNorm("unit"), RowNorm("group", 2)])
def test_a_row_does_not_see_the_others(norm):
    x = torch.randn(6, 4, 2, 2)
    torch.testing.assert_close(norm(x)[2:3], norm(x[2:3]), rtol=1e-6, atol=1e-6)


def test_bad_settings():
    for arguments in (("group", 0), ("batch", 0)):
        with pytest.raises(ExtractError, match="--normalize must be"):
            RowNorm(*arguments)
    with pytest.raises(ExtractError, match=r"Use one of 1, 3, 9, 27, 81\."):
        RowNorm("group", 16)(torch.zeros(1, 81, 1, 1))


def test_synthetic_statistics_bring_each_channel_to_mean_zero_and_variance_one():
    """On the images that they were taken from, where the channels of ScatterNet differ
    by a factor of ten and more.
    """
    backbone = load_backbone(BackboneOptions("scatternet"), (16, 16), True)
    features = synthetic_features(backbone)
    spread = features.transpose(0, 1).flatten(1).std(1)
    assert spread.max() > 10 * spread.min()
    out = RowNorm("synthetic").fitted(backbone)(features).reshape(features.shape)
    spread, mean = torch.std_mean(out, (0, 2, 3))
    assert mean.abs().max() < 1e-3  # float32 sums
    assert (spread - 1).abs().max() < 0.02  # 1e-5 is added to small spreads


@pytest.mark.parametrize("scales", [(2,), (1, 2)])
def test_local_normalization_is_its_definition(scales):
    """In float64, from the synthetic images on."""
    options = BackboneOptions("scatternet", settings={"scatter_j": scales})
    backbone = load_backbone(options, (16, 16), False)
    rows = backbone.module(torch.rand(3, 1, 16, 16)).flatten(1)
    public = synthetic_features(backbone).flatten(1)
    out, start = RowNorm("local").fitted(backbone)(rows), 0
    for channels, places in backbone.parts:
        part = slice(start, start + channels * places)
        x, s = (
            v[:, part].reshape(-1, channels, places).double().numpy()
            for v in (rows, public)
        )
        x, s = (np.sign(v) * np.sqrt(np.abs(v)) for v in (x, s))
        mean, spread = (f(s, axis=(0, 2))[:, None] for f in (np.mean, np.std))
        wanted = (x - mean) / (spread + 1e-5)
        lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
        wanted /= (lengths + 1) * np.sqrt(places)
        # float32 spreads
        wanted = wanted.reshape(3, -1)
        np.testing.assert_allclose(out[:, part], wanted, rtol=1e-3, atol=1e-5)
        start = part.stop
    assert start == backbone.n_features == out.shape[1]


def test_synthetic_images_are_the_same_each_time_and_fall_as_one_over_frequency():
    first, again = (
        np.stack(list(synthetic_images(32, 32, 1, count=50))).astype(float)
        for _ in range(2)
    )
    assert np.array_equal(first, again)
    power = (np.abs(np.fft.fft2(first)) ** 2).mean(0)
    # 50 images, rounded and clipped
    assert power[0, 2] / power[0, 8] == pytest.approx(16, rel=0.3)
