"""Compute the lines and points of a card's pictures in SVG units.

The template draws them.
"""

import math
from typing import Any

from dphead.analysis.card.risk import CURVE_RATES, Limits
from dphead.analysis.tradeoff import REPORTED_RATES
from dphead.privacy.rounding import percent_up

_WIDTH, _HEIGHT = 360, 244  # size of a picture in pixels; a choice
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 18, 22, 34  # margins
_LABELED = (1.0,)  # epsilons of further curves, beside the run's curve
_DECADES = 4  # decades of each axis, from 0.01 % to 100 %; chosen


def curve_of(limits: list[Limits]) -> dict[str, Any]:
    """Return the picture of the bounds in `risk.limits_of`, for the template.

    The picture plots true-positive against false-positive rates on log scales. `line`,
    `area` and `points` belong to the run. `others` has (epsilon, line, end) of curves
    for comparison.
    """
    own = next(one for one in limits if one.own)
    line = _line(own.curve)
    corner = f"L {_x(1):.1f} {_y(1e-4):.1f} L {_x(1e-4):.1f} {_y(1e-4):.1f} Z"
    others = []
    for one in limits:
        if one.own or one.epsilon not in _LABELED:
            continue
        middle = len(CURVE_RATES) // 4
        end = {"x": _x(CURVE_RATES[middle]), "y": _y(one.curve[middle])}
        others.append((f"ε = {one.epsilon:g}", _line(one.curve), end))
    marked = zip(REPORTED_RATES, own.hits, strict=True)
    points = [
        {"x": _x(rate), "y": _y(hit), "text": percent_up(hit)} for rate, hit in marked
    ]
    powers = [10.0**-k for k in range(_DECADES, -1, -1)]
    return {
        "line": line,
        "area": f"{line} {corner}",
        "guessing": _line(tuple(float(rate) for rate in CURVE_RATES)),
        "points": points,
        "others": others,
        "x_ticks": [{"at": _x(p), "text": f"{100 * p:g} %"} for p in powers],
        "y_ticks": [{"at": _y(p), "text": f"{100 * p:g} %"} for p in powers],
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "bottom": _HEIGHT - _BOTTOM,
        "right": _WIDTH - _RIGHT,
        "top": _TOP,
    }


def _line(hits: tuple[float, ...]) -> str:
    """Return an SVG path through true-positive rates at CURVE_RATES."""
    pairs = zip(CURVE_RATES, hits, strict=True)
    places = [f"{_x(rate):.1f} {_y(hit):.1f}" for rate, hit in pairs]
    return "M " + " L ".join(places)


def _along(rate: float) -> float:
    """Return the position of a rate on an axis: 0 at 0.01 %, 1 at 100 %."""
    return 1 + math.log10(max(rate, 10.0**-_DECADES)) / _DECADES


def _x(rate: float) -> float:
    return _LEFT + _along(rate) * (_WIDTH - _LEFT - _RIGHT)


def _y(hit: float) -> float:
    return _HEIGHT - _BOTTOM - _along(hit) * (_HEIGHT - _TOP - _BOTTOM)
