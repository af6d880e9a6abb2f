"""Implement `dphead account`: epsilon for a noise, or the noise for a budget.

It shows every accountant and needs no data.
"""

import math
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.account_text import print_found
from dphead.cli.choices import ACCOUNTANTS, METHODS, NamedPath
from dphead.cli.options import AS_JSON, GROUP_CAP, RELATION, SET
from dphead.cli.progress import shown

SIZES = ("n_rows", "n_features", "n_classes")
MOST_RUNS = 1_000_000  # upper bound of --select-mean; chosen, not measured
PATH = NamedPath(path_type=Path, dir_okay=False)


@click.command(short_help="Noise for a budget, or epsilon for a noise; needs no data.")
@click.option(
    "--epsilon",
    type=values.Number(infinite=True),
    help="Budget: print the noise multiplier that meets it.",
)
@click.option(
    "--noise-multiplier",
    type=values.NUMBER,
    help="Noise: print the epsilon that it costs.",
)
@click.option(
    "--delta",
    type=values.NUMBER,
    help="Less than 1 / (number of rows, or of groups); a preset may have one.",
)
@click.option(
    "--sampling-prob",
    type=values.NUMBER,
    help="Of a Poisson batch (default 1: full batch).",
)
@click.option(
    "--steps", type=values.WHOLE, help="Releases with this noise (default 1)."
)
@click.option(
    "--gaussian",
    type=values.NUMBER,
    multiple=True,
    help="A further full-batch release with this fixed noise multiplier.",
)
@click.option(
    "--shuffled-epochs",
    type=values.COUNT,
    help="Batches were shuffled, not sampled: epochs run.",
)
@RELATION
@GROUP_CAP
@click.option(
    "--accountant",
    type=ACCOUNTANTS,
    help="Meets the budget (default: auto, or the preset's).",
)
@click.option(
    "--method",
    type=METHODS,
    help="Show what this method would release for --epsilon.",
)
@click.option("--preset", help="With --method: a paper's settings.")
@click.option(
    "--n-rows",
    type=values.WHOLE,
    help="With --method: public number of rows, or a nominal one.",
)
@click.option("--n-features", type=values.WHOLE, help="With --method.")
@click.option("--n-classes", type=values.WHOLE, help="With --method.")
@SET
@click.option(
    "--select-mean",
    type=values.NUMBER,
    help="The above is one of a random number of runs; the best one is kept.",
)
@click.option(
    "--select-distribution",
    type=click.Choice(["geometric", "logarithmic", "poisson"]),
    default="geometric",
    show_default=True,
    help="Of the number of runs.",
)
@click.option("--plot", type=PATH, help="Draw the trade-off curve (png, svg or pdf).")
@AS_JSON
def account(as_json: bool, plot: Path | None, **given: Any) -> None:
    """Print epsilon under every accountant, side by side, and what any membership
    attack is limited to.

    A noise multiplier is the noise's standard deviation over the sensitivity: the
    relation's own for full batches, the clip norm for Poisson batches.

    \b
    dphead account --delta 1e-5 --noise-multiplier 5.67 --sampling-prob 0.16384 \\
      --steps 360 --gaussian 8 --gaussian 8
    dphead account --delta 1e-5 --epsilon 3 --sampling-prob 0.16384 --steps 360
    dphead account --delta 1e-5 --epsilon 1 --method dp-fc --n-rows 50000 \\
      --n-features 1280 --n-classes 10
    dphead account --delta 1e-5 --noise-multiplier 40 --steps 100 \\
      --gaussian 100 --select-mean 10
    """
    import json

    _check_together(given, plot)
    try:
        with shown("computing epsilon"):
            found, events = _account(given)
        if plot is not None:
            from dphead.analysis.plots import tradeoff_plot

            title = (
                f"ε = {found['epsilon']:.4g} at δ = {found['delta']:g}, "
                f"{found['relation']}"
            )
            tradeoff_plot(plot, events, found["relation"], title)
    except (ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(_plain(found), indent=2, allow_nan=False))
    else:
        print_found(found)


def _check_together(given: dict[str, Any], plot: Path | None) -> None:
    """Refuse options that contradict one another, or that say too little."""
    if (given["epsilon"] is None) == (given["noise_multiplier"] is None):
        raise click.UsageError(
            "Exactly one of --epsilon and --noise-multiplier must be given."
        )
    alone = ("noise_multiplier", "sampling_prob", "shuffled_epochs", "select_mean")
    with_method = [name for name in alone if given[name] is not None] + [
        "gaussian"
    ] * bool(given["gaussian"])
    missing = [name for name in SIZES if given[name] is None]
    extra = [name for name in (*SIZES, "preset") if given[name] is not None] + [
        "set"
    ] * bool(given["settings"])
    problem = ""
    if given["method"] is not None and (with_method or missing):
        problem = (
            f"--method must have {', '.join(SIZES)} and no other noise, got "
            f"missing={missing}, with {with_method}."
        )
    elif given["method"] is None and extra:
        problem = f"a method's settings must have --method, got {extra} without it."
    elif given["group_cap"] is not None and (
        given["shuffled_epochs"] or given["select_mean"] is not None
    ):
        problem = (
            "--group-cap must go without --shuffled-epochs and --select-mean, which "
            "count single rows."
        )
    elif given["select_mean"] is not None and (
        plot or given["shuffled_epochs"] or given["accountant"]
    ):
        problem = (
            "--select-mean must go without --plot, --shuffled-epochs and --accountant: "
            "it has bounds of its own."
        )
    elif given["delta"] is None and given["preset"] is None:
        problem = "--delta must be given where no --preset has one, got neither."
    if problem:
        raise click.UsageError(problem.replace("_", "-") + " Correct the options.")


def _account(given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return what is printed, and the events that it describes."""
    from dphead.analysis.profiles import PROFILES, all_outcomes, total_rho
    from dphead.analysis.tradeoff import (
        PLACES,
        REPORTED_RATES,
        comparisons,
        true_positive_rates,
    )
    from dphead.planning import presets
    from dphead.privacy import accounting

    given = given | {"delta": presets.delta_of(given["preset"], given["delta"])}
    if given["method"] is not None:
        found, events = _method(given)
    elif given["select_mean"] is not None:
        return _selection(given), []
    else:
        found, events = _releases(given)
    delta, relation = given["delta"], given["relation"]
    found |= {
        "relation": relation,
        "group_cap": given["group_cap"],
        "delta": delta,
        "mu": accounting.total_mu(events),
        "rho": total_rho(events),
        "profiles": {
            name: {
                "epsilon": outcome.epsilon,
                "reason": outcome.reason,
                "what": PROFILES[name][2],
            }
            for name, outcome in all_outcomes(events, delta, relation).items()
        },
        "tpr_at_fpr": {
            PLACES[replaced]: {
                f"{rate:g}": tpr
                for rate, tpr in zip(
                    REPORTED_RATES,
                    true_positive_rates(
                        events, REPORTED_RATES, relation, replaced=replaced
                    ).tolist(),
                    strict=True,
                )
            }
            for replaced in comparisons(relation)
        },
    }
    return found, events


def _releases(given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Account for equal releases with one noise, and further ones with their own."""
    from dataclasses import replace

    from dphead.analysis.profiles import shuffled_epsilon
    from dphead.planning.calibration import calibrate, epsilon_by

    delta, relation, accountant = (
        given["delta"],
        given["relation"],
        given["accountant"] or "auto",
    )
    events = _events(
        given, 1.0 if given["noise_multiplier"] is None else given["noise_multiplier"]
    )
    noise = given["noise_multiplier"]
    if noise is None:
        noise = calibrate(
            events, given["epsilon"], delta, relation, accountant, range(1, len(events))
        )
        events[0] = replace(events[0], noise_multiplier=noise)
    found: dict[str, Any] = {
        "noise_multiplier": noise,
        "sampling_prob": events[0].sampling_prob,
        "steps": events[0].count,
        "gaussian": list(given["gaussian"]),
        "accountant": _named(accountant, events),
        "epsilon": epsilon_by(accountant, events, delta, relation),
    }
    if given["shuffled_epochs"] is not None:
        found["shuffled"] = shuffled_epsilon(
            noise, given["shuffled_epochs"], delta, relation, events[1:]
        )._asdict()
        found["shuffled"]["poisson_convention"] = (
            found["epsilon"] if events[0].sampling_prob < 1 else None
        )
    return found, events


def _events(given: dict[str, Any], noise: float) -> list[Any]:
    from dphead.privacy.accounting import GaussianEvent

    prob = 1.0 if given["sampling_prob"] is None else given["sampling_prob"]
    steps = 1 if given["steps"] is None else given["steps"]
    unit = given["group_cap"] or 1
    return [
        GaussianEvent(noise, prob, steps, unit),
        *(GaussianEvent(s, rows_per_unit=unit) for s in given["gaussian"]),
    ]


def _method(given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Account for a method's plan, as `dphead fit` would charge it.

    One accountant, the preset's or the user's, solves for the noise. The tightest one
    computes epsilon.
    """
    from dphead.planning.methods import make_method
    from dphead.planning.plan import (
        ProblemInfo,
        check_facts,
        large_delta,
        make_plan,
    )

    facts = ProblemInfo(given["n_rows"], given["n_features"], given["n_classes"])
    check_facts(facts)
    settings = given["settings"] | (
        {} if given["steps"] is None else {"steps": given["steps"]}
    )
    method = make_method(given["method"], facts, settings, given["preset"])
    plan = make_plan(
        method.solver,
        facts,
        epsilon=given["epsilon"],
        delta=given["delta"],
        relation=given["relation"],
        accountant=given["accountant"] or method.accountant,
        group_cap=given["group_cap"],
    )
    events = plan.events()
    found = {name: given[name] for name in ("method", "preset", *SIZES)} | {
        "source": method.source,
        "releases": plan.summary(),
        "solved_for": {
            "epsilon": plan.cost(events),
            "accountant": _named(plan.accountant, events),
        },
        "epsilon": plan.epsilon_spent(),
        "accountant": _named("auto", events),
        "warning": large_delta(plan.epsilon, plan.delta, facts.n_rows, plan.group_cap),
    }
    return found, events


def _named(accountant: str, events: list[Any]) -> str:
    """Return the accountant that "auto" stands for.

    It is "exact", or "pld" if rows are sampled.
    """
    from dphead.privacy.accounting import total_mu

    if accountant != "auto":
        return accountant
    return "pld" if total_mu(events) is None else "exact"


def _selection(given: dict[str, Any]) -> dict[str, Any]:
    """Return the total cost of keeping the best of a random number of runs.

    A budget scales the noise that was not fixed.
    """
    from dphead.analysis.selection import SHAPES, selection_calibrate, selection_epsilon
    from dphead.privacy import accounting

    mean, shape = given["select_mean"], SHAPES[given["select_distribution"]]
    if mean > MOST_RUNS:
        raise ValueError(
            f"--select-mean must be at most {MOST_RUNS:,}, got {mean:g}. Choose fewer "
            "runs."
        )
    delta, relation, noise = (
        given["delta"],
        given["relation"],
        given["noise_multiplier"],
    )
    if noise is None:
        trial, held = _events(given, 1.0), range(1, 1 + len(given["gaussian"]))
        noise = selection_calibrate(
            trial, mean, given["epsilon"], delta, shape, relation, held
        )
    trial = _events(given, noise)
    each = math.ceil(mean)
    return {
        "noise_multiplier": noise,
        "sampling_prob": trial[0].sampling_prob,
        "steps": trial[0].count,
        "gaussian": list(given["gaussian"]),
        "relation": relation,
        "delta": delta,
        "accountant": "auto",
        "epsilon": selection_epsilon(trial, mean, delta, shape, relation),
        "mu": None,
        "select_mean": mean,
        "select_distribution": given["select_distribution"],
        "every_run": {
            "runs": each,
            "epsilon": accounting.compose_epsilon(trial * each, delta, relation),
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return (
        str(value) if isinstance(value, float) and not math.isfinite(value) else value
    )
