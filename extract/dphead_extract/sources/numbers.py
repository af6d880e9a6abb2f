"""Turn the columns of a `pyarrow.Table` into features, one row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dphead_extract.errors import ExtractError
from dphead_extract.sources.table_files import TableFile, cell_number, is_text, pc


def width_and_dtype(
    kinds: dict[str, pa.DataType], declared: int | None, file: TableFile
) -> tuple[int, np.dtype, bool]:
    """Return the width and dtype of features, and whether one column holds lists.

    Parameters
    ----------
    kinds : dict
        The type of each column of features. Texts of a CSV count as numbers.
    declared : int or None
        Length of the lists, if their type does not give it.
    file : TableFile
        The file.

    Raises
    ------
    ExtractError
        If the length of lists is unknown, or a column has no numbers.
    """
    lists = [name for name, kind in kinds.items() if _is_list(kind)]
    entries = {
        name: kind.value_type if name in lists else kind for name, kind in kinds.items()
    }
    wrong = [
        name
        for name, kind in entries.items()
        if not (_is_number(kind) or (file.separator and is_text(kind)))
    ]
    if not kinds or wrong or (lists and len(kinds) > 1):
        got = ", ".join(map(str, kinds)) or "none"
        got = f"{wrong[0]!r} of type {kinds[wrong[0]]}" if wrong else got
        raise ExtractError(
            "--features must name columns of numbers or one column of lists of "
            f"numbers, got {got} in {str(file.path)!r}."
        )
    halves = all(entry == pa.float16() for entry in entries.values())
    dtype = np.dtype(np.float16 if halves else np.float64)
    if not lists:
        return len(kinds), dtype, False
    width = getattr(kinds[lists[0]], "list_size", declared)
    if width is None:
        raise ExtractError(
            f"--width is required: the type of {lists[0]!r} in {str(file.path)!r} does "
            "not give the length of its lists. A list of another length is masked."
        )
    return width, dtype, True


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    fixed = types.is_fixed_size_list(kind)
    return fixed or types.is_list(kind) or types.is_large_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def floats(column: Any, width: int | None = None) -> np.ndarray:
    """Return a column of a table as features, one row at a time.

    Parameters
    ----------
    column : pyarrow.ChunkedArray of shape (k,)
        Numbers, texts of numbers, or lists of numbers.
    width : int, optional
        Number of entries of a list. Default: the column holds no lists.

    Returns
    -------
    (k, width) or (k, 1) float64
        The features. An entry is NaN if it is missing or no number, and so are all
        entries of a list of another length.
    """
    if width is None:
        return _numbers(column)[:, None]
    out = np.full((len(column), width), np.nan)
    fits = pc.fill_null(pc.equal(pc.list_value_length(column), width), False)
    # flatten only these lists: a missing list may still span numbers
    entries = _numbers(pc.list_flatten(column.filter(fits)))
    out[fits.to_numpy()] = entries.reshape(-1, width)
    return out


def _numbers(column: Any) -> np.ndarray:
    """Return numbers as float64, NaN where there is none."""
    if is_text(column.type):
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid:  # Python also reads " 1.5", and tells which are none
            return np.array(
                [cell_number(cell or "") for cell in column.to_pylist()], float
            )
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.null_count:
        column = column.cast(pa.float64(), safe=False).fill_null(float("nan"))
    return column.to_numpy().astype(np.float64)
