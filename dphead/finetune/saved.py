"""Save, load, measure and use a trained network."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dphead_extract.images import PixelRange
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.columns import Columns
from dphead_extract.sources.opening import open_source
from torch import nn

from dphead.analysis.metrics import evaluate_labeled
from dphead.analysis.sealed import explain_damage, read_sealed, write_sealed
from dphead.data.features import load_features
from dphead.finetune.adapters import merged
from dphead.finetune.images import Opened, load_images
from dphead.finetune.models import flat
from dphead.finetune.network import Network, NetworkSpec, network_rows
from dphead.finetune.processes import usable_device
from dphead.finetune.settings import ModelSpec
from dphead.finetune.solver import TrainingState
from dphead.fit import files

# settings of `ModelSpec` that only training uses, with their values after it
_UNUSED: dict[str, Any] = {"weights": None, "layers": (), "adapter": "none"}


def save_network(
    out: Path, network: Network, state: TrainingState, facts: dict[str, Any]
) -> str:
    """Write model.safetensors and model.json, and return the sha256 of the tensors.

    model.safetensors holds all weights, and the transform of the rows, if any. The
    trained weights are `state.average`: the last weights or their moving average.
    Low-rank updates are added to the weights, so a reader needs no adapter.
    """
    network.gradients.set(torch.from_numpy(state.average).to(network.device))
    tensors = {
        # numpy has no bfloat16
        f"model.{k}": (
            v.float() if v.is_floating_point() and v.itemsize < 4 else v
        ).numpy(force=True)
        for k, v in merged(network.model).state_dict().items()
    }
    tensors |= {
        k: v for k in ("center", "scale") if (v := getattr(state, k)) is not None
    }
    made = {"network": asdict(network.spec), **facts}
    made["network"]["model"]["weights"] = None  # a path may contain a user's name
    return write_sealed(out, "model", tensors, made)


def read_network(
    folder: str | Path,
    device: str = "cpu",
    model: str | nn.Module | None = None,
) -> tuple[Network, TrainingState, dict[str, Any]]:
    """Return (network, its weights and transform, model.json) of a run folder.

    Pass them to `scores` to predict.

    Parameters
    ----------
    folder : str or Path
        The run folder.
    device : str, default "cpu"
        Device of the network; "auto" uses a GPU if there is one.
    model : str or nn.Module, optional
        The user's own network, as in training: its package.module:function, or a module
        with the same architecture.

    Raises
    ------
    ValueError
        If the folder holds no network of this format, a modified one or an unfinished
        run, or if the user's own network is not given. Loading a run folder alone never
        runs a user's code.
    """
    tensors, facts = read_sealed(Path(folder), "model")
    with explain_damage("network", folder):
        spec = _spec(facts)
        name = spec.model.model
        if spec.model.of_user and model is None:
            raise ValueError(
                f"the network of {folder} is built by code that is not in the folder. "
                f"Pass --model {name} (in Python, model= and a module)."
            )
        if isinstance(model, str) and model != name:
            raise ValueError(
                f"--model must be {name}, as in training, got {model!r}. Pass {name}."
            )
        network = Network(
            spec,
            usable_device(device),
            module=model if isinstance(model, nn.Module) else None,
        )
        network.model.load_state_dict(
            {
                k.removeprefix("model."): torch.from_numpy(v)
                for k, v in tensors.items()
                if k.startswith("model.")
            }
        )
        weights = flat(network.model).double().cpu().numpy()
    progress = TrainingState.start(
        weights, center=tensors.get("center"), scale=tensors.get("scale")
    )
    return network, progress, facts


def _spec(facts: dict[str, Any]) -> NetworkSpec:
    """Return the network described by model.json.

    Raises TypeError or KeyError if the description is invalid.
    """
    spec = dict(facts["network"])
    model = ModelSpec(**(spec.pop("model") | _UNUSED))
    # shape, mean and std are tuples, but lists in JSON
    spec |= {
        key: tuple(value) for key, value in spec.items() if isinstance(value, list)
    }
    names = facts["class_names"]
    if not isinstance(names, list) or len(names) != spec["n_classes"]:
        raise TypeError("class_names must have one name for each class")
    return NetworkSpec(model, **spec)


def open_rows(
    network: Network,
    facts: dict[str, Any],
    source: Path,
    split: str | None,
    layout: str | None = None,
    measured: bool = False,
    columns: Columns | None = None,
) -> Opened:
    """Read images or feature maps for a network.

    Images are converted to the network's size and channels.

    Parameters
    ----------
    network : Network
        The network.
    facts : dict
        Its model.json.
    source : Path
        Images or a features file, as in training.
    split : str or None
        The split to read.
    layout : str, optional
        Meaning of the folders of image files.
    measured : bool, default False
        Whether rows are measured, so at least one needs a label of the classes.
    columns : Columns, optional
        Roles of the columns of a table of images.

    Raises
    ------
    ValueError
        If the source does not match the network, or `measured` leaves no row.
    """
    spec = network.spec
    names = facts["class_names"]
    if not source.exists():
        raise ValueError(f"{source} does not exist. Pass images or a features file.")
    if files.is_features_file(source) == spec.pixels:
        wanted = "images" if spec.pixels else "a features file"
        raise ValueError(
            f"the network was trained on {wanted}, and {source} is something else. "
            f"Pass {wanted}."
        )
    if spec.pixels:
        channels, *size = spec.shape
        classes = Classes(names, ignore_labels=not measured, allow_unlabeled=True)
        declared = PixelRange.of(facts.get("pixels", {}))
        opened, _ = load_images(
            open_source(source, classes, split, layout, columns, declared),
            (size[0], size[1]),
            channels,
        )
    else:
        files.check_layout(source, layout, columns or Columns())
        rows, file = load_features(source, split, memory=0)
        with file:
            files.check_features(file, facts["feature_space"], int(np.prod(spec.shape)))
            classes = names if measured else None
            x, y, groups = files.measured_rows(rows, file, classes)
            opened = Opened(x, y, rows.valid, files.row_names(source, split), groups)
    if measured:
        opened.check_labeled(len(names), source)
    return opened


def scores(network: Network, state: TrainingState, rows: Opened) -> np.ndarray:
    """Return the scores (n, n_classes) of rows by the trained weights.

    Rows go through the transform first. Unreadable rows, and rows that are not finite,
    get NaN.
    """
    x = rows.x if network.spec.pixels else network_rows(state.transform, rows.x)
    found = network.scores(state.average, x)
    found[~rows.readable] = np.nan
    return found


def measure_network(
    network: Network, state: TrainingState, rows: Opened
) -> dict[str, Any]:
    """Return metrics of the trained weights on the rows with a label."""
    found = scores(network, state, rows)
    return evaluate_labeled(found, rows.y, "softmax", rows.groups)
