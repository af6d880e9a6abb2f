"""Load a local weights file into a model."""

import json
import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from dphead_extract.bounds import is_plain, read_text
from dphead_extract.errors import ExtractError

# what torch's wrappers (DataParallel, compile, averages) put before a tensor's name
_WRAPPERS = re.compile(r"^((module|_orig_mod)\.)+")


class _Ignored:
    """Replace an object of a checkpoint that is not a tensor, such as options."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, shortened."""
    return (str(error).strip().splitlines() or [""])[0][:200]


def config_beside(weights: Path) -> dict[str, Any] | None:
    """Return timm's config.json of a folder of weights; None if missing or invalid.

    `weights` is the folder, or a file in it.
    """
    try:
        config = json.loads(read_text(config_path(weights)))
    except (OSError, ValueError, RecursionError):
        return None
    named = isinstance(config, dict) and isinstance(config.get("architecture"), str)
    return config if named else None


def config_path(weights: Path) -> Path:
    """Return the path of config.json for a folder of weights, or a file in it."""
    return (weights if weights.is_dir() else weights.parent) / "config.json"


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors or pth file into the complete model, with its classifier.

    The file's tensors must fit every layer of the model. Pickled code is never run.

    Raises
    ------
    ExtractError
        If the file is damaged, or its tensors do not fit.
    """
    state = read_state(path)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        # torch writes a line for each tensor that is missing or has a different shape
        lines = [line.strip() for line in str(error).splitlines()]
        found = f"{lines[1][:200]} ({len(lines) - 1} such lines)"
        raise ExtractError(
            f"--weights does not fit the model: {_misfit(model, state, found)}"
        ) from error


def _misfit(model: nn.Module, state: dict[str, torch.Tensor], found: str) -> str:
    """Return how a weights file differs from a model, and what to type.

    `found` is torch's message.
    """
    names: Any = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    # timm's name of the last layer, or names if there are several such layers
    last = tuple(f"{n}." for n in ([names] if isinstance(names, str) else names))
    file, own = (
        # torch also loads files without these counts of batch norms
        {
            name: value.shape
            for name, value in tensors.items()
            if not name.endswith("num_batches_tracked")
        }
        for tensors in (state, model.state_dict())
    )
    key = f"{last[0]}weight" if last else ""
    others = any(
        file.get(name) != own.get(name) and not name.startswith(last)
        for name in file.keys() | own.keys()
    )
    if others and key in file and key in own and file[key] != own[key]:
        return (
            f"{found}. Add --model-arg num_classes={file[key][0]} and the other "
            "arguments of the trained model."
        )
    # a model without a classifier has 0 classes in timm
    theirs, ours = (shapes[key][0] if key in shapes else 0 for shapes in (file, own))
    if others or theirs == ours:
        return (
            f"{found}. Type the --backbone and all --model-arg of the trained model, "
            "such as num_classes=10."
        )
    return (
        f"the file has {theirs} classes, and the model has {ours}. Add --model-arg "
        f"num_classes={theirs}."
    )


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors or pth file by name, without wrappers' names.

    Pickled code is never run. Other objects of a checkpoint, such as a trainer's
    options, are skipped.

    Raises
    ------
    ExtractError
        If the file is damaged, or its state has values that are not tensors.
    """
    try:
        return {_WRAPPERS.sub("", key): value for key, value in _read(path).items()}
    except Exception as error:  # libraries raise many types for damaged files
        found = re.search(r"GLOBAL (\S+)", str(error))
        if found and isinstance(error, UnpicklingError):
            raise ExtractError(
                f"--weights must hold tensors only, and {str(path)!r} also holds "
                f"{found[1]}. If you trust the file, read it with `torch.load(FILE, "
                "weights_only=False)`, and write its tensors with "
                "`safetensors.torch.save_file`."
            ) from error
        raise ExtractError(
            f"--weights must be a safetensors or pth file, got {str(path)!r}, which "
            f"cannot be read: {first_line(error)}. Save the tensors with "
            "`safetensors.torch.save_file`."
        ) from error


def _read(path: Path) -> dict[str, torch.Tensor]:
    if not is_plain(path):
        raise ValueError("not a regular file")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        others = get_unsafe_globals_in_checkpoint(path)
    except ValueError:  # a file from before torch 1.6
        others = []
    with safe_globals([(_Ignored, name) for name in others]):
        state = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict_ema", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError("values that are not tensors")
    return state


def check_finite(model: nn.Module, outputs: Any, what: str) -> None:
    """Raise ExtractError if a model's outputs for public inputs are not finite.

    The message names the first tensor of weights that is not finite.
    """
    if not isinstance(outputs, torch.Tensor) or bool(outputs.isfinite().all()):
        return
    bad = [
        name
        for name, value in model.state_dict().items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    ]
    remedy = "although its weights are. Choose another model."
    if bad:
        remedy = f"as its weight {bad[0]} has NaN or infinity. Use other weights."
    raise ExtractError(
        f"The network's {what} of random images are not finite, {remedy}"
    )
