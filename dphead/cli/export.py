"""Implement `dphead export`, which writes a head or network for other software."""

import textwrap
from pathlib import Path

import click

from dphead.cli import values
from dphead.cli.options import RUN_LEDGER
from dphead.cli.report import note_changes
from dphead.cli.text import filled
from dphead.privacy.rounding import as_declared, rounded_up


@click.command()
@click.argument("run", type=values.PATH)
@click.option(
    "--to",
    type=values.KeptChoice("dphead.export.exporting:FORMATS"),
    required=True,
    help="Format to export. torch and sklearn: the head. timm: backbone and head. "
    "onnx: backbone and head, or only the head if the backbone is not a timm "
    "model. Networks of `dphead finetune` have torch, timm and onnx.",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=values.PATH,
    help="Folder to create. Default: RUN-FORMAT, such as run-torch.",
)
@click.option(
    "--weights",
    type=values.PATH,
    help="Weights file of the backbone, for timm and onnx exports.",
)
@click.option(
    "--model",
    help="Your own model, as package.module:function. Use the name given in training.",
)
@RUN_LEDGER
def export(
    run: Path,
    to: str,
    out: Path | None,
    weights: Path | None,
    model: str | None,
    ledger: Path | str | None,
) -> None:
    """Write the head or network of RUN for other software, with its guarantee.

    The files load without dphead and without pickle. Exporting costs no privacy.
    docs/export.md lists what each format omits.

    \b
    dphead export run --to torch
    """
    from dphead.export.exporting import export as write

    # avoid the names "." and ".."
    named = run if run.name.strip(".") else run.resolve()
    out = out or named.with_name(f"{named.name}-{to}")
    done = write(run, to, out, weights, model, ledger)
    note_changes(done.finished)
    g = done.guarantee
    click.echo(filled(f"{done.folder}: {' '.join(done.files)}"))
    click.echo(f"takes {done.takes}\n")
    if done.not_compared:
        click.echo(filled(f"! not compared with dphead: {done.not_compared}") + "\n")
    click.echo(textwrap.indent(done.example, "    "))
    if g["private"]:
        amount = (
            f"epsilon {rounded_up(g['epsilon'], 5)}, delta {as_declared(g['delta'])}"
        )
        click.echo("\n" + filled(f"{amount} for {g['protected_unit']}"))
        click.echo("Keep guarantee.json with these files.")
    else:
        click.echo("\n! This result is NOT PRIVATE: do not publish it.")
