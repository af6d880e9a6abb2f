"""Define the options of `dphead finetune` and print its output.

`dphead.finetune.run` trains. Heavy modules are imported only when the command runs.
"""

from contextlib import nullcontext
from typing import Any

import click

from dphead.cli.budget import before_charge, budget_on_refusal, offer_budget
from dphead.cli.command import WithOptions, option_of
from dphead.cli.options import PRINTED, check_private
from dphead.cli.progress import is_first, shown
from dphead.cli.text import releases_table, section
from dphead.privacy.rounding import rounded_down, rounded_up

_SET = (
    "Set another setting of the training, such as weight_decay=0.1. docs/settings.md "
    "lists all."
)


class _WithTraining(WithOptions):
    """Add the settings of network training as options."""

    def settings(self) -> list[click.Parameter]:
        """Return `--set`, and one option per setting that has `option`."""
        from dphead.finetune.settings import Settings
        from dphead.fit.options import FitOptions
        from dphead.solvers.settings import settings_of

        found = [option_of(settings_of(FitOptions)["settings"], _SET)]
        for declared in settings_of(Settings).values():
            text = declared.setting.help
            if declared.default not in (None, ()):
                text += f" [default: {declared.default}]"
            if declared.setting.option:
                found.append(option_of(declared, text))
        return found


@click.command(
    cls=_WithTraining,
    declared="dphead.finetune.options:FinetuneOptions",
    without="ignore_labels",
)
@PRINTED
def finetune(dry_run: bool, verbose: bool, yes: bool, **given: Any) -> None:
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
        check_private(given)

    from dphead.finetune.processes import torchrun_place
    from dphead.fit.run_folder import noted

    if dry_run and not is_first():
        return
    place = None if dry_run else torchrun_place()
    options = options_of_training(given | {"dry_run": dry_run, "processes": place})
    with noted(options) if is_first() else nullcontext():
        _train(options, dry_run=dry_run, verbose=verbose, yes=yes)


def _train(options: Any, *, dry_run: bool, verbose: bool, yes: bool) -> None:
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
            ask = options.processes is None and not yes
            offer_budget(fit, options, progress, ask)
            progress.begin("charging")

        with budget_on_refusal(lambda: fit, options, progress, verbose):
            result = train(options, announce, progress, progress.begin)
        if result is None:
            return
        progress.begin("computing the bound on attacks")
        files = "model.safetensors model.json"
        text = outcome(options.out, result, fit.announced, files)
    click.echo(text)


def options_of_training(given: dict[str, Any]) -> Any:
    """Return the `FinetuneOptions` of the command's options."""
    from dphead_extract.declared import made_from

    from dphead.finetune.options import FinetuneOptions
    from dphead.finetune.settings import NAMES, make_settings
    from dphead.solvers.settings import given_once

    own = {name: given[name] for name in NAMES & set(given)}
    typed = given_once(own, given["settings"])
    settings, source = make_settings(typed, given["preset"], given["epsilon"])
    return made_from(FinetuneOptions, given, settings=settings, source=source)
