"""A training's state between its steps: made of noisy releases alone."""

from pathlib import Path

import numpy as np

from dphead.endtoend.solver import Progress
from dphead.privacy.ledger import write_durably


def save_checkpoint(out: Path, fit_id: str, state: Progress) -> None:
    """Durably, and whole or not at all.

    Everything in it was computed from noisy releases.
    """
    kept = {k: v for k, v in vars(state).items() if v is not None}
    write_durably(
        out / "checkpoint.npz",
        lambda file: np.savez(file, fit_id=np.array(fit_id), **kept),
    )


def load_checkpoint(out: Path, fit_id: str) -> Progress | None:
    """The last checkpoint of this fit, or None. ValueError for another fit's, and for
    a damaged one.
    """
    path = out / "checkpoint.npz"
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            # all bytes against their checksums: arrays may be read in part
            if file.zip.testzip() is not None:
                raise ValueError("another checksum")
            values = dict(file)
    except Exception as error:  # whatever damage leads numpy and zipfile to
        raise ValueError(
            f"a checkpoint must be as it was written, got {path} damaged. The releases "
            "before it are gone: start in a new folder, which is charged again."
        ) from error
    if str(values.pop("fit_id")) != fit_id:
        raise ValueError(
            f"a checkpoint must be this fit's, got {path} of another. Choose another "
            "folder."
        )
    step = int(values.pop("step"))
    return Progress(step, **values)
