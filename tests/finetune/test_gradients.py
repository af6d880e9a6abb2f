"""Per-example gradients against a loop over rows, and what the clipped
sum promises.
"""

from itertools import product

import numpy as np
import pytest
import torch
from core import sensitivity
from finetune.core import images
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dphead.finetune.gradients import (
    CLIP_INTEGERS,
    ModelGradient,
    Part,
    PerExample,
    clipped,
    squared_norms,
)
from dphead.finetune.models import build_network, loss_of, of_scores, trained
from dphead.finetune.network import Network, NetworkSpec
from dphead.finetune.settings import ModelSpec

ROWS, CLASSES = 5, 3


class Residual(nn.Module):
    """Parameters of its own beside those of its layers: torch.func alone can do it."""

    def __init__(self):
        super().__init__()
        self.scale, self.inner = (
            nn.Parameter(torch.tensor([0.7, -0.3])),
            nn.Linear(2, 2),
        )
        self.scalar = nn.Parameter(torch.tensor(1.1))

    def forward(self, x):
        return x + self.scalar * self.scale * self.inner(x)


def sequence(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))


MODELS = {
    "linear": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(48, 7), nn.Tanh(), nn.Linear(7, CLASSES, bias=False)
    ),
    "conv": lambda: sequence(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Tanh()),
    "group norm": lambda: sequence(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU()),
    "embedding of positions": lambda: sequence(
        nn.Flatten(2), nn.Linear(16, 2), Residual()
    ),
    "wide resnet": lambda: build_network(ModelSpec("wrn-10-1", groups=4), CLASSES),
}


def problem(name, views=1, seed=0):
    torch.manual_seed(seed)
    model = MODELS[name]()
    x = torch.randn(ROWS, views, 3, 4, 4)
    y = torch.randint(0, CLASSES, (ROWS,))
    model(x[:, 0])  # fixes the lazy layer's size
    return model, x, y


def row_by_row(model, x, y):
    """(rows, size) float64: each row's gradient of its mean loss over its views, by
    autograd alone.
    """
    rows = []
    for views, label in zip(x, y, strict=True):
        loss = loss_of(model(views), label.expand(len(views))).mean()
        grads = torch.autograd.grad(loss, [p for _, p in trained(model)])
        rows.append(torch.cat([g.reshape(-1) for g in grads]).double())
    return torch.stack(rows)


def clipped_by_hand(rows, clip_norm):
    norms = rows.norm(dim=1, keepdim=True)
    return (rows * (clip_norm / norms).clamp(max=1)).sum(dim=0)


def real(total, clip_norm):
    """A sum in whole numbers as real numbers; each row is within 2e-6 C of its
    gradient, toward zero.
    """
    return total * (clip_norm / CLIP_INTEGERS)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_a_loop_over_rows(name, views):
    model, x, y = problem(name, views)
    gradients = PerExample(model)
    rows = row_by_row(model, x, y)
    clip_norm = float(rows.norm(dim=1).median())  # some rows are clipped, some are not
    found = clipped(
        gradients.parts(x, y), torch.ones(ROWS, dtype=torch.bool), clip_norm
    )
    assert found.dtype == torch.float64
    assert torch.equal(found, found.round())
    # float32 gradients of sums over at most 48 positions: a few dozen roundings of
    # 6e-8; and an entry of each row
    # loses up to 1 to truncation, and as much to the aim at CLIP_INTEGERS - 1
    atol = 3e-6 + 2 * ROWS * clip_norm / CLIP_INTEGERS
    torch.testing.assert_close(
        real(found, clip_norm), clipped_by_hand(rows, clip_norm), rtol=1e-4, atol=atol
    )


def test_a_rows_part_of_the_sum_is_whole_numbers_of_at_most_the_length():
    """Hostile rows: large, tiny, infinite, nan.

    Checked in integers, as it is promised: no rounding is granted.
    """
    model, _, _ = problem("conv")
    hostile = [0.0, 1e-38, 1e-20, 1.0, 1e6, 1e18, 3e38, float("inf"), float("nan")]
    gradients = PerExample(model)
    longest = 0
    for size, clip_norm in product(hostile, (1e-6, 1e-3, 1.0, 1e6)):
        x = torch.full((1, 1, 3, 4, 4), size)
        total = clipped(
            gradients.parts(x, torch.tensor([1])), torch.tensor([True]), clip_norm
        )
        whole = [int(v) for v in total.tolist()]  # ValueError for what is not finite
        assert whole == total.tolist()
        squared = sum(v * v for v in whole)
        assert squared <= CLIP_INTEGERS**2
        longest = max(longest, squared)
    assert longest >= (0.999 * CLIP_INTEGERS) ** 2


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    columns=st.sampled_from([1, 2, 3, 1000, 100_000]),
    exponent=st.floats(-30, 30),
)
def test_truncated_gradients_of_any_size_are_never_longer_than_the_length(
    seed, columns, exponent
):
    """Each row by itself: its norm in whole numbers, without any tolerance."""
    rng = np.random.default_rng(seed)
    value = torch.from_numpy(
        (10.0**exponent * rng.standard_normal((2, columns))).astype(np.float32)
    )
    part = Part(value)
    for keep in ([True, False], [False, True]):
        total = clipped([part], torch.tensor(keep), 1e-3).numpy()
        whole = total.astype(np.int64)
        assert np.array_equal(whole, total)
        assert int((whole**2).sum()) <= CLIP_INTEGERS**2


def test_sums_beyond_24_bits_are_exact():
    """300 gradients at the clip of one parameter, and of others below it: float32 would
    round their sums.
    """
    value = torch.linspace(0.5, 2.0, 300)[:, None] * torch.tensor([[1.0, 0.3]])
    rows = [clipped([Part(value)], torch.arange(300) == i, 1.0) for i in range(300)]
    wanted = torch.stack(rows).to(torch.int64).sum(dim=0)
    assert int(wanted[0]) > 2**27
    assert torch.equal(
        clipped([Part(value)], torch.ones(300, dtype=torch.bool), 1.0).to(torch.int64),
        wanted,
    )


def test_a_gradient_whose_norm_was_too_small_adds_zero():
    """Its whole numbers are compared with their length, whatever its norm was."""

    class Short(Part):
        def norm2(self):
            return super().norm2() * torch.tensor([0.5, 1.0])

    found = clipped(
        [Short(torch.tensor([[3.0, 4.0], [3.0, 4.0]]))], torch.tensor([True, True]), 1.0
    )
    assert found.tolist() == [
        3 * (CLIP_INTEGERS - 1) // 5,
        4 * (CLIP_INTEGERS - 1) // 5,
    ]


def test_rows_that_are_not_kept_or_not_finite_add_exactly_zero():
    value = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]])
    found = clipped([Part(value)], torch.tensor([True, True]), 10.0).tolist()
    assert found == [CLIP_INTEGERS // 10, 2 * (CLIP_INTEGERS - 1) // 10]
    assert clipped([Part(value)], torch.tensor([False, True]), 10.0).tolist() == [
        0.0,
        0.0,
    ]


def test_norms_are_float64():
    """Of a row of 1 and many small entries: float32 would lose these, and clip too
    little.
    """
    value = torch.full((1, 2**20), 2.0**-14)
    value[0, 0] = 1.0
    norm2 = squared_norms([Part(value)])
    assert float(norm2) == 1 + (2**20 - 1) * 2.0**-28


@pytest.mark.parametrize(
    "relation, factor", [("zero_out", 1), ("add_remove", 1), ("replace_one", 2)]
)
def test_the_sensitivity_is_the_clip_norm_and_twice_it_under_replace_one(
    relation, factor
):
    statistic = ModelGradient(10, 7, "m")
    assert sensitivity(statistic, 0.3, relation) == pytest.approx(0.3 * factor)


def test_bf16_changes_the_products_and_keeps_float32_gradients():
    model, x, y = problem("conv")
    exact = PerExample(model)
    rough = PerExample(model, of_scores(bf16=True))
    keep = torch.ones(ROWS, dtype=torch.bool)
    # none is clipped
    a, b = (clipped(g.parts(x, y), keep, 10.0) for g in (exact, rough))
    assert not torch.equal(a, b)
    # bf16 has 8 bits
    np.testing.assert_allclose(a.numpy(), b.numpy(), atol=0.03 * float(a.norm()))


@pytest.mark.parametrize("name", ["linear", "conv", "group norm"])
def test_rounding_of_bf16_does_not_refuse_a_module_of_ones_own(name):
    """The trial compares a row alone with the same row in a chunk."""
    spec = NetworkSpec(ModelSpec("own:network"), (3, 4, 4), CLASSES)
    model = Network(spec, bf16=True, module=problem(name)[0])
    assert model.statistic.size == len(model.start)


class Remembering:
    """A loss that is divided by the number of its calls."""

    calls = 0

    def __call__(self, scores, labels):
        self.calls += 1
        return nn.functional.cross_entropy(scores, labels) / self.calls


class Kept(nn.Module):
    """Adds the mean of an earlier image, which its class keeps."""

    earlier = 0.0

    def forward(self, x):
        before, Kept.earlier = Kept.earlier, x.mean()
        return x + before


class Moving(nn.Module):
    """Updates a buffer by the rows that are scored."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if not torch.is_grad_enabled():
            self.seen.add_(x.mean())
        return x


def with_layer(layer):
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(3 * 8 * 8, 3))


@pytest.mark.parametrize(
    "layer, loss",
    [(nn.Identity(), Remembering()), (Kept(), nn.CrossEntropyLoss())],
    ids=["loss", "module"],
)
def test_code_that_keeps_values_between_images_is_refused(layer, loss):
    spec = NetworkSpec(ModelSpec("wrn-10-1"), (3, 8, 8), 3)
    with pytest.raises(ValueError, match="images"):
        Network(spec, module=with_layer(layer), loss=loss)


def test_scored_rows_leave_nothing_in_the_network():
    """The network is published: rows that were only measured must not move a buffer."""
    spec = NetworkSpec(ModelSpec("wrn-10-1"), (3, 8, 8), 3)
    network = Network(spec, module=with_layer(Moving()))
    network.scores(network.start.astype(np.float32), images(20)[0].reshape(20, -1))
    assert network.model.state_dict()["0.seen"] == 0
