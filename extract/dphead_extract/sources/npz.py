"""Open the arrays of .npz and .safetensors files, and folders of .npy files.

Nothing is unpickled.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dphead_extract.errors import ExtractError


def array_files(path: Path) -> list[Path]:
    """Return the .npy files of a folder by name, or the path itself."""
    return sorted(path.glob("*.npy")) if path.is_dir() else [path]


@contextmanager
def opened_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield a mapping of names to arrays; arrays of an .npz are read on access.

    An array of a folder has the name of its file: label.npy is "label".

    Raises ExtractError if a file is damaged, pickled or larger than the memory.
    """
    try:
        if path.is_dir():
            yield {f.stem: np.load(f, allow_pickle=False) for f in array_files(path)}
        elif path.suffix.lower() == ".safetensors":
            from safetensors.numpy import load_file

            yield load_file(path)
        else:
            with np.load(path, allow_pickle=False) as file:
                yield file
    except (ExtractError, PermissionError):
        raise
    # numpy and zipfile may raise anything for a file that is damaged or too large
    except Exception as error:
        cause = (
            "cannot be read: it is damaged, of another kind, or larger than the "
            "memory. Restore the file, or save its arrays again with `numpy.savez`"
        )
        if "Object arrays" in str(error):  # numpy has no exception type for this
            cause = (
                "has an array of Python objects, which dphead does not unpickle. Save "
                "the array as numbers or texts with `numpy.savez`"
            )
        raise ExtractError(f"{str(path)!r} {cause}.") from error
