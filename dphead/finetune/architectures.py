"""Build the Wide-ResNets of De22 and the CNNs of TB21.

The Wide-ResNets have group norm and weight standardization [De22 C.1]. The CNNs use
tanh [TB21 Tables 6 to 9]. No layer may mix the rows of a batch; `models` refuses such
layers. `convert_batch_norms` makes batch norms act on one row.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

_STEM = 16  # channels of a Wide-ResNet's first layer


class WSConv2d(nn.Conv2d):
    """Convolve with weights that are standardized over the fan-in, differentiably.

    References: De22 C.1; Qiao et al. 2019.
    """

    def standardized(self, weight: Tensor) -> Tensor:
        """Return (W - mean) / (sd sqrt(fan_in)) for each output channel.

        `weight` has shape (out, in, kh, kw). The denominator is at least 0.01.
        """
        fan_in = weight[0].numel()
        variance, mean = torch.var_mean(
            weight, dim=(1, 2, 3), keepdim=True, correction=0
        )
        return (weight - mean) * torch.rsqrt(torch.clamp(variance * fan_in, min=1e-4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution with standardized weights."""
        return self._conv_forward(x, self.standardized(self.weight), self.bias)


class _Block(nn.Module):
    """Add a shortcut to conv(pre(conv(pre(x)))) [Zagoruyko and Komodakis 2016]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        conv: Callable[..., nn.Conv2d],
        pre: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        self.pre1 = pre(inputs)
        self.conv1 = conv(inputs, outputs, 3, stride, 1, bias=False)
        self.pre2 = pre(outputs)
        self.conv2 = conv(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = (
            None if same else conv(inputs, outputs, 1, stride, 0, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.pre1(x)
        short = x if self.shortcut is None else self.shortcut(y)
        return short + self.conv2(self.pre2(self.conv1(y)))


class _WideResNet(nn.Module):
    """Build WRN-depth-width, without dropout [De22 C.1].

    Parameters
    ----------
    depth : int
        6k + 4, at least 10.
    width : int
        Factor on the number of channels.
    n_classes : int
        Number of public classes.
    channels : int
        Image channels.
    groups : int
        Groups of the group norms; 0 for no norms.
    standardize : bool
        Whether the convolutions' weights are standardized.
    norm : {"before", "after"}
        "before" the activation (conv, norm, relu) or "after" it [TAN23 Figure 5].
    """

    def __init__(
        self,
        depth: int,
        width: int,
        n_classes: int,
        channels: int,
        groups: int,
        standardize: bool,
        norm: Literal["before", "after"],
    ) -> None:
        super().__init__()
        conv = WSConv2d if standardize else nn.Conv2d

        def pre(channels: int) -> nn.Module:
            layers = [
                nn.GroupNorm(groups, channels) if groups else nn.Identity(),
                nn.ReLU(),
            ]
            return nn.Sequential(*(layers if norm == "before" else layers[::-1]))

        self.stem = conv(channels, _STEM, 3, 1, 1, bias=False)
        blocks, inputs = [], _STEM
        for stage, outputs in enumerate(_STEM * width * k for k in (1, 2, 4)):
            for k in range((depth - 4) // 6):
                blocks.append(
                    _Block(inputs, outputs, 2 if stage and not k else 1, conv, pre)
                )
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.final = pre(inputs)
        self.head = nn.Linear(inputs, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (n, n_classes) of images (n, channels, h, w)."""
        return self.head(self.final(self.blocks(self.stem(x))).mean(dim=(2, 3)))


class _GroupNorm(nn.GroupNorm):
    """Normalize groups of channels in place of a batch norm.

    The groups, and weight 1 and bias 0, are those of Opacus' `ModuleValidator.fix`. The
    batch norm's own weight and bias are dropped: in a group norm, they can switch off
    all activations, as they did in MobileNetV2.
    """

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        channels = norm.num_features
        super().__init__(math.gcd(32, channels), channels, norm.eps, norm.affine)
        # timm's batch norms contain the dropout and the activation after them
        self.drop = getattr(norm, "drop", nn.Identity())
        self.act = getattr(norm, "act", nn.Identity())

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


def convert_batch_norms(
    model: nn.Module, how: Literal["refuse", "freeze", "group"]
) -> None:
    """Let batch norms use their stored statistics, or replace them by group norms.

    "freeze" applies to every layer with stored statistics. It does not freeze weight
    and bias. "refuse" changes nothing; `refuse_mixing` of models.py raises the error.
    """
    for name, layer in list(model.named_modules()):
        if how == "freeze" and getattr(layer, "running_mean", None) is not None:
            layer.eval()
        if how == "group" and isinstance(layer, nn.modules.batchnorm._BatchNorm):
            model.set_submodule(name, _GroupNorm(layer))


def _tb21_cnn(name: str, n_classes: int) -> nn.Sequential:
    """Return a tanh CNN of TB21.

    Parameters
    ----------
    name : str
        "mnist" (Table 6), "cifar10" or "cifar10-small" (Table 7), "sn-mnist" (Table 8)
        or "sn-cifar10" (Table 9). The last two take ScatterNet maps, (81, 7, 7) and
        (243, 8, 8).
    n_classes : int
        Number of public classes.

    Notes
    -----
    The layers printed in Tables 8 and 9 have 20,778 and 179,530 parameters, but TB21
    reports 33,066 and 187,210. To match the reported numbers, this code omits all
    pooling layers of Table 8 and the second one of Table 9.
    """

    def conv(
        inputs: int, outputs: int, size: int = 3, stride: int = 1, padding: int = 1
    ) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, size, stride, padding), nn.Tanh()]

    def dense(inputs: int, units: int) -> list[nn.Module]:
        return [
            nn.Flatten(),
            nn.Linear(inputs, units),
            nn.Tanh(),
            nn.Linear(units, n_classes),
        ]

    if name == "mnist":
        return nn.Sequential(
            *conv(1, 16, 8, 2, 2),
            nn.MaxPool2d(2, 1),
            *conv(16, 32, 4, 2, 0),
            nn.MaxPool2d(2, 1),
            *dense(512, 32),
        )
    if name == "sn-mnist":
        return nn.Sequential(
            *conv(81, 16, stride=2),
            *conv(16, 32),
            *dense(512, 32),
        )
    if name == "sn-cifar10":
        return nn.Sequential(
            *conv(243, 64),
            nn.MaxPool2d(2),
            *conv(64, 64),
            nn.Flatten(),
            nn.Linear(1024, n_classes),
        )
    plans = {
        "cifar10": [[32, 32], [64, 64], [128, 128]],
        "cifar10-small": [[16, 16], [32, 32], [64]],
    }
    layers, inputs = [], 3
    for stage in plans[name]:
        for outputs in stage:
            layers += conv(inputs, outputs)
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *dense(16 * inputs, 128))


def by_name(
    name: str,
    n_classes: int,
    channels: int,
    groups: int,
    standardize: bool,
    norm: Literal["before", "after"],
) -> nn.Module:
    """Return the network "wrn-DEPTH-WIDTH" or "tb21-NAME", initialized by torch."""
    kind, rest = name.split("-", 1)
    if kind == "tb21":
        return _tb21_cnn(rest, n_classes)
    depth, width = map(int, rest.split("-"))
    return _WideResNet(depth, width, n_classes, channels, groups, standardize, norm)
