"""Save and load the state of a training between steps.

The state is post-processing of noisy releases.
"""

import hashlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from dphead.finetune.solver import TrainingState
from dphead.fit.run_folder import CHECKPOINT
from dphead.privacy.atomic_write import write_atomically
from dphead.sums.hosts import Hosts


def save_checkpoint(out: Path, fit_id: str, state: TrainingState) -> None:
    """Write the state atomically and durably."""
    kept = {k: np.asarray(v) for k, v in vars(state).items() if v is not None}
    kept["fit_id"] = np.array(fit_id)
    kept["sha256"] = np.array(_digest(kept))
    arrays: Any = kept
    write_atomically(out / CHECKPOINT, lambda file: np.savez(file, **arrays))


def _digest(values: dict[str, np.ndarray]) -> str:
    """Return a SHA-256 of the names, types, shapes and values of arrays.

    The digest detects missing members, which numpy archives do not report.
    """
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def load_checkpoint(out: Path, fit_id: str) -> TrainingState | None:
    """Return the last checkpoint of this fit, or None if there is none.

    Raises ValueError if the checkpoint is damaged or belongs to another fit.
    """
    path = out / CHECKPOINT
    if not path.exists():
        return None
    try:
        state, found = _read(path)
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        raise ValueError(
            f"{path} is damaged, so the run cannot resume. Start again in a new folder "
            "with -o. The new run is charged too."
        ) from error
    if found != fit_id:
        raise ValueError(
            f"{path} belongs to another fit. Restore the checkpoint of this run, or "
            "start again in a new folder with -o. The new run is charged too."
        )
    return state


def share_checkpoint(hosts: Hosts, out: Path) -> TrainingState | None:
    """Return process 0's last checkpoint, on every process; None if there is none.

    All processes call it together. It does not compare fits, because `load_checkpoint`
    did on process 0.
    """
    path = out / CHECKPOINT
    sent = hosts.bytes_from_first(
        path.read_bytes() if hosts.first and path.exists() else b""
    )
    return _read(BytesIO(sent))[0] if sent else None


def _read(file: Path | BytesIO) -> tuple[TrainingState, str]:
    """Return the state and the fit id of a checkpoint."""
    with np.load(file, allow_pickle=False) as arrays:
        values = dict(arrays)
    if str(values.pop("sha256")) != _digest(values):
        raise ValueError("another digest")
    step = int(values.pop("step"))
    fit_id = str(values.pop("fit_id"))
    return TrainingState(step, **values), fit_id
