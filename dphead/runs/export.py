"""What was trained, on disk under digests: NAME.safetensors, NAME.json, no pickle."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from dphead.privacy.ledger import write_durably
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import LinearHead

FORMAT = 1
DIGESTS = ("tensors_sha256", "sha256")  # of NAME.safetensors, and of NAME.json's rest


def save_head(folder: str | Path, head: LinearHead, facts: dict[str, Any]) -> None:
    """Write a head, durably.

    facts: JSON data kept beside it: class_names, feature_space, backbone, ... (all
    public).

    Of error bars, the weights' standard errors are written; those of scores need the
    fitted head itself.
    """
    tensors = {"weights": head.weights, "intercept": head.intercept}
    if head.error_bars is not None:
        tensors["weights_std"], tensors["intercept_std"] = head.weights_std()
    for name in ("center", "scale"):
        value = getattr(head.transform, name)
        if value is not None:
            tensors[name] = value
    meta = {"loss": head.loss, "unit_norm": head.transform.unit_norm, **facts}
    write_sealed(Path(folder), "head", tensors, meta)


def load_head(folder: str | Path) -> tuple[LinearHead, dict[str, Any]]:
    """Read a head and its facts. Raises ValueError if the folder does not hold one, or
    one that was changed.
    """
    tensors, facts = read_sealed(Path(folder), "head")
    try:
        transform = RowTransform(
            facts["unit_norm"], tensors.get("center"), tensors.get("scale")
        )
        weights, intercept = tensors["weights"], tensors["intercept"]
        return LinearHead(weights, intercept, transform, facts["loss"]), facts
    except (KeyError, TypeError) as error:
        raise _missing(Path(folder), "head", error) from error


def write_sealed(
    folder: Path, name: str, tensors: dict[str, np.ndarray], facts: dict[str, Any]
) -> None:
    """Write NAME.safetensors and NAME.json, durably, with digests of both."""
    from safetensors.numpy import save

    held = save({k: np.ascontiguousarray(v) for k, v in tensors.items()})
    write_durably(folder / f"{name}.safetensors", lambda file: file.write(held))
    meta = json.loads(json.dumps({"format": FORMAT, **facts}))
    meta["tensors_sha256"] = hashlib.sha256(held).hexdigest()
    meta["sha256"] = _digest(meta)
    text = json.dumps(meta, indent=2, sort_keys=True) + "\n"
    write_durably(folder / f"{name}.json", lambda file: file.write(text.encode()))


def read_sealed(
    folder: Path, name: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors and facts of `write_sealed`.

    ValueError if they are not there, of another format, or not under their digests;
    files of before there were digests have none.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        facts = json.loads((folder / f"{name}.json").read_text())
        held = (folder / f"{name}.safetensors").read_bytes()
        if facts["format"] != FORMAT:
            raise ValueError(
                f"the {name}'s format must be {FORMAT}, got format={facts['format']}. "
                "Update dphead."
            )
        found = (hashlib.sha256(held).hexdigest(), _digest(facts))
        kept = tuple(facts.get(key) for key in DIGESTS)
        if kept not in (found, (None, None)):
            raise ValueError(
                f"{name}.json and {name}.safetensors must be as they were written, got "
                f"others in {folder}. Put back a copy, or train again."
            )
        return load(held), facts
    except (
        OSError,
        KeyError,
        TypeError,
        json.JSONDecodeError,
        SafetensorError,
    ) as error:
        raise _missing(folder, name, error) from error


def _digest(facts: dict[str, Any]) -> str:
    rest = {key: value for key, value in facts.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _missing(folder: Path, name: str, error: Exception) -> ValueError:
    return ValueError(
        f"a run folder must hold {name}.json and {name}.safetensors, got path={folder} "
        f"({error!r}). {'Fit' if name == 'head' else 'Train'} first."
    )
