"""Encode the columns of a table by a schema of declared ranges and categories.

A row is encoded from its own cells and from the schema, which is public. No other row
has an effect.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dphead_extract.bounds import read_text
from dphead_extract.declared import is_a, typed
from dphead_extract.errors import ExtractError
from dphead_extract.items import name_of, read_column, text_group
from dphead_extract.sources.columns import Columns
from dphead_extract.sources.table_files import floats, is_text

# column of ones, so that a row still shows how large its cells were after scaling to
# unit norm
_CONSTANT = "constant"


@dataclass(frozen=True)
class _Column:
    """Declare a column: a range of numbers, or categories.

    With `missing`, an extra column marks cells without a value. Otherwise, the row of
    such a cell is masked.
    """

    name: str
    range: tuple[float, float] | None
    categories: tuple[str, ...]
    missing: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the encoded columns."""
        own = tuple(f"{self.name}={one}" for one in self.categories) or (self.name,)
        return (*own, f"{self.name} missing") if self.missing else own

    def encode(self, cells: Any, where: str) -> np.ndarray:
        """Return the encoded cells (k, len(names)), NaN for a row to mask.

        A number is clipped to its range and mapped to [-1, 1]. A category is 1 in its
        own column and 0 in the others.
        """
        if self.range is not None:
            low, high = self.range
            own = floats(cells, where=where)
            own = np.clip((own - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)
        else:
            # 1, 1.0 and "1" are one category, as they are one group
            found = [text_group(name_of(item)) for item in read_column(cells)]
            ids = [text_group(one) for one in self.categories]
            own = (np.array(found, int)[:, None] == np.array(ids)).astype(float)
            own[~own.any(axis=1)] = np.nan
        if not self.missing:
            return own
        none = np.isnan(own).any(axis=1, keepdims=True)
        return np.hstack([np.where(none, 0.0, own), none])


@dataclass(frozen=True)
class Schema:
    """Hold the declared columns of a table, in the order of the schema.

    Attributes
    ----------
    declared : list of (str, JSON data)
        Names and declared values of the columns, which `Schema.of` can read again.
    columns : dict
        The columns by name.
    """

    declared: list[tuple[str, Any]]
    columns: dict[str, _Column]

    @classmethod
    def read(cls, path: str) -> Self:
        """Return the schema in a TOML file.

        Raises ExtractError if the file cannot be read, or has invalid values.
        """
        try:
            return cls.of(tomllib.loads(read_text(Path(path))).items())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ExtractError(
                f"--schema needs a TOML file. Reading {path!r} failed: {error}."
            ) from error

    @classmethod
    def of(cls, declared: Iterable[tuple[str, Any]]) -> Self:
        """Return the schema of pairs of a name and values.

        Raises ExtractError for invalid values, or without any pair.
        """
        pairs = [(name, what) for name, what in declared]
        columns = {name: _column(name, what) for name, what in pairs}
        if not columns:
            raise ExtractError(
                "--schema has no column. Declare each column, such as age = [0, 120] "
                'or sex = ["f", "m"].'
            )
        return cls(pairs, columns)

    def check(self, columns: Columns, kinds: Mapping[str, pa.DataType]) -> None:
        """Raise ExtractError if `columns` names features, or a type does not fit.

        `kinds` has the type of each column in the file. Booleans fit no declaration.
        """
        if columns.features or columns.width:
            raise ExtractError(
                "--schema cannot be combined with features or width in --columns. "
                "Remove --schema, or features and width."
            )
        for name, column in self.columns.items():
            kind = kinds.get(name, pa.string())
            number = column.range is not None
            fits = is_text(kind) or pa.types.is_integer(kind)
            # refuse booleans, which are "True", "true" or "1" in other tables
            if not fits and not (number and pa.types.is_floating(kind)):
                what = "numbers" if number else "text or whole numbers"
                raise ExtractError(
                    f"--schema declares {name!r} as {what}, got a column of {kind}. "
                    "Convert the column."
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all encoded columns."""
        own = (name for column in self.columns.values() for name in column.names)
        return (*own, _CONSTANT)

    def encode(self, table: Any, path: Path) -> np.ndarray:
        """Return the encoded rows (k, len(names)) of a `pyarrow.Table`."""
        parts = [
            column.encode(table.column(name), f"The column {name!r} of {str(path)!r}")
            for name, column in self.columns.items()
        ]
        return np.hstack([*parts, np.ones((table.num_rows, 1))])


def _column(name: str, what: Any) -> _Column:
    """Read [low, high], ["a", "b", ...] or {values = ..., missing = true}."""
    given = what if isinstance(what, dict) else {"values": what}
    values, missing = given.get("values"), given.get("missing", False)
    known = isinstance(values, list) and type(missing) is bool
    if known and given.keys() <= {"values", "missing"} and values:
        if all(is_a(value, str) for value in values):
            names = tuple(name_of(value) or "" for value in values)
            if "" not in names and len({*map(text_group, names)}) == len(names):
                return _Column(name, None, names, missing)
        elif len(values) == 2 and all(is_a(value, float) for value in values):
            low, high = map(float, values)
            if -np.inf < low < high < np.inf and high - low < np.inf:
                return _Column(name, (low, high), (), missing)
    shown = typed(what)
    if isinstance(what, dict):  # as in TOML
        pairs = (f"{key} = {json.dumps(one, default=str)}" for key, one in what.items())
        shown = f"{{{', '.join(pairs)}}}"
    raise ExtractError(
        f"--schema declares {name!r} as {shown}. Declare a range such as [0, "
        '120], different categories such as ["no", "yes"], or either of them as '
        "{values = [0, 120], missing = true}."
    )
