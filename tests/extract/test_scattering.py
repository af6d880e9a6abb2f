"""ScatterNet is kymatio's, whatever engine makes it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.errors import ExtractError
from extract.scattering import ScatterNet, n_channels, padded_size, reflect_index
from extract.wavelets import Fourier, Hartley


def reference(J, shape, images):
    try:
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError:
        pytest.skip("kymatio does not import here")
    out = ScatteringTorch2D(J, shape)(images)
    return out.reshape(len(images), -1, *out.shape[-2:])


@pytest.mark.parametrize(
    ("J", "shape", "colours", "expected"),
    [
        (2, (28, 28), 1, (81, 7, 7)),
        (2, (32, 32), 3, (243, 8, 8)),
        (1, (8, 8), 1, (9, 4, 4)),
        (3, (32, 40), 1, (217, 4, 5)),
        (3, (8, 8), 1, (217, 1, 1)),
        (2, (31, 30), 1, (81, 7, 7)),
        (3, (16, 60), 1, (217, 2, 7)),
    ],
)
def test_equals_kymatio(J, shape, colours, expected):
    images = torch.rand(5, colours, *shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours = ScatterNet(J, shape)(images)
        theirs = reference(J, shape, images)
    assert ours.shape == theirs.shape == (5, *expected)
    difference = torch.linalg.vector_norm((ours - theirs).flatten(2), dim=2)
    # each channel by itself
    assert (
        difference / torch.linalg.vector_norm(theirs.flatten(2), dim=2)
    ).max() < 1e-5


def test_equals_kymatio_on_digits(digits):
    images = torch.tensor(digits[0][:50])[:, None].float() / 255
    ours = ScatterNet(1, (8, 8))(images)
    theirs = reference(1, (8, 8), images)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_pieces_and_batches_do_not_matter(monkeypatch):
    images = torch.rand(9, 2, 16, 16)
    whole = ScatterNet(2, (16, 16))(images)
    monkeypatch.setattr("extract.wavelets.Hartley.cache_bytes", 1)
    torch.testing.assert_close(
        ScatterNet(2, (16, 16))(images), whole, rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(
        ScatterNet(2, (16, 16))(images[4:5]), whole[4:5], rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize(
    ("J", "L", "shape"),
    [
        (1, 8, (9, 12)),
        (2, 6, (16, 21)),
        (3, 5, (24, 20)),
    ],
)
def test_the_engines_agree(monkeypatch, J, L, shape):
    images = torch.rand(3, 1, *shape)
    products = ScatterNet(J, shape, L)
    monkeypatch.setattr("extract.scattering._MAX_HARTLEY_AXIS", 0)
    transforms = ScatterNet(J, shape, L)
    assert isinstance(products.engine, Hartley)
    assert isinstance(transforms.engine, Fourier)
    # float32 sums
    torch.testing.assert_close(
        products(images), transforms(images), rtol=1e-5, atol=1e-6
    )


def test_other_numbers_of_angles():
    assert (
        ScatterNet(2, (16, 16), L=5)(torch.rand(1, 1, 16, 16)).shape[1]
        == n_channels(2, 5)
        == 1 + 10 + 25
    )


def test_a_constant_image_has_no_wavelet_part():
    out = ScatterNet(2, (16, 16))(
        torch.full(
            (1, 1, 16, 16),
            3.0,
        )
    )
    torch.testing.assert_close(
        out[:, :1],
        torch.full_like(
            out[:, :1],
            3.0,
        ),
        rtol=1e-3,
        atol=0,
    )
    assert out[:, 1:].abs().max() < 1e-5


def test_too_small_images_are_refused():
    with pytest.raises(ExtractError, match=r"2\*\*J pixels, got J=4"):
        ScatterNet(4, (8, 8))
    with pytest.raises(ExtractError, match="got shape"):
        ScatterNet(1, (8, 8))(torch.zeros(1, 1, 9, 9))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 20), st.integers(1, 3))
def test_reflection_is_numpys(size, J):
    total, before, after = padded_size(size, J)
    index = reflect_index(size, before, after)
    assert len(index) == total
    assert total % 2**J == 0
    np.testing.assert_array_equal(
        index, np.pad(np.arange(size), (before, after), mode="reflect")
    )
