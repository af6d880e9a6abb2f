"""Read what people type: numbers, sizes, lists, and NAME=VALUE pairs.

A reader raises ValueError for text that it cannot read.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T", int, float)
LARGEST = 10**15  # largest number that a setting can have; chosen, not measured
_BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
# Python's spelling of JSON's lowercase words
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def typed_number(text: str, kind: Callable[[str], _T]) -> _T:
    """Return `kind(text)`, for an int or a float.

    Unlike Python, raise ValueError for underscores and for digits that are not ASCII.
    In a table, 12_5 is more likely a misread 12.5 than 125.
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"not a number: {text!r}")
    return kind(text)


def separated(
    kind: Callable[[str], _T], low: float, what: str, *counts: int
) -> Callable[[str], tuple[_T, ...]]:
    """Return a reader of comma-separated numbers of at least `low`.

    `what` describes valid text in errors. `counts` are the valid numbers of items.
    Without `counts`, any number of items is valid.
    """

    def read(text: str) -> tuple[_T, ...]:
        try:
            found = tuple(typed_number(one, kind) for one in text.split(","))
        except (ValueError, OverflowError):
            found = ()
        inside = all(low <= number <= LARGEST for number in found)
        if not found or not inside or (counts and len(found) not in counts):
            raise ValueError(f"write {what}, got {text!r}.")
        return found

    return read


of_colors = separated(
    float, -LARGEST, "one number, or one for each color: 0.5 or 0.48,0.46,0.41"
)
map_shape = separated(int, 1, "N, or N,N,... such as CHANNELS,H,W", 1, 2, 3, 4)
_MOST_SIDE = 2**14  # longest side of an image in pixels; chosen, not measured
_sides = separated(int, 1, "N or H,W in pixels", 1, 2)


def input_size(text: str) -> int | tuple[int, ...]:
    """Read a size in pixels: N, or H,W as (H, W)."""
    found = _sides(text)
    if max(found) > _MOST_SIDE:
        raise ValueError(f"write sides of at most {_MOST_SIDE} pixels, got {text!r}.")
    return found[0] if len(found) == 1 else found


def n_bytes(text: str) -> int:
    """Return a size such as 500MB in bytes."""
    number, unit = text[:-2], text[-2:].upper()
    try:
        size = int(typed_number(number, float) * _BYTES[unit])
    except (KeyError, ValueError, OverflowError):
        size = 0
    if size < 1:
        raise ValueError(f"write a size such as 500MB or 2GB, got {text!r}.")
    return size


def several_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated names that are not empty."""
    return tuple(part for part in text.split(",") if part)


def python_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Return NAME=VALUE pairs as a dict; True, False and None are Python's."""
    return _named_values(pairs, _PYTHON_WORDS)


def named_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE pairs of a method's settings, with hyphens or underscores."""
    found = _named_values(pairs, {})
    return {name.replace("-", "_"): value for name, value in found.items()}


def _named_values(pairs: Sequence[str], words: dict[str, Any]) -> dict[str, Any]:
    """Return NAME=VALUE pairs as a dict.

    A value is read as JSON if it is JSON (1001, true, 0.5). Otherwise, `words` gives
    the value of a word, and any other text stays a text.

    Raises ValueError for a pair without a name or "=".
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"write NAME=VALUE, got {pair!r}.")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = words.get(value, value)
    return found
