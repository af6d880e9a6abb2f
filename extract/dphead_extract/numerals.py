"""Read numbers that people typed."""

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T", int, float)


def typed_number(text: str, kind: Callable[[str], _T]) -> _T:
    """Return `kind(text)`, for an int or a float.

    Raises ValueError for text that Python also reads: 12_5 as 125, and the digits of
    other scripts. In a table, the first is more likely a misread 12.5.
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"not a number: {text!r}")
    return kind(text)
