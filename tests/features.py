"""Features files as other programs, other versions, or a fault could leave them."""

import json
from pathlib import Path

import h5py
from dphead_extract.features.reading import sha256_json
from dphead_extract.features.seal import BYTES, read_seal, write_seal
from dphead_extract.features.writing import digests_of, extents


def edited(path: Path, change, *, digests: bool = True, complete: bool = True) -> Path:
    """A file with a change that its writer would have sealed.

    digests: the blocks' digests follow the change too.
    """
    read_seal(path)
    with h5py.File(path, "r+", locking=False) as file:
        change(file)
        if "config" in file.attrs:
            file.attrs["config_hash"] = sha256_json(json.loads(file.attrs["config"]))
        if digests:
            file["block_digest"][:] = list(digests_of(file))
        columns = list(extents(file).values())
    write_seal(path, columns, complete)
    return path


def of_before_seals(path: Path, complete: bool = True) -> Path:
    """The same file as versions without a seal wrote it."""
    edited(path, lambda file: file.attrs.create("complete", complete))
    path.write_bytes(path.read_bytes()[BYTES:])
    return path
