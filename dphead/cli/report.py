"""Implement `dphead report`, which writes cards from a run's report."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.options import RUN_LEDGER
from dphead.cli.text import say


@click.command()
@click.argument("run", type=values.PATH)
@click.option(
    "--card", is_flag=True, help="Write a Hugging Face model card, RUN/README.md."
)
@click.option(
    "--dpia",
    is_flag=True,
    help="Write an annex for a data protection impact assessment, RUN/dpia.html.",
)
@click.option(
    "--about",
    type=values.PATH,
    help="TOML file with institution, purpose, contact, date and limits. Without "
    "--output, it is copied to the run. Default: RUN/about.toml.",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=values.PATH,
    help="Write to this path instead. - means standard output.",
)
@RUN_LEDGER
def report(
    run: Path,
    card: bool,
    dpia: bool,
    about: Path | None,
    out: Path | None,
    ledger: Path | str | None,
) -> None:
    """Write RUN/report.html again, or a card of RUN (a run folder or a report.json).

    The card depends only on report.json and about.toml. The command first recomputes
    the report's epsilon.

    \b
    dphead report run --card
    """
    from dphead.analysis.card.about import read_about
    from dphead.analysis.card.kept import ABOUT, exceeded, rendered, stated_in
    from dphead.analysis.check import DERIVED
    from dphead.fit.ledgers import read_known
    from dphead.privacy.atomic_write import write_text

    if card and dpia:
        raise click.UsageError("`--card` and `--dpia` exclude each other. Remove one.")
    name = "README.md" if card else "dpia.html" if dpia else "report.html"
    finished = read_known(run, ledger)
    note_changes(finished)
    folder = run if run.is_dir() else run.absolute().parent
    kept = folder / ABOUT
    stated = read_about(about) if about else stated_in(folder)
    _note(exceeded(stated, finished))
    text = rendered(name, finished.report, stated)
    if str(out) == "-":
        click.echo(text, nl=False)
        return
    if about is not None and out is None and about.absolute() != kept.absolute():
        write_text(kept, about.read_text())
        for other in DERIVED:  # update every page, because each one shows about.toml
            if other != name and (folder / other).is_file():
                write_text(folder / other, rendered(other, finished.report, stated))
    typed = out is not None
    out = out or folder / name
    write_text(out, text, typed=typed)
    click.echo(f"{out}")
    if "TODO" in text:
        click.echo("Replace each TODO. The report lacks these values.")


def note_changes(finished: Any) -> None:
    """Print which statements a later merge made false, and other ledgers of the images.

    Also print whether later merges and fits, or shared images, are unknown here.
    """
    from dphead.analysis.check import outdated, uncounted

    _note([*outdated(finished), *uncounted(finished)])
    if (said := finished.about_unread()) is not None:
        say("Note", f"! {said}", err=True)
    for remark in finished.remarks:
        say("Note", f"! {remark}", err=True)


def _note(findings: Iterable[Any]) -> None:
    for finding in findings:
        say("Note", f"! {finding.what}. {finding.todo}", err=True)
