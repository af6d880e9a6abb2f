"""Define a source of images.

No row may affect how another row is decoded. `opening` opens the source that a user
names.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dphead_extract.images import (
    PixelRange,
    UnreadableImage,
    decode_image,
    sample_bits,
    stored_samples,
    to_uint8,
)
from dphead_extract.sources.classes import Classes, Roles
from dphead_extract.sources.columns import Columns

_HALF_OF_LEVELS = 127
_WHITE = 255  # white in 8 bits
MISSING = "the file does not exist"  # why a row is unreadable


@dataclass(frozen=True)
class SourceOptions:
    """Hold the user's declarations about a source (`opening.open_source`)."""

    classes: Classes
    split: str
    layout: str | None
    columns: Columns
    pixels: PixelRange


@dataclass
class DeepImages:
    """Record how much of their range gray images of more than 8 bits use.

    The result is private, for the data holder only. It never changes the range, which
    must not depend on the images.
    """

    count: int = 0
    highest: int = 0  # highest of the 256 levels in any image

    def add(self, level: int | None) -> None:
        """Note the result of `Source.highest_level`."""
        if level is not None:
            self.count += 1
            self.highest = max(self.highest, level)

    def doubts(self) -> list[str]:
        """Return a warning if all images are darker than half of their range."""
        if not self.count or self.highest > _HALF_OF_LEVELS:
            return []
        return [
            f"gray images of more than 8 bits: {self.count}. They use at most "
            f"{self.highest + 1} of 256 gray levels, as images of 12 bits in files of "
            "16 bits do. Look up how many bits the device stores, and type --bits N"
        ]


@dataclass(kw_only=True)
class Source(Roles):
    """Hold images in a fixed order, with their labels, splits and groups.

    Exactly one of `arrays` and `read` is set.

    Attributes
    ----------
    kind : str
        The kind of source.
    digest : str
        sha256 that identifies the listing, the labels and (for arrays) the pixels.
    names : sequence of str
        The private name of each row.
    arrays : (n, H, W) or (n, H, W, 3) numbers, or None
        The images as they are stored. `decode` returns their 8-bit levels.
    read : callable or None
        Returns the file bytes of a row.
    left_out : Counter
        Numbers of files, members or rows of the source that are left out, by reason;
        private.
    doubts : list of str
        Warnings about rows that may have been misread; private.
    missing : sequence of int
        Rows without an image file.
    first : int
        Position of row 0 in the whole source (`part`).
    layout : str
        The layout by which paths were read; "" without a layout.
    pixels : PixelRange
        Declared range of the images' samples.
    """

    kind: str
    digest: str
    names: Sequence[str]
    arrays: np.ndarray | None = None
    read: Callable[[int], bytes] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    doubts: list[str] = field(default_factory=list)
    missing: Sequence[int] = ()
    first: int = 0
    layout: str = ""
    pixels: PixelRange = field(default_factory=PixelRange)

    @property
    def by_position(self) -> bool:
        """Return whether a row's name is its position, not a path."""
        return self.arrays is not None or self.kind == "dataset"

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    def part(self, first: int, stop: int) -> "Source":
        """Return rows first to stop - 1 as a source.

        The result keeps the digest of the whole source.
        """
        rows, read = slice(first, stop), self.read
        return replace(
            self,
            labels=self.labels[rows],
            split=self.split[rows],
            names=self.names[rows],
            group=None if self.group is None else self.group[rows],
            arrays=None if self.arrays is None else self.arrays[rows],
            read=None if read is None else lambda row: read(first + row),
            missing=(),
            first=self.first + first,
        )

    def raw(self, row: int) -> np.ndarray | bytes | None:
        """Return the input of `decode` for one row.

        It is None if the row has no file or no bytes, and b"" if they cannot be read.
        """
        if self.arrays is not None:
            return self.arrays[row]
        assert self.read is not None
        try:
            return self.read(row)
        except (FileNotFoundError, NotADirectoryError):
            return None
        # for a disk error or a damaged table: no bytes, so the row is unreadable
        except Exception:
            return b""

    def decode(self, raw: np.ndarray | bytes | None) -> np.ndarray:
        """Return the decoded image, uint8 (H, W) or (H, W, 3).

        Raises UnreadableImage if it cannot be decoded.
        """
        if raw is None:
            raise UnreadableImage(MISSING)
        return _decoded(raw, self.pixels)

    def forms(
        self, raw: np.ndarray | bytes | None, image: np.ndarray
    ) -> list[np.ndarray]:
        """Return the arrays whose digests identify a row's image in the index.

        `image` is the decoded row. The first form has the canonical pixels. They are
        equal for the usual lossless copies of an image: as gray or as RGB with equal
        channels, with 8 bits or more. Earlier versions of dphead stored digests of the
        second and third forms. The last two forms are of samples of more than 8 bits.
        A lossy reading of a copy has them as its canonical pixels: the rounded 8-bit
        levels (floating-point arrays, PPM), and the upper bytes, which Pillow reads of
        16-bit colors or with transparency. A form that an image does not have is the
        first one. All forms ignore the declared range. Otherwise the same images under
        another range would be a new data set with a new budget.
        """
        assert raw is not None  # None is a missing file, which has no decoded image
        levels: np.ndarray | None = image
        if self.pixels != PixelRange():
            try:
                levels = _decoded(raw, PixelRange())
            except UnreadableImage:  # the samples have no known range
                levels = None
        if isinstance(raw, bytes):
            samples, whole = stored_samples(raw), np.frombuffer(raw, np.uint8)
        else:
            samples = whole = raw
        own = _canonical(samples, levels)
        colors = own
        if own.dtype == np.uint8 and own.ndim == 2:
            colors = np.broadcast_to(own[..., None], (*own.shape, 3))
        deep = own.dtype != np.uint8 and levels is not None
        rounded = _canonical(None, levels) if deep else own
        earlier = whole if levels is None else levels
        return [own, earlier, colors, rounded, _upper_bytes(own)]

    def highest_level(
        self, raw: np.ndarray | bytes | None, image: np.ndarray
    ) -> int | None:
        """Return the highest level (0 to 255) of a gray image of more than 8 bits.

        Return None for other images, or with a declared range.
        """
        if raw is None or image.ndim == 3 or self.pixels != PixelRange():
            return None
        if isinstance(raw, bytes):
            deep = sample_bits(raw) > 8
        else:
            deep = raw.dtype.kind == "u" and raw.dtype.itemsize > 1
        return int(image.max(initial=0)) if deep else None

    def image(self, row: int) -> np.ndarray:
        """Return the decoded image of one row, uint8 (H, W) or (H, W, 3).

        Raises UnreadableImage if it cannot be decoded.
        """
        return self.decode(self.raw(row))


def _canonical(samples: np.ndarray | None, levels: np.ndarray | None) -> np.ndarray:
    """Return the canonical pixels of an image: uint8 if they fit, else float64.

    `levels` has the 8-bit levels, or is None for samples without a known range.
    `samples` has the stored samples, or is None if `levels` are the stored samples.
    Equal channels become one channel.
    """
    wide = samples is not None and samples.dtype.kind in "iu" and samples.itemsize > 1
    pixels = levels
    if samples is not None and (wide or levels is None):
        pixels = samples.astype(np.float64) + 0.0  # -0.0 becomes 0.0
        # 16-bit files hold 8-bit values times 257, as formats define it, or unchanged
        for step in (257, 1):
            small = pixels / step
            if small.min() >= 0 and small.max() <= _WHITE and not (small % 1).any():
                pixels = small.astype(np.uint8)
                break
    assert pixels is not None  # a decoded image has pixels
    if pixels.ndim == 3:
        # check the first row first: in most color images its channels already differ
        parts = (pixels[:1], pixels)
        if all((part == part[..., :1]).all() for part in parts):
            return pixels[..., 0]
    return pixels


def _upper_bytes(pixels: np.ndarray) -> np.ndarray:
    """Return the canonical upper bytes of 16-bit samples, and other pixels unchanged.

    `pixels` are canonical pixels.
    """
    if pixels.dtype == np.uint8 or not (0 <= pixels.min() <= pixels.max() < 2**16):
        return pixels
    if (pixels % 1).any():
        return pixels
    return _canonical(None, (pixels // 256).astype(np.uint8))


def _decoded(raw: np.ndarray | bytes, pixels: PixelRange) -> np.ndarray:
    return (
        decode_image(raw, pixels) if isinstance(raw, bytes) else to_uint8(raw, pixels)
    )
