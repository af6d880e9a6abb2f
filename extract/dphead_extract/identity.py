"""Decide which data set a file's rows belong to: declared, begun, or known by images.

A row's values decide only whether its image was seen before.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.reading import open_features, open_h5
from dphead_extract.index import ImageIndex, Overlap, recognised
from dphead_extract.shards import Shard, shards_path, shared_identifiers
from dphead_extract.sources.image import Source


@dataclass(frozen=True)
class Declared:
    """Hold what a user declares about the images' data set, and the index to look in.

    Without an index, no images count as seen before. The fields are those of
    `ExtractOptions`.
    """

    dataset_id: str | None = None
    same_data_as: str | Path | None = None
    new_data_set: bool = False
    index: ImageIndex | None = None


@dataclass(frozen=True)
class Identity:
    """Say which data set a file's rows belong to.

    Attributes
    ----------
    n_rows : int
        Rows of the whole data set, all shards together.
    dataset_id, salt : str or None
        None makes new ones.
    expected_digests : (n, 16) uint8 or None
        Digests that the images must have.
    recognised : str or None
        The id by which the index knows the images.
    """

    n_rows: int
    dataset_id: str | None
    salt: Any = None
    expected_digests: np.ndarray | None = None
    recognised: str | None = None


def identified(
    given: Declared,
    output: Path,
    shard: Shard,
    source: Source,
    n_rows: int,
    seen: np.ndarray,
) -> Identity:
    """Return the data set of `source`, which is a shard of n_rows rows.

    Parameters
    ----------
    given : Declared
        What the user declares.
    output : Path
        The features file. A run that has begun keeps its id.
    shard : Shard
        The part of the rows.
    source : Source
        The rows of the shard.
    n_rows : int
        Rows of all shards together.
    seen : (n,) uint64
        Digests of the shard's images under the index's key.

    Returns
    -------
    Identity
        What the rows share with other files of their images.

    Raises
    ------
    ExtractError
        If the user must say which data set the images belong to.
    """
    if given.new_data_set and (given.dataset_id or given.same_data_as):
        raise ExtractError(
            "images are those of another file or a new data set, got --new-data-set "
            "beside --dataset-id or --same-data-as. Leave one out."
        )
    if given.same_data_as is not None:
        return _same_as(given, source, n_rows)
    index, known = given.index, None
    if given.dataset_id or given.new_data_set or _begun(output, shard):
        index = None
    if shard.count > 1:
        if index is not None:  # other shards may have added their images already
            share = source.n_rows / n_rows
            known = recognised([o.of_all(share) for o in index.overlaps(seen)])
        of_all = shared_identifiers(output, source.digest, given.dataset_id, known)
        return Identity(n_rows, *of_all, recognised=known)
    if index is None:
        return Identity(n_rows, given.dataset_id)
    dataset_id, seen_before = index.claim(seen)
    return Identity(n_rows, dataset_id, recognised=dataset_id if seen_before else None)


def _same_as(given: Declared, source: Source, n_rows: int) -> Identity:
    """Return the identity of a file that the user names."""
    assert given.same_data_as is not None
    with open_features(given.same_data_as) as other:
        if given.dataset_id not in (None, other.dataset_id) or other.n_rows != n_rows:
            raise ExtractError(
                "--same-data-as must name a file of the same images, got "
                f"n_rows={other.n_rows} for {n_rows}. Extract from the same source."
            )
        rows = slice(source.first, source.first + source.n_rows)
        return Identity(n_rows, other.dataset_id, other.salt, other.row_digest[rows])


def _begun(output: Path, shard: Shard) -> bool:
    """Return whether an earlier run gave the output an id and left a file to resume."""
    if shard.count > 1 and shards_path(output).exists():
        return True
    path = shard.path(output)
    for place in (path, path.with_name(path.name + ".part")):
        with suppress(FormatError, OSError), open_h5(place)[0]:
            return True
    return False


def note_images(
    index: ImageIndex | None, dataset_id: str, seen: np.ndarray
) -> list[Overlap]:
    """Add images to the index, and return the other data sets that hold some of them.

    Call it before a row is written: a run that dies is then known by its images.
    """
    if index is None:
        return []
    index.add(dataset_id, seen)
    return index.overlaps(seen, but=dataset_id)
