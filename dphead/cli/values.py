"""What is typed becomes a value: numbers between commas, sizes, NAME=VALUE pairs.

Each is a click callback. A text that has no value is refused with what to write; what a
value means is for the library to check.
"""

import json
from pathlib import Path
from typing import Any

import click

Given = Any  # click's context and parameter, which nothing here asks
BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
# how Python writes what JSON writes in small letters
PYTHON_WORDS = {"True": True, "False": False, "None": None}
MOST_SIDE = 2**14  # pixels of an image; chosen, not measured
ROLES = ("image", "label", "group", "split")


def separated(kind: type, what: str) -> Any:
    """A callback that reads numbers between commas. what: to be written instead."""

    def read(_: Given, __: Given, text: str | None) -> tuple[Any, ...] | None:
        try:
            return (
                None if text is None else tuple(kind(part) for part in text.split(","))
            )
        except ValueError as error:
            raise click.BadParameter(f"write {what}") from error

    return read


numbers_of_colours = separated(
    float, "one number, or one for each colour: 0.5 or 0.48,0.46,0.41"
)
whole_numbers = separated(int, "one whole number or several: 2 or 1,2")


def parts(_: Given, __: Given, text: str | None) -> tuple[str, ...]:
    """Texts between commas; none at all where nothing was given."""
    return tuple(part for part in (text or "").split(",") if part)


def names(_: Given, __: Given, text: str | None) -> tuple[str, ...] | None:
    """Texts between commas, as they are; None where nothing was given."""
    return tuple(text.split(",")) if text else None


def paths(_: Given, __: Given, text: str | None) -> tuple[Path, ...]:
    """Paths between commas; none at all where nothing was given."""
    found = tuple(text.split(",")) if text is not None else ()
    if "" in found:
        raise click.BadParameter(f"write paths between commas, got {text!r}")
    return tuple(map(Path, found))


def image_size(_: Given, __: Given, text: str | None) -> Any:
    """N, or H,W as two numbers."""
    try:
        sides = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        sides = (0,)
    if len(sides) > 2 or not all(1 <= side <= MOST_SIDE for side in sides):
        raise click.BadParameter(f"write N or H,W in pixels, got {text!r}")
    return sides[0] if len(sides) == 1 else sides or None


def intensity(_: Given, __: Given, text: str | None) -> tuple[float, ...] | None:
    """LOW,HIGH as two numbers."""
    try:
        found = tuple(float(part) for part in text.split(",")) if text else None
    except ValueError:
        found = ()
    if found is not None and len(found) != 2:
        raise click.BadParameter(f"write LOW,HIGH, got {text!r}")
    return found


def map_shape(_: Given, __: Given, text: str | None) -> tuple[int, ...] | None:
    """CHANNELS,H,W as three numbers."""
    try:
        found = tuple(int(part) for part in text.split(",")) if text else None
    except ValueError:
        found = ()
    if found is not None and (len(found) != 3 or min(found) < 1):
        raise click.BadParameter(f"write CHANNELS,H,W, got {text!r}.")
    return found


def n_bytes(_: Given, __: Given, text: str | None) -> int | None:
    """A size like 500MB, in bytes."""
    if text is None:
        return None
    number, unit = text[:-2], text[-2:].upper()
    try:
        size = int(float(number) * BYTES[unit])
    except (KeyError, ValueError, OverflowError):
        size = 0
    if size < 1:
        raise click.BadParameter(f"a size like 500MB or 2GB is needed, got {text!r}.")
    return size


def arguments(_: Given, __: Given, pairs: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE pairs for a Python function: True, False and None are values too."""
    return _named_values(pairs, PYTHON_WORDS)


def settings(_: Given, __: Given, pairs: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE pairs of a method's settings, whose names may have hyphens."""
    found = _named_values(pairs, {})
    return {name.replace("-", "_"): value for name, value in found.items()}


def _named_values(pairs: tuple[str, ...], words: dict[str, Any]) -> dict[str, Any]:
    """A value is read as JSON where it is JSON (1001, true, 0.5), else as one of the
    words, else as text.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"write NAME=VALUE, got {pair!r}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = words.get(value, value)
    return found


def columns(_: Given, __: Given, pairs: tuple[str, ...]) -> dict[str, str]:
    """ROLE=NAME pairs."""
    found: dict[str, str] = {}
    for pair in pairs:
        role, _sign, found[role] = pair.partition("=")
    if set(found) - set(ROLES) or "" in found.values():
        raise click.BadParameter(
            f"write image=NAME, label=NAME, group=NAME or split=NAME, got {pairs}"
        )
    return found
