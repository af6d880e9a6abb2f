"""Decode an image file to an 8-bit array, by the file's description of its samples.

`dphead export` copies this file to `decode.py`. Apart from the standard library, the
file imports only numpy and Pillow. Each image is decoded from its own bytes.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

# Pillow decodes some images with a warning that prints its own source code: images
# above its limit, up to twice the limit (179 megapixels), and images with a damaged
# EXIF block.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Only these formats are opened. Pillow would choose others by their first bytes, and
# run Ghostscript for an EPS.
Image.init()
_UNDERSTOOD = [
    *("PNG", "JPEG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "AVIF"),
    *("PPM", "TGA"),
]
_FORMATS = [name for name in _UNDERSTOOD if name in Image.OPEN]
_MOST_BITS = 32  # most bits of an integer sample that Pillow reads
# Tags of TIFF 6.0, sections 8, 18, 19 and 21; the names are the specification's.
_BITS_PER_SAMPLE = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_PLANAR = 284
_EXTRA_SAMPLES = 338
_SAMPLE_FORMAT = 339
_SUBSAMPLING = 530
_ORIENTATION = 0x0112  # tag of EXIF and TIFF
_PNG = b"\x89PNG\r\n\x1a\n"  # first bytes of every PNG file
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")  # chunks of PNG, section 11.3.3
# An image keeps this many times the length that a crop needs. A choice: without the
# bound, a strip of 1 x 60,000 pixels would be enlarged to gigabytes before the crop.
_MOST_BEYOND = 64
# The operation that turns an image upright, by orientation (EXIF 2.32, section 4.6.4).
_TURNS = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels),
}

_T = TypeVar("_T")


class UnreadableImage(Exception):
    """Report an image that cannot be decoded; the message is the reason."""


@dataclass(frozen=True)
class PixelRange:
    """Hold the declared range of gray samples other than unsigned 8-bit integers.

    The range of unsigned 8-bit samples is always 0 to 255. Colors of image files always
    have the full range of their bits. Without `bits` and `intensity`, unsigned integers
    of up to 16 bits have their full range, and image files of other samples are
    unreadable. Arrays use the declared range even for colors (`to_uint8`).

    Parameters
    ----------
    bits : int, optional
        Number of bits of integers of any type. 12 means 0 to 4095, or -2048 to 2047 for
        signed integers. An image with other values is unreadable.
    intensity : (float, float), optional
        Values that become black and white. Values outside are clipped.
    """

    bits: int | None = None
    intensity: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.bits is not None and self.intensity is not None:
            raise ValueError(
                "--bits and --intensity both declare the range of gray values. Remove "
                "one of the two."
            )
        if self.bits is not None and not 1 <= self.bits <= _MOST_BITS:
            raise ValueError(f"--bits must be from 1 to {_MOST_BITS}, got {self.bits}.")
        low, high = self.intensity or (0, 1)
        if not (low < high and math.isfinite(high - low) and high - low > 1e-30):
            raise ValueError(
                "--intensity LOW,HIGH needs LOW < HIGH, by more than 1e-30, got "
                f"{low:g},{high:g}."
            )

    @classmethod
    def of(cls, transform: dict[str, Any]) -> PixelRange:
        """Return the range that a head's or a file's transform records.

        Raises ValueError if the record is invalid.
        """
        if not isinstance(transform, dict):
            raise ValueError(
                "The image transform recorded in the run folder or export is damaged: "
                f"{str(transform)[:60]!r}. Restore this folder from a backup."
            )
        intensity = transform.get("intensity")
        return cls(transform.get("bits"), intensity and tuple(intensity))

    def record(self) -> dict[str, Any]:
        """Return the declared range as plain values."""
        if self.intensity is not None:
            return {"intensity": [float(value) for value in self.intensity]}
        return {} if self.bits is None else {"bits": self.bits}


@dataclass(frozen=True)
class _Samples:
    """Describe the samples of a file, from its header.

    white_is_zero: the file stores white as zero, and Pillow does not invert it. gray:
    the samples are gray, although Pillow converts them to colors. most: the largest
    value, if it is smaller than the number of bits allows.
    """

    bits: int = 8
    signed: bool = False
    white_is_zero: bool = False
    gray: bool = False
    most: int | None = None


def decode_image(data: bytes, declared: PixelRange | None = None) -> np.ndarray:
    """Decode an image file to uint8 (height, width) for gray or (height, width, 3).

    The orientation in EXIF is applied. A damaged EXIF block is ignored, and so are the
    texts of a PNG if they exceed Pillow's limits. Transparent pixels are blended with
    white. Palettes and CMYK become RGB. Of an animation, only the first frame is read.
    Samples of more than 8 bits are scaled to 8 bits by the declared range, or by the
    range of their type. White-is-zero images are inverted.

    Raises
    ------
    UnreadableImage
        If the file is damaged or of an unsupported format, or if the meaning or range
        of its samples is not known.
    """
    declared = declared or PixelRange()
    try:
        return _read(data, lambda image, own: _decoded(image, own, declared))
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        reason = "not an image of a supported format and layout"
        raise UnreadableImage(reason) from error
    # Pillow raises many types for damaged files, and for images beyond its size limit
    except Exception as error:
        raise UnreadableImage(f"Pillow reports {type(error).__name__}") from error


def _decoded(image: Image.Image, samples: _Samples, declared: PixelRange) -> np.ndarray:
    image.load()
    pixels = _canonical_array(image, samples, declared)
    return np.ascontiguousarray(_upright(pixels, image))


def _read(data: bytes, use: Callable[[Image.Image, _Samples], _T]) -> _T:
    """Return the result of `use(image, samples)`, for an image that is not loaded yet.

    If Pillow refuses the texts of a PNG, they are ignored.
    """
    try:
        return _opened(data, use)
    except ValueError:
        if (plain := _without_texts(data)) == data:
            raise
        return _opened(plain, use)


def _opened(data: bytes, use: Callable[[Image.Image, _Samples], _T]) -> _T:
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        return use(image, _samples(image, data))


def _without_texts(data: bytes) -> bytes:
    """Return a PNG without its texts, or other bytes unchanged."""
    kept = [data[: len(_PNG)]]
    if kept != [_PNG]:
        return data
    at = len(_PNG)
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] not in _PNG_TEXTS:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def stored_samples(data: bytes) -> np.ndarray | None:
    """Return the upright samples of an image file that `decode_image` scales to 8 bits.

    Return None for the other images that `decode_image` reads.
    """

    def deep(image: Image.Image, samples: _Samples) -> np.ndarray | None:
        if not _is_deep(image, samples):
            return None
        image.load()
        return np.ascontiguousarray(_upright(_values(image, samples), image))

    return _read(data, deep)


def _upright(pixels: np.ndarray, image: Image.Image) -> np.ndarray:
    try:
        # Pillow turns a TIFF itself, and removes the tag
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # only EXIF is damaged, and Pillow raises many types for it
        turn = None
    return pixels if turn is None else turn(pixels)


def _samples(image: Image.Image, data: bytes) -> _Samples:
    """Read the header of an image that was opened and not yet loaded."""
    if image.format == "TIFF":
        return _samples_of_tiff(image)
    if image.format == "PNG":
        return _samples_of_png(image, *data[24:26])
    if image.format == "PPM":
        decoder, _, _, arguments = image.tile[0]  # type: ignore[attr-defined]
        scaled = decoder in ("ppm", "ppm_plain") and image.mode != "1"
        most = arguments[-1] if scaled else 65535 if image.mode == "I" else 255
        return _Samples(most.bit_length(), most=most)
    of_jpeg = image.format in ("JPEG", "MPO")
    if of_jpeg and image.mode == "CMYK" and "adobe" not in image.info:
        # Adobe inverts CMYK, and Pillow always assumes this
        raise UnreadableImage("a CMYK JPEG without Adobe's marker")
    return _Samples()


def _samples_of_png(image: Image.Image, bits: int, color: int) -> _Samples:
    """Return the samples of a PNG by `bits` and `color` of IHDR (PNG, 11.2.2)."""
    clear = image.info.get("transparency")
    if bits == 16 and color == 2 and clear is not None:
        raise UnreadableImage("16-bit colors with a transparent color")
    if bits in (2, 4) and color == 0 and clear is not None:
        # Pillow scales the samples to 8 bits, but not this value
        image.info["transparency"] = clear * (255 // (2**bits - 1))
    return _Samples(bits, gray=color == 4)


def _samples_of_tiff(image: Any) -> _Samples:
    tags = image.tag_v2
    bits = max(tags.get(_BITS_PER_SAMPLE, (1,)))
    signed = 2 in tags.get(_SAMPLE_FORMAT, (1,))
    if _PHOTOMETRIC not in tags:
        raise UnreadableImage("a TIFF without photometric interpretation")
    packed = tags.get(_COMPRESSION, 1) != 1
    if packed and tags.prefix == b"MM" and image.mode in ("I", "F"):
        # libtiff has swapped the bytes already, and Pillow swaps them again
        raise UnreadableImage("signed or float samples, big-endian and compressed")
    if bits > 8 and tags.get(_PLANAR) == 2 and image.mode not in ("I", "I;16", "I;16B"):
        # Pillow reads them as 8-bit samples
        raise UnreadableImage("more than 8 bits in separate planes")
    if image.mode == "RGBA" and _EXTRA_SAMPLES not in tags:
        # Pillow reads the fourth sample as transparency, but it can be infrared
        raise UnreadableImage("a TIFF whose fourth sample has no declared meaning")
    if image.mode == "YCbCr" and tags.get(_SUBSAMPLING) != (1, 1):
        # the default subsampling is 2 by 2, but Pillow assumes 1 by 1
        raise UnreadableImage("a TIFF of YCbCr that is subsampled and not compressed")
    white_is_zero = tags[_PHOTOMETRIC] == 0 and image.mode[0] in "IF"
    return _Samples(bits, signed, white_is_zero)


def _canonical_array(
    image: Image.Image, samples: _Samples, declared: PixelRange
) -> np.ndarray:
    """Return uint8 (height, width) or (height, width, 3) of a Pillow image of any mode.

    Raises UnreadableImage for samples without a known range.
    """
    if _is_deep(image, samples):
        return _gray(image, declared, samples)
    if samples.bits > 8 and declared != PixelRange():
        raise UnreadableImage(
            "colors of more than 8 bits with --bits or --intensity, which are for gray "
            "images only: remove the option, or save the image with 8 bits"
        )
    if image.mode == "La":  # Pillow converts premultiplied gray only to LA
        image = image.convert("LA")
    if image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        gray = samples.gray or image.mode in ("LA", "L", "1")
        return np.asarray(
            Image.alpha_composite(white, rgba).convert("L" if gray else "RGB")
        )
    return np.asarray(image.convert("L" if image.mode in ("L", "1") else "RGB"))


def _is_deep(image: Image.Image, samples: _Samples) -> bool:
    """Return whether gray samples are signed, or have more than 8 bits."""
    return image.mode[0] in "IF" or samples.signed


def _values(image: Image.Image, samples: _Samples) -> np.ndarray:
    """Return the stored samples (height, width) of a deep image."""
    values, most = np.asarray(image), samples.most
    if image.mode == "L":
        return values.view(np.int8)
    if samples.bits == _MOST_BITS and image.mode == "I" and not samples.signed:
        return values.view(np.uint32)
    if most is not None and image.mode == "I":  # Pillow scaled them to 65535
        return np.rint(values * (most / 65535)).astype(np.int64)
    return values


def _gray(image: Image.Image, declared: PixelRange, samples: _Samples) -> np.ndarray:
    """Return uint8 (height, width) of signed samples, or of samples beyond 8 bits."""
    values, bits, most = _values(image, samples), samples.bits, samples.most
    whole = (0, most or 2**bits - 1)
    known = bits <= 16 and not samples.signed and image.mode != "F"
    levels = _levels(values, whole if known else None, declared, samples.signed)
    if samples.white_is_zero:
        levels = 255 - levels
    clear = image.info.get("transparency")  # the transparent value of a 16-bit PNG
    return levels if clear is None else np.where(values == clear, np.uint8(255), levels)


def to_uint8(values: np.ndarray, declared: PixelRange) -> np.ndarray:
    """Return the 8-bit levels of an image that is given as an array.

    Booleans become black and white. The range of floating-point numbers is 0 to 1
    unless an intensity is declared.

    Raises UnreadableImage for an unsupported dtype, for numbers without a known range,
    and for values that are not finite. Also for values outside the range, unless it is
    a declared intensity, which clips them.
    """
    kind, bits = values.dtype.kind, 8 * values.dtype.itemsize
    if values.dtype == np.uint8:
        return values
    if kind == "b":
        return values.astype(np.uint8) * np.uint8(255)
    if kind not in "iuf":
        raise UnreadableImage(
            f"samples of dtype {values.dtype}: save integers or floating-point numbers"
        )
    known = (0, 2**bits - 1) if kind == "u" and bits <= 16 else None
    known = (0, 1) if kind == "f" else known
    return _levels(values, known, declared, kind == "i")


def _levels(
    values: np.ndarray,
    known: tuple[float, float] | None,
    declared: PixelRange,
    signed: bool,
) -> np.ndarray:
    """Return uint8 levels of samples; `known` is their range without a declaration."""
    bits = None if values.dtype.kind == "f" else declared.bits
    if bits is not None:
        half = 2 ** (bits - 1)
        known = (-half, half - 1) if signed else (0, 2 * half - 1)
    if declared.intensity is not None:
        known = declared.intensity
    intensity = "--intensity" if declared.bits is None else "--intensity, not --bits"
    if known is None:
        whole = values.dtype.kind in "iu"
        what = "integers" if whole else "floating-point numbers"
        how = "--bits or --intensity" if whole else intensity
        raise UnreadableImage(f"{what} without a known range: declare {how}")
    low, high = known
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise UnreadableImage("NaN or infinity: replace these values")
    if declared.intensity is None and (values.min() < low or values.max() > high):
        how = f"declare {intensity}" if bits is None else "correct --bits"
        raise UnreadableImage(f"values outside the range from {low} to {high}: {how}")
    levels = (values.clip(low, high) - low) * 255 / (high - low)
    return np.rint(levels).astype(np.uint8)


def sample_bits(data: bytes) -> int:
    """Return the number of bits of gray integer samples of more than 8 bits, else 8.

    `decode_image` must be able to read the file.
    """
    if data.startswith(b"\xff\xd8"):  # a JPEG
        return 8
    return _read(data, lambda image, own: own.bits if image.mode[0] == "I" else 8)


def with_channels(pixels: np.ndarray, channels: int) -> Image.Image:
    """Return decoded pixels as a Pillow image of one channel or of three."""
    return Image.fromarray(pixels).convert("RGB" if channels == 3 else "L")


def crops(transform: dict[str, Any]) -> bool:
    """Return whether a recorded transform crops images."""
    return transform.get("crop_mode") not in ("squash", "border")


def without_ends(picture: Image.Image, height: int, width: int) -> Image.Image:
    """Return an image without the ends that a later crop certainly removes.

    The image is later resized to cover (height, width), and its center is cropped. Only
    images with a far more extreme aspect ratio are changed.
    """
    scale = max(height / picture.height, width / picture.width)
    box = [0, 0, picture.width, picture.height]
    for axis, needed in enumerate((width / scale, height / scale)):
        ends = (box[axis + 2] - math.ceil(_MOST_BEYOND * needed)) // 2
        if ends > 0:  # cut the same number of pixels at both ends
            box[axis], box[axis + 2] = ends, box[axis + 2] - ends
    whole = box == [0, 0, *picture.size]
    return picture if whole else picture.crop((box[0], box[1], box[2], box[3]))


def open_picture(file: str | Path, folder: str | Path) -> Image.Image:
    """Return an image file as the input of an exported backbone, before resizing.

    If the transform crops, the ends of a very long image are cut off first
    (`without_ends`). `folder` is the folder of the export. Its head.json has the
    declared channels and the range of gray values.

    Raises UnreadableImage as `decode_image` does. Also for a color image if the
    backbone needs gray images.
    """
    facts = json.loads((Path(folder) / "head.json").read_text(encoding="utf-8"))
    transform = facts["features"]["transform"]
    channels = transform.get("colors") or transform["input_size"][0]
    pixels = decode_image(Path(file).read_bytes(), PixelRange.of(transform))
    if channels == 1 and pixels.ndim == 3:
        raise UnreadableImage("a color image, but the network needs gray images")
    picture = with_channels(pixels, channels)
    if not crops(transform):
        return picture
    height, width = transform.get("image_size") or transform["input_size"][1:]
    return without_ends(picture, height, width)
