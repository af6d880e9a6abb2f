"""Implement `dphead plan`: forecast accuracy, or check several fits on a budget.

A forecast needs rows declared public, because nothing is charged. The check of a budget
uses no row.
"""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from dphead_extract.numerals import separated

from dphead.cli import values
from dphead.cli.budget import budget_lines
from dphead.cli.command import WithOptions
from dphead.cli.options import AS_JSON, PUBLIC_ROWS
from dphead.cli.progress import shown
from dphead.cli.text import INDENT, percent, print_json, say, table, tied
from dphead.privacy.rounding import as_declared, percent_up, spent_at

_BAR = 24  # columns of a bar at 100 % accuracy; chosen


_OF_FITS = ("protect", "ledger")  # options that only --fits uses


@click.command(
    cls=WithOptions,
    declared="dphead.fit.options:FitOptions",
    names=(
        "features",
        "delta",
        "relation",
        "group_cap",
        "method",
        "preset",
        "settings",
        *_OF_FITS,
    ),
    texts={
        "ledger": "With --fits: ledger with the budget, a file or a team's "
        "postgresql:// URL. Default: DPHEAD_LEDGER, else the data set's own file in "
        "DPHEAD_HOME."
    },
)
@PUBLIC_ROWS
@click.option(
    "--split", help="Split of FEATURES to use. Required if FEATURES has several splits."
)
@click.option(
    "--n-rows",
    type=values.NATURAL,
    help="Number of private images in the planned fit. The number must be public. "
    "--fits needs it under --relation add_remove only.",
)
@click.option(
    "--fits",
    type=values.MANY,
    help="Instead of a forecast, print whether the budget of FEATURES allows all of "
    "these fits together: this number at each --epsilon.",
)
@click.option(
    "--epsilon",
    "epsilons",
    metavar="E1,E2,...",
    callback=values.read_by(
        separated(float, 0, "numbers: 0.5,1,2 (each a number from 0 to 1e15)")
    ),
    help="Epsilons to compare, separated by commas. Default: 0.1,0.5,1,2,4,8, or 1 "
    "with --fits.",
)
@click.option(
    "--draws",
    type=values.MANY,
    help="Number of random splits and noise draws for each epsilon. Default: 3.",
)
@AS_JSON
def plan(
    features: Path,
    fits: int | None,
    public_rows: bool,
    split: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Forecast accuracy at each epsilon, or check several fits on a budget.

    A forecast needs features of similar public images by the same backbone. Trial fits
    on FEATURES use the noise of a private fit on --n-rows images, and are measured on
    held-out images. With --fits, FEATURES is the private features file. The command
    then uses no image, and prints whether the budget of the data set's ledger, or of
    --ledger, allows all the fits. If the budget does not allow them, the exit code is
    1. Nothing is charged.

    \b
    dphead plan public.h5 --public-rows --n-rows 5000
    dphead plan private.h5 --epsilon 0.5 --fits 4
    """
    of_fits = {name: given.pop(name) for name in _OF_FITS}
    unused, todo = of_fits, "for --fits. Add --fits N, or drop"
    if fits is not None:
        unused = {"json": as_json, "draws": given["draws"], "public_rows": public_rows}
        if given["relation"] != "add_remove":
            unused["n_rows"] = given["n_rows"]
        todo = "for a forecast, without --fits. Drop"
    for name, value in unused.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is {todo} {option}.")
    asked = {name: value for name, value in given.items() if value is not None}
    if fits is not None:
        asked["nominal_n"] = asked.pop("n_rows", None)
        _check_budget(fits, asked | of_fits | {"features": features, "split": split})
        return
    if "n_rows" not in asked:
        raise click.UsageError(
            "a forecast needs --n-rows, the number of private images, which must be "
            "public. Add it, or type --fits N to check a budget."
        )

    from dphead.fit.forecast import Question, forecast, open_look_alike
    from dphead.planning.plan import Target
    from dphead.planning.worth import about_noise
    from dphead.solvers.base import ProblemInfo

    question = Question(**asked)
    with shown("reading public rows") as progress:
        rows, charged = open_look_alike(features, split, public_rows)
        progress.begin("fitting on public rows")
        found = forecast(rows, question, progress)
    if as_json:
        print_json(found.as_data())
        return
    n, width = rows.x.shape
    public = f"{features}: {n:,} rows x {width:,} features, {rows.n_classes} classes"
    say("Public", f"{public}, declared public: nothing is charged")
    say("Forecast", _asked(found))
    click.echo(_table(found))
    say("Enough", _enough(found), *_reservations(found, charged))
    target = Target(
        found.enough.epsilon,
        question.delta or 0,
        question.relation,
        group_cap=question.group_cap,
    )
    facts = ProblemInfo(question.n_rows, width, rows.n_classes)
    say("Noise", *about_noise(target, facts, "image"))
    epsilon, delta = as_declared(target.epsilon), as_declared(target.delta)
    say(
        "Next",
        "before the first private fit, set a budget for all fits:",
        f"dphead ledger budget PRIVATE.h5 --epsilon {epsilon} --delta {delta}",
    )


def _check_budget(fits: int, asked: dict[str, Any]) -> None:
    """Print whether a data set's budget allows several fits at each epsilon.

    Raises SystemExit with code 1 if it does not.
    """
    from dphead_extract.declared import made_from

    from dphead.fit.options import FitOptions
    from dphead.fit.run import plan_fits
    from dphead.planning.worth import about_noise

    epsilons = [e for e in asked.get("epsilons", (1.0,)) for _ in range(fits)]
    options = made_from(FitOptions, asked, out=Path(os.devnull))
    totals, tried, plans = plan_fits(options, epsilons)
    each = ", ".join(map(as_declared, plans))
    n = len(epsilons)
    total = tied(spent_at(tried.spent.epsilon, totals["delta"]))
    delta = tied(f"delta {as_declared(options.delta or 0)}")
    lines = [f"{n} fit{'s' if n != 1 else ''} at epsilon {each} and {delta}"]
    if tried.refused is None:
        lines.append(f"the ledger takes all of them, for a total of {total}")
    else:
        lines += [
            f"! The ledger refuses fit {tried.refused + 1} of {n}. The total before "
            f"that fit is {total}",
            f"! {tried.reason}",
        ]
    say("Planned", *lines)
    say("Budget", *budget_lines(totals, options.delta or 0))
    for epsilon, one in plans.items():
        worth, *helps = about_noise(one, one.facts, "row")
        say("Noise", f"at epsilon {as_declared(epsilon)}: {worth}", *helps)
    if tried.refused is not None:
        raise SystemExit(1)


def _asked(found: Any) -> str:
    """Describe the private fit of the forecast."""
    q = found.question
    delta = tied(f"delta {as_declared(q.delta)}")
    draws = f"mean ± sd of {q.draws} draws" if q.draws > 1 else "one draw"
    return (
        f"{q.method} on {q.n_rows:,} private rows, {delta} for {found.unit} "
        f"({q.relation}); {draws}, measured on {found.n_held_out:,} held-out rows"
    )


def _table(found: Any) -> str:
    """Return a table with one line for each epsilon, and a line without noise."""
    from rich.bar import Bar

    rows = []
    for point in (*found.points, found.ceiling):
        spread = "" if point.sd is None else f" ± {100 * point.sd:.1f}"
        first, last = "no noise", ""
        if point is not found.ceiling:
            first = as_declared(point.epsilon)
            last = percent_up(next(iter(point.detected.values())))
        accuracy = f"{100 * point.accuracy:.1f}{spread} %"
        rows.append((first, accuracy, Bar(1, 0, point.accuracy, width=_BAR), last))
    shown = table((">epsilon", ">accuracy", "0 to 100 %", ">detected"), rows)
    return f"\n{textwrap.indent(shown, ' ' * INDENT)}\n"


def _enough(found: Any) -> str:
    """State the smallest epsilon that is good enough, and its bound on attacks.

    Its accuracy is within one percentage point of the best.
    """
    from dphead.analysis.tradeoff import detection

    best, enough = found.best, found.enough
    why = f"the smallest within one point of the best ({percent(best.accuracy, 1)})"
    if enough is best:
        why = "the best; no smaller epsilon comes within one point"
    unit = "image" if found.question.group_cap is None else "person"
    return (
        f"epsilon {as_declared(enough.epsilon)} with {percent(enough.accuracy, 1)}: "
        f"{why}. {detection(enough.detected, 'that head', unit)}"
    )


def _reservations(found: Any, charged: list[Any]) -> Iterator[str]:
    """Yield warnings; `charged` are ledgers with fits on the same images."""
    from dphead.planning.plan import large_delta

    q = found.question
    yield "! The forecast holds only if the public rows resemble yours."
    if found.n_train < q.n_rows:
        yield (
            f"! The forecast used {found.n_train:,} public rows in place of "
            f"{q.n_rows:,}, with the noise of {q.n_rows:,}. A head trained on more "
            "rows generalizes better. Expect a higher accuracy at the larger epsilons."
        )
    warning = large_delta(max(q.epsilons), q.delta, q.n_rows, q.group_cap)
    if warning is not None:
        yield f"! {warning}"
    for one in charged:
        yield f"! If these rows are private, stop. The output is not charged to {one}."
