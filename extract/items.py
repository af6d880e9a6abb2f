"""A column in memory, one item a row: labels, targets or groups, of numpy, pandas,
pyarrow or in a list. No item may decide how another is read.

What makes an array of a column by its values (pandas and pyarrow make floats of whole
numbers where one is missing) may not be asked for it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from extract.errors import FormatError


def declared_dtype(values: Any) -> np.dtype:
    """What a column declares its items to be; object where it declares nothing, as
    lists, texts and categories do.
    """
    held = _held(values)
    dtype = getattr(held, "dtype", None)
    dtype = getattr(dtype, "numpy_dtype", dtype)  # of pandas' types with missing values
    if isinstance(dtype, np.dtype):
        return dtype
    if _is_opaque(held):
        return np.asarray(held).dtype
    try:
        return np.dtype(held.type.to_pandas_dtype())  # of pyarrow
    except (AttributeError, NotImplementedError, TypeError):
        return np.dtype(object)


def read_column(values: Any) -> np.ndarray:
    """An array of the column: as it is where it has a dtype of numpy's, else of its
    items as objects, each read alone.

    None for an item that is masked or that cannot be read. An array of several
    dimensions stays one; FormatError for a table of another library.
    """
    dtype = getattr(values, "dtype", None)
    if isinstance(values, np.ma.MaskedArray) and not values.dtype.names:
        items = np.ma.getdata(values).astype(object)
        items[np.ma.getmaskarray(values)] = None
        return items
    if isinstance(dtype, np.dtype) and hasattr(values, "__array__"):
        array = np.asarray(values)
        if array.dtype == dtype:
            return array.astype(object) if dtype.kind == "T" else array
    return np.asarray(values) if _is_opaque(values) else _items(_held(values))


def _is_opaque(values: Any) -> bool:
    """Whether nothing but an array, or one item, can be had of it."""
    return isinstance(values, str | bytes) or not hasattr(values, "__len__")


def _held(values: Any) -> Any:
    """A pandas column's own array; of a frame of one column, that column's."""
    if hasattr(values, "iloc") and values.shape[1:] == (1,):
        values = values.iloc[:, 0]
    return getattr(values, "array", values)


def _items(held: Any) -> np.ndarray:
    """(n,) objects."""
    if len(getattr(held, "shape", ())) > 1:
        raise FormatError(
            "a column must have one value a row, got "
            f"type={type(held).__name__}, shape={tuple(held.shape)}. Pass the column."
        )
    if hasattr(held, "codes") and hasattr(held, "categories"):
        named = [*_items(_held(held.categories)), None]  # the last for code -1
        return np.fromiter((named[code] for code in held.codes), object, len(held))
    if not hasattr(held, "__array__"):
        return np.fromiter(held, object, len(held))
    arrow = hasattr(type(held), "to_pylist")
    read = (_item(held, row, arrow) for row in range(len(held)))
    return np.fromiter(read, object, len(held))


def _item(held: Any, row: int, arrow: bool) -> Any:
    try:
        return held[row].as_py() if arrow else held[row]
    # whatever a library says of an item, such as a text that is no UTF-8
    except Exception:
        return None


def is_missing(item: Any) -> bool:
    """Whether an item of a column is none: None, not a number, pandas' NA or NaT."""
    if type(item) in (float, np.float16, np.float32, np.float64, np.longdouble):
        return bool(np.isnan(item))
    pandas = sys.modules.get("pandas")
    return item is None or (
        pandas is not None and (item is pandas.NA or item is pandas.NaT)
    )
