"""Write numbers of a guarantee as text, rounded in the safe direction.

Commands import this module early, so import nothing heavy here.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def rounded_up(value: float, digits: int = 4) -> str:
    """Return a number as text with `digits` significant digits, rounded up.

    Use it for spent epsilon and for upper bounds.
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """Return a number as text with `digits` significant digits, rounded down.

    Use it for remaining epsilon and for lower bounds.
    """
    return _rounded(value, digits, ROUND_FLOOR)


def percent_up(share: float) -> str:
    """Return a share in percent as text with three significant digits, rounded up."""
    return f"{_rounded(share, 3, ROUND_CEILING, 2)} %"


def as_declared(value: float) -> str:
    """Return a declared number as text, with all its digits."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def spent_at(epsilon: float, delta: float) -> str:
    """Return words for a spent epsilon, rounded up, and its declared delta."""
    return f"epsilon {rounded_up(epsilon)} at delta {as_declared(delta)}"


def declared_at(epsilon: float, delta: float) -> str:
    """Return words for a declared epsilon and delta."""
    return f"epsilon {as_declared(epsilon)} at delta {as_declared(delta)}"


def _rounded(value: float, digits: int, rounding: str, power: int = 0) -> str:
    """Return the number times 10**power as text, rounded to `digits` digits."""
    if not math.isfinite(value):
        return f"{value:g}"
    # `repr` gives the shortest digits: the float 0.1 is printed as 0.1, not as a little
    # more. Without its own context, `scaleb` would use the caller's.
    exact = Decimal(repr(float(value))).scaleb(power, Context(prec=40))
    rounded = Context(prec=digits, rounding=rounding).plus(exact)
    return f"{float(rounded):.{digits}g}"
