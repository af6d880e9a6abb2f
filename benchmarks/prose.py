"""Markdown as it is written to files: prose at 100 columns, tables as they are."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

WIDTH = 100
ITEM = re.compile(r"\s*([-*]|\d+\.)\s+")
# a line that begins so is no prose: a table, heading, tag, picture or code
OTHER = ("|", "#", "<", "!", "    ")
FENCE = "```"


def wrapped(text: str) -> str:
    """Paragraphs and list items are filled, however they were wrapped before."""
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


def table_of_peers(
    rows: Iterable[dict[str, Any]],
    epsilons: Sequence[float],
    lines: Iterable[tuple[str, str, Sequence[float]]],
    cell: Callable[[Any], str],
) -> str:
    """A column an epsilon. lines: (task, model, the epsilons that it has); cell: the
    text of a row's scores, or of None where there are none.
    """
    scores = {(r["task"], r["model"], r["epsilon"]): r["scores"] for r in rows}
    head = " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons)
    found = [f"| task | model | {head} |", "|---" * (len(epsilons) + 2) + "|"]
    for task, model, own in lines:
        cells = " | ".join(cell(scores.get((task, model, epsilon))) for epsilon in own)
        missing = " |" * (len(epsilons) - len(own))
        found.append(f"| {task} | {model} | {cells} |{missing}")
    return "\n".join(found)


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
