"""The networks are those of the papers, and networks that mix rows are refused by
name.
"""

import math
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from dphead.finetune.architectures import WSConv2d
from dphead.finetune.gradients import PerExample
from dphead.finetune.models import (
    build_network,
    flat,
    pixel_scale,
    refuse_mixing,
    refuse_moving,
    trained,
)
from dphead.finetune.network import Network, NetworkSpec
from dphead.finetune.settings import ModelSpec


@pytest.mark.parametrize(
    "name, count, shape",
    [
        ("tb21-mnist", 26_010, (1, 28, 28)),
        ("tb21-cifar10", 550_570, (3, 32, 32)),
        ("tb21-cifar10-small", 167_642, (3, 32, 32)),
        ("tb21-sn-mnist", 33_066, (81, 7, 7)),
        ("tb21-sn-cifar10", 187_210, (243, 8, 8)),
        # counted from Zagoruyko and Komodakis 2016, Table 1
        ("wrn-16-1", 175_066, (3, 32, 32)),
    ],
)
def test_networks_have_the_papers_sizes_and_take_their_inputs(name, count, shape):
    model = build_network(ModelSpec(name), 10)
    assert flat(model).numel() == count
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_weights_are_standardized_over_the_fan_in():
    layer = WSConv2d(5, 3, 3)
    weight = layer.standardized(layer.weight)
    # float32 sums of 45 terms
    torch.testing.assert_close(
        weight.sum(dim=(1, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0
    )
    torch.testing.assert_close((weight**2).sum(dim=(1, 2, 3)), torch.ones(3))


def test_the_initial_weights_are_gaussian_of_variance_one_over_fan_in_and_the_seeds():
    model = build_network(ModelSpec("wrn-16-4"), 10)
    weight = model.blocks[5].conv2.weight
    # 590,000 draws: sd of the estimate 0.002
    assert float(weight.detach().var()) * 2304 == pytest.approx(1, abs=0.01)
    again = build_network(ModelSpec("wrn-10-1", init_seed=1), 4)
    other = build_network(ModelSpec("wrn-10-1", init_seed=2), 4)
    same = build_network(ModelSpec("wrn-10-1", init_seed=1), 4)
    assert torch.equal(again.stem.weight, same.stem.weight)
    assert not torch.equal(again.stem.weight, other.stem.weight)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_a_layer_that_mixes_rows_is_refused_by_its_name(layer):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), layer))
    with pytest.raises(ValueError, match=f"layer 1.1 .{type(layer).__name__}."):
        refuse_mixing(model)


def normed(norm):
    """A network with a normalization whose statistics are not those of its rows."""
    layers = [nn.Conv2d(3, 8, 3), norm, nn.Dropout(0.5), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(288, 2))
    with torch.no_grad():
        for value in (norm.running_mean, norm.running_var):
            if value is not None:
                value.uniform_(1, 2)
    return model


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.SyncBatchNorm(8)])
def test_a_frozen_batch_norm_uses_its_public_statistics_and_keeps_them(norm):
    """And dropout is off."""
    own = normed(norm)
    spec = NetworkSpec(ModelSpec("a:b", batch_norm="freeze"), (3, 8, 8), 2)
    network = Network(spec, module=own)
    rows = torch.randn(5, 1, 3, 8, 8)
    found = PerExample(network.model).parts(rows, torch.zeros(5, dtype=torch.long))
    own.eval()
    cross_entropy(own(rows[1]), torch.zeros(1, dtype=torch.long)).backward()
    for part, p in zip(found, own.parameters(), strict=True):
        (gradient,) = part.columns
        # float32 sums of at most 288 terms
        torch.testing.assert_close(gradient[1], p.grad.flatten(), rtol=1e-4, atol=1e-5)
    for name, value in own.named_buffers():
        assert torch.equal(network.model.get_buffer(name), value)
    assert "batch_norm=freeze" in network.statistic.model


def test_a_batch_norm_without_statistics_cannot_be_frozen():
    own = normed(nn.BatchNorm2d(8, track_running_stats=False))
    with pytest.raises(ValueError, match=r"layer 1 .*--batch-norm group"):
        build_network(ModelSpec(batch_norm="freeze"), 2, module=own)


def test_group_norms_replace_batch_norms_and_keep_the_activations_of_timm():
    model = build_network(ModelSpec("test_efficientnet", batch_norm="group"), 2)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)]
    assert {n.num_groups for n in norms} == {
        math.gcd(32, n.num_channels) for n in norms
    }
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    x = torch.randn(2, norms[0].num_channels, 4, 4)
    expected = nn.functional.group_norm(x, norms[0].num_groups, eps=norms[0].eps)
    torch.testing.assert_close(norms[0](x), nn.functional.silu(expected))
    refuse_moving(model, *torch.randn(2, 3, 3, 32, 32))


def test_attention_without_its_dropout_is_the_same_at_every_call():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(24, 2, 8, batch_first=True)
            self.head = nn.Linear(24, 2)

        def forward(self, x):
            return self.head(self.layer(x.flatten(2)).mean(dim=1))

    x = torch.randn(2, 3, 8, 4, 6)
    refuse_moving(build_network(ModelSpec(), 2, module=Attention()), *x)


def test_weights_without_the_statistics_of_a_batch_norm_are_refused(tmp_path):
    own = normed(nn.BatchNorm2d(8))
    state = own.state_dict()
    del state["1.running_var"]
    save_file(state, tmp_path / "w.safetensors")
    spec = ModelSpec(batch_norm="freeze", weights=str(tmp_path / "w.safetensors"))
    with pytest.raises(ValueError, match=r"lacks 1\.running_var"):
        build_network(spec, 2, module=own)


def test_the_biases_and_the_head_of_a_vit_can_be_trained_alone():
    model = build_network(ModelSpec("test_vit", layers=("bias$", "^head")), 3)
    names = [name for name, _ in trained(model)]
    assert "head.weight" in names and "blocks.0.attn.qkv.bias" in names
    assert all(name.endswith("bias") for name in set(names) - {"head.weight"})


class Centered(nn.Module):
    """Mixes rows, and no list of kinds would know it."""

    def forward(self, x):
        return x - x.mean(dim=0)


@pytest.mark.parametrize(
    "layer", [Centered(), nn.Dropout(0.5)], ids=["centered", "dropout"]
)
def test_a_layer_whose_output_moves_with_other_rows_is_found_by_trying(layer):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Flatten(), nn.Linear(144, 2))
    x = torch.randn(2, 3, 3, 8, 8)
    refuse_mixing(model)
    with pytest.raises(ValueError, match="layer 1 with"):
        refuse_moving(model, *x)
    network = build_network(ModelSpec("wrn-10-1"), 3)
    refuse_moving(network, *x)
    last = [p for p in network.parameters() if p.dim() == 2][-1]
    with torch.no_grad():
        last[0, 0] = torch.nan
    with pytest.raises(ValueError, match="has NaN or infinity"):
        refuse_moving(network, *x)


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"model": "resnet18"}, r"layer bn1 \(BatchNorm2d\)"),
        ({"model": "wrn-15-4"}, "depth of 10, 16"),
        ({"model": "tb21-nothing"}, "one of mnist"),
        ({"model": "no_such_model"}, "timm"),
        ({"model": "resnet18.no_such_tag"}, "timm cannot make .*no_such_tag"),
        ({"model": "no.such:function"}, "run dphead in its folder"),
        ({"model": "os.path:basename"}, "takes the number of classes"),
        ({"model": "builtins:str"}, "torch.nn.Module, got str"),
        ({"model": "wrn-16-1", "layers": ("nothing",)}, "matches no parameter"),
        ({"model": "wrn-16-1", "layers": ("blocks[",)}, "regular expressions"),
    ],
)
def test_what_cannot_be_built_is_refused(spec, message, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook
    before = sys.path.copy()
    with pytest.raises(ValueError, match=message):
        build_network(ModelSpec(**spec), 10)
    assert sys.path == before


def test_pixels_are_scaled_as_the_model_was_trained_unless_said_otherwise():
    resnet = ModelSpec("resnet18")
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert pixel_scale(resnet, 3) == imagenet
    assert pixel_scale(resnet, 3, std=0.2) == (imagenet[0], 0.2)
    assert pixel_scale(resnet, 1) == (pytest.approx((0.449,)), pytest.approx((0.226,)))
    assert pixel_scale(ModelSpec(), 3) == ((0.5,) * 3, (0.25,) * 3)
    with pytest.raises(ValueError, match="one for each of 3 channels"):
        pixel_scale(ModelSpec(), 3, (0.5, 0.4))


def test_an_image_size_that_the_model_cannot_take_is_refused():
    with pytest.raises(ValueError, match=r"doesn't match model.*--image-size"):
        Network(NetworkSpec(ModelSpec("vit_tiny_patch16_224"), (3, 32, 32), 3))


@pytest.mark.parametrize(
    "name", ["Local-Dir:/home/anna/net", "hf-hub:timm/resnet18", "/home/anna/resnet18"]
)
def test_a_name_of_a_folder_or_a_hub_is_refused(name):
    """Reports, cards and the ledger publish the model's name, so a path in it."""
    with pytest.raises((ValueError, OSError), match="a path needs --weights"):
        build_network(ModelSpec(name), 2)
