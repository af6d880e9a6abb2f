"""Build frozen backbones: ScatterNet, random patches, and every timm model.

timm weights come from the hub or a local file. No parameter may depend on the images
that are extracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from dphead_extract.backbones import deep_patches
from dphead_extract.backbones.axes import class_axes, on_axes
from dphead_extract.backbones.deep_patches import DeepPatches
from dphead_extract.backbones.folding import fold_batch_norm
from dphead_extract.backbones.isolation import check_rows_alone
from dphead_extract.backbones.patches import (
    FILTERS,
    PLACES,
    SEED,
    SIDE,
    STRIDE,
    WEIGHT,
    PatchNet,
)
from dphead_extract.backbones.scattering import Scales, ScatterNet
from dphead_extract.backbones.weights import (
    file_sha256,
    first_line,
    load_weights,
    state_sha256,
)
from dphead_extract.errors import ExtractError
from dphead_extract.images import PixelRange, with_channels

# backbones that a formula or a seed defines, without weights to load
FIXED_FILTERS = ("scatternet", "patches", "scatternet+patches", "deep-patches")
# A digest names the weights of these. The settings name the others: their last bits
# depend on the processor.
DRAWN = ("patches", "scatternet+patches")
# allowed values of options, for any backbone and image; a choice (ScatterNet averages
# over 2**J pixels)
RANGES = {
    "mean": (-1e6, 1e6),
    "std": (1e-6, 1e6),
    "scatter_j": (1, 14),
    "scatter_l": (1, 64),
}


@dataclass
class BackboneOptions:
    """Choose the backbone, its weights and the image transform.

    None means the model's own value.

    Attributes
    ----------
    name : str
        One of FIXED_FILTERS, or a timm model.
    weights : Path or None
        A local file of weights; None is the hub's.
    model_args : dict
        Arguments of the timm model.
    mean, std : tuple of float or None
        Shift and scale of each color.
    interpolation : str or None
        How images are resized. "none", for fixed filters: images must have the
        declared size.
    crop_pct : float or None
        Share of the image that is kept.
    image_size : int, (int, int) or None
        Side of the input, or (height, width).
    scatter_j : tuple of int
        ScatterNet's J, or several whose features are joined.
    scatter_l : int
        ScatterNet's L.
    colours : str
        "rgb", or for fixed filters "opponent": luminance, red-green, blue-yellow
        (van de Sande, Gevers, Snoek 2010).
    mirror : bool
        Whether features are means over an image and its mirror image. If left and right
        do not matter, half of the directions vanish, and the noise on their weights
        with them.
    axes : int or None
        Number of directions to keep, in which the backbone's own classes differ most
        (`dphead_extract.backbones.axes`).
    channels : int or None
        1 or 3 channels of the input.
    pixels : PixelRange
        What is declared of the images' samples.

    Notes
    -----
    Size and channels are public. They are declared, or fixed by the backbone or by the
    header of arrays. They are never found in images (`run.declared_input`).
    """

    name: str
    weights: Path | None = None
    model_args: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    crop_pct: float | None = None
    image_size: int | tuple[int, int] | None = None
    scatter_j: tuple[int, ...] = (2,)
    scatter_l: int = 8
    colours: str = "rgb"
    mirror: bool = False
    axes: int | None = None
    channels: int | None = None
    pixels: PixelRange = field(default_factory=PixelRange)

    @property
    def sides(self) -> tuple[int, int] | None:
        """Return the declared (height, width), or None."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size


# an orthonormal map from RGB, after division by sqrt(12)
_LUMINANCE = [2.0, 2.0, 2.0]
_RED_GREEN = [6**0.5, -(6**0.5), 0.0]
_YELLOW_BLUE = [2**0.5, 2**0.5, -2 * 2**0.5]
OPPONENT = torch.tensor([_LUMINANCE, _RED_GREEN, _YELLOW_BLUE]) / 12**0.5


@dataclass
class Backbone:
    """Hold a network in eval mode and the transform before it.

    Attributes
    ----------
    name : str
        The backbone's name.
    kwargs, transform : dict
        Plain values for the file's attributes.
    weights_sha256 : str
        Digest of the weights; "" for backbones that their settings name.
    module : nn.Module
        Turns (B, C, H', W') into (B, channels, ...).
    prepare : callable
        Turns uint8 (H, W[, 3]) into float32 (C, H', W') on the CPU.
    input_shape : (int, int, int)
        Channels, height and width of the input.
    parts : tuple
        (channels, places) of the parts of a row's flattened output.
    weights : tuple of float
        Relative lengths of the parts, for `RowNorm`; () for equal lengths.
    mirror : bool
        Whether rows are means over an image and its mirror image.
    axes : (columns, features) tensor or None
        The network's axes; None for all features.
    """

    name: str
    kwargs: dict[str, Any]
    weights_sha256: str
    transform: dict[str, Any]
    module: nn.Module
    prepare: Callable[[np.ndarray], torch.Tensor]
    input_shape: tuple[int, int, int]
    parts: tuple[tuple[int, int], ...] = ()
    weights: tuple[float, ...] = ()
    mirror: bool = False
    axes: torch.Tensor | None = None

    @property
    def n_features(self) -> int:
        """Return the number of features of one row."""
        return sum(channels * places for channels, places in self.parts)


def load_backbone(
    options: BackboneOptions, size: tuple[int, int], has_colour: bool
) -> Backbone:
    """Build the backbone and its transform.

    Parameters
    ----------
    options : BackboneOptions
        The backbone.
    size : (int, int)
        Public height and width of the input of an FIXED_FILTERS backbone.
    has_colour : bool
        Whether that input has 3 channels; public.

    Returns
    -------
    Backbone
        The backbone.

    Raises
    ------
    ExtractError
        If the name is unknown, weights are unavailable or do not fit, or the model
        mixes rows of a batch.
    """
    _check_ranges(options)
    if options.colours not in ("rgb", "opponent") or (
        options.colours == "opponent" and options.name not in FIXED_FILTERS
    ):
        raise ExtractError(
            "colours must be rgb, or opponent for scatternet and patches, got "
            f"colours={options.colours!r} for {options.name}. Leave --colours out."
        )
    if options.channels not in (None, 1, 3):
        raise ExtractError(
            f"channels must be 1 or 3, got channels={options.channels}. Choose one."
        )
    if options.interpolation == "none" and options.name not in FIXED_FILTERS:
        raise ExtractError(
            "interpolation none is for scatternet and patches, got "
            f"backbone={options.name!r}, which resizes. Leave it out."
        )
    if options.axes is not None and options.name in FIXED_FILTERS:
        raise ExtractError(
            "class axes are of a timm network with its own classifier, got "
            f"axes={options.axes} for {options.name}. Leave --axes out."
        )
    backbone = (
        _unlearned(options, size, has_colour)
        if options.name in FIXED_FILTERS
        else timm_backbone(options)
    )
    backbone.module.eval().requires_grad_(False)
    check_rows_alone(backbone.module, backbone.input_shape)
    if options.name not in FIXED_FILTERS:
        folded = fold_batch_norm(backbone.module, backbone.input_shape)
        backbone.module = folded.to(memory_format=torch.channels_last)
    if backbone.axes is not None:
        backbone.module = on_axes(backbone.module, backbone.axes)
        backbone.transform["axes"] = options.axes
    backbone.transform |= options.pixels.record()
    nets = (
        backbone.module.nets
        if isinstance(backbone.module, Scales)
        else [backbone.module]
    )
    shapes = [_dry_run(net, backbone.input_shape) for net in nets]
    backbone.parts = tuple((shape[1], math.prod(shape[2:])) for shape in shapes)
    if options.name == "scatternet+patches":
        backbone.weights = (1.0,) * (len(nets) - 1) + (WEIGHT,)
        backbone.kwargs["weight"] = WEIGHT
    if options.mirror:
        backbone.mirror = backbone.transform["mirror"] = True
    return backbone


def _dry_run(module: nn.Module, input_shape: tuple[int, int, int]) -> torch.Size:
    with torch.inference_mode():
        return module(torch.zeros(1, *input_shape)).shape


# ---------------------------------------------------------------- FIXED_FILTERS


def _unlearned(
    options: BackboneOptions, size: tuple[int, int], has_colour: bool
) -> Backbone:
    if options.weights is not None or options.model_args:
        raise ExtractError(
            f"{options.name} has no weights and no model arguments, got some. Leave "
            "--weights and --model-arg out."
        )
    colours, opponent = (
        3 if has_colour else 1,
        has_colour and options.colours == "opponent",
    )
    resized = options.sides is not None and options.interpolation != "none"
    size = options.sides or size
    interpolation = (options.interpolation or "bicubic") if resized else None
    transform = {
        "image_size": list(size),
        "interpolation": interpolation,
        "colours": colours,
        "scale": [0.0, 1.0],
        "mean": list(options.mean) if options.mean else None,
        "std": list(options.std) if options.std else None,
        **({"colour_space": "opponent"} if opponent else {}),
    }
    height, width = size
    nets, kwargs = _unlearned_nets(options, (height, width), colours, opponent)
    mean, std = (_channel_tensor(v, colours) for v in (options.mean, options.std))

    def prepare(image: np.ndarray) -> torch.Tensor:
        image = np.asarray(with_channels(image, colours))
        if image.shape[:2] != (height, width):
            image = _resize_to_cover(image, (height, width), interpolation or "bicubic")
        planes = (
            torch.tensor(image).reshape(height, width, colours).permute(2, 0, 1).float()
            / 255
        )
        planes = planes if mean is None else planes - mean
        planes = planes if std is None else planes / std
        return torch.tensordot(OPPONENT, planes, dims=1) if opponent else planes

    return Backbone(
        name=options.name,
        kwargs=kwargs,
        weights_sha256=state_sha256(nets[-1]) if options.name in DRAWN else "",
        transform=transform,
        module=nets[0] if len(nets) == 1 else Scales(nets),
        prepare=prepare,
        input_shape=(colours, height, width),
    )


def _unlearned_nets(
    options: BackboneOptions, shape: tuple[int, int], colours: int, opponent: bool
) -> tuple[list[nn.Module], dict[str, Any]]:
    """Return the networks whose outputs are joined, patches last, and their settings.

    Raises ExtractError for patches of pixels that are not from 0 to 1.
    """
    nets: list[nn.Module] = []
    kwargs: dict[str, Any] = {}
    if options.name != "scatternet" and (options.mean or options.std):
        raise ExtractError(
            "patches are normalised one by one and take pixels from 0 to 1, got "
            f"mean={options.mean}, std={options.std}. Leave --mean and --std out."
        )
    scales = list(options.scatter_j)
    J = scales[0] if len(scales) == 1 else scales
    if options.name == "deep-patches":
        basis = OPPONENT if opponent else None
        for scale in scales:
            first = ScatterNet(scale, shape, options.scatter_l)
            # halve finer maps until they are as small as the coarsest
            layers = 1 + max(scales) - scale
            nets.append(DeepPatches(first, colours, basis, layers))
        kwargs = {"J": J, "L": options.scatter_l} | deep_patches.SETTINGS
        if len(scales) > 1:
            kwargs["between"] = deep_patches.BETWEEN
        return nets, kwargs
    if "scatternet" in options.name:
        nets += [ScatterNet(j, shape, options.scatter_l) for j in scales]
        kwargs = {"J": J, "L": options.scatter_l}
    if "patches" in options.name:
        nets.append(PatchNet(shape, colours, OPPONENT if opponent else None))
        kwargs |= {"filters": FILTERS, "side": SIDE, "stride": STRIDE}
        kwargs |= {"places": PLACES, "seed": SEED}
    return nets, kwargs


def _check_ranges(options: BackboneOptions) -> None:
    """Raise ExtractError for a number outside RANGES."""
    numbers = {
        "mean": options.mean or (),
        "std": options.std or (),
        "scatter_j": options.scatter_j,
        "scatter_l": (options.scatter_l,),
    }
    for name, (low, high) in RANGES.items():
        if not all(low <= value <= high for value in numbers[name]):
            raise ExtractError(
                f"{name} must be from {low:g} to {high:g}, got "
                f"{name}={list(numbers[name])}. Correct it."
            )


def _channel_tensor(
    values: tuple[float, ...] | None, channels: int
) -> torch.Tensor | None:
    if values is None:
        return None
    if len(values) not in (1, channels):
        raise ExtractError(
            f"--mean and --std must have 1 or {channels} values, got "
            f"values={list(values)}. Give one for each colour."
        )
    return (
        torch.tensor(values, dtype=torch.float32)
        .expand(channels)
        .reshape(channels, 1, 1)
    )


def _resize_to_cover(
    image: np.ndarray, size: tuple[int, int], interpolation: str
) -> np.ndarray:
    """Scale an image to just cover `size` (height, width), and cut the middle."""
    (height, width), (tall, wide) = image.shape[:2], size
    scale = max(tall / height, wide / width)
    shape = (max(wide, round(width * scale)), max(tall, round(height * scale)))
    resized = np.asarray(
        Image.fromarray(image).resize(shape, Image.Resampling[interpolation.upper()])
    )
    top, left = (resized.shape[0] - tall) // 2, (resized.shape[1] - wide) // 2
    return resized[top : top + tall, left : left + wide]


# ---------------------------------------------------------------- timm


def timm_backbone(options: BackboneOptions) -> Backbone:
    """Return a timm model without its classifier, and the transform of its input."""
    model, weights_sha256 = timm_model(options)
    axes = None
    if options.axes is not None:
        classifier: Any = getattr(model, "get_classifier", nn.Identity)()
        axes = class_axes(classifier, options.axes)
    if hasattr(model, "reset_classifier"):
        model.reset_classifier(0)  # type: ignore[operator]
    transform, prepare, input_shape = _timm_transform(options, model)
    return Backbone(
        name=options.name,
        kwargs=dict(options.model_args),
        weights_sha256=weights_sha256,
        transform=transform,
        module=model,
        prepare=prepare,
        input_shape=input_shape,
        axes=axes,
    )


def timm_model(options: BackboneOptions) -> tuple[nn.Module, str]:
    """Return the model as it was trained, with classifier, and its weights' sha256.

    Raises
    ------
    ExtractError
        If the name is unknown, or weights are unavailable or do not fit.
    """
    import timm

    # "hf-hub:owner/name" is looked up by timm
    if ":" not in options.name and not timm.is_model(options.name):
        close = get_close_matches(options.name.split(".")[0], timm.list_models(), 5)
        raise ExtractError(
            "the backbone must be scatternet or a timm model, got "
            f"backbone={options.name!r}. Try one of {close or 'timm.list_models()'}."
        )
    model = _build(options)
    if options.weights is None:
        return model, state_sha256(model)
    load_weights(model, options.weights)
    return model, file_sha256(options.weights)


def _build(options: BackboneOptions) -> nn.Module:
    import timm

    local = options.weights is not None
    if local and not Path(options.weights or "").is_file():
        raise ExtractError(
            f"the weights file must exist, got weights={str(options.weights)!r}. Check "
            "--weights."
        )
    try:
        return timm.create_model(
            options.name, pretrained=not local, **options.model_args
        )
    except (TypeError, AssertionError) as error:
        raise ExtractError(
            f"the model arguments must suit {options.name}, got {options.model_args}: "
            f"{first_line(error)}. Correct --model-arg."
        ) from error
    except Exception as error:
        if local:
            raise ExtractError(
                f"{options.name} must build, got {first_line(error)}. Correct "
                "--model-arg."
            ) from error
        raise ExtractError(
            f"hub weights of {options.name} must be there to load, got "
            f"{type(error).__name__}: {first_line(error)}. Go online, or give a local "
            "file with --weights FILE."
        ) from error


Transform = Callable[[np.ndarray], torch.Tensor]


def _timm_transform(
    options: BackboneOptions, model: nn.Module
) -> tuple[dict[str, Any], Transform, tuple[int, int, int]]:
    from timm import data as timm_data

    data: Any = timm_data  # timm does not declare its exports to type checkers

    config = data.resolve_model_data_config(model)
    channels = int(config["input_size"][0])
    if options.channels not in (None, channels):
        raise ExtractError(
            "the network must take the declared channels, got "
            f"channels={options.channels} for {options.name} with {channels}. Leave "
            f"--channels out, or give --model-arg in_chans={options.channels}."
        )
    overrides = {
        "mean": options.mean and tuple(options.mean),
        "std": options.std and tuple(options.std),
        "interpolation": options.interpolation,
        "crop_pct": options.crop_pct,
        "input_size": options.sides and (channels, *options.sides),
    }
    config |= {key: value for key, value in overrides.items() if value is not None}
    for key in ("mean", "std"):
        if len(config[key]) not in (1, channels):
            raise ExtractError(
                f"--{key} must have 1 or {channels} values, got {list(config[key])}. "
                "Give one a colour."
            )
        config[key] = tuple(config[key]) * (channels if len(config[key]) == 1 else 1)
    keys = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
    config = {key: config[key] for key in keys}
    apply = data.create_transform(**config, is_training=False)

    def prepare(image: np.ndarray) -> torch.Tensor:
        return apply(with_channels(image, channels))  # type: ignore[operator]

    record = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in config.items()
    }
    _, height, width = (int(s) for s in config["input_size"])
    return {**record, "library": "timm"}, prepare, (channels, height, width)
