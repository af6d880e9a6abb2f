"""Define the commands of `python -m benchmarks`, which measure and render.

An experiment's module is imported when its command runs.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path, exists=True)
METHODS = ("auto", "dp-ls", "dp-fc", "dp-adam", "dp-sgd", "prototypes", "dp-newton")
EXTRACTION = ("scattering", "loader", "photographs")


@click.group()
def main() -> None:
    """Measure on real data, store every result, and render the tables."""


def experiment(name: str) -> Any:
    """Return the module of an experiment."""
    return import_module(f"benchmarks.experiments.{name}")


def on_features(command: Any) -> Any:
    """Add the arguments of commands that fit heads on features files."""
    parameters = (
        click.argument("name"),
        click.option("--train", type=PATH, required=True),
        click.option("--test", type=PATH, required=True),
        click.option(
            "--method",
            "methods",
            type=click.Choice(METHODS),
            multiple=True,
            default=METHODS,
            help="One or more; default: all.",
        ),
    )
    for parameter in reversed(parameters):
        command = parameter(command)
    return command


def show(paths: list[Path]) -> None:
    """Print the paths that were written."""
    for path in paths:
        click.echo(path)


def show_readme(name: str) -> None:
    """Write the README of an experiment, and print it."""
    from benchmarks import render

    click.echo(render.readme(name).read_text())


# --- papers -------------------------------------------------------------------


SELECTORS = click.argument("selectors", nargs=-1, metavar="CLAIM...")


@main.command("claims")
@SELECTORS
def list_claims(selectors: tuple[str, ...]) -> None:
    """List claims, each with its state and the commands that measure it.

    CLAIM: PAPER, PAPER-TABLE, PAPER-TABLE-DATASET or PAPER-TABLE-DATASET-EPSILON, such
    as FC23-3 or TB21-1-mnist-2.93, or the name of one number, such as
    TB21-1-mnist-2.93:2. The default is all claims. If a command has the word
    NAME, replace it by one of the names listed after the command.
    """
    from benchmarks import jobs, runner, verdicts
    from benchmarks.claims import PAPERS

    by_key = verdicts.by_key_of(runner.stored())
    for selector in selectors or PAPERS:
        click.echo(f"{verdicts.states(jobs.selected(selector), by_key)}\n")


@main.command()
@SELECTORS
@click.option(
    "--images",
    type=PATH,
    help="Folder of images (docs/papers.md). Default: images/ in DPHEAD_CACHE.",
)
@click.option(
    "--features",
    "file",
    type=PATH,
    help="Features file with the splits train and test, for heads on the paper's "
    "features.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Repeat stored fits, in the folder reproduced/, and compare them.",
)
@click.option(
    "--draws",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of noise draws of a fit, at most.",
)
def reproduce(selectors: tuple[str, ...], draws: int, **given: Any) -> None:
    """Run the fits of claims that are missing, and print the paper's numbers and ours.

    CLAIM: as in `claims`, or quick, which repeats 19 stored fits (two minutes). Ctrl-C
    prints the numbers of the fits so far.
    """
    from benchmarks import runner

    for selector in selectors or ("quick",):
        try:
            click.echo(f"{runner.reproduce(selector, draws=draws, **given)}\n")
        except (KeyboardInterrupt, click.Abort):
            click.echo("\nInterrupted. Stored fits, and those that ended:\n", err=True)
            click.echo(runner.reproduce(selector, draws=0, **given))
            raise
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error


@main.command()
def plans() -> None:
    """Plan the releases of every claim's jobs, without any data (minutes).

    Exit code 1 means that a job is refused, and not for the largest noise of dp-newton
    (2^44 units), which TABLES.md explains.
    """
    from benchmarks import runner

    count, refused = runner.plan_all()
    click.echo("\n".join([*refused, f"{count} jobs, {len(refused)} refused"]))
    if not all(" dp-newton " in line and "2**44" in line for line in refused):
        raise SystemExit(1)


@main.command()
def tables() -> None:
    """Render all tables, READMEs and pictures from the stored results.

    They are TABLES.md, the README's tables, results/*/README.md and the pictures of
    results/.
    """
    from benchmarks import render

    show(render.write())


@main.command()
def figures() -> None:
    """Draw the papers' numbers beside ours, from stored results."""
    from benchmarks import accounting
    from benchmarks import figures as module

    show([*module.write(), *accounting.write()])


@main.command()
def arithmetic() -> None:
    """Compute and store the papers' numbers that a formula gives (minutes)."""
    from benchmarks import arithmetic as module

    module.run()


@main.command()
@on_features
@click.option("--draws", default=5, show_default=True)
@click.option("--epsilon", "epsilons", type=float, multiple=True, help="Default: all.")
def heads(epsilons: tuple[float, ...], **given: Any) -> None:
    """Measure the accuracy of every method at every epsilon on a features file."""
    from benchmarks import heads as h

    h.sweep(**given, epsilons=epsilons or h.EPSILONS)


@main.command()
@click.option(
    "--audits", default=100, show_default=True, help="Audits of each correct method."
)
def defects(audits: int) -> None:
    """Audit mechanisms with seeded defects, and correct methods, and store results."""
    module = experiment("audit_defects")
    module.run()
    module.run_repeats()
    module.run_sound(audits)


@main.command()
def seeded() -> None:
    """Print a digest of each seeded head and report, to compare after a change."""
    from benchmarks import seeded as module

    module.run()


# --- speed --------------------------------------------------------------------


@main.command()
@on_features
@click.option("--repeats", default=3, show_default=True)
@click.option("--epsilon", default=1.0, show_default=True)
def cost(**given: Any) -> None:
    """Measure time and memory of `dphead fit`."""
    from benchmarks import heads as h

    h.cost(**given)


@main.command()
def peers() -> None:
    """Time one full-batch step of dphead and of other libraries."""
    experiment("peers").run()
    show_readme("peers")


@main.command()
@click.argument("folder", type=PATH)
def scale(folder: Path) -> None:
    """Measure time and memory of sums by rows, streamed from a file in FOLDER."""
    experiment("scale").run(folder)
    show_readme("scale")


@main.command()
@click.argument("parts", nargs=-1)
@click.option("--tiny", is_flag=True, help="Try every part at a small size.")
def gpu(parts: tuple[str, ...], tiny: bool) -> None:
    """Measure PARTS on an accelerator. Default: sums, extraction and releases."""
    module = experiment("gpu")
    for part in parts or module.PARTS:
        module.PARTS[part](tiny)


@main.command()
@click.argument("jobs", nargs=-1, type=click.Choice(EXTRACTION))
def extraction(jobs: tuple[str, ...]) -> None:
    """Time extraction beside kymatio and timm, and fit a head to 500 photographs."""
    for job in jobs or EXTRACTION:
        getattr(experiment("extraction"), job)()


# --- checks -------------------------------------------------------------------


@main.command()
@click.argument("probes", nargs=-1)
@click.option(
    "--tries",
    type=click.IntRange(1),
    help="Largest number of tries of a probe. Default: all.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Seed of these tries. Results with several seeds at one commit are added up. "
    "For points: the number of a command.",
)
def faults(probes: tuple[str, ...], tries: int | None, seed: int) -> None:
    """Test commands that are killed or run at once, and damaged files and disks."""
    module = experiment("faults")
    for probe in probes or module.PROBES:
        module.run(probe, tries, seed)
    show_readme("faults")


@main.command()
def demo() -> None:
    """Fit private heads to scikit-learn's digits by the commands that a user types."""
    from benchmarks import demo as module

    module.run()


@main.command()
def tour() -> None:
    """Run the commands of docs/tour.md, write what they print, and draw the card."""
    from benchmarks import tour as module

    show(module.write())
