"""What a source of images is, and the coarse hash of an image.

Nothing here may look at another row; `extract.sources` opens what a user names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image

from extract.images import PixelRange, UnreadableImage, decode_image, to_uint8


class MissingImage(UnreadableImage):
    """An image whose file does not exist."""


@dataclass
class Source:
    """Images in a fixed order.

    Exactly one of `arrays` (n, H, W[, 3]) uint8 and `read` (row -> file bytes) is set.

    labels int32 (n,), -1 for none or outside the classes; split uint8 (n,) codes into
    split_names; group int64 (n,) or None; names: the private name of each row; digest:
    sha256 that identifies listing, labels and (for arrays) pixels;
    first: what the source is a part of counts its row 0 as row `first`; layout: how
        paths were read, "" without any. left_out: how many files, members or rows of
        the source are no rows here, by reason; private. pixels: what is declared of
        samples; stored: arrays before that was applied, None where nothing is declared.
    """

    kind: str
    labels: np.ndarray
    split: np.ndarray
    split_names: list[str]
    digest: str
    names: Sequence[str]
    group: np.ndarray | None = None
    class_names: list[str] | None = None
    classes_declared: str = ""
    arrays: np.ndarray | None = None
    read: Callable[[int], bytes] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    first: int = 0
    layout: str = ""
    pixels: PixelRange = field(default_factory=PixelRange)
    stored: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        return len(self.labels)

    def part(self, first: int, stop: int) -> Source:
        """Rows first to stop - 1 as a source; its digest is still the whole
        source's.
        """
        rows, read = slice(first, stop), self.read
        return replace(
            self,
            labels=self.labels[rows],
            split=self.split[rows],
            names=self.names[rows],
            group=None if self.group is None else self.group[rows],
            arrays=None if self.arrays is None else self.arrays[rows],
            stored=None if self.stored is None else self.stored[rows],
            read=None if read is None else lambda row: read(first + row),
            first=self.first + first,
        )

    def raw(self, row: int) -> np.ndarray | bytes | None:
        """Return what `decode` needs of one row, None if its file does not exist.

        Call it in increasing order of rows where the source is a compressed tar.
        """
        if self.arrays is not None:
            return self.arrays[row]
        assert self.read is not None
        try:
            return self.read(row)
        except (FileNotFoundError, NotADirectoryError):
            return None
        # bad checksum, damaged archive member: no bytes, so unreadable
        except Exception:
            return b""

    def decode(self, raw: np.ndarray | bytes | None) -> np.ndarray:
        """uint8 (H, W) or (H, W, 3). Raises UnreadableImage."""
        if raw is None:
            raise MissingImage("the file does not exist")
        return raw if isinstance(raw, np.ndarray) else decode_image(raw, self.pixels)

    def known_by(
        self, row: int, raw: np.ndarray | bytes | None, image: np.ndarray
    ) -> np.ndarray:
        """Return what an index of images knows a row by, which was decoded to `image`.

        It is the same whatever range is declared. Otherwise the same images, under
        another range, would be a new data set with a budget of its own.
        """
        if self.pixels == PixelRange():
            return image
        raw = raw if self.stored is None else self.stored[row]
        assert raw is not None  # it was decoded
        is_array = isinstance(raw, np.ndarray)
        try:
            return to_uint8(raw) if is_array else decode_image(raw)
        except UnreadableImage:  # without a range
            return raw if is_array else np.frombuffer(raw, np.uint8)

    def image(self, row: int) -> np.ndarray:
        """Decoded image of one row, uint8 (H, W) or (H, W, 3).

        Raises UnreadableImage.
        """
        return self.decode(self.raw(row))


# 8 lowest of 32 cosines
_MIDDLES = np.arange(32) + 0.5
_FREQUENCIES = np.cos(np.pi / 32 * np.outer(np.arange(8), _MIDDLES))


def image_hash(image: np.ndarray) -> int:
    """64-bit perceptual hash: which of the 8x8 lowest cosine frequencies exceed their
    median? 0 for a flat image.

    Brightness, contrast, size and compression barely change it; it is the same for grey
    and colour copies.
    """
    small = np.asarray(
        Image.fromarray(image).convert("L").resize((32, 32), Image.Resampling.BILINEAR),
        np.float64,
    )
    if small.max() == small.min():
        return 0
    spectrum = _FREQUENCIES @ (small - small.mean()) @ _FREQUENCIES.T
    # np.median's, five times as fast
    median = np.sort(spectrum, axis=None)[31:33].mean()
    return int.from_bytes(np.packbits(spectrum > median).tobytes(), "big")
