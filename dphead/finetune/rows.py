"""Provide images in memory as private rows: one image, or one group, per row."""

import hashlib
from collections.abc import Iterator
from copy import copy
from typing import Self

import numpy as np
from dphead_extract.items import unit_ids

from dphead.data.arrays import ArrayRows
from dphead.data.blocks import BLOCK_ROWS
from dphead.privacy.contract import Block, Known
from dphead.privacy.sampling import ranks, within_cap


class ImageRows:
    """Hold images, or other rows of one shape, in memory as private rows.

    With a group cap, a row is a group (a person): its first `group_cap` images side by
    side, each followed by its label. Rows without a class add zero to sums.

    Parameters
    ----------
    images : ndarray of shape (n, channels, h, w), uint8
        The images. Rows of floats may have any shape (n, ...).
    labels : ndarray of shape (n,), int
        Their class indices; negative numbers mean no class.
    groups : ndarray of shape (n,), int, optional
        Group id of each image, from `group_ids`.
    group_cap : int, optional
        Largest number of images used in each group.

    Attributes
    ----------
    group_cap : int or None
        1 with groups, because a group is one row.

    Notes
    -----
    `n_features` is channels times pixels. With groups, it is `group_cap` times this
    number plus one for the label. The size of a network's statistic is the number of
    trained parameters, whatever `n_features` is.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        groups: np.ndarray | None = None,
        group_cap: int | None = None,
    ) -> None:
        self._x = images.reshape(len(images), int(np.prod(images.shape[1:])))
        self._y = labels
        self.group_cap = None if group_cap is None else 1
        self.n_features = self._x.shape[1]
        if group_cap is not None:
            self.n_features = group_cap * (self.n_features + 1)
        self._hold(group_places(len(images), groups, group_cap))

    def _hold(self, places: np.ndarray) -> None:
        """Set the rows. `places` has the images' indices, (n_rows, images per row)."""
        self._places, self.n_rows = places, len(places)
        y = self._labels(places)
        # a group has a class if any of its images has one
        y = y[:, 0] if self.group_cap is None else np.where((y >= 0).any(axis=1), 0, -1)
        # `ArrayRows` reads labels as for heads. It needs features: a column of zeros.
        slots = np.zeros((self.n_rows, 1), np.float32)
        size = max(1, BLOCK_ROWS // places.shape[1])
        self._slots = ArrayRows(slots, y, size)
        self.within = self._slots.within

    def _labels(self, places: np.ndarray) -> np.ndarray:
        """Return the labels of the images with these indices, -1 for index -1."""
        return np.where(places >= 0, np.append(self._y, -1)[places], -1)

    def part(self, start: int, stop: int) -> Self:
        """Return rows start to stop - 1."""
        own = copy(self)
        own._hold(self._places[start:stop])
        return own

    def digest(self) -> str:
        """Return a SHA-256 of the rows: their images, labels and numbers of images."""
        digest = hashlib.sha256((self._places >= 0).tobytes())
        digest.update(self._labels(self._places).tobytes())
        for row in self._places:
            digest.update(self._x[row[row >= 0]].data)
        return digest.hexdigest()

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield blocks with each row, or each of `indices`, once.

        The last block is padded with index -1.
        """
        for block in self._slots.blocks(indices):
            places = self._places[np.maximum(block.index, 0)]
            with np.errstate(all="ignore"):  # no warning may depend on a value
                x = self._x[np.maximum(places, 0)].astype(np.float32)
            if self.group_cap is not None:
                x[places < 0] = 0
                labels = self._labels(places).astype(np.float32)
                x = np.concatenate([x, labels[:, :, None]], axis=2)
            yield Block(block.index, x.reshape(len(x), self.n_features), block.y)


def group_places(
    n_images: int, groups: np.ndarray | None, group_cap: int | None
) -> np.ndarray:
    """Return the indices (n_groups, group_cap) of the first images of each group.

    A group with fewer images gets indices of -1. An image without a group is its own
    group. A group's indices depend only on which images belong to the group. Without a
    cap, each image is its own row, and the shape is (n_images, 1).
    """
    if group_cap is None:
        return np.arange(n_images)[:, None]
    assert groups is not None
    ids = unit_ids(groups)
    own, slots = np.unique(ids, return_inverse=True)
    kept = within_cap(groups, group_cap)
    places = np.full((len(own), group_cap), -1)
    places[slots[kept], ranks(ids)[kept]] = np.flatnonzero(kept)
    return places
