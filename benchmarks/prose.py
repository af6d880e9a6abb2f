"""Format Markdown for files: fill prose at 100 columns, and keep tables unchanged."""

import re
import textwrap
from collections.abc import Iterable

WIDTH = 100
ITEM = re.compile(r"\s*([-*]|\d{1,2}\.)\s+")
# beginnings of lines that are not prose: table, heading, tag, picture or code
OTHER = ("|", "#", "<", "!", "    ")
FENCE = "```"


def table(names: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Render a table: the columns' names, and the cells of each line."""
    head, *rest = (f"| {' | '.join(cells)} |" for cells in (names, *lines))
    return "\n".join([head, "|---" * (head.count(" | ") + 1) + "|", *rest])


def wrapped(text: str) -> str:
    """Return text with all paragraphs and list items filled anew."""
    lines: list[str] = []
    paragraph: list[str] = []
    code = False
    for line in [*text.split("\n"), ""]:
        code ^= line.startswith(FENCE)
        begins = code or not line.strip() or line.startswith((FENCE, *OTHER))
        if begins or ITEM.match(line):
            lines += _filled(paragraph)
            paragraph = []
        if begins:
            lines.append(line)
        else:
            paragraph.append(line)
    return "\n".join(lines[:-1])


def _filled(paragraph: list[str]) -> list[str]:
    if not paragraph:
        return []
    item = ITEM.match(paragraph[0])
    lead = item.group() if item else ""
    words = " ".join([paragraph[0][len(lead) :], *paragraph[1:]]).split()
    return textwrap.wrap(
        " ".join(words),
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
