"""Implement `dphead extract`, which turns images into a features file.

Heavy modules are imported only when the command runs.
"""

from typing import Any

import click

from dphead.cli.command import WithOptions
from dphead.cli.features import (
    declared,
    print_budget,
    print_people,
    print_problems,
    print_written,
)
from dphead.cli.progress import shown
from dphead.cli.text import say, tied


class _WithSettings(WithOptions):
    def options(self) -> dict[str, Any]:
        from dphead_extract.backbones.families import settings_of_families

        return {**super().options(), **settings_of_families()}


@click.command(
    cls=_WithSettings, declared="dphead_extract.extract_options:ExtractOptions"
)
def extract(**given: Any) -> None:
    """Compute features of the images in SOURCE with a frozen backbone.

    SOURCE is a folder of images by class (see --layout), a table of paths (see
    --columns), an .npz, or a Hugging Face dataset. It may also be a folder of IDX or
    CIFAR binary files. Run the same command again to resume. Images that this
    DPHEAD_HOME or the team's server knows from an earlier extraction, by any backbone,
    keep their data set and its ledger, except with --new-data-set.

    With several processes (torchrun, or --shard I/K), each writes one shard. Join them
    with `dphead features join`.

    \b
    dphead extract images/ -o train.h5 --backbone mobilenetv2_100 --classes 10
    """
    with shown("listing images") as progress:
        options, source = _checked(given)
        progress.begin("loading the backbone")

        from dphead_extract.run import extract as run

        from dphead.analysis.protected import describe_input
        from dphead.fit.known_weights import note_weights
        from dphead.fit.ledgers import image_index

        options.index = image_index()
        summary = run(options, progress, source)
    speed = tied(f"{summary.rows_per_second:.0f} rows a second")
    made = f"by {tied(summary.backbone)} ({speed})"
    print_written(summary, *([] if summary.already_complete else [made]))
    note = f" ({summary.note})" if summary.note else ""
    say("Images", f"{describe_input(summary.transform)}{note}")
    if summary.weights is not None:
        note_weights(*summary.weights)
    say("Data set", summary.dataset_id)
    if summary.grouped:
        print_people(summary.people, summary.path)
    if summary.recognized:
        say(
            "Known",
            "these images were extracted before, so they share that data set and its "
            "ledger (--new-data-set: use a separate ledger)",
        )
    for other in summary.overlaps:
        say("Private", f"private, do not publish: {other}", err=True)
    if options.shard.count > 1:
        output = options.output
        shards = f"{output.stem}.shard-*-of-{options.shard.count}{output.suffix}"
        join = f"dphead features join {output.with_name(shards)} -o {output}"
        say("Next", "when all shards are written:", join)
    elif summary.class_names is not None:
        print_budget(summary.path)
    print_problems(summary.problems, summary.left_out)


def _checked(given: dict[str, Any]) -> tuple[Any, Any]:
    """Return the options, and the opened source.

    All values are checked before the import of PyTorch, which takes seconds.
    """
    from dphead_extract.backbones.base import BackboneOptions, check_options
    from dphead_extract.backbones.families import settings_of_families, traits_of
    from dphead_extract.declared import made_from
    from dphead_extract.extract_options import ExtractOptions
    from dphead_extract.normalization import RowNorm
    from dphead_extract.shards import Shard

    usual = RowNorm(traits_of(given["name"]).normalization)
    settings = {name: given[name] for name in settings_of_families()}
    options = made_from(
        ExtractOptions,
        given,
        backbone=made_from(BackboneOptions, given, settings=settings),
        people=declared(given["system"], given["new"]),
        normalize=given["normalize"] or usual,
        shard=given["shard"] or Shard.of_process(),
    )
    check_options(options.backbone)
    return options, options.opened()
