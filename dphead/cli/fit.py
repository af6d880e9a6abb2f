"""Define the options of `dphead fit` and print its output.

`dphead.fit.run` fits the head. Heavy modules are imported only when the command runs.
"""

from contextlib import nullcontext
from typing import Any

import click

from dphead.cli import values
from dphead.cli.budget import before_charge, budget_on_refusal, offer_budget
from dphead.cli.command import WithSettings, config_text, option_group
from dphead.cli.options import (
    GROUP_CAP,
    GROUP_MEAN,
    GUARANTEE,
    METHOD,
    PRESET,
    PRINTED,
    RUN_FILES,
    SET,
    check_private,
)
from dphead.cli.progress import shown
from dphead.cli.text import releases_table, section


@click.command(cls=WithSettings)
@click.argument("features", type=values.NamedPath("a features file"))
@option_group(
    "Rows and files",
    *RUN_FILES,
    click.option(
        "--classes",
        callback=values.several_names,
        help="Public class names, such as a,b,c, if the file declares no classes.",
    ),
)
@option_group(
    "Guarantee",
    *GUARANTEE,
    GROUP_CAP,
    GROUP_MEAN,
    click.option(
        "--accountant",
        type=values.ACCOUNTANT,
        help="Accountant that calibrates the noise. Default: the accountant of the "
        "method.",
    ),
)
@option_group(
    "Method",
    METHOD,
    PRESET,
    SET,
)
@option_group(
    "Memory, processes and hosts",
    click.option(
        "--memory",
        callback=values.n_bytes,
        help="Limit on the memory for blocks and sums in each process, such as 2GB. "
        "Default: what the machine has.",
    ),
    click.option(
        "--backend",
        type=click.Choice(["auto", "numpy", "jax", "reference"]),
        default="auto",
        help="What computes sums and weights. All add the same integers. reference "
        "is slow.",
    ),
    click.option(
        "--coordinator",
        help="Address host:port of process 0 for a fit on many hosts. auto: find "
        "the hosts of a cluster's job.",
    ),
    click.option(
        "--num-processes",
        type=values.MANY,
        help="Total number of processes on all hosts. --coordinator auto reads "
        "this number from the cluster.",
    ),
    click.option(
        "--process-id",
        type=values.WHOLE,
        help="Index of this process, counted from 0. --coordinator auto reads the "
        "index from the cluster.",
    ),
    click.option(
        "--connect-timeout",
        type=values.NUMBER,
        default=300,
        help="Seconds to wait for all processes to connect.",
    ),
)
@option_group("What is printed", *PRINTED)
def fit(
    dry_run: bool,
    verbose: bool,
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    connect_timeout: float,
    **given: Any,
) -> None:
    """Train a private head on FEATURES, a features file, and write a run folder.

    The run folder holds the head, its guarantee and a copy of the ledger. The fit
    charges all its releases to the data set's ledger before it uses an image. If an
    interrupted fit left the folder, the same command resumes it at no further charge.

    \b
    dphead fit train.h5 --epsilon 1 -o run
    """
    if not dry_run:
        check_private(given["epsilon"], given["seed"], given["not_private"])

    from dphead.fit.run_folder import noted

    place = _place(coordinator, num_processes, process_id, connect_timeout)
    options = _options(given, None if dry_run else place)
    with noted(options) if not process_id else nullcontext():
        _fit(options, process_id, dry_run=dry_run, verbose=verbose)


def _fit(options: Any, process_id: int | None, *, dry_run: bool, verbose: bool) -> None:
    """Fit the head, and print the outcome."""
    from dphead.cli.summary import outcome
    from dphead.fit.duration import LONG_SECONDS, missing_kernels, time_in_words
    from dphead.fit.run import fit_files

    fit: Any = None

    with shown("reading and checking rows", not process_id) as progress:

        def announce(prepared: Any, seconds: float) -> None:
            nonlocal fit
            fit = prepared
            if dry_run or verbose:
                title = f"To be released ({fit.about.settings_from})"
                progress.say(releases_table(fit.announced.summary(), title))
                progress.say(section("Budget", before_charge(fit, options)))
            if seconds > LONG_SECONDS or (dry_run and seconds):
                took = time_in_words(seconds)
                progress.say(f"This fit takes about {took} on this machine.")
            if warning := missing_kernels(seconds):
                progress.say(warning)
            if dry_run:
                raise click.exceptions.Exit(0)
            offer_budget(fit, options, progress, ask=options.processes is None)
            progress.begin("verifying sums, then charging")

        with budget_on_refusal(lambda: fit, options, progress, verbose):
            result = fit_files(options, announce, progress)
        if result["report"] is None:
            return
        progress.begin("computing the bound on attacks")
        text = outcome(options.out, result, fit.announced)
    click.echo(text)


def _place(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    connect_timeout: float,
) -> Any:
    """Return the index of this process in a run of several processes, or None."""
    from dphead.fit.processes import Place

    if coordinator is not None:
        return Place(coordinator, num_processes, process_id, connect_timeout)
    if (num_processes, process_id) != (None, None):
        raise click.UsageError(
            "--num-processes and --process-id need --coordinator. Add --coordinator "
            "host:port."
        )
    return None


def _options(given: dict[str, Any], place: Any) -> Any:
    """Return the command's `FitOptions`, with all other options as settings."""
    from dataclasses import fields

    from dphead.fit.options import FitOptions

    names = {f.name for f in fields(FitOptions)}
    own = {k: v for k, v in given.items() if k not in names and v is not None}
    if twice := set(own) & set(given["settings"]):
        raise click.UsageError(
            f"--set cannot repeat an option, got --set {min(twice)}=... and "
            f"--{min(twice).replace('_', '-')}. Drop one of them."
        )
    return FitOptions(
        **{k: v for k, v in given.items() if k in names and k != "settings"},
        settings=given["settings"] | own,
        config=config_text(),
        processes=place,
    )
