"""Image sources as 8-bit arrays of one size, in the order that `dphead extract` gives
rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from extract.classes import Classes
from extract.image_source import Source
from extract.images import PixelRange, UnreadableImage, with_channels
from extract.index import ImageIndex
from extract.sources import log_left_out, open_source


@dataclass(frozen=True)
class LabelledImages:
    """x: (n, channels, h, w) uint8; y: (n,) int, -1 for none; classes: the declared
    ones; declared: how. readable: (n,) bool; an image that is not has label -1 in y, so
    that it counts zero, and its own in `labels`.

    grouped: whether the source says which images belong together (a group column).
    digests: uint64, of each image that could be read, under an index's key.
    names: the private name of each image.
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
    path: str | Path,
    classes: Classes,
    split: str | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    layout: str | None = None,
    index: ImageIndex | None = None,
    pixels: PixelRange | None = None,
) -> LabelledImages:
    """Read a folder, manifest, archive, IDX, CIFAR or npz source (`extract.sources`)
    into memory.

    size: side of the square, or (h, w), that images are resized to; needed for files,
    which may differ in size.
    channels: 1 or 3 (default: that of an array; 3 for files). An image that cannot be
    read has no label, so that it counts zero. layout: what the folders of the files'
    paths are (`extract.layout`). index: knows images that were seen before; None makes
    no digests. pixels: what is declared of images' samples.
    Raises ValueError for a source without public classes or with several splits and
    none named.
    """
    source = open_source(path, classes, split, layout, pixels=pixels)
    log_left_out(source.left_out)
    if source.class_names is None:
        raise ValueError(
            "the classes must be declared public, got classes=None. Pass --classes "
            "a,b,c."
        )
    labels = source.labels.astype(np.int64)
    readable = np.ones(source.n_rows, bool)
    grouped = source.group is not None
    if source.arrays is not None and size is None and channels is None:
        x, digests = _as_they_are(source, source.arrays, index)
    elif size is None and source.arrays is None:
        raise ValueError(
            f"image files need one size, got {size=} for {path}. Pass --image-size."
        )
    else:
        x, readable, digests = _resized(source, size, channels, index)
    return LabelledImages(
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
    """(images (n, channels, height, width), their digests) of arrays (n, height,
    width), or with channels last.
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
    """(images (n, channels, height, width), which of them can be read (n,), the digests
    of these). size: None for arrays, which have their own.
    """
    arrays = source.arrays
    own: tuple[int, int] = (0, 0) if arrays is None else arrays.shape[1:3]
    height, width = (size, size) if isinstance(size, int) else size or own
    grey = arrays is not None and arrays.ndim == 3
    channels = channels or (1 if grey else 3)
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
    log_left_out(reasons)
    return x, readable, digests
