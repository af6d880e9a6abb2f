"""Implement `dphead extract`, which turns images into a features file.

Heavy modules are imported only when the command runs.
"""

from dataclasses import fields
from typing import Any

import click

from dphead.cli import values
from dphead.cli.command import Sectioned, option_group
from dphead.cli.features import (
    declared,
    print_budget,
    print_left_out,
    print_people,
    print_problems,
    print_written,
)
from dphead.cli.options import (
    BITS,
    BLOCK_ROWS_OPTION,
    BY_GROUP,
    CLASSES,
    COLUMNS,
    DATASET_ID,
    ENCODING,
    FEATURES_FILE,
    FOLDER_NAMES_ARE_PUBLIC,
    IGNORE_LABELS,
    INTENSITY,
    LAYOUT,
    NEW_DATA_SET,
    NEW_PEOPLE,
    PEOPLE,
    SAME_DATA_AS,
    TEST_FRACTION,
    UNLABELED,
)
from dphead.cli.progress import shown
from dphead.cli.text import say, tied


@click.command(cls=Sectioned)
@click.argument("source", type=values.NamedPath("the source"))
@option_group(
    "File and data set",
    FEATURES_FILE,
    DATASET_ID,
    SAME_DATA_AS,
    NEW_DATA_SET,
    PEOPLE,
    NEW_PEOPLE,
)
@option_group(
    "Images and labels",
    click.option(
        "--split",
        default="all",
        type=click.Choice(["all", "train", "test", "validation"]),
        help="Split of SOURCE to extract.",
    ),
    LAYOUT,
    COLUMNS,
    ENCODING,
    TEST_FRACTION,
    BY_GROUP,
    click.option(
        "--limit",
        type=values.NATURAL,
        help="Use only the first N images, for trials. `dphead fit --relation "
        "add_remove` refuses such a file. Default: all images.",
    ),
    click.option(
        "--skip-unreadable",
        is_flag=True,
        help="Mask unreadable and missing images instead of ending with an error.",
    ),
    CLASSES,
    FOLDER_NAMES_ARE_PUBLIC,
    UNLABELED,
    IGNORE_LABELS,
    BITS,
    INTENSITY,
)
@option_group(
    "Backbone",
    click.option(
        "--backbone",
        required=True,
        type=values.BACKBONE,
        help="Backbone: fixed filters of one of these names, or a timm MODEL.",
    ),
    click.option(
        "--weights",
        type=values.NamedPath("the weights file"),
        help="Local weights file (safetensors or pth), instead of a download. A "
        "config.json of timm beside it gives mean, std, size and crop.",
    ),
    click.option(
        "--random-weights",
        is_flag=True,
        help="Give a timm model random weights, to measure speed and disk space.",
    ),
    click.option(
        "--model-arg",
        "model_args",
        multiple=True,
        callback=values.arguments,
        metavar="NAME=VALUE",
        help="Argument for `timm.create_model`, such as num_classes=10.",
    ),
    click.option(
        "--image-size",
        callback=values.image_size,
        metavar="N|H,W",
        help="Size of the backbone's input in pixels. Required for fixed filters "
        "with image files. Default: the size of the model, or of the array's images.",
    ),
    click.option(
        "--channels",
        type=click.Choice(["1", "3"]),
        callback=lambda _, __, text: None if text is None else int(text),
        help="Channels of the backbone's input: 1 refuses color images, 3 repeats the "
        "channel of gray images. Default: the channels of the model, or of the "
        "array's images, else 3.",
    ),
    click.option(
        "--mean",
        callback=values.numbers_of_colors,
        help="Mean of each channel, separated by commas. Default: the model's means.",
    ),
    click.option(
        "--std",
        callback=values.numbers_of_colors,
        help="Standard deviation of each channel, separated by commas. Default: the "
        "values of the model.",
    ),
    click.option(
        "--interpolation",
        type=click.Choice(["nearest", "bilinear", "bicubic", "lanczos", "none"]),
        help="Interpolation that resizes images. none: images must have the "
        "declared size (fixed filters only). Default: the interpolation of the model.",
    ),
    click.option(
        "--crop-pct",
        type=values.Number(0.01, 1),
        help="Fraction of each side of the image that the center crop keeps. Default: "
        "the model's fraction.",
    ),
)
@option_group(
    "Fixed filters",
    click.option(
        "--scatter-j",
        default="2",
        callback=values.scales,
        help="Scale J of ScatterNet, which averages over 2**J pixels. Type 1,2 to use "
        "both scales.",
    ),
    click.option(
        "--scatter-l",
        type=values.Whole(1, values.MOST_ANGLES),
        default=8,
        help="Number of orientations of ScatterNet's filters.",
    ),
    click.option(
        "--colors",
        default="rgb",
        type=click.Choice(["rgb", "opponent"]),
        help="Color space. opponent: luminance, red-green and blue-yellow.",
    ),
)
@option_group(
    "Features",
    click.option(
        "--axes",
        type=values.NATURAL,
        help="Number of directions, such as 400, to project features on. They separate "
        "the backbone's own classes best. This option helps with small budgets and "
        "many classes.",
    ),
    click.option(
        "--mirror",
        is_flag=True,
        help="Average the features of each image and its mirror image.",
    ),
    click.option(
        "--normalize",
        default=None,
        type=click.Choice(["none", "group", "unit", "synthetic", "local"]),
        help="Per-image normalization of the feature map. synthetic: scale "
        "channels by statistics of random images. local: signed square root, "
        "then synthetic, then scaling at each position. Default: local for fixed "
        "filters, else none.",
    ),
    click.option(
        "--groups",
        type=values.WHOLE,
        default=0,
        help="Number of channel groups for --normalize group.",
    ),
    click.option(
        "--dtype",
        default="float32",
        type=click.Choice(["float16", "float32"]),
        help="Type of the numbers in the features file.",
    ),
)
@option_group(
    "Speed, memory and processes",
    click.option(
        "--device",
        default="auto",
        type=click.Choice(["auto", "cpu", "cuda"]),
        help="Device of the backbone. auto: a GPU if there is one.",
    ),
    click.option(
        "--amp",
        type=click.Choice(["bfloat16", "float16"]),
        is_flag=False,
        flag_value="float16",
        help="Use mixed precision of this type (GPU only). --amp without a type means "
        "float16.",
    ),
    click.option(
        "--batch-size",
        type=values.NATURAL,
        help="Number of images per batch. Default: 16 on a CPU, 128 on a GPU or for "
        "fixed filters.",
    ),
    click.option(
        "--workers",
        type=values.MANY,
        help="Number of threads. Default: one per processor core, and at most 8 "
        "with a GPU.",
    ),
    BLOCK_ROWS_OPTION,
    click.option(
        "--shard",
        metavar="I/K",
        help="Extract part I of K, counted from 0. `dphead features join` joins "
        "the parts. Default: RANK/WORLD_SIZE of torchrun.",
    ),
)
def extract(**given: Any) -> None:
    """Compute features of the images in SOURCE with a frozen backbone.

    SOURCE is a folder of images by class (see --layout), a table of paths (see
    --columns), an .npz, or a Hugging Face dataset. It may also be a folder of IDX or
    CIFAR binary files. Run the same command again to resume. Images that were extracted
    before, with any backbone, keep their data set and its ledger.

    With several processes (torchrun, or --shard I/K), each writes one shard. Join them
    with `dphead features join`.
    """
    with shown("listing images") as progress:
        source = _checked(given)
        progress.begin("loading the backbone")

        from dphead_extract.run import ExtractOptions
        from dphead_extract.run import extract as run

        from dphead.analysis.protected import describe_input
        from dphead.fit.known_weights import note_weights
        from dphead.fit.ledgers import image_index

        given["index"] = image_index()
        given["people"] = declared(given.get("people"), given["new_people"])
        own = {f.name for f in fields(ExtractOptions)} & set(given)
        options = ExtractOptions(**{name: given[name] for name in own})
        summary = run(options, progress, source)
    speed = tied(f"{summary.rows_per_second:.0f} rows a second")
    made = f"by {tied(summary.backbone)} ({speed})"
    print_written(summary, *([] if summary.already_complete else [made]))
    note = f" ({summary.note})" if summary.note else ""
    say("Images", f"{describe_input(summary.transform)}{note}")
    if summary.weights is not None:
        note_weights(*summary.weights)
    say("Data set", summary.dataset_id)
    print_people(summary)
    if summary.recognized:
        say(
            "Known",
            "these images were extracted before, so they share that data set and its "
            "ledger (--new-data-set: use a separate ledger)",
        )
    for other in summary.overlaps:
        say("Private", f"private, do not publish: {other}", err=True)
    if options.shard.count > 1:
        output = given["output"]
        shards = f"{output.stem}.shard-*-of-{options.shard.count}{output.suffix}"
        join = f"dphead features join {output.with_name(shards)} -o {output}"
        say("Next", "when all shards are written:", join)
    elif summary.class_names is not None:
        print_budget(summary.path)
    print_left_out(summary.left_out)
    print_problems(summary.problems)


def _checked(given: dict[str, Any]) -> Any:
    """Turn the typed values in `given` into option objects, and return the source.

    All values are checked before the import of PyTorch, which takes seconds.
    """
    from dphead_extract.backbones.base import BackboneOptions, check_options
    from dphead_extract.backbones.families import settings_of_families, traits_of
    from dphead_extract.images import PixelRange
    from dphead_extract.normalization import RowNorm
    from dphead_extract.shards import Shard
    from dphead_extract.sources.classes import Classes
    from dphead_extract.sources.columns import Columns
    from dphead_extract.sources.holdout import Holdout
    from dphead_extract.sources.opening import open_source

    given["classes"] = Classes.parse(
        given["classes"],
        given["folder_names_are_public"],
        given["ignore_labels"],
        given["allow_unlabeled"],
    )
    given["pixels"] = PixelRange(given["bits"], given["intensity"])
    given["columns"] = Columns(**given["columns"], encoding=given["encoding"])
    given["holdout"] = Holdout(given["test_fraction"], given["by_group"])
    names = ("source", "classes", "split", "layout", "columns", "pixels")
    opened = tuple(given[name] for name in names)
    for name in [name for name, value in given.items() if value is None]:
        del given[name]
    kind = given.get("normalize") or traits_of(given["backbone"]).normalization
    given["settings"] = {
        name: given[name] for name in settings_of_families() if name in given
    }
    network = {f.name for f in fields(BackboneOptions)} & set(given)
    shard = given.get("shard")
    given |= {
        "backbone": BackboneOptions(
            given["backbone"], **{name: given[name] for name in network}
        ),
        "normalize": RowNorm(kind, given["groups"]),
        "shard": Shard.parse(shard) if shard else Shard.of_process(),
    }
    check_options(given["backbone"])
    source = open_source(*opened)
    given["holdout"].split(source)
    return source
