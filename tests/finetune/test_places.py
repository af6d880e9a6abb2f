"""A row's gradient, norm and clip factor have the same bits at every place of a chunk.

Chunks of 17 rows and more, with a remainder by 16: torch's sums over the first
dimension of a stack take 16 columns together, and those that are left in another order.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from dphead_extract.threads import one_thread
from dphead_extract.vectors import VECTOR
from finetune.core import images

from dphead.finetune.augment import AUGMENTATIONS, views_of
from dphead.finetune.gradients import (
    Part,
    PerExample,
    clipped,
    squared_norms,
)
from dphead.finetune.network import Network, NetworkSpec, TorchSums
from dphead.finetune.settings import ModelSpec

CHUNKS = (17, 18, 21, 33, 50, 70)
NETWORKS = {"tb21-mnist": (1, 28, 28), "wrn-10-1": (3, 8, 8)}


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def moved(value):
    """Places of a chunk whose bits are not those of the first."""
    return [k for k, one in enumerate(value) if not torch.equal(one, value[0])]


def alike(rows, *shape, seed=0):
    """(rows, *shape) float32, one random row at every place."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((1, *shape), generator=generator).expand(rows, *shape).clone()


@pytest.mark.parametrize("tensors", [5, 25])
def test_a_norm_of_many_tensors_is_the_same_bits_at_every_place(tensors):
    for rows in (*range(17, 34), 50, 70):
        for seed in range(3):
            parts = [Part(alike(rows, 7, seed=100 * seed + i)) for i in range(tensors)]
            assert moved(squared_norms(parts)) == [], rows


def test_a_norm_is_the_same_bits_at_every_place_whatever_the_memory():
    """Of one piece and of many, and rows innermost, as a transposed product leaves
    them.
    """
    for rows, pieces, seed in product((17, 33, 70), (1, 9), range(3)):
        part = Part(alike(rows, 2**18 // rows * pieces, seed=seed))
        assert len(part.columns) == pieces
        assert moved(part.norm2()) == [], rows
    for rows, columns in product(CHUNKS, (1, 2, 5, 100)):
        value = alike(rows, columns).T.contiguous().T
        assert moved(Part(value).norm2()) == [], rows


def test_a_row_whose_norm_is_near_a_whole_factor_adds_the_same_at_places_0_and_16():
    """5,625 ones beside five numbers that were looked for: added in another order, the
    last bit of the norm decides whether an entry is 13,980 or one less, 75 of the 2**20
    of a gradient of the clip norm.
    """
    parts = [
        Part(torch.full((18, size), entry))
        for size, entry in (
            (1, 0.44990894198417664),
            (5625, 1.0),
            (1, 0.08564716577529907),
            (1, 0.5436998605728149),
            (1, 0.3052031993865967),
            (1, 0.45413410663604736),
        )
    ]
    first, later = (clipped(parts, torch.arange(18) == place, 1.0) for place in (0, 16))
    assert torch.equal(first, later)


@cache
def network(name):
    return Network(NetworkSpec(ModelSpec(name), NETWORKS[name], 10))


@pytest.mark.parametrize("rows", [17, 70])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_networks_row_is_the_same_bits_at_every_place(name, rows):
    """At all places at once, and at the last among other rows."""
    net = network(name)
    gradients = PerExample(net.model)
    channels, size, _ = NETWORKS[name]
    x = images(n=rows, size=size, channels=channels)[0]
    x = x.reshape(rows, -1).astype(np.float32)
    y = torch.zeros(rows, dtype=torch.long)
    same = np.repeat(x[-1:], rows, axis=0)
    parts = gradients.parts(net.spec.inputs(same, 0), y)
    others = gradients.parts(net.spec.inputs(x, 0), y)
    assert torch.equal(squared_norms(parts)[:1], squared_norms(others)[-1:])
    assert moved(squared_norms(parts)) == []
    for part, other in zip(parts, others, strict=True):
        for value, one in zip(part.columns, other.columns, strict=True):
            assert moved(value) == []
            assert torch.equal(value[0], one[-1])


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_an_images_views_are_the_same_bits_at_every_place(name):
    for (channels, size), views in [((3, 8), 3), ((1, 28), 1), ((3, 64), 2)]:
        for rows in (17, 33) if size == 64 else CHUNKS:
            x = alike(rows, channels, size, size).clamp(0, 1)
            keys = np.full(rows, 12345, np.uint64)
            assert moved(views_of(x, keys, views, name, 3)) == [], (size, rows)


@pytest.mark.parametrize("batch", [17, 300])
def test_sums_take_so_many_rows_that_a_swish_is_the_same_bits_at_every_place(
    batch, monkeypatch
):
    """timm's small network with SiLU: 17 rows would not be alike."""
    monkeypatch.setattr("dphead.finetune.network._CPU_BYTES", 2**40)
    net = Network(NetworkSpec(ModelSpec("test_nfnet"), (3, 20, 20), 10))
    rows = TorchSums(net, batch=batch).chunk
    assert min(batch, 75) <= rows < 75 + VECTOR
    gradients = PerExample(net.model)
    y = torch.zeros(rows, dtype=torch.long)
    for seed in range(3):
        image = images(n=1, size=20, channels=3, seed=seed)[0]
        x = image.reshape(1, -1).astype(np.float32)
        same = np.repeat(x, rows, axis=0)
        for part in gradients.parts(net.spec.inputs(same, 0), y):
            assert all(moved(value) == [] for value in part.columns)


def test_a_chunk_holds_fewer_rows_of_a_large_network_but_at_least_eight(monkeypatch):
    net = network("tb21-mnist")
    for size, rows in [(2**40, 32), (2**10, 8)]:
        monkeypatch.setattr("dphead.finetune.network._CPU_BYTES", size)
        assert TorchSums(net, batch=40).chunk == rows


def test_rows_whose_bits_follow_their_place_go_alone(monkeypatch):
    parts_of = PerExample.parts

    def placed(self, inputs, labels):
        parts = parts_of(self, inputs, labels)
        moved = Part(1e-6 * torch.arange(len(labels))[:, None])
        return [*parts[:-1], moved]

    net = network("tb21-mnist")
    assert TorchSums(net, batch=40).chunk == 32
    monkeypatch.setattr(PerExample, "parts", placed)
    assert TorchSums(net, batch=40).chunk == 1
    assert TorchSums(net, batch=40, chunk=32).chunk == 32


def test_a_chunk_beyond_a_gpus_memory_is_noticed_before_the_charge(monkeypatch):
    parts_of = PerExample.parts

    def limited(self, inputs, labels):
        if len(labels) > 8:
            raise torch.cuda.OutOfMemoryError
        return parts_of(self, inputs, labels)

    sums = TorchSums(network("tb21-mnist"), chunk=1)
    monkeypatch.setattr(PerExample, "parts", limited)
    assert [sums._fits(rows) for rows in (16, 8)] == [False, True]


def test_rows_go_alone_whose_bits_follow_their_place_at_other_weights(monkeypatch):
    """As below a head of zeros, where nothing is seen at the start."""
    net = network("tb21-mnist")
    parts_of, set_of = PerExample.parts, PerExample.set
    at_start = True

    def noted(self, weights):
        nonlocal at_start
        at_start = torch.equal(weights, torch.from_numpy(net.start))
        set_of(self, weights)

    def placed(self, inputs, labels):
        parts = parts_of(self, inputs, labels)
        moved = Part(1e-6 * torch.arange(len(labels))[:, None])
        return parts if at_start else [*parts[:-1], moved]

    monkeypatch.setattr(PerExample, "set", noted)
    monkeypatch.setattr(PerExample, "parts", placed)
    assert TorchSums(net, batch=40).chunk == 1
    assert at_start  # and the network has its own weights again
