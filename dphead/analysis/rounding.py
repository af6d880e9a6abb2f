"""Write upper bounds as text without rounding down.

Commands import this module early, so import nothing heavy here.
"""

import math


def rounded_up(value: float) -> str:
    """Return a number of at least 0 with three significant digits, rounded up."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    # 1e-9 keeps a value with exactly these digits from moving up
    return f"{math.ceil(value / unit - 1e-9) * unit:.3g}"


def percent_up(share: float) -> str:
    """Return an upper bound on a share in percent, rounded up."""
    return f"{rounded_up(100 * share)} %"
