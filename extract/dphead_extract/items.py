"""Read a column in memory, and name its items in the same way for every format.

A column holds one item a row (labels, targets or groups) from numpy, pandas, pyarrow or
a list. No item may affect how another item is read. Therefore no library may choose the
type of an array from the values. For example, pandas and pyarrow turn whole numbers
into floats if one number is missing.
"""

import hashlib
import re
import sys
from contextlib import suppress
from functools import cache
from typing import Any
from unicodedata import normalize

import numpy as np

from dphead_extract.errors import FormatError

UNGROUPED = -1  # the id of a row without a group; a group's id is never negative
_INTEGERS = {np.dtype(code).type for code in np.typecodes["AllInteger"]}
# not longdouble, because distinct values could become equal in float64
_FLOATS = {float, np.float16, np.float32, np.float64}
_LONGEST = 10**4000  # whole numbers below it can be written in decimal digits
# long numbers as spreadsheets shorten them: 1.10101E+17, or with a comma
_SHORTENED = re.compile(r"[+-]?[0-9]+([.,][0-9]+[eE]\+?|[eE]\+)[0-9]+")
_DECIMALS = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?")


ARROW_TEXTS = ("string", "large_string", "string_view")  # for `is_arrow`
_FILLED = (np.zeros_like, np.ones_like, np.full_like)


class GroupIds(np.ndarray):
    """Hold ids of groups, int64 (n,), which `group_ids` returns unchanged.

    Slices, copies, and `np.concatenate` of ids alone keep this type. Results of
    arithmetic, and ids that are joined with numbers, are plain arrays. Only ids can be
    assigned to items. Numpy's functions that write into an array do not check this.
    """

    # above arrays, so that `np.concatenate` keeps the type
    __array_priority__ = 1.0  # type: ignore[assignment]

    def __setitem__(self, rows: Any, ids: Any) -> None:
        """Assign ids to items; raise FormatError for any other array."""
        if not isinstance(ids, GroupIds):
            raise FormatError(
                "Only an array of ids can be assigned to items of `GroupIds`. Use "
                "`group_ids(names, n)`."
            )
        super().__setitem__(rows, ids)

    def __array_wrap__(
        self, array: np.ndarray, context: Any = None, return_scalar: bool = False
    ) -> Any:
        """Return the result of a NumPy function as a plain array or number."""
        return array[()] if return_scalar else np.asarray(array)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Return a function's result, as ids only if all joined arrays are ids."""
        found = super().__array_function__(func, types, args, kwargs)
        joined = args[0] if func is np.concatenate else ()
        if func in _FILLED or not all(isinstance(part, GroupIds) for part in joined):
            return np.asarray(found)
        return found


def declared_dtype(values: Any) -> np.dtype:
    """Return the dtype that a column declares for its items.

    Strings of any library are `str`. A categorical column declares the dtype of its
    categories. `object` stands for columns that declare nothing, such as lists.
    """
    held = _held(values)
    if hasattr(held, "codes") and hasattr(held, "categories"):
        return declared_dtype(held.categories)
    dtype = getattr(held, "dtype", None)
    dtype = getattr(dtype, "numpy_dtype", dtype)  # the dtype of pandas' nullable types
    if isinstance(dtype, np.dtype):
        return dtype
    if getattr(dtype, "type", None) is str:  # pandas' texts, in any storage
        return np.dtype(str)
    if _is_opaque(held):
        return np.asarray(held).dtype
    return _dtype_of_arrow(getattr(held, "type", None))


def _dtype_of_arrow(kind: Any) -> np.dtype:
    """Return the dtype of a pyarrow type, or object for any other value."""
    pa = sys.modules.get("pyarrow")
    if pa is None or not isinstance(kind, pa.DataType):
        return np.dtype(object)
    if is_arrow(kind, "dictionary"):
        return _dtype_of_arrow(kind.value_type)
    if is_arrow(kind, *ARROW_TEXTS):
        return np.dtype(str)
    try:
        return np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return np.dtype(object)


def is_arrow(kind: Any, *names: str) -> bool:
    """Return whether a type of pyarrow is one of those named, such as "integer"."""
    tests = sys.modules["pyarrow"].types
    return any(getattr(tests, f"is_{name}")(kind) for name in names)


def read_column(values: Any) -> np.ndarray:
    """Return an array of the column's items, read one by one.

    Parameters
    ----------
    values : array, column or list
        The column.

    Returns
    -------
    array
        The same array if it has a NumPy dtype other than StringDType and no mask. Any
        other column becomes an array of objects. An object for an item that is masked
        or cannot be read is None. Bytes of a pyarrow string that are not UTF-8 become
        surrogates. An array of several dimensions keeps its shape.

    Raises
    ------
    FormatError
        For a table with several columns, such as a data frame.
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
    """Return whether a value has no items to read: a string, bytes or a scalar."""
    return isinstance(values, str | bytes) or not hasattr(values, "__len__")


def _held(values: Any) -> Any:
    """Return the array of a pandas column or of a one-column frame, or `values`."""
    if hasattr(values, "iloc") and values.shape[1:] == (1,):
        values = values.iloc[:, 0]
    return getattr(values, "array", values)


def _items(held: Any) -> np.ndarray:
    """Return the items as (n,) objects."""
    if len(getattr(held, "shape", ())) > 1:
        raise FormatError(
            f"A column must have one value per row, got {type(held).__name__} of shape "
            f"{tuple(held.shape)}. Select one column, such as `table['label']`."
        )
    if hasattr(held, "codes") and hasattr(held, "categories"):
        # the code -1 of a missing value selects the last item, None
        named = [*_items(_held(held.categories)), None]
        return np.fromiter((named[code] for code in held.codes), object, len(held))
    if not hasattr(held, "__array__"):
        return np.fromiter(held, object, len(held))
    # pandas may wrap pyarrow's texts in its own column type
    held = held.__arrow_array__() if hasattr(held, "__arrow_array__") else held
    if hasattr(held, "to_pylist"):
        chunks = held.chunks if hasattr(held, "chunks") else [held]
        items = [item for chunk in chunks for item in _items_of_arrow(chunk)]
        return np.fromiter(items, object, len(held))
    return np.fromiter((held[row] for row in range(len(held))), object, len(held))


def _items_of_arrow(held: Any) -> list[Any]:
    """Return the items of a pyarrow array; None for an item that Python cannot hold."""
    if hasattr(held, "dictionary"):
        named = [*_items_of_arrow(held.dictionary), None]
        places = held.indices.cast("int64").fill_null(-1).to_pylist()
        return [named[place] for place in places]
    if _dtype_of_arrow(held.type).kind == "U":
        # a text that is not UTF-8 names a class or a group like any other
        stored = held.cast("large_binary").to_pylist()
        return [None if text is None else _decoded(text) for text in stored]
    try:
        return held.to_pylist()
    except Exception:  # pyarrow may raise anything for a date beyond Python's
        return [_item(held, row) for row in range(len(held))]


def is_encodable(value: Any) -> bool:
    """Return whether a value is a string that UTF-8 can encode.

    A surrogate that stands for a byte of a path is encoded as that byte.
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _decoded(text: bytes) -> str:
    """Return bytes as a string, with a surrogate for each byte that is not UTF-8."""
    return text.decode("utf-8", "surrogateescape")


def _item(held: Any, row: int) -> Any:
    with suppress(Exception):
        return held[row].as_py()
    return None


def is_missing(item: Any) -> bool:
    """Return whether an item is missing: None, not a number, pandas' NA or NaT."""
    if type(item) in (float, np.float16, np.float32, np.float64, np.longdouble):
        return bool(np.isnan(item))
    pandas = sys.modules.get("pandas")
    return item is None or (
        pandas is not None and (item is pandas.NA or item is pandas.NaT)
    )


def name_of(item: Any) -> str | None:
    """Return the name of one label, split or group; None for a missing item.

    Equal numbers of all types have one name: 1, 1.0 and True are "1". Strings are
    normalized by NFC, so that a composed and a decomposed accent are equal. White space
    around a string is removed, and an empty string is a missing item. No method of the
    item runs.

    Raises
    ------
    FormatError
        If the item is not text, bytes, a boolean, a whole number, or a float of at most
        64 bits.
    """
    kind = type(item)
    if issubclass(kind, bytes):
        item, kind = _decoded(item), str
    if issubclass(kind, str):
        return normalize("NFC", str.__str__(item)).strip() or None
    if is_missing(item):
        return None
    if kind in _FLOATS:
        return _decimal(float(item))
    # use int's conversion, because a subclass may define its own
    number = int.__index__(item) if issubclass(kind, int) else None
    number = int(item) if kind in _INTEGERS or kind is np.bool_ else number
    if number is None:
        raise FormatError(
            f"Labels, splits and groups must be texts or numbers, got {kind.__name__}. "
            "Use `str(value)`."
        )
    return str(number) if abs(number) < _LONGEST else hex(number)


def _decimal(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


@cache
def _whole_below(kind: type) -> float:
    """Return the number below which a float type represents every whole number."""
    return 2.0 ** (1 + np.finfo(kind).nmant)


def check_exact(groups: Any) -> None:
    """Raise FormatError for an id that may be a rounded number.

    A rounded id would not be recognized as the person whose id has all its digits.
    """
    dtype = declared_dtype(groups)
    for item in read_column(groups).tolist():
        rounded = False
        if type(item) in _FLOATS:
            kind = dtype.type if dtype.kind == "f" else type(item)
            rounded = abs(float(item)) >= _whole_below(kind)
            # 16 and 32 bits round most fractions: 1.1 becomes 1.10000002
            rounded |= kind in (np.float16, np.float32) and item % 1 > 0
        elif isinstance(item, str | bytes):
            name = name_of(item) or ""
            rounded = _SHORTENED.fullmatch(name) is not None
            if _DECIMALS.fullmatch(name) and "." in name:
                rounded |= abs(float(name)) >= _whole_below(float)
        if rounded:
            raise FormatError(
                "A group may be a rounded number, such as 1.10101E+17. Write groups "
                "again, as texts or whole numbers, from a source that has all digits."
            )


def unit_ids(groups: np.ndarray) -> np.ndarray:
    """Return group ids (n,) in which a row without a group has its own negative id."""
    return np.where(groups == UNGROUPED, -1 - np.arange(len(groups)), groups)


def text_group(name: str | None) -> int:
    """Return the id of the group with this name: 63 bits of a digest, or UNGROUPED.

    A string in Python's notation for a float names that number: "1.0" is the
    group "1". The id depends on no other row. A position in a sorted list of all names
    would depend on all names.
    """
    if name is None:
        return UNGROUPED
    if _DECIMALS.fullmatch(name) and repr(number := float(name)) == name:
        name = _decimal(number)
    text = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, person=b"dphead group").digest()
    return int.from_bytes(digest, "big") >> 1
