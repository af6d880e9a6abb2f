"""Read CSV, TSV, Parquet and Arrow files as `pyarrow.Table`s, some rows at a time.

A column's type is in the file's header; all columns of a CSV are texts. No value may
decide how others are read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as pacsv

from dphead_extract.errors import ExtractError
from dphead_extract.sources.tables import check_columns

pc: Any = compute  # it makes its functions when it is imported
SEPARATORS = {".csv": ",", ".tsv": "\t"}
# one row group of a Parquet file may unpack to this; a choice, not measured
MAX_GROUP_BYTES = 4 << 30
MAX_LINE_BYTES = 16 << 20  # of one line of a CSV; a choice, not measured


class _Unreadable:
    """Turn pyarrow's errors for a damaged file into one ExtractError.

    Use it as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: Any, __: Any) -> None:
        wrong = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
        if not isinstance(error, wrong):
            return
        if self._path.suffix.lower() in SEPARATORS:
            # pyarrow's text may quote a private row, so its number alone is kept
            found = re.search(r"Row #(\d+)", str(error))
            raise unusable_line(self._path, found and int(found[1])) from error
        raise ExtractError(
            "a Parquet or Arrow file must be whole, got "
            f"file={str(self._path)!r} damaged. Write it again."
        ) from error


def unusable_line(path: Path, line: int | None) -> ExtractError:
    """Return the error for a line of a CSV, counted from 1 without empty lines.

    None is a line that is too long.
    """
    got = f"a line of more than {MAX_LINE_BYTES} bytes" if line is None else f"{line=}"
    return ExtractError(
        "each line of a table must be UTF-8, have as many cells as its header, and "
        f"close its quotes, got {got} of {str(path)!r} (empty lines do not count). "
        "Correct that line, or save the table again in UTF-8."
    )


def schema_of(path: Path) -> pa.Schema:
    """Return the columns of a file and their types.

    Raises ExtractError for a damaged file, or two columns of one name.
    """
    with _Unreadable(path):
        schema = _schema(path)
    check_columns([], schema.names, path)
    return schema


def _schema(path: Path) -> pa.Schema:
    suffix = path.suffix.lower()
    if suffix in SEPARATORS:
        return pa.schema([(name, pa.string()) for name in _header(path)])
    if suffix == ".parquet":
        return parquet.read_schema(path)
    with pa.memory_map(str(path)) as source:
        return _ipc(source).schema


def _header(path: Path) -> list[str]:
    """Return the names in the first line of a CSV.

    Raises ExtractError if that line is a row: numbers that do not count up.
    """
    separator = SEPARATORS[path.suffix.lower()]
    with path.open("rb") as file:
        line = file.readline(MAX_LINE_BYTES)
    if len(line) == MAX_LINE_BYTES:
        raise unusable_line(path, None)
    try:
        lines = [line.decode("utf-8-sig")]
        record = next(csv.reader(lines, delimiter=separator, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise unusable_line(path, 1) from error
    names = [name.strip() for name in record]
    numbers = [number(name) for name in names]
    counted = all(n % 1 == 0 for n in numbers) and sorted({*numbers}) == numbers
    if names and not counted and all(abs(n) < float("inf") for n in numbers):
        raise ExtractError(
            "the first line of a table must name its columns, got the numbers "
            f"{names[:4]} in {str(path)!r}. Write a line of names above it."
        )
    return names


def number(cell: str) -> float:
    """Return the number that a cell of a CSV holds, or NaN."""
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _ipc(source: Any) -> Any:
    """Return a reader of an Arrow file or stream.

    Hugging Face's datasets are stored as streams.
    """
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)


def tables(path: Path, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """Yield some columns of a file, a number of rows at a time, in its order.

    Parameters
    ----------
    path : Path
        The file.
    names : sequence of str
        The columns.
    rows : int
        Number of rows of each table; only the last one has fewer.

    Yields
    ------
    pyarrow.Table
        The rows. Texts of Parquet stay in dictionaries, so that one long text is not
        repeated.

    Raises
    ------
    ExtractError
        If the file is damaged, or a row group unpacks to more than MAX_GROUP_BYTES.
    """
    waiting: list[pa.RecordBatch] = []
    with _Unreadable(path):
        for batch in _batches(path, names, rows):
            waiting.append(batch.select(list(names)))
            while (count := sum(part.num_rows for part in waiting)) >= rows:
                rest = rows - (count - waiting[-1].num_rows)
                last = waiting.pop()
                yield pa.Table.from_batches([*waiting, last.slice(0, rest)])
                waiting = [last.slice(rest)]
        if any(part.num_rows for part in waiting):
            yield pa.Table.from_batches(waiting)


def _batches(path: Path, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    suffix = path.suffix.lower()
    if suffix in SEPARATORS:
        yield from _delimited(path)
    elif suffix == ".parquet":
        schema = schema_of(path)
        texts = [name for name in names if is_text(schema.field(name).type)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            _check_groups(file, path)
            yield from file.iter_batches(batch_size=rows, columns=list(names))
    else:
        with pa.memory_map(str(path)) as source:
            yield from _record_batches(_ipc(source))


def _delimited(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield all columns of a CSV as texts; an empty cell is missing.

    Raises ExtractError for a line break in quotes: a quote that only a later line
    closes would swallow the lines between.
    """
    names = _header(path)
    read = pacsv.ReadOptions(
        column_names=names,
        skip_rows=1,
        block_size=MAX_LINE_BYTES,
        use_threads=False,
    )
    parse = pacsv.ParseOptions(
        delimiter=SEPARATORS[path.suffix.lower()],
        # an empty line of a single column is a row without a value
        ignore_empty_lines=len(names) > 1,
    )
    convert = pacsv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=[""],
        strings_can_be_null=True,
    )
    try:
        reader = pacsv.open_csv(path, read, parse, convert)
    except pa.ArrowInvalid as error:
        if "Could not skip" in str(error):  # nothing comes after the header
            return
        raise
    line = 2
    for batch in reader:
        for column in batch.columns:
            cells = column.buffers()[2]  # all of them in a row: quickly searched
            data = b"" if cells is None else cells.to_pybytes()
            if b"\n" in data or b"\r" in data:
                broken = pc.match_substring_regex(column, "[\r\n]")
                raise unusable_line(path, line + pc.index(broken, True).as_py())
        line += batch.num_rows
        yield batch


def _check_groups(file: parquet.ParquetFile, path: Path) -> None:
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).total_byte_size
        if size > MAX_GROUP_BYTES:
            raise ExtractError(
                "a row group of a Parquet file must unpack to at most "
                f"{MAX_GROUP_BYTES} bytes, got bytes={size} in {str(path)!r}. "
                "Write it with smaller row groups."
            )


def n_rows_of(path: Path) -> int:
    """Return the number of rows of a Parquet or Arrow file without reading a row."""
    with _Unreadable(path):
        if path.suffix.lower() == ".parquet":
            return parquet.read_metadata(path).num_rows
        with pa.memory_map(str(path)) as source:
            return sum(batch.num_rows for batch in _record_batches(_ipc(source)))


def _record_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if not hasattr(reader, "num_record_batches"):  # a stream
        return iter(reader)
    return (reader.get_batch(i) for i in range(reader.num_record_batches))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type holds texts, in a dictionary or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def check_role(role: str, kind: pa.DataType, path: Path) -> None:
    """Raise ExtractError unless a column of this type can have this role."""
    numbers = pa.types.is_integer(kind)
    numbers |= role == "label" and pa.types.is_boolean(kind)
    numbers |= role == "group" and pa.types.is_floating(kind)
    if not numbers and not is_text(kind):
        what = "numbers" if role == "group" else "whole numbers"
        raise ExtractError(
            f"a column of {role}s must hold texts or {what}, got type={kind} in "
            f"{str(path)!r}. Convert it, or name another column by --{role}."
        )
