"""Escape untrusted text for terminals and spreadsheets.

File names, class names and server messages can contain terminal control characters or
spreadsheet formulas.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

# control characters except line feed and tab; bytes 0x80 to 0x9f of names that are not
# UTF-8; marks that reverse the order of the text on the screen
_CODES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f"
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
# Matches where a spreadsheet begins a formula: at the start of a cell or after a
# separator. If `;` is the separator, a quote after it begins a quoted cell.
_FORMULA = r"(?=['\"\s]*[=+\-@\uff1d\uff0b\uff0d\uff20])"
_BARE = re.compile(f"(^|[;\t\r\n]){_FORMULA}")
_QUOTED = re.compile(f"(^|[;\t\r\n])'{_FORMULA}")


def printable(text: str) -> str:
    """Return a text with escaped control characters, except line feed and tab."""
    return _CODES.sub(_escaped, text)


def one_line(text: str) -> str:
    """Return a printable text with escapes for line feeds and tabs too.

    Otherwise a name with a line feed could add a false line to a table.
    """
    return re.sub("[\\t\\n]", _escaped, printable(text))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    code -= 0xDC00 if code >= 0xDC80 else 0  # a surrogate stands for a byte
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def write_csv(rows: Iterable[Sequence[Any]], delimiter: str = ",") -> str:
    """Return rows of cells as CSV text without formulas.

    A text gets an apostrophe before each `=`, `+`, `-` or `@` that would begin a
    formula. Numbers stay numbers.
    """
    echo: Any = SimpleNamespace(write=str)  # so that `writerow` returns its line
    # no `lineterminator`: csv quotes \r only with its default line end
    table = csv.writer(echo, delimiter=delimiter)
    lines = [
        table.writerow([_BARE.sub(r"\1'", c) if _is_text(c) else c for c in row])
        for row in rows
    ]
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def read_csv(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the rows of cells that `write_csv` wrote."""
    for row in csv.reader(lines):
        yield [_QUOTED.sub(r"\1", cell) for cell in row]


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str) and not _NUMBER.fullmatch(cell)
