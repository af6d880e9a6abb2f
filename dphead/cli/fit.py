"""`dphead fit`."""

import sys
from pathlib import Path
from typing import Any

import click

from dphead.cli.choices import (
    ACCOUNTANTS,
    METHODS,
    NOT_PRIVATE,
    PATH,
    RELATIONS,
    TUNING,
    WithSettings,
    check_private,
)


def _classes(_: Any, __: Any, text: str | None) -> tuple[str, ...] | None:
    return tuple(text.split(",")) if text else None


def _bytes(_: Any, __: Any, text: str | None) -> int | None:
    if text is None:
        return None
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
    number, unit = text[:-2], text[-2:].upper()
    try:
        return int(float(number) * units[unit])
    except (KeyError, ValueError) as error:
        raise click.BadParameter(
            f"a size like 500MB or 2GB is needed, got {text!r}."
        ) from error


@click.command(
    cls=WithSettings, short_help="Train a private head from a features file."
)
@click.argument("features", type=PATH)
@click.option(
    "-o", "--output", "out", type=PATH, required=True, help="Run folder to write."
)
@click.option("--method", type=METHODS, default="auto", show_default=True)
@click.option(
    "--preset",
    help="A paper's settings: fc23, tb21, tb21-mnist, tb21-cifar10, de22, ...",
)
@click.option(
    "--epsilon",
    type=float,
    default=1.0,
    show_default=True,
    help="inf: no noise, no clipping, no privacy.",
)
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option("--relation", type=RELATIONS, default="zero_out", show_default=True)
@click.option(
    "--nominal-n",
    type=int,
    help="Public stand-in for n, which add_remove keeps private.",
)
@click.option(
    "--group-cap",
    type=click.IntRange(min=1),
    help="Protect groups (patients): at most so many images of each count.",
)
@click.option(
    "--accountant",
    type=ACCOUNTANTS,
)
@click.option(
    "--classes",
    callback=_classes,
    help="Public class names a,b,c if the file declares none.",
)
@click.option("--split", help="Split of FEATURES to train on, if it has several.")
@click.option("--test", type=PATH, help="Features file to measure the head on.")
@click.option("--test-split", help="Its split, or a split of FEATURES.")
@click.option(
    "--test-is",
    type=click.Choice(["private", "public"]),
    default="private",
    show_default=True,
)
@click.option(
    "--ledger",
    type=PATH,
    help="The data set's ledger (default: one for each dataset id, in DPHEAD_HOME).",
)
@click.option(
    "--tuning",
    type=TUNING,
    help="How the settings were chosen; the report says it.",
)
@click.option(
    "--allow-large-delta", is_flag=True, help="Confirm a delta at or above 1/n."
)
@click.option(
    "--seed", type=int, help="Fixed noise, for tests: reproducible, NOT private."
)
@click.option(
    "--memory",
    callback=_bytes,
    help="Bound on the memory of each process, like 2GB: kept, or refused.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "numpy", "jax", "reference"]),
    default="auto",
    show_default=True,
    help="How rows are summed; all give the same head. reference: slow, plain int64.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="Processes on this host; each reads a part of the rows.",
)
@click.option(
    "--coordinator",
    help=(
        "Of processes on many hosts: host:port of process 0, or auto "
        "(docs/many-hosts.md)."
    ),
)
@click.option(
    "--num-processes",
    type=click.IntRange(min=1),
    help="How many there are (auto: as SLURM says).",
)
@click.option(
    "--process-id",
    type=click.IntRange(min=0),
    help="Which one this is, from 0 (auto: as SLURM says).",
)
@click.option(
    "--connect-timeout",
    type=float,
    default=300,
    show_default=True,
    help="Seconds for all to connect.",
)
@NOT_PRIVATE
@click.option("--dry-run", is_flag=True, help="Print what would be released, and stop.")
def fit(
    dry_run: bool,
    processes: int | None,
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    connect_timeout: float,
    not_private: bool,
    **given: Any,
) -> None:
    """Train a private head on FEATURES and write it, its guarantee and a copy of the
    ledger to a run folder.

    Everything that the fit will release is printed, and charged in the data set's
    ledger, before a row is used.
    """
    from dataclasses import fields

    from rich.console import Console

    from dphead.runs.fit import fit_files
    from dphead.runs.options import FitOptions
    from dphead.runs.processes import Place, launch

    if not dry_run:
        check_private(given["epsilon"], not_private)
    if processes is not None and coordinator is None and not dry_run:
        sys.exit(launch(processes, [sys.executable, "-m", "dphead", *sys.argv[1:]]))
    if coordinator is None and (num_processes, process_id) != (None, None):
        raise click.UsageError("--num-processes and --process-id need --coordinator.")
    place = None
    if coordinator is not None and not dry_run:
        place = Place(coordinator, num_processes, process_id, connect_timeout)
    names = {f.name for f in fields(FitOptions)}
    options = FitOptions(
        **{k: v for k, v in given.items() if k in names},
        settings={k: v for k, v in given.items() if k not in names},
        processes=place,
    )
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    bar, task = progress_bar(errors, 14)

    def announce(plan: Any, method: Any) -> None:
        console.print(
            releases_table(plan.summary(), f"To be released ({method.source})")
        )
        if dry_run:
            raise click.exceptions.Exit(0)
        bar.start()

    def progress(done: int, total: int, label: str) -> None:
        bar.update(task, completed=done, total=total, description=label)

    try:
        result = fit_files(options, announce, progress)
    finally:
        bar.stop()
    if result["report"] is not None:
        show(console, options.out, result)


def progress_bar(console: Any, width: int) -> tuple[Any, Any]:
    """A bar of releases, not started, and its task. width: of the label."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    label = TextColumn(f"{{task.description:<{width}}}")
    bar = Progress(
        label,
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    return bar, bar.add_task("charging", total=None)


def releases_table(rows: list[dict[str, Any]], title: str) -> Any:
    """A table of releases, equal ones together."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in (
        "release",
        "times",
        "clip norm",
        "noise multiplier",
        "sampling",
        "mu each",
    ):
        table.add_column(name, justify="left" if name == "release" else "right")
    for r in rows:
        mu = "" if r["mu"] is None else f"{r['mu']:.4g}"
        table.add_row(
            r["label"],
            str(r["count"]),
            f"{r['clip_norm']:g}",
            f"{r['noise_multiplier']:.5g}",
            f"{r['sampling_prob']:.4g}",
            mu,
        )
    return table


def show(
    console: Any,
    out: Path,
    result: dict[str, Any],
    files: str = "head.safetensors head.json",
) -> None:
    """What a fit prints at its end."""
    report, test = result["report"], result["test"]
    g = report["guarantee"]
    mu = "-" if g["mu"] is None else f"{g['mu']:.5g}"
    rho = "-" if g["rho"] is None else f"{g['rho']:.4g}"
    label = "epsilon" if g["private"] else "epsilon (NOT PRIVATE)"
    console.print(
        f"\n{label} {g['epsilon']:.5g}   delta {g['delta']:g}   mu {mu}   rho {rho}   "
        f"relation {g['neighboring_relation']}   protects {g['protected_unit']}"
    )
    others = [f"{k} {v:.4g}" for k, v in g["profiles"].items() if isinstance(v, float)]
    if others:
        console.print("the same run under other accountants: " + ", ".join(others))
    if report["expected_accuracy"] is not None:
        percent = {k: f"{100 * v:.1f}" for k, v in report["expected_accuracy"].items()}
        console.print(
            f"expected accuracy on new data {percent['accuracy']} % (90 %: "
            f"{percent['low']} to {percent['high']} %), from what was released alone"
        )
    if test is not None:
        scope = (
            "public"
            if report["test_is"] == "public"
            else "private: for you alone, not in the report"
        )
        worst = report["data"]["class_names"][test["worst_class"]]
        console.print(
            f"test accuracy {100 * test['accuracy']:.2f} ± "
            f"{100 * test['accuracy_se']:.2f} %   worst class "
            f"{100 * test['worst_class_accuracy']:.1f} % ({worst})   ({scope})"
        )
    book = report["ledger"]
    budget = (
        f"budget of all fits: epsilon {book['budget']['epsilon']:g}"
        if book["budget"]
        else "no budget"
    )
    console.print(
        f"tuning: {report['tuning']}   plain sum of the ledger's fits: epsilon "
        f"{book['total_epsilon']:.5g}   {budget}"
    )
    for warning in report["warnings"]:
        console.print(f"warning: {warning}")
    console.print(f"\n{report['statement']}\n", soft_wrap=True)
    console.print(f"{out}: {files} report.json ledger.json   {result['seconds']:.1f} s")
