"""Implement `dphead export`: a head for other software. It reads nothing private."""

import textwrap
from pathlib import Path

import click

from dphead.cli.choices import PATH, KeptChoice
from dphead.cli.text import filled

_FORMATS = KeptChoice("dphead.export.exporting:WRITERS")


@click.command()
@click.argument("run", type=PATH)
@click.option(
    "--to",
    type=_FORMATS,
    required=True,
    help=(
        "torch, sklearn: the head. timm: the network with the head in it. onnx: the "
        "same, or the head alone where no timm network made the features."
    ),
)
@click.option(
    "-o", "--output", "out", type=PATH, help="New folder (default: RUN-FORMAT)."
)
@click.option(
    "--weights",
    type=PATH,
    help="Of timm and onnx: the network's weights file, as for `dphead extract`.",
)
def export(run: Path, to: str, out: Path | None, weights: Path | None) -> None:
    """Write the head of RUN as files that load without dphead and without pickle, with
    its guarantee beside them.

    What each format leaves out is in docs/export.md. It costs no privacy.
    """
    from dphead.export.exporting import export as write

    named = run if run.name.strip(".") else run.resolve()  # not . or ..
    out = out or named.with_name(f"{named.name}-{to}")
    done = write(run, to, out, weights)
    g = done.guarantee
    click.echo("\n".join(filled(f"{done.folder}: {' '.join(done.files)}")))
    click.echo(f"takes {done.takes}\n")
    click.echo(textwrap.indent(done.example, "    "))
    if g["private"]:
        click.echo(
            f"\nepsilon {g['epsilon']:.5g}   delta {g['delta']:g}   protects "
            f"{g['protected_unit']}: guarantee.json goes with the head"
        )
    else:
        click.echo("\n! This head is NOT PRIVATE: do not publish it.")
