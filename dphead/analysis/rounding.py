"""Write limits as text, so that rounding never makes them smaller.

Commands import this module before they run: import nothing here that takes time.
"""

import math


def rounded_up(value: float, digits: int = 3) -> str:
    """Return a number of at least 0 with `digits` significant digits, rounded up."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    # 1e-9: a value that has only these digits already must not move to the next one
    return f"{math.ceil(value / unit - 1e-9) * unit:.{digits}g}"


def percent_up(share: float) -> str:
    """Return a limit on a share from 0 to 1 in percent, rounded up."""
    return f"{rounded_up(100 * share)} %"
