"""ScatterNet is kymatio's."""

import pytest
import torch
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.errors import ExtractError
from dphead_extract.threads import one_thread


def reference(J, shape, images):
    try:
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError:
        pytest.skip("kymatio does not import here")
    out = ScatteringTorch2D(J, shape)(images)
    return out.reshape(len(images), -1, *out.shape[-2:])


@pytest.mark.parametrize(
    "J, shape, colors, expected",
    [
        (2, (28, 28), 1, (81, 7, 7)),
        (2, (32, 32), 3, (243, 8, 8)),
        (3, (32, 40), 1, (217, 4, 5)),
        (3, (16, 60), 1, (217, 2, 7)),
    ],
)
def test_equals_kymatio(J, shape, colors, expected):
    images = torch.rand(5, colors, *shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours = ScatterNet(J, shape)(images)
        theirs = reference(J, shape, images)
    assert ours.shape == theirs.shape == (5, *expected)
    difference = torch.linalg.vector_norm((ours - theirs).flatten(2), dim=2)
    # each channel by itself
    assert (
        difference / torch.linalg.vector_norm(theirs.flatten(2), dim=2)
    ).max() < 1e-5


@pytest.mark.parametrize(
    "J, shape, colors, sizes",
    [
        (1, (8, 8), 3, (1, 2, 5, 33, 300)),
        (2, (8, 8), 1, (1, 3, 5, 25, 33, 65, 130, 401)),
        (3, (28, 28), 1, (1, 25, 33, 65)),
        (3, (32, 32), 3, (12, 25)),
        (1, (60, 50), 1, (1, 3, 50)),
    ],
)
def test_an_image_has_the_same_bits_at_every_place_of_a_batch_of_any_size(
    J, shape, colors, sizes
):
    """At all places at once, and at three beside random images."""
    net = ScatterNet(J, shape)
    generator = torch.Generator().manual_seed(J)
    image = torch.rand((colors, *shape), generator=generator)
    found = set()
    with one_thread(), torch.inference_mode():
        for size in sizes:
            same = image.expand(size, -1, -1, -1).contiguous()
            found |= {row.numpy().tobytes() for row in net(same)}
            places = [0, size // 2, size - 1]
            others = torch.rand(same.shape, generator=generator)
            others[places] = image
            found |= {row.numpy().tobytes() for row in net(others)[places]}
    assert len(found) == 1


def test_all_pieces_of_a_batch_have_the_same_number_of_planes(monkeypatch):
    """Kernels of a GPU may round differently for another number of planes."""
    sizes, plain = set(), torch.fft.fft2

    def seen(signal):
        sizes.add(len(signal))
        return plain(signal)

    net = ScatterNet(1, (8, 8))
    monkeypatch.setattr("dphead_extract.backbones.scattering.CPU_BYTES", 50_000)
    monkeypatch.setattr(torch.fft, "fft2", seen)
    assert len(net(torch.rand(41, 1, 8, 8))) == 41
    assert len(sizes) == 1
    assert sizes < {*range(41)}


def test_too_small_images_are_refused():
    with pytest.raises(ExtractError, match="at least 16 x 16 pixels, got 8 x 8"):
        ScatterNet(4, (8, 8))
