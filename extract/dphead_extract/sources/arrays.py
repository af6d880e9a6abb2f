"""Open sources that hold whole arrays: IDX (MNIST), CIFAR binaries, .npz."""

import gzip
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.bounds import check_ends
from dphead_extract.errors import ExtractError
from dphead_extract.features.rows import group_names
from dphead_extract.images import UnreadableImage, to_uint8
from dphead_extract.sources.classes import (
    SPLITS,
    alike_groups,
    interpreted,
    possible_splits,
)
from dphead_extract.sources.columns import Columns
from dphead_extract.sources.image import Source, SourceOptions
from dphead_extract.sources.listing import is_hidden
from dphead_extract.sources.npz import opened_arrays

_IDX_PREFIX = SPLITS | {"t10k": "test"}
_IDX_UINT8 = 8  # the third byte of an IDX file (yann.lecun.com/exdb/mnist)
# number of classes: names of the files, and bytes of labels before an image
_CIFAR = {
    10: ("data_batch_*.bin", "test_batch.bin", 1),
    100: ("train.bin", "test.bin", 2),
}
# patterns of the files that each reader of a folder opens, by the kind of source
OPENED = {"idx": ("*idx[13][-.]ubyte*",)} | {
    f"cifar{kind}": (train, test) for kind, (train, test, _) in _CIFAR.items()
}
_CIFAR_PIXELS = 3072  # 3 x 32 x 32
_COLORS = ((), (3,))  # shapes of a pixel


def _source(
    kind: str,
    arrays: np.ndarray,
    columns: Mapping[str, Any],
    split_names: list[str],
    declared: SourceOptions,
) -> Source:
    """Return a Source of the declared split's rows of the arrays and columns."""
    rows, said = interpreted(
        columns, len(arrays), declared.classes, split_names, declared.split
    )
    if len(rows) == 0:
        if declared.split != "all":
            raise ExtractError(
                f"SOURCE has no image in split {declared.split}. Type another --split, "
                "such as all."
            )
        raise ExtractError("SOURCE has no image. Type the path of another source.")
    images = arrays if len(rows) == len(arrays) else arrays[rows]
    try:
        for image in [] if images.dtype == np.uint8 else images:
            to_uint8(image, declared.pixels)
    except UnreadableImage as error:
        raise ExtractError(
            f"SOURCE has unreadable images of type {images.dtype} ({error})."
        ) from error
    digest = hashlib.sha256(repr((kind, images.shape)).encode())
    digest.update(np.ascontiguousarray(images).data)
    for part in (said.labels, said.split, said.group):
        digest.update(b"|" if part is None else np.ascontiguousarray(part).tobytes())
    return Source(
        **vars(said),
        kind=kind,
        digest=digest.hexdigest(),
        names=[f"{kind}:{row}" for row in range(len(rows))],
        arrays=images,
        left_out=Counter(
            {f"rows outside split {declared.split!r}": len(arrays) - len(rows)}
        ),
        doubts=alike_groups(group_names(columns.get("group", []))),
    )


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array of an IDX file, plain or .gz.

    Raises
    ------
    ExtractError
        If the file is damaged, its numbers are not 8-bit, or its length does not match
        its header.
    """
    check_ends(path)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            first = file.read(4)
            if first[2] != _IDX_UINT8:
                raise ValueError("another type of samples")
            shape = np.frombuffer(file.read(4 * first[3]), ">u4")
            return np.frombuffer(file.read(), np.uint8).reshape(shape)
    except (OSError, EOFError, zlib.error, LookupError, ValueError) as error:
        raise ExtractError(
            f"{str(path)!r} is not a whole IDX file of 8-bit numbers. If it contains "
            "8-bit numbers, download it again."
        ) from error


def _idx_pairs(path: Path) -> dict[str, tuple[Path, Path]]:
    """Return the images and labels files of each split.

    `path` is a folder or one images file. Raises ExtractError for images without
    labels, for two images files of one split, and if only some files name a split.
    """
    pairs: dict[str, tuple[Path, Path]] = {}
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        match = re.fullmatch(r"((.*?)[-_.])?images[-.]idx3[-.]ubyte(\.gz)?", file.name)
        if match is None or is_hidden(file.name):
            continue
        stem = file.name.removesuffix(".gz")
        name = file.name.replace("images", "labels").replace("idx3", "idx1")
        if not file.with_name(name).exists():
            raise ExtractError(
                f"The labels {name!r} of {file.name} are missing. Put them into the "
                "same folder."
            )
        split = _IDX_PREFIX.get(re.split(r"[-_.]", match[2] or "")[-1], "")
        # the folder may have a file packed and unpacked
        first = pairs.setdefault(split, (file, file.with_name(name)))[0]
        if first.name.removesuffix(".gz") != stem:
            raise ExtractError(
                "The folder has two IDX files of images for the split "
                f"{split or 'all'}. Type the path of a file instead of the folder."
            )
    if "" in pairs and len(pairs) > 1:  # a single file without a split has all rows
        raise ExtractError(
            f"{pairs[''][0].name!r} has no split. Type the path of a file instead of "
            "the folder, or begin the names of both files (images and labels) with one "
            f"of {', '.join(_IDX_PREFIX)}, such as train-images-idx3-ubyte."
        )
    return pairs


def _open_idx(path: Path, declared: SourceOptions) -> Source | None:
    """Return a Source of a folder's IDX pairs (train first), or None if it has none.

    `path` may also be one images file with its labels beside it.
    """
    pairs = _idx_pairs(path)
    if not pairs:
        return None
    found = [name for name in ("train", "validation", "test", "") if name in pairs]
    arrays, labels, splits = [], [], []
    for name in found:
        x, y = (read_idx(file) for file in pairs[name])
        if not (x.ndim == 3 and y.ndim == 1 and len(x) == len(y)):
            raise ExtractError(
                f"IDX images must have shape (n, H, W) and labels (n,), got {x.shape} "
                f"and {y.shape} in {str(path)!r}. Download them again."
            )
        arrays.append(x)
        labels.append(y.astype(np.int64))
        splits += [name] * len(x)
    names = [name or "all" for name in found]
    columns = {"label": np.concatenate(labels), "split": splits}
    images = np.concatenate(arrays)
    return _source("idx", images, columns, names, declared)


def _open_cifar(path: Path, declared: SourceOptions) -> Source | None:
    """Return a Source of CIFAR-10 or CIFAR-100 files, or None without such files.

    Training batches come first, by number. Labels of CIFAR-100 are the fine labels.
    """
    for kind, (train, test, label_bytes) in _CIFAR.items():
        files = {
            name: sorted(path.glob(pattern), key=lambda file: (len(file.name), file))
            for name, pattern in (("train", train), ("test", test))
        }
        records = {
            name: np.concatenate([_cifar_records(file, label_bytes) for file in found])
            for name, found in files.items()
            if found
        }
        if not records:
            continue
        rows = np.concatenate([*records.values()])
        planes = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
        images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        columns = {
            "label": rows[:, label_bytes - 1].astype(np.int64),
            "split": [name for name, part in records.items() for _ in part],
        }
        return _source(f"cifar{kind}", images, columns, [*records], declared)
    return None


def _cifar_records(file: Path, label_bytes: int) -> np.ndarray:
    check_ends(file)
    data = np.fromfile(file, np.uint8)
    size = label_bytes + _CIFAR_PIXELS
    if len(data) == 0 or len(data) % size:
        raise ExtractError(
            f"{str(file)!r} must consist of whole records of {size} bytes, got "
            f"{len(data)} bytes. Download the file again."
        )
    return data.reshape(-1, size)


def _open_npz(path: Path, declared: SourceOptions) -> Source | None:
    """Return a Source of an .npz, or None if this is not an .npz.

    Its arrays are `images` (n, H, W[, 1 or 3]) and optionally `labels`, `split` and
    `group` (n,), each named in the singular or the plural.
    """
    if path.suffix != ".npz":
        return None
    with opened_arrays(path) as arrays:
        others = [*arrays]
        roles = Columns().roles(others, path)
        images = np.asarray(arrays["images"] if "images" in others else 0)
        columns = {role: np.asarray(arrays[name]) for role, name in roles.items()}
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if (
        images.ndim not in (3, 4)
        or 0 in images.shape
        or images.shape[3:] not in _COLORS
    ):
        found = f"shape {images.shape}" if "images" in others else "no such array"
        raise ExtractError(
            f"{str(path)!r} must have an array `images` of shape (n, H, W) or (n, H, "
            f"W, 3) with at least one image and pixel, got {found}. Save the images as "
            "such an array."
        )
    for role, values in columns.items():
        if values.shape != images.shape[:1]:
            raise ExtractError(
                f"`{roles[role]}` in {str(path)!r} must have one value per image, got "
                f"shape {values.shape} for {len(images)} images. Save the file again."
            )
    names = possible_splits("split" in columns)
    source = _source("npz", images, columns, names, declared)
    unread = set(others) - {"images", *roles.values()}
    source.left_out.update(f"arrays of another name ({name!r})" for name in unread)
    return source


READERS = _open_npz, _open_idx, _open_cifar  # in the order in which they are tried
