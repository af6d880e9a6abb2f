"""Load a local weights file into a model, and identify weights by their sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from dphead_extract.bounds import is_plain
from dphead_extract.errors import ExtractError


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, shortened."""
    return (str(error).strip().splitlines() or [""])[0][:200]


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors or pth file into the complete model, with its classifier.

    The file's tensors must fit every layer of the model. Pickled code is never run.

    Raises
    ------
    ExtractError
        If the file is damaged, or its tensors do not fit.
    """
    try:
        state = read_state(path)
    except Exception as error:
        raise ExtractError(
            f"--weights must be a safetensors or pth file. Reading {str(path)!r} "
            f"failed: {first_line(error)}."
        ) from error
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        # torch names every tensor that is missing or has another shape, a line each
        lines = [line.strip() for line in str(error).splitlines()]
        raise ExtractError(
            f"--weights does not fit the model: {lines[1][:200]} ({len(lines) - 1} "
            "such lines). Give --model-arg num_classes=N and the other arguments of "
            "the trained model."
        ) from error


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors or pth file by name.

    Pickled code is never run. An unusable file can raise any exception.
    """
    if not is_plain(path):
        raise ValueError("no plain file")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict_ema", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    found = {key.removeprefix("module."): value for key, value in state.items()}
    if not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError("values that are no tensors")
    return found


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_sha256(model: nn.Module) -> str:
    """Return the sha256 over names and values of a model's tensors.

    The digest identifies weights that came from the hub, not from a file.
    """
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(
            key.encode() + value.detach().cpu().contiguous().numpy().tobytes()
        )
    return digest.hexdigest()
