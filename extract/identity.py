"""Which data set a features file's rows are of: declared, begun before, or known by its
images.

A row's values decide nothing here but whether its image was seen before.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extract.errors import ExtractError, FormatError
from extract.image_source import Source
from extract.index import ImageIndex, Overlap, recognised
from extract.reading import open_features, open_h5
from extract.shards import Shard, shards_path, shared_identifiers


@dataclass(frozen=True)
class Declared:
    """What a user says of whose images these are, and the index of those seen before
    (None looks for none). The fields are those of `ExtractOptions`.
    """

    dataset_id: str | None = None
    same_data_as: str | Path | None = None
    new_data_set: bool = False
    index: ImageIndex | None = None


@dataclass(frozen=True)
class Identity:
    """Which data set a file's rows are of.

    n_rows: of the whole data set, all shards together. dataset_id, salt: None makes new
    ones. expected_digests: (n, 16) that the images must have, or None. recognised: the
    id that the index knows the images by, or None.
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
    """What `source`, a shard of n_rows rows, shares with other files of its images.

    seen: digests of its images under the index's key, (n,) uint64. A run that has begun
    keeps its id. ExtractError where it must be said whose images these are.
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
        if index is not None:  # it holds the other shards' images once these are there
            share = source.n_rows / n_rows
            known = recognised([o.of_all(share) for o in index.overlaps(seen)])
        of_all = shared_identifiers(output, source.digest, given.dataset_id, known)
        return Identity(n_rows, *of_all, recognised=known)
    if index is None:
        return Identity(n_rows, given.dataset_id)
    dataset_id, seen_before = index.claim(seen)
    return Identity(n_rows, dataset_id, recognised=dataset_id if seen_before else None)


def _same_as(given: Declared, source: Source, n_rows: int) -> Identity:
    """The identity of a file that the user names."""
    assert given.same_data_as is not None
    with open_features(given.same_data_as) as other:
        if given.dataset_id not in (None, other.dataset_id) or other.n_rows != n_rows:
            raise ExtractError(
                "--same-data-as must name a file of the same images, got "
                f"n_rows={other.n_rows} for {n_rows}. Extract from the same source."
            )
        rows = slice(source.first, source.first + source.n_rows)
        return Identity(
            n_rows, other.dataset_id, other.attrs["salt"], other.row_digest[rows]
        )


def _begun(output: Path, shard: Shard) -> bool:
    """Whether an earlier run of this command has given the output an id, and left what
    this one can go on from.
    """
    if shard.count > 1 and shards_path(output).exists():
        return True
    path = shard.path(output)
    for place in (path, path.with_name(path.name + ".part")):
        with suppress(FormatError, OSError), open_h5(place) as file:
            return "config" in file.attrs and "block_digest" in file
    return False


def note_images(
    index: ImageIndex | None, dataset_id: str, seen: np.ndarray
) -> list[Overlap]:
    """Before a row is written, so that a run that dies is known by its images; returns
    what else holds some of them.
    """
    if index is None:
        return []
    index.add(dataset_id, seen)
    return index.overlaps(seen, but=dataset_id)
