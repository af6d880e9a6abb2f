"""Find the data set that the rows of a features file belong to.

Rows and groups are used only to recognize images and people of earlier commands.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.extract_options import ExtractOptions
from dphead_extract.features.reading import begun_id, open_same
from dphead_extract.index import ImageIndex, Overlap, recognized
from dphead_extract.people import People
from dphead_extract.shards import shards_path, shared_identifiers
from dphead_extract.sources.image import Source


@dataclass(frozen=True)
class Identity:
    """Describe the data set that a file's rows belong to.

    Attributes
    ----------
    dataset_id, salt : str or None
        None: draw a new one.
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
    """Return the data set of `source`, which has the rows of one shard.

    A resumed run keeps its id.

    Parameters
    ----------
    options : ExtractOptions
        Options of the user.
    source : Source
        The rows of the shard.
    n_rows : int
        Total number of rows of all shards.
    seen : (n, forms) uint64
        Digests of the shard's n readable images (`ImageIndex.digests`). Empty without
        an index.

    Returns
    -------
    Identity
        The data set; its id, salt and digests may be None.

    Raises
    ------
    ExtractError
        If the user must say which data set the images belong to, or if options or the
        declared people contradict it.
    """
    given, output, shard = options.dataset_id, Path(options.output), options.shard
    index, people, groups = options.index, options.people, source.group
    if options.new_data_set and (given or options.same_data_as or people.shared_id):
        raise ExtractError(
            "--new-data-set cannot be combined with --dataset-id, --same-data-as, or "
            "--people without --new-people. Remove --new-data-set or the other option."
        )
    if options.same_data_as is not None:
        with open_same(options.same_data_as, given, n_rows) as other:
            people.check(other.dataset_id, groups)
            own = other.row_digest[source.first : source.first + source.n_rows]
            return Identity(other.dataset_id, other.salt, own)
    begun, known, joined = begun_id(shard.path(output)), None, None
    share = source.n_rows / n_rows
    given = people.data_set(given)
    if people.shared_id is not None and index is not None:
        check_images(_overlaps(index, seen, share, given), people)
    if given or options.new_data_set or begun:
        index = None
    if shard.count > 1 and shards_path(output).exists():
        joined, _ = shared_identifiers(output, source.digest, given)
    if index is not None:
        known = _of_shard(index, seen, share, joined)
    # a file that was begun without an id system has passed this check before
    if begun is None or people.system is not None:
        people.check(given or begun or joined or known, groups)
    if shard.count > 1:
        if known is not None and index is not None:
            index.add(known, seen)  # before a file has the id, as `claim` does
        of_all = shared_identifiers(output, source.digest, given, known)
        return Identity(*of_all, recognized=known)
    if index is None:
        return Identity(given)
    dataset_id, seen_before = index.claim(seen)
    found = dataset_id if seen_before else None
    return Identity(dataset_id, recognized=found)


def _of_shard(
    index: ImageIndex, seen: np.ndarray, share: float, begun: str | None
) -> str | None:
    """Return the data set of all shards, recognized by the images of one shard.

    The shard has the fraction `share` of the rows. `begun` is the id that another shard
    was given, with its images in the index. Each shard is checked, because each may
    have images of a different data set. Raises ExtractError as `recognized` does.
    """
    found = _overlaps(index, seen, share)
    if begun is not None and begun not in [o.dataset_id for o in found[:1] if o.same]:
        # the images of other shards belong to the data set that was begun
        found = _overlaps(index, seen, share, begun)
    return recognized(found, begun)


def _overlaps(
    index: ImageIndex, seen: np.ndarray, share: float, but: str | None = None
) -> list[Overlap]:
    """Return the overlaps of a shard with known data sets, extrapolated to all rows."""
    found = [one.of_all(share) for one in index.overlaps(seen, but=but)]
    return sorted(found, key=Overlap.order)


def check_images(overlaps: list[Overlap], people: People) -> None:
    """Raise ExtractError if a notable overlap's ledger contradicts `people`."""
    for other in overlaps:
        if other.notable:
            try:
                people.check_ledger(other.dataset_id)
            except ExtractError as error:
                raise ExtractError(f"{other}. {error}") from None
