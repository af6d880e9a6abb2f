"""A training's state between its steps: made of noisy releases alone."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from dphead.endtoend.solver import Progress
from dphead.privacy.atomic_write import write_atomically
from dphead.runs.custody import CHECKPOINT


def save_checkpoint(out: Path, fit_id: str, state: Progress) -> None:
    """Durably, and whole or not at all.

    Everything in it was computed from noisy releases.
    """
    kept = {k: np.asarray(v) for k, v in vars(state).items() if v is not None}
    kept["fit_id"] = np.array(fit_id)
    kept["sha256"] = np.array(_digest(kept))
    arrays: Any = kept
    write_atomically(out / CHECKPOINT, lambda file: np.savez(file, **arrays))


def _digest(values: dict[str, np.ndarray]) -> str:
    """Of names, shapes and bytes: an archive may lose a member in silence."""
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def load_checkpoint(out: Path, fit_id: str) -> Progress | None:
    """The last checkpoint of this fit, or None. ValueError for another fit's, and for
    a damaged one.
    """
    path = out / CHECKPOINT
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            values = dict(file)
        # of before there were digests: without one
        if str(values.pop("sha256", _digest(values))) != _digest(values):
            raise ValueError("another digest")
        step = int(values.pop("step"))
        found = str(values.pop("fit_id"))
        state = Progress(step, **values)
    except Exception as error:  # whatever damage leads numpy and zipfile to
        raise ValueError(
            f"a checkpoint must be as it was written, got {path} damaged. The releases "
            "before it are gone: start in a new folder, which is charged again."
        ) from error
    if found != fit_id:
        raise ValueError(
            f"a checkpoint must be this fit's, got {path} of another. Choose another "
            "folder."
        )
    return state
