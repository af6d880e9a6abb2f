"""Read embeddings from arrays and tables, as blocks of rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dphead_extract.errors import ExtractError
from dphead_extract.sources.columns import TABLE_SUFFIXES, Columns, check_columns
from dphead_extract.sources.npz import array_files, opened_arrays
from dphead_extract.sources.schema import Schema
from dphead_extract.sources.table_files import (
    TableFile,
    check_role,
    floats,
    width_and_dtype,
)

RowBlock = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Describe the rows of a file, in their order.

    Attributes
    ----------
    n_features : int
        Number of features.
    dtype : dtype
        The features' dtype in the file.
    columns : tuple of str
        Names of the features' columns; empty if the features are one array.
    roles : tuple of str
        The roles ("label", "group", "split") for which the file has a column.
    read : callable
        Takes (rows, with_features) and yields blocks of that many rows, by role.
        Features are (k, n_features) under "features", with NaN for a missing entry.
    unread : sequence of str
        Names of the other arrays in the file.
    """

    n_features: int
    dtype: np.dtype
    columns: tuple[str, ...]
    roles: tuple[str, ...]
    read: Callable[[int, bool], Iterator[RowBlock]]
    unread: Sequence[str] = ()


class _Arrays:
    """Present named arrays as a table, with the features as a column of lists."""

    separator = ""

    def __init__(self, path: Path, columns: Columns) -> None:
        self.path = path
        with opened_arrays(path) as stored:
            roles = columns.roles([*stored], path)
            wanted = (columns.features or ("features",))[0]
            check_columns([wanted], [*stored], path, "--columns features=NAME")
            self.unread = sorted({*stored} - {wanted, *roles.values()})
            # numpy returns bytes for a member that is not an array
            x = np.asarray(stored[wanted])
            if x.ndim < 2 or x.dtype.kind not in "biuf" or 0 in x.shape:
                raise ExtractError(
                    "--columns features=NAME must name an array of real numbers with "
                    f"shape (n, ...), got shape {x.shape} and dtype {x.dtype} in "
                    f"{str(path)!r}. Type the name of another array."
                )
            if x.dtype == np.longdouble:  # pyarrow has no longdouble
                with np.errstate(over="ignore"):
                    x = x.astype(np.float64)
            x = x.reshape(len(x), -1)  # `finetune --shape` restores the shape
            lists = pa.FixedSizeListArray.from_arrays(
                pa.array(_native(x).ravel()), x.shape[1]
            )
            held = {name: np.asarray(stored[name]) for name in roles.values()}
            for role, name in roles.items():
                if held[name].shape != x.shape[:1]:
                    raise ExtractError(
                        f"The array {name!r} must have {len(x)} values, one per row, "
                        f"got shape {held[name].shape}. Type --columns {role}=NAME "
                        "with another array."
                    )
            self._table = pa.table(
                {wanted: lists}
                | {name: _column(name, values) for name, values in held.items()}
            )
        self.schema = self._table.schema

    def read(self, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """Yield some columns, a number of rows at a time."""
        for start in range(0, self._table.num_rows, rows):
            yield self._table.select(list(names)).slice(start, rows)


def _column(name: str, values: np.ndarray) -> pa.Array:
    """Return an array of labels, splits or groups as a column of a table.

    pyarrow cuts numpy's texts at the first NUL, so it gets their bytes. Bytes that are
    not UTF-8 are kept.
    """
    try:
        if values.dtype.kind in "US":
            held = (
                item
                if isinstance(item, bytes)
                else item.encode("utf-8", "surrogateescape")
                for item in values.tolist()
            )
            return pa.array(held, pa.binary()).view(pa.string())
        return pa.array(_native(values))
    except UnicodeEncodeError as error:
        raise ExtractError(
            f"The array {name!r} holds text that UTF-8 cannot encode (half of a "
            "surrogate pair). Convert the array by `np.char.encode(values, 'utf-8', "
            "'backslashreplace')`."
        ) from error
    except pa.ArrowException as error:
        raise ExtractError(
            f"The array {name!r} must hold text or numbers, got {values.dtype}. "
            "Convert the array by `values.astype(str)`."
        ) from error


def _native(values: np.ndarray) -> np.ndarray:
    """Return numbers in this machine's byte order, which pyarrow needs."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _holds_arrays(path: Path) -> bool:
    """Return whether a path is a file of named arrays, or a folder of .npy files."""
    if path.is_dir():
        return bool(array_files(path))
    return path.is_file() and path.suffix.lower() in (".npz", ".safetensors")


def open_embeddings(
    path: Path, columns: Columns, schema: Schema | None = None
) -> Table:
    """Return the table of a file of embeddings; its name's ending shows its kind.

    The features of an .npz, a .safetensors or a folder of .npy are an array. The
    features of other files are columns of numbers, or one column of lists. The column's
    type or `columns.width` gives the length of a list. A list with a different length
    becomes a row of NaN. With a schema, the features are its encoded columns.

    Raises
    ------
    ExtractError
        If the file is missing, damaged or not of a known kind, lacks the named columns,
        or has arrays although there is a schema.
    """
    of_arrays = _holds_arrays(path)
    if not of_arrays and not path.is_file():
        raise ExtractError(
            f"{str(path)!r} is not a file or a folder of .npy files. Type the path of "
            "the embeddings, or use `dphead extract` for images."
        )
    if not of_arrays and path.suffix.lower() not in TABLE_SUFFIXES:
        raise ExtractError(
            "the name of a file of embeddings must end in one of .npz, .safetensors, "
            f"{', '.join(TABLE_SUFFIXES)}, got {str(path)!r}. Save arrays by "
            "`numpy.savez(FILE, features=x, label=y)`."
        )
    if of_arrays and schema is not None:
        raise ExtractError(
            f"--schema needs a table (CSV, TSV, Parquet), got {str(path)!r}. Remove "
            "--schema."
        )
    file = _Arrays(path, columns) if of_arrays else TableFile(path, columns.encoding)
    names = file.schema.names
    roles = columns.roles(names, path)
    if isinstance(file, TableFile):
        file.name_items(roles)
    for role, name in roles.items():
        check_role(role, file.schema.field(name).type, path)
    if schema is not None:
        rest = [name for name in names if name not in roles.values()]
        schema.check(columns, {name: file.schema.field(name).type for name in rest})
        features, is_list = [*schema.columns], False
        check_columns(features, rest, path, "--schema")
        width, dtype = len(schema.names), np.dtype(np.float64)
    else:
        features = columns.of_features(names, path)
        kinds = {name: file.schema.field(name).type for name in features}
        width, dtype, is_list = width_and_dtype(
            kinds, columns.width, bool(file.separator), path
        )

    def encode(table: pa.Table) -> np.ndarray:
        if schema is not None:
            return schema.encode(table, path)
        each = width if is_list else None
        parts = [
            floats(table.column(name), each, f"The column {name!r} of {str(path)!r}")
            for name in features
        ]
        return np.concatenate(parts, axis=1)

    def read(rows: int, with_features: bool) -> Iterator[RowBlock]:
        # without other columns, read the first feature to count rows
        extra = features if with_features else [] if roles else features[:1]
        for table in file.read([*roles.values(), *extra], rows):
            block: RowBlock = {role: table.column(name) for role, name in roles.items()}
            if extra:
                empty = np.zeros((table.num_rows, 0))
                block["features"] = encode(table) if with_features else empty
            yield block

    return Table(
        width,
        dtype,
        schema.names if schema else () if is_list else tuple(features),
        tuple(roles),
        read,
        getattr(file, "unread", ()),
    )
