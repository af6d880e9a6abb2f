"""Implement `dphead tan`, which plans large-noise training [TAN23]."""

from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.choices import PATH
from dphead.cli.options import NORM
from dphead.cli.paths import check_there
from dphead.cli.text import table, tied

# Numbers of steps that `tan plan` tries. Chosen: 250 times powers of two.
_SIMULATED_STEPS = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000)
_TAN_COLUMNS = (
    "",
    ">rows",
    ">delta",
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
_SIMULATED_SETTINGS = (  # settings of the predicted full run
    "model",
    "norm",
    "batch_size",
    "noise_multiplier",
    "steps",
    "learning_rate",
    "views",
    "augment",
)


@click.group()
def tan() -> None:
    """Plan end-to-end training by its total amount of noise [Sander et al. 2023]."""


@tan.command()
@click.option("--n-rows", type=values.WHOLE, required=True)
@click.option("--batch-size", type=values.WHOLE, required=True)
@click.option("--noise-multiplier", type=values.NUMBER, required=True)
@click.option("--steps", type=values.WHOLE, required=True)
@click.option("--delta", type=values.NUMBER, required=True)
@click.option(
    "--more-data",
    type=values.NUMBER,
    help="Also show the cost with this many times the rows (Table 5).",
)
@click.option(
    "--plot",
    type=PATH,
    help=("Draw Figures 2 and 3 for these settings (png, svg or pdf)."),
)
def show(
    n_rows: int,
    batch_size: int,
    noise_multiplier: float,
    steps: int,
    delta: float,
    more_data: float | None,
    plot: Path | None,
) -> None:
    """Print TAN's eta, Sigma and epsilon beside the exact epsilon.

    \b
    dphead tan show --n-rows 50000 --batch-size 4096 --noise-multiplier 3 \\
      --steps 2500 --delta 1e-5 --more-data 2
    """
    from dphead.analysis import tan as analysis
    from dphead.analysis.tan_plot import draw

    if not 0 < batch_size <= n_rows:
        raise ValueError(
            f"batch_size must be from 1 to n_rows, got {batch_size=}, {n_rows=}. "
            "Correct it."
        )
    prob = batch_size / n_rows
    settings = [("this setting", n_rows, prob, delta)]
    if more_data is not None:
        changed = analysis.more_data(noise_multiplier, prob, steps, delta, more_data)
        name = f"{more_data:g} x the rows"
        settings.append((name, round(n_rows * more_data), *changed))
    rows, reason = [], ""
    for name, n, q, d in settings:
        found = analysis.total_amount_of_noise(noise_multiplier, q, steps, d)
        exact = _exact_epsilons(noise_multiplier, q, steps, d)
        numbers = (found.eta, found.total_noise, found.epsilon, *exact)
        rows.append((tied(name), str(n), f"{d:g}", *(f"{v:.4g}" for v in numbers)))
        reason = found.reason
    click.echo(table(_TAN_COLUMNS, rows))
    click.echo(
        "epsilon TAN is an approximation, not a guarantee."
        + (f" Not to be relied on: {reason}." if reason else "")
    )
    if plot is not None:
        eta = analysis.total_amount_of_noise(noise_multiplier, prob, steps, delta).eta
        counts = (max(1, steps // 16), max(1, steps // 4), steps, 4 * steps)
        draw(plot, eta, delta, counts, eta / steps**0.5)
        click.echo(f"{plot}: written")


def _exact_epsilons(
    noise_multiplier: float, prob: float, steps: int, delta: float
) -> list[float]:
    """Return epsilon by RDP and by PLD."""
    from dphead.privacy import accounting

    events = [accounting.GaussianEvent(noise_multiplier, prob, steps)]
    return [
        accounting.compose_epsilon(events, delta, accountant=a) for a in ("rdp", "pld")
    ]


@tan.command()
@click.option("--n-rows", type=values.WHOLE, required=True)
@click.option("--epsilon", type=values.NUMBER, required=True)
@click.option("--delta", type=values.NUMBER, required=True)
@click.option(
    "--noise-multiplier",
    type=values.NUMBER,
    default=2.0,
    show_default=True,
    help="Noise multiplier; 2 is the edge of the flat region.",
)
@click.option(
    "--steps",
    callback=values.separated(values.COUNT, "whole numbers: 250,500"),
    help="Numbers of steps to compare, T1,T2,... (default: 250 to 64000).",
)
def plan(
    n_rows: int,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: tuple[int, ...] | None,
) -> None:
    """Print the smallest batch size for a budget at each number of steps.

    All settings lie where epsilon follows TAN. Only training shows which number of
    steps is best: simulate a few on public images.
    """
    from dphead.finetune.tan import cheapest, plans

    found = plans(
        n_rows,
        epsilon=epsilon,
        delta=delta,
        steps=steps or _SIMULATED_STEPS,
        noise_multiplier=noise_multiplier,
    )
    least = cheapest(found)
    rows = []
    for s in found:
        work = s.batch_size * s.steps
        rows.append(
            (
                str(s.steps),
                str(s.batch_size),
                f"{s.noise_multiplier:g}",
                f"{s.epsilon:.4g}",
                f"{work / n_rows:.1f}",
                f"{work:,}",
                f"{work / (least.batch_size * least.steps):.2f}",
            )
        )
    click.echo(table(_PLAN_COLUMNS, rows))


@tan.command()
@click.argument("images", type=PATH)
@click.option(
    "--data-is",
    type=click.Choice(["private", "public"]),
    default="private",
    show_default=True,
)
@click.option("--model", default="wrn-16-4", show_default=True)
@NORM
@click.option(
    "--classes", required=True, help=("Class names, such as a,b,c, or their number.")
)
@click.option("--split", help="Split of IMAGES to train on.")
@click.option("--test-split", required=True, help="Split of IMAGES to measure on.")
@click.option(
    "--batch-size",
    type=values.WHOLE,
    required=True,
    help=("Batch size B of the full run."),
)
@click.option(
    "--noise-multiplier",
    type=values.NUMBER,
    required=True,
    help="Noise multiplier sigma of the full run.",
)
@click.option("--steps", type=values.WHOLE, required=True)
@click.option(
    "--factors",
    callback=values.separated(values.NUMBER, "numbers: 4,8"),
    required=True,
    help="Factors k1,k2,...; runs use B/k and sigma/k.",
)
@click.option(
    "--runs",
    type=values.MANY,
    default=3,
    show_default=True,
    help="Number of seeds for each factor.",
)
@click.option("--learning-rate", type=values.NUMBER)
@click.option("--views", type=values.WHOLE)
@click.option("--augment", type=click.Choice(["crop", "rrc", "ours", "simclr"]))
@click.option("--delta", type=values.NUMBER, default=1e-5, show_default=True)
@click.option("--image-size", type=values.WHOLE)
@click.option("--device", default="cpu", show_default=True)
@click.option(
    "--json",
    "out",
    type=PATH,
    help=("Write the runs and the prediction to this JSON file."),
)
def simulate(
    images: Path,
    data_is: str,
    runs: int,
    factors: tuple[float, ...],
    out: Path | None,
    **given: Any,
) -> None:
    """Predict a full run from runs that are k times cheaper.

    The total amount of noise stays constant. Each cheap run would spend a very large
    epsilon, so this command refuses private images.
    """
    check_there("images", images)

    import json

    from dphead.finetune.settings import make_settings
    from dphead.finetune.tan import predict, run_simulations
    from dphead.privacy.atomic_write import write_text

    settings, _ = make_settings({k: given[k] for k in _SIMULATED_SETTINGS})

    def train(small: Any, seed: int) -> float:
        return _simulated(images, small, seed, given)

    def tell(one: Any) -> None:
        click.echo(
            f"B {one.batch_size:g}  sigma {one.noise_multiplier:.4g}  seed {one.seed}: "
            f"{100 * one.accuracy:.2f} %"
        )

    public = data_is == "public"
    found = run_simulations(
        settings, factors, range(runs), train, data_is_public=public, done=tell
    )
    prediction = predict(found, given["batch_size"])
    full = f"B {given['batch_size']}, sigma {given['noise_multiplier']:g}"
    click.echo(f"\npredicted at {full}: {_predicted(prediction)}")
    click.echo(
        "Simulated runs used public data: they cost no budget and are not private."
    )
    if out is not None:
        rows = [vars(one) for one in found]
        found = {"runs": rows, "prediction": prediction._asdict()}
        write_text(out, json.dumps(found, indent=2) + "\n")


def _predicted(prediction: Any) -> str:
    """Return a prediction as two lines of text."""
    middle, low, high, slope = (100 * value for value in prediction)
    # the fitted line may leave the range of an accuracy
    return (
        f"{middle:.2f} %, {slope:+.2f} a doubling of B\n"
        f"95 % of runs: {max(low, 0):.2f} to {min(high, 100):.2f} %"
    )


def _simulated(images: Path, settings: Any, seed: int, given: dict[str, Any]) -> float:
    """Return the test accuracy of one training on public images.

    The run spends a very large epsilon. `given` holds the options of `simulate`.
    """
    import tempfile

    from dphead_extract.sources.classes import Classes

    from dphead.finetune.options import FinetuneOptions
    from dphead.finetune.run import finetune
    from dphead.fit.ledgers import IN_MEMORY

    with tempfile.TemporaryDirectory() as folder:
        options = FinetuneOptions(
            features=images,
            out=Path(folder) / "run",
            epsilon=1e9,
            delta=given["delta"],
            accountant="rdp",
            split=given["split"],
            test_split=given["test_split"],
            test_is="public",
            ledger=IN_MEMORY,
            seed=seed,
            tuning="public data",
            settings=settings,
            classes=Classes.parse(given["classes"]),
            image_size=given["image_size"],
            init_seed=seed,
            device=given["device"],
        )
        result = finetune(options)
    assert result is not None
    return result["test"]["accuracy"]
