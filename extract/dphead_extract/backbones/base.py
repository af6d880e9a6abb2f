"""Define the interface of a family of backbones, and its registration.

A family is one file of this folder: a subclass of `Family` under `@register`. The
registry imports every file of this folder. `families.py` names each family with its
options and settings (timm's in `TIMM`, the others in `TRAITS`), for checks and help
texts.

No parameter of a backbone may depend on the images that are extracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from dphead_extract.backbones.families import (
    TIMM,
    TRAITS,
    check_scale,
    settings_of_families,
    traits_of,
)
from dphead_extract.declared import Option, Range, typed
from dphead_extract.errors import ExtractError
from dphead_extract.images import PixelRange
from dphead_extract.numerals import input_size, of_colors, python_arguments
from dphead_extract.options import NATURAL

if TYPE_CHECKING:  # options are checked before PyTorch is imported
    import numpy as np
    from torch import Tensor, nn

_backbone = partial(Option, section="Backbone")
_features = partial(Option, section="Features")
FAMILIES: dict[str, Family] = {}


@dataclass
class BackboneOptions:
    """Choose the backbone, its weights and the image transform.

    None means that the user did not declare the value. The help of each option says
    which value applies then. `settings` maps the names of the family's settings to
    values, with defaults for the settings that the user did not give.
    `crop_mode` is timm's "center", "squash" or "border". `mirror` averages the features
    of an image and of its mirror image. This removes directions that tell left from
    right, and the noise on their weights. For `colors`, "opponent" means the colors of
    van de Sande, Gevers, Snoek (2010).

    Notes
    -----
    Size and channels are public. They are declared, or fixed by the backbone or by the
    header of arrays. Code never infers them from images (`run._declared_input`).
    """

    name: Annotated[
        str,
        _backbone(
            "Backbone: fixed filters of one of these names, or a timm MODEL.",
            flags=("--backbone",),
            metavar=f"{'|'.join(TRAITS)}|MODEL",
        ),
    ]
    weights: Annotated[
        Path | None,
        _backbone(
            "Local weights file (safetensors or pth), instead of a download. A "
            "config.json of timm beside it gives mean, std, size and crop.",
            existing="the weights file",
        ),
    ] = None
    model_args: Annotated[
        dict[str, Any],
        _backbone(
            "Argument for `timm.create_model`, such as num_classes=10.",
            flags=("--model-arg",),
            read=python_arguments,
            repeated=True,
            metavar="NAME=VALUE",
        ),
    ] = field(default_factory=dict)
    mean: Annotated[
        tuple[float, ...] | None,
        _backbone(
            "Mean of each channel, separated by commas. Default: the model's means, or "
            "none for fixed filters.",
            read=of_colors,
        ),
    ] = None
    std: Annotated[
        tuple[float, ...] | None,
        _backbone(
            "Standard deviation of each channel, separated by commas. Default: the "
            "values of the model, or none for fixed filters.",
            read=of_colors,
        ),
    ] = None
    interpolation: Annotated[
        Literal["nearest", "bilinear", "bicubic", "lanczos", "none"] | None,
        _backbone(
            "Interpolation that resizes images. none: images must have the declared "
            "size (fixed filters only). Default: the interpolation of the model, or "
            "bicubic for fixed filters."
        ),
    ] = None
    crop_pct: Annotated[
        float | None,
        _backbone(
            "Fraction of each side of the image that the center crop keeps. Default: "
            "the model's fraction.",
            Range("from 0.01 to 1", lambda v: 0.01 <= v <= 1),
        ),
    ] = None
    crop_mode: str | None = None
    image_size: Annotated[
        int | tuple[int, int] | None,
        _backbone(
            "Size of the backbone's input in pixels. Required for fixed filters with "
            "image files. Default: the size of the model, or of the array's images.",
            read=input_size,
            metavar="N|H,W",
        ),
    ] = None
    settings: dict[str, Any] = field(default_factory=dict)
    colors: Annotated[
        Literal["rgb", "opponent"],
        Option(
            "Color space. opponent: luminance, red-green and blue-yellow.",
            section="Fixed filters",
        ),
    ] = "rgb"
    mirror: Annotated[
        bool,
        _features("Average the features of each image and its mirror image."),
    ] = False
    axes: Annotated[
        int | None,
        _features(
            "Number of directions, such as 400, to project features on. They separate "
            "the backbone's own classes best. This option helps with small budgets and "
            "many classes.",
            NATURAL,
        ),
    ] = None
    channels: Annotated[
        int | None,
        _backbone(
            "Channels of the backbone's input: 1 refuses color images, 3 repeats the "
            "channel of gray images. Default: the channels of the model, or of the "
            "array's images, else 3.",
            Range("1 or 3", lambda v: v in (1, 3)),
        ),
    ] = None
    pixels: PixelRange = field(default_factory=PixelRange)
    random_weights: Annotated[
        bool,
        _backbone("Give a timm model random weights, to measure speed and disk space."),
    ] = False

    def __post_init__(self) -> None:
        usual = traits_of(self.name).settings
        self.settings = {k: one.default for k, one in usual.items()} | self.settings

    @property
    def sides(self) -> tuple[int, int] | None:
        """Return the declared (height, width), or None without a declared size."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size


def check_options(options: BackboneOptions) -> None:
    """Raise ExtractError for an invalid option, or one that the backbone lacks."""
    check_scale(options.mean or (), options.std or ())
    usual = BackboneOptions(options.name)
    some = TIMM.takes.union(*(traits.takes for traits in TRAITS.values()))
    given: dict[str, Any] = {
        name: getattr(options, name)
        for name in sorted(some - {"interpolation=none"})
        if getattr(options, name) != getattr(usual, name)
    }
    if options.interpolation == "none":
        given["interpolation=none"] = True
    declared, own = settings_of_families(), traits_of(options.name)
    for name, value in options.settings.items():
        one = declared.get(name)
        if one is None or value != one.default:
            given[name] = value
    for name, value in given.items():
        flag = "--" + name.removesuffix("s" if name == "model_args" else "")
        flag = flag.replace("_", "-").replace("=", " ")
        one = own.settings.get(name)
        # records in features files hold lists instead of tuples
        if one and not one.holds(tuple(value) if isinstance(value, list) else value):
            raise ExtractError(f"{flag} must be {one.must_be}, got {typed(value)}.")
        if name not in own.takes | own.settings.keys():
            raise ExtractError(
                f"{flag} is not an option of --backbone {options.name}. Remove {flag}."
            )


@dataclass
class Backbone:
    """Hold a frozen network and the transform of its input images.

    Attributes
    ----------
    name : str
        The backbone's name.
    kwargs, transform : dict
        JSON values that the features file records.
    weights_sha256 : str
        Digest of the weights; "" for backbones that are identified by their settings.
    module : nn.Module
        The network, in eval mode: from inputs (B, C, H', W') to outputs (B, ...).
    prepare : callable
        Function from an image, uint8 (H, W[, 3]), to pixels, uint8 (H', W', C).
    mean, std : (C, 1, 1) tensor or None
        Values that are subtracted from pixels (0 to 1), and values that divide them.
    basis : (C, C) tensor or None
        Matrix that transforms the colors after the division, or None.
    input_shape : (int, int, int)
        Channels, height and width of the input.
    parts : tuple
        Channels and positions of each network output. A row joins the flattened
        outputs.
    channels_last : bool
        Whether the network returns tokens or maps with channels last.
    mirror : bool
        Whether rows are means over an image and its mirror image.
    axes : (axes, features) tensor or None
        Axes that `module` projects the features on; None for no projection.
    weights : Path or None
        The local file or folder of weights, or None; private.
    note : str
        Text on the use of config.json beside the weights; private.
    """

    name: str
    kwargs: dict[str, Any]
    weights_sha256: str
    transform: dict[str, Any]
    module: nn.Module
    prepare: Callable[[np.ndarray], np.ndarray]
    input_shape: tuple[int, int, int]
    mean: Tensor | None = None
    std: Tensor | None = None
    basis: Tensor | None = None
    parts: tuple[tuple[int, int], ...] = ()
    channels_last: bool = False
    mirror: bool = False
    axes: Tensor | None = None
    weights: Path | None = None
    note: str = ""

    @property
    def n_features(self) -> int:
        """Return the number of features of one row."""
        return sum(channels * places for channels, places in self.parts)

    def inputs(self, pixels: Tensor) -> Tensor:
        """Return the network's inputs (B, C, H', W') for pixels (B, H', W', C).

        They are computed on the device of the pixels. Each elementwise operation is
        rounded once, so that inputs do not depend on the position in a batch.
        """
        scaled = pixels.permute(0, 3, 1, 2).float().div_(255)
        if self.mean is not None:
            scaled -= self.mean.to(scaled.device)
        if self.std is not None:
            scaled /= self.std.to(scaled.device)
        if self.basis is None:
            return scaled
        import torch

        planes = scaled.unbind(1)
        rows = self.basis.tolist()
        turned = [sum(w * x for w, x in zip(row, planes, strict=True)) for row in rows]
        return torch.stack(turned, 1)  # type: ignore[arg-type]


class Family:
    """Build the backbones of one family. Each family is a subclass.

    Attributes
    ----------
    names : tuple of str
        Values of `--backbone`.
    cpu_batch : int
        Number of images in a CPU batch, small enough that a batch stays in the cache.
    """

    names: ClassVar[tuple[str, ...]]
    cpu_batch: ClassVar[int] = 16

    def build(
        self, options: BackboneOptions, size: tuple[int, int], has_color: bool
    ) -> Backbone:
        """Return the backbone with its transform.

        Parameters
        ----------
        options : BackboneOptions
            Options of the user.
        size : (int, int)
            Public height and width of the images, for families that need a size.
        has_color : bool
            Whether images have 3 channels; public.
        """
        raise NotImplementedError

    def optimized(self, module: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
        """Return a faster network with the same function. The default changes nothing.

        `shape` is (channels, height, width) of the input.
        """
        return module

    def recorded(
        self, kwargs: dict[str, Any], transform: dict[str, Any]
    ) -> dict[str, Any]:
        """Return this family's fields of `BackboneOptions` from a file's record.

        The caller reads name, mean, std, interpolation, mirror, axes and pixels, which
        all families have.
        """
        raise NotImplementedError


def register(family: type[Family]) -> type[Family]:
    """Register a family of backbones under each of its names."""
    for name in family.names:
        FAMILIES[name] = family()
    return family
