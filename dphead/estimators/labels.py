"""Read labels and targets, each by itself.

No item may decide how another is read. None stops a fit or warns, and no code of an
item's own runs.
"""

from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from dphead.data.arrays import declared_dtype, is_missing, read_column

_REAL = {bool, int, float} | {
    np.dtype(code).type
    for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]
}
_NUMBERS = _REAL | {complex} | {np.dtype(c).type for c in np.typecodes["Complex"]}
_ROWS_AT_ONCE = 4096  # so that no second copy of all rows is made
_TEXTS = {"U": {str, np.str_}, "S": {bytes, np.bytes_}}  # by the kind of the classes


def column(y: Any) -> np.ndarray:
    """Return labels as one column.

    Labels without a fixed dtype stay objects and are read one by one: the dtype of a
    converted list or pandas column would depend on each item.
    """
    shape = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(
            f"y should be a 1d array, got an array of shape {shape} instead. For "
            "several classes a row use DPMultiLabelClassifier."
        )
    return column_or_1d(read_column(y), warn=True)


def require_same_kind(dtype: np.dtype, classes: np.ndarray) -> None:
    """Raise ValueError where labels of this declared dtype cannot be the classes.

    Such rows would count zero after the charge. No label is looked at. Lists and
    objects declare nothing.
    """
    if dtype.kind == "O":
        return
    kinds = ["biuf", "UT", "S"]
    if not any(dtype.kind in k and classes.dtype.kind in k for k in kinds):
        raise ValueError(
            f"labels and classes must be of one kind, got dtypes {dtype} and "
            f"{classes.dtype}. Convert one of them."
        )
    others = [c for c in classes if dtype.kind in kinds[0] and not _holds(dtype, c)]
    if others:
        raise ValueError(
            "each class must be a value of the labels' dtype, got class "
            f"{others[0]} of dtype {classes.dtype} for labels of dtype {dtype}. Make "
            "both of one dtype."
        )


def _holds(dtype: np.dtype, one: Any) -> bool:
    """Return whether a label of a numeric dtype can equal a class as it is written.

    0.1 is two numbers in float32 and in float64.
    """
    floats = dtype.kind == one.dtype.kind == "f"
    with np.errstate(all="ignore"):
        held = dtype.type(str(one)) if floats else one.astype(dtype)
    return bool(held.item() == one.item())


def private_notice(given: np.ndarray, used: np.ndarray, what: str) -> str:
    """Return what the data holder should know of rows that count zero, "" for none.

    given, used: (n,) bool, rows with a label, and those whose label was used.
    """
    lost = int(np.sum(given & ~used))
    if not lost:
        return ""
    return (
        f"private, for the data holder alone: {lost:,} of {len(given):,} {what} and "
        "count zero. Compare them with what was declared. Do not publish this line."
    )


def told(*notices: str) -> str:
    """Return the notices that say anything, as one text."""
    return " ".join(filter(None, notices))


def unread_rows(x: np.ndarray) -> str:
    """Return a notice of rows (n, d) that training masks, "" if there are none."""
    used = np.ones(len(x), bool)
    with np.errstate(all="ignore"):  # numbers beyond float32, and signalling NaNs
        for start in range(0, len(x), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            used[some] = np.isfinite(x[some].astype(np.float32)).all(axis=1)
    what = "rows hold NaN, infinity or a number beyond float32"
    return private_notice(np.ones(len(x), bool), used, what)


def is_given(y: np.ndarray) -> np.ndarray:
    """Return (n,) bool: the items of a `column` that are not missing."""
    if y.dtype.kind == "O":
        return np.array([not is_missing(item) for item in y.tolist()], bool)
    return ~np.isnan(y) if y.dtype.kind == "f" else np.ones(len(y), bool)


def numbers(y: Any) -> np.ndarray:
    """Return (n,) float64 of real targets, each read alone.

    An item of a list that is no number becomes NaN. Raises ValueError for an array of
    another dtype.
    """
    said, y = declared_dtype(y), column(y)
    if said.kind not in "biufO":
        raise ValueError(
            f"targets must be real numbers, got dtype={said}. Convert them."
        )
    with np.errstate(all="ignore"):  # a longdouble may be beyond float64
        if y.dtype.kind == "O":
            return np.array([number(item) for item in y], np.float64)
        return y.astype(np.float64)


def number(item: Any) -> float:
    """Return an item as a number, NaN if it is none. No code of its own runs."""
    try:
        return float(item) if type(item) in _REAL else np.nan
    except OverflowError:
        return np.nan


def positions(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return positions (n,) of labels in sorted `classes`, -1 for any other value.

    It never raises or warns because of a value.
    """
    with np.errstate(all="ignore"):  # a signalling NaN would warn
        if y.dtype.kind == "O" or _would_round(y.dtype, classes.dtype):
            table = {c: i for i, c in enumerate(classes.tolist())}
            kinds = _TEXTS.get(classes.dtype.kind, _NUMBERS)
            return np.array(
                [_look_up(table, kinds, label) for label in y.tolist()], np.int64
            )
        at = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        return np.where(classes[at] == y, at, -1)


def unmatched_labels(y: np.ndarray, classes: np.ndarray) -> str:
    """Return a notice of labels that match none of the sorted classes, "" if all do."""
    return private_notice(
        is_given(y), positions(y, classes) >= 0, "labels match no class"
    )


def _look_up(table: dict[Any, int], kinds: set[type], label: Any) -> int:
    """Return the position of a label, -1 for one that is of no known type.

    A label may be anything, and no code of its own runs: its hash or comparison could
    stop a fit. Bytes compared with a text can warn, and so can numpy's numbers compared
    with larger ones.
    """
    if type(label) not in kinds:
        return -1
    return table.get(label.item() if isinstance(label, np.generic) else label, -1)


def _would_round(one: np.dtype, other: np.dtype) -> bool:
    """Return whether numpy compares these integers as floats: large ones merge."""
    both_whole = one.kind in "iu" and other.kind in "iu"
    return both_whole and np.result_type(one, other).kind == "f"
