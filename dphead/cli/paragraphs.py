"""Text of a command's output: labelled paragraphs at 80 columns, never broken inside a
word.

What is said is the commands' own; nothing here may know what a number means.
"""

import textwrap
from collections.abc import Iterable

WIDTH = 80  # columns, as of a terminal
INDENT = 11  # columns of labels: the longest and two spaces
TIE = "\u00a0"  # a space at which no line ends


def tied(text: str) -> str:
    """Text that stays on one line, such as "1 %"."""
    return text.replace(" ", TIE)


def section(label: str, paragraphs: Iterable[str]) -> str:
    """A label and its paragraphs beside it; one that begins with "! " has its mark in
    the margin. Commands are lines that begin with "dphead " and are not broken.
    """
    lines: list[str] = []
    for text in paragraphs:
        mark = "! " if text.startswith("! ") else ""
        head = label if not lines else ""
        lead = head.ljust(INDENT - len(mark)) + mark
        lines += filled(text.removeprefix("! "), lead)
    return "\n".join(lines)


def filled(text: str, lead: str = "") -> list[str]:
    """The lines of a text, the first with what leads it and the others as far in."""
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
