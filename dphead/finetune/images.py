"""Read image sources as 8-bit arrays of one size.

Rows are in the order of `dphead extract`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from dphead_extract.images import UnreadableImage, with_channels
from dphead_extract.index import ImageIndex
from dphead_extract.sources.image import DeepImages, Source
from dphead_extract.sources.opening import tell_doubts, tell_left_out
from PIL import Image


class Opened(NamedTuple):
    """Hold rows of a source in memory, to train a network or to measure it.

    Attributes
    ----------
    x : ndarray of shape (n, ...)
        The rows.
    y : ndarray of shape (n,)
        Class indices; numbers outside 0..n_classes - 1 mean no class.
    readable : ndarray of shape (n,), bool
        Whether each row is readable.
    names : sequence of str or None
        Private names of the rows.
    groups : ndarray of shape (n,), int, or None
        Group id of each row. Private.
    """

    x: np.ndarray
    y: np.ndarray
    readable: np.ndarray
    names: Sequence[str] | None = None
    groups: np.ndarray | None = None

    def check_labeled(self, n_classes: int, source: Path) -> None:
        """Raise ValueError if no row has a class."""
        if not ((self.y >= 0) & (self.y < n_classes)).any():
            raise ValueError(
                f"{source} has no labels of the network's classes. Pass labeled rows, "
                "or use `dphead predict`, which needs no labels."
            )


def load_images(
    source: Source,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    index: ImageIndex | None = None,
    part: Sequence[int] | np.ndarray | None = None,
) -> tuple[Opened, np.ndarray]:
    """Read the images of an opened source into memory.

    Parameters
    ----------
    source : Source
        The source, of one split.
    size : int or (int, int), optional
        Side of the square, or (h, w), to resize images to. Required for files, which
        may differ in size.
    channels : int, optional
        1 or 3. Default: 1 for an array of gray images (n, h, w), else 3.
    index : ImageIndex, optional
        Index of known images, which computes digests. None computes no digests.
    part : sequence of int, optional
        Rows to read. Other rows are zeros and not readable. Default: all rows.

    Returns
    -------
    Opened
        The images (n, channels, h, w), uint8, in the row order of `dphead extract`.
    ndarray of shape (m, forms), uint64
        Keyed digests (`ImageIndex.digests`) of the m images that were readable; empty
        without an index.

    Raises
    ------
    ValueError
        If the source has no public classes, or files have no size.
    """
    tell_left_out(source.left_out)
    if source.class_names is None:
        raise ValueError(
            "--classes is required, because classes must be declared public. Type "
            "--classes A,B,C (names) or --classes N (number of classes)."
        )
    arrays = source.arrays
    if size is None and arrays is None:
        raise ValueError(
            "--image-size is required for image files. Try --image-size 32."
        )
    own: tuple[int, int] = (0, 0) if arrays is None else arrays.shape[1:3]
    height, width = (size, size) if isinstance(size, int) else size or own
    channels = channels or (3 if arrays is None or arrays.ndim != 3 else 1)
    x = np.zeros((source.n_rows, channels, height, width), np.uint8)
    readable = np.zeros(source.n_rows, bool)
    digests: list[list[int]] = []
    reasons: Counter[str] = Counter()
    deep = DeepImages()
    for row in map(int, range(source.n_rows) if part is None else part):
        try:
            raw = source.raw(row)
            pixels = source.decode(raw)
        except UnreadableImage as error:
            reasons[f"unreadable images ({error})"] += 1
            continue
        readable[row] = True
        deep.add(source.highest_level(raw, pixels))
        if index is not None:
            digests.append(index.digests(source.forms(raw, pixels)))
        image = with_channels(pixels, channels)
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
        x[row] = np.atleast_3d(pixels).transpose(2, 0, 1)
    tell_left_out(reasons)
    tell_doubts([*source.doubts, *deep.doubts()])
    labels = source.labels.astype(np.int64)
    opened = Opened(x, labels, readable, source.names, source.group)
    return opened, np.array(digests, np.uint64)
