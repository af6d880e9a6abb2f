"""Implement `dphead tan`, which plans large-noise training [TAN23]."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from dphead_extract.numerals import separated

from dphead.cli import values
from dphead.cli.command import others, values_of
from dphead.cli.finetune import finetune, options_of_training
from dphead.cli.options import PUBLIC_ROWS
from dphead.cli.text import filled, percent, table
from dphead.privacy.rounding import rounded_up

# Numbers of steps that `tan plan` tries. Chosen: 250 times powers of two.
_STEPS = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000)
# Largest relative difference of the noise in an averaged gradient between a simulated
# run and a plan. Chosen: it changes epsilon by about as much.
_NOISE_TOLERANCE = 0.1
_TAN_COLUMNS = (
    ">eta",
    ">Sigma",
    ">epsilon TAN",
    ">epsilon (RDP)",
    ">epsilon (PLD)",
)
_PLAN_COLUMNS = (
    ">steps T",
    ">batch size B",
    ">noise multiplier",
    ">epsilon (RDP)",
    ">epochs",
    ">rows processed",
    ">cost",
)
_N_ROWS = click.option(
    "--n-rows",
    type=values.NATURAL,
    required=True,
    help="Number of training images.",
)
_DELTA = click.option(
    "--delta",
    type=values.NUMBER,
    required=True,
    help="Probability that the guarantee fails.",
)


@click.group()
def tan() -> None:
    """Plan end-to-end training by its total amount of noise [Sander et al. 2023]."""


@tan.command("show")
@_N_ROWS
@click.option(
    "--batch-size",
    type=values.NATURAL,
    required=True,
    help="Expected size of a batch.",
)
@click.option(
    "--noise-multiplier",
    type=values.NUMBER,
    required=True,
    help="Noise multiplier of each step.",
)
@click.option("--steps", type=values.NATURAL, required=True, help="Number of steps.")
@_DELTA
def _show(
    n_rows: int,
    batch_size: int,
    noise_multiplier: float,
    steps: int,
    delta: float,
) -> None:
    """Print a training's total amount of noise, and its epsilon by TAN, RDP and PLD.

    The total amount of noise is Sigma = 1 / eta.

    \b
    dphead tan show --n-rows 50000 --batch-size 4096 --noise-multiplier 3 \\
      --steps 2500 --delta 1e-5
    """
    from dphead.analysis.tan import total_amount_of_noise
    from dphead.privacy import accounting

    if batch_size > n_rows:
        raise ValueError(
            f"--batch-size must be from 1 to --n-rows {n_rows}, got {batch_size}. Type "
            "a smaller --batch-size."
        )
    prob = batch_size / n_rows
    found = total_amount_of_noise(noise_multiplier, prob, steps, delta)
    events = [accounting.GaussianEvent(noise_multiplier, prob, steps)]
    row = [f"{found.eta:.4g}", f"{found.total_noise:.4g}", rounded_up(found.epsilon)]
    for accountant in ("rdp", "pld"):
        exact = accounting.compose_epsilon(events, delta, accountant=accountant)
        row.append(rounded_up(exact))
    click.echo(table(_TAN_COLUMNS, [row]))
    click.echo(
        "epsilon TAN is an approximation, not a guarantee."
        + (f" Do not rely on it: {found.reason}." if found.reason else "")
    )


@tan.command("plan")
@_N_ROWS
@click.option(
    "--epsilon", type=values.NUMBER, required=True, help="Budget of the training."
)
@_DELTA
@click.option(
    "--noise-multiplier",
    type=values.NUMBER,
    default=2.0,
    help="Noise multiplier, at least 2.",
)
@click.option(
    "--steps",
    callback=values.read_by(separated(int, 1, "whole numbers: 250,500")),
    help="Numbers of steps to compare, such as 250,500. Default: the steps of "
    "--simulated, or else 250, 500, 1000 and so on, up to 64000.",
)
@click.option(
    "--simulated",
    type=values.PATH,
    multiple=True,
    help="JSON file of `dphead tan simulate`, one for each number of steps.",
)
def _plan(
    n_rows: int,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: tuple[int, ...] | None,
    simulated: tuple[Path, ...],
) -> None:
    """Print the batch size that spends the budget, for each number of steps.

    The noise multiplier must be at least 2. The total amount of noise (TAN) then nearly
    determines epsilon. Only training shows which number of steps is best. Simulate
    several on public images, and pass the results with --simulated.

    \b
    dphead tan plan --n-rows 50000 --epsilon 8 --delta 1e-5
    """
    from dphead.finetune.tan import decide, plans

    known = {full["steps"]: (full, one) for full, one in map(_prediction, simulated)}
    if len(known) < len(simulated):
        raise click.UsageError(
            "--simulated must name one file for each number of steps, and two files "
            "have the same number"
        )
    predictions = {count: one for count, (_, one) in known.items()}
    counts = steps or tuple(predictions) or _STEPS
    found = plans(
        n_rows,
        epsilon=epsilon,
        delta=delta,
        steps=counts,
        noise_multiplier=noise_multiplier,
    )
    works = [s.batch_size * s.steps for s in found]
    rows = [
        (
            str(s.steps),
            str(s.batch_size),
            f"{s.noise_multiplier:g}",
            rounded_up(s.epsilon),
            f"{work / n_rows:.1f}",
            f"{work:,}",
            f"{work / min(works):.2f}",
        )
        for s, work in zip(found, works, strict=True)
    ]
    click.echo(table(_PLAN_COLUMNS, rows))
    text = (
        "No number of steps is recommended, because no accuracy is known. T = "
        f"{found[0].steps} is cheapest. Run `dphead tan simulate --json FILE` for some "
        "numbers of steps, and pass --simulated FILE for each."
    )
    if predictions:
        best, reason = decide(predictions)
        text = f"Recommended: T = {best}, {reason}."
    click.echo(filled(text))
    for plan in found:
        full, _ = known.get(plan.steps, (vars(plan), None))
        noise = full["noise_multiplier"] / full["batch_size"]
        if not math.isclose(
            noise, plan.noise_multiplier / plan.batch_size, rel_tol=_NOISE_TOLERANCE
        ):
            click.echo(
                filled(
                    f"! The simulation of T = {plan.steps} has the noise of another "
                    f"budget. Simulate it with --batch-size {plan.batch_size} and "
                    f"--noise-multiplier {plan.noise_multiplier:g}."
                )
            )


def _prediction(path: Path) -> tuple[dict[str, Any], Any]:
    """Return the full run's settings and the prediction in a file of `simulate`."""
    from dphead.analysis.sealed import explain_damage, read_json
    from dphead.analysis.tan import Prediction

    with explain_damage("simulation", path):
        found = read_json(path, "simulation")
        return found["settings"], Prediction(**found["prediction"])


@tan.command("simulate", context_settings={"ignore_unknown_options": True})
@others("finetune")
@PUBLIC_ROWS
@click.option(
    "--factors",
    callback=values.read_by(separated(float, 0, "numbers: 4,8")),
    required=True,
    help="Factors k of the simulated runs, such as 4,8,16. Each run divides batch size "
    "and noise multiplier by k.",
)
@click.option(
    "--runs",
    type=values.MANY,
    default=3,
    help="Number of simulated runs for each factor, each with a different seed.",
)
@click.option(
    "--json",
    "out",
    type=values.PATH,
    help="Write the runs and the prediction to this JSON file.",
)
def _simulate(
    rest: tuple[str, ...],
    public_rows: bool,
    runs: int,
    factors: tuple[float, ...],
    out: Path | None,
) -> None:
    """Predict a full run from runs that are k times cheaper.

    Describe the full run by the images and options of `dphead finetune`, or by a run's
    run.toml (--config). Give its noise multiplier, batch size and steps. The total
    amount of noise stays constant. Each cheap run would spend a very large epsilon, so
    the images must be declared public (--public-rows). The runs charge no ledger and
    declare no people, and each has its own seed.

    \b
    dphead tan simulate --config run/run.toml --public-rows --factors 4,8
    """
    from dphead.analysis.sealed import write_json
    from dphead.finetune.tan import in_percent, predict_full_run, run_simulations
    from dphead.fit.ledgers import IN_MEMORY

    options = replace(
        options_of_training(values_of(finetune, rest)),
        epsilon=1e9,
        accountant="rdp",
        test_is="public",
        ledger=IN_MEMORY,
        people=None,
        new_people=False,
        tuning="public data",
    )
    settings = options.settings
    full = (settings.batch_size, settings.noise_multiplier, settings.steps)
    names = ("--batch-size", "--noise-multiplier", "--steps")
    if missing := [n for n, v in zip(names, full, strict=True) if v is None]:
        raise ValueError(
            f"the full run needs {', '.join(names)}, got none for "
            f"{', '.join(missing)}. Type the values that `dphead tan plan` prints for "
            "a budget."
        )
    click.echo(filled(f"full run ({options.source}): {_described(settings)}"))

    def tell(one: Any) -> None:
        click.echo(
            f"B {one.batch_size:g}  sigma {one.noise_multiplier:.4g}  seed {one.seed}: "
            f"{100 * one.accuracy:.2f} %"
        )

    found = run_simulations(
        settings,
        factors,
        range(runs),
        partial(_simulated, options, set()),
        data_is_public=public_rows,
        done=tell,
    )
    prediction = predict_full_run(found, settings.batch_size or 0)
    click.echo(
        f"\npredicted at B {full[0]}, sigma {full[1]:g}: "
        f"{percent(prediction.accuracy)}, "
        f"{100 * prediction.slope:+.2f} points per doubling of B\n"
        f"95 % interval for a full run: {in_percent(prediction)}"
    )
    if prediction.doubt:
        click.echo(filled(f"! {prediction.doubt}."))
    click.echo(
        "Simulated runs used public data: they cost no budget and are not private."
    )
    if out is not None:
        kept = {"runs": [vars(one) for one in found], "settings": settings.record()}
        write_json(out, kept | {"prediction": prediction._asdict()})


def _described(settings: Any) -> str:
    """Return the settings that differ from the defaults, as options."""
    default = type(settings)().record()
    # show the path of the weights, not their digest
    given = settings.record() | {"weights": settings.weights}
    return " ".join(
        f"--{name.replace('_', '-')} {value}"
        for name, value in given.items()
        if name == "model" or value != default[name]
    )


def _simulated(options: Any, told: set[str], settings: Any, seed: int) -> float:
    """Return the test accuracy of one training on public images.

    `options` are those of each run, without its folder, seed and settings. `told` are
    the warnings so far.
    """
    import tempfile

    from dphead.analysis.ledger_place import located
    from dphead.finetune.run import finetune as train

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"

        def warn(fit: Any, _: Any) -> None:
            """Print, once, each ledger with fits on the images."""
            for one in fit.about.elsewhere:
                text = (
                    "! If these images are private, stop. The output is not charged to "
                    f"the ledger {located(one['path'], out)}, which "
                    f"{'may hold' if one['fits'] is None else 'holds'} fits on them."
                )
                if text not in told:
                    told.add(text)
                    click.echo(filled(text))

        own = replace(settings, init_seed=seed)
        changed = replace(options, out=out, seed=seed, settings=own)
        result = train(changed, warn)
    assert result is not None
    return result["test"]["accuracy"]
