"""Features files as other programs, other versions, or a fault could leave them."""

import json
from pathlib import Path

import h5py
import numpy as np
from dphead_extract.features.reading import layout
from dphead_extract.features.rows import block_digest
from dphead_extract.features.seal import read_seal, write_seal
from dphead_extract.features.writing import extents


def digests_of(file: h5py.File) -> list[np.ndarray]:
    """The digest that each block of a file should have."""
    config = json.loads(file.attrs["config"])
    size = config["block_rows"]
    return [
        block_digest({name: file[name][i : i + size] for name in layout(config)})
        for i in range(0, config["n_rows"], size)
    ]


def edited(path: Path, change, *, digests: bool = True, complete: bool = True) -> Path:
    """A file with a change that its writer would have sealed.

    digests: the blocks' digests follow the change too.
    """
    read_seal(path)
    with h5py.File(path, "r+", locking=False) as file:
        change(file)
        if digests:
            file["block_digest"][:] = digests_of(file)
        columns = extents(file).values()
    write_seal(path, columns, complete)
    return path


def with_config(**changes):
    """A change that sets entries of the configuration; None removes one."""

    def change(file):
        config = json.loads(file.attrs["config"]) | changes
        kept = {key: value for key, value in config.items() if value is not None}
        file.attrs["config"] = json.dumps(kept)

    return change
