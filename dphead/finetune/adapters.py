"""Train few parameters of a pretrained network: low-rank updates, or biases."""

import math
from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn


class _LowRank(nn.Module):
    """Add a low-rank update to a frozen linear layer or convolution.

    `up` starts at zero, so the update starts at zero [Hu et al. 2022].
    """

    def __init__(
        self, base: nn.Linear | nn.Conv2d, rank: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.base, self.down = base, deepcopy(base)
        outputs, fan_in = len(base.weight), base.weight[0].numel()
        rank = min(rank, outputs, fan_in)
        down = torch.randn((rank, *base.weight.shape[1:]), generator=generator)
        self.down.weight = nn.Parameter(down / math.sqrt(fan_in))
        self.down.register_parameter("bias", None)
        self.up = nn.Conv2d(rank, outputs, 1, bias=False)
        if isinstance(base, nn.Linear):
            self.up = nn.Linear(rank, outputs, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output plus the update's."""
        return self.base(x) + self.up(self.down(x))

    @property
    def weight(self) -> Tensor:
        """Return the layer's weight plus the update, for code that reads `weight`."""
        update = self.up.weight.flatten(1) @ self.down.weight.flatten(1)
        return self.base.weight + update.view_as(self.base.weight)

    @property
    def bias(self) -> Tensor | None:
        """Return the layer's bias."""
        return self.base.bias

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """Add the update to the layer's weight, and return the layer."""
        self.base.weight.copy_(self.weight)
        return self.base


def _takes_update(layer: nn.Module) -> bool:
    """Return whether a layer can have a low-rank update.

    Linear layers and convolutions with one group can. timm's Conv2dSame only pads its
    input. Other subclasses are left out, because they may transform the weight.
    """
    same = type(layer).__name__ == "Conv2dSame"
    if type(layer) is nn.Conv2d or (same and isinstance(layer, nn.Conv2d)):
        return layer.groups == 1
    return type(layer) is nn.Linear


def adapt(
    model: nn.Module, adapter: str, rank: int, seed: int, wanted: Callable[[str], bool]
) -> None:
    """Let only the last linear layer and the adapter's parameters be trained.

    `adapter` is "lora" for updates of rank `rank` or less, drawn with `seed`, or
    "bias". `wanted` returns whether the adapter applies to the parameter with a given
    name. All other parameters are frozen.

    Raises ValueError if the model has no linear layer, if the adapter applies to no
    other layer, or if two layers share a weight that "lora" would adapt.
    """
    layers = dict(model.named_modules())
    last = [name for name, m in layers.items() if isinstance(m, nn.Linear)][-1:]
    head = {id(p) for name in last for p in layers[name].parameters()}
    for name, p in model.named_parameters():
        chosen = adapter == "bias" and name.endswith("bias") and wanted(name)
        p.requires_grad_(chosen or id(p) in head)
    found = any(p.requires_grad and id(p) not in head for p in model.parameters())
    generator = torch.Generator().manual_seed(seed)
    held = ((*m._modules.values(), *m._parameters.values()) for m in model.modules())
    uses = Counter(id(one) for found in held for one in found)
    for name, layer in layers.items():
        chosen = name not in last and _takes_update(layer) and wanted(f"{name}.weight")
        if adapter == "lora" and chosen:
            if uses[id(layer)] > 1 or uses[id(layer.weight)] > 1:
                raise ValueError(
                    f"--adapter lora cannot adapt {name}, because another layer has "
                    "the same weight. Leave this layer out with --layers, or use "
                    "--adapter bias."
                )
            update = _LowRank(layer, rank, generator)  # pyright: ignore[reportArgumentType]
            model.set_submodule(name, update)
            found = True
    if not found or not last:
        raise ValueError(
            f"--adapter {adapter} needs a last linear layer, and other layers that it "
            "can adapt. Choose another model, or other --layers."
        )


def merged(model: nn.Module) -> nn.Module:
    """Return a copy of the model with its low-rank updates added to the weights.

    A model without updates is returned without a copy.
    """
    if not any(isinstance(m, _LowRank) for m in model.modules()):
        return model
    model = deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, _LowRank):
            model.set_submodule(name, layer.merged())
    return model
