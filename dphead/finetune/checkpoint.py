"""Save and load a training's state between steps.

The state is a function of noisy releases alone.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from dphead.finetune.solver import Progress
from dphead.fit.run_folder import CHECKPOINT
from dphead.privacy.atomic_write import write_atomically


def save_checkpoint(out: Path, fit_id: str, state: Progress) -> None:
    """Write the state durably, and whole or not at all.

    Everything in it was computed from noisy releases.
    """
    kept = {k: np.asarray(v) for k, v in vars(state).items() if v is not None}
    kept["fit_id"] = np.array(fit_id)
    kept["sha256"] = np.array(_digest(kept))
    arrays: Any = kept
    write_atomically(out / CHECKPOINT, lambda file: np.savez(file, **arrays))


def _digest(values: dict[str, np.ndarray]) -> str:
    """Return a SHA-256 of names, shapes and bytes.

    It finds members that are missing: an archive can lose one without an error.
    """
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def load_checkpoint(out: Path, fit_id: str) -> Progress | None:
    """Return the last checkpoint of this fit, or None if there is none.

    Raises ValueError if the checkpoint is damaged or belongs to another fit.
    """
    path = out / CHECKPOINT
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            values = dict(file)
        # a checkpoint from before there were digests has none
        if str(values.pop("sha256", _digest(values))) != _digest(values):
            raise ValueError("another digest")
        step = int(values.pop("step"))
        found = str(values.pop("fit_id"))
        state = Progress(step, **values)
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
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
