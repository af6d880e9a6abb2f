"""Implement `dphead audit`, which attacks a method to bound epsilon from below."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.command import others, values_of
from dphead.cli.finetune import finetune, options_of_training
from dphead.cli.fit import fit, options_of_fit
from dphead.cli.options import sizes
from dphead.cli.progress import shown
from dphead.cli.text import filled, table, tied
from dphead.privacy.rounding import rounded_down, rounded_up


@click.command(context_settings={"ignore_unknown_options": True})
@others("fit")
@click.option(
    "--network",
    metavar="MODEL",
    help="Audit the training of this network, such as wrn-16-4, instead of a head. "
    "The other options are then those of `dphead finetune`. Needs --shape.",
)
@sizes("of the synthetic rows, at least 2, 1 and 2.")
@click.option(
    "--fits",
    type=values.NATURAL,
    default=1000,
    help="Number of fits with the canary. As many fits are without it.",
)
@click.option(
    "--confidence",
    type=values.Number(0.51, 0.999999),
    default=0.9999,
    help="Joint confidence of the bounds. All tests together have the same confidence.",
)
@click.option(
    "-o", "--output", "out", type=values.PATH, help="Folder to write audit.json to."
)
def audit(
    rest: tuple[str, ...],
    network: str | None,
    sizes: tuple[int, int, int],
    fits: int,
    confidence: float,
    out: Path | None,
) -> None:
    """Run a method many times with and without worst-case canaries, and test its claim.

    Describe the fit by the options of `dphead fit`, or by a run's run.toml (--config).
    Rows are synthetic, so no row is read and nothing is charged. Audits use the
    releases and the noise of a real fit. The auditor knows the rows, so it tests the
    distribution of all noise and samples. It bounds epsilon and mu from below and
    recomputes the claimed epsilon. Exit code 1: a bound exceeds the claim, a test
    fails, the claim is too small, or the canary moves a sum by more than its
    sensitivity.

    If the fit has a --batch-size, type its number of rows in --sizes: the sampling
    rate is the batch size, divided by the rows.

    \b
    dphead audit --method dp-ls --epsilon 8 --sizes 64,4,2 --fits 100000 \\
      -o audit/
    dphead audit --config run/run.toml --sizes 5000,4,2
    """
    import json

    from dphead.analysis.audit import attack
    from dphead.analysis.audit_transcript import worst_cases
    from dphead.planning.plan import ProblemInfo, make_plan
    from dphead.privacy.atomic_write import write_text

    facts = ProblemInfo(*sizes)
    if min(facts.n_rows, facts.n_classes) < 2:
        raise ValueError(
            f"--sizes {','.join(map(str, sizes))} has fewer than 2 rows or 2 classes. "
            "Type larger sizes, such as 64,4,2."
        )
    name, solver, target, seed, batch_size, facts = _made(facts, network, rest)
    plan = make_plan(solver, facts, **vars(target))
    sampled = not all(event.is_full for event in plan.events())
    problems = worst_cases(facts, plan, fits)
    with shown("auditing") as progress:
        found = attack(
            solver,
            plan,
            problems,
            fits,
            confidence=confidence,
            progress=lambda done: progress(done, fits, "fits"),
        )
    result = {
        "method": name,
        "solver": repr(solver),
        "n_rows": facts.n_rows,
        "n_features": facts.n_features,
        "n_classes": facts.n_classes,
        "group_cap": target.group_cap,
        **found,
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "audit.json", json.dumps(result, indent=2) + "\n")
    _print(result, "noise, samples and sums" if sampled else "noise and sums")
    if batch_size is not None and not sampled:
        click.echo(
            filled(
                f"! With a batch size of {batch_size:,}, each batch has all "
                f"{facts.n_rows:,} rows of --sizes. No sample is tested, and the claim "
                "is that of full batches. Type the number of rows of the fit in "
                "--sizes, which must be larger."
            )
        )
    if seed is not None:
        click.echo(
            filled(
                f"! The seed {seed} makes the noise of the fit known, so its epsilon "
                "is infinite. The audit is of the fit without the seed."
            )
        )
    if out is not None:
        click.echo(f"{out}: audit.json")
    if not result["passed"]:
        raise click.exceptions.Exit(1)


def _made(facts: Any, network: str | None, rest: tuple[str, ...]) -> tuple[Any, ...]:
    """Return name, solver, target, seed, batch size and sizes of the fit to audit.

    By default, a network is trained for one step, on all rows.
    """
    rest = (os.curdir, *rest)  # stands for FEATURES or IMAGES, which are not read
    if network is None:
        from dphead.planning.methods import make_method

        options = options_of_fit(values_of(fit, rest))
        if options.group_mean:  # the audited rows are a group's first ones
            raise ValueError(
                "an audit cannot use --group-mean, because it does not compute means. "
                "Drop --group-mean to audit the same method with each group's first "
                "rows."
            )
        made = make_method(options.method, facts, options.settings, options.preset)
        target = options.target(made.accountant, options.group_cap)
        batch_size = options.settings.get("batch_size")
        return options.method, made.solver, target, options.seed, batch_size, facts
    from dphead.finetune.audit import audited

    given = values_of(finetune, (*rest, "--model", network))
    if not (given["steps"] or given["epochs"]):
        given["steps"] = 1
    has_batches = given["batch_size"] or given["preset"]
    if not has_batches:
        given["batch_size"] = facts.n_rows
    options = options_of_training(given)
    if options.shape is None:
        raise ValueError("`--network` needs `--shape`. Add `--shape CHANNELS,H,W`.")
    batch_size = options.settings.batch_size
    used = min(batch_size or facts.n_rows, facts.n_rows)
    settings = replace(options.settings, batch_size=used)
    batch_size = batch_size if has_batches else None
    solver, facts = audited(settings, options.shape, facts, options.group_cap)
    target = options.target("auto", *options.groups)
    return f"network {network}", solver, target, options.seed, batch_size, facts


def _print(r: dict[str, Any], tested: str) -> None:
    """Print the results; `tested` says what the tests are of."""
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
        # round lower bounds down, and claims and recomputed epsilons up
        bound = rounded_up if key == "recomputed_epsilon" else rounded_down
        numbers = (bound, r[key]), (bound, best.get(key)), (rounded_up, claimed)
        rows.append([name, *("-" if v is None else to(v) for to, v in numbers)])
    click.echo(table(("", ">measured", ">perfect attack", ">claim"), rows))
    texts = [
        f"{laws['tests']} tests of {tested}: {len(laws['failed'])} failed (smallest "
        f"p-value {laws['least_p']:.2g}, {laws['least']}; a test fails below "
        f"{laws['level']:.1g})"
    ]
    for test in laws["failed"]:
        texts.append(f"FAILED: {test['name']}, {test['about']}: {test['measured']}")
    # bounds and tests each fail with a probability of at most 1 - confidence
    odds = 2 * (1 - r["confidence"])
    verdict = "passed: no bound exceeds the claim, no test fails"
    if not r["passed"]:
        failed = "a bound exceeds the claim" if laws["passed"] else laws["least"]
        verdict = f"FAILED: {failed}"
    fails = tied(f"probability at most {odds:.1g}")
    texts.append(f"{verdict} (a correct method fails with {fails})")
    for text in texts:
        click.echo(filled(text))
