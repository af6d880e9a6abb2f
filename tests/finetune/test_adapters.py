"""An adapter trains few parameters, and disappears in what is saved."""

import numpy as np
import pytest
import torch
from dphead_extract.compiler import import_timm
from finetune.core import images
from safetensors.torch import load_file, save_file
from torch import nn

from dphead import DPFinetuneClassifier
from dphead.finetune.adapters import merged
from dphead.finetune.models import build_network, trained
from dphead.finetune.settings import ModelSpec, make_settings

timm = import_timm()


def module():
    """With a convolution of one group, one of several, and a hidden layer."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, 3, groups=4), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 6), nn.Linear(6, 3))


PRIVATE = {
    "classes": range(3),
    "epsilon": 50.0,
    "delta": 1e-3,
    "noise_multiplier": 1.0,
    "accountant": "rdp",
}


def adapted(**given):
    return build_network(ModelSpec("own:network", **given), 3, module=module())


def names(model):
    return [name for name, _ in trained(model)]


def test_an_adapter_trains_its_parameters_and_the_last_layer():
    updates = [f"{i}.{part}.weight" for i in (0, 4) for part in ("down", "up")]
    assert names(adapted(adapter="lora")) == [*updates, "5.weight", "5.bias"]
    biases = [f"{i}.bias" for i in (0, 1, 4)]
    assert names(adapted(adapter="bias")) == [*biases, "5.weight", "5.bias"]
    # the rank is at most the layer's
    assert adapted(adapter="lora")[0].up.weight.shape == (4, 4, 1, 1)
    assert adapted(adapter="lora", rank=2)[0].up.weight.shape == (4, 2, 1, 1)


@pytest.mark.parametrize(
    "adapter, layer", [("lora", "0.down.weight"), ("bias", "0.bias")]
)
def test_layers_choose_what_is_adapted(adapter, layer):
    found = names(adapted(adapter=adapter, layers=("^0[.]",)))
    assert found[0] == layer
    assert found[-2:] == ["5.weight", "5.bias"]
    assert not any(name.startswith(("1.", "4.")) for name in found)


def test_the_network_starts_as_it_was_and_is_merged_into_its_own_layers():
    x = torch.from_numpy(images()[0] / np.float32(255))
    model = adapted(adapter="lora")
    assert torch.equal(model(x), module()(x))
    for _, p in trained(model):
        nn.init.normal_(p)
    flat = merged(model)
    assert not isinstance(model[0], nn.Conv2d)
    assert flat.state_dict().keys() == module().state_dict().keys()
    # float32 sums of at most 27 products in another order
    torch.testing.assert_close(flat(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adapter", ["lora", "bias"])
def test_a_saved_network_needs_no_adapter(adapter, tmp_path):
    x, y = images(60)
    x = x.transpose(0, 2, 3, 1)
    model = DPFinetuneClassifier(
        model=module(),
        adapter=adapter,
        batch_size=30,
        steps=3,
        **PRIVATE,
    ).fit(x, y)
    model.save(tmp_path / "run")
    again = DPFinetuneClassifier.load(tmp_path / "run", model=module())
    found, scores = again.decision_function(x), model.decision_function(x)
    # float32 sums in another order
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-4)
    before, after = module().state_dict(), again.network_.model.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    fixed = {"lora": {f"{i}.bias" for i in (0, 1, 4)} | {"1.weight"}}
    assert same == fixed.get(adapter, {f"{i}.weight" for i in (0, 1, 4)})
    assert model.export("torch", tmp_path / "exported").files  # compares scores


def test_an_adapter_without_anything_to_adapt_is_refused():
    with pytest.raises(ValueError, match="needs a last linear layer, and other layers"):
        build_network(
            ModelSpec("own:network", adapter="lora"), 3, module=nn.Linear(4, 3)
        )
    given = {"model": "mobilenetv2_100", "adapter": "lora", "batch_size": 9, "steps": 1}
    with pytest.raises(ValueError, match="--adapter lora needs pretrained weights"):
        make_settings(given)[0].check_complete()


class Tied(nn.Module):
    """Two layers with one weight, or one layer at two places, and a last layer."""

    def __init__(self, module=False):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        if module:
            self.second = self.first
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.second(self.first(x).tanh()))


@pytest.mark.parametrize("module", [False, True])
def test_a_weight_of_two_layers_gets_no_update_that_merges_into_both(module):
    with pytest.raises(ValueError, match="cannot adapt first, because another layer"):
        spec = ModelSpec("own:network", adapter="lora")
        build_network(spec, 3, module=Tied(module))
    # a block that is used twice has one update, which is merged once
    block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    own = nn.Sequential(block, block, nn.Linear(6, 3))
    model = build_network(ModelSpec("own:network", adapter="lora"), 3, module=own)
    for _, p in trained(model):
        nn.init.normal_(p)
    x = torch.ones(2, 6)
    # float32 sums of at most 12 products in another order
    torch.testing.assert_close(merged(model)(x), model(x), rtol=1e-4, atol=1e-4)


class OwnProduct(nn.Module):
    """Uses the weight of its layer, as timm's BEiT and Swin do."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(nn.functional.linear(x, self.inner.weight, self.inner.bias))


def test_a_model_that_uses_a_weight_itself_is_adapted():
    model = build_network(
        ModelSpec("own:network", adapter="lora"), 3, module=OwnProduct()
    )
    for _, p in trained(model):
        nn.init.normal_(p)
    x = torch.ones(2, 6)
    model(x).sum().backward()
    assert model.inner.up.weight.grad.any()
    # float32 sums of at most 12 products in another order
    torch.testing.assert_close(merged(model)(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_timm_model_is_exported_to_timm_without_its_adapter(tmp_path):
    """The export compares the scores of what timm loads."""
    public = timm.create_model("test_vit", num_classes=5)
    save_file(public.state_dict(), tmp_path / "weights.safetensors")
    x, y = images(30, size=32)
    model = DPFinetuneClassifier(
        model="test_vit",
        weights=str(tmp_path / "weights.safetensors"),
        adapter="lora",
        rank=2,
        layers=("blocks[.]0[.]attn",),
        batch_size=15,
        steps=1,
        **PRIVATE,
    ).fit(x.transpose(0, 2, 3, 1), y)
    assert model.export("timm", tmp_path / "timm").not_compared == ""
    loaded = load_file(tmp_path / "timm" / "model.safetensors")
    assert loaded.keys() == public.state_dict().keys()
    moved = {k for k in loaded if k in public.state_dict() and "head" not in k}
    moved = {k for k in moved if not torch.equal(loaded[k], public.state_dict()[k])}
    assert moved == {f"blocks.0.attn.{part}.weight" for part in ("qkv", "proj")}
