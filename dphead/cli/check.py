"""Implement `dphead check`, which lists what a run's guarantee does not cover."""

from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.options import AS_JSON, RUN_LEDGER
from dphead.cli.progress import shown
from dphead.cli.text import print_json, say, section
from dphead.privacy.rounding import as_declared, rounded_up


@click.command()
@click.argument("run", type=values.NamedPath("a run folder or a report"))
@RUN_LEDGER
@AS_JSON
def check(run: Path, ledger: Path | str | None, as_json: bool) -> None:
    """List what the guarantee of RUN, a run folder or report.json, does not cover.

    Each finding has a reason and an action. The command recomputes the report's epsilon
    from its releases, and compares the report with the head and the ledger. Exit code
    0: no findings; 1: findings; 2: no finished run, or a modified one.

    \b
    dphead check run
    """
    from dphead.analysis.card.kept import altered, exceeded, stated_in
    from dphead.analysis.check import check as find
    from dphead.analysis.check import notes
    from dphead.fit.ledgers import read_known

    if run.is_file():  # the run's other files are beside it, not beside a link to it
        run = run.resolve()
    with shown("computing epsilon again"):
        finished = read_known(run, ledger)
        folder = run if run.is_dir() else run.parent
        findings = [*find(finished), *altered(run, finished.report)]
        findings += exceeded(stated_in(folder), finished)
        remarks = notes(finished)
        total = list(filter(None, (_spent_now(finished), finished.about_total())))
    if as_json:
        print_json(
            {
                "findings": [vars(finding) for finding in findings],
                "notes": remarks,
                "epsilon": finished.report["guarantee"]["epsilon"],
            }
        )
    else:
        say("Data set", *total)
        say("This run", _recomputed(finished.report["guarantee"]))
        for number, finding in enumerate(findings, 1):
            click.echo(f"\n{_listed(number, finding)}")
        for remark in remarks:
            say("Note", remark)
        if not findings:
            say(
                "Findings",
                "no findings. Problems that left no record go undetected",
            )
    if findings:
        raise SystemExit(1)


def _spent_now(run: Any) -> str:
    """Return text with the spent epsilon of the data set's ledger, and its budget."""
    from dphead.analysis.protected import budget_is

    book = run.ledger_now
    fits = book["fits"] if run.fits is None else len(run.fits)
    limit = book["budget"]
    of = f" of {as_declared(limit['epsilon'])}" if limit else ""
    told = {
        "guarantee": "",
        "limit of a sum": "; ledgers were merged, so the budget is no guarantee",
        "none": "; no budget was set before the first fit",
    }[budget_is(book)]
    return (
        f"epsilon {rounded_up(run.spent_now.epsilon)}{of} spent (delta "
        f"{as_declared(book['delta'])}) in {fits} fit{'s' if fits != 1 else ''}"
        f"{told}{', at the end of this run' if run.about_unread() else ''}"
    )


def _recomputed(g: dict[str, Any]) -> str:
    """Describe the guarantee, which `read_run` has compared with the releases."""
    private = "" if g["private"] else " (NOT PRIVATE)"
    return (
        f"epsilon {rounded_up(g['epsilon'], 5)}{private} at delta "
        f"{as_declared(g['delta'])} for "
        f"{g['protected_unit']} ({g['neighboring_relation']}); the report's releases "
        "give the same epsilon"
    )


def _listed(number: int, finding: Any) -> str:
    """Return a finding as text, with its number, fix and reason."""
    first = section(f"Finding {number}", [f"{finding.name}: {finding.what}."])
    fix = section("   Fix", [f"{finding.todo}."])
    return f"{first}\n{fix}\n{section('   Why', [f'{finding.why}.'])}"
