"""Concatenate the features of several backbones on the same images.

A row has the features of all backbones side by side, with equal weight. On CIFAR-10,
two mobile networks together gave heads 2 points more accuracy than the better one alone
(docs/backbones.md).
"""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.errors import FormatError
from dphead_extract.features.disk import read_names, write_names
from dphead_extract.features.reading import (
    FEATURE_SPACE,
    FeaturesFile,
    open_features,
)
from dphead_extract.features.rows import Header
from dphead_extract.features.verify import sound_blocks
from dphead_extract.features.writing import FeaturesWriter, check_facts

# keys of the configuration that the combination records for each file; absent keys too
_OF_PART = (*FEATURE_SPACE, "local_weights")
# keys of the configuration that may differ between the files
_OWN = {
    *(*_OF_PART, "library_versions", "n_features", "dtype"),
    *("batch_size", "device", "amp"),
    "people",  # can be declared after a file was written
}


def concatenate(paths: Sequence[str | Path], output: str | Path) -> None:
    """Write the features of several files side by side into one file.

    Each file's part of a row is divided by its Euclidean norm and by √k, for k files.
    An unreadable image is masked. Files are refused if only some of them could read an
    image. Call the function again to resume.

    Parameters
    ----------
    paths : sequence of str or Path
        At least two files of the same images in the same order, extracted with
        `same_data_as`.
    output : str or Path
        The features file to write.

    Raises
    ------
    FormatError
        If there are fewer than two files, or two have the same features. If the files
        differ in more than features, for example in images, labels, groups or the
        declared range of pixels. If a file is damaged, a shard, a combination already
        or not made from images.
    """
    output = Path(output)
    with ExitStack() as stack:
        files = [stack.enter_context(open_features(path)) for path in paths]
        if len(files) < 2:
            raise FormatError("FILES must name at least two features files.")
        for file in files:
            _check_same_images(files[0], file)
        if len({file.feature_space for file in files}) < len(files):
            raise FormatError(
                "FILES must come from different backbones or settings, got the same "
                "features twice. Name each file once."
            )
        with FeaturesWriter(output, _header(files)) as writer:
            todo = "Remove the file and extract it again."
            read = [sound_blocks(file, todo) for file in files]
            for several in zip(*read, strict=True):
                if several[0][0] == writer.next_row:
                    writer.append(*_joined(files, [block for _, block in several]))
            writer.finish()
        if names := read_names(files[0].path, files[0].n_rows):
            write_names(output, names)


def _joined(
    files: list[FeaturesFile], parts: list[dict[str, np.ndarray]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the features of a block of rows, and its other columns."""
    for file, part in zip(files, parts, strict=True):
        for name in sorted(set(part) - {"features", "valid"}):
            if not np.array_equal(part[name], parts[0][name]):
                raise FormatError(
                    f"{str(files[0].path)!r} and {str(file.path)!r} differ in the "
                    f"column {name}. {_REMEDY}"
                )
    weight = len(parts) ** -0.5
    features = np.concatenate([weight * _unit(p.pop("features")) for p in parts], 1)
    valid = np.logical_and.reduce([part["valid"] for part in parts])
    return features, parts[0] | {"valid": valid}


def _unit(rows: np.ndarray) -> np.ndarray:
    """Return rows divided by their norms, float32. No row affects another row."""
    exact = rows.astype(np.float64)
    norms = np.sqrt(np.square(exact).sum(axis=1, keepdims=True))
    return np.divide(exact, norms, out=exact, where=norms > 0).astype(np.float32)


_REMEDY = (
    "Extract all files from one source, with the same options for images and labels. "
    "For every file after the first, type --same-data-as with the first file."
)


def _check_same_images(one: FeaturesFile, other: FeaturesFile) -> None:
    if "parts" in other.config["backbone_kwargs"]:
        raise FormatError(
            f"{str(other.path)!r} is a combination already. Type the files that it was "
            "made from instead."
        )
    if "shard" in other.config:
        raise FormatError(
            f"{str(other.path)!r} is a shard. Join the shards of each backbone first, "
            "by `dphead features join`."
        )
    if "mean" not in other.config["transform"]:
        raise FormatError(
            f"{str(other.path)!r} must hold features that `dphead extract` made from "
            f"images, got features by {other.config['backbone']}. Concatenate "
            "embeddings before `dphead features import`."
        )
    check_facts(one, other, _shared_facts, _REMEDY)


def _shared_facts(file: FeaturesFile) -> dict[str, Any]:
    """Return everything that the files must have in common."""
    # equal ranges, because `predict` decodes an image once for all backbones
    decoded = {key: file.config["transform"].get(key) for key in ("bits", "intensity")}
    known = {"dataset_id": file.dataset_id, "salt": file.salt}
    return _shared_config(file) | decoded | known


def _shared_config(file: FeaturesFile) -> dict[str, Any]:
    return {key: file.config[key] for key in file.config if key not in _OWN}


def _header(files: list[FeaturesFile]) -> Header:
    """Return the header of the joined file, which records each file's backbone."""
    config = _shared_config(files[0])
    known = {field.name for field in fields(Header)} & set(config)
    # files with the same id but different rows must not resume or replace this file
    digests = [
        hashlib.sha256(file.block_digest.tobytes()).hexdigest() for file in files
    ]
    declared = [file.people for file in files if file.people is not None]
    # a merge of ledgers ends `new`, so a declaration without `new` is the later one
    if declared:
        config["people"] = min(declared, key=lambda people: people["new"])
    return Header(
        n_features=sum(file.n_features for file in files),
        dtype=max(files, key=lambda file: file.dtype.itemsize).dtype.name,
        backbone="+".join(file.config["backbone"] for file in files),
        backbone_kwargs={
            "parts": [
                {key: file.config[key] for key in _OF_PART if key in file.config}
                for file in files
            ]
        },
        normalization={"kind": "unit"},
        library_versions=files[0].config["library_versions"],
        **{name: config.pop(name) for name in known},
        config=config | {"rows": digests},
        dataset_id=files[0].dataset_id,
        salt=files[0].salt,
    )
