"""Views: reproducible by content and step, of the image's size and range, and each what
it says.
"""

import numpy as np
import pytest
import torch
from finetune.core import tiny
from numpy.testing import assert_array_equal

from dphead.finetune.augment import (
    AUGMENTATIONS,
    jitter,
    row_keys,
    uniforms,
    views_of,
)
from dphead.finetune.network import NetworkSpec


def pictures(n=6, size=16, channels=3):
    return torch.rand(
        (n, channels, size, size), generator=torch.Generator().manual_seed(0)
    )


def test_the_numbers_are_uniform_and_follow_the_key_and_step_alone():
    u = uniforms(5, np.arange(4000), 2)
    assert u.shape == (4000, 2, 16)
    assert u.dtype == np.float32
    assert u.min() >= 0
    assert u.max() < 1
    # 128,000 uniforms: the mean has sd 0.0008, a correlation of 4,000 pairs 0.016
    assert abs(u.mean() - 0.5) < 0.004
    assert abs(u.std() - 12**-0.5) < 0.003
    flat = u.reshape(4000, -1)
    assert np.abs(np.corrcoef(flat.T) - np.eye(32)).max() < 0.08
    assert abs(np.corrcoef(flat[:-1, 0], flat[1:, 0])[0, 1]) < 0.08
    assert_array_equal(uniforms(5, np.array([17, 3]), 2), u[[17, 3]])
    assert not np.array_equal(uniforms(6, np.arange(4000), 2), u)


def test_a_rows_key_is_of_its_own_bytes():
    x = np.random.default_rng(0).integers(0, 256, (5, 12)).astype(np.float32)
    keys = row_keys(x)
    assert keys.shape == (5,)
    assert keys.dtype == np.uint64
    assert len(set(keys.tolist())) == 5
    assert_array_equal(row_keys(x[[3, 1]]), keys[[3, 1]])
    assert_array_equal(row_keys(x[:, ::2]), row_keys(np.array(x[:, ::2])))
    x[3, 5] += 1
    assert (row_keys(x) != keys).tolist() == [False, False, False, True, False]
    assert row_keys(x[:0]).shape == (0,)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_views_keep_size_and_range_and_differ(name, size, channels):
    x = pictures(3, size, channels)
    views = views_of(x, np.arange(3), 4, name, step=0)
    assert views.shape == (3, 4, channels, size, size)
    assert float(views.min()) >= 0
    assert float(views.max()) <= 1 + 1e-6
    assert not torch.equal(views[0, 0], views[0, 1])
    alone = views_of(x[2:], np.array([2]), 4, name, step=0)
    torch.testing.assert_close(alone[0], views[2], rtol=1e-5, atol=1e-6)


def test_a_crop_is_a_window_of_the_image_padded_by_reflection():
    x, crop = pictures(), AUGMENTATIONS["crop"]
    u = torch.zeros(6, 16)
    # down by the whole pad, left by it, not flipped
    u[:, 0], u[:, 1], u[:, 2] = 0.999, 0.0, 0.9
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")
    torch.testing.assert_close(crop(x, u), padded[:, :, 4:20, 0:16])
    u[:, 2] = 0.1
    torch.testing.assert_close(crop(x, u), padded[:, :, 4:20, 0:16].flip(3))
    u[:, :2] = 0.5
    u[:, 2] = 0.9
    torch.testing.assert_close(crop(x, u), x)


def test_a_resized_crop_of_the_whole_image_is_the_image():
    x, crop = pictures(), AUGMENTATIONS["rrc"]
    u = torch.zeros(6, 16)
    u[:, 0], u[:, 1:4], u[:, 4] = 1.0, 0.5, 0.9
    torch.testing.assert_close(crop(x, u), x, rtol=1e-4, atol=1e-5)
    u[:, 4] = 0.1
    torch.testing.assert_close(crop(x, u), x.flip(3), rtol=1e-4, atol=1e-5)


def test_jitter_in_the_middle_changes_nothing():
    x = pictures()
    torch.testing.assert_close(
        jitter(x, torch.full((6, 16), 0.5), 0.8, 0.2), x, rtol=1e-4, atol=1e-4
    )
    gray = x.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    turned = jitter(gray, torch.rand(6, 16), 0.0, 0.5)
    # gray has no hue; YIQ's printed digits are four
    torch.testing.assert_close(turned, gray, rtol=1e-3, atol=2e-3)


def test_no_views_are_the_images_themselves():
    x = pictures()
    assert torch.equal(views_of(x, np.arange(6), 0, "none", 0)[:, 0], x)


@pytest.mark.parametrize(
    "options",
    [
        {"augment": "crop"},
        {"views": 2},
        {"pixels": False, "views": 2, "augment": "crop"},
    ],
)
def test_settings_that_do_not_belong_together_are_refused(options):
    model = tiny().spec.model
    with pytest.raises(ValueError, match="augment"):
        NetworkSpec(model, (3, 8, 8), 3, **options)
