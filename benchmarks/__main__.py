"""`python -m benchmarks run | tables | heads | cost | accounting`."""

from pathlib import Path

import click

from benchmarks import heads as h
from benchmarks import tables as t

PATH = click.Path(path_type=Path, exists=True)
METHODS = click.Choice(h.METHODS)


@click.group()
def main() -> None:
    """Measure on real data, store every row, and render the tables."""


@main.command()
@click.argument("name")
@click.option("--train", type=PATH, required=True)
@click.option("--test", type=PATH, required=True)
@click.option("--method", "methods", type=METHODS, multiple=True, default=h.METHODS)
@click.option("--draws", default=5, show_default=True)
@click.option("--newton-draws", default=5, show_default=True)
@click.option("--epsilon", "epsilons", type=float, multiple=True, default=h.EPSILONS)
@click.option(
    "--together",
    default=1,
    show_default=True,
    help="Fits that share passes, with float32 sums: auto alone.",
)
def heads(
    name: str,
    train: Path,
    test: Path,
    methods: tuple[str, ...],
    draws: int,
    newton_draws: int,
    epsilons: tuple[float, ...],
    together: int,
) -> None:
    """Accuracy of every method at every epsilon, only what is missing."""
    per_method = {m: newton_draws if m == "dp-newton" else draws for m in h.METHODS}
    h.sweep(name, train, test, methods, per_method, epsilons, together)


@main.command()
@click.argument("name")
@click.option("--train", type=PATH, required=True)
@click.option("--test", type=PATH, required=True)
@click.option("--method", "methods", type=METHODS, multiple=True, default=h.METHODS)
@click.option("--repeats", default=3, show_default=True)
@click.option("--epsilon", default=1.0, show_default=True)
def cost(
    name: str,
    train: Path,
    test: Path,
    methods: tuple[str, ...],
    repeats: int,
    epsilon: float,
) -> None:
    """Time and memory of `dphead fit`. Run it with nothing else running."""
    h.cost(name, train, test, methods, repeats, epsilon)


@main.command()
@click.argument("selector")
@click.option(
    "--images",
    type=PATH,
    help="Folder with mnist/, fashion_mnist/, cifar10/; default: ../shared/data.",
)
@click.option(
    "--processes",
    default=1,
    show_default=True,
    help="Fits at a time, one core each; 1: all cores for one.",
)
@click.option(
    "--max-draws",
    default=5,
    show_default=True,
    help="Noise draws at most: a first look at long tables.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only tell what would run, and for how many hours."
)
def run(
    selector: str, images: Path | None, processes: int, max_draws: int, dry_run: bool
) -> None:
    """Fit what is missing of PAPER, PAPER/TABLE, PAPER/TABLE/DATASET, quick (ten
    minutes) or search/DATASET.
    """
    from benchmarks import runner

    try:
        runner.run(selector, images, processes, dry_run, max_draws=max_draws)
    except (ValueError, OSError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error


@main.command()
def tables() -> None:
    """Write TABLES.md, the README's tables and results/figures from the stored rows."""
    from benchmarks import figures

    t.write()
    for path in figures.write():
        click.echo(path)


@main.command()
def accounting() -> None:
    """Write the plots that need no data to results/accounting (half a minute)."""
    from benchmarks.accounting import write

    for path in write():
        click.echo(path)


if __name__ == "__main__":
    main()
