"""Read images of a Hugging Face dataset: Parquet or Arrow files that hold their bytes.

Files are read in place. Their headers say which columns there are; no row may decide
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.sources.classes import SPLITS, Classes
from dphead_extract.sources.columnar import (
    batches,
    check_role,
    n_rows_of,
    plain,
    schema_of,
)
from dphead_extract.sources.image import Source
from dphead_extract.sources.listing import MAX_FILE_BYTES, Row, listed
from dphead_extract.sources.tables import Columns, check_columns

_IMAGES_TOGETHER = 32  # images that are read at a time; a choice, not measured
_ROWS_TOGETHER = 4096  # labels that are read at a time; a choice, not measured
_PATTERNS = ("*.parquet", "*/*.parquet", "*/*/*.parquet", "*.arrow", "*/*.arrow")


def dataset_files(path: Path) -> list[Path]:
    """Return the files of a data set in a fixed order, all of one kind; [] without any.

    `path` is one file, or a folder: as on the hub (data/train-00000-of-00002.parquet)
    or as `datasets` saves it (train/data-00000-of-00002.arrow).
    """
    if path.is_file():
        return [path] if path.suffix.lower() in (".parquet", ".arrow") else []
    found = {p for pattern in _PATTERNS for p in path.glob(pattern) if p.is_file()}
    # caches and indices of `datasets` may lie beside the rows
    kept = [p for p in found if not p.name.startswith(("cache-", "indices-", "."))]
    parquet = [p for p in kept if p.suffix == ".parquet"]
    return sorted(parquet or kept, key=lambda p: p.relative_to(path).parts)


def open_dataset(
    path: Path, classes: Classes, split: str, columns: Columns
) -> Source | None:
    """Return a Source of a data set's rows, or None if there is no such file.

    Parameters
    ----------
    path : Path
        A file or a folder (`dataset_files`).
    classes : Classes
        How the classes are declared.
    split : str
        The wanted split, or "all".
    columns : Columns
        `features` is the column of images (default "image"): bytes, or bytes and a path
        as `datasets` stores them. The others are as in `sources.tables`. Without a
        column of splits, the split is in the name of a row's file or of its folder.

    Raises
    ------
    ExtractError
        If the files differ in columns, types or class names, or a column is missing.
    """
    files = dataset_files(path)
    if not files:
        return None
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
    of_header = [] if counted else said or []
    root = path if path.is_dir() else path.parent
    rows: list[Row] = []
    for file in files:
        name, own = file.relative_to(root).as_posix(), _split_of(file, root)
        for label, its_split, group in _said(file, roles, of_header):
            row = f"{name}:{len(rows)}"
            said_split = own if its_split in (None, "") else its_split
            rows.append((row, file.stat().st_size, label, said_split, group))
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


def _checked(files: Sequence[Path], image: str, columns: Columns) -> dict[str, str]:
    """Return the columns of roles.

    Raises ExtractError unless all files have them and the images, with the same types.
    """
    first = schema_of(files[0])
    others = replace(columns, features=())
    roles = others.roles(first.names, files[0])
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
    if classes.names is not None and classes.names != said:
        digits = [str(i) for i in range(len(said))]
        if classes.names != digits:
            raise ExtractError(
                "classes must be those of the data set's header, in its order, got "
                f"classes={classes.names[:8]}. It has {said[:8]}."
            )
    return classes


def _split_of(file: Path, root: Path) -> str:
    """Return the split that the name of a file or of its folders says; "" for none."""
    parts = file.relative_to(root).parts
    likely = [parts[-1].split("-")[0].split(".")[0], *reversed(parts[:-1])]
    return next((name for name in likely if name.lower() in SPLITS), "")


def _said(
    file: Path, roles: dict[str, str], names: Sequence[str]
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (label, split, group) of each row of a file, each made from its own row.

    `names` are the header's class names, if whole numbers are positions among them.
    """
    if not roles:
        yield from [(None, None, None)] * n_rows_of(file)
        return
    for batch in batches(file, list(roles.values()), _ROWS_TOGETHER):
        columns = {role: plain(batch.column(name)) for role, name in roles.items()}
        empty = np.full(batch.num_rows, None, object)
        read = [
            columns.get(role, empty).tolist() for role in ("label", "split", "group")
        ]
        for label, split, group in zip(*read, strict=True):
            known = isinstance(label, int) and 0 <= label < len(names)
            yield names[label] if known else label, split, group


class _Images:
    """Read the bytes of images by their row's name.

    It is fast in the rows' order: a file is read from its beginning up to the row.
    """

    def __init__(self, files: Sequence[Path], column: str) -> None:
        counts = [n_rows_of(file) for file in files]
        self._files, self._column = files, column
        self._ends = np.cumsum(counts)
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
            self._parts = batches(self._files[file], [self._column], _IMAGES_TOGETHER)
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
