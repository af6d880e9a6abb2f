"""A family of backbones is one class under `@register`."""

import json
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
import torch
from dphead_extract.backbones.base import FAMILIES, BackboneOptions, register
from dphead_extract.backbones.families import TRAITS, Traits
from dphead_extract.backbones.fixed_filters import FixedFilters
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.declared import Option, settings_of
from dphead_extract.options import NATURAL
from dphead_extract.threads import one_thread
from torch import nn

from dphead.fit.files import backbone_options


def test_each_family_has_its_traits_and_the_other_way_round():
    assert set(FAMILIES) == set(TRAITS)


@dataclass
class Places:
    """The settings of a family."""

    places: Annotated[int, Option("Places of a map.", NATURAL)] = 1


def test_a_registered_family_is_loaded_by_its_name(monkeypatch):
    traits = Traits(frozenset({"colors"}), settings_of(Places), True)
    monkeypatch.setitem(TRAITS, "channel-means", traits)

    @register
    class Means(FixedFilters):
        names = ("channel-means",)

        def nets(self, options, shape, colors, basis):
            return [nn.AdaptiveAvgPool2d(options.settings["places"])], {"seed": 0}

    try:
        backbone = load_backbone(BackboneOptions("channel-means"), (4, 6), True)
    finally:
        del FAMILIES["channel-means"]
    assert (backbone.n_features, backbone.kwargs) == (3, {"places": 1, "seed": 0})
    white = backbone.prepare(np.full((4, 6, 3), 255, np.uint8))
    inputs = backbone.inputs(torch.from_numpy(white[None]))
    assert torch.equal(backbone.module(inputs).flatten(), torch.ones(3))


OTHER = {  # an option of some families only: another value than the default
    "colors": "opponent",
    "mean": (0.5,),
    "std": (0.25,),
    "interpolation": "none",
    "scatter_j": (2,),
    "scatter_l": 4,
}
FEW = {"scatter_j": (1,), "scatter_l": 2}  # deep-patches takes seconds for many maps
IMAGES = "dphead_extract.backbones.deep_patches.N_SYNTHETIC"


def few(name):
    return {k: v for k, v in FEW.items() if k in TRAITS[name].settings}


@pytest.mark.parametrize("name", sorted(TRAITS))
def test_an_images_bits_depend_on_no_other_image_nor_on_its_place(name, monkeypatch):
    """In batches of one shape, as extraction makes them."""
    monkeypatch.setattr(IMAGES, 40)
    options = BackboneOptions(name, image_size=16, settings=few(name))
    net = load_backbone(options, (16, 16), True).module
    x = torch.rand(9, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with one_thread(), torch.inference_mode():
        found = net(x)
        for k in range(1, len(x)):
            assert torch.equal(net(x.roll(k, 0)).roll(-k, 0), found)
        others = 1 - x
        others[0] = x[0]
        assert torch.equal(net(others)[0], found[0])


@pytest.mark.parametrize("name", sorted(TRAITS))
def test_each_option_of_a_family_is_recorded_and_restored(name, monkeypatch):
    """Otherwise a head would take features of another kind as its own."""
    monkeypatch.setattr(IMAGES, 40)
    made = {"image_size": (16, 16), "channels": 3}

    def built(settings=(), **changes):
        given = made | changes | {"settings": few(name) | dict(settings)}
        backbone = load_backbone(BackboneOptions(name, **given), (16, 16), True)
        kept = {"backbone_kwargs": backbone.kwargs, "transform": backbone.transform}
        return json.loads(json.dumps({"backbone": name, **kept}))

    usual, traits = built(), TRAITS[name]
    for option in sorted(traits.takes | traits.settings.keys()):
        field = option.partition("=")[0]
        value = OTHER[field]
        setting = field in traits.settings
        found = built(**({"settings": {field: value}} if setting else {field: value}))
        assert found != usual
        again = backbone_options(found, None)
        held = again.settings[field] if setting else getattr(again, field)
        assert json.dumps(held) == json.dumps(value)
