"""Read labels and targets one by one.

Each item is read independently of the others. The value of an item stops no fit, and
causes no warning. The code of an item does not run.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from dphead_extract.features.verify import hidden_columns
from dphead_extract.items import name_of

from dphead.data.arrays import declared_dtype, is_missing, read_column
from dphead.data.device_rows import DeviceRows, own_scalars
from dphead.fit.fit import About

_EXACT = {Decimal, Fraction}
_REAL = {bool, int, float, *_EXACT} | {
    np.dtype(code).type
    for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]
}
_NUMBERS = _REAL | {complex} | {np.dtype(c).type for c in np.typecodes["Complex"]}
_ROWS_AT_ONCE = 4096  # rows in float32 at a time, to avoid a copy of all rows
_PRIVATE = "private, for the data holder only: "
_DO_NOT_PUBLISH = "Do not publish this line."
# types of labels that can match a class, by the kind of the classes' dtype
_TEXTS = {"U": {str, np.str_}, "S": {bytes, np.bytes_}}
# functions from a class's name to the class, by the kind of the classes' dtype; a
# class of any other kind is its name
_KINDS = {"b": "True".__eq__, "i": int, "u": int, "f": float}


def label_column(y: Any) -> np.ndarray:
    """Return labels as an array (n,).

    Labels without a fixed dtype stay objects, because the dtype of a converted list or
    pandas column would depend on every item.
    """
    held = read_column(y)
    if held.ndim != 1 or held.dtype.kind not in "biufUSO":
        # imported here: `PrivateTraining` does not need it, and it takes a second
        from sklearn.utils.validation import column_or_1d

        held = column_or_1d(held, warn=True)
    if held.dtype.kind != "O":
        return held
    return np.fromiter(own_scalars(held), object, len(held))


def require_same_kind(dtype: np.dtype, classes: np.ndarray) -> None:
    """Raise ValueError if labels of a dtype cannot equal the classes.

    Such labels would add zero to every sum after the charge. No label is read here.
    Labels of dtype object are not checked.
    """
    if dtype.kind == "O":
        return
    kinds = ["biuf", "UT", "S"]
    if not any(dtype.kind in k and classes.dtype.kind in k for k in kinds):
        raise ValueError(
            f"`y` and `classes` must have the same type, got {dtype} and "
            f"{classes.dtype}. Declare the classes as they occur in `y`."
        )
    others = [c for c in classes if dtype.kind in kinds[0] and not _holds(dtype, c)]
    if others:
        raise ValueError(
            f"`y` has dtype {dtype}, which cannot hold the class {others[0]}. Declare "
            "the classes as they occur in `y`."
        )


def _holds(dtype: np.dtype, one: Any) -> bool:
    """Return whether a label of a numeric dtype can equal a class.

    For example, 0.1 in float32 differs from 0.1 in float64.
    """
    floats = dtype.kind == one.dtype.kind == "f"
    with np.errstate(all="ignore"):
        held = dtype.type(str(one)) if floats else one.astype(dtype)
    return bool(held.item() == one.item())


def private_notice(given: np.ndarray, used: np.ndarray, what: str) -> str:
    """Return a private notice about rows that add zero to every sum, or "".

    Parameters
    ----------
    given : ndarray of bool, shape (n,)
        True for the rows to report on, such as rows with a label.
    used : ndarray of bool, shape (n,)
        False for rows that add zero to every sum.
    what : str
        Subject and reason, as in "labels match no class".
    """
    lost = int(np.sum(given & ~used))
    if not lost:
        return ""
    return (
        f"{_PRIVATE}{lost:,} of {len(given):,} {what}. These rows add zero to every "
        f"sum. {_DO_NOT_PUBLISH}"
    )


def told(*notices: str) -> str:
    """Return the non-empty notices as one text."""
    return " ".join(filter(None, notices))


def unread_rows(x: Any) -> str:
    """Return a notice of rows (n, d) that are not finite in float32, or "".

    The notice also names a column that dominates the length of the rows, even if all
    rows are finite.
    """
    x = x.own() if isinstance(x, DeviceRows) else x
    used, squares = np.ones(len(x), bool), np.zeros(x.shape[1])
    # numbers beyond float32 and signaling NaNs would warn
    with np.errstate(all="ignore"):
        for start in range(0, len(x), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            block = x[some].astype(np.float32)
            used[some] = np.isfinite(block).all(axis=1)
            squares += np.square(block[used[some]], dtype=np.float64).sum(axis=0)
    what = "rows hold NaN, infinity or a number beyond float32"
    hidden = hidden_columns(squares)
    if hidden:
        hidden = f"{_PRIVATE}{hidden}. {_DO_NOT_PUBLISH}"
    return told(private_notice(np.ones(len(x), bool), used, what), hidden)


def is_given(y: np.ndarray) -> np.ndarray:
    """Return (n,) bool: True for each item of a `label_column` that is not missing."""
    if y.dtype.kind in "OUS":
        items = map(class_name, y.tolist())
        return np.array([not is_missing(item) for item in items], bool)
    return ~np.isnan(y) if y.dtype.kind == "f" else np.ones(len(y), bool)


def class_name(item: Any) -> Any:
    """Return the name of a string (`name_of`), or any other item unchanged."""
    return name_of(item) if issubclass(type(item), str | bytes) else item


def numbers(y: Any) -> np.ndarray:
    """Return real targets as (n,) float64, read one by one.

    A list item that is not a number becomes NaN. Raises ValueError if the dtype is not
    real and numeric.
    """
    said, y = declared_dtype(y), label_column(y)
    if said.kind not in "biufO":
        raise ValueError(
            f"`y` must have real numbers, got dtype {said}. Convert it, such as with "
            "`np.asarray(y, dtype=float)`."
        )
    with np.errstate(all="ignore"):  # a longdouble beyond float64 would warn
        if y.dtype.kind == "O":
            return np.array([as_number(item) for item in y], np.float64)
        return y.astype(np.float64)


def as_number(item: Any) -> float:
    """Return an item as a float, or NaN, without running the item's code."""
    try:
        return float(item) if type(item) in _REAL else np.nan
    except (OverflowError, ValueError):  # ValueError: a signaling NaN of Decimal
        return np.nan


def positions(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the indices (n,) of labels in sorted `classes`, or -1 for other labels.

    A string matches the class of the same name (`name_of`), as in a features file. No
    value causes an error or a warning.
    """
    with np.errstate(all="ignore"):  # a signaling NaN would warn
        if y.dtype.kind in "OUS" or _would_round(y.dtype, classes.dtype):
            table = {class_name(c): i for i, c in enumerate(classes.tolist())}
            kinds = _TEXTS.get(classes.dtype.kind, _NUMBERS)
            return np.array(
                [_look_up(table, kinds, label) for label in y.tolist()], np.int64
            )
        at = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        return np.where(classes[at] == y, at, -1)


def unmatched_labels(y: np.ndarray, classes: np.ndarray) -> str:
    """Return a notice of labels that match no class, or ""."""
    return private_notice(
        is_given(y), positions(y, classes) >= 0, "labels match no class"
    )


def _look_up(table: dict[Any, int], kinds: set[type], label: Any) -> int:
    """Return the index of a label, or -1 if it is no class or has an unknown type.

    A label may be any object. Its code must not run, because a hash or comparison could
    stop a fit. A comparison of bytes with a string, or of numpy numbers with larger
    numbers, can also cause a warning.
    """
    if type(label) not in kinds:
        return -1
    if type(label) in _EXACT:
        number = as_number(label)
        label = int(label) if number.is_integer() else number
    label = label.item() if isinstance(label, np.generic) else label
    # most labels are keys of the table already, so they need no `class_name`
    found = table.get(label, -1)
    return found if found >= 0 else table.get(class_name(label), -1)


def _would_round(one: np.dtype, other: np.dtype) -> bool:
    """Return whether numpy compares these integer dtypes as floats, with rounding."""
    both_whole = one.kind in "iu" and other.kind in "iu"
    return both_whole and np.result_type(one, other).kind == "f"


def saved_facts(about: About, classes: np.ndarray) -> dict[str, Any]:
    """Return the entries of a saved head or network about its classes and rows."""
    return {
        "class_names": about.source.class_names,
        "class_kind": classes.dtype.kind,
        "feature_space": about.space,
    }


def named_as_given(facts: dict[str, Any]) -> np.ndarray:
    """Return a saved head's or network's classes as bool, int, float or str.

    The type is the declared one, but classes of bytes become their text, "b'...'".
    """
    kind = _KINDS.get(facts.get("class_kind", "U"), str)
    return np.array([kind(name) for name in facts["class_names"]])
