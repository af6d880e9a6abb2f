"""Define the options of `dphead fit` and print its output.

`dphead.fit.run` fits the head. Heavy modules are imported only when the command runs.
"""

from contextlib import nullcontext
from typing import Any

import click

from dphead.cli.budget import (
    ask_if_too_few,
    before_charge,
    budget_on_refusal,
    offer_budget,
)
from dphead.cli.command import WithSettings
from dphead.cli.options import PRINTED, check_private
from dphead.cli.progress import shown
from dphead.cli.text import releases_table, section


@click.command(cls=WithSettings, declared="dphead.fit.options:FitOptions")
@PRINTED
def fit(dry_run: bool, verbose: bool, yes: bool, **given: Any) -> None:
    """Train a private head on FEATURES, a features file, and write a run folder.

    The run folder holds the head, its guarantee and a copy of the ledger. The fit
    charges all its releases to the data set's ledger before it uses an image. If an
    interrupted fit left the folder, the same command resumes it at no further charge.

    \b
    dphead fit train.h5 --epsilon 1 -o run
    """
    if not dry_run:
        check_private(given)

    from dphead.fit.run_folder import noted

    options = options_of_fit(given | ({"processes": None} if dry_run else {}))
    first = options.processes is None or not options.processes.index
    with noted(options) if first else nullcontext():
        _fit(options, first, dry_run=dry_run, verbose=verbose, yes=yes)


def _fit(options: Any, first: bool, *, dry_run: bool, verbose: bool, yes: bool) -> None:
    """Fit the head, and print the outcome."""
    from dphead.cli.summary import outcome
    from dphead.fit.duration import LONG_SECONDS, missing_kernels, time_in_words
    from dphead.fit.run import fit_files

    fit: Any = None

    with shown("reading and checking rows", first) as progress:

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
            if fit.about.doubt:
                progress.say(section("Axes", [f"! {fit.about.doubt}"]))
            ask = options.processes is None and not yes and not dry_run
            ask_if_too_few(fit, options, progress, ask, dry_run or verbose)
            if dry_run:
                raise click.exceptions.Exit(0)
            offer_budget(fit, options, progress, ask)
            progress.begin("verifying sums, then charging")

        with budget_on_refusal(lambda: fit, options, progress, verbose):
            result = fit_files(options, announce, progress)
        if result["report"] is None:
            return
        progress.begin("computing the bound on attacks")
        text = outcome(options.out, result, fit.announced)
    click.echo(text)


def options_of_fit(given: dict[str, Any]) -> Any:
    """Return the command's `FitOptions`, with the typed settings of the method."""
    from dphead_extract.declared import made_from

    from dphead.fit.options import FitOptions
    from dphead.planning.methods import options
    from dphead.solvers.settings import given_once

    own = {one.name: given[one.name] for one, _ in options()}
    settings = given_once(own, given["settings"])
    return made_from(FitOptions, given, settings=settings)
