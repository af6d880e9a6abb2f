"""Export only the head, from features to scores.

Each writer loads its files again, and compares their probabilities with the head's.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dphead.analysis.metrics import probabilities
from dphead.export.trained import (
    Trained,
    described,
    file_metadata,
    tensors_of,
    write_plain_json,
)

_HERE = Path(__file__).parent
_TOLERANCE = 1e-4  # as of scores, in networks.py
_LARGEST_SCORE = 700.0  # beyond, all of scikit-learn's sigmoids can be zero


def write_torch(trained: Trained, folder: Path) -> str:
    """Write head.safetensors, head.json, and a head.py that loads them.

    The files are compared only if torch is installed.
    """
    takes = _write_head(trained, folder, "torch_head.py")
    if find_spec("torch") is not None:
        import torch

        from dphead.export.torch_head import load_head

        head, _ = load_head(folder)
        with torch.no_grad():
            _compare(
                trained, lambda x: head.probabilities(head(torch.from_numpy(x))).numpy()
            )
    return takes


def write_sklearn(trained: Trained, folder: Path) -> str:
    """Write a head with a head.py that builds a scikit-learn classifier.

    Raises
    ------
    ValueError
        If the head clips the norm of rows, because scikit-learn cannot, or if the
        written classifier gives other probabilities.
    """
    if (clip := trained.linear.feature_clip) is not None:
        raise ValueError(
            "--to sklearn cannot clip rows, got a head that clips their norm to "
            f"{clip:g}. Use --to torch or onnx."
        )
    from dphead.export.sklearn_head import load_head

    takes = _write_head(trained, folder, "sklearn_head.py")
    _compare(trained, load_head(folder).predict_proba)
    return takes


def _compare(trained: Trained, theirs: Callable[[np.ndarray], np.ndarray]) -> None:
    """Raise ValueError unless written files have the head's probabilities."""
    head = trained.linear
    x = np.random.default_rng(0).normal(size=(64, len(head.weights)))
    x = x.astype(np.float32)
    scores = head.scores(x)
    usual = np.abs(scores).max(axis=1) < _LARGEST_SCORE
    ours = probabilities(scores, head.loss)
    if not np.allclose(np.asarray(theirs(x))[usual], ours[usual], atol=_TOLERANCE):
        raise ValueError(
            "the probabilities of the exported files differ from dphead's. Use --to "
            "onnx, and report this as a bug, with the run's report.json."
        )


def _write_head(trained: Trained, folder: Path, loader: str) -> str:
    from safetensors.numpy import save

    tensors = tensors_of(trained.linear)
    about = file_metadata(trained.guarantee)
    (folder / "head.safetensors").write_bytes(save(tensors, metadata=about))
    write_plain_json(folder / "head.json", described(trained, tensors))
    write_code(loader, folder / "head.py")
    return "features"


def write_code(module: str, path: Path) -> None:
    """Write a module of this folder into an export, next to its decoder `decode.py`."""
    text = (_HERE / module).read_text(encoding="utf-8")
    text = text.replace("from dphead_extract.images import", "from decode import")
    text = text.replace("from dphead.finetune.architectures", "from architectures")
    path.write_text(text, encoding="utf-8")
