"""Lay out a command's output as labeled paragraphs of 80 columns."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import click
from dphead_extract.safe_text import one_line

from dphead.cli import COMMANDS
from dphead.privacy.rounding import rounded_down, rounded_up

_WIDTH = 80  # columns of a line
INDENT = 11  # columns of a label and the spaces after it
_RELEASES = (
    "release",
    ">times",
    ">clip norm",
    ">noise multiplier",
    ">sampling",
    ">mu each",
)
TIE = "\u00a0"  # a space at which no line breaks


def tied(text: str) -> str:
    """Return text that stays on one line, such as "1 %"."""
    return text.replace(" ", TIE)


def percent(share: float, decimals: int = 2) -> str:
    """Return a fraction (not a bound) in percent, on one line."""
    return tied(f"{100 * share:.{decimals}f} %")


def section(label: str, paragraphs: Iterable[str]) -> str:
    """Return a label with its paragraphs beside it.

    A paragraph that begins with "! " has its mark in the margin. A paragraph that
    begins with "dphead " and a command's name is wrapped as a command (`filled`).
    """
    found: list[str] = []
    for text in paragraphs:
        mark = "! " if text.startswith("! ") else ""
        head = "" if found else label
        lead = head.ljust(INDENT - len(mark)) + mark
        found.append(filled(text.removeprefix("! "), lead))
    return "\n".join(found)


def say(label: str, *paragraphs: str, err: bool = False) -> None:
    """Print a `section` on standard output, or with `err` on standard error."""
    click.echo(section(label, paragraphs), err=err)


def filled(text: str, lead: str = "") -> str:
    """Return a text in wrapped lines, with `lead` before the first line.

    The lines of a command end with a backslash, so that all can be copied. A command
    with quotes, or with a path too long for a line, stays on one line.
    """
    first, _, rest = text.partition(" ")
    command = first == "dphead" and rest.partition(" ")[0] in COMMANDS
    longest = len(lead) + max(map(len, text.split()), default=0)
    if command and ("'" in text or longest + 4 > _WIDTH or len(lead + text) <= _WIDTH):
        return lead + one_line(text)
    end = " \\" if command else ""
    lines = textwrap.wrap(
        text,
        _WIDTH - len(end),
        initial_indent=lead,
        subsequent_indent=" " * (len(lead) + len(end)),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{end}\n".join(lines).replace(TIE, " ")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = ""
) -> str:
    """Return a table. A column is aligned to the right if its name begins with ">"."""
    from rich.console import Console
    from rich.table import Table

    made = Table(
        title=title or None, title_justify="left", show_edge=False, pad_edge=False
    )
    for name in columns:
        side = "right" if name.startswith(">") else "left"
        made.add_column(one_line(name.removeprefix(">")), justify=side)
    for row in rows:
        made.add_row(*(one_line(c) if isinstance(c, str) else c for c in row))
    # no color, because its control characters would be escaped
    console = Console(highlight=False, markup=False, emoji=False, color_system=None)
    with console.capture() as captured:
        console.print(made)
    return captured.get().rstrip("\n")


def releases_table(rows: list[dict[str, Any]], title: str) -> str:
    """Return a table of the rows of `Plan.summary`."""
    lines = [
        (
            r["label"],
            str(r["count"]),
            f"{r['clip_norm']:g}",
            rounded_down(r["noise_multiplier"], 5),
            rounded_up(r["sampling_prob"] / r.get("epoch_steps", 1)),
            "" if r["mu"] is None else rounded_up(r["mu"]),
        )
        for r in rows
    ]
    return table(_RELEASES, lines, title)


def print_json(data: Any, indent: int | None = 2) -> None:
    """Print data as JSON, with strings for numbers that are not finite."""
    from dphead.analysis.sealed import plain

    click.echo(json.dumps(plain(data), indent=indent, allow_nan=False))
