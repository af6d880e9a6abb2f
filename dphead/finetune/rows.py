"""Provide 8-bit images as private rows, read one by one."""

from collections.abc import Iterator

import numpy as np

from dphead.data.arrays import ArrayRows
from dphead.data.blocks import BLOCK_ROWS
from dphead.privacy.contract import Block, Known


class ImageRows:
    """Hold images in memory as private rows.

    Rows without a class add zero to sums.

    Parameters
    ----------
    images : ndarray of shape (n, channels, h, w), uint8
        The images.
    labels : ndarray of shape (n,), int
        Their labels.
    groups : ndarray, optional
        As in `dphead.data.arrays.ArrayRows`. Given together with `group_cap`.
    group_cap : int, optional
        As in `dphead.data.arrays.ArrayRows`.

    Raises
    ------
    ValueError
        If shapes or types differ from the above, or only one of `groups` and
        `group_cap` is given.

    Notes
    -----
    `n_features` is channels times pixels. A network's statistic has the size of its
    parameters instead.
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
                f"{images.dtype} {images.shape} with labels {labels.shape}. Convert "
                "images in [0, 1] with (255 * x).astype(np.uint8)."
            )
        if (groups is None) != (group_cap is None):
            raise ValueError(
                f"groups and group_cap need each other, got group_cap {group_cap}. "
                "Pass both or neither."
            )
        self.n_features = int(np.prod(images.shape[1:]))
        self._x = images.reshape(len(images), self.n_features)
        # `ArrayRows` reads labels and applies the group cap, as for heads. It needs
        # features: a column of zeros.
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
        """Yield blocks with each image, or each of `indices`, once.

        The last block is padded with index -1.
        """
        for block in self._slots.blocks(indices):
            x = self._x[np.maximum(block.index, 0)].astype(np.float32)
            yield Block(block.index, x, block.y)
