"""Read tables of images: Hugging Face datasets that hold their bytes, and manifests.

A manifest is a CSV whose rows name image files. Files are read in place. Their headers
say which columns there are; no row may decide it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.bounds import is_plain
from dphead_extract.errors import ExtractError
from dphead_extract.items import read_column
from dphead_extract.sources.archives import MAX_FILE_BYTES
from dphead_extract.sources.classes import SPLITS, Classes
from dphead_extract.sources.image import Source
from dphead_extract.sources.listing import Row, listed
from dphead_extract.sources.table_files import (
    SEPARATORS,
    check_role,
    n_rows_of,
    schema_of,
    tables,
    unusable_line,
)
from dphead_extract.sources.tables import Columns, check_columns

_IMAGES_TOGETHER = 32  # images that are read at a time; a choice, not measured
_ROWS_TOGETHER = 4096  # labels that are read at a time; a choice, not measured
_PATTERNS = ("*.parquet", "*/*.parquet", "*/*/*.parquet", "*.arrow", "*/*.arrow")


def dataset_files(path: Path) -> list[Path]:
    """Return the files of a table in a fixed order, all of one kind; [] without any.

    `path` is one file, or a folder: as on the hub (data/train-00000-of-00002.parquet)
    or as `datasets` saves it (train/data-00000-of-00002.arrow).
    """
    if path.is_file():
        kinds = (".parquet", ".arrow", *SEPARATORS)
        return [path] if path.suffix.lower() in kinds else []
    found = {p for pattern in _PATTERNS for p in path.glob(pattern) if p.is_file()}
    # caches and indices of `datasets` may lie beside the rows
    kept = [p for p in found if not p.name.startswith(("cache-", "indices-", "."))]
    parquet = [p for p in kept if p.suffix == ".parquet"]
    return sorted(parquet or kept, key=lambda p: p.relative_to(path).parts)


def open_dataset(
    path: Path, classes: Classes, split: str, columns: Columns | None
) -> Source | None:
    """Return a Source of a table's rows, or None if there is no such file.

    Parameters
    ----------
    path : Path
        A file or a folder (`dataset_files`).
    classes : Classes
        How the classes are declared.
    split : str
        The wanted split, or "all".
    columns : Columns or None
        `features` is the column of images. In a CSV it holds paths, relative to the
        CSV (default "path"). Elsewhere it holds bytes, or bytes and a path as
        `datasets` stores them (default "image"). The others are as in
        `sources.tables`. Without a column of splits, the split of bytes is in the name
        of a row's file or of its folder.

    Raises
    ------
    ExtractError
        If the files differ in columns, types or class names, a column is missing, or a
        line is wrong.
    """
    files = dataset_files(path)
    if not files:
        return None
    if path.suffix.lower() in SEPARATORS:
        return _manifest(path, classes, split, columns)
    columns = columns or Columns()
    image = (columns.features or ("image",))[0]
    roles = _checked(files, image, columns)
    said = _class_names(schema_of(files[0]), roles.get("label"))
    if any(_class_names(schema_of(file), roles.get("label")) != said for file in files):
        raise ExtractError(
            "the files of a data set must be alike, got other class names in the "
            f"header of one in {str(path)!r}. Write them again."
        )
    classes = _agreed(classes, said)
    # if the classes are declared by their number, positions are their names
    counted = classes.names == [str(i) for i in range(len(said or []))]
    names = [] if counted else said or []
    root = path if path.is_dir() else path.parent
    rows: list[Row] = []
    for file in files:
        start, own = f"{file.relative_to(root).as_posix()}:", _split_of(file, root)
        for label, its_split, group in _said(file, roles):
            if isinstance(label, int) and 0 <= label < len(names):
                label = names[label]
            its_split = own if its_split in (None, "") else its_split
            name = f"{start}{len(rows)}"
            rows.append((name, file.stat().st_size, label, its_split, group))
    return listed(
        "dataset",
        path,
        rows,
        _Images(files, image).read,
        classes,
        split,
        splits="split" in roles or any(_split_of(file, root) for file in files),
        grouped="group" in roles,
    )


def _manifest(
    path: Path, classes: Classes, split: str, columns: Columns | None
) -> Source:
    """Return a Source of the image files that a CSV names."""
    names = schema_of(path).names
    declared = columns or Columns()
    image = (declared.features or ("path",))[0]
    roles = replace(declared, features=()).roles(names, path)
    unknown = sorted(set(names) - {image, *roles.values()})
    if image not in names or (unknown and columns is None):
        raise ExtractError(
            "a manifest must have the columns path, label and optionally split, "
            f"group, got columns={names}. Rename them, or name them by --column."
        )
    root, rows = path.parent, []
    for line, row in enumerate(_said(path, roles, image), 2):
        name, *others = ((text or "").strip() for text in row)
        if not name:
            raise unusable_line(path, line)
        file = root / name
        size = file.stat().st_size if is_plain(file) else -1
        rows.append((name, size, *others))
    return listed(
        "manifest",
        path,
        rows,
        lambda name: (root / name).read_bytes(),
        classes,
        split,
        splits="split" in roles,
        grouped="group" in roles,
    )


def _checked(files: Sequence[Path], image: str, columns: Columns) -> dict[str, str]:
    """Return the columns of roles.

    Raises ExtractError unless all files have them and the images, with the same types.
    """
    first = schema_of(files[0])
    roles = replace(columns, features=()).roles(first.names, files[0])
    for file in files:
        schema = schema_of(file)
        check_columns([image, *roles.values()], schema.names, file)
        for name in (image, *roles.values()):
            if schema.field(name).type != first.field(name).type:
                raise ExtractError(
                    f"the files of a data set must be alike, got {name!r} of type "
                    f"{schema.field(name).type} in {str(file)!r}. Write them again."
                )
    for role, name in roles.items():
        check_role(role, first.field(name).type, files[0])
    kind = first.field(image).type
    if not str(kind).startswith(("binary", "large_binary", "struct<bytes: binary")):
        raise ExtractError(
            "a column of images must hold bytes, or bytes and a path, got "
            f"type={kind} of {image!r} in {str(files[0])!r}. Name another by --column "
            "image=NAME."
        )
    return roles


def _class_names(schema: Any, label: str | None) -> list[str] | None:
    """Return the names that the header gives to a column of whole numbers, or None."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])["info"]
        names = info["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list else None


def _agreed(classes: Classes, said: list[str] | None) -> Classes:
    """Return the declared classes, in the header's order if it has names.

    Numbers are then positions in that order. --folder-names-are-public declares the
    header's names. Raises ExtractError if the declared names differ from the header's.
    """
    if said is None:
        return classes
    if classes.folder_names_public:
        return replace(classes, names=said)
    digits = [str(i) for i in range(len(said))]
    if classes.names not in (None, said, digits):
        raise ExtractError(
            "classes must be those of the data set's header, in its order, got "
            f"classes={(classes.names or [])[:8]}. It has {said[:8]}."
        )
    return classes


def _split_of(file: Path, root: Path) -> str:
    """Return the split that the name of a file or of its folders says; "" for none."""
    parts = file.relative_to(root).parts
    likely = [parts[-1].split("-")[0].split(".")[0], *reversed(parts[:-1])]
    return next((name for name in likely if name.lower() in SPLITS), "")


def _said(file: Path, roles: dict[str, str], *others: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of other columns, then (label, split, group), of each row.

    Each is made from its own row; None for what the file does not say.
    """
    wanted = [*others, *(roles.get(role) for role in ("label", "split", "group"))]
    named = [name for name in wanted if name is not None]
    if not named:
        yield from [(None, None, None)] * n_rows_of(file)
        return
    for table in tables(file, named, _ROWS_TOGETHER):
        missing = [None] * table.num_rows
        read = [
            missing if name is None else read_column(table.column(name)).tolist()
            for name in wanted
        ]
        yield from zip(*read, strict=True)


class _Images:
    """Read the bytes of images by their row's name.

    Reads are fast in the order of the rows: a file is read from its beginning up to the
    row.
    """

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self._files, self._column = files, column
        self._ends = np.cumsum([n_rows_of(file) for file in files])
        self._file, self._first, self._part = -1, 0, None
        self._parts: Iterator[Any] = iter(())

    def read(self, name: str) -> bytes:
        """Return the bytes of a row's image.

        Raises FileNotFoundError if the row holds none, and ValueError for an image of
        more than MAX_FILE_BYTES.
        """
        row = int(name.rpartition(":")[2])
        file = int(np.searchsorted(self._ends, row, side="right"))
        at = row - (int(self._ends[file - 1]) if file else 0)
        if file != self._file or at < self._first:
            self._parts = tables(self._files[file], [self._column], _IMAGES_TOGETHER)
            self._file, self._first, self._part = file, 0, next(self._parts)
        assert self._part is not None
        while at >= self._first + self._part.num_rows:
            self._first += self._part.num_rows
            self._part = next(self._parts)
        value = self._part.column(self._column)[at - self._first].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is None:  # `datasets` may store the path of a file elsewhere
            raise FileNotFoundError("the row holds no bytes of an image")
        if len(data) > MAX_FILE_BYTES:
            raise ValueError("image too large")
        return data
