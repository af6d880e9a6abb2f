"""Implement `dphead features`: make features files without extracting images.

Everything heavy may be imported only when a command runs.
"""

from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.choices import PATH
from dphead.cli.features_file import Unusable, print_budget, print_problems
from dphead.cli.options import (
    BLOCK_ROWS,
    CLASSES,
    DATASET_ID,
    FEATURES_FILE,
    IGNORE_LABELS,
    SAME_DATA_AS,
    UNLABELLED,
)
from dphead.cli.progress import shown
from dphead.cli.text import section, tied


@click.group()
def features() -> None:
    """Features files of embeddings of your own, and of several processes."""


@features.command("import")
@click.argument("source", metavar="FILE", type=PATH)
@FEATURES_FILE
@click.option(
    "--features",
    "features_",
    metavar="NAMES",
    help=(
        'Columns of features, comma-separated; "emb_*" is all of that form. Default: '
        "all but label, group and split; of an .npz the array features."
    ),
)
@click.option(
    "--label",
    metavar="NAME",
    help=(
        "Column (of an .npz: array; of an .npy: path of another) of labels. Default: "
        "the one named label or labels, if there is one."
    ),
)
@click.option(
    "--group",
    metavar="NAME",
    help="Likewise, whose a row is: texts or numbers; missing: on its own.",
)
@click.option(
    "--split",
    metavar="NAME",
    help="Likewise, train, validation or test.",
)
@CLASSES
@IGNORE_LABELS
@UNLABELLED
@click.option(
    "--width",
    type=values.COUNT,
    help="Length of a column of lists, where the file's header does not say it.",
)
@click.option(
    "--backbone",
    default="imported",
    show_default=True,
    metavar="NAME",
    help="What made the embeddings; a head is used only on files of the same.",
)
@click.option("--dtype", type=click.Choice(["float16", "float32"]))
@BLOCK_ROWS
@DATASET_ID
@SAME_DATA_AS
def import_(source: Path, output: Path, **given: Any) -> None:
    """Write the embeddings in FILE to a features file: one row of numbers each, of a
    text, a table, a sound, a slide.

    FILE is .npy, .npz, .csv, .tsv, .parquet, .arrow or .feather. The embeddings must
    have been made for each row alone, by something that was not fitted to these rows. A
    row that is not finite is masked: it keeps its place and counts zero. A killed run
    resumes with the same command.
    """
    from dphead_extract.errors import FormatError
    from dphead_extract.importing import import_features

    try:
        options = _import_options(source, output, given)
        with shown("importing rows") as progress:
            done = import_features(options, progress)
    except (FormatError, OSError) as error:
        raise Unusable(error) from error
    size = tied(f"{done.n_rows:,} rows x {done.n_features:,} features")
    names = done.class_names
    classes = "classes not declared" if names is None else f"{len(names)} classes"
    wrote = f"{done.path}: {size}, {tied(classes)}"
    if done.already_complete:
        wrote = f"{wrote}; it was complete, nothing was done"
    taken = [f"by {options.backbone}", *(f"with {role}s" for role in done.roles)]
    click.echo(section("Wrote", [f"{wrote}, {', '.join(taken)}"]))
    if done.columns:
        click.echo(section("Features", [_shortened(done.columns)]))
    click.echo(section("Data set", [done.dataset_id]))
    if names is not None:
        print_budget(done.path)
    print_problems(done.problems)


def _shortened(names: tuple[str, ...]) -> str:
    """Return a few names unchanged; of many, the first and the last."""
    return ", ".join(names if len(names) <= 6 else (*names[:3], "...", *names[-2:]))


def _import_options(source: Path, output: Path, given: dict[str, Any]) -> Any:
    from dphead_extract.importing import ImportOptions
    from dphead_extract.sources.classes import Classes
    from dphead_extract.sources.tables import Columns

    names = given["features_"] or ""
    direct = ("backbone", "dtype", "block_rows", "dataset_id", "same_data_as")
    return ImportOptions(
        source,
        output,
        Columns(
            tuple(name.strip() for name in names.split(",") if name.strip()),
            given["label"],
            given["group"],
            given["split"],
            given["width"],
        ),
        Classes.parse(
            given["classes"],
            ignore_labels=given["ignore_labels"],
            allow_unlabelled=given["allow_unlabelled"],
        ),
        **{name: given[name] for name in direct},
    )


@features.command()
@click.argument("shards", nargs=-1, required=True, type=PATH)
@FEATURES_FILE
def join(shards: tuple[Path, ...], output: Path) -> None:
    """Put all SHARDS of an extraction into one features file, the one that a single
    process would have written.

    Every block of rows is held against its digest; missing, damaged and differing
    shards are refused.
    """
    from dphead_extract.features.format import FormatError, open_features
    from dphead_extract.features.format import verify as check
    from dphead_extract.shards import join as run

    try:
        with shown("joining and checking shards"):
            run(shards, output)
            problems = check(output)
        with open_features(output) as file:
            size = f"{file.n_rows:,} rows x {file.n_features:,} features"
            wrote = f"{output}: {tied(size)} of {len(shards)} shards"
            click.echo(section("Wrote", [f"{wrote}, by {file.config['backbone']}"]))
            click.echo(section("Data set", [file.dataset_id]))
            if file.class_names is not None:
                print_budget(output)
        print_problems(problems)
    except (FormatError, OSError) as error:
        raise Unusable(error) from error
