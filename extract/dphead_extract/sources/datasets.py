"""Read tables of images: rows that hold an image's bytes, or the path of a file.

A Hugging Face dataset holds bytes; a manifest holds paths. Files are read in place. The
header of a file, or the user, names the columns. No row may decide the columns.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from dphead_extract.bounds import read_plain, size_of
from dphead_extract.errors import ExtractError
from dphead_extract.items import check_exact, read_column
from dphead_extract.sources.classes import SPLITS, Classes, split_doubts
from dphead_extract.sources.columns import (
    ROLES,
    TABLE_SUFFIXES,
    Columns,
    check_columns,
)
from dphead_extract.sources.image import Source, SourceOptions
from dphead_extract.sources.listing import Row, is_hidden, list_rows
from dphead_extract.sources.table_files import (
    TableFile,
    check_role,
    holds_images,
    is_text,
)

_IMAGES_TOGETHER = 32  # images that are read at a time; a choice, not measured
_ROWS_TOGETHER = 4096  # labels that are read at a time; a choice, not measured
_PATTERNS = ("*.parquet", "*/*.parquet", "*/*/*.parquet")


def table_files(path: Path, columns: Columns) -> list[Path]:
    """Return the files of a table in a fixed order; [] if `path` is not a table.

    `path` is one file, or a folder as on Hugging Face's hub
    (data/train-00000-of-00002.parquet). If a column of paths is declared, a folder must
    have exactly one table.

    Raises
    ------
    ExtractError
        If a column of paths is declared, and the folder has no or several tables.
    """
    if path.is_file():
        return [path] if path.suffix.lower() in TABLE_SUFFIXES else []
    if columns.path is not None:
        found = sorted(
            p for p in path.glob("*.*") if p.suffix.lower() in TABLE_SUFFIXES
        )
        if len(found) != 1:
            names = ", ".join(p.name for p in found[:4]) or "none"
            raise ExtractError(
                f"--columns path={columns.path} needs one table in {str(path)!r}, got "
                f"{names}. Type the path of the table instead of the folder."
            )
        return found
    kept = [
        p
        for pattern in _PATTERNS
        for p in path.glob(pattern)
        if p.is_file() and not is_hidden(p.relative_to(path).as_posix())
    ]
    return sorted(kept, key=lambda p: p.relative_to(path).parts)


def open_table(path: Path, declared: SourceOptions) -> Source | None:
    """Return a Source of a table's rows, or None if `path` is not a table.

    Parameters
    ----------
    path : Path
        A file or a folder (`table_files`).
    declared : SourceOptions
        Its columns name the column of paths or of images (default "path" or "image"),
        and the columns of labels, groups and splits. Paths are relative to the table.
        Images are bytes, or bytes and a path as `datasets` stores them. Without a
        column of splits, the name of the file, or of its folder, is the split of an
        image.

    Raises
    ------
    ExtractError
        If the files differ in column types or class names, a column is missing, several
        tables hold paths, or a line has no path.
    """
    columns = declared.columns
    files = table_files(path, columns)
    if not files:
        return None
    tables = [TableFile(file, columns.encoding) for file in files]
    names = tables[0].schema.names
    check_columns([*columns.declared.values()], names, files[0])
    if columns.image or (columns.path is None and "image" in names):
        return _dataset(path, tables, declared)
    of_paths = columns.path or "path"
    if of_paths in names and len(tables) == 1:
        return _manifest(tables[0], of_paths, declared)
    if of_paths in names:
        raise ExtractError(
            f"{str(path)!r} has {len(tables)} tables of paths. Type the path of one "
            "table instead of the folder."
        )
    raise ExtractError(
        f"{str(files[0])!r} has no column `path` or `image`. Its columns are "
        f"{', '.join(names[:8])}. Type --columns path=NAME,label=NAME,group=NAME with "
        "these names, or image=NAME for a column of images' bytes."
    )


def _dataset(
    path: Path, tables: Sequence[TableFile], declared: SourceOptions
) -> Source:
    """Return a Source of the images whose bytes a table holds."""
    image = declared.columns.image or "image"
    first, root = tables[0], path if path.is_dir() else path.parent
    roles = declared.columns.roles(first.schema.names, first.path)
    for table in tables:
        table.name_items(roles)
    for role, name in roles.items():
        check_role(role, first.schema.field(name).type, first.path)
    said = _facts(first, image, roles)
    for table in tables:
        if _facts(table, image, roles) != said:
            raise ExtractError(
                f"{str(table.path)!r} has different column types or class names from "
                f"{first.path.name}. Write all files with the same schema."
            )
    kind, header = said[0], said[-1]
    if not holds_images(kind):
        raise ExtractError(
            f"The column {image!r} of {str(first.path)!r} has type {kind}, not bytes "
            "of images. Type --columns image=NAME, or path=NAME for paths."
        )
    classes = _agreed(declared.classes, header)
    # if the classes are declared by their number, indices are their names
    counted = classes.names == [str(i) for i in range(len(header or []))]
    names = [] if counted else header or []
    rows: list[Row] = []
    named = {table.path.relative_to(root).as_posix(): table for table in tables}
    unnamed = [file for file, table in named.items() if not _split_of(table.path, root)]
    for file, table in named.items():
        own, size = _split_of(table.path, root), table.path.stat().st_size
        for label, group, its_split in _cells(table, [roles.get(r) for r in ROLES]):
            if isinstance(label, int) and 0 <= label < len(names):
                label = names[label]
            its_split = own if its_split in (None, "") else its_split
            rows.append((f"{file}:{len(rows)}", size, label, its_split, group))
    source = list_rows(
        "dataset",
        path,
        rows,
        _Images(tables, image).read,
        replace(declared, classes=classes),
        splits="split" in roles or len(unnamed) < len(tables),
        grouped="group" in roles,
    )
    words = {PurePosixPath(file).name.split("-")[0] for file in named}
    if "split" not in roles and len(words) > 1:
        source.doubts += split_doubts({file: named[file].n_rows for file in unnamed})
    return source


def _manifest(table: TableFile, image: str, declared: SourceOptions) -> Source:
    """Return a Source of the image files that a table names."""
    path, names, columns = table.path, table.schema.names, declared.columns
    roles = columns.roles(names, path)
    unknown = sorted(set(names) - {image, *roles.values()})
    if unknown and not columns.declared:
        # an unknown column may be a misspelled `group`
        raise ExtractError(
            f"The column {unknown[0]!r} of {str(path)!r} has no role. Type --columns "
            "path=NAME,label=NAME,group=NAME with the names of your columns."
        )
    table.name_items(roles)
    if not is_text(table.schema.field(image).type):
        raise ExtractError(
            f"The column {image!r} of {str(path)!r} must hold paths as text. Type "
            "--columns path=NAME with another column."
        )
    root, rows = path.parent, []
    wanted = [image, *(roles.get(role) for role in ROLES)]
    for line, row in enumerate(_cells(table, wanted), 2):
        name, label, group, its_split = (
            cell.strip() if isinstance(cell, str) else cell for cell in row
        )
        if not name:
            raise ExtractError(
                f"Line {line} of {str(path)!r} has no image path. Add the path, or "
                "remove the line."
            )
        name = _on_disk(root, name)
        rows.append((name, size_of(root / name), label, its_split, group))
    return list_rows(
        "manifest",
        path,
        rows,
        lambda name: read_plain(root / name),
        declared,
        splits="split" in roles,
        grouped="group" in roles,
    )


def _on_disk(root: Path, name: str) -> str:
    """Return a path in a table, with each "\\" of a Windows path replaced by "/".

    A file whose name has a "\\" keeps its name.
    """
    changed = "\\" in name and size_of(root / name) < 0
    return name.replace("\\", "/") if changed else name


def _facts(table: TableFile, image: str, roles: dict[str, str]) -> list[Any]:
    """Return the types of the columns, and the class names in the header or None."""
    names, schema = [image, *roles.values()], table.schema
    check_columns(names, schema.names, table.path)
    types: list[Any] = [schema.field(name).type for name in names]
    return [*types, table.class_names(roles.get("label"))]


def _agreed(classes: Classes, said: list[str] | None) -> Classes:
    """Return the declared classes, checked against the header's class names.

    Labels in the table are indices into the header's names. --folder-names-are-public
    declares these names public. --classes N (names "0", "1" and so on) fits any header.
    Raises ExtractError if the declared names differ from the header's.
    """
    if said is None:
        return classes
    if classes.folder_names_public:
        return replace(classes, names=said, folder_names_public=False)
    digits = [str(i) for i in range(len(said))]
    if classes.names not in (None, said, digits):
        raise ExtractError(
            "--classes must list the classes in the order of the data set's header, "
            f"got {','.join(classes.names[:8])}. The header has {','.join(said[:8])}"
            f"{',...' if len(said) > 8 else ''}. To use its names, type "
            "--folder-names-are-public instead of --classes."
        )
    return classes


def _split_of(file: Path, root: Path) -> str:
    """Return the split in the name of a file or of its folders, or ""."""
    parts = file.relative_to(root).parts
    likely = [parts[-1].split("-")[0].split(".")[0], *reversed(parts[:-1])]
    return next((name for name in likely if name.lower() in SPLITS), "")


def _cells(table: TableFile, names: Sequence[str | None]) -> Iterator[tuple[Any, ...]]:
    """Yield each row's cells in the named columns, and None where a name is None."""
    wanted = [name for name in names if name is not None]
    if not wanted:
        yield from [(None,) * len(names)] * table.n_rows
        return
    for part in table.read(wanted, _ROWS_TOGETHER):
        missing = [None] * part.num_rows
        for column in part.columns:
            # only groups can be floats, because `check_role` refuses other floats
            if pa.types.is_floating(column.type):
                check_exact(column)
        read = [
            missing if name is None else read_column(part.column(name)).tolist()
            for name in names
        ]
        yield from zip(*read, strict=True)


class _Images:
    """Read the bytes of images by their row's name.

    Reads are fast in the order of the rows. A read of an earlier row starts again at
    the beginning of its file.
    """

    def __init__(self, tables: Sequence[TableFile], column: str) -> None:
        self._tables, self._column = tables, column
        self._firsts = [0, *accumulate(table.n_rows for table in tables)]
        self._file, self._next = -1, 0
        self._cells: Iterator[Any] = iter(())

    def read(self, name: str) -> bytes:
        """Return the bytes of a row's image.

        Raises FileNotFoundError if the row holds none.
        """
        row = int(name.rpartition(":")[2])
        file = bisect_right(self._firsts, row) - 1
        if file != self._file or row < self._next:
            parts = self._tables[file].read([self._column], _IMAGES_TOGETHER)
            self._cells = chain.from_iterable(part.column(0) for part in parts)
            self._file, self._next = file, self._firsts[file]
        value = next(islice(self._cells, row - self._next, None)).as_py()
        self._next = row + 1
        data = value.get("bytes") if isinstance(value, dict) else value
        # `datasets` may store only the path of a file outside the table
        if data is None:
            raise FileNotFoundError("the row holds no bytes of an image")
        return data
