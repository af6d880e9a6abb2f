"""Turn declared numbers into Python's own types.

Arithmetic with a scalar of NumPy, JAX or PyTorch can round to the scalar's precision. A
plan for np.float32(1) would then spend an epsilon of 1.00000004.
"""

import math
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, str, type(None))
_LONG: Any = np.longdouble  # type checkers resolve it to different types


def python_value(value: Any) -> Any:
    """Return a declared value in Python's own types, never farther from zero.

    Parameters
    ----------
    value : object
        A number, text, list or tuple. A scalar or an array without axes may be of any
        library.

    Returns
    -------
    object
        An equal bool, int, float or str. A Decimal, a Fraction or a longdouble between
        two floats becomes the one nearer to zero. Lists and tuples are converted item
        by item. The same object if nothing changes. A value without an equal in these
        types is returned as it is, and the caller's check must refuse it.
    """
    if type(value) in _PLAIN:
        return value
    if type(value) in (list, tuple):
        items = [python_value(item) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    # Any exception: libraries raise their own for a traced or deleted array.
    with suppress(Exception):
        if getattr(value, "shape", None) == () and not isinstance(value, _LONG):
            value = value.item()
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, Decimal | Fraction | _LONG):
            return _toward_zero(value)
    return value


def _toward_zero(value: Any) -> int | float:
    """Return an equal int or float, or else the next float toward zero.

    Raises OverflowError for a finite value beyond all floats.
    """
    near = float(value)
    # Check this first: the ratio of a Decimal beyond floats can have a billion digits.
    if near == 0:
        return 0
    if not math.isfinite(near):
        if math.isinf(near) and value != near:
            raise OverflowError
        return near
    exact = Fraction(*value.as_integer_ratio())
    if exact.denominator == 1 and not isinstance(value, _LONG):
        return int(exact)
    return math.nextafter(near, 0.0) if abs(Fraction(near)) > abs(exact) else near
