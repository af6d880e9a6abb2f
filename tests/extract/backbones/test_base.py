"""A family of backbones is one class under `@register`."""

import numpy as np
import torch
from dphead_extract.backbones.base import FAMILIES, BackboneOptions, register
from dphead_extract.backbones.families import TRAITS
from dphead_extract.backbones.fixed_filters import FixedFilters
from dphead_extract.backbones.registry import load_backbone
from torch import nn


def test_each_family_has_its_traits_and_the_other_way_round():
    assert set(FAMILIES) == set(TRAITS)


def test_a_registered_family_is_loaded_by_its_name(monkeypatch):
    monkeypatch.setitem(TRAITS, "channel-means", TRAITS["scatternet"])

    @register
    class Means(FixedFilters):
        names = ("channel-means",)

        def nets(self, options, shape, colors, basis):
            return [nn.AdaptiveAvgPool2d(1)], {"places": 1}

    try:
        backbone = load_backbone(BackboneOptions("channel-means"), (4, 6), True)
    finally:
        del FAMILIES["channel-means"]
    assert (backbone.n_features, backbone.kwargs) == (3, {"places": 1})
    white = backbone.prepare(np.full((4, 6, 3), 255, np.uint8))
    inputs = backbone.inputs(torch.from_numpy(white[None]))
    assert torch.equal(backbone.module(inputs).flatten(), torch.ones(3))
    recorded = Means().recorded(backbone.kwargs, backbone.transform)
    assert recorded == {"colors": "rgb", "image_size": (4, 6), "channels": 3}
