"""Export only the head, from features to scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dphead.analysis.metrics import probabilities
from dphead.export.trained import (
    Format,
    Trained,
    Written,
    described,
    file_metadata,
    tensors_of,
    write_plain_json,
)
from dphead.solvers.head import LinearHead

_HERE = Path(__file__).parent
_TRIED = 64  # number of random rows; chosen
LARGEST_SCORE = 700.0  # above this score, all of scikit-learn's sigmoids can be zero


def _write_torch(trained: Trained, folder: Path) -> Written:
    """Write head.safetensors, head.json, and a head.py that loads them."""
    return _write_head(trained, folder, "torch_head.py")


def _load_torch(trained: Trained, folder: Path) -> Callable[[np.ndarray], Any]:
    import torch

    from dphead.export.torch_head import load_head

    head, _ = load_head(folder)
    return lambda x: head.probabilities(head(torch.from_numpy(x))).detach()


def _write_sklearn(trained: Trained, folder: Path) -> Written:
    """Write a head with a head.py that builds a scikit-learn classifier.

    Raises ValueError if the head clips the norm of rows, because scikit-learn cannot.
    """
    if (clip := trained.linear.feature_clip) is not None:
        raise ValueError(
            "--to sklearn cannot export this head, which clips the norm of rows to "
            f"{clip:g}. Use --to torch or onnx."
        )
    return _write_head(trained, folder, "sklearn_head.py")


def _load_sklearn(trained: Trained, folder: Path) -> Callable[[np.ndarray], Any]:
    from dphead.export.sklearn_head import load_head

    return load_head(folder).predict_proba


TORCH = Format(_write_torch, _load_torch)
SKLEARN = Format(_write_sklearn, _load_sklearn)


def tried_rows(head: LinearHead) -> tuple[np.ndarray, np.ndarray]:
    """Return random rows (n, n_features), and the head's scores."""
    x = np.random.default_rng(0).normal(size=(_TRIED, head.n_features))
    x = x.astype(np.float32)
    return x, head.scores(x)


def _write_head(trained: Trained, folder: Path, loader: str) -> Written:
    from safetensors.numpy import save

    tensors = tensors_of(trained.linear)
    about = file_metadata(trained.guarantee)
    (folder / "head.safetensors").write_bytes(save(tensors, metadata=about))
    write_plain_json(folder / "head.json", described(trained, tensors))
    write_code(loader, folder / "head.py")
    x, scores = tried_rows(trained.linear)
    # shorter rows have smaller scores, unless the head divides by their norm
    largest = max(LARGEST_SCORE / 2, float(np.abs(scores).max()))
    x *= np.float32(LARGEST_SCORE / 2 / largest)
    scores = trained.linear.scores(x)
    usual = np.abs(scores).max(axis=1) < LARGEST_SCORE
    answers = probabilities(scores, trained.linear.loss)
    return Written("features", x[usual], answers[usual])


def write_code(module: str, path: Path) -> None:
    """Copy a module into an export, and change its imports to the export's files."""
    text = (_HERE / module).read_text(encoding="utf-8")
    text = text.replace("from dphead_extract.images import", "from decode import")
    text = text.replace("from dphead.finetune.architectures", "from architectures")
    path.write_text(text, encoding="utf-8")
