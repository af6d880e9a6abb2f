"""Define the values that options accept.

Choices are imported only if needed. A command's module therefore imports nothing heavy.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from dphead.cli.command import Sectioned
from dphead.cli.values import LARGEST, Number, Whole, several_names


class NamedPath(click.Path):
    """Accept a path; refuse an empty path, which would mean the working folder."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the path, or raise a usage error for an empty one."""
        if value == "":
            self.fail("a path must not be empty, got ''.", param, ctx)
        return super().convert(value, param, ctx)


PATH = NamedPath(path_type=Path)


class _LedgerPlace(NamedPath):
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


LEDGER = _LedgerPlace(path_type=Path)


class KeptChoice(click.Choice):
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
        module, attribute = self._where.split(":")
        kept: Sequence[str] | Callable[[], Sequence[str]]
        kept = getattr(import_module(module), attribute)
        return tuple(kept() if callable(kept) else kept)


_LOSSES = KeptChoice("dphead.privacy.loss:LOSSES")
METHODS = KeptChoice("dphead.planning.registry:names")
RELATIONS = KeptChoice("dphead.privacy.accounting:RELATIONS")
ACCOUNTANTS = KeptChoice("dphead.planning.calibration:ACCOUNTANTS")
TUNING = KeptChoice("dphead.fit.report:TUNING")


def check_private(epsilon: float, not_private: bool) -> None:
    """Raise ValueError for a fit without noise that the user did not confirm.

    A charge cannot be undone.
    """
    if epsilon == float("inf") and not not_private:
        raise ValueError(
            "--epsilon must be finite, got inf. Without noise the head reveals its "
            "training images, and the ledger's total is infinite from then on. "
            "Confirm with --i-know-this-is-not-private."
        )


class WithSettings(Sectioned):
    """Add the settings of all methods as options, after `--preset`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's options, with the settings after `--preset`."""
        own = super().get_params(ctx)
        at = 1 + next(i for i, option in enumerate(own) if option.name == "preset")
        return [*own[:at], *self.setting_options(), *own[at:]]

    def setting_options(self) -> list[click.Parameter]:
        """Return one option per setting that has `option`, with its methods."""
        from dphead.planning.methods import options
        from dphead.planning.registry import OURS

        found: list[click.Parameter] = []
        for declared, methods in options():
            whose = "" if len(methods) == len(OURS) else f"{', '.join(methods)}: "
            found.append(setting_option(declared, whose + declared.setting.help))
        found[0].heading = "Settings of methods"  # type: ignore[attr-defined]
        return found


def setting_option(declared: Any, text: str, kind: Any = PATH) -> click.Option:
    """Return the option of a setting, without the range of the setting.

    `text` is the help, and `kind` the type of a setting that is a text.
    """
    name = f"--{declared.name.replace('_', '-')}"
    if bool in declared.types:
        return click.Option([f"{name}/--no-{name[2:]}"], default=None, help=text)
    callback = several_names if tuple in declared.types else None
    number = next((t for t in declared.types if t in (int, float)), None)
    if number is not None:
        kind = Whole(-LARGEST) if number is int else Number(-LARGEST)
    elif declared.choices:
        kind = click.Choice(declared.choices)
    return click.Option([name], type=kind, default=None, help=text, callback=callback)
