"""Networks are frozen, have no classifier, and are loaded from any weights file."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.folding import fold_batch_norm
from dphead_extract.backbones.registry import check_rows_alone, family_of, load_backbone
from dphead_extract.compiler import import_timm
from dphead_extract.errors import ExtractError
from dphead_extract.normalization import RowNorm
from exports import resnet
from torch import nn

timm = import_timm()
PICTURE = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
SMALL = {"name": "test_resnet", "image_size": 32, "crop_pct": 1.0}


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A small timm model with random weights and batch statistics, saved as pth and
    safetensors.
    """
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("weights")
    state = resnet(num_classes=7).state_dict()
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in state.items()}}, folder / "w.pth"
    )
    save_file(state, folder / "w.safetensors")
    return folder


def load(folder, suffix="safetensors", **changes):
    options = {
        **SMALL,
        "weights": folder / f"w.{suffix}",
        "model_args": {"num_classes": 7},
        **changes,
    }
    return load_backbone(BackboneOptions(**options), (32, 32), True)


def inputs(backbone, image):
    return backbone.inputs(torch.from_numpy(backbone.prepare(image)[None]))


def features(backbone, image=PICTURE):
    with torch.inference_mode():
        return backbone.module(inputs(backbone, image))


def test_every_weights_format_gives_the_same_features(weights):
    loaded = [load(weights, suffix) for suffix in ("safetensors", "pth")]
    found = [features(backbone) for backbone in loaded]
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)
    assert len({b.weights_sha256 for b in loaded}) == 2
    assert loaded[0].n_features == found[0].shape[1]


def test_transform_is_timms_with_the_given_values(weights):
    from timm.data import create_transform

    backbone = load(weights, mean=(0.5,), std=(0.25,), interpolation="bilinear")
    from PIL import Image

    expected = create_transform(
        (3, 32, 32),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        interpolation="bilinear",
        crop_pct=1.0,
    )
    assert torch.equal(inputs(backbone, PICTURE)[0], expected(Image.fromarray(PICTURE)))
    assert backbone.transform["mean"] == [0.5] * 3
    assert backbone.transform["input_size"] == [3, 32, 32]
    assert backbone.prepare(PICTURE[:, :, 0]).shape == (32, 32, 3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"name": "no_such_net"}, "must be scatternet.* or a timm model"),
        ({"weights": Path("/nowhere.pth")}, "--weights must be a file"),
        ({"model_args": {"num_classes": 9}}, "num_classes"),
        ({"model_args": {"num_classes": 7, "no_such": 1}}, "timm cannot create"),
        ({"model_args": {"num_classes": 7, "cache_dir": "/home/me"}}, "HF_HOME"),
        ({"mean": (1.0, 2.0)}, "1 or 3 values"),
        ({"axes": 7}, "from 1 to 6 for 7 classes"),
        ({"channels": 1}, "in_chans=1"),
        ({"interpolation": "none"}, "--interpolation none is not an option"),
    ],
)
def test_bad_options_are_refused(weights, changes, message):
    with pytest.raises(ExtractError, match=message):
        load(weights, **changes)


class Centered(nn.Module):
    def forward(self, x):
        return x.flatten(1) - x.flatten(1).mean(0)


def test_models_that_mix_rows_are_refused(weights):
    with pytest.raises(ExtractError, match="must not mix the rows"):
        check_rows_alone(Centered(), (3, 8, 8))
    frozen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    check_rows_alone(frozen.eval(), (3, 8, 8))
    with pytest.raises(ExtractError, match="must not mix the rows"):
        check_rows_alone(frozen.train(), (3, 8, 8))
    free = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()
    ).eval()
    with pytest.raises(ExtractError, match="must not mix the rows"):
        check_rows_alone(free, (3, 8, 8))
    with pytest.raises(ExtractError, match="--image-size"):
        check_rows_alone(nn.Linear(5, 3), (3, 8, 8))


class Shared(nn.Module):
    """The convolution's output is used twice, so the norm must stay."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_mean += 3

    def forward(self, x):
        y = self.conv(x)
        return (y + self.norm(y)).flatten(1)


def test_folding_keeps_the_function(weights):
    model = resnet(num_classes=0).eval()
    folded = fold_batch_norm(model, (3, 32, 32))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    assert any(isinstance(part, nn.BatchNorm2d) for part in model.modules())
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-4)
    shared = Shared().eval()
    assert fold_batch_norm(shared, (3, 8, 8)) is shared
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    assert fold_batch_norm(plain, (3, 8, 8)) is plain


def test_axes_turn_the_features_of_the_network(weights):
    plain, turned = load(weights), load(weights, axes=4)
    assert (plain.axes, turned.n_features) == (None, 4)
    assert turned.transform["axes"] == 4 and "axes" not in plain.transform
    assert turned.weights_sha256 == plain.weights_sha256
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        features, coordinates = plain.module(x), turned.module(x)
    torch.testing.assert_close(coordinates, features @ turned.axes.T)


def test_a_network_of_gray_images_takes_one_channel():
    options = {"random_weights": True, "image_size": 32}
    gray = BackboneOptions("resnet18", model_args={"in_chans": 1}, **options)
    backbone = load_backbone(gray, (32, 32), True)
    assert features(backbone).shape == (1, 512)
    assert backbone.transform["mean"] == pytest.approx([0.449])
    four = BackboneOptions("resnet18", model_args={"in_chans": 4}, **options)
    with pytest.raises(ExtractError, match="must be 1 or 3, got 4"):
        load_backbone(four, (32, 32), True)


def test_a_vit_takes_another_image_size_by_interpolated_positions(tmp_path):
    from timm.layers import resample_abs_pos_embed

    tiny = {"depth": 1, "embed_dim": 12, "num_heads": 3, "num_classes": 2}
    name = "vit_tiny_patch16_224"
    model: Any = timm.create_model(name, **tiny)
    torch.save(model.state_dict(), tmp_path / "w.pth")
    options = BackboneOptions(
        name, weights=tmp_path / "w.pth", image_size=256, model_args=tiny
    )
    backbone: Any = load_backbone(options, (32, 32), True)
    assert features(backbone).shape == (1, 12)
    resampled = resample_abs_pos_embed(model.pos_embed, new_size=[16, 16])
    torch.testing.assert_close(backbone.module.pos_embed, resampled)
    mixer = BackboneOptions("mixer_s16_224", image_size=256, random_weights=True)
    with pytest.raises(ExtractError, match=r"takes only images of size 224x224"):
        load_backbone(mixer, (32, 32), True)


def test_scatternet_sizes_and_colors():
    one = load_backbone(
        BackboneOptions("scatternet", settings={"scatter_j": (1,)}), (8, 8), False
    )
    assert (one.parts, one.n_features) == (((9, 16),), 144)
    assert one.prepare(PICTURE[:8, :8]).shape == (8, 8, 1)  # color becomes gray
    options = BackboneOptions("scatternet", image_size=16, mean=(0.5,), std=(0.5,))
    resized = load_backbone(options, (20, 30), True)
    assert resized.prepare(PICTURE[:20, :30]).shape == (16, 16, 3)
    assert resized.n_features == 243 * 4 * 4
    white = np.full((40, 20), 255, np.uint8)
    assert inputs(resized, white).unique().tolist() == [1.0]


def test_opponent_colors_turn_the_colors_and_gray_has_only_the_first():
    plain, turned = (
        load_backbone(
            BackboneOptions("scatternet", settings={"scatter_j": (1,)}, colors=c),
            (8, 8),
            True,
        )
        for c in ("rgb", "opponent")
    )
    assert turned.transform == plain.transform | {"color_space": "opponent"}
    image = PICTURE[:8, :8]
    x, y = inputs(plain, image)[0], inputs(turned, image)[0]
    torch.testing.assert_close(y.norm(dim=0), x.norm(dim=0))
    torch.testing.assert_close(y[0], x.sum(0) / 3**0.5)
    gray = np.repeat(image[:, :, :1], 3, axis=2)
    assert inputs(turned, gray)[0, 1:].abs().max() < 1e-6


def test_weights_that_are_not_finite_are_named(weights, tmp_path):
    """Every comparison with NaN fails, also the one that looks for mixed rows."""
    from safetensors.torch import load_file, save_file

    state = load_file(weights / "w.safetensors")
    state["layer1.0.conv1.weight"][0] = torch.nan
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ExtractError, match=r"its weight layer1\.0\.conv1\.weight"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["scatternet", "resnet18"])
@pytest.mark.parametrize("key, value", [("std", 0.0), ("std", -1.0), ("mean", 1e9)])
def test_a_scale_that_no_pixels_have_is_refused_by_its_name(name, key, value):
    options = BackboneOptions(name, image_size=32, **{key: (0.5, value, 0.5)})
    with pytest.raises(
        ExtractError, match=f"--{key} must be from .*got {re.escape(f'{value:g}')}"
    ):
        load_backbone(options, (32, 32), True)


def test_tokens_are_not_normalized_as_channels():
    arguments = {"global_pool": ""}
    for name, last in (("test_vit", True), ("test_resnet", False)):
        options = BackboneOptions(name, model_args=arguments, random_weights=True)
        backbone = load_backbone(options, (0, 0), True)
        assert backbone.channels_last == last
        RowNorm("unit").fitted(backbone)
    options = BackboneOptions("test_vit", model_args=arguments, random_weights=True)
    backbone = load_backbone(options, (0, 0), True)
    for norm in (RowNorm("local"), RowNorm("synthetic"), RowNorm("group", 1)):
        with pytest.raises(ExtractError, match="returns tokens"):
            norm.fitted(backbone)


HUB = {"mean": [0.1, 0.2, 0.3], "std": [0.9] * 3, "interpolation": "bilinear"}
HUB |= {"crop_pct": 0.9, "crop_mode": "squash", "input_size": [3, 48, 40]}


@pytest.fixture
def hub(weights, tmp_path):
    """A folder as of a timm model on the hub, with a transform of its own."""
    folder = tmp_path / "private name"
    folder.mkdir()
    shutil.copy(weights / "w.safetensors", folder / "model.safetensors")
    config = {"architecture": "test_resnet", "num_classes": 7, "pretrained_cfg": HUB}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_config_json_beside_weights_gives_the_transform(hub, weights):
    by_file = BackboneOptions("test_resnet", weights=hub / "model.safetensors")
    with pytest.raises(ExtractError, match="--backbone must be"):
        load_backbone(BackboneOptions(f"Local-Dir:{hub}"), (0, 0), True)
    by_folder = BackboneOptions(f"local-dir:{hub}")
    by_both = BackboneOptions("test_resnet", weights=hub)
    found = [load_backbone(one, (0, 0), True) for one in (by_file, by_folder, by_both)]
    for backbone in found:
        assert HUB.items() <= backbone.transform.items()
        assert (backbone.name, backbone.kwargs) == ("test_resnet", {"num_classes": 7})
        assert "config.json" in backbone.note
        torch.testing.assert_close(features(backbone), features(found[0]))
        public = (backbone.name, backbone.kwargs, backbone.transform)
        assert "private name" not in repr(public)
    own = {"mean": (0.4, 0.4, 0.4), "crop_pct": 1.0, "image_size": 32}
    declared = load_backbone(replace(by_file, **own), (0, 0), True)
    assert declared.transform["mean"] == [0.4] * 3
    assert declared.transform["input_size"] == [3, 32, 32]
    # the recorded options give the same transform where config.json is not
    options = family_of("test_resnet").recorded(found[0].kwargs, found[0].transform)
    options |= {"mean": HUB["mean"], "std": HUB["std"], "interpolation": "bilinear"}
    moved = {"weights": weights / "w.safetensors"}
    again = load_backbone(BackboneOptions("test_resnet", **options | moved), (0, 0), 1)
    assert again.transform == found[0].transform and again.note == ""


def test_config_json_of_another_model_is_told_or_refused(hub):
    text = (hub / "config.json").read_text()
    (hub / "config.json").write_text(text.replace("test_resnet", "test_vit"))
    beside = {"weights": hub / "model.safetensors", "model_args": {"num_classes": 7}}
    backbone = load_backbone(BackboneOptions("test_resnet", **beside), (0, 0), True)
    assert "is not for test_resnet" in backbone.note
    assert backbone.transform["mean"] != HUB["mean"]
    with pytest.raises(ExtractError, match=r"needs a config\.json of timm"):
        load_backbone(BackboneOptions("test_resnet", weights=hub), (0, 0), True)
    (hub / "config.json").write_text('{"architectures": ["ViT"]}')
    with pytest.raises(ExtractError, match=r"needs a config\.json of timm"):
        load_backbone(BackboneOptions(f"local-dir:{hub}"), (0, 0), True)


class _Touch:
    """Create a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_folder_of_weights_runs_no_pickled_code(hub, tmp_path, monkeypatch):
    from timm.models import _helpers

    # as older versions of timm do
    monkeypatch.setattr(_helpers, "_torch_load", unsafe_load, raising=False)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    (hub / "model.safetensors").unlink()
    torch.save({"x": _Touch(tmp_path / "ran")}, hub / "pytorch_model.bin")
    with pytest.raises(ExtractError, match="timm cannot create test_resnet"):
        load_backbone(BackboneOptions("test_resnet", weights=hub), (0, 0), True)
    assert not (tmp_path / "ran").exists()
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def unsafe_load(path, map_location, weights_only):
    return torch.load(path, map_location, weights_only=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, "sets checkpoint_path"),
        ({"model_args": {"pretrained_cfg_overlay": {}}}, "sets pretrained_cfg_overlay"),
        ({"model_args": [1]}, "is damaged"),
        ({"model_args": "x"}, "is damaged"),
        ({"pretrained_cfg": "x"}, "is damaged"),
        ({"pretrained_cfg": {"mean": "x"}}, "is damaged"),
        ({"pretrained_cfg": {"input_size": 5}}, "is damaged"),
        # the file is refused, so the remedy of an option would be wrong
        ({"pretrained_cfg": {"std": [0]}}, r"pixels from 0 to 1, got 0\)\. Move"),
    ],
)
def test_a_hostile_config_json_is_refused_in_a_sentence(hub, change, message):
    config = json.loads((hub / "config.json").read_text()) | change
    (hub / "config.json").write_text(json.dumps(config))
    beside = {"weights": hub / "model.safetensors"}
    with pytest.raises(ExtractError, match=message):
        load_backbone(BackboneOptions("test_resnet", **beside), (0, 0), True)
