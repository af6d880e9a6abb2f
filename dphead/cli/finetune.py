"""Implement `dphead finetune`: its options, and its output during the training.

`dphead.finetune.run` trains. Everything heavy may be imported only when the command
runs.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.choices import PATH, check_private
from dphead.cli.command import Sectioned, config_text, option_group
from dphead.cli.options import (
    BITS,
    CLASSES,
    DATASET_ID,
    FOLDER_NAMES_ARE_PUBLIC,
    GUARANTEE,
    INTENSITY,
    LAYOUT,
    NEW_DATA_SET,
    NORM,
    PRINTED,
    RUN_FILES,
    SAME_DATA_AS,
    UNLABELLED,
)
from dphead.cli.paths import check_there
from dphead.cli.progress import Progress, is_first, shown
from dphead.cli.releases import releases_table


@click.command(cls=Sectioned)
@click.argument("images", type=PATH)
@option_group(
    "Images and files",
    *RUN_FILES,
    CLASSES,
    FOLDER_NAMES_ARE_PUBLIC,
    UNLABELLED,
    LAYOUT,
    BITS,
    INTENSITY,
    click.option(
        "--image-size",
        type=values.Whole(1, values.MOST_SIDE),
        help="Side in pixels to resize images to.",
    ),
    click.option(
        "--shape",
        callback=values.map_shape,
        help="CHANNELS,H,W of the maps in a features file.",
    ),
    click.option(
        "--mean",
        callback=values.numbers_of_colours,
        help="Mean of pixels in [0, 1], for all colors or each (default: the model's).",
    ),
    click.option(
        "--std",
        callback=values.numbers_of_colours,
        help="Standard deviation of pixels. Both are public.",
    ),
    click.option(
        "--vote",
        type=values.Whole(0, values.SEVERAL),
        default=0,
        help="Also measure the vote of this many augmented views.",
    ),
)
@option_group(
    "Guarantee",
    *GUARANTEE,
    SAME_DATA_AS,
    DATASET_ID,
    NEW_DATA_SET,
    click.option(
        "--accountant",
        type=click.Choice(["auto", "pld", "rdp", "rdp-classic"]),
        help="Accountant that solves for the setting left out.",
    ),
)
@option_group(
    "Network",
    click.option(
        "--model",
        help=(
            "wrn-DEPTH-WIDTH, tb21-NAME or a timm model without batch norm (default: "
            "wrn-16-4)."
        ),
    ),
    click.option(
        "--weights",
        type=click.Path(exists=True, dir_okay=False),
        help="Public weights to start from.",
    ),
    click.option(
        "--layers",
        callback=values.parts,
        help="Train only parameters whose names match one of these regexes, a,b.",
    ),
    NORM,
    click.option(
        "--groups",
        type=values.WHOLE,
        default=16,
        show_default=True,
        help="Groups of group norm; 0: no norm.",
    ),
    click.option(
        "--standardise/--no-standardise",
        default=True,
        show_default=True,
        help="Weight standardization.",
    ),
    click.option(
        "--init-seed",
        type=values.WHOLE,
        default=0,
        show_default=True,
        help="Seed of the initial weights; public.",
    ),
)
@option_group(
    "Training",
    click.option(
        "--preset",
        help="A paper's settings: de22-13, de22-16, tb21-cnn/mnist, tan23-5, ...",
    ),
    click.option(
        "--noise-multiplier",
        type=values.NUMBER,
        help="Noise multiplier (default: what the budget needs).",
    ),
    click.option(
        "--batch-size",
        type=values.WHOLE,
        help="Expected batch size (default: the largest that the budget allows).",
    ),
    click.option(
        "--sampling",
        type=click.Choice(["poisson", "allocation"]),
        help="Poisson batches (default), or each image in one random step of an epoch.",
    ),
    click.option(
        "--steps",
        type=values.WHOLE,
        help="Number of steps (default: the most that the budget allows).",
    ),
    click.option("--epochs", type=values.NUMBER, help="Epochs, instead of steps."),
    click.option("--learning-rate", type=values.NUMBER),
    click.option("--optimizer", type=click.Choice(["sgd", "adam"])),
    click.option("--momentum", type=values.NUMBER),
    click.option("--clip-norm", type=values.NUMBER),
    click.option("--weight-decay", type=values.NUMBER),
    click.option(
        "--decoupled/--no-decoupled",
        default=None,
        help="Decouple weight decay, as AdamW does.",
    ),
    click.option(
        "--average",
        type=click.Choice(["ema", "last"]),
        help="Weights to return (default: ema).",
    ),
    click.option("--ema-decay", type=values.NUMBER),
    click.option(
        "--views",
        type=values.Whole(0, values.SEVERAL),
        help="Augmentation multiplicity K: views averaged before the clip.",
    ),
    click.option(
        "--augment", type=click.Choice(["none", "crop", "rrc", "ours", "simclr"])
    ),
)
@option_group(
    "Memory and devices",
    click.option(
        "--memory",
        default="2GB",
        show_default=True,
        callback=values.n_bytes,
        help="Memory for the gradients of a chunk of rows.",
    ),
    click.option(
        "--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ..."
    ),
    click.option(
        "--bf16",
        is_flag=True,
        help="Forward and backward in bfloat16; clipping and noise stay as they are.",
    ),
    click.option(
        "--checkpoint",
        type=values.Whole(1, 2**20),
        default=20,
        show_default=True,
        help="Steps between checkpoints.",
    ),
)
@option_group("What is printed", *PRINTED)
def finetune(
    images: Path, dry_run: bool, verbose: bool, not_private: bool, **given: Any
) -> None:
    """Train a network on IMAGES (or the maps of a features file) and write it, its
    guarantee and a copy of the ledger.

    Of noise, batch size and steps, one may be left out: the budget decides it. All that
    the training will release is planned, and charged in the data set's ledger, before
    an image is used; --dry-run or -v prints it. The same command continues an
    interrupted run. With many GPUs:
    torchrun --nproc-per-node N -m dphead finetune ... --device cuda

    \b
    dphead finetune images/ -o run --classes 10 --batch-size 4096 --steps 875 \\
      --views 16
    dphead finetune images/ -o run --classes 10 --preset de22-13 --epsilon 1
    """
    if not dry_run:
        check_private(given["epsilon"], not_private)
    check_there("the source", images, given["test"], given["same_data_as"])

    from dphead.fit.run_folder import noted

    options = _options(images, given)
    with noted(options) if is_first() else nullcontext():
        _train(options, dry_run=dry_run, verbose=verbose)


def _train(options: Any, *, dry_run: bool, verbose: bool) -> None:
    """Train, and print the outcome."""
    from dphead.cli.summary import details, outcome
    from dphead.finetune.run import finetune as train

    planned: Any = None

    with shown("reading images") as progress:

        def announce(plan: Any, method: Any, found: Any) -> None:
            nonlocal planned
            planned = plan
            if dry_run or verbose:
                title = f"To be released ({method.source})"
                progress.say(releases_table(plan.summary(), title))
                epsilon = found.epsilon if plan.private else float("inf")
                progress.say(
                    f"\n{options.settings.model}: noise multiplier "
                    f"{found.noise_multiplier:.5g}, batches of {found.batch_size}, "
                    f"{found.steps} steps: epsilon {epsilon:.5g}"
                )
            if dry_run:
                raise click.exceptions.Exit(0)
            progress.begin("charging")

        told = _spending(progress, lambda: planned)
        result = train(options, announce, told, progress.begin)
        if result is None:
            return
        progress.begin("computing the limit on attackers")
        files = "model.safetensors model.json"
        text = outcome(options.out, result, planned, files)
    click.echo(text)
    if verbose:
        click.echo(details(result))


def _options(images: Path, given: dict[str, Any]) -> Any:
    """Return the `FinetuneOptions` of the command's options."""
    from dphead_extract.sources.classes import Classes

    from dphead.finetune.options import FinetuneOptions
    from dphead.finetune.settings import NAMES, make_settings

    given["layers"] = given["layers"] or None
    settings, source = make_settings(
        {k: given[k] for k in NAMES & set(given)}, given["preset"], given["epsilon"]
    )
    names = {f.name for f in fields(FinetuneOptions)} - NAMES - {"classes"}
    return FinetuneOptions(
        features=images,
        settings=settings,
        source=source,
        config=config_text(),
        classes=Classes.parse(
            given["classes"],
            given["folder_names_are_public"],
            allow_unlabelled=given["allow_unlabelled"],
        ),
        **{k: given[k] for k in names & set(given)},
    )


def _spending(progress: Progress, plan: Callable[[], Any]) -> Any:
    """Return a callback that adds the epsilon spent so far to the progress.

    `plan` returns the plan once it was announced.
    """
    spent: Any = None

    def told(done: int, total: int, label: str) -> None:
        nonlocal spent
        spent = spent or _so_far(plan())
        progress(done, total, f"{label}, epsilon < {spent(done):.3g}")

    return told


def _so_far(plan: Any) -> Any:
    """Return a function that gives the epsilon of a plan's first k releases.

    It is an upper bound by RDP, which is quick. Random allocation has no RDP: the
    function gives the whole plan's epsilon. Without noise, and under replace-one, it is
    infinite.
    """
    import numpy as np

    from dphead.privacy import accounting

    orders = accounting.RDP_ORDERS
    if not plan.private or plan.relation == "replace_one":
        return lambda done: float("inf")
    if any(spec.epoch_steps > 1 for spec in plan.specs):
        whole = plan.epsilon_spent()
        return lambda done: whole
    curves = {}
    for spec in plan.specs:
        curves.setdefault(
            spec.event(), accounting.rdp_curve([spec.event()], orders, plan.relation)
        )
    total = np.cumsum([curves[spec.event()] for spec in plan.specs], axis=0)
    return lambda done: accounting.epsilon_from_rdp(orders, total[done - 1], plan.delta)
