"""Open the arrays of .npz files without unpickling anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dphead_extract.errors import ExtractError


@contextmanager
def opened_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Give the arrays of an .npz by name; each one is read on access.

    Raises ExtractError if the file is damaged or pickled.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except (ExtractError, PermissionError):
        raise
    # numpy and zipfile may raise anything for a damaged file, or one beyond all memory
    except Exception as error:
        raise ExtractError(
            f"`numpy.load` cannot read {str(path)!r} without pickle "
            f"({type(error).__name__}). Save plain arrays by `numpy.savez`."
        ) from error
