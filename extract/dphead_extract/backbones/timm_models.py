"""Build any timm model, with weights from the hub or from a local file."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from dphead_extract.backbones.axes import class_axes
from dphead_extract.backbones.base import Backbone, BackboneOptions, Family
from dphead_extract.backbones.families import TRAITS, check_scale
from dphead_extract.backbones.folding import fold_batch_norm
from dphead_extract.backbones.weights import (
    config_beside,
    config_path,
    first_line,
    load_weights,
)
from dphead_extract.compiler import import_timm
from dphead_extract.errors import ExtractError
from dphead_extract.images import crops, with_channels, without_ends

# environment variables of torch.load; the first overrides the caller's argument
_PICKLES = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
_LOCAL = "local-dir:"  # timm's name for a folder with weights and config.json
_TRANSFORM = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")


class TimmFamily(Family):
    """Build a timm model by its name."""

    def build(
        self, options: BackboneOptions, size: tuple[int, int], has_color: bool
    ) -> Backbone:
        """Return a model without its classifier, with the transform of its input."""
        options, _, note = _with_config(options)
        model, weights_sha256 = timm_model(options)
        axes = None
        if options.axes is not None:
            classifier: Any = getattr(model, "get_classifier", nn.Identity)()
            axes = class_axes(classifier, options.axes)
        if hasattr(model, "reset_classifier"):
            model.reset_classifier(0)  # type: ignore[operator]
        transform, prepare = _timm_transform(options, model)
        channels, height, width = transform["input_size"]
        mean, std = (
            torch.tensor(transform[key])[:, None, None] for key in ("mean", "std")
        )
        return Backbone(
            name=options.name,
            kwargs=dict(options.model_args),
            weights_sha256=weights_sha256,
            transform=transform,
            module=model,
            prepare=prepare,
            input_shape=(channels, height, width),
            mean=mean,
            std=std,
            axes=axes,
            weights=options.weights,
            note=note,
        )

    def optimized(self, module: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
        """Return the network with batch norms folded, in channels-last order."""
        folded = fold_batch_norm(module, shape)
        return folded.to(memory_format=torch.channels_last)

    def recorded(
        self, kwargs: dict[str, Any], transform: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the options that a features file recorded."""
        return {
            "model_args": kwargs,
            "crop_pct": transform["crop_pct"],
            "crop_mode": transform.get("crop_mode"),
            "image_size": tuple(transform["input_size"][1:]),
        }


def timm_model(options: BackboneOptions) -> tuple[nn.Module, str]:
    """Return the model with its weights and classifier, and the weights' sha256.

    Raises
    ------
    ExtractError
        If the name is unknown, if weights are unavailable or do not fit, or if the
        model cannot take images of the declared size.
    """
    options, config, _ = _with_config(options)
    model: Any = _build(options, config)
    if options.weights is None or options.weights.is_dir():
        sha256 = _state_sha256(model)
    else:
        load_weights(model, options.weights)
        with options.weights.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    _resize_input(model, options)
    return model, sha256


def _state_sha256(model: nn.Module) -> str:
    """Return the sha256 over names and values of a model's tensors.

    The digest identifies weights that do not come from one file.
    """
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(
            key.encode() + value.detach().cpu().contiguous().numpy().tobytes()
        )
    return digest.hexdigest()


def _resize_input(model: Any, options: BackboneOptions) -> None:
    """Adapt a model that takes one image size to the declared image size.

    Raises
    ------
    ExtractError
        If the model cannot take images of the declared size.
    """
    config = getattr(model, "pretrained_cfg", None) or {}
    trained = options.model_args.get("img_size", config.get("input_size", (0,))[1:])
    trained = (trained, trained) if isinstance(trained, int) else tuple(trained)
    if (
        options.sides in (None, trained)
        or not config.get("fixed_input_size")
        or options.model_args.get("dynamic_img_size")
    ):
        return
    try:
        model.set_input_size(img_size=options.sides)
    except (AttributeError, AssertionError, ValueError, RuntimeError) as error:
        text = "x".join(map(str, trained))
        raise ExtractError(
            f"{options.name} takes only images of size {text}, got "
            f"--image-size {','.join(map(str, options.sides or ()))} "
            f"({first_line(error)}). Remove --image-size."
        ) from error


def _with_config(
    options: BackboneOptions,
) -> tuple[BackboneOptions, dict[str, Any], str]:
    """Return the options, completed by the config.json beside local weights.

    A folder's path is private. Therefore the model's name replaces the name
    "local-dir:FOLDER", and `weights` holds the folder. Declared options take precedence
    over config.json.

    Returns
    -------
    BackboneOptions
        The options.
    dict
        The transform in config.json; {} without a config.json of this model.
    str
        Text on the use of config.json; private.

    Raises
    ------
    ExtractError
        If a folder has no config.json of the model, if config.json is damaged or names
        a model or arguments that timm lacks, or if weights are declared twice.
    """
    name, weights = options.name, options.weights
    if name.startswith(_LOCAL):
        if weights is not None:
            raise ExtractError(
                f"--weights cannot be combined with --backbone {_LOCAL}FOLDER, which "
                "has its own weights. Type --backbone MODEL."
            )
        weights = Path(name.removeprefix(_LOCAL))
    if weights is None:
        return options, {}, ""
    path, config = config_path(weights), config_beside(weights)
    if config is not None and name.startswith(_LOCAL):
        name = config["architecture"]
    if config is None or config["architecture"] != name.split(".")[0]:
        if weights.is_dir() or name.startswith(_LOCAL):
            raise ExtractError(
                "A folder of weights needs a config.json of timm, with the "
                f"architecture of --backbone, got {str(weights)!r}. Type the path of a "
                "file of weights, and its --mean, --std and --image-size."
            )
        return options, {}, f"{path} is not for {name}" if path.is_file() else ""
    timm = import_timm()
    if not timm.is_model(name):
        raise ExtractError(
            f"timm has no model {name!r}, which {str(path)!r} names. Install a newer "
            "timm."
        )
    own = config.get("pretrained_cfg") or config
    arguments = config.get("model_args") or {}
    # a file of other software, which may contain any JSON
    try:
        found = {key: own[key] for key in _TRANSFORM if own.get(key) is not None}
        found = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        check_scale(found.get("mean", ()), found.get("std", ()))
        size = found.get("input_size", (0,))[1:]
        foreign = _foreign(arguments)
        arguments = dict(arguments)
    except (TypeError, ValueError, AttributeError) as error:
        # without the remedy of `check_scale`, which is for options
        why = first_line(error).partition(". ")[0]
        raise ExtractError(
            f"{str(path)!r} is damaged ({why}). Move the weights to a folder without "
            "it, and type --mean, --std and --image-size."
        ) from error
    if foreign:
        raise ExtractError(
            f"{str(path)!r} sets {foreign[0]}, which is not an argument of a model. "
            "Remove this line of the file."
        )
    if config.get("num_classes") is not None:
        arguments["num_classes"] = config["num_classes"]
    usual = timm.get_pretrained_cfg(name)
    if usual and usual.fixed_input_size and size and size != usual.input_size[1:]:
        arguments["img_size"] = size
    arguments |= options.model_args
    options = replace(options, name=name, weights=weights, model_args=arguments)
    return options, found, f"by {path}"


def _foreign(arguments: dict[str, Any]) -> list[str]:
    """Return the names of arguments that `timm.create_model` itself declares.

    Such an argument (checkpoint_path) may hold the path of a file, which the head and
    the report would publish.
    """
    parameters = signature(import_timm().create_model).parameters
    return sorted(parameters.keys() & arguments.keys())


def _build(options: BackboneOptions, config: dict[str, Any]) -> nn.Module:
    """Return a model with weights of the hub or of a folder, else random weights.

    The weights are random for `random_weights`, and for a file of weights, which the
    caller loads. `config` is the transform that config.json gives for local weights.

    Raises ExtractError if the name, an argument or the path of the weights is wrong, or
    if timm fails.
    """
    timm = import_timm()
    # timm looks up the names of a hub itself. It also takes "Local-Dir:PATH", but the
    # path must not be published as the name.
    if not options.name.startswith("hf-hub:") and not timm.is_model(options.name):
        raise ExtractError(
            f"--backbone must be {', '.join(TRAITS)} or a timm model, got "
            f"{options.name!r}. Type a name of `timm.list_models()`."
        )
    if foreign := _foreign(options.model_args):
        raise ExtractError(
            f"--model-arg {foreign[0]} is not an argument of a model. Remove it. Use "
            "--weights for a file of weights, and the variable HF_HOME for a cache."
        )
    local = options.weights is not None or options.random_weights
    folder = options.weights if options.weights and options.weights.is_dir() else None
    if options.weights and not folder and not options.weights.is_file():
        raise ExtractError(
            f"--weights must be a file, got {str(options.weights)!r}. Type the path of "
            "a file of weights, or --random-weights for a trial."
        )
    try:
        with torch.random.fork_rng(devices=[]), _tensors_only():
            torch.manual_seed(0)  # seed of `random_weights`
            name = f"{_LOCAL}{folder}" if folder else options.name
            given = {"pretrained_cfg_overlay": config} if config and not folder else {}
            pretrained = not local or folder is not None
            arguments = given | options.model_args
            return timm.create_model(name, pretrained=pretrained, **arguments)
    except Exception as error:
        if local or isinstance(error, (TypeError, AssertionError)):
            raise ExtractError(
                f"timm cannot create {options.name}: {first_line(error)}. Compare "
                "--model-arg with timm's documentation of the model."
            ) from error
        raise ExtractError(
            f"the hub weights of {options.name} cannot be loaded "
            f"({type(error).__name__}: {first_line(error)}). Go online, and unset "
            "HF_HUB_OFFLINE if it is set. Or type another --backbone, or --weights "
            "FILE with a local file."
        ) from error


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Let torch.load read tensors only; older versions of timm would run pickles."""
    before = {name: os.environ.pop(name, None) for name in _PICKLES}
    os.environ[_PICKLES[0]] = "1"
    try:
        yield
    finally:
        del os.environ[_PICKLES[0]]
        os.environ.update({k: v for k, v in before.items() if v is not None})


_Transform = Callable[[np.ndarray], np.ndarray]


def _timm_transform(
    options: BackboneOptions, model: nn.Module
) -> tuple[dict[str, Any], _Transform]:
    from timm import data as timm_data

    data: Any = timm_data  # timm does not declare its exports to type checkers

    config = data.resolve_model_data_config(model)
    channels = options.model_args.get("in_chans", config["input_size"][0])
    if channels not in (1, 3):
        raise ExtractError(
            f"--model-arg in_chans must be 1 or 3, got {channels}. Use 3 for colors."
        )
    config["input_size"] = (channels, *config["input_size"][1:])
    if channels == 1:  # use the mean over the colors
        config |= {key: (fmean(config[key]),) for key in ("mean", "std")}
    if options.channels not in (None, channels):
        raise ExtractError(
            f"--channels must be {channels} for {options.name}, got "
            f"{options.channels}. Remove --channels, or give --model-arg "
            f"in_chans={options.channels}."
        )
    overrides = {
        "mean": options.mean,
        "std": options.std,
        "interpolation": options.interpolation,
        "crop_pct": options.crop_pct,
        "crop_mode": options.crop_mode,
        "input_size": options.sides and (channels, *options.sides),
    }
    config |= {key: value for key, value in overrides.items() if value is not None}
    for key in ("mean", "std"):
        if len(config[key]) not in (1, channels):
            raise ExtractError(
                f"--{key} must have 1 or {channels} values, got {len(config[key])}."
            )
        config[key] = tuple(config[key]) * (channels if len(config[key]) == 1 else 1)
    config = {key: config[key] for key in _TRANSFORM}
    _, height, width = config["input_size"]
    resize = data.create_transform(**config, is_training=False, normalize=False)
    *steps, _ = resize.transforms  # the last transform converts to a tensor

    def prepare(image: np.ndarray) -> np.ndarray:
        picture: Any = with_channels(image, channels)
        if crops(config):
            picture = without_ends(picture, height, width)
        for step in steps:
            picture = step(picture)
        return np.asarray(picture).reshape(height, width, channels)

    record = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in config.items()
    }
    if options.random_weights:
        record["random_weights"] = True
    return {**record, "library": "timm"}, prepare
