"""A family of backbones is one class under `@register`."""

import numpy as np
import torch
from dphead_extract.backbones.base import FAMILIES, BackboneOptions, register
from dphead_extract.backbones.fixed_filters import FixedFilters
from dphead_extract.backbones.registry import load_backbone
from torch import nn


def test_a_registered_family_is_loaded_by_its_name():
    @register
    class Means(FixedFilters):
        names = ("channel-means",)

        def nets(self, options, shape, colours, basis):
            return [nn.AdaptiveAvgPool2d(1)], {"places": 1}

    try:
        options = BackboneOptions("channel-means")
        backbone = load_backbone(options, (4, 6), True)
    finally:
        del FAMILIES["channel-means"]
    assert backbone.n_features == 3
    assert backbone.kwargs == {"places": 1}
    image = np.full((4, 6, 3), 255, np.uint8)
    features = backbone.module(backbone.prepare(image)[None])
    assert torch.equal(features.flatten(), torch.ones(3))
    recorded = Means().recorded(backbone.kwargs, backbone.transform)
    assert recorded == {"colours": "rgb", "image_size": (4, 6), "channels": 3}
