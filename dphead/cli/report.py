"""Implement `dphead report`, which writes cards from a run's report."""

from pathlib import Path
from typing import Any

import click

from dphead.cli.choices import PATH


@click.command()
@click.argument("run", type=PATH)
@click.option("--card", is_flag=True, help="A Hugging Face model card: RUN/README.md.")
@click.option(
    "-o", "--output", "out", type=PATH, help="Write elsewhere; - is standard output."
)
def report(run: Path, card: bool, out: Path | None) -> None:
    """Write RUN/report.html again, or a card of RUN (a run folder or a report.json).

    The card depends on report.json only and has public values only. The command first
    recomputes the report's epsilon.
    """
    from dphead.analysis.card.kept import rendered
    from dphead.analysis.records import read_run
    from dphead.privacy.atomic_write import write_text

    name = "README.md" if card else "report.html"
    finished: Any = read_run(run)
    text = rendered(name, finished.report)
    if str(out) == "-":
        click.echo(text, nl=False)
        return
    out = out or (run if run.is_dir() else run.absolute().parent) / name
    write_text(out, text)
    click.echo(f"{out}")
    if "TODO" in text:
        click.echo("fill in what is TODO: a report cannot know it")
