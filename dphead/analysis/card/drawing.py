"""Place the lines and points of a card's pictures, in SVG units.

The template draws them.
"""

import math
from dataclasses import dataclass

from dphead.analysis.card.risk import CURVE_RATES, Limits
from dphead.analysis.rounding import percent_up
from dphead.analysis.tradeoff import REPORTED_RATES

WIDTH, HEIGHT = 360, 244  # size of a picture in pixels; a choice
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 22, 34  # margins
LABELLED = (1.0,)  # epsilons with a curve beside the run's
DECADES = 4  # decades of each axis, from 0.01 % to 100 %; a choice


@dataclass(frozen=True)
class Tick:
    """Hold a tick: its place along the axis, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Point:
    """Hold a false-positive rate, the most hits at it, and the text beside it."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Curve:
    """Hold the picture of the upper bound on any attack.

    It shows true against false positives, both on log scales. `line` and `area` are
    those of the run. `others` are (epsilon, line, end) of curves to compare with.
    """

    line: str
    area: str
    guessing: str
    points: list[Point]
    others: list[tuple[str, str, Point]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    bottom: int = HEIGHT - BOTTOM
    right: int = WIDTH - RIGHT
    top: int = TOP


def curve_of(limits: list[Limits]) -> Curve:
    """Return the picture of the limits from `risk.limits_of`."""
    own = next(one for one in limits if one.own)
    line = _line(own.curve)
    corner = f"L {_x(1):.1f} {_y(1e-4):.1f} L {_x(1e-4):.1f} {_y(1e-4):.1f} Z"
    others = []
    for one in limits:
        if one.own or one.epsilon not in LABELLED:
            continue
        middle = len(CURVE_RATES) // 4
        end = Point(_x(CURVE_RATES[middle]), _y(one.curve[middle]), "")
        others.append((f"ε = {one.epsilon:g}", _line(one.curve), end))
    marked = zip(REPORTED_RATES, own.hits, strict=True)
    points = [Point(_x(rate), _y(hit), percent_up(hit)) for rate, hit in marked]
    powers = [10.0**-k for k in range(DECADES, -1, -1)]
    return Curve(
        line=line,
        area=f"{line} {corner}",
        guessing=_line(tuple(float(rate) for rate in CURVE_RATES)),
        points=points,
        others=others,
        x_ticks=[Tick(_x(p), f"{100 * p:g} %") for p in powers],
        y_ticks=[Tick(_y(p), f"{100 * p:g} %") for p in powers],
    )


def _line(hits: tuple[float, ...]) -> str:
    """Return an SVG path through hits at CURVE_RATES."""
    pairs = zip(CURVE_RATES, hits, strict=True)
    places = [f"{_x(rate):.1f} {_y(hit):.1f}" for rate, hit in pairs]
    return "M " + " L ".join(places)


def _along(rate: float) -> float:
    """Return the place of a rate along an axis: 0 at 0.01 %, 1 at 100 %."""
    return 1 + math.log10(max(rate, 10.0**-DECADES)) / DECADES


def _x(rate: float) -> float:
    return LEFT + _along(rate) * (WIDTH - LEFT - RIGHT)


def _y(hit: float) -> float:
    return HEIGHT - BOTTOM - _along(hit) * (HEIGHT - TOP - BOTTOM)
