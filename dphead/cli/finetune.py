"""Define the options of `dphead finetune` and print its output.

`dphead.finetune.run` trains. Heavy modules are imported only when the command runs.
"""

from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.budget import before_charge, budget_on_refusal, offer_budget
from dphead.cli.command import WithSettings, config_text, option_group, setting_option
from dphead.cli.options import (
    BITS,
    CLASSES,
    COLUMNS,
    DATASET_ID,
    ENCODING,
    FOLDER_NAMES_ARE_PUBLIC,
    GUARANTEE,
    INTENSITY,
    LAYOUT,
    NEW_DATA_SET,
    NEW_PEOPLE,
    PEOPLE,
    PRINTED,
    RUN_FILES,
    SAME_DATA_AS,
    UNLABELED,
    check_private,
)
from dphead.cli.progress import is_first, shown
from dphead.cli.text import releases_table, section
from dphead.privacy.rounding import rounded_down, rounded_up


class WithTraining(WithSettings):
    """Add the settings of a training as options, after `--preset`."""

    def setting_options(self) -> list[click.Parameter]:
        """Return one option per field of `Settings`, except tables of presets."""
        from dphead.finetune.settings import Settings
        from dphead.solvers.settings import settings_of

        found: list[click.Parameter] = []
        for declared in settings_of(Settings).values():
            text = declared.setting.help
            if declared.default not in (None, ()):
                text += f" [default: {declared.default}]"
            if dict not in declared.types:
                found.append(setting_option(declared, text, str))
        return found


@click.command(cls=WithTraining)
@click.argument("images", type=values.NamedPath("the source"))
@option_group(
    "Images and files",
    *RUN_FILES,
    CLASSES,
    FOLDER_NAMES_ARE_PUBLIC,
    UNLABELED,
    LAYOUT,
    COLUMNS,
    ENCODING,
    BITS,
    INTENSITY,
    click.option(
        "--image-size",
        type=values.Whole(1, values.MOST_SIDE),
        help="Resize images to a square with this side in pixels.",
    ),
    click.option(
        "--shape",
        callback=values.map_shape,
        help="Shape CHANNELS,H,W of the feature maps in a features file.",
    ),
    click.option(
        "--mean",
        callback=values.numbers_of_colors,
        help="Public mean of pixels in [0, 1], as one value or one per channel. "
        "Default: the mean of the model.",
    ),
    click.option(
        "--std",
        callback=values.numbers_of_colors,
        help="Public standard deviation of pixels in [0, 1], as one value or one per "
        "channel. Default: the value of the model.",
    ),
)
@option_group(
    "Guarantee",
    *GUARANTEE,
    SAME_DATA_AS,
    DATASET_ID,
    NEW_DATA_SET,
    PEOPLE,
    NEW_PEOPLE,
    click.option(
        "--accountant",
        type=values.KeptChoice("dphead.planning.calibration:OF_SAMPLES"),
        help="Accountant that computes the missing option: --noise-multiplier, "
        "--batch-size or --steps. Default: auto.",
    ),
)
@option_group(
    "Training",
    click.option(
        "--preset",
        help="Preset with a paper's settings: de22-13, de22-16, tb21-cnn/mnist, "
        "tan23-5, ...",
    ),
)
@option_group(
    "Memory and devices",
    click.option(
        "--memory",
        callback=values.n_bytes,
        help="Memory for the per-example gradients of a chunk of images, such as 2GB. "
        "Default: 2 GB on a CPU, half of the free memory on a GPU.",
    ),
    click.option("--device", default="cpu", help="cpu, cuda, cuda:1, ..."),
    click.option(
        "--bf16",
        is_flag=True,
        help="Compute gradients in bfloat16. Clipping and noise are unchanged.",
    ),
    click.option(
        "--checkpoint",
        type=values.NATURAL,
        default=20,
        help="Number of steps between checkpoints.",
    ),
    click.option(
        "--evaluate-every",
        type=values.WHOLE,
        default=0,
        help="Number of steps between measurements on test rows declared public. 0 "
        "means no measurements.",
    ),
)
@option_group("What is printed", *PRINTED)
def finetune(images: Path, dry_run: bool, verbose: bool, **given: Any) -> None:
    """Train a network on IMAGES, or on the feature maps of a features file.

    Omit one of noise multiplier, batch size and steps: the budget then sets it. All
    releases are planned and charged in the data set's ledger before any image is used.
    --dry-run or -v prints them. Run the same command again to resume. With many GPUs:
    torchrun --nproc-per-node N -m dphead finetune ... --device cuda

    \b
    dphead finetune images/ -o run --classes 10 --batch-size 4096 --steps 875 \\
      --views 16
    dphead finetune images/ -o run --classes 10 --preset de22-13 --epsilon 1
    """
    if not dry_run:
        check_private(given["epsilon"], given["seed"], given["not_private"])

    from dphead.finetune.processes import torchrun_place
    from dphead.fit.run_folder import noted

    if dry_run and not is_first():
        return
    place = None if dry_run else torchrun_place()
    options = _options(images, given | {"dry_run": dry_run}, place)
    with noted(options) if is_first() else nullcontext():
        _train(options, dry_run=dry_run, verbose=verbose)


def _train(options: Any, *, dry_run: bool, verbose: bool) -> None:
    """Train the network, and print the outcome."""
    from dphead.cli.summary import outcome
    from dphead.finetune.run import finetune as train

    fit: Any = None

    with shown("reading images") as progress:

        def announce(prepared: Any, found: Any) -> None:
            nonlocal fit
            fit = prepared
            plan = fit.announced
            if dry_run or verbose:
                title = f"To be released ({fit.about.settings_from})"
                progress.say(releases_table(plan.summary(), title))
                epsilon = found.epsilon if plan.private else float("inf")
                noise = rounded_down(found.noise_multiplier, 5)
                progress.say(
                    f"\n{options.settings.model}: noise multiplier {noise}, batches of "
                    f"{found.batch_size}, {found.steps} steps: epsilon "
                    f"{rounded_up(epsilon, 5)}"
                )
                progress.say(section("Budget", before_charge(fit, options)))
            if dry_run:
                return
            offer_budget(fit, options, progress, ask=options.processes is None)
            progress.begin("charging")

        with budget_on_refusal(lambda: fit, options, progress, verbose):
            result = train(options, announce, progress, progress.begin)
        if result is None:
            return
        progress.begin("computing the bound on attacks")
        files = "model.safetensors model.json"
        text = outcome(options.out, result, fit.announced, files)
    click.echo(text)


def _options(images: Path, given: dict[str, Any], processes: Any) -> Any:
    """Return the `FinetuneOptions` of the command's options."""
    from dphead_extract.sources.classes import Classes
    from dphead_extract.sources.columns import Columns

    from dphead.finetune.options import FinetuneOptions
    from dphead.finetune.settings import NAMES, make_settings

    settings, source = make_settings(
        {k: given[k] for k in NAMES & set(given)}, given["preset"], given["epsilon"]
    )
    names = {f.name for f in fields(FinetuneOptions)} - NAMES - {"classes", "columns"}
    return FinetuneOptions(
        features=images,
        settings=settings,
        source=source,
        config=config_text(),
        processes=processes,
        classes=Classes.parse(
            given["classes"],
            given["folder_names_are_public"],
            allow_unlabeled=given["allow_unlabeled"],
        ),
        columns=Columns(**given["columns"], encoding=given["encoding"]),
        **{k: given[k] for k in names & set(given)},
    )
