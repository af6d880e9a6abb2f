"""Implement `dphead verify`, which reports problems of a features file.

The output is private. Heavy modules are imported only when the command runs.
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
    help="Second features file to compare, such as the test images.",
)
def verify(file: Path, against: Path | None) -> None:
    """Check a features FILE. The output is private: no guarantee covers it.

    Exit code 0: no problems. 1: problems, listed. 2: the file is unusable.
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
