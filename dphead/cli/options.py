"""Declare the options that several commands share.

Import nothing heavy here: `dphead COMMAND --help` loads this file.
"""

from collections.abc import Callable, Mapping
from typing import Any

import click
from dphead_extract.numerals import separated

from dphead.cli import command, values
from dphead.cli.command import option_group

# --- what a run guarantees ------------------------------------------------------------


def check_private(given: Mapping[str, Any]) -> None:
    """Raise ValueError if a fit has no guarantee and the user did not confirm this.

    A charge cannot be undone. `given` has the values of the command's options.
    """
    seed = given["seed"]
    if given["not_private"] or (seed is None and given["epsilon"] != float("inf")):
        return
    problem = "--epsilon must be finite, got inf. Without noise the head reveals"
    if seed is not None:
        problem = f"--seed {seed} makes the noise known, so the head reveals"
    raise ValueError(
        f"{problem} its training images, and the ledger's total is infinite from then "
        "on. Confirm with --i-know-this-is-not-private."
    )


# --- a run's files, and what it prints ------------------------------------------------


def sizes(what: str, required: bool = True) -> Callable[[Any], Any]:
    """Return the option of three sizes. `what` completes its help."""
    return click.option(
        "--sizes",
        required=required,
        metavar="ROWS,FEATURES,CLASSES",
        callback=values.read_by(separated(int, 1, "ROWS,FEATURES,CLASSES", 3)),
        help=f"Numbers of rows, features and classes {what}",
    )


PUBLIC_ROWS = click.option(
    "--public-rows",
    is_flag=True,
    help="Declare that the images are public and need no protection.",
)
RUN_LEDGER = click.option(
    "--ledger",
    type=values.LedgerPlace("a ledger"),
    help="Path of the run's ledger, if it was moved or restored after the fit.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

PRINTED = option_group(
    command.PRINTED,
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Print the planned releases and the budget.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print the planned releases and the budget, and charge nothing.",
    ),
    click.option("-y", "--yes", is_flag=True, help="Ask nothing before the charge."),
)
