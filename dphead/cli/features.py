"""Implement `dphead features`, which writes features files without images.

Heavy modules are imported only when a command runs.
"""

from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.choices import PATH
from dphead.cli.features_file import Unusable, print_budget, print_problems
from dphead.cli.options import (
    BLOCK_ROWS,
    BY_GROUP,
    CLASSES,
    COLUMNS,
    DATASET_ID,
    ENCODING,
    FEATURES_FILE,
    IGNORE_LABELS,
    SAME_DATA_AS,
    TEST_FRACTION,
    UNLABELED,
)
from dphead.cli.progress import shown
from dphead.cli.text import section, tied


@click.group()
def features() -> None:
    """Import embeddings, or join the shards of a features file."""


@features.command("import")
@click.argument("source", metavar="FILE", type=PATH)
@FEATURES_FILE
@click.option(
    "--features",
    "features_",
    metavar="NAMES",
    help='Columns of features, separated by commas. "emb_*" selects all columns '
    "with this prefix. Default: all columns except label, group and split, or "
    "the array `features` of an .npz.",
)
@COLUMNS
@ENCODING
@TEST_FRACTION
@BY_GROUP
@CLASSES
@IGNORE_LABELS
@UNLABELED
@click.option(
    "--width",
    type=values.COUNT,
    help="Length of the lists in a column of features. Required if the file's schema "
    "does not give the length.",
)
@click.option(
    "--backbone",
    default="imported",
    show_default=True,
    metavar="NAME",
    help="Name of the embedding model. Heads need files with the same name.",
)
@click.option("--dtype", type=click.Choice(["float16", "float32"]))
@BLOCK_ROWS
@DATASET_ID
@SAME_DATA_AS
@click.option(
    "--not-fitted-on-these-rows",
    "attested",
    is_flag=True,
    help="Attest that the model reads each row alone and was not fitted to these "
    "rows. Reports repeat this statement, and `dphead check` accepts it.",
)
def _import(source: Path, output: Path, **given: Any) -> None:
    """Write the embeddings in FILE to a features file, one row for each.

    FILE is .npy, .npz, .csv, .tsv, .parquet, .arrow or .feather. The embedding model
    must read each row alone and must not be fitted to these rows. A row that is not
    finite is masked: it keeps its position and counts zero. Run the same command again
    to resume.
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
        wrote = f"{wrote}; already complete"
    taken = [f"by {options.backbone}", *(f"with {role}s" for role in done.roles)]
    click.echo(section("Wrote", [f"{wrote}, {', '.join(taken)}"]))
    if done.columns:
        click.echo(section("Features", [_shortened(done.columns)]))
    click.echo(section("Data set", [done.dataset_id]))
    if names is not None:
        print_budget(done.path)
    print_problems(done.problems)


def _shortened(names: tuple[str, ...]) -> str:
    """Return up to six names as text, or the first and last of a longer list."""
    return ", ".join(names if len(names) <= 6 else (*names[:3], "...", *names[-2:]))


def _import_options(source: Path, output: Path, given: dict[str, Any]) -> Any:
    from dphead_extract.importing import ImportOptions
    from dphead_extract.sources.classes import Classes
    from dphead_extract.sources.columns import Columns
    from dphead_extract.sources.holdout import Holdout

    names = given["features_"] or ""
    direct = ("backbone", "dtype", "block_rows", "dataset_id", "same_data_as")
    direct = (*direct, "attested")
    return ImportOptions(
        source,
        output,
        Columns(
            tuple(name.strip() for name in names.split(",") if name.strip()),
            **given["columns"],
            width=given["width"],
            encoding=given["encoding"],
        ),
        Classes.parse(
            given["classes"],
            ignore_labels=given["ignore_labels"],
            allow_unlabeled=given["allow_unlabeled"],
        ),
        Holdout(given["test_fraction"], given["by_group"]),
        **{name: given[name] for name in direct},
    )


@features.command("join")
@click.argument("shards", nargs=-1, required=True, type=PATH)
@FEATURES_FILE
def _join(shards: tuple[Path, ...], output: Path) -> None:
    """Join all SHARDS of an extraction into one features file.

    The result is the file that a single process would have written. Every block is
    checked against its digest. Missing, damaged or mismatched shards are refused.
    """
    from dphead_extract.features.format import FormatError, open_features
    from dphead_extract.features.format import verify as check
    from dphead_extract.shards import join_shards

    try:
        with shown("joining and checking shards"):
            join_shards(shards, output)
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
