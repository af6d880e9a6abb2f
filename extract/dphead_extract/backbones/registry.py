"""Load frozen backbones of every family in this folder.

A family is one file with a subclass of `Family` under `@register`
(`dphead_extract.backbones.base`). Names that no family registers belong to timm.
"""

from __future__ import annotations

import math
from importlib import import_module
from pkgutil import iter_modules

import torch

import dphead_extract.backbones as folder
from dphead_extract.backbones.axes import on_axes
from dphead_extract.backbones.base import FAMILIES, Backbone, BackboneOptions, Family
from dphead_extract.backbones.families import check_options
from dphead_extract.backbones.fixed_filters import Scales
from dphead_extract.backbones.isolation import check_rows_alone
from dphead_extract.backbones.timm_models import TimmFamily

for _module in iter_modules(folder.__path__):
    if _module.name != "registry":
        import_module(f"{folder.__name__}.{_module.name}")

_TIMM = TimmFamily()


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
        If the name is unknown, an option is not one of the family's, weights are
        unavailable or do not fit, or the model mixes rows of a batch.
    """
    family = family_of(options.name)
    check_options(options)
    backbone = family.build(options, size, has_color)
    backbone.module.eval().requires_grad_(False)
    check_rows_alone(backbone.module, backbone.input_shape)
    backbone.module = family.optimized(backbone.module, backbone.input_shape)
    if backbone.axes is not None:
        backbone.module = on_axes(backbone.module, backbone.axes)
        backbone.transform["axes"] = options.axes
    backbone.transform |= options.pixels.record()
    module = backbone.module
    nets = module.nets if isinstance(module, Scales) else [module]
    with torch.inference_mode():
        shapes = [net(torch.zeros(1, *backbone.input_shape)).shape for net in nets]
    backbone.parts = tuple((shape[1], math.prod(shape[2:])) for shape in shapes)
    if options.mirror:
        backbone.mirror = backbone.transform["mirror"] = True
    return backbone
