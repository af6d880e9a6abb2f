"""Implement `dphead account`, which computes epsilon or noise without data.

The output has the result of every accountant.
"""

from collections.abc import Collection
from typing import Any

import click

from dphead.cli import values
from dphead.cli.command import WithOptions
from dphead.cli.options import AS_JSON, sizes
from dphead.cli.progress import shown
from dphead.cli.text import print_json, releases_table, table
from dphead.privacy.rounding import as_declared, percent_up, rounded_up

# options that describe noise without a method
_OF_NOISE = {
    "noise_multiplier",
    "sampling_prob",
    "gaussian",
}


@click.command(
    cls=WithOptions,
    declared="dphead.fit.options:FitOptions",
    names=("delta", "relation", "group_cap", "accountant", "preset", "settings"),
    texts={
        "delta": "Probability that the guarantee fails, below 1/n for n images or "
        "groups. Required without --preset. Default: the delta of --preset.",
        "accountant": "Accountant that calibrates the noise or computes epsilon. "
        "Default: the accountant of --method, else auto.",
    },
)
@click.option(
    "--epsilon",
    type=values.Number(infinite=True),
    help="Print the noise multiplier that meets this budget.",
)
@click.option(
    "--noise-multiplier",
    type=values.NUMBER,
    help="Print the epsilon of this noise multiplier.",
)
@click.option(
    "--sampling-prob",
    type=values.NUMBER,
    help="Sampling rate of Poisson batches (default 1: full batches).",
)
@click.option(
    "--steps",
    type=values.Whole(),
    help="Number of releases with this noise (default 1). With --method, this is the "
    "method's setting `steps`.",
)
@click.option(
    "--gaussian",
    type=values.NUMBER,
    multiple=True,
    help="Add a full-batch release with this fixed noise multiplier.",
)
@click.option(
    "--method",
    type=values.KeptChoice("dphead.planning.registry:method_names"),
    help="Show the planned releases of this method for --epsilon.",
)
@sizes("that --method plans for. They are public.", required=False)
@AS_JSON
def account(as_json: bool, **given: Any) -> None:
    """Print epsilon by every accountant, and bounds on membership-inference attacks.

    The noise multiplier is the noise's standard deviation divided by the sensitivity.
    For full batches, the sensitivity depends on the neighboring relation. For Poisson
    batches, the sensitivity is the clip norm.

    \b
    dphead account --delta 1e-5 --noise-multiplier 5.67 --sampling-prob 0.16384 \\
      --steps 360 --gaussian 8 --gaussian 8
    dphead account --delta 1e-5 --epsilon 3 --sampling-prob 0.16384 --steps 360
    dphead account --delta 1e-5 --epsilon 1 --method dp-fc \\
      --sizes 50000,1280,10
    """
    _check_together(given)
    with shown("computing epsilon"):
        found = _account(given)
    if as_json:
        print_json(found)
        return
    if "releases" in found:
        title = f"{found['method']} would release ({found['source']})"
        click.echo(releases_table(found["releases"], title))
        if found["warning"]:
            click.echo(f"warning: {found['warning']}")
    else:
        _print_noise(found)
    _print_cost(found)
    _print_profiles(found)


def _check_together(given: dict[str, Any]) -> None:
    """Raise an error for options that contradict each other or are incomplete."""
    has = {name for name, value in given.items() if value not in (None, (), {})}
    if (count := len(has & {"epsilon", "noise_multiplier"})) != 1:
        raise click.UsageError(
            "type exactly one of --epsilon and --noise-multiplier, got "
            f"{'both' if count else 'neither'}."
        )
    if "method" in has:
        _refuse("--method needs", {"sizes"} - has, "Add --sizes 50000,1280,10")
        todo = "With --method, type only the budget, as --epsilon"
        _refuse("--method cannot be combined with", has & _OF_NOISE, todo)
    else:
        own = has & {"sizes", "preset", "settings"}
        _refuse("these options need --method:", own, "Add --method or remove them")
    if not has & {"delta", "preset"}:
        raise click.UsageError(
            "--delta is required without --preset. Type a value below 1/n, such as "
            "--delta 1e-5."
        )


def _refuse(problem: str, named: Collection[str], todo: str) -> None:
    """Raise an error with an action if any options are `named`."""
    if named:
        options = ("set" if name == "settings" else name for name in sorted(named))
        names = ", ".join(f"--{name}".replace("_", "-") for name in options)
        raise click.UsageError(f"{problem} {names}. {todo}.")


def _account(given: dict[str, Any]) -> dict[str, Any]:
    """Return the results to print."""
    from dphead.analysis.profiles import PROFILES, profile_epsilon
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
    else:
        found, events = _releases(given)
    delta, relation = given["delta"], given["relation"]
    mu = accounting.total_mu(events)
    profiles = {
        name: profile_epsilon(name, events, delta, relation)._asdict() | {"what": what}
        for name, (*_, what) in PROFILES.items()
    }
    limits = {}
    for replaced in comparisons(relation):
        rates = true_positive_rates(events, REPORTED_RATES, relation, replaced=replaced)
        named = [f"{rate:g}" for rate in REPORTED_RATES]
        limits[PLACES[replaced]] = dict(zip(named, rates.tolist(), strict=True))
    return found | {
        "relation": relation,
        "group_cap": given["group_cap"],
        "delta": delta,
        "mu": mu,
        "rho": None if mu is None else mu * mu / 2,
        "profiles": profiles,
        "tpr_at_fpr": limits,
    }


def _releases(given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the results and the events of the typed releases.

    They are equal releases, and further ones with their own noise.
    """
    from dataclasses import replace

    from dphead.planning.calibration import calibrate, epsilon_by
    from dphead.privacy.accounting import GaussianEvent

    delta, relation = given["delta"], given["relation"]
    accountant = given["accountant"] or "auto"
    unit = given["group_cap"] or 1
    own: dict[str, Any] = {"noise_multiplier": 1.0, "sampling_prob": 1.0, "steps": 1}
    own |= {name: given[name] for name in own if given[name] is not None}
    noise, prob, steps = own.values()
    events = [GaussianEvent(noise, prob, steps, unit)]
    events += [GaussianEvent(s, rows_per_unit=unit) for s in given["gaussian"]]
    if given["noise_multiplier"] is None:
        budget, fixed = given["epsilon"], range(1, len(events))
        noise = calibrate(events, budget, delta, relation, accountant, fixed)
        events[0] = replace(events[0], noise_multiplier=noise)
        own["noise_multiplier"] = noise
    found = own | {
        "gaussian": list(given["gaussian"]),
        "accountant": _named(accountant, events),
        "epsilon": epsilon_by(accountant, events, delta, relation),
    }
    return found, events


def _method(given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the results and the events of a method's plan, as `dphead fit` charges it.

    The preset's or the user's accountant calibrates the noise. The tightest accountant
    computes epsilon.
    """
    from dphead.planning.methods import make_method
    from dphead.planning.plan import (
        ProblemInfo,
        check_facts,
        large_delta,
        make_plan,
    )

    facts = ProblemInfo(*given["sizes"])
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
    names = ("n_rows", "n_features", "n_classes")
    found = dict(zip(names, given["sizes"], strict=True)) | {
        "method": given["method"],
        "preset": given["preset"],
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
    """Return the name of an accountant, with "auto" replaced by the one in use.

    This is "exact", or "pld" if batches are sampled.
    """
    from dphead.privacy.accounting import total_mu

    if accountant != "auto":
        return accountant
    return "pld" if total_mu(events) is None else "exact"


def _print_noise(found: dict[str, Any]) -> None:
    """Print the given releases and their noise."""
    batch = (
        "full batch"
        if found["sampling_prob"] == 1
        else f"Poisson batches, q = {found['sampling_prob']:g}"
    )
    click.echo(
        f"noise multiplier  {rounded_up(found['noise_multiplier'], 6)}  "
        f"({found['steps']} release{'s' if found['steps'] != 1 else ''}, {batch})"
    )
    for sigma in found["gaussian"]:
        click.echo(
            f"and one full-batch release with noise multiplier {as_declared(sigma)}"
        )


def _print_cost(found: dict[str, Any]) -> None:
    """Print epsilon, mu, and the upper bound on any attack."""
    from dphead.analysis.tradeoff import PLACES, alternative

    cap = found["group_cap"]
    groups = f", for groups of at most {cap} used rows" if cap else ""
    click.echo(
        f"epsilon  {rounded_up(found['epsilon'], 6)}  at delta "
        f"{as_declared(found['delta'])}, {found['relation']}, "
        f"{found['accountant']}{groups}"
    )
    solved = found.get("solved_for")
    if solved is not None and solved["accountant"] != found["accountant"]:
        click.echo(
            f"epsilon  {rounded_up(solved['epsilon'], 6)}  by "
            f"{solved['accountant']}, the accountant that calibrated the noise"
        )
    if found["mu"] is not None:
        click.echo(
            f"mu  {rounded_up(found['mu'], 6)}   rho  {rounded_up(found['rho'], 6)}"
        )
    for place, rates in found["tpr_at_fpr"].items():
        limits = [
            f"{percent_up(tpr)} at FPR {100 * float(fpr):g} %"
            for fpr, tpr in rates.items()
        ]
        click.echo(
            "upper bound on any attack's TPR, compared with a fit "
            f"{alternative(place == PLACES[True], 'group' if cap else 'row')}\n"
            f"  {', '.join(limits)}"
        )


def _print_profiles(found: dict[str, Any]) -> None:
    """Print epsilon by every accountant."""
    rows = []
    for name, row in found["profiles"].items():
        number = "-" if row["epsilon"] is None else rounded_up(row["epsilon"])
        refused = row["reason"] and f"does not apply: {row['reason']}"
        rows.append((name, number, refused or row["what"]))
    click.echo(table(("accountant", ">epsilon", "what it is"), rows))
