"""Lay out a command's output as labeled paragraphs of 80 columns."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import click

WIDTH = 80  # columns, as of a terminal
INDENT = 11  # columns of a label: the longest one and two spaces
TIE = "\u00a0"  # no line is broken at this space


def tied(text: str) -> str:
    """Return text that stays on one line, such as "1 %"."""
    return text.replace(" ", TIE)


def section(label: str, paragraphs: Iterable[str]) -> str:
    """Return a label with its paragraphs beside it.

    A paragraph that begins with "! " has its mark in the margin. Lines that begin with
    "dphead " are commands and are not broken.
    """
    lines: list[str] = []
    for text in paragraphs:
        mark = "! " if text.startswith("! ") else ""
        head = label if not lines else ""
        lead = head.ljust(INDENT - len(mark)) + mark
        lines += filled(text.removeprefix("! "), lead)
    return "\n".join(lines)


def filled(text: str, lead: str = "") -> list[str]:
    """Return the wrapped lines of a text, with `lead` before the first line."""
    if text.startswith("dphead "):
        return [lead + text]
    filled = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(TIE, " ") for line in filled]


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = ""
) -> str:
    """Return a table, with columns whose name begins with ">" aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    made = Table(
        title=title or None, title_justify="left", show_edge=False, pad_edge=False
    )
    for name in columns:
        side = "right" if name.startswith(">") else "left"
        made.add_column(name.removeprefix(">"), justify=side)
    for row in rows:
        made.add_row(*row)
    console = Console(highlight=False, markup=False)
    with console.capture() as captured:
        console.print(made)
    return captured.get().rstrip("\n")


def print_json(data: Any, indent: int | None = 2) -> None:
    """Print data as JSON, with strings for numbers that are not finite."""
    from dphead.fit.report import plain

    click.echo(json.dumps(plain(data), indent=indent, allow_nan=False))
