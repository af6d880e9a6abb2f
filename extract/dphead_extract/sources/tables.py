"""Find the columns of a table, and read embeddings as blocks of rows.

The role of a column is declared, or in the file's header: no row may decide it for
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.sources.npy import opened_arrays

ROLES = ("label", "group", "split")
Block = dict[str, Any]


@dataclass(frozen=True)
class Columns:
    """Say which columns, or arrays of an .npz, hold what.

    Attributes
    ----------
    features : tuple of str
        Names, or patterns such as "emb_*". Empty: all but the others, or the array
        "features" of an .npz.
    label, group, split : str or None
        None is the column of that name or of its plural, if the file has one. For an
        .npy they are paths of further .npy files.
    width : int or None
        Number of entries in a list, if the column's type does not say it.
    """

    features: tuple[str, ...] = ()
    label: str | None = None
    group: str | None = None
    split: str | None = None
    width: int | None = None

    def roles(self, names: Sequence[str], path: Path) -> dict[str, str]:
        """Return the column of each role that the file has.

        Raises ExtractError for a named column that is missing. Also if no column is
        named for a role, and several columns, or one of another case, could have it.
        """
        found = {}
        for role in ROLES:
            wanted = getattr(self, role)
            if wanted is not None:
                check_columns([wanted], names, path)
                found[role] = wanted
                continue
            alike = [name for name in names if is_called(name, role)]
            if len(alike) > 1 or set(alike) - {role, f"{role}s"}:
                raise ExtractError(
                    f"the column of {role}s must be clear, got {alike} in "
                    f"{str(path)!r}. Name it by --{role} (of a data set of images: "
                    f"--column {role}=NAME), or rename them."
                )
            if alike:
                found[role] = alike[0]
        return found

    def of_features(self, names: Sequence[str], path: Path) -> list[str]:
        """Return the columns of features as they are named, then in the file's order.

        Raises ExtractError if none is named and one is likely not a feature: a label,
        group or split of another name than the chosen one, or the index of a frame.
        """
        others = set(self.roles(names, path).values())
        rest = [name for name in names if name not in others]
        if not self.features:
            _check_rest(rest, path)
            return rest
        exact = [pattern for pattern in self.features if not set("*?[") & set(pattern)]
        check_columns(exact, rest, path)
        found = dict.fromkeys(
            name
            for pattern in self.features
            for name in ([pattern] if pattern in rest else rest)
            if name == pattern or fnmatchcase(name, pattern)
        )
        return list(found)


def is_called(name: str, role: str) -> bool:
    """Return whether a column has a role's name or its plural, in any case."""
    return name.strip().lower() in (role, f"{role}s")


def _check_rest(names: Sequence[str], path: Path) -> None:
    for name in names:
        index = not name.strip() or name.startswith(("__index_level_", "Unnamed: "))
        if index or any(is_called(name, role) for role in ROLES):
            raise ExtractError(
                "columns that are not named must be features, got "
                f"{name!r} in {str(path)!r}. Name the features by --features, or "
                "write the table without its index and that column."
            )


def check_columns(wanted: Sequence[str], names: Sequence[str], path: Path) -> None:
    """Raise ExtractError unless the file has these columns, each once."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ExtractError(
            f"columns must have names of their own, got {twice!r} twice in "
            f"{str(path)!r}. Rename one."
        )
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ExtractError(
            f"a named column must be in the file, got {missing[0]!r} where "
            f"{str(path)!r} has {list(names)[:8]}. Correct the name."
        )


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
        Names of the features' columns; empty if they are one array.
    files : tuple of Path
        The files that hold the rows.
    roles : tuple of str
        The roles that the file has.
    read : callable
        Takes (rows, with_features) and yields blocks of that many rows, by role.
        Features are (k, n_features) under "features", with NaN for a missing entry.
    unread : tuple of str
        Names of the arrays that the file holds beside these.
    """

    kind: str
    n_features: int
    dtype: np.dtype
    columns: tuple[str, ...]
    files: tuple[Path, ...]
    roles: tuple[str, ...]
    read: Callable[[int, bool], Iterator[Block]]
    unread: tuple[str, ...] = ()


def open_table(path: Path, columns: Columns) -> Table:
    """Recognize a file by its name and read its header; no row is read.

    Of a .npy or .npz, features are an array. Of other files they are columns of
    numbers, or one column of lists. Lists are as long as the column's type or
    `columns.width` says: a list of another length is a row that is not finite.

    Raises
    ------
    ExtractError
        If the file is missing, damaged, of another kind, or without the named columns.
    """
    if not path.is_file():
        raise ExtractError(
            f"the file of embeddings must exist, got {str(path)!r}. Check the path."
        )
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return _arrays(path, columns)
    if suffix in (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ipc"):
        return _columns(path, columns)
    raise ExtractError(
        "embeddings must be a .npy, .npz, .csv, .tsv, .parquet, .arrow or .feather "
        f"file, got {str(path)!r}. Convert them."
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
            "features must be an array (n, d) of real numbers, got shape "
            f"{features.shape} and dtype {features.dtype} in {str(path)!r}. Save such "
            "an array, or name another one by --features."
        )
    for role, array in arrays.items():
        if array.shape != features.shape[:1]:
            raise ExtractError(
                f"--{role} must name an array of one value per row, got shape "
                f"{array.shape} for {len(features)} rows. Save the array again."
            )

    def read(rows: int, with_features: bool) -> Iterator[Block]:
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
            "--label, --group and --split must be paths of .npy files if the features "
            f"are an .npy, got {str(path)!r}. Save the column by `numpy.save`."
        )
    with opened_arrays(path) as stored:
        return stored[""]


def _columns(path: Path, columns: Columns) -> Table:
    # pyarrow takes a while to import, and arrays need none
    from dphead_extract.sources.numbers import floats, width_and_dtype
    from dphead_extract.sources.table_files import check_role, schema_of, tables

    schema = schema_of(path)
    names = list(schema.names)
    roles = columns.roles(names, path)
    for role, name in roles.items():
        check_role(role, schema.field(name).type, path)
    features = columns.of_features(names, path)
    kinds = {name: schema.field(name).type for name in features}
    width, dtype, is_list = width_and_dtype(kinds, columns.width, path)

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        extra = features if with_features else []
        # without other columns, a first column says how many rows there are
        wanted = [*roles.values(), *extra] or features[:1]
        for table in tables(path, wanted, rows):
            block: Block = {role: table.column(name) for role, name in roles.items()}
            if with_features or not block:
                parts = [
                    floats(table.column(name), width if is_list else None)
                    for name in wanted[len(roles) :]
                ]
                block["features"] = np.concatenate(parts, axis=1)
            yield block

    suffix = path.suffix.lower()
    return Table(
        "arrow" if suffix in (".feather", ".ipc") else suffix[1:],
        width,
        dtype,
        () if is_list else tuple(features),
        (path,),
        tuple(roles),
        read,
    )
