"""Export only the head, from features to scores."""

from pathlib import Path

from dphead.export.trained import (
    Trained,
    described,
    metadata,
    tensors_of,
    write_json,
)

_HERE = Path(__file__).parent


def write_torch(trained: Trained, folder: Path) -> str:
    """Write head.safetensors, head.json, and a head.py that loads them."""
    return _write_head(trained, folder, "torch_head.py")


def write_sklearn(trained: Trained, folder: Path) -> str:
    """Write a head with a head.py that builds a scikit-learn classifier.

    Raises
    ------
    ValueError
        If the head clips the norm of rows, which scikit-learn does not support.
    """
    if (clip := trained.linear.feature_clip) is not None:
        raise ValueError(
            "--to sklearn cannot clip rows, got a head that clips their norm to "
            f"{clip:g}. Use --to torch or onnx."
        )
    return _write_head(trained, folder, "sklearn_head.py")


def _write_head(trained: Trained, folder: Path, loader: str) -> str:
    from safetensors.numpy import save

    tensors = tensors_of(trained.linear)
    about = metadata(trained.guarantee)
    (folder / "head.safetensors").write_bytes(save(tensors, metadata=about))
    write_json(folder / "head.json", described(trained, tensors))
    write_code(loader, folder / "head.py")
    return "features"


def write_code(module: str, path: Path) -> None:
    """Write a module of this folder into an export, next to its decoder `decode.py`."""
    text = (_HERE / module).read_text(encoding="utf-8")
    text = text.replace("from dphead_extract.images import", "from decode import")
    text = text.replace("from dphead.finetune.architectures", "from architectures")
    path.write_text(text, encoding="utf-8")
