"""`dphead ledger show|budget|verify`: what was charged, and the limit on it.

None may change what was charged.
"""

from pathlib import Path
from typing import Any

import click

from dphead.cli.choices import PATH
from dphead.cli.paragraphs import section, tied
from dphead.cli.paths import check_there


@click.group(short_help="Show what was spent on a data set, or fix its budget.")
def ledger() -> None:
    """The append-only record of every release from one data set.

    WHICH is a ledger file, or a features file, whose data set's own ledger is meant.
    """


@ledger.command()
@click.argument("which", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print every release as JSON.")
def show(which: Path, as_json: bool) -> None:
    """List the fits, their releases, their plain sum and the budget that they keep."""
    book = _open(which)
    if problems := book.verify():
        raise ValueError(
            f"a ledger must be undamaged to be shown, got {problems[0]} in "
            f"{book.path}. Put back a copy that holds all its fits."
        )

    import json

    from rich.console import Console

    from dphead.analysis.profiles import about_sum, plain_sum_epsilon, sum_accountant
    from dphead.runs.report import plain

    fits = book.fits()
    if as_json:
        click.echo(json.dumps(plain({"budget": book.budget(), "fits": fits})))
        return
    click.echo(section("Ledger", [str(book.path)]))
    click.echo(section("Data set", [book.meta("dataset_id") or "-"]))
    if fits:
        Console(highlight=False).print(_fits_table(fits))
    limit = book.budget()
    delta = limit["delta"] if limit else max((f["delta"] for f in fits), default=1e-5)
    events, relation = book.events(), book.meta("relation") or "zero_out"
    total = plain_sum_epsilon(events, delta, relation)
    spent = tied(f"epsilon {total:.5g} at delta {delta:g}")
    every = f"{spent}: the plain sum, every reserved release counted"
    why = about_sum(total, sum_accountant(events, relation), limit)
    click.echo(section("Spent", [every, why] if why else [every]))
    click.echo(section("Budget", [_budget_in_words(limit, bool(fits))]))


def _fits_table(fits: list[dict[str, Any]]) -> Any:
    """A fit a line."""
    import time

    from rich.table import Table

    table = Table(show_edge=False)
    table.add_column("charged at", no_wrap=True)
    table.add_column("fit")
    table.add_column("epsilon", justify="right")
    table.add_column("delta", justify="right")
    table.add_column("relation")
    table.add_column("releases", justify="right")
    table.add_column("committed", justify="right")
    for f in fits:
        done = sum(r["state"] == "committed" for r in f["releases"])
        at = time.strftime("%Y-%m-%d %H:00", time.gmtime(f["created"]))
        table.add_row(
            at,
            f["description"],
            f["epsilon"],
            f"{f['delta']:g}",
            f["relation"],
            str(len(f["releases"])),
            str(done),
        )
    return table


def _budget_in_words(limit: dict[str, Any] | None, has_fits: bool) -> str:
    if limit:
        fixed = tied(f"epsilon {limit['epsilon']:g} at delta {limit['delta']:g}")
        return (
            f"{fixed}: the guarantee for all fits together; what exceeds it is refused"
        )
    if has_fits:
        return (
            "! none was fixed before the first fit, so nothing is refused, and the "
            "plain sum is a guarantee only if no fit was chosen after seeing the "
            "results of another"
        )
    return "none yet: fix it before the first fit, by dphead ledger budget"


@ledger.command()
@click.argument("which", type=PATH)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
def budget(which: Path, epsilon: float, delta: float) -> None:
    """Fix the total (epsilon, delta) of all fits, once, before the first of them."""
    book = _open(which, create=True)
    book.set_budget(epsilon, delta)
    limit = f"epsilon {epsilon:g} at delta {delta:g}"
    text = (
        f"{tied(limit)}, for all fits of this data set together; it is never exceeded"
    )
    click.echo(section("Budget", [text]))
    click.echo(section("Ledger", [str(book.path)]))


@ledger.command()
@click.argument("which", type=PATH)
def verify(which: Path) -> None:
    """Hold every charge and fixed fact against its digests.

    Exit code 0: nothing found; 1: damage, listed; 2: the file cannot be used.
    """
    book = _open(which)
    problems = book.verify()
    for problem in problems:
        click.echo(f"damaged: {problem}")
    if problems:
        raise SystemExit(1)
    click.echo(section("Ledger", [str(book.path)]))
    number = len(book.fits())
    fits = f"{number} fit{'s' if number != 1 else ''}"
    click.echo(section("Damage", [f"nothing found, in {fits}"]))


def _open(which: Path, create: bool = False):
    check_there("a ledger or features file", which)

    from dphead.privacy.ledger_file import IN_MEMORY
    from dphead.runs.files import is_features_file
    from dphead.runs.ledgers import default_ledger_path, open_ledger
    from extract.format import open_features

    if is_features_file(which):
        with open_features(which) as file:
            dataset_id = file.dataset_id
        if not create and not default_ledger_path(dataset_id).exists():
            click.echo("no ledger yet: nothing was released from this data set here")
            return open_ledger(IN_MEMORY, dataset_id)
        return open_ledger(None, dataset_id)
    return open_ledger(which)
