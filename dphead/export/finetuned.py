"""Export a network of `dphead finetune`, from images or feature maps to scores.

Each writer loads its files again. It compares their scores with the network's.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dphead.export.heads import write_code
from dphead.export.networks import (
    TRIED,
    Answers,
    compare,
    save_tensors,
    timm_config,
    write_graph,
)
from dphead.export.torch_head import NormalizedNetwork, load_network
from dphead.export.trained import Trained, write_plain_json
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
        with np.errstate(divide="ignore"):  # a scale of zero
            std = 1 / state.scale.reshape(spec.shape)
    network = NormalizedNetwork(
        own.model, spec.shape, torch.tensor(mean), torch.tensor(std)
    )
    # resizing to the network's size, in timm's words
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


def _given(network: NormalizedNetwork, pixels: bool) -> Tensor:
    """Return random input for the network."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand((TRIED, *network.shape), generator=generator)
    return rows if pixels else rows.flatten(1)


def write_network_torch(trained: Trained, folder: Path) -> str:
    """Write model.safetensors, head.json, and a head.py that loads them."""
    network, facts = _network(trained)
    takes = _write_facts(trained, folder, facts)
    save_tensors(network, trained, folder)
    write_code("torch_head.py", folder / "head.py")
    write_code("../finetune/architectures.py", folder / "architectures.py")
    own = network.model if ":" in facts["network"]["model"] else None
    loaded, _ = load_network(folder, own)
    given = _given(network, takes == "images")
    with torch.inference_mode():
        compare(network(given), loaded(given), "--to onnx")
    return takes


def write_network_onnx(trained: Trained, folder: Path) -> str:
    """Write model.onnx, which also normalizes its input."""
    network, facts = _network(trained)
    takes = _write_facts(trained, folder, facts)
    given = _given(network, takes == "images")
    return write_graph(trained, folder, Answers(network), given, takes)


def write_network_timm(trained: Trained, folder: Path) -> str:
    """Write config.json and model.safetensors, for `timm.create_model`.

    Raises
    ------
    ValueError
        If the network is not a timm model.
    """
    import timm

    network, facts = _network(trained)
    name = facts["network"]["model"]
    model: Any = network.model
    if not timm.is_model(name):
        raise ValueError(
            f"--to timm needs a network of timm, got {name}. Use --to torch or onnx."
        )
    takes = _write_facts(trained, folder, facts)
    save_tensors(model, trained, folder)
    keys = ("input_size", "crop_pct", "crop_mode", "interpolation")
    transform = {key: facts["features"]["transform"][key] for key in keys}
    transform |= {k: getattr(network, k).flatten().tolist() for k in ("mean", "std")}
    built: Any = model.pretrained_cfg
    arguments: dict[str, Any] = {"in_chans": network.shape[0]}
    if built.get("fixed_input_size"):  # else timm builds the size of the images
        arguments["img_size"] = list(built["input_size"][1:])
    made = {
        "architecture": name,
        "num_features": model.num_features,
        "model_args": arguments,
        "transform": transform,
    }
    write_plain_json(
        folder / "config.json", timm_config(made, facts["class_names"], model)
    )
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    given = _given(network, pixels=True)
    with torch.inference_mode():
        theirs = loaded((given - network.mean) / network.std)
        compare(network(given), theirs, "--to onnx")
    return takes


def _write_facts(trained: Trained, folder: Path, facts: dict[str, Any]) -> str:
    """Write head.json, for images also prepare.py, and return the name of the input."""
    write_plain_json(folder / "head.json", facts)
    if not trained.facts["network"]["pixels"]:
        return "features"
    write_code("pictures.py", folder / "prepare.py")
    return "images"
