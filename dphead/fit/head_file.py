"""Save and load heads: tensors and JSON values protected by digests."""

from pathlib import Path
from typing import Any

from dphead.analysis.sealed import explain_damage, read_sealed, write_sealed
from dphead.privacy.axes import PublicAxes
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import LinearHead

# required entries of head.json, with their types
_FACTS = {"unit_norm": bool, "loss": str, "class_names": list, "feature_space": str}


def save_head(folder: str | Path, head: LinearHead, facts: dict[str, Any]) -> str:
    """Write a head durably and return the SHA-256 of its tensors' file.

    Parameters
    ----------
    folder : str or Path
        Folder for head.safetensors and head.json.
    head : LinearHead
        The head. Standard errors of weights are written, but not standard errors of
        scores.
    facts : dict
        Public JSON data to store with it: class_names, feature_space, ...

    Returns
    -------
    str
        The digest.
    """
    tensors = {"weights": head.weights, "intercept": head.intercept}
    if head.error_bars is not None:
        tensors["weights_std"], tensors["intercept_std"] = head.weights_std()
    for name in ("center", "scale"):
        value = getattr(head.transform, name)
        if value is not None:
            tensors[name] = value
    if head.axes is not None:
        tensors["axes"] = head.axes.values
    meta = {
        "loss": head.loss,
        "unit_norm": head.transform.unit_norm,
        "feature_clip": head.feature_clip,
        **facts,
    }
    return write_sealed(Path(folder), "head", tensors, meta)


def open_head(folder: str | Path) -> tuple[LinearHead, dict[str, Any]]:
    """Read a head, and the contents of its head.json.

    Raises
    ------
    ValueError
        If the folder holds no head, or an unfinished run, or if the head was modified.
    """
    tensors, facts = read_sealed(Path(folder), "head")
    with explain_damage("head", folder):
        for key, kind in _FACTS.items():
            if not isinstance(facts[key], kind):
                raise TypeError(f"{key} must have type {kind.__name__}")
        transform = RowTransform(
            facts["unit_norm"], tensors.get("center"), tensors.get("scale")
        )
        weights, intercept = tensors["weights"], tensors["intercept"]
        if weights.shape[1:] != (len(facts["class_names"]),):
            raise TypeError(
                f"weights must have one column per class, got shape {weights.shape}"
            )
        clip = facts["feature_clip"]
        if clip is not None and not (isinstance(clip, float) and clip > 0):
            raise TypeError(f"feature_clip must be positive or null, got {clip}")
        axes = PublicAxes(tensors["axes"]) if "axes" in tensors else None
        if axes is not None and axes.count != len(weights):
            raise TypeError(
                f"weights must have one row per axis, got shape {weights.shape}"
            )
        loss = facts["loss"]
        head = LinearHead(
            weights, intercept, transform, loss, feature_clip=clip, axes=axes
        )
        return head, facts
