"""Sources of images that are made to break a program: bombs, shapes beyond all memory,
spoilt archives, what is no plain file. Each function writes one and returns its path.
"""

import bz2
import gzip
import io
import lzma
import os
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Write = Callable[[Path, random.Random], Path]
MB = 1 << 20
TOUCHED = "touched"  # by code that was run


class Touch:
    """Code in a pickle, which leaves a file where it is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / TOUCHED),)


# --- pieces -------------------------------------------------------------------


def png(width: int, height: int, data: bytes | None = None) -> bytes:
    """A grey PNG of a declared size; its pixels are zeros that compress well."""

    def chunk(kind: bytes, held: bytes) -> bytes:
        check = zlib.crc32(kind + held)
        return struct.pack(">I", len(held)) + kind + held + struct.pack(">I", check)

    if data is None:
        data = bytes(height * (width + 1))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(data))
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return head + body + chunk(b"IEND", b"")


def npy(shape: tuple[int, ...], data: bytes, dtype: str = "|u1") -> bytes:
    """An array file whose header says what it likes."""
    said = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said)) + said.encode() + data


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    """A compressed zip, or .npz."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, held in members.items():
            file.writestr(name, held)
    return path


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """With bytes changed, cut out, doubled, or cut short."""
    held = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(max(1, len(held)))
        how = rng.randrange(4)
        if how == 0:
            held[at : at + 1] = rng.randbytes(1)
        elif how == 1:
            del held[at : at + rng.randint(1, 40)]
        elif how == 2:
            held[at:at] = held[at : at + rng.randint(1, 40)]
        else:
            del held[max(1, at) :]
    return bytes(held)


def good_npz(**more: Any) -> bytes:
    """A sound source of twelve images, with members replaced."""
    y = np.arange(12) % 3
    members = {"images": np.full((12, 6, 6, 3), 60, np.uint8), "labels": y} | more
    stream = io.BytesIO()
    np.savez(stream, **{k: v for k, v in members.items() if v is not None})
    return stream.getvalue()


def tarred(names: dict[str, bytes]) -> bytes:
    """A plain tar."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        for name, held in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(held)
            file.addfile(info, io.BytesIO(held))
    return stream.getvalue()


def pictures() -> dict[str, bytes]:
    """Six sound images by class."""
    return {f"{k}/{i}.png": png(6, 6) for k in "abc" for i in range(2)}


def written(path: Path, held: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(held)
    return path


def folder_of(path: Path) -> Path:
    """Sound images by class in a folder."""
    for name, held in pictures().items():
        written(path / name, held)
    return path


# --- sources ------------------------------------------------------------------


def spoilt_npz(at: Path, rng: random.Random) -> Path:
    return written(at / "s.npz", spoilt(good_npz(), rng))


def odd_npz(at: Path, rng: random.Random) -> Path:
    """Arrays of shapes and types that no source has."""
    odd: list[Any] = [
        *(np.float32(3), np.zeros(0), np.zeros((12, 2)), np.full(12, np.nan)),
        *(np.full(12, -1), np.full(12, 2**62), np.full(12, 10**9), np.ones(12, bool)),
        *(np.array(["x"] * 12), np.array("a\nb"), np.full(12, 1j), np.zeros(12, "V3")),
        *(
            np.full(12, np.datetime64("2020")),
            np.zeros((12, 0, 6)),
            np.zeros((0, 6, 6)),
        ),
        *(
            np.full((12, 6, 6), 7.5),
            np.full((12, 6, 6), np.inf),
            np.zeros((12, 6, 6, 4)),
        ),
        *(np.zeros((12, 1, 100000), np.uint8), np.zeros((12, 6, 6), "S2"), None),
        *(np.zeros((12, 6, 6), np.uint64), np.zeros((12, 6, 6), np.float16)),
    ]
    name = rng.choice(["images", "labels", "split", "group"])
    return written(at / "s.npz", good_npz(**{name: rng.choice(odd)}))


def pickled_npz(at: Path, rng: random.Random) -> Path:
    held = np.array([Touch(at)] * 12, dtype=object)
    stream = io.BytesIO()
    np.savez(stream, images=np.zeros((12, 6, 6), np.uint8), labels=held)
    return written(at / "s.npz", stream.getvalue())


def huge_npz(at: Path, rng: random.Random) -> Path:
    """A shape that no memory holds, over a little data."""
    shape = rng.choice(
        [(10**9, 1000, 1000), (2**40,), (12, 2**31, 2**31), (10**5,) * 3]
    )
    return zipped(at / "s.npz", {"images.npy": npy(shape, b"0" * 100)})


def npz_bomb(at: Path, rng: random.Random) -> Path:
    """Three gigabytes of zeros in three megabytes."""
    size = 3 << 30
    pack = zlib.compressobj(1, wbits=-15)
    head = pack.compress(npy((size // 36, 6, 6), b"")) + pack.flush(zlib.Z_FULL_FLUSH)
    block = pack.compress(bytes(64 * MB)) + pack.flush(zlib.Z_FULL_FLUSH)
    held = head + block * (size // (64 * MB)) + pack.flush()
    path = at / "s.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images.npy", held)
    # a stored member of these bytes becomes a deflated one of many more
    data = bytearray(path.read_bytes())
    central = data.rfind(b"PK\x01\x02")
    for method, length in ((8, 22), (central + 10, central + 24)):
        struct.pack_into("<H", data, method, zipfile.ZIP_DEFLATED)
        struct.pack_into("<I", data, length, size)
    return written(path, bytes(data))


def gzip_bomb(at: Path, rng: random.Random) -> Path:
    """An IDX file that unpacks to eight gigabytes."""
    member = gzip.compress(bytes(64 * MB), 1)
    head = gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 1 << 30, 2, 4))
    written(at / "idx/train-images-idx3-ubyte.gz", head + member * 128)
    written(at / "idx/train-labels-idx1-ubyte.gz", head + member * 128)
    return at / "idx"


def spoilt_idx(at: Path, rng: random.Random) -> Path:
    x = b"\0\0\x08\x03" + struct.pack(">III", 12, 6, 6) + bytes(432)
    y = b"\0\0\x08\x01" + struct.pack(">I", 12) + bytes(12)
    pack = rng.choice([lambda held: held, gzip.compress])
    end = ".gz" if pack is gzip.compress else ""
    x, y = (spoilt(held, rng) if rng.random() < 0.7 else held for held in (x, y))
    x = spoilt(pack(x), rng) if rng.random() < 0.3 else pack(x)
    written(at / f"idx/train-images-idx3-ubyte{end}", x)
    written(at / f"idx/train-labels-idx1-ubyte{end}", pack(y))
    return at / "idx"


def huge_idx(at: Path, rng: random.Random) -> Path:
    dims = rng.choice([(2**32 - 1,) * 3, (0, 6, 6), (12, 0, 6), (2**31, 1, 1)])
    x = b"\0\0\x08\x03" + struct.pack(">III", *dims) + bytes(12)
    written(at / "idx/train-images-idx3-ubyte", x)
    written(at / "idx/train-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x0c" + bytes(12))
    return at / "idx"


def spoilt_cifar(at: Path, rng: random.Random) -> Path:
    size = rng.choice([0, 1, 3072, 3073 * 3, 3074 * 2, 3073 * 2 - 1])
    name = rng.choice(["data_batch_1.bin", "test_batch.bin", "train.bin", "test.bin"])
    written(at / "cifar" / name, bytes(rng.randrange(256) for _ in range(size)))
    if rng.random() < 0.3:
        (at / "cifar/data_batch_2.bin").mkdir()
    return at / "cifar"


def spoilt_tar(at: Path, rng: random.Random) -> Path:
    packs = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.xz": lzma.compress}
    packs[".tar.bz2"] = bz2.compress
    end = rng.choice(list(packs))
    held = tarred(pictures())
    if rng.random() < 0.5:
        return written(at / f"s{end}", packs[end](spoilt(held, rng)))
    return written(at / f"s{end}", spoilt(packs[end](held), rng))


def tar_bomb(at: Path, rng: random.Random) -> Path:
    """A member of a terabyte, or one that says so, or a flood of zeros."""
    kind = rng.randrange(3)
    info = tarfile.TarInfo("a/x.png")
    info.size = 1 << 40
    if kind == 0:
        return written(at / "s.tar", info.tobuf() + b"x" * 1000)
    if kind == 1:
        return written(at / "s.tar.gz", gzip.compress(bytes(64 * MB), 1) * 128)
    held = tarred({**pictures(), "a/x.png": b"x"})
    return written(at / "s.tar.xz", lzma.compress(held + bytes(64 * MB)))


def odd_tar(at: Path, rng: random.Random) -> Path:
    """Members that are no plain files, or reach outside."""
    path = at / "s.tar"
    with tarfile.open(path, "w") as file:
        info = tarfile.TarInfo(
            rng.choice(
                ["a/x.png", "/a/x.png", "../a/x.png", "a\\..\\x.png", "C:/x.png"]
            )
        )
        kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
        info.type = rng.choice([*kinds, tarfile.GNUTYPE_SPARSE, tarfile.REGTYPE])
        info.linkname = rng.choice(["/etc/passwd", "../x", "a/x.png"])
        file.addfile(info)
        for name, held in pictures().items():
            other = tarfile.TarInfo(name)
            other.size = len(held)
            file.addfile(other, io.BytesIO(held))
    return path


def spoilt_zip(at: Path, rng: random.Random) -> Path:
    path = zipped(at / "s.zip", pictures())
    return written(path, spoilt(path.read_bytes(), rng))


def zip_bomb(at: Path, rng: random.Random) -> Path:
    """An image file of a gigabyte, or images of which each is large."""
    if rng.random() < 0.5:
        return zipped(at / "s.zip", {"a/x.png": bytes(1 << 30), **pictures()})
    large = png(8000, 8000)
    return zipped(at / "s.zip", {f"a/{i}.png": large for i in range(4)})


def odd_zip(at: Path, rng: random.Random) -> Path:
    names = [
        "../x.png",
        "/x.png",
        "a/../../x.png",
        "a\\x.png",
        "a/" + "x" * 5000 + ".png",
    ]
    names += ["a/\0x.png", "a/é.png", "a/x.png/", ".png", "a/.png", "a//x.png"]
    path = zipped(at / "s.zip", {rng.choice(names): png(6, 6), **pictures()})
    if rng.random() < 0.3:  # says that its members are encrypted
        held = bytearray(path.read_bytes())
        held[6] |= 1
        at_end = held.rfind(b"PK\x01\x02")
        held[at_end + 8] |= 1
        path.write_bytes(held)
    return path


def spoilt_images(at: Path, rng: random.Random) -> Path:
    from PIL import Image

    path = folder_of(at / "images")
    for kind in ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm"):
        stream = io.BytesIO()
        Image.new("RGB", (20, 20), (9, 60, 200)).save(stream, kind)
        held = stream.getvalue()
        end = {"jpeg": "jpg", "tiff": "tif"}.get(kind, kind)
        written(path / f"a/{kind}.{end}", spoilt(held, rng))
    return path


def huge_images(at: Path, rng: random.Random) -> Path:
    """An image of 170 megapixels, or one that says to be larger still."""
    path = folder_of(at / "images")
    kind = rng.randrange(3)
    if kind == 0:
        written(path / "a/x.png", png(13000, 13077))
    elif kind == 1:
        written(path / "a/x.png", png(2**31 - 1, 2**31 - 1, b"0"))
    else:
        written(path / "a/x.ppm", b"P6 60000 60000 255\n" + bytes(100))
    return path


def odd_files(at: Path, rng: random.Random) -> Path:
    """What is no plain file in a folder of images, or no sensible one."""
    path = folder_of(at / "images")
    odd = path / "a/odd.png"
    kind = rng.randrange(9)
    if kind == 0:
        os.mkfifo(odd)
    elif kind == 1:
        odd.symlink_to("/dev/zero")
    elif kind == 2:
        odd.symlink_to("odd.png")
    elif kind == 3:
        written(odd, b"")
        os.truncate(odd, 1 << 40)
    elif kind == 4:
        odd.mkdir()
    elif kind == 5:
        (path / "a/loop").symlink_to(path)
    elif kind == 6:
        written(odd.with_name("a\nb.png"), png(6, 6))
        Path(os.fsdecode(os.fsencode(path) + b"/a/\xff.png")).write_bytes(png(6, 6))
    elif kind == 7:
        odd.symlink_to(at / "missing")
    else:
        os.mkfifo(path / "pipe.csv")
        return path / "pipe.csv"
    return path


def odd_manifest(at: Path, rng: random.Random) -> Path:
    folder_of(at / "images")
    lines = [
        *("path,label\n/dev/zero,a", "path,label\n../../../etc/passwd,a", "path\n"),
        *("path,label\nimages/a/0.png,a,b,c", 'path,label\n"images/a/0.png,a'),
        *("path,label\n" + "x" * 300_000 + ",a", "path,label\n\0,a", "", "\xff\xfe"),
        *("path,label,path\nimages/a/0.png,a,b", "path,label\nimages/a,a", "label\na"),
        *("path,label,split\nimages/a/0.png,a,\U0001f600", "path,label\n.,a\n..,b"),
        *("path,label,group\nimages/a/0.png,a,g\n", "path,label\n" + "x" * 5000 + ",a"),
    ]
    held = rng.choice(lines).encode("utf-8", "surrogateescape")
    if rng.random() < 0.3:
        held = spoilt(held + b"\n" * 8, rng)
    return written(at / "m.csv", held)


SOURCES: tuple[Write, ...] = (
    *(spoilt_npz, odd_npz, odd_npz, pickled_npz, huge_npz, npz_bomb, gzip_bomb),
    *(spoilt_idx, huge_idx, spoilt_cifar, spoilt_tar, spoilt_tar, tar_bomb, odd_tar),
    *(spoilt_zip, zip_bomb, odd_zip, spoilt_images, huge_images, odd_files, odd_files),
    *(odd_manifest, odd_manifest),
)
