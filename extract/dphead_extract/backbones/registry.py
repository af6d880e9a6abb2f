"""Load frozen backbones of every family in this folder.

A family is one file with a subclass of `Family` under `@register`
(`dphead_extract.backbones.base`). Names that no family registers belong to timm.
"""

import math
from importlib import import_module
from pkgutil import iter_modules

import torch
from torch import nn

import dphead_extract.backbones as folder
from dphead_extract.backbones.base import (
    FAMILIES,
    Backbone,
    BackboneOptions,
    Family,
    check_options,
)
from dphead_extract.backbones.fixed_filters import Scales
from dphead_extract.backbones.timm_models import TimmFamily
from dphead_extract.backbones.weights import check_finite, first_line
from dphead_extract.errors import ExtractError
from dphead_extract.threads import one_thread

for _module in iter_modules(folder.__path__):
    if _module.name != "registry":
        import_module(f"{folder.__name__}.{_module.name}")

_TIMM = TimmFamily()
# Largest relative change of a row's features in a different batch. Kernels for other
# batch sizes round differently. A network that mixes rows changes them far more.
_ROW_TOLERANCE = 1e-3  # a choice, not measured


def family_of(name: str) -> Family:
    """Return the registered family of a backbone's name, or else timm's family."""
    return FAMILIES.get(name, _TIMM)


def load_backbone(
    options: BackboneOptions, size: tuple[int, int], has_color: bool
) -> Backbone:
    """Build the backbone and its transform.

    Parameters
    ----------
    options : BackboneOptions
        The backbone.
    size : (int, int)
        Public height and width of the images, for families that need a size.
    has_color : bool
        Whether these images have 3 channels; public.

    Returns
    -------
    Backbone
        The backbone.

    Raises
    ------
    ExtractError
        If the name is unknown, an option is invalid or not one of the family's, or
        weights are unavailable or do not fit. If the model does not run on images of
        this size, mixes rows of a batch, or has features that are not finite.
    """
    family = family_of(options.name)
    check_options(options)
    backbone = family.build(options, size, has_color)
    backbone.module.eval().requires_grad_(False)
    width = getattr(backbone.module, "num_features", None)
    with one_thread():  # a few small batches: several threads would wait for each other
        check_rows_alone(backbone.module, backbone.input_shape)
        module = family.optimized(backbone.module, backbone.input_shape)
        if backbone.axes is not None:
            module = _on_axes(module, backbone.axes)
            backbone.transform["axes"] = options.axes
        nets = module.nets if isinstance(module, Scales) else [module]
        with torch.inference_mode():
            shapes = [net(torch.zeros(1, *backbone.input_shape)).shape for net in nets]
    backbone.module = module
    # timm's transformers return tokens, and some networks maps with channels last
    backbone.channels_last = width is not None and any(
        len(shape) > 2 and shape[1] != width for shape in shapes
    )
    backbone.parts = tuple((shape[1], math.prod(shape[2:])) for shape in shapes)
    backbone.transform |= options.pixels.record()
    if options.mirror:
        backbone.mirror = backbone.transform["mirror"] = True
    return backbone


def _on_axes(module: nn.Module, axes: torch.Tensor) -> nn.Module:
    """Return the network followed by a projection of its features on the axes."""
    count, n_features = axes.shape
    last = nn.Linear(n_features, count, bias=False)
    last.weight = nn.Parameter(axes, requires_grad=False)
    return nn.Sequential(module, last).eval()


def check_rows_alone(module: nn.Module, input_shape: tuple[int, int, int]) -> None:
    """Raise ExtractError if a row's features depend on the other rows of its batch.

    One person could then change the features of another person. The error is also
    raised if the module does not run on these inputs, or if features are not finite.
    The module is tested in its present mode: on a batch of random rows, on the same
    rows in reverse order among other rows, and on one row alone.
    """
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(3, *input_shape, generator=draw)
    others = 5 * torch.randn(3, *input_shape, generator=draw) + 2
    with torch.inference_mode():
        try:
            plain = module(rows)
            batch = torch.cat([others[:1], rows.flip(0), others[1:]])
            beside = module(batch)[1:4].flip(0)
            alone = module(rows[:1])
        except (ValueError, RuntimeError) as error:
            raise ExtractError(
                f"The backbone does not run on inputs of shape {input_shape}: "
                f"{first_line(error)}. Choose another --image-size."
            ) from error
    check_finite(module, plain, "features")
    scale = plain.abs().amax().clamp_min(1e-12)
    moved = max(
        float((plain - beside).abs().amax() / scale),
        float((plain[:1] - alone).abs().amax() / scale),
    )
    if not moved <= _ROW_TOLERANCE:
        raise ExtractError(
            "--backbone must not mix the rows of a batch. This model's features of an "
            f"image depend on the other images (relative change {moved:.1e}). Choose "
            "another model."
        )
