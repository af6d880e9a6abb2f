"""Implement `dphead audit`, which attacks a method to bound epsilon from below.

Rows are synthetic or declared public. Private rows must not be audited.
"""

from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.choices import METHODS, PATH, WithSettings
from dphead.cli.options import DELTA, GROUP_CAP, PUBLIC_ROWS, RELATION
from dphead.cli.paths import check_there
from dphead.cli.progress import shown
from dphead.cli.text import filled, table, tied


@click.command(cls=WithSettings)
@click.option("--method", type=METHODS, default="dp-fc", show_default=True)
@click.option(
    "--network",
    help=(
        "Audit training of this network (see --model of finetune) instead. Needs "
        "--shape."
    ),
)
@click.option(
    "--shape",
    callback=values.map_shape,
    help=("CHANNELS,H,W of the images for --network."),
)
@click.option(
    "--epsilon",
    type=values.NUMBER,
    default=1.0,
    show_default=True,
    help="Claimed epsilon to audit.",
)
@DELTA
@RELATION
@GROUP_CAP
@click.option("--n-rows", type=values.Whole(2), help="Number of synthetic rows.")
@click.option("--n-features", type=values.COUNT, help="Number of features.")
@click.option("--n-classes", type=values.Whole(2), help="Number of classes.")
@click.option(
    "--features",
    type=PATH,
    help="Use the rows of this features file. Needs --public-rows.",
)
@PUBLIC_ROWS
@click.option("--split", help="Split of --features, if it has several.")
@click.option(
    "--fits",
    type=values.COUNT,
    default=1000,
    show_default=True,
    help="Fits with the canary, and as many without it.",
)
@click.option(
    "--confidence",
    type=values.NUMBER,
    default=0.9999,
    show_default=True,
    help="Joint confidence of the bounds, and joint confidence of the noise tests.",
)
@click.option("-o", "--output", "out", type=PATH, help="Folder to write audit.json to.")
@click.option(
    "--sampling",
    type=click.Choice(["poisson", "allocation"]),
    default="poisson",
    show_default=True,
    help="Batch sampling with --network, as for finetune.",
)
@click.option("--preset", help="Settings of a paper, as for fit.")
def audit(out: Path | None, **given: Any) -> None:
    """Run a method many times with and without worst-case canaries, and test its claim.

    Audits use the same releases and noise as `dphead fit`. Nothing is charged, because
    rows are synthetic or declared public. The auditor knows the rows, so it tests the
    distribution of all noise and samples. It bounds epsilon and mu from below and
    recomputes the claimed epsilon. Exit code 1: a bound exceeds the claim, a test
    fails, the claim is too small, or the canary moves a sum by more than its
    sensitivity.

    \b
    dphead audit --method dp-ls --epsilon 8 --n-rows 64 --n-features 4 \\
      --n-classes 2 --fits 100000 -o audit/
    """
    check_there("a features file", given["features"])

    import json

    from dphead.privacy.atomic_write import write_text

    fits = given["fits"]
    with shown("auditing") as progress:
        result = _audit(lambda done: progress(done, fits, "fits"), **given)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "audit.json", json.dumps(result, indent=2) + "\n")
    _print(result)
    if out is not None:
        click.echo(f"{out}: audit.json")
    if not result["passed"]:
        raise click.exceptions.Exit(1)


def _audit(progress: Any, **given: Any) -> dict[str, Any]:
    """Return the audit's findings for the command's options.

    Remaining options are settings of the method.
    """
    from dphead.analysis import audit as auditing
    from dphead.analysis.audit_transcript import with_public_rows, worst_cases
    from dphead.planning import presets
    from dphead.planning.plan import make_plan

    confidence = given.pop("confidence")
    if not 0.5 < confidence < 1:
        raise ValueError(
            f"confidence must lie in (0.5, 1), got {confidence=}. 0.9999 is usual."
        )
    budget = _taken(given, "epsilon", "delta", "relation", "group_cap")
    budget["delta"] = presets.delta_of(given["preset"], budget["delta"])
    fits = given.pop("fits")
    sizes = _taken(given, "n_rows", "n_features", "n_classes")
    facts, rows = _rows(sizes, **_taken(given, "features", "public_rows", "split"))
    name, made = _made(facts, given)
    plan = make_plan(made.solver, facts, accountant=made.accountant, **budget)
    told = {
        "method": name,
        "solver": repr(made.solver),
        "n_rows": facts.n_rows,
        "n_features": facts.n_features,
        "n_classes": facts.n_classes,
        "rows": "synthetic" if rows is None else "declared public",
        "group_cap": budget["group_cap"],
    }
    problems = worst_cases(facts, plan, fits)
    if rows is not None:
        problems = [with_public_rows(p, plan, *rows) for p in problems]
    found = auditing.attack(
        made.solver, plan, problems, fits, confidence=confidence, progress=progress
    )
    return told | found


def _taken(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Remove the named options from the given ones, and return them."""
    return {name: given.pop(name) for name in names}


def _made(facts: Any, given: dict[str, Any]) -> tuple[str, Any]:
    """Return (name, method), where the method may be the training of a network."""
    from dphead.planning.methods import make_method

    method, network, shape, preset = _taken(
        given, "method", "network", "shape", "preset"
    ).values()
    if network is not None:
        return f"network {network}", _network(network, shape, facts, preset, given)
    if given.pop("sampling") != "poisson":
        raise ValueError(
            f"--sampling allocation needs --network, got --method {method}. Add "
            "--network, or drop --sampling."
        )
    return method, make_method(method, facts, given, preset)


def _rows(
    sizes: dict[str, int | None],
    features: Path | None,
    public_rows: bool,
    split: str | None,
) -> tuple[Any, Any]:
    """Return (public facts, rows), from sizes or from a file declared public.

    Rows are (x, y), or None if only sizes are given.
    """
    from dphead.fit.files import load_features
    from dphead.planning.plan import ProblemInfo

    if features is None:
        known = [size for size in sizes.values() if size is not None]
        if len(known) < len(sizes):
            raise ValueError(
                f"an audit needs --n-rows, --n-features and --n-classes, got {sizes}. "
                "Pass the sizes of your data; the rows are synthetic."
            )
        return ProblemInfo(*known), None
    if not public_rows:
        raise ValueError(
            f"audited rows must be public or synthetic, got features={features} "
            "without --public-rows. Add --public-rows, or pass --n-rows, "
            "--n-features and --n-classes."
        )
    rows, file = load_features(features, split)
    classes = sizes["n_classes"] or len(file.class_names or [])
    return ProblemInfo(rows.n_rows, rows.n_features, classes), (
        rows.features(),
        rows.labels(),
    )


def _network(
    network: str,
    shape: tuple[int, int, int] | None,
    facts: Any,
    preset: str | None,
    rest: dict,
) -> Any:
    """Return the training of a network as a method, by default one step of De22.

    --steps sets another number of steps.
    """
    from dphead.finetune.audit import audited
    from dphead.planning.methods import Method

    allocation = rest.pop("sampling") == "allocation"
    given = {k: v for k, v in rest.items() if v is not None}
    if (
        preset is not None
        or shape is None
        or not set(given) <= {"steps", "clip_norm", "batch_size", "momentum"}
    ):
        raise ValueError(
            "an audit of a network takes --shape, --steps, --clip-norm, --batch-size, "
            f"--sampling and --momentum, got {given}, {shape=}, {preset=}. Leave the "
            "others out."
        )
    batch = min(facts.n_rows, given.pop("batch_size", facts.n_rows))
    if allocation:
        drawn: dict[str, Any] = {"epoch_steps": round(facts.n_rows / batch)}
    else:
        drawn = {"sampling_prob": batch / facts.n_rows}
    settings: dict[str, Any] = {"steps": 1} | drawn | given
    solver: Any = audited(network, shape, facts, **settings)
    return Method(solver, "auto", "De22")


def _print(r: dict[str, Any]) -> None:
    c, claim = r["ceilings"], r["epsilon"]
    click.echo(
        f"{r['method']}, {r['fits_in_each_world']:,} fits with a canary and as many "
        f"without, {r['canaries_tried']} canaries"
    )
    own = r["canary_mu"]["mean"]
    of_claim = c["advantage_of_epsilon_delta"]
    lines = [  # name, measured, of a perfect attack, claimed
        ("epsilon at least", r["epsilon_lower_bound"], c["epsilon_lower_bound"], claim),
        ("mu at least", r["mu_lower_bound"], c["mu_lower_bound"], r["mu"]),
        ("epsilon of that mu", r["epsilon_from_mu"], c["epsilon_from_mu"], claim),
        ("AUC", r["auc"], c["auc"], None),
        ("advantage", r["advantage"], c["advantage"], of_claim),
        ("the canary's own mu", own, None, r["mu"]),
        ("epsilon of the canary's mu", r["canary_epsilon"], None, claim),
    ]
    rows = []
    for name, *numbers in lines:
        rows.append([name, *("-" if v is None else f"{v:.4g}" for v in numbers)])
    click.echo(table(("", ">measured", ">perfect attack", ">claim"), rows))
    _print_laws(r)
    odds = 2 * (1 - r["confidence"])  # for the bounds and the laws
    fails = f"(a correct method fails with {tied(f'odds of at most {odds:.1g}')})"
    click.echo("\n".join(filled(f"{_verdict(r)} {fails}")))


def _print_laws(r: dict[str, Any]) -> None:
    """Print the recomputed claim, the tests, and the defects that need more fits."""
    laws = r["laws"]
    again = r["recomputed_epsilon"]
    shown = "not computed again" if again is None else f"{again:.6g}"
    lines = [
        f"epsilon computed again from the releases alone: {shown} "
        f"(claimed: {r['epsilon']:.6g})",
        f"{laws['tests']} laws of noise, samples and scores: "
        f"{len(laws['failed'])} broken (smallest p = {laws['least_p']:.2g}, "
        f"{laws['least']}; a law is broken below {laws['level']:.1g})",
    ]
    for law in laws["failed"]:
        lines.append(f"BROKEN: {law['name']}, {law['about']}: {law['measured']}")
    more = [n for n in r["needs"] if n["fits"] > r["fits_in_each_world"]]
    if more:
        named = "; ".join(f"{n['defect']} ({n['fits']:,})" for n in more)
        lines.append(
            "Not seen with so few fits, if one kind of release alone has it (fits "
            f"that it needs): {named}"
        )
    for line in lines:
        click.echo("\n".join(filled(line)))


def _verdict(r: dict[str, Any]) -> str:
    if r["passed"]:
        return "passed: no bound exceeds the claim, no law is broken"
    if not r["laws"]["passed"]:
        return f"FAILED: {r['laws']['least']}"
    return "FAILED: a bound exceeds the claim"
