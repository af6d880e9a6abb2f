"""What a source of images is, and the decoding of an image to a canonical 8-bit array.

Nothing here may look at another row; `extract.sources` opens what a user names.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image, ImageOps

from extract.errors import ExtractError

# an image of up to twice Pillow's limit (179 megapixels) is decoded, a larger one is
# none: the warning between the two would be lines of Pillow's own source
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


class UnreadableImage(Exception):
    """An image that cannot be decoded; the reason is its text."""


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
        the source are no rows here, by reason; private.
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
        return raw if isinstance(raw, np.ndarray) else decode_image(raw)

    def image(self, row: int) -> np.ndarray:
        """Decoded image of one row, uint8 (H, W) or (H, W, 3).

        Raises UnreadableImage.
        """
        return self.decode(self.raw(row))


def decode_image(data: bytes) -> np.ndarray:
    """Decode an image file to uint8 (H, W) for grey or (H, W, 3) for colour.

    Raises UnreadableImage.

    EXIF orientation is applied, 16-bit values become 8-bit by their full range,
    transparency is composited on white, palettes and CMYK become RGB; of an animation
    the first frame counts.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            return canonical_array(ImageOps.exif_transpose(image))
    except UnreadableImage:
        raise
    # Pillow raises many kinds for broken files, bombs included
    except Exception as error:
        raise UnreadableImage(type(error).__name__) from error


def canonical_array(image: Image.Image) -> np.ndarray:
    """uint8 (H, W) or (H, W, 3) of a Pillow image of any mode.

    Raises UnreadableImage for floating-point images.
    """
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise UnreadableImage("integer values outside 16 bits")
        return to_uint8(values.astype(np.uint16))
    if image.mode == "F":
        raise UnreadableImage("floating-point pixels without a known range")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        grey = image.mode in ("LA", "La", "L", "1")
        return np.asarray(
            Image.alpha_composite(white, rgba).convert("L" if grey else "RGB")
        )
    if image.mode in ("L", "1"):
        return np.asarray(image.convert("L"))
    return np.asarray(image.convert("RGB"))


def to_uint8(values: np.ndarray) -> np.ndarray:
    """8-bit values: uint16 by its full range (65535 -> 255), floats from [0, 1].

    ExtractError for anything else.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint16:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if (
        values.dtype.kind == "f"
        and np.isfinite(values).all()
        and values.min() >= 0
        and values.max() <= 1
    ):
        return np.rint(values * 255).astype(np.uint8)
    raise ExtractError(
        "image arrays must be uint8, uint16, or float in [0, 1], got "
        f"dtype={values.dtype}. Scale them first."
    )


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
