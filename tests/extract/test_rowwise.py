import numpy as np
import pytest
import torch

from extract.backbones import BackboneOptions, load_backbone
from extract.errors import ExtractError
from extract.rowwise import RowNorm
from extract.synthetic import synthetic_images


def test_group_norm_is_torchs():
    x = torch.randn(4, 12, 3, 3) * 5 + 2
    for groups in (1, 3, 12):
        expected = torch.nn.functional.group_norm(x, groups).flatten(1)
        torch.testing.assert_close(RowNorm("group", groups)(x), expected, rtol=1e-5, atol=1e-5)


def test_unit_norm_and_zero_rows():
    x = torch.randn(3, 5)
    x[1] = 0
    out = RowNorm("unit")(x)
    torch.testing.assert_close(out.norm(dim=1), torch.tensor([1.0, 0.0, 1.0]))


def test_none_flattens_channels_first():
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    torch.testing.assert_close(RowNorm()(x), x.flatten(1))


@pytest.mark.parametrize("norm", [RowNorm(), RowNorm("unit"), RowNorm("group", 2)])
def test_a_row_does_not_see_the_others(norm):
    x = torch.randn(6, 4, 2, 2)
    torch.testing.assert_close(norm(x)[2:3], norm(x[2:3]), rtol=1e-6, atol=1e-6)


def test_bad_settings():
    for arguments in (("group", 0), ("unit", 3), ("batch", 0)):
        with pytest.raises(ExtractError, match="normalisation must be"):
            RowNorm(*arguments)
    with pytest.raises(ExtractError, match=r"Use one of \[1, 3, 9, 27, 81\]"):
        RowNorm("group", 16).check_channels(81)


@pytest.mark.parametrize("colour", [False, True])
def test_synthetic_statistics_bring_each_channel_to_mean_zero_and_variance_one(colour):
    """On the images that they were taken from, where the channels of ScatterNet differ by a factor of ten and more."""
    backbone = load_backbone(BackboneOptions("scatternet"), (16, 16), colour)
    norm = RowNorm("synthetic").fitted(backbone)
    images = list(synthetic_images(16, 16, 3 if colour else 1))
    features = backbone.module(torch.stack([backbone.prepare(image) for image in images]))
    spread = features.transpose(0, 1).flatten(1).std(1)
    assert spread.max() > 10 * spread.min()
    out = norm(features).unflatten(1, features.shape[1:]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out.mean(1), torch.zeros(len(out)), rtol=0, atol=1e-3)  # float32 sums
    torch.testing.assert_close(out.std(1), torch.ones(len(out)), rtol=0, atol=0.02)  # 1e-5 is added to small spreads


def test_synthetic_images_are_the_same_each_time_and_fall_as_one_over_frequency():
    first, again = (np.stack(list(synthetic_images(32, 32, 1, count=50))).astype(float) for _ in range(2))
    assert np.array_equal(first, again)
    power = (np.abs(np.fft.fft2(first)) ** 2).mean(0)
    assert power[0, 2] / power[0, 8] == pytest.approx(16, rel=0.3)  # 50 images, rounded and clipped
