"""One picture as files of many kinds, each with the 8-bit array that it means."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

# from black to white, and neither symmetric nor square
GRAY = np.add.outer(np.arange(40) * 3, np.arange(48) * 2).astype(np.uint8)
GRAY[:12, :20] = 255
COLOR = np.stack([GRAY, GRAY[::-1], 255 - GRAY // 2], axis=-1)
# the same in 16 bits, at full range
WIDE, WIDE_COLOR = GRAY.astype(np.uint16) * 257, COLOR.astype(np.uint16) * 257


WHOLE = {530: (1, 1)}  # a TIFF's colors are not subsampled


def encoded(image, kind="PNG", **options):
    """The bytes of a file that Pillow writes of an array or an image."""
    buffer = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def drawn(seed, *shape):
    """The bytes of a PNG file of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, shape or (8, 8))
    return encoded(pixels.astype(np.uint8))


def pack(path, members):
    """A folder of files, {name: bytes} or (name, bytes)."""
    members = list(members.items() if isinstance(members, dict) else members)
    for name, data in members:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def tiff(
    values,
    photometric=1,
    bits=None,
    kind=1,
    order="<",
    packed=False,
    planes=1,
    width=None,
):
    """A TIFF of one strip a plane: values (height, width[, samples]) of its type.

    kind: 1 unsigned, 2 signed, 3 floating-point. packed: by deflate. planes: the number
    of planes that the samples lie in. photometric: None leaves the tag out. width: in
    pixels, where a value holds several.
    """
    values = values.astype(values.dtype.newbyteorder(order))
    height, columns, *samples = values.shape
    samples = samples[0] if samples else 1
    bits = bits or 8 * values.dtype.itemsize
    parts = [values] if planes == 1 else np.moveaxis(values, -1, 0)
    strips = [np.ascontiguousarray(part).tobytes() for part in parts]
    strips = [zlib.compress(strip) for strip in strips] if packed else strips
    tags = {
        256: (4, [width or columns]),
        257: (4, [height]),
        258: (3, [bits] * samples),
        259: (3, [8 if packed else 1]),
        262: (3, [photometric]),
        273: (4, [0] * len(strips)),
        277: (3, [samples]),
        278: (4, [height]),
        279: (4, [len(strip) for strip in strips]),
        284: (3, [1 if planes == 1 else 2]),
        339: (3, [kind] * samples),
    }
    if photometric is None:
        del tags[262]
    for _ in range(2):  # the strips' places are known once the tags' size is
        head, data = [struct.pack(order + "H", len(tags))], b""
        begin = 8 + 2 + 12 * len(tags) + 4
        for tag, (code, given) in tags.items():
            text = struct.pack(f"{order}{len(given)}{'HI'[code - 3]}", *given)
            head.append(struct.pack(order + "HHI", tag, code, len(given)))
            place = struct.pack(order + "I", begin + len(data))
            head.append(text.ljust(4, b"\0") if len(text) <= 4 else place)
            data += text if len(text) > 4 else b""
        ends = np.cumsum([begin + len(data), *map(len, strips)])
        tags[273] = (4, ends[:-1].tolist())
    begins = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "I", 8)
    return begins + b"".join(head) + b"\0\0\0\0" + data + b"".join(strips)


def chunk(name, data):
    check = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + check


def png(values, color, bits=16, more=b"", width=None):
    """A PNG of samples (height, width, ...); more: chunks before the pixels."""
    height, columns = values.shape[:2]
    head = struct.pack(">IIBBBBB", width or columns, height, bits, color, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in values)
    body = chunk(b"IHDR", head) + more + chunk(b"IDAT", zlib.compress(lines))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def packed_12(values):
    """Two samples of 12 bits in three bytes, (height, 3 * width / 2) uint8."""
    first, second = values[:, ::2].astype(int), values[:, 1::2].astype(int)
    bytes_ = [first >> 4, (first & 15) << 4 | second >> 8, second & 255]
    return np.stack(bytes_, axis=-1).astype(np.uint8).reshape(len(values), -1)


def on_white(levels, alpha):
    """What is seen of levels with an alpha from 0 to 255, over white."""
    share = alpha / 255
    return levels * share + 255 * (1 - share)


def ycck():
    """COLOR as a JPEG of YCCK, as Adobe stores it: inverted."""
    parts = np.asarray(Image.fromarray(255 - COLOR).convert("YCbCr"))
    inverted = np.dstack([255 - parts, np.zeros_like(GRAY)])
    data = encoded(Image.fromarray(inverted, "CMYK"), "JPEG", quality=100)
    at = data.index(b"Adobe")
    return data[: at + 11] + b"\x02" + data[at + 12 :]


def turned(orientation):
    """GRAY as it is stored under an orientation."""
    stored = Image.fromarray(GRAY)
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    method = back.get(orientation)
    return stored if method is None else stored.transpose(method)


def meant():
    """{name: (bytes of a file, the array that it means)}."""
    alpha = np.tile(np.arange(48, dtype=np.uint8) * 5, (40, 1))
    seen = on_white(GRAY.astype(float), alpha)
    seen_color = on_white(COLOR.astype(float), alpha[..., None])
    wide_alpha = alpha.astype(np.uint16) * 257
    palette = Image.fromarray(COLOR).quantize(64)
    of_palette = np.asarray(palette.convert("RGB"))
    clear = np.asarray(palette) == 3
    cmyk = Image.fromarray(COLOR).convert("CMYK")
    shorter = WIDE >> 4
    keyed = chunk(b"tRNS", struct.pack(">H", int(WIDE[20, 5])))
    moving = {"save_all": True, "append_images": [Image.fromarray(255 - COLOR)]}
    four = (GRAY[:, ::2] & 0xF0) | (GRAY[:, 1::2] >> 4)
    of_four = (GRAY >> 4) * 17
    found = {
        "png color": (encoded(COLOR), COLOR),
        "png 1 bit": (
            encoded(Image.fromarray(GRAY).convert("1")),
            np.asarray(Image.fromarray(GRAY).convert("1")) * np.uint8(255),
        ),
        "png 4 bits, one clear": (
            png(four, 0, 4, chunk(b"tRNS", b"\0\5"), 48),
            np.where(of_four == 85, 255, of_four),
        ),
        "png 16 bits, one clear": (
            png(WIDE.astype(">u2"), 0, more=keyed),
            np.where(GRAY[20, 5] == GRAY, 255, GRAY),
        ),
        "png 16 bits, alpha": (
            png(np.stack([WIDE, wide_alpha], -1).astype(">u2"), 4),
            seen,
        ),
        "png 16 bits, color": (
            png((COLOR.astype(">u2") * 257).astype(">u2"), 2),
            COLOR,
        ),
        "png color alpha": (encoded(np.dstack([COLOR, alpha])), seen_color),
        "png palette, one clear": (
            encoded(palette, transparency=3),
            np.where(clear[..., None], 255, of_palette),
        ),
        "png, damaged EXIF": (encoded(GRAY, exif=b"Exif\0\0junkjunk"), GRAY),
        "jpeg": (encoded(GRAY, "JPEG", quality=100), GRAY),
        "jpeg cmyk": (encoded(cmyk, "JPEG", quality=100), COLOR),
        "jpeg ycck": (ycck(), COLOR),
        "gif, two frames": (encoded(palette, "GIF", **moving), of_palette),
        "webp, two frames": (encoded(COLOR, "WEBP", lossless=True, **moving), COLOR),
        "bmp": (encoded(COLOR, "BMP"), COLOR),
        "pgm 12 bits": (
            b"P5 48 40 4095\n" + shorter.astype(">u2").tobytes(),
            shorter / 4095 * 255,
        ),
        "tiff cmyk": (encoded(cmyk, "TIFF"), np.asarray(cmyk.convert("RGB"))),
        "tiff, two pages": (encoded(COLOR, "TIFF", **moving), COLOR),
        "tiff 12 bits": (
            tiff(packed_12(shorter), bits=12, width=48),
            shorter / 4095 * 255,
        ),
        "tiff color alpha": (encoded(np.dstack([COLOR, alpha]), "TIFF"), seen_color),
        "tiff YCbCr": (
            encoded(Image.fromarray(COLOR).convert("YCbCr"), "TIFF", tiffinfo=WHOLE),
            COLOR,
        ),
        "tiff planes": (tiff(COLOR, 2, planes=3), COLOR),
        "tiff 16 bits, color": (tiff(WIDE_COLOR, 2), COLOR),
    }
    for packed in (False, True):
        how = f", packed {packed}"
        found |= {
            f"tiff, white is zero{how}": (tiff(255 - GRAY, 0, packed=packed), GRAY),
            f"tiff 16 bits{how}": (tiff(WIDE, packed=packed), GRAY),
            f"tiff 16 bits, big-endian{how}": (
                tiff(WIDE, order=">", packed=packed),
                GRAY,
            ),
        }
    for orientation in range(1, 9):
        stored, tags = turned(orientation), exif(orientation)
        found[f"png turned {orientation}"] = (encoded(stored, exif=tags), GRAY)
    found["jpeg turned"] = (encoded(turned(6), "JPEG", exif=exif(6), quality=100), GRAY)
    wide = np.asarray(turned(6)).astype(np.uint16) * 257
    found["tiff turned"] = (encoded(wide, "TIFF", exif=exif(6)), GRAY)
    return found


def unclear():
    """{name: (bytes of a file that is refused, a part of the reason)}."""
    signed = (WIDE.astype(int) - 2**15).astype(np.int16)
    floats = (GRAY / 255).astype(np.float32)
    data = encoded(Image.fromarray(COLOR).convert("CMYK"), "JPEG")
    adobe = data.index(b"\xff\xee")  # a segment of 16 bytes with its marker
    return {
        "tiff signed 8 bits": (tiff(signed.astype(np.int8), kind=2), "known range"),
        "tiff signed 16 bits": (tiff(signed, kind=2), "known range"),
        "tiff 32 bits": (tiff(GRAY.astype(np.uint32)), "known range"),
        "tiff floating-point": (tiff(floats, kind=3), "known range"),
        "tiff signed, packed big-endian": (
            tiff(signed, kind=2, order=">", packed=True),
            "big-endian and compressed",
        ),
        "tiff 16 bits in planes": (tiff(WIDE_COLOR, 2, planes=3), "separate planes"),
        "tiff without photometric interpretation": (
            tiff(GRAY, photometric=None),
            "without photometric interpretation",
        ),
        "png 16-bit colors, one clear": (
            png(
                WIDE_COLOR.astype(">u2"),
                2,
                more=chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3)),
            ),
            "with a transparent color",
        ),
        "tiff of four samples": (
            tiff(np.dstack([COLOR, GRAY]), 2),
            "fourth sample has no declared meaning",
        ),
        "tiff of YCbCr": (
            tiff(np.asarray(Image.fromarray(COLOR).convert("YCbCr")), 6),
            "subsampled and not compressed",
        ),
        "jpeg of CMYK without Adobe's segment": (
            data[:adobe] + data[adobe + 16 :],
            "without Adobe's marker",
        ),
        "jpeg 2000": (encoded(GRAY, "JPEG2000"), "not an image of a supported format"),
        "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "format"),
    }
