"""Print the next step for a features file, its problems, or why it is unusable.

Problems are private and go to standard error. Heavy modules are imported only when
needed.
"""

import shlex
from collections import Counter
from pathlib import Path

import click

from dphead.cli.text import section


class Unusable(click.ClickException):
    """Refuse unusable input in one line with an action."""

    exit_code = 2

    def __init__(self, error: Exception):
        super().__init__(" ".join(str(error).split()))


def print_budget(features: Path) -> None:
    """Print the next commands: set a budget, if no ledger exists yet, and fit.

    A budget can be set only before the first fit.
    """
    from dphead_extract.features.format import open_features

    from dphead.fit.ledgers import default_ledger_path

    with open_features(features) as file:
        splits, grouped = file.split_names, file.group is not None
        begun = default_ledger_path(file.dataset_id).exists()
    split = " --split train" if len(splits) > 1 else ""
    split += " --test-split test" if splits == ["train", "test"] else ""
    name = shlex.quote(str(features))
    # `fit` refuses a source with groups until the user decides; this cap is an example
    cap = " --group-cap 4" if grouped else ""
    lines = [f"dphead fit {name}{split} --epsilon 1{cap} -o run"]
    if not begun:
        lines = [
            "before the first fit, set a budget for all fits:",
            f"dphead ledger budget {name} --epsilon 3 --delta 1e-5",
            *lines,
        ]
    click.echo(section("Next", lines))


_SHOWN_REASONS = 8  # number of most frequent reasons shown; chosen


def print_left_out(left_out: Counter[str]) -> None:
    """Print how many source items were left out, by reason."""
    reasons = (+left_out).most_common()  # those that occur
    if not reasons:
        click.echo(section("Left out", ["nothing"]))
        return
    lines = [f"{count:,} {reason}" for reason, count in reasons[:_SHOWN_REASONS]]
    if rest := sum(count for _, count in reasons[_SHOWN_REASONS:]):
        lines.append(f"{rest:,} for other reasons")
    title = "private, for the data holder only:"
    click.echo(section("Left out", [title, *lines]), err=True)


def print_problems(problems: list[str]) -> None:
    """Print one line per problem on standard error; "none found" is not private."""
    if not problems:
        click.echo(section("Problems", ["none found"]))
        return
    title = "private, for the data holder only:"
    click.echo(section("Problems", [title]), err=True)
    for problem in problems:
        click.echo(section("", [f"! {problem}"]), err=True)
