"""Print the results of `dphead account`."""

from typing import Any

import click

from dphead.analysis.rounding import rounded_up
from dphead.cli.releases import releases_table
from dphead.cli.text import filled, table


def print_found(found: dict[str, Any]) -> None:
    """Print the noise or a method's releases, and their epsilon by every accountant."""
    if "releases" in found:
        _print_method(found)
    else:
        _print_noise(found)
    if "select_mean" in found:
        _print_selection(found)
    else:
        _print_cost(found)
        _print_profiles(found)


def _print_method(found: dict[str, Any]) -> None:
    """Print a method's releases."""
    title = f"{found['method']} would release ({found['source']})"
    click.echo(releases_table(found["releases"], title))
    if found["warning"]:
        click.echo(f"warning: {found['warning']}")


def _print_noise(found: dict[str, Any]) -> None:
    """Print the given releases and their noise."""
    batch = (
        "full batch"
        if found["sampling_prob"] == 1
        else f"Poisson batches, q = {found['sampling_prob']:g}"
    )
    click.echo(
        f"noise multiplier  {found['noise_multiplier']:.6g}  ({found['steps']} "
        f"release{'s' if found['steps'] != 1 else ''}, {batch})"
    )
    for sigma in found["gaussian"]:
        click.echo(f"and one full-batch release with noise multiplier {sigma:g}")


def _print_selection(found: dict[str, Any]) -> None:
    """Print the total epsilon of keeping the best of several runs."""
    text = (
        f"epsilon  {found['epsilon']:.6g}  at delta {found['delta']:g}, "
        f"{found['relation']}: the total of keeping the best of a secret "
        f"{found['select_distribution']} number of runs, {found['select_mean']:g} on "
        "average. Publish nothing else of these runs."
    )
    click.echo("\n".join(filled(text)))
    every = found["every_run"]
    text = f"{every['runs']} runs that all may leave: epsilon {every['epsilon']:.6g}"
    less = ", which is less" if every["epsilon"] < found["epsilon"] else ""
    click.echo(text + less)


def _print_cost(found: dict[str, Any]) -> None:
    """Print epsilon, mu, and the upper bound on any attack."""
    cap = found["group_cap"]
    groups = f", for groups of at most {cap} rows that count" if cap else ""
    click.echo(
        f"epsilon  {found['epsilon']:.6g}  at delta {found['delta']:g}, "
        f"{found['relation']}, {found['accountant']}{groups}"
    )
    solved = found.get("solved_for")
    if solved is not None and solved["accountant"] != found["accountant"]:
        click.echo(
            f"epsilon  {solved['epsilon']:.6g}  by {solved['accountant']}, which the "
            "noise was solved for"
        )
    if found["mu"] is not None:
        click.echo(f"mu  {found['mu']:.6g}   rho  {found['rho']:.6g}")
    for place, rates in found["tpr_at_fpr"].items():
        limits = [
            f"{rounded_up(100 * tpr)} % at FPR {100 * float(fpr):g} %"
            for fpr, tpr in rates.items()
        ]
        click.echo(
            f"any attack's TPR if an unused row {place} is at most\n"
            f"  {', '.join(limits)}"
        )


def _print_profiles(found: dict[str, Any]) -> None:
    """Print epsilon by every accountant, and the epsilon of shuffled batches."""
    rows = []
    for name, row in found["profiles"].items():
        number = "-" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        refused = row["reason"] and f"does not apply: {row['reason']}"
        rows.append((name, number, refused or row["what"]))
    click.echo(table(("accountant", ">epsilon", "what it is"), rows))
    if "shuffled" in found:
        shuffled = found["shuffled"]
        click.echo(
            f"shuffled batches  epsilon {shuffled['epsilon']:.4g}, mu "
            f"{shuffled['mu']:.4g}: the guarantee"
        )
        if shuffled["poisson_convention"] is not None:
            click.echo(
                f"Poisson's {shuffled['poisson_convention']:.4g} is a convention for "
                "them, not a guarantee"
            )
