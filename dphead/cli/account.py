"""`dphead account`: epsilon for a noise, or the noise for a budget, under every accountant. No data is needed."""

import math
from typing import Any

import click

RELATIONS = ("zero_out", "add_remove", "replace_one")
ACCOUNTANTS = ("auto", "exact", "pld", "rdp", "rdp-classic", "zcdp")


@click.command(short_help="Noise for a budget, or epsilon for a noise; needs no data.")
@click.option("--epsilon", type=float, help="Budget: print the noise multiplier that meets it.")
@click.option("--noise-multiplier", type=float, help="Noise: print the epsilon that it costs.")
@click.option("--delta", type=float, required=True, help="Less than 1 / (number of rows).")
@click.option(
    "--sampling-prob", type=float, default=1.0, show_default=True, help="Of a Poisson batch; 1 is full batch."
)
@click.option("--steps", type=click.IntRange(min=0), default=1, show_default=True, help="Releases with this noise.")
@click.option(
    "--gaussian", type=float, multiple=True, help="A further full-batch release with this fixed noise multiplier."
)
@click.option("--shuffled-epochs", type=click.IntRange(min=1), help="Batches were shuffled, not sampled: epochs run.")
@click.option("--relation", type=click.Choice(RELATIONS), default="zero_out", show_default=True)
@click.option(
    "--accountant", type=click.Choice(ACCOUNTANTS), default="auto", show_default=True, help="Meets the budget."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def account(as_json: bool, **arguments: Any) -> None:
    """Print epsilon under every accountant, side by side.

    A noise multiplier is the noise's standard deviation over the sensitivity: the relation's own for full batches, the
    clip norm for Poisson batches.

    \b
    dphead account --delta 1e-5 --noise-multiplier 5.67 --sampling-prob 0.16384 --steps 360 --gaussian 8 --gaussian 8
    dphead account --delta 1e-5 --epsilon 3 --sampling-prob 0.16384 --steps 360
    """
    import json

    if (arguments["epsilon"] is None) == (arguments["noise_multiplier"] is None):
        raise click.UsageError("Exactly one of --epsilon and --noise-multiplier must be given.")
    try:
        found = _account(**arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(_plain(found), indent=2, allow_nan=False))
    else:
        _print(found)


def _account(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    sampling_prob: float,
    steps: int,
    gaussian: tuple[float, ...],
    shuffled_epochs: int | None,
    relation: str,
    accountant: str,
) -> dict[str, Any]:
    from dphead.analysis.profiles import PROFILES, all_outcomes, shuffled_epsilon
    from dphead.calibration import calibrate
    from dphead.privacy import accounting
    from dphead.privacy.accounting import GaussianEvent

    fixed = [GaussianEvent(sigma) for sigma in gaussian]
    if noise_multiplier is None:
        wanted = [GaussianEvent(1.0, sampling_prob, steps), *fixed]
        held = range(1, len(wanted))
        assert epsilon is not None  # one of the two was given
        noise_multiplier = calibrate(wanted, epsilon, delta, relation, accountant, held)
    events = [GaussianEvent(noise_multiplier, sampling_prob, steps), *fixed]
    found: dict[str, Any] = {
        "noise_multiplier": noise_multiplier,
        "sampling_prob": sampling_prob,
        "steps": steps,
        "gaussian": list(gaussian),
        "relation": relation,
        "delta": delta,
        "accountant": accountant,
        "epsilon": accounting.epsilon(events, delta, relation, accountant),
        "mu": accounting.total_mu(events),
        "rho": accounting.total_rho(events),
        "profiles": {
            name: {"epsilon": outcome.epsilon, "reason": outcome.reason, "what": PROFILES[name][2]}
            for name, outcome in all_outcomes(events, delta, relation).items()
        },
    }
    if shuffled_epochs is not None:
        found["shuffled"] = shuffled_epsilon(noise_multiplier, shuffled_epochs, delta, relation, fixed)._asdict()
        found["shuffled"]["poisson_convention"] = found["epsilon"] if sampling_prob < 1 else None
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    batch = "full batch" if found["sampling_prob"] == 1 else f"Poisson batches, q = {found['sampling_prob']:g}"
    console.print(f"noise multiplier  {found['noise_multiplier']:.6g}  ({found['steps']} releases, {batch})")
    for sigma in found["gaussian"]:
        console.print(f"and one full-batch release with noise multiplier {sigma:g}")
    console.print(
        f"epsilon  {found['epsilon']:.6g}  at delta {found['delta']:g}, {found['relation']}, {found['accountant']}"
    )
    if found["mu"] is not None:
        console.print(f"mu  {found['mu']:.6g}   rho  {found['rho']:.6g}")
    table = Table(show_edge=False)
    table.add_column("accountant", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("what it is")
    for name, row in found["profiles"].items():
        number = "-" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        table.add_row(name, number, (row["reason"] and f"does not apply: {row['reason']}") or row["what"])
    console.print(table)
    if "shuffled" in found:
        shuffled = found["shuffled"]
        console.print(f"shuffled batches  epsilon {shuffled['epsilon']:.4g}, mu {shuffled['mu']:.4g}: the guarantee")
        if shuffled["poisson_convention"] is not None:
            console.print(f"Poisson's {shuffled['poisson_convention']:.4g} is a convention for them, not a guarantee")
