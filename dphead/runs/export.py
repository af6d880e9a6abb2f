"""A head on disk: `head.safetensors` and `head.json`, no pickle."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dphead.privacy.ledger import write_durably
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import LinearHead

FORMAT = 1


def save_head(folder: str | Path, head: LinearHead, facts: dict[str, Any]) -> None:
    """Write a head, durably.

    facts: JSON data kept beside it: class_names, feature_space, backbone, ... (all
    public).

    Of error bars, the weights' standard errors are written; those of scores need the
    fitted head itself.
    """
    from safetensors.numpy import save

    tensors = {"weights": head.weights, "intercept": head.intercept}
    if head.error_bars is not None:
        tensors["weights_std"], tensors["intercept_std"] = head.weights_std()
    for name in ("center", "scale"):
        value = getattr(head.transform, name)
        if value is not None:
            tensors[name] = value
    folder = Path(folder)
    held = save({k: np.ascontiguousarray(v) for k, v in tensors.items()})
    write_durably(folder / "head.safetensors", lambda file: file.write(held))
    meta = {
        "format": FORMAT,
        "loss": head.loss,
        "unit_norm": head.transform.unit_norm,
        **facts,
    }
    text = json.dumps(meta, indent=2, sort_keys=True) + "\n"
    write_durably(folder / "head.json", lambda file: file.write(text.encode()))


def load_head(folder: str | Path) -> tuple[LinearHead, dict[str, Any]]:
    """Read a head and its facts. Raises ValueError if the folder does not hold one."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = Path(folder)
    try:
        facts = json.loads((folder / "head.json").read_text())
        tensors = load_file(folder / "head.safetensors")
        if facts["format"] != FORMAT:
            raise ValueError(
                f"the head's format must be {FORMAT}, got format={facts['format']}. "
                "Update dphead."
            )
        transform = RowTransform(
            facts["unit_norm"], tensors.get("center"), tensors.get("scale")
        )
        return LinearHead(
            tensors["weights"], tensors["intercept"], transform, facts["loss"]
        ), facts
    except (
        OSError,
        KeyError,
        TypeError,
        json.JSONDecodeError,
        SafetensorError,
    ) as error:
        raise ValueError(
            f"a run folder must hold head.json and head.safetensors, got path={folder} "
            f"({error!r}). Fit first."
        ) from error
