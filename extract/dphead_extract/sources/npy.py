"""Open the arrays of .npy and .npz files; nothing may be unpickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dphead_extract.errors import ExtractError


@contextmanager
def opened_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Give the arrays of an .npz by name, or the array of an .npy under the name "".

    An .npy is mapped into memory. Each array of an .npz is read on access.

    Raises
    ------
    ExtractError
        If the file is damaged or pickled.
    """
    try:
        if path.suffix.lower() == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if path.stat().st_size != array.offset + array.nbytes:
                raise ExtractError(
                    f"{str(path)!r} goes on after its array. Save one array by "
                    "`numpy.save`."
                )
            yield {"": array}
            return
        with np.load(path, allow_pickle=False) as file:
            yield file
    except (ExtractError, PermissionError):
        raise
    # numpy and zipfile may raise anything for a damaged file, or one beyond all memory
    except Exception as error:
        raise ExtractError(
            f"`numpy.load` cannot read {str(path)!r} without pickle "
            f"({type(error).__name__}). Save plain arrays by `numpy.savez` or "
            "`numpy.save`."
        ) from error
