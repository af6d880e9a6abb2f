"""Export a network of `dphead finetune`, from images or feature maps to scores."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dphead.export.heads import write_code
from dphead.export.networks import (
    Answers,
    answered,
    in_inference,
    load_graph,
    random_rows,
    save_tensors,
    timm_scores,
    write_graph,
    write_timm_config,
)
from dphead.export.torch_head import NormalizedNetwork, load_network
from dphead.export.trained import (
    Format,
    Trained,
    Written,
    write_plain_json,
)
from dphead.finetune import saved


def _network(trained: Trained) -> tuple[NormalizedNetwork, dict[str, Any]]:
    """Return the network with its normalization, in eval mode, and its head.json."""
    own, state, facts = saved.read_network(trained.run, model=trained.model)
    spec = own.spec
    pixels = [np.reshape(v, (-1, 1, 1)) for v in (spec.mean, spec.std)]
    mean, std = pixels if spec.pixels else (np.zeros(1), np.ones(1))
    if state.center is not None:
        mean = state.center.reshape(spec.shape)
    if state.scale is not None:
        with np.errstate(divide="ignore"):  # a scale of zero gives infinity
            std = 1 / state.scale.reshape(spec.shape)
    center, scale = torch.tensor(mean), torch.tensor(std)
    tokens = spec.model.vocabulary is not None
    network = NormalizedNetwork(own.model, spec.shape, center, scale, tokens)
    # the resizing to the network's size, under timm's keys
    resize = {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bicubic"}
    shape = {"input_size": list(spec.shape), **resize}
    extraction = trained.facts["extraction"]
    named = {
        "class_names": facts["class_names"],
        "network": asdict(spec.model) | {"weights": None, "layers": ()},
        "shape": spec.shape,
        "scales": [list(mean.shape), list(std.shape)],
        "features": extraction | {"transform": extraction["transform"] | shape},
    }
    return network.eval(), named


def _answered(network: NormalizedNetwork, takes: str, facts: dict[str, Any]) -> Written:
    """Return random input for the network, with its scores."""
    rows = random_rows(network.shape)
    if network.tokens:
        rows = (rows * facts["network"]["vocabulary"]).floor()
    given = rows if takes == "images" else rows.flatten(1)
    return answered(Answers(network), given, takes)


def _write_torch(trained: Trained, folder: Path) -> Written:
    """Write model.safetensors, head.json, and a head.py that loads them."""
    network, facts = _network(trained)
    takes = _write_facts(trained, folder, facts)
    save_tensors(network, trained, folder)
    write_code("torch_head.py", folder / "head.py")
    write_code("../finetune/architectures.py", folder / "architectures.py")
    return _answered(network, takes, facts)


def _load_torch(trained: Trained, folder: Path) -> Callable[[np.ndarray], Any]:
    model = None
    if trained.is_own:  # the files do not hold the module's code
        model = saved.read_network(trained.run, model=trained.model)[0].model
    return in_inference(load_network(folder, model)[0])


def _write_onnx(trained: Trained, folder: Path) -> Written:
    """Write model.onnx, which also normalizes its input."""
    network, facts = _network(trained)
    written = _answered(network, _write_facts(trained, folder, facts), facts)
    write_graph(trained, folder, Answers(network), written)
    return written


def _write_timm(trained: Trained, folder: Path) -> Written:
    """Write config.json and model.safetensors, for `timm.create_model`.

    Raises ValueError if the network is not a timm model, or has group norms in place of
    batch norms.
    """
    import timm

    network, facts = _network(trained)
    name = facts["network"]["model"]
    model: Any = network.model
    if not timm.is_model(name):
        raise ValueError(
            f"--to timm cannot export {name}, which is not a timm model. Use --to "
            "torch or onnx."
        )
    if facts["network"]["batch_norm"] == "group":
        raise ValueError(
            f"--to timm cannot export {name} with group norms in place of batch norms. "
            "Use --to torch or onnx."
        )
    takes = _write_facts(trained, folder, facts)
    save_tensors(model, trained, folder)
    keys = ("input_size", "crop_pct", "crop_mode", "interpolation")
    transform = {key: facts["features"]["transform"][key] for key in keys}
    transform |= {k: getattr(network, k).flatten().tolist() for k in ("mean", "std")}
    built: Any = model.pretrained_cfg
    arguments: dict[str, Any] = {"in_chans": network.shape[0]}
    # otherwise timm would build the network for the size of the training images
    if built.get("fixed_input_size"):
        arguments["img_size"] = list(built["input_size"][1:])
    made = {
        "architecture": name,
        "num_features": model.num_features,
        "model_args": arguments,
        "transform": transform,
    }
    write_timm_config(folder, made, facts["class_names"], model)
    return _answered(network, takes, facts)


def _load_timm(trained: Trained, folder: Path) -> Callable[[np.ndarray], Any]:
    import timm

    loaded: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    return timm_scores(loaded, loaded.pretrained_cfg)


TORCH = Format(_write_torch, _load_torch)
ONNX = Format(_write_onnx, load_graph)
TIMM = Format(_write_timm, _load_timm)


def _write_facts(trained: Trained, folder: Path, facts: dict[str, Any]) -> str:
    """Write head.json, for images also prepare.py, and return the name of the input."""
    write_plain_json(folder / "head.json", facts)
    if not trained.facts["network"]["pixels"]:
        return "features"
    write_code("pictures.py", folder / "prepare.py")
    return "images"
