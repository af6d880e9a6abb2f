"""Read embeddings from Parquet and Arrow files, a batch at a time (pyarrow).

A column's type is in the file's header. No value may decide how others are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.sources.tables import Block, Columns, Table, check_columns

# one row group of a Parquet file may unpack to this; a choice, not measured
MAX_GROUP_BYTES = 4 << 30


def arrow() -> Any:
    """Return pyarrow; raises ExtractError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ExtractError(
            "Parquet and Arrow files need pyarrow, got none. Install it by pip install "
            "'dphead[tables]'."
        ) from error
    return pyarrow


class unreadable:
    """Turn pyarrow's errors for a damaged file into one ExtractError.

    Use it as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._pa = path, arrow()

    def __enter__(self) -> Any:
        return self._pa

    def __exit__(self, _: Any, error: Any, __: Any) -> None:
        wrong = (self._pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
        if isinstance(error, wrong) and not isinstance(error, ExtractError):
            raise ExtractError(
                "a Parquet or Arrow file must be whole, got "
                f"file={str(self._path)!r} damaged. Write it again."
            ) from error


def open_columnar(path: Path, columns: Columns) -> Table:
    """Return the table of a .parquet, .arrow, .feather or .ipc file.

    Only its header is read. Features are columns of numbers, or one column of lists.
    Lists are as long as the column's type or `columns.width` says: a list of another
    length is a row that is not finite.

    Raises
    ------
    ExtractError
        If the file is damaged, or its columns or their types do not fit.
    """
    schema = schema_of(path)
    names = list(schema.names)
    check_columns([], names, path)
    roles = columns.roles(names, path)
    for role, name in roles.items():
        check_role(role, schema.field(name).type, path)
    features = columns.of_features(names, path)
    width, dtype = _features(schema, features, columns, path)

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        extra = features if with_features else []
        # without other columns, a first column says how many rows there are
        wanted = [*roles.values(), *extra] or features[:1]
        for batch in batches(path, wanted, rows):
            block: Block = {
                role: plain(batch.column(name)) for role, name in roles.items()
            }
            if with_features or not block:
                parts = [
                    _matrix(batch.column(name), None if len(features) > 1 else width)
                    for name in wanted[len(roles) :]
                ]
                block["features"] = np.concatenate(parts, axis=1)
            yield block

    single = len(features) == 1 and _is_list(schema.field(features[0]).type)
    return Table(
        "parquet" if path.suffix.lower() == ".parquet" else "arrow",
        width,
        dtype,
        () if single else tuple(features),
        (path,),
        tuple(roles),
        read,
    )


def schema_of(path: Path) -> Any:
    """Return the columns of a file and their types.

    Raises ExtractError for a damaged file.
    """
    with unreadable(path) as pa:
        if path.suffix.lower() == ".parquet":
            return pa.parquet.read_schema(path)
        with pa.memory_map(str(path)) as source:
            return _ipc(source).schema


def _ipc(source: Any) -> Any:
    """Return a reader of an Arrow file or stream.

    Hugging Face's datasets are stored as streams.
    """
    pa = arrow()
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)


def batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Any]:
    """Yield batches of at most `rows` rows with the columns `names`, in file order.

    Texts of Parquet stay in dictionaries, so that one long text is not repeated.

    Raises
    ------
    ExtractError
        If the file is damaged, or a row group unpacks to more than MAX_GROUP_BYTES.
    """
    with unreadable(path) as pa:
        if path.suffix.lower() == ".parquet":
            yield from _parquet_batches(pa, path, names, rows)
            return
        with pa.memory_map(str(path)) as source:
            for part in _record_batches(_ipc(source)):
                part = part.select(list(names))
                for start in range(0, part.num_rows, rows):
                    yield part.slice(start, rows)


def _parquet_batches(
    pa: Any, path: Path, names: Sequence[str], rows: int
) -> Iterator[Any]:
    schema = schema_of(path)
    texts = [name for name in names if _is_text(schema.field(name).type)]
    with pa.parquet.ParquetFile(path, read_dictionary=texts) as file:
        for group in range(file.metadata.num_row_groups):
            size = file.metadata.row_group(group).total_byte_size
            if size > MAX_GROUP_BYTES:
                raise ExtractError(
                    "a row group of a Parquet file must unpack to at most "
                    f"{MAX_GROUP_BYTES} bytes, got bytes={size} in {str(path)!r}. "
                    "Write it with smaller row groups."
                )
        yield from file.iter_batches(batch_size=rows, columns=list(names))


def n_rows_of(path: Path) -> int:
    """Return the number of rows of a file without reading a row."""
    with unreadable(path) as pa:
        if path.suffix.lower() == ".parquet":
            return pa.parquet.read_metadata(path).num_rows
        with pa.memory_map(str(path)) as source:
            return sum(batch.num_rows for batch in _record_batches(_ipc(source)))


def _record_batches(reader: Any) -> Iterator[Any]:
    if not hasattr(reader, "num_record_batches"):  # a stream
        return iter(reader)
    return (reader.get_batch(i) for i in range(reader.num_record_batches))


def _is_text(kind: Any) -> bool:
    """Return whether a pyarrow type holds texts, in a dictionary or not."""
    pa = arrow()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_list(kind: Any) -> bool:
    """Return whether a pyarrow type holds lists."""
    types = arrow().types
    found: tuple[Callable[[Any], bool], ...] = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
    )
    return any(is_one(kind) for is_one in found)


def _is_number(kind: Any) -> bool:
    """Return whether a pyarrow type holds integers, floats or booleans."""
    types = arrow().types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def check_role(role: str, kind: Any, path: Path) -> None:
    """Raise ExtractError unless a column of this type can have this role."""
    types = arrow().types
    numbers = types.is_integer(kind)
    numbers |= role == "label" and types.is_boolean(kind)
    numbers |= role == "group" and types.is_floating(kind)
    if not numbers and not _is_text(kind):
        what = "numbers" if role == "group" else "whole numbers"
        raise ExtractError(
            f"a column of {role}s must hold texts or {what}, got type={kind} in "
            f"{str(path)!r}. Convert it, or name another column by --{role}."
        )


def _features(
    schema: Any, names: Sequence[str], columns: Columns, path: Path
) -> tuple[int, np.dtype]:
    """Return the width and dtype of the features.

    Raises ExtractError if the header does not say both, or a column is not of numbers.
    """
    kinds = {name: schema.field(name).type for name in names}
    lists = [name for name, kind in kinds.items() if _is_list(kind)]
    entries = {
        name: kind.value_type if _is_list(kind) else kind
        for name, kind in kinds.items()
    }
    wrong = [name for name, kind in entries.items() if not _is_number(kind)]
    if not names or wrong or (lists and len(names) > 1):
        what = f"{wrong[0]!r} of type {kinds[wrong[0]]}" if wrong else f"{names}"
        raise ExtractError(
            "features must be columns of numbers, or one column of lists of numbers, "
            f"got {what} in {str(path)!r}. Name them by --features."
        )
    halves = all(entry == arrow().float16() for entry in entries.values())
    dtype = np.dtype(np.float16 if halves else np.float64)
    if not lists:
        return len(names), dtype
    said = getattr(kinds[lists[0]], "list_size", columns.width)
    if said is None:
        raise ExtractError(
            "the length of a list must be declared where its type does not say it, got "
            f"type={kinds[lists[0]]} of {lists[0]!r} in {str(path)!r}. Pass --width N; "
            "a row of another length is masked."
        )
    return said, dtype


def plain(column: Any) -> np.ndarray:
    """Return a column's items as objects, None where there is none."""
    pa = arrow()
    if not _is_text(column.type):
        return np.array(column.to_pylist(), object)
    coded = column if pa.types.is_dictionary(column.type) else None
    coded = column.dictionary_encode() if coded is None else coded
    stored = coded.dictionary.cast(pa.large_binary()).to_pylist()
    # surrogateescape: a text that is not UTF-8 must not stop the others
    named = [
        None if text is None else text.decode("utf-8", "surrogateescape")
        for text in stored
    ]
    texts = np.array([*named, None], object)
    return texts[_filled(coded.indices, len(texts) - 1)]


def _filled(column: Any, missing: int) -> np.ndarray:
    """Return indices or lengths as int64, with `missing` where there is none."""
    pa = arrow()
    whole = column.cast(pa.int64())
    return whole.fill_null(missing).to_numpy(zero_copy_only=False)


def _matrix(column: Any, width: int | None) -> np.ndarray:
    """Return (k, width) of a column of lists, or (k, 1) of a column of numbers."""
    if not _is_list(column.type):
        return _floats(column)[:, None]
    pa = arrow()
    assert width is not None
    out = np.full((len(column), width), np.nan)
    lengths = pa.compute.list_value_length(column)
    fits = _filled(lengths, -1) == width
    # flatten these lists alone: a missing list may still span numbers
    entries = _floats(pa.compute.list_flatten(column.filter(pa.array(fits))))
    out[fits] = entries.reshape(-1, width)
    return out


def _floats(column: Any) -> np.ndarray:
    """Return numbers as float64, NaN where there is none."""
    pa = arrow()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.null_count:
        column = column.cast(pa.float64(), safe=False)
        column = column.fill_null(float("nan"))
    return column.to_numpy(zero_copy_only=False).astype(np.float64)
