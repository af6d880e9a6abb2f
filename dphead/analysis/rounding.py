"""Numbers that are limits, as text: rounding must not make them smaller.

Nothing may be imported that takes time: commands import it before they run.
"""

import math


def rounded_up(value: float, digits: int = 3) -> str:
    """A number of at least 0 with so many significant digits, never below its value."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    # 1e-9: a value that was printed with so few digits is not rounded further
    return f"{math.ceil(value / unit - 1e-9) * unit:.{digits}g}"


def percent_up(share: float) -> str:
    """A limit on a share from 0 to 1, in percent."""
    return f"{rounded_up(100 * share)} %"
