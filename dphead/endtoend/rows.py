"""8-bit images as private rows. What a row holds is read for that row alone."""

from collections.abc import Iterator

import numpy as np

from dphead.privacy.contract import Block, Known
from dphead.rows.arrays import ArrayRows
from dphead.rows.blocks import BLOCK_ROWS


class ImageRows:
    """Images (n, channels, h, w) uint8 in memory with labels (n,) int; a label that is
    not a class counts zero.

    n_features is the number of an image's pixels times channels; a network's statistic
    has the size of its parameters, whatever it is. groups, group_cap: as in
    `dphead.rows.arrays.ArrayRows`.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        groups: np.ndarray | None = None,
        group_cap: int | None = None,
    ) -> None:
        if (
            images.ndim != 4
            or images.dtype != np.uint8
            or labels.shape != images.shape[:1]
        ):
            raise ValueError(
                "images must be uint8 (n, channels, h, w) with labels (n,), got "
                f"{images.shape=}, {images.dtype=}, {labels.shape=}. Convert them."
            )
        if (groups is None) != (group_cap is None):
            raise ValueError(
                f"groups and group_cap must be given together, got {group_cap=}. Give "
                "both, or neither."
            )
        self.n_features = int(np.prod(images.shape[1:]))
        self._x = images.reshape(len(images), self.n_features)
        # The labels, and what a group's cap leaves of them, are those that heads are
        # fitted with.
        slots = np.zeros((len(images), 1), np.float32)
        self._slots = ArrayRows(slots, labels, BLOCK_ROWS, groups, group_cap)
        self.n_rows, self.group_cap, self.within = (
            len(images),
            group_cap,
            self._slots.within,
        )

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Blocks that hold each image (or each of `indices`) once; the last is padded
        with index -1.
        """
        for block in self._slots.blocks(indices):
            x = self._x[np.maximum(block.index, 0)].astype(np.float32)
            yield Block(block.index, x, block.y)
