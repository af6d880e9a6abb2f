"""Read image sources as 8-bit arrays of one size.

Rows are in the order of `dphead extract`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dphead_extract.images import UnreadableImage, with_channels
from dphead_extract.index import ImageIndex
from dphead_extract.sources.image import Source
from dphead_extract.sources.opening import tell_left_out
from PIL import Image


@dataclass(frozen=True)
class LabeledImages:
    """Hold the images and labels of a source.

    Attributes
    ----------
    x : ndarray of shape (n, channels, h, w), uint8
        The images.
    y : ndarray of shape (n,), int
        Class indices; -1 without a class or for an unreadable image.
    classes : list of str
        The declared classes.
    declared : str
        How the classes were declared.
    splits : list of str
        The source's splits.
    digests : ndarray, uint64
        Keyed digest of each readable image.
    labels : ndarray of shape (n,), int
        All labels, including the labels of unreadable images.
    readable : ndarray of shape (n,), bool
        Whether each image is readable.
    grouped : bool
        Whether the source has a group column.
    names : sequence of str
        The private name of each image.
    """

    x: np.ndarray
    y: np.ndarray
    classes: list[str]
    declared: str
    splits: list[str]
    digests: np.ndarray
    labels: np.ndarray
    readable: np.ndarray
    grouped: bool = False
    names: Sequence[str] = ()


def load_images(
    source: Source,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    index: ImageIndex | None = None,
) -> LabeledImages:
    """Read the images of an opened source into memory.

    An unreadable image has no label and adds zero to every sum.

    Parameters
    ----------
    source : Source
        The source, of one split.
    size : int or (int, int), optional
        Side of the square, or (h, w), to resize images to. Required for files, which
        may differ in size.
    channels : int, optional
        1 or 3. Default: the array's number; 3 for files.
    index : ImageIndex, optional
        Index of known images, which computes digests. None computes no digests.

    Returns
    -------
    LabeledImages
        The images, in the row order of `dphead extract`.

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
    labels = source.labels.astype(np.int64)
    readable = np.ones(source.n_rows, bool)
    grouped = source.group is not None
    if source.arrays is not None and size is None and channels is None:
        x, digests = _as_they_are(source, source.arrays, index)
    elif size is None and source.arrays is None:
        raise ValueError(
            "--image-size is required for image files. Try --image-size 32."
        )
    else:
        x, readable, digests = _resized(source, size, channels, index)
    return LabeledImages(
        x,
        np.where(readable, labels, -1),
        source.class_names,
        source.classes_declared,
        source.split_names,
        np.array(digests, np.uint64),
        labels,
        readable,
        grouped,
        source.names,
    )


def _as_they_are(
    source: Source, arrays: np.ndarray, index: ImageIndex | None
) -> tuple[np.ndarray, list[int]]:
    """Return (images, digests) of arrays, without resizing.

    Arrays have shape (n, height, width), or channels last; images (n, channels, height,
    width).
    """
    x = arrays[:, None] if arrays.ndim == 3 else arrays.transpose(0, 3, 1, 2)
    if index is None:
        return x, []
    known = (source.known_by(row, image, image) for row, image in enumerate(arrays))
    return x, [index.digest(image) for image in known]


def _resized(
    source: Source,
    size: int | tuple[int, int] | None,
    channels: int | None,
    index: ImageIndex | None,
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return resized images, a mask of readable images, and their digests.

    Images have shape (n, channels, height, width). `size` is None for arrays.
    """
    arrays = source.arrays
    own: tuple[int, int] = (0, 0) if arrays is None else arrays.shape[1:3]
    height, width = (size, size) if isinstance(size, int) else size or own
    gray = arrays is not None and arrays.ndim == 3
    channels = channels or (1 if gray else 3)
    x = np.zeros((source.n_rows, channels, height, width), np.uint8)
    readable = np.ones(source.n_rows, bool)
    digests: list[int] = []
    reasons: Counter[str] = Counter()
    for row in range(source.n_rows):
        try:
            raw = source.raw(row)
            pixels = source.decode(raw)
        except UnreadableImage as error:
            readable[row] = False
            reasons[f"unreadable images ({error})"] += 1
            continue
        if index is not None:
            digests.append(index.digest(source.known_by(row, raw, pixels)))
        image = with_channels(pixels, channels)
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
        x[row] = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    tell_left_out(reasons)
    return x, readable, digests
