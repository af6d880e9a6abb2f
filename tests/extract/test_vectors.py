"""A row has the same bits at every place of a batch, whatever torch does at its end."""

import numpy as np
import pytest
import torch
from dphead_extract.backbones.base import Backbone, BackboneOptions
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.features.format import open_features
from dphead_extract.run import extract
from dphead_extract.threads import one_thread
from dphead_extract.vectors import VECTOR, WholeVectors, are_alike
from numpy.testing import assert_array_equal
from torch import nn

from tests.extract.test_run import datasets, options

ROUNDED_AT_THE_END = {  # the operations that AUDIT.md names
    "silu": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "softplus": nn.Softplus(),
    "mish": nn.Mish(),
    "elu": nn.ELU(),
    "power": lambda x: x.abs() ** 0.3,
}


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.mark.parametrize("name", ROUNDED_AT_THE_END)
@pytest.mark.parametrize("columns", [1, 3, 6, 20, 49])
def test_rows_are_alike_forward_and_backward_in_as_many_as_are_found(name, columns):
    apply = ROUNDED_AT_THE_END[name]

    def both(rows):
        x = rows.clone().requires_grad_()
        apply(x).sum().backward()
        return torch.cat([apply(x).detach(), x.grad], dim=1)

    generator = torch.Generator().manual_seed(columns)
    rows = 3 * torch.randn((40, 1, columns), generator=generator)
    with WholeVectors() as seen:
        both(rows[0])
    for wanted in (2, 7, 33):
        n = seen.rounded(wanted)
        assert wanted <= n < wanted + VECTOR
        for row in rows:
            assert are_alike(both(row.expand(n, columns)))


@pytest.mark.parametrize(
    "inexact",
    [
        lambda x: torch.add(x, x, alpha=3),
        lambda x: x**3,
        lambda x: x**x,
        lambda x: torch.complex(x, x) * torch.complex(x, x),
        lambda x: x.sigmoid_(),
    ],
)
def test_what_may_be_rounded_twice_needs_whole_vectors(inexact):
    with WholeVectors() as seen:
        inexact(torch.ones(1, 3))
        torch.ones(1, 4).sigmoid()  # fewer rows would do for these
    assert seen.multiple == 32


class Uneven(nn.Module):
    """7 x 7 places of 3 channels through a SiLU: 147 numbers a row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 3, 2)
        self.convolution.weight.data *= 8

    def forward(self, x):
        return nn.functional.silu(self.convolution(x))


class Placed(nn.Module):
    """The places of a batch are added to its rows."""

    def forward(self, x):
        return x + 1e-6 * torch.arange(len(x)).reshape(-1, 1, 1, 1)


def backbone_of(module, parts):
    return Backbone(
        name="own",
        kwargs={},
        weights_sha256="",
        transform={"interpolation": None},
        module=module.eval(),
        prepare=lambda x: x[..., None],
        input_shape=(1, 8, 8),
        parts=(parts,),
    )


@pytest.fixture
def rows_of(monkeypatch, tmp_path, digits):
    """Features (8, 16, n) of 16 images that come 8 times, by a network."""

    def extracted(module, parts, size, block_rows=4096):
        backbone = backbone_of(module, parts)
        monkeypatch.setattr("dphead_extract.run.load_backbone", lambda *_: backbone)
        images = np.tile(digits[0][:16], (8, 1, 1))
        labels = np.zeros(128, int)
        np.savez(tmp_path / "same.npz", images=images, labels=labels)
        sizes = {"batch_size": size, "block_rows": block_rows, "workers": 1}
        own = BackboneOptions("own")
        out = tmp_path / "same.h5"
        extract(options(tmp_path / "same.npz", out, backbone=own, **sizes))
        with open_features(out) as file:
            return file.rows(0, 128).reshape(8, 16, -1)

    return extracted


@pytest.mark.parametrize("size, block_rows", [(5, 4096), (4096, 5), (40, 40)])
def test_an_image_has_the_same_features_at_every_place_of_a_file(
    rows_of, size, block_rows
):
    rows = rows_of(Uneven(), (3, 49), size, block_rows)
    assert (rows == rows[0]).all()


def test_images_whose_bits_follow_their_place_go_alone(rows_of):
    rows = rows_of(Placed(), (1, 64), size=40)
    assert (rows == rows[0]).all()


@pytest.mark.parametrize("rows", [[[1.0], [1.0 + 1e-7]], [[np.nan], [np.nan]]])
def test_rows_are_alike_bit_by_bit_and_numbers(rows):
    assert are_alike(torch.ones(3, 2))
    assert not are_alike(torch.tensor(rows))


@pytest.mark.parametrize("removed", [0, 57])
def test_a_removed_image_changes_no_bit_of_any_other_row(digits, tmp_path, removed):
    """All later rows move up a place, one into the batch before, and the last batch has
    a row less.
    """
    rows = np.arange(100)
    found = []
    for name, kept in (("whole", rows), ("less", np.delete(rows, removed))):
        np.savez(tmp_path / f"{name}.npz", images=digits[0][kept])
        out = tmp_path / f"{name}.h5"
        extract(options(tmp_path / f"{name}.npz", out))
        found.append(datasets(out)["features"])
    assert_array_equal(np.delete(found[0], removed, axis=0), found[1])


def test_a_network_sees_one_shape_of_batches(digits_npz, tmp_path, monkeypatch):
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
    extract(options(digits_npz, out, limit=107, block_rows=64, batch_size=16))
    assert {shape[0] for shape in shapes} == {16}
