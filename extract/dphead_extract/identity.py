"""Find the data set that the rows of a features file belong to.

A row's values are used only to recognize an image that was extracted before.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.reading import open_h5, open_same
from dphead_extract.index import ImageIndex, Overlap, recognized
from dphead_extract.shards import shards_path, shared_identifiers
from dphead_extract.sources.image import Source

if TYPE_CHECKING:  # `run` imports this module
    from dphead_extract.run import ExtractOptions


@dataclass(frozen=True)
class Identity:
    """Describe the data set that a file's rows belong to.

    Attributes
    ----------
    dataset_id, salt : str or None
        None makes new ones.
    expected_digests : (n, 16) uint8 or None
        Digests that the images must have.
    recognized : str or None
        The data set of the images in the index, or None for unknown images.
    """

    dataset_id: str | None
    salt: Any = None
    expected_digests: np.ndarray | None = None
    recognized: str | None = None


def identify(
    options: ExtractOptions, source: Source, n_rows: int, seen: np.ndarray
) -> Identity:
    """Return the data set of `source`, which is a shard of n_rows rows.

    Parameters
    ----------
    options : ExtractOptions
        Options of the user. A resumed run keeps its id.
    source : Source
        The rows of the shard.
    n_rows : int
        Total number of rows of all shards.
    seen : (n,) uint64
        Digests of the shard's images under the index's key.

    Returns
    -------
    Identity
        Facts that the rows share with other files of the same images.

    Raises
    ------
    ExtractError
        If the user must say which data set the images belong to.
    """
    given, output, shard = options.dataset_id, Path(options.output), options.shard
    if options.new_data_set and (given or options.same_data_as):
        raise ExtractError(
            "--new-data-set cannot be combined with --dataset-id or --same-data-as. "
            "Remove one of the two."
        )
    if options.same_data_as is not None:
        with open_same(options.same_data_as, given, n_rows) as other:
            own = other.row_digest[source.first : source.first + source.n_rows]
            return Identity(other.dataset_id, other.salt, own)
    index, known = options.index, None
    if given or options.new_data_set or _begun(shard.path(output)):
        index = None
    if shard.count > 1:
        if index is not None:
            known = _of_shard(index, output, source, n_rows, seen)
        of_all = shared_identifiers(output, source.digest, given, known)
        return Identity(*of_all, recognized=known)
    if index is None:
        return Identity(given)
    dataset_id, seen_before = index.claim(seen)
    return Identity(dataset_id, recognized=dataset_id if seen_before else None)


def _of_shard(
    index: ImageIndex, output: Path, source: Source, n_rows: int, seen: np.ndarray
) -> str | None:
    """Return the data set that all shards belong to, by the images of one of them.

    Each shard is checked, because any of them may have the images of another data set.
    Raises ExtractError as `recognized` does.
    """
    share, begun = source.n_rows / n_rows, None
    if shards_path(output).exists():  # other shards have added their images
        begun, _ = shared_identifiers(output, source.digest, None)
    found = [o.of_all(share) for o in index.overlaps(seen)]
    if begun is not None and begun not in [o.dataset_id for o in found[:1] if o.same]:
        # the images of other shards are not another data set's
        found = [o.of_all(share) for o in index.overlaps(seen, but=begun)]
    return recognized(found, begun)


def _begun(path: Path) -> bool:
    """Return whether an earlier run gave a file an id and left it to be resumed."""
    for place in (path, path.with_name(path.name + ".part")):
        with suppress(FormatError, OSError), open_h5(place)[0]:
            return True
    return False


def note_images(
    index: ImageIndex | None, dataset_id: str, seen: np.ndarray
) -> list[Overlap]:
    """Add images to the index, and return other data sets that hold some of the images.

    Call this before a row is written. A run that ends early then has its images in the
    index.
    """
    if index is None:
        return []
    index.add(dataset_id, seen)
    return index.overlaps(seen, but=dataset_id)
