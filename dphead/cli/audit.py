"""Implement `dphead audit`, which attacks a method to bound epsilon from below."""

from pathlib import Path
from typing import Any

import click
from dphead_extract.numerals import map_shape

from dphead.cli import values
from dphead.cli.command import WithSettings
from dphead.cli.progress import shown
from dphead.cli.text import filled, table, tied
from dphead.privacy.rounding import rounded_down, rounded_up


@click.command(
    cls=WithSettings,
    declared="dphead.fit.options:FitOptions",
    names=("delta", "relation", "group_cap", "preset"),
)
@click.option("--method", type=values.METHODS, default="dp-fc", help="Method to audit.")
@click.option(
    "--network",
    help="Audit the training of this network, such as wrn-16-4, instead of a head. "
    "Needs --shape. `dphead finetune --help` describes the names under --model.",
)
@click.option(
    "--shape",
    callback=lambda _, __, text: text and map_shape(text),
    help="Shape CHANNELS,H,W of the synthetic images for --network.",
)
@click.option(
    "--epsilon",
    type=values.NUMBER,
    default=1.0,
    help="Claimed epsilon to audit.",
)
@click.option(
    "--n-rows", type=values.Whole(2), required=True, help="Number of synthetic rows."
)
@click.option(
    "--n-features", type=values.NATURAL, required=True, help="Number of features."
)
@click.option(
    "--n-classes", type=values.Whole(2), required=True, help="Number of classes."
)
@click.option(
    "--fits",
    type=values.NATURAL,
    default=1000,
    help="Number of fits with the canary, and also without it.",
)
@click.option(
    "--confidence",
    type=values.Number(0.51, 0.999999),
    default=0.9999,
    help="Joint confidence of the bounds, and also of the noise tests.",
)
@click.option(
    "-o", "--output", "out", type=values.PATH, help="Folder to write audit.json to."
)
@click.option(
    "--sampling",
    type=click.Choice(["poisson", "allocation"]),
    default="poisson",
    help="Sampling of batches for --network.",
)
def audit(out: Path | None, fits: int, **given: Any) -> None:
    """Run a method many times with and without worst-case canaries, and test its claim.

    Audits use the same releases and noise as `dphead fit`. Nothing is charged, because
    rows are synthetic. The auditor knows the rows, so it tests the distribution of all
    noise and samples. It bounds epsilon and mu from below and recomputes the claimed
    epsilon. Exit code 1: a bound exceeds the claim, a test fails, the claim is too
    small, or the canary moves a sum by more than its sensitivity.

    \b
    dphead audit --method dp-ls --epsilon 8 --n-rows 64 --n-features 4 \\
      --n-classes 2 --fits 100000 -o audit/
    """
    import json

    from dphead.privacy.atomic_write import write_text

    with shown("auditing") as progress:
        result = _audit(fits, lambda done: progress(done, fits, "fits"), **given)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "audit.json", json.dumps(result, indent=2) + "\n")
    _print(result)
    if out is not None:
        click.echo(f"{out}: audit.json")
    if not result["passed"]:
        raise click.exceptions.Exit(1)


def _audit(fits: int, progress: Any, **given: Any) -> dict[str, Any]:
    """Run the audit, and return its results. The remaining options are settings."""
    from dphead.analysis.audit import attack
    from dphead.analysis.audit_transcript import worst_cases
    from dphead.planning import presets
    from dphead.planning.plan import ProblemInfo, make_plan

    def taken(*names: str) -> dict[str, Any]:
        return {name: given.pop(name) for name in names}

    confidence = given.pop("confidence")
    budget = taken("epsilon", "delta", "relation", "group_cap")
    budget["delta"] = presets.delta_of(given["preset"], budget["delta"])
    sizes = taken("n_rows", "n_features", "n_classes")
    facts = ProblemInfo(**sizes)
    name, made = _made(facts, **given)
    plan = make_plan(made.solver, facts, accountant=made.accountant, **budget)
    problems = worst_cases(facts, plan, fits)
    found = attack(
        made.solver, plan, problems, fits, confidence=confidence, progress=progress
    )
    settings = {"method": name, "solver": repr(made.solver), **sizes}
    return settings | {"group_cap": budget["group_cap"]} | found


def _made(
    facts: Any,
    method: str,
    network: str | None,
    shape: tuple[int, int, int] | None,
    preset: str | None,
    sampling: str,
    **settings: Any,
) -> tuple[str, Any]:
    """Return the name and the method: a head's, or the training of `network`."""
    from dphead.planning.methods import Method, make_method

    if network is None:
        if sampling != "poisson":
            raise ValueError(
                f"`--sampling {sampling}` needs `--network`, got `--method {method}`. "
                "Remove `--sampling`."
            )
        return method, make_method(method, facts, settings, preset)
    from dphead.finetune.audit import audited

    made: dict[str, Any] = {k: v for k, v in settings.items() if v is not None}
    unknown = set(made) - {"steps", "clip_norm", "batch_size", "momentum"}
    if preset is not None or unknown:
        names = sorted(unknown | ({"preset"} if preset else set()))
        options = ", ".join(f"`--{name.replace('_', '-')}`" for name in names)
        raise ValueError(f"`--network` cannot be combined with {options}. Remove them.")
    if shape is None:
        raise ValueError("`--network` needs `--shape`. Add `--shape CHANNELS,H,W`.")
    batch = min(facts.n_rows, made.pop("batch_size", facts.n_rows))
    if sampling == "allocation":
        made["epoch_steps"] = round(facts.n_rows / batch)
    else:
        made["sampling_prob"] = batch / facts.n_rows
    solver: Any = audited(network, shape, facts, **({"steps": 1} | made))
    return f"network {network}", Method(solver, "auto", "De22")


def _print(r: dict[str, Any]) -> None:
    best, claim, laws = r["ceilings"], r["epsilon"], r["laws"]
    click.echo(
        f"{r['method']}, {r['fits_in_each_world']:,} fits with a canary and as many "
        f"without, {r['canaries_tried']} canaries"
    )
    lines = [  # name, key, claimed
        ("epsilon at least", "epsilon_lower_bound", claim),
        ("mu at least", "mu_lower_bound", r["mu"]),
        ("epsilon of that mu", "epsilon_from_mu", claim),
        ("advantage", "advantage", None),
        ("the canary's own mu", "canary_mu", r["mu"]),
        ("epsilon of the canary's mu", "canary_epsilon", claim),
        ("epsilon, recomputed", "recomputed_epsilon", claim),
    ]
    rows = []
    for name, key, claimed in lines:
        # bounds from below are rounded down, costs and claims up
        bound = rounded_up if key == "recomputed_epsilon" else rounded_down
        numbers = (bound, r[key]), (bound, best.get(key)), (rounded_up, claimed)
        rows.append([name, *("-" if v is None else to(v) for to, v in numbers)])
    click.echo(table(("", ">measured", ">perfect attack", ">claim"), rows))
    texts = [
        f"{laws['tests']} tests of noise, samples and sums: {len(laws['failed'])} "
        f"failed (smallest p-value {laws['least_p']:.2g}, {laws['least']}; a test "
        f"fails below {laws['level']:.1g})"
    ]
    for test in laws["failed"]:
        texts.append(f"FAILED: {test['name']}, {test['about']}: {test['measured']}")
    odds = 2 * (1 - r["confidence"])  # one share for the bounds and one for the tests
    verdict = "passed: no bound exceeds the claim, no test fails"
    if not r["passed"]:
        failed = "a bound exceeds the claim" if laws["passed"] else laws["least"]
        verdict = f"FAILED: {failed}"
    fails = tied(f"probability at most {odds:.1g}")
    texts.append(f"{verdict} (a correct method fails with {fails})")
    for text in texts:
        click.echo(filled(text))
