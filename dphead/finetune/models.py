"""Build a network by name, load weights, and refuse networks that mix rows.

The name is one of `architectures`, or a timm model without batch normalization.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from dphead_extract.backbones.weights import first_line, read_state
from torch import Tensor, nn
from torch.nn import functional as F

from dphead.finetune.architectures import STEM, WideResNet, tb21_cnn
from dphead.solvers.settings import Range, Setting, check_settings, is_a, shown

# Layers that mix the rows of a batch, or keep statistics of rows between calls.
_MIXING = (nn.modules.batchnorm._BatchNorm,)
# Valid numbers of groups: all widths of a Wide-ResNet are multiples of STEM.
_DIVISOR = Range(
    f"0 or a divisor of {STEM}", lambda v: v == 0 or (0 < v <= STEM and STEM % v == 0)
)
GROUPS = Setting("Number of groups in group norms; 0: no norms.", _DIVISOR)
SEED = Setting(
    "Seed of the initial weights.",
    Range("a 64-bit number", lambda v: -(2**63) <= v < 2**63),
)
# Bounds of `mean` and `std`, for pixels in [0, 1]. Chosen, not measured.
MOST_SCALE, LEAST_STD = 1e6, 1e-6
_OWN_PREFIXES = ("wrn-", "tb21-")  # prefixes of names that are not timm's


@dataclass(frozen=True)
class ModelSpec:
    """Describe a network by its name and options.

    Parameters
    ----------
    name : str, default "wrn-16-4"
        "wrn-DEPTH-WIDTH", "tb21-NAME" or a timm name.
    channels : int, default 3
        Image channels (timm models and Wide-ResNets).
    norm : {"before", "after"}, default "before"
        Place of a Wide-ResNet's norms relative to activations.
    groups : int, default 16
        Groups of a Wide-ResNet's group norms; 0 for no norms.
    standardize : bool, default True
        Whether a Wide-ResNet's weights are standardized.
    seed : int, default 0
        Seed of the initial weights, which are public.
    trainable : tuple of str, default ()
        Regular expressions. A parameter is trained if its name matches one of them; ()
        trains all.
    weights : str, optional
        A local file of public weights (safetensors or a state dict).

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    name: Annotated[str, Setting("Which one.")] = "wrn-16-4"
    channels: int = 3
    norm: Annotated[Literal["before", "after"], Setting("Where norms are.")] = "before"
    groups: Annotated[int, GROUPS] = 16
    standardize: Annotated[bool, Setting("Weights.")] = True
    seed: Annotated[int, SEED] = 0
    trainable: tuple[str, ...] = ()
    weights: Annotated[str | None, Setting("A file of public weights.")] = None

    def __post_init__(self) -> None:
        check_settings(self)

    def build(self, n_classes: int) -> nn.Module:
        """Return the network on the CPU in training mode, with other parameters frozen.

        Parameters
        ----------
        n_classes : int
            Number of public classes.

        Returns
        -------
        nn.Module
            The network. Only its trained parameters require a gradient.

        Raises
        ------
        ValueError
            If the name is unknown, a layer mixes rows, the weights do not match, or
            `trainable` matches no parameter.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self._network(n_classes)
            if self.name.startswith(_OWN_PREFIXES):
                _initialize(model)
        refuse_mixing(model)
        if self.weights is not None:
            load_weights(model, self.weights)
        _choose(model, self.trainable)
        return model

    def _network(self, n_classes: int) -> nn.Module:
        if self.name.startswith("wrn-"):
            try:
                depth, width = (int(part) for part in self.name.split("-")[1:])
            except ValueError:
                raise ValueError(
                    f"a Wide-ResNet is wrn-DEPTH-WIDTH, got name={self.name!r}. Try "
                    "wrn-16-4."
                ) from None
            return WideResNet(
                depth,
                width,
                n_classes,
                self.channels,
                self.groups,
                self.standardize,
                self.norm,
            )
        if self.name.startswith("tb21-"):
            return tb21_cnn(self.name.removeprefix("tb21-"), n_classes)
        import timm

        if not timm.is_model(self.name):
            raise ValueError(
                "model must be wrn-D-W, tb21-NAME or a timm model, got "
                f"name={self.name!r}. Correct the name."
            )
        model = timm.create_model(
            self.name, num_classes=n_classes, in_chans=self.channels
        )
        # no dropout or stochastic depth: De22 C.1 removes explicit regularizers
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                # vmap would fall back to a loop over rows
                vars(module)["fused_attn"] = False
            for field in ("p", "drop_prob"):
                if (
                    isinstance(getattr(module, field, None), float)
                    and "drop" in type(module).__name__.lower()
                ):
                    setattr(module, field, 0.0)
        return model


def _choose(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Freeze the parameters without a matching pattern; () freezes none."""
    names = [name for name, _ in model.named_parameters()]
    try:
        found = {
            pattern: {name for name in names if re.search(pattern, name)}
            for pattern in patterns
        }
    except (re.error, TypeError) as error:
        raise ValueError(
            f"layers must be regular expressions, got {list(patterns)} ({error}). "
            "Correct them."
        ) from None
    unknown = [pattern for pattern, of in found.items() if not of]
    if unknown:
        raise ValueError(
            f"layers must name parameters of the model, got {unknown}. It has "
            f"{names[:4]}, ..."
        )
    chosen = set().union(*found.values()) if patterns else set(names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


Scale = float | tuple[float, ...]


def pixel_scale(
    name: str, channels: int, mean: Scale | None = None, std: Scale | None = None
) -> tuple[Scale, Scale]:
    """Return (mean, std) of pixels in [0, 1], as given or as the model's default.

    The default is timm's, else 0.5 and 0.25, with one number per channel. Raises
    ValueError if numbers are out of range or their count is wrong.
    """
    config: Any = None
    if not name.startswith(_OWN_PREFIXES):
        import timm

        config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    own = ((0.5,), (0.25,)) if config is None else (config.mean, config.std)
    own = [
        tuple(v) if len(v) == channels else (sum(v) / len(v),) * channels for v in own
    ]
    found = own[0] if mean is None else mean, own[1] if std is None else std
    _check_scale("mean", found[0], channels, -MOST_SCALE)
    _check_scale("std", found[1], channels, LEAST_STD)
    return found


def _check_scale(name: str, value: Any, channels: int, least: float) -> None:
    """Raise ValueError unless `value` is one number in range, or one per channel."""
    parts = value if isinstance(value, tuple | list) else (value,)
    if len(parts) not in (1, channels) or not all(
        is_a(part, float) and least <= part <= MOST_SCALE for part in parts
    ):
        raise ValueError(
            f"{name} must be a number from {least:g} to {MOST_SCALE:g}, or one for "
            f"each of {channels} channels, got {name}={shown(value)}. Correct it."
        )


def refuse_mixing(model: nn.Module) -> None:
    """Raise ValueError with the layer's name if a known type of layer mixes rows.

    `refuse_moving` tests other layers, once the image size is known.
    """
    for name, module in model.named_modules():
        tracking = bool(getattr(module, "track_running_stats", False))
        if isinstance(module, _MIXING) or tracking:
            raise ValueError(
                f"a private model must not mix rows, got layer={name or 'model'} "
                f"({type(module).__name__}). Use group norm, or a model without batch "
                "normalization."
            )


def refuse_moving(
    model: nn.Module, shape: tuple[int, ...], device: torch.device | str = "cpu"
) -> None:
    """Raise ValueError with the layer's name if a row's output depends on others.

    The check compares the output of a public random row in two batches with different
    other rows. It finds layers that `refuse_mixing` does not know.

    Parameters
    ----------
    model : nn.Module
        The network.
    shape : tuple of int
        (channels, h, w) of an image.
    device : torch.device or str, default "cpu"
        Device of the network.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((3, *shape), generator=generator).to(device)
    other = x.clone()
    other[1:] = torch.randn(x[1:].shape, generator=generator).to(device)
    first = _outputs(model, x)
    second = _outputs(model, other)
    for name in first:
        a = first[name]
        b = second[name]
        if a.shape[0] != 3:
            continue
        # far above float32's rounding
        if not torch.allclose(a[0], b[0], rtol=1e-3, atol=1e-4):
            raise ValueError(
                f"a private model must not mix rows, got layer={name} with an output "
                "that depends on other rows (or is random). Remove this layer."
            )


def _outputs(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the first output of every layer by name, innermost first."""
    seen: dict[str, Tensor] = {}
    hooks = []
    for name, module in model.named_modules():

        def keep(_: Any, __: Any, output: Any, name: str = name or "model") -> None:
            if isinstance(output, Tensor) and output.dim():
                seen.setdefault(name, output.detach())

        hooks.append(module.register_forward_hook(keep))
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def load_weights(model: nn.Module, path: str) -> None:
    """Load public weights from a safetensors file or a state dict.

    If the last linear layer is missing or has another shape in the file, it keeps its
    initial weights. Raises ValueError if the file is unreadable, or another parameter
    is missing or has another shape.
    """
    try:
        state = read_state(Path(path))
    except Exception as error:  # torch raises many types for damaged files
        raise ValueError(
            f"weights must be a safetensors or pth file, got weights={path!r}: "
            f"{first_line(error)}. Download or convert it again."
        ) from error
    own = model.state_dict()
    shapes = {name: value.shape for name, value in own.items()}
    fitting = {k: v for k, v in state.items() if shapes.get(k) == v.shape}
    head = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear)
    ][-1:]
    free = {f"{name}.{kind}" for name in head for kind in ("weight", "bias")}
    missing = [
        name
        for name, _ in model.named_parameters()
        if name not in fitting and name not in free
    ]
    if missing:
        raise ValueError(
            f"weights must match the model, got weights={path!r} without "
            f"{missing[:3]} in its shape. Check the model's name and the image size."
        )
    model.load_state_dict(fitting, strict=False)


def _initialize(model: nn.Module) -> None:
    """Draw weights from N(0, 1 / fan_in), and set biases to zero [De22 C.1]."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=1 / math.sqrt(fan_in))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return names and values of the trained parameters, in a fixed order."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trained parameters."""
    return sum(p.numel() for _, p in trained(model))


def flat(model: nn.Module) -> Tensor:
    """Return the trained parameters as one vector (size,)."""
    return torch.cat([p.detach().reshape(-1) for _, p in trained(model)])


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Return each row's cross entropy in float32."""
    return F.cross_entropy(scores.float(), labels, reduction="none")
