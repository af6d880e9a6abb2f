"""Provide 8-bit images as private rows, read one by one."""

from collections.abc import Iterator

import numpy as np

from dphead.data.arrays import ArrayRows
from dphead.data.blocks import BLOCK_ROWS
from dphead.privacy.contract import Block, Known


class ImageRows:
    """Hold images, or other rows of one shape, in memory as private rows.

    Rows without a class add zero to sums.

    Parameters
    ----------
    images : ndarray of shape (n, channels, h, w), uint8
        The images. Rows of floats may have another shape.
    labels : ndarray of shape (n,), int
        Their labels.

    Notes
    -----
    `n_features` is channels times pixels. A network's statistic has the size of its
    parameters instead.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.n_features = int(np.prod(images.shape[1:]))
        self._x = images.reshape(len(images), self.n_features)
        # `ArrayRows` reads labels as for heads. It needs features: a column of zeros.
        slots = np.zeros((len(images), 1), np.float32)
        self._slots = ArrayRows(slots, labels, BLOCK_ROWS)
        self.n_rows = len(images)
        self.group_cap: int | None = None
        self.within = self._slots.within

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield blocks with each image, or each of `indices`, once.

        The last block is padded with index -1.
        """
        for block in self._slots.blocks(indices):
            with np.errstate(all="ignore"):  # no warning may depend on a value
                x = self._x[np.maximum(block.index, 0)].astype(np.float32)
            yield Block(block.index, x, block.y)
