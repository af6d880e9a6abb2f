"""Read embeddings from arrays and tables, as blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.sources.columns import (
    ROLES,
    TABLE_SUFFIXES,
    Columns,
    check_columns,
)
from dphead_extract.sources.npy import opened_arrays

RowBlock = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Describe the rows of a file, in their order.

    Attributes
    ----------
    kind : str
        The kind of file.
    n_features : int
        Number of features.
    dtype : dtype
        The features' dtype in the file.
    columns : tuple of str
        Names of the features' columns; empty if the features are one array.
    files : tuple of Path
        The files that hold the rows.
    roles : tuple of str
        The roles that the file has.
    read : callable
        Takes (rows, with_features) and yields blocks of that many rows, by role.
        Features are (k, n_features) under "features", with NaN for a missing entry.
    unread : tuple of str
        Names of the other arrays in the file.
    """

    kind: str
    n_features: int
    dtype: np.dtype
    columns: tuple[str, ...]
    files: tuple[Path, ...]
    roles: tuple[str, ...]
    read: Callable[[int, bool], Iterator[RowBlock]]
    unread: tuple[str, ...] = ()


def open_embeddings(path: Path, columns: Columns) -> Table:
    """Recognize a file of embeddings by its name and read its header.

    The features of a .npy or .npz are an array. The features of other files are columns
    of numbers, or one column of lists. The column's type or `columns.width` gives the
    length of a list. A list of another length is a row that is not finite.

    Raises
    ------
    ExtractError
        If the file is missing, damaged, of another kind, or without the named columns.
    """
    if not path.is_file():
        raise ExtractError(f"{str(path)!r} is not a file.")
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return _arrays(path, columns)
    if suffix in TABLE_SUFFIXES:
        return _columns(path, columns)
    raise ExtractError(
        f"the name of a file of embeddings must end in .npy, .npz or "
        f"{', '.join(TABLE_SUFFIXES)}, got {str(path)!r}."
    )


def _arrays(path: Path, columns: Columns) -> Table:
    with opened_arrays(path) as stored:
        names = list(stored)
        if path.suffix.lower() == ".npy":
            named = {role: getattr(columns, role) for role in ROLES}
            files = {role: Path(name) for role, name in named.items() if name}
            arrays = {role: _one_array(file) for role, file in files.items()}
            wanted, used = "", [""]
        else:
            files, roles = {}, columns.roles(names, path)
            wanted = (columns.features or ("features",))[0]
            check_columns([wanted], names, path)
            arrays = {role: np.asarray(stored[name]) for role, name in roles.items()}
            used = [wanted, *roles.values()]
        # a member without the header of an array is given as bytes
        features = np.asarray(stored[wanted])
    if features.ndim != 2 or features.dtype.kind not in "biuf":
        raise ExtractError(
            "--features must name an array (n, d) of real numbers, got shape "
            f"{features.shape} and dtype {features.dtype} in {str(path)!r}."
        )
    for role, array in arrays.items():
        if array.shape != features.shape[:1]:
            raise ExtractError(
                f"--columns {role}=NAME must name an array of {len(features)} values, "
                f"got shape {array.shape}."
            )

    def read(rows: int, with_features: bool) -> Iterator[RowBlock]:
        # without any other array, the features say how many rows there are
        extra = {"features": features} if with_features or not arrays else {}
        for start in range(0, len(features), rows):
            block = slice(start, start + rows)
            yield {name: array[block] for name, array in (arrays | extra).items()}

    return Table(
        path.suffix.lower()[1:],
        features.shape[1],
        features.dtype,
        (),
        (path, *files.values()),
        tuple(arrays),
        read,
        tuple(sorted({*names} - {*used})),
    )


def _one_array(path: Path) -> np.ndarray:
    if path.suffix.lower() != ".npy" or not path.is_file():
        raise ExtractError(
            "--columns must name .npy files if the features are an .npy, got "
            f"{str(path)!r}. Save the column by `numpy.save`."
        )
    with opened_arrays(path) as stored:
        return stored[""]


def _columns(path: Path, columns: Columns) -> Table:
    # pyarrow takes a while to import, and arrays do not need it
    from dphead_extract.sources.table_files import (
        TableFile,
        check_role,
        floats,
        width_and_dtype,
    )

    file = TableFile(path, columns.encoding)
    names = file.schema.names
    roles = columns.roles(names, path)
    for role, name in roles.items():
        check_role(role, file.schema.field(name).type, path)
    features = columns.of_features(names, path)
    kinds = {name: file.schema.field(name).type for name in features}
    width, dtype, is_list = width_and_dtype(kinds, columns.width, file)

    def read(rows: int, with_features: bool) -> Iterator[RowBlock]:
        # without columns of roles, the first feature says how many rows there are
        extra = features if with_features else [] if roles else features[:1]
        for table in file.read([*roles.values(), *extra], rows):
            block: RowBlock = {role: table.column(name) for role, name in roles.items()}
            if extra:
                parts = [
                    floats(table.column(name), width if is_list else None)
                    for name in extra
                ]
                block["features"] = np.concatenate(parts, axis=1)
            yield block

    return Table(
        path.suffix.lower()[1:],
        width,
        dtype,
        () if is_list else tuple(features),
        (path,),
        tuple(roles),
        read,
    )
