"""Implement `dphead verify`: report what is wrong with a features file.

The result is for the file's holder alone. Everything heavy may be imported only when
the command runs.
"""

from pathlib import Path

import click

from dphead.cli.choices import PATH
from dphead.cli.features_file import Unusable, print_problems
from dphead.cli.progress import shown


@click.command()
@click.argument("file", type=PATH)
@click.option(
    "--against",
    type=PATH,
    help="A second features file, such as the test set.",
)
def verify(file: Path, against: Path | None) -> None:
    """Check a features FILE before any guarantee starts: it looks at private values, so
    keep what it prints.

    Exit code 0: no problems; 1: problems, listed; 2: the file cannot be used.
    """
    from dphead_extract.features.format import FormatError
    from dphead_extract.features.format import verify as check

    try:
        with shown("checking rows"):
            problems = check(file, against)
    except (FormatError, OSError) as error:
        raise Unusable(error) from error
    print_problems(problems)
    if problems:
        raise SystemExit(1)
