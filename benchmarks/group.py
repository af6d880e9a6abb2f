"""The group that `python -m benchmarks` is: commands under titles, errors in a line.
Which commands there are, `commands` says.
"""

from collections.abc import Callable
from typing import Any, Literal, cast

import click

Kind = Literal["papers", "experiments", "speed", "checks"]
TITLES = {
    "papers": "The papers' tables, and every method on a features file",
    "experiments": "Experiments: what is missing is run, rows are kept under results/",
    "speed": "Seconds and bytes: run them with nothing else running",
    "checks": "Checks, and the demo",
}


class Sections(click.Group):
    """Commands under the titles of their kinds; what a user can correct is one line."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.kinds: dict[str, str] = {}

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write a section a kind."""
        for kind, title in TITLES.items():
            found = []
            for name, command in self.commands.items():
                if self.kinds.get(name) == kind:
                    found.append((name, command.get_short_help_str(limit=80)))
            with formatter.section(title):
                formatter.write_dl(found)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Sections)
def _main() -> None:
    """Measure on real data, store every row, and render the tables."""


main = cast(Sections, _main)
main.name = "benchmarks"


def command(kind: Kind) -> Callable[[Callable[..., None]], click.Command]:
    """Add a command of this kind; `_` in its name becomes `-`."""

    def add(function: Callable[..., None]) -> click.Command:
        made = main.command()(function)
        main.kinds[str(made.name)] = kind
        return made

    return add
