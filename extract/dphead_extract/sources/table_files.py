"""Read CSV, TSV and Parquet files as `pyarrow.Table`s, some rows at a time.

A Parquet file stores the type of each column. All columns of a CSV or TSV are text. So
no value decides how other values are read.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as pacsv

from dphead_extract.errors import ExtractError
from dphead_extract.items import ARROW_TEXTS, is_arrow
from dphead_extract.numerals import typed_number
from dphead_extract.sources.columns import check_columns

# pyarrow creates these functions at import, so type checkers do not know them
_pc: Any = compute
_SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}
# digits with separators between them: a decimal comma, thousands, a misread 12.5
_SEPARATED = re.compile(r"[-+]?\d+([.,'’_\s]\d+)+([eE][-+]?\d+)?")
# types of features, for `is_arrow`
_NUMBERS = ("integer", "floating", "boolean")
_LISTS = ("fixed_size_list", "list", "large_list")
MAX_LINE_BYTES = 16 << 20  # largest line of a CSV; a choice, not measured


class TableFile:
    """Read the header of a table, and later its rows.

    Parameters
    ----------
    path : Path
        A file with an ending of `TABLE_SUFFIXES`.
    encoding : str, default "utf-8"
        Encoding of a CSV or TSV: an ASCII superset with one byte per character, or
        UTF-8.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns and their types.
    separator : str
        The comma, semicolon or tab that splits the header of a CSV or TSV into the most
        names; "" for other files.

    Raises
    ------
    ExtractError
        If the file cannot be read or is damaged, or two columns have one name.
    """

    def __init__(self, path: Path, encoding: str = "utf-8") -> None:
        self.path, self.encoding, self.separator = path, encoding, ""
        self._named: dict[str, list[str]] = {}
        suffix = path.suffix.lower()
        with self._readable():
            if suffix in _SEPARATORS:
                names = self._header(_SEPARATORS[suffix])
                self.schema = pa.schema([(name, pa.string()) for name in names])
            else:
                self.schema = parquet.read_schema(path)
        check_columns([], self.schema.names, path)

    def class_names(self, column: str | None) -> list[str] | None:
        """Return the names of a Hugging Face column of class labels, or None.

        The column's numbers are indices into this list. Raises ExtractError if the
        header describes class labels without a list of their names.
        """
        try:
            info = json.loads((self.schema.metadata or {})[b"huggingface"])["info"]
            feature = info["features"][column]
            said, kind = feature.get("names"), feature.get("_type")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            return None
        is_list = isinstance(said, list)
        if is_list and all(isinstance(name, str | int | float) for name in said):
            return [str(name) for name in said]  # as the package `datasets` names them
        if kind == "ClassLabel":
            raise ExtractError(
                f"The header of {self.path} has no names for the class labels of the "
                f"column {column!r}. Write their names in the column as texts."
            )
        return None

    def name_items(self, roles: Mapping[str, str]) -> None:
        """Make `read` return names instead of indices for groups and splits.

        `roles` has the columns by role. An index of a Hugging Face column means a
        different item in a file with a different list of names. Labels stay indices,
        because all files must have the same class names.
        """
        for column in (name for role, name in roles.items() if role != "label"):
            place, names = self.schema.get_field_index(column), self.class_names(column)
            if names and place >= 0 and not is_text(self.schema.field(place).type):
                self._named[column] = names
                self.schema = self.schema.set(place, pa.field(column, pa.string()))

    @property
    def n_rows(self) -> int:
        """Return the number of rows of a Parquet file; no row is read."""
        with self._readable():
            return parquet.read_metadata(self.path).num_rows

    def read(self, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """Yield some columns of the file, a number of rows at a time, in its order.

        Parameters
        ----------
        names : sequence of str
            The columns.
        rows : int
            Number of rows of each table; only the last table has fewer.

        Yields
        ------
        pyarrow.Table
            The rows. Texts of Parquet stay in dictionaries, so that one long text is
            not repeated.

        Raises
        ------
        ExtractError
            If the file is damaged.
        """
        held: list[pa.Table] = []
        with self._readable():
            for batch in self._batches(names, rows):
                table = pa.Table.from_batches([batch]).select(list(names))
                for place, name in enumerate(names):
                    if name in self._named:
                        table = table.set_column(place, name, self._items(table, name))
                table = pa.concat_tables([*held, table])
                while table.num_rows >= rows:
                    yield table.slice(0, rows)
                    table = table.slice(rows)
                held = [table] if table.num_rows else []
            yield from held

    def _items(self, table: pa.Table, column: str) -> pa.ChunkedArray:
        """Return the names for the indices in a column; null for -1 or null.

        Raises ExtractError for any other number that is no index of a name.
        """
        names = self._named[column]
        places = table.column(column).cast(pa.int64())
        places = _pc.if_else(_pc.equal(places, -1), None, places)
        wrong = _pc.or_(_pc.less(places, 0), _pc.greater_equal(places, len(names)))
        if _pc.any(wrong).as_py():
            raise ExtractError(
                f"The column {column!r} of {str(self.path)!r} has numbers beyond its "
                f"{len(names)} names. Complete the names, or write the column as text."
            )
        return _pc.take(pa.array(names, pa.string()), places)

    def broken(self, line: int | None) -> ExtractError:
        """Return the error for a line of a CSV, counted from 1 without empty lines.

        None means a line of more than MAX_LINE_BYTES.
        """
        if line is None:
            return ExtractError(
                f"{str(self.path)!r} has a line of more than {MAX_LINE_BYTES} bytes. "
                "Save the rows as Parquet, or close a quote that is left open."
            )
        return ExtractError(
            f"line {line} of {str(self.path)!r}, not counting empty lines, has more or "
            "fewer cells than the header, or a quote that is not closed. Correct the "
            "line in a text editor."
        )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn the errors of pyarrow for a damaged file into one ExtractError."""
        wrong = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
        try:
            yield
        except wrong as error:
            if isinstance(error, OSError) and error.errno:
                raise ExtractError(
                    f"{str(self.path)!r} cannot be read ({error.strerror}). Check the "
                    "path and your permission to read the file."
                ) from error
            if not self.separator:
                raise ExtractError(
                    f"pyarrow cannot read {str(self.path)!r} "
                    f"({type(error).__name__}). Write the file again."
                ) from error
            # pyarrow's text may quote a private row, so only its number is kept
            found = re.search(r"Row #(\d+)", str(error))
            line = int(found[1]) if found else None
            if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
                raise self._foreign(line) from error
            raise self.broken(line) from error

    def _foreign(self, line: int | None) -> ExtractError:
        """Return the error for bytes that are invalid in the encoding."""
        where = "" if line is None else f" in line {line}"
        todo = "Save the table as UTF-8, and remove encoding from --columns."
        if self.encoding == "utf-8":
            todo = (
                "Type --columns encoding=windows-1252 for a table from Excel in "
                "Western Europe, or save the table as UTF-8."
            )
        return ExtractError(
            f"The encoding {self.encoding} does not fit {str(self.path)!r}{where}. "
            f"{todo}"
        )

    def _header(self, separators: str) -> list[str]:
        """Return the names in the first line of a CSV, and note the separator.

        Raises ExtractError if the line is a row of numbers, not a header. Increasing
        whole numbers are accepted as names of columns.
        """
        self.separator = separators[0]
        with self.path.open("rb") as file:
            line = file.readline(MAX_LINE_BYTES)
        if len(line) == MAX_LINE_BYTES:
            raise self.broken(None)
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ExtractError(
                f"{str(self.path)!r} has the encoding UTF-16. Save the table as UTF-8."
            )
        text = line.decode("utf-8-sig" if self.encoding == "utf-8" else self.encoding)
        if text.count('"') % 2:
            raise self.broken(1)
        found = {separator: _cells(text, separator) for separator in separators}
        self.separator = max(found, key=lambda separator: len(found[separator]))
        names = [name.strip() for name in found[self.separator]]
        numbers = [_cell_number(name) for name in names]
        counted = all(n % 1 == 0 for n in numbers) and sorted({*numbers}) == numbers
        if names and not counted and all(abs(n) < float("inf") for n in numbers):
            raise ExtractError(
                f"the first line of {str(self.path)!r} must name the columns, got "
                f"{', '.join(names[:4])}. Write a line of names above it."
            )
        return names

    def _batches(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        if self.separator:
            yield from self._delimited()
            return
        texts = [
            name
            for name in names
            if is_text(self.schema.field(name).type) and name not in self._named
        ]
        with parquet.ParquetFile(self.path, read_dictionary=texts) as file:
            yield from file.iter_batches(batch_size=rows, columns=list(names))

    def _delimited(self) -> Iterator[pa.RecordBatch]:
        """Yield all columns of a CSV as text. An empty cell is a missing value.

        Raises ExtractError for a line break in quotes, because an unclosed quote would
        hide the lines up to the next quote.
        """
        names = self.schema.names
        read = pacsv.ReadOptions(
            column_names=names,
            skip_rows=1,
            block_size=MAX_LINE_BYTES,
            use_threads=False,
            encoding=self.encoding,
        )
        parse = pacsv.ParseOptions(
            delimiter=self.separator,
            # an empty line of a single column is a row without a value
            ignore_empty_lines=len(names) > 1,
        )
        convert = pacsv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            null_values=[""],
            strings_can_be_null=True,
        )
        try:
            reader = pacsv.open_csv(self.path, read, parse, convert)
        except pa.ArrowInvalid as error:
            if "Could not skip" in str(error):  # the file has only a header
                return
            raise
        line = 2
        for batch in reader:
            for column in batch.columns:
                # one buffer with all cells, which is quick to search
                cells = column.buffers()[2]
                data = b"" if cells is None else cells.to_pybytes()
                if b"\n" in data or b"\r" in data:
                    broken = _pc.match_substring_regex(column, "[\r\n]")
                    raise self.broken(line + _pc.index(broken, True).as_py())
            line += batch.num_rows
            yield batch


def _cells(line: str, separator: str) -> list[str]:
    """Return the cells of a line; [] if it does not close its quotes."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error:
        return []


def _cell_number(cell: str) -> float:
    """Return the number in a cell of a CSV, or NaN."""
    try:
        return typed_number(cell, float)
    except ValueError:
        return float("nan")


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text, with or without a dictionary."""
    kind = kind.value_type if is_arrow(kind, "dictionary") else kind
    return is_arrow(kind, *ARROW_TEXTS)


def holds_images(kind: pa.DataType) -> bool:
    """Return whether a type is bytes, or a struct with bytes under the name "bytes"."""
    if is_arrow(kind, "struct"):
        place = kind.get_field_index("bytes")
        return place >= 0 and holds_images(kind.field(place).type)
    return is_arrow(kind, "binary", "large_binary", "binary_view")


def check_role(role: str, kind: pa.DataType, path: Path) -> None:
    """Raise ExtractError unless a column of this type can have this role."""
    # a split of booleans gets a clearer error where its values are read
    other = "floating" if role == "group" else "boolean"
    if not (is_arrow(kind, "integer", other) or is_text(kind)):
        what = "numbers" if role == "group" else "whole numbers"
        raise ExtractError(
            f"--columns {role}=NAME must name a column of text or {what}, got {kind} "
            f"in {str(path)!r}. Convert the column, or name another one."
        )


def width_and_dtype(
    kinds: dict[str, pa.DataType], declared: int | None, texts: bool, path: Path
) -> tuple[int, np.dtype, bool]:
    """Return the width and dtype of features, and whether one column holds lists.

    Parameters
    ----------
    kinds : dict
        The type of each column of features.
    declared : int or None
        Length of the lists, if their type does not give it.
    texts : bool
        Whether texts count as numbers, as in a CSV.
    path : Path
        The file.

    Raises
    ------
    ExtractError
        If a column has no numbers, if a column of lists is not the only column, or if
        the length of lists is unknown.
    """
    lists = [name for name, kind in kinds.items() if is_arrow(kind, *_LISTS)]
    entries = {
        name: kind.value_type if name in lists else kind for name, kind in kinds.items()
    }
    wrong = [
        name
        for name, kind in entries.items()
        if not (is_arrow(kind, *_NUMBERS) or (texts and is_text(kind)))
    ]
    if not kinds or wrong or (lists and len(kinds) > 1):
        got = ", ".join(map(str, kinds)) or "none"
        got = f"{wrong[0]!r} of type {kinds[wrong[0]]}" if wrong else got
        raise ExtractError(
            "--columns features=A,B,... must name columns of numbers or one column "
            f"of lists of numbers, got {got} in {str(path)!r}."
        )
    halves = all(entry == pa.float16() for entry in entries.values())
    dtype = np.dtype(np.float16 if halves else np.float64)
    if not lists:
        return len(kinds), dtype, False
    width = getattr(kinds[lists[0]], "list_size", declared)
    if width is None:
        raise ExtractError(
            "--columns width=N is required, because the type of the column "
            f"{lists[0]!r} in {str(path)!r} does not give the length of its lists. "
            "Lists of a different length are masked."
        )
    return width, dtype, True


def floats(
    column: Any, width: int | None = None, where: str = "The column"
) -> np.ndarray:
    """Return a column of a table as features, one row at a time.

    Parameters
    ----------
    column : pyarrow.ChunkedArray of shape (k,)
        Numbers, texts of numbers, or lists of numbers.
    width : int, optional
        Number of entries of a list. Default: the column holds no lists.
    where : str, default "The column"
        The column in words, for errors.

    Returns
    -------
    (k, width) or (k, 1) float64
        The features. An entry is NaN if it is missing or no number, and so are all
        entries of a list with a different length.

    Raises
    ------
    ExtractError
        For a text such as 0,5 or 1'000, which programs read as different numbers.
    """
    if width is None:
        return _numbers(column, where)[:, None]
    out = np.full((len(column), width), np.nan)
    fits = _pc.fill_null(_pc.equal(_pc.list_value_length(column), width), False)
    # flatten only these lists: a missing list may still span numbers
    entries = _numbers(_pc.list_flatten(column.filter(fits)), where)
    out[fits.to_numpy()] = entries.reshape(-1, width)
    return out


def _numbers(column: Any, where: str) -> np.ndarray:
    """Return a column's numbers as float64, with NaN for missing numbers."""
    if is_text(column.type):
        try:
            column = column.cast(pa.float64())
        # Python accepts " 1.5" too, and finds the cell that is not a number
        except pa.ArrowInvalid:
            cells = [cell or "" for cell in column.to_pylist()]
            numbers = np.array([_cell_number(cell) for cell in cells], float)
            for at in np.flatnonzero(np.isnan(numbers)):
                if _SEPARATED.fullmatch(cells[at].strip()):
                    raise ExtractError(
                        f"{where} has {cells[at][:40]!r}, which is not a number. Write "
                        "a decimal point and no other separator, such as 0.5 for 0,5, "
                        "or leave out the column (--columns features=A,B or --schema)."
                    ) from None
            return numbers
    if is_arrow(column.type, "boolean"):
        column = column.cast(pa.int8())
    if column.null_count:
        column = column.cast(pa.float64(), safe=False).fill_null(float("nan"))
    return column.to_numpy().astype(np.float64)
