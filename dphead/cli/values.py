"""Parse typed text: paths, choices, numbers, lists, sizes and NAME=VALUE pairs.

Errors name the text to type instead. `Number` reads a single number, and refuses
absurdly large ones, and inf unless the option allows it. The library checks the range
of each setting. Choices are imported only if needed. A command's module therefore
imports nothing heavy.
"""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
from dphead_extract.bounds import check_ends
from dphead_extract.numerals import LARGEST, typed_number


def check_there(what: str, path: Path) -> None:
    """Raise ValueError for a path that does not exist, or is a pipe or a device.

    `what` describes the path in the error.
    """
    check_ends(path)
    if not os.path.exists(path):
        hint = ""
        if os.path.exists(f"{path}.part"):
            hint = f" {path}.part is unfinished. Run the command that wrote it again."
        raise ValueError(f"{path} does not exist. Type the path of {what}.{hint}")


class NamedPath(click.Path):
    """Accept a path, and refuse an empty path, which would mean the working folder.

    If `existing` describes the path, such as "a run folder", the path must exist. The
    check comes before a command loads its libraries, which takes seconds.
    """

    def __init__(self, existing: str = "", *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)
        self._existing = existing

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the path, or raise an error for an empty or missing one."""
        if value == "":
            self.fail(
                "a path must not be empty, got ''. Type a path, or . for this folder.",
                param,
                ctx,
            )
        path: Any = super().convert(value, param, ctx)
        if self._existing:
            check_there(self._existing, path)
        return path


class LedgerPlace(NamedPath):
    """Accept a path, or the URL of a PostgreSQL server as text."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the URL as str, or the path."""
        from dphead.privacy.ledger.server import is_on_server

        if value == ":memory:":
            self.fail(
                "a ledger in memory ends with the command, got ':memory:'. Type a "
                "file, such as ledger.sqlite, or a postgresql:// URL.",
                param,
                ctx,
            )
        return value if is_on_server(value) else super().convert(value, param, ctx)


PATH = NamedPath()
LEDGER = LedgerPlace()


class Choice(click.Choice):
    """Accept variants of a choice, such as zero-out, and always show zero_out."""

    def get_metavar(self, param: click.Parameter, ctx: Any = None) -> str:
        """Return the choices as Python and the site spell them."""
        return f"[{'|'.join(self.choices)}]"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the choice, or raise a usage error that lists the choices."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            choices = ", ".join(map(repr, self.choices))
            return self.fail(f"{value!r} is not one of {choices}.", param, ctx)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[Any]:
        """Return the choices that begin with the typed text."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(c) for c in self.choices if c.startswith(incomplete)]


class KeptChoice(Choice):
    """Accept a choice from a list in a module that is imported when needed.

    `where` is module:attribute. The attribute is the list, or a function that returns
    the list.
    """

    def __init__(self, where: str) -> None:
        self.case_sensitive = True
        self._where = where

    @property
    def choices(self) -> Sequence[str]:  # type: ignore[override]
        """Return the list in its current state."""
        kept: Sequence[str] | Callable[[], Sequence[str]] = resolve_name(self._where)
        return tuple(kept() if callable(kept) else kept)


class Number(click.ParamType):
    """Parse a number in a range, or one of some words.

    With `infinite`, also accept inf.
    """

    kind: Any = float
    name = "float"

    def __init__(
        self,
        low: float = 0,
        high: float = LARGEST,
        *,
        infinite: bool = False,
        words: Sequence[str] = (),
    ) -> None:
        self.low, self.high, self.infinite, self.words = low, high, infinite, words

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the number or the word, or raise a usage error if it is invalid."""
        number = self.parsed(value)
        inside = number is not None and self.low <= number <= self.high
        # a number with thousands of digits parses as inf, but is not one
        typed = "inf" in str(value).lower() and number == math.inf
        if inside or (self.infinite and typed):
            return number
        if value in self.words:
            return value
        return self.fail(f"write {self}, got {str(value)[:40]!r}.", param, ctx)

    def __str__(self) -> str:
        """Return a description of valid text."""
        what = "a whole number" if self.name == "integer" else "a number"
        words = [*(["inf"] if self.infinite else []), *self.words]
        return " or ".join([f"{what} from {self.low:g} to {self.high:g}", *words])

    def parsed(self, value: Any) -> Any:
        """Return the number in a text, or None."""
        try:
            if isinstance(value, str):
                return typed_number(value, self.kind)
            found = None if isinstance(value, bool) else self.kind(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return found if found == value else None


class Whole(Number):
    """Parse a whole number in a range."""

    kind = int
    name = "integer"


NUMBER = Number()
NATURAL = Whole(1)
_SEVERAL = 2**16  # bound of counts that cost time or memory; chosen, not measured
MANY = Whole(1, _SEVERAL)


def read_by(read: Callable[[str], Any]) -> Any:
    """Return an option callback that converts the typed text by `read`."""

    def callback(_: Any, __: Any, text: str | None) -> Any:
        try:
            return None if text is None else read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback
