"""Implement `dphead features` and `dphead verify`, for files of features.

Problems of a file are private and go to standard error. Heavy modules are imported only
when a command runs.
"""

import shlex
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.command import WithOptions
from dphead.cli.progress import shown
from dphead.cli.text import say, tied

_TITLE = "private, for the data holder only:"


_OUTPUT = click.option(
    "-o",
    "--output",
    required=True,
    type=values.NamedPath(dir_okay=False),
    help="Features file to write (.h5).",
)


@click.group()
def features() -> None:
    """Import embeddings, join shards, or concatenate features of several backbones."""


@features.command(
    "import",
    cls=WithOptions,
    declared="dphead_extract.importing:ImportOptions",
    without="folder_names_public",
)
def _import(**given: Any) -> None:
    """Write the embeddings in FILE to a features file.

    FILE is .npz, .safetensors, .csv, .tsv, .parquet, or a folder of .npy. The
    embedding model must read each row alone and must not be fitted to these rows. A row
    that is not finite keeps its position, and adds zero to every sum of a fit. Run the
    same command again to resume.

    \b
    dphead features import emb.csv -o emb.h5 --classes 2 --columns label=finding
    """
    from dphead_extract.declared import made_from
    from dphead_extract.importing import ImportOptions, import_features

    people = declared(given["system"], given["new"])
    options = made_from(ImportOptions, given, people=people)
    with shown("importing rows") as progress:
        done = import_features(options, progress)
    taken = (f"with {role}s" for role in done.roles)
    print_written(done, f"backbone {options.backbone}", *taken)
    if done.columns:
        say("Features", _shortened(done.columns))
    say("Data set", done.dataset_id)
    if done.grouped:
        print_people(done.people, done.path)
    if done.class_names is not None:
        print_budget(done.path)
    print_problems(done.problems)


def _shortened(names: tuple[str, ...]) -> str:
    """Return up to six names as text, or the first three and last two of more."""
    return ", ".join(names if len(names) <= 6 else (*names[:3], "...", *names[-2:]))


@features.command("join")
@click.argument("shards", nargs=-1, required=True, type=values.PATH)
@_OUTPUT
def _join(shards: tuple[Path, ...], output: Path) -> None:
    """Join all SHARDS of an extraction into one features file.

    The result is the file that a single process would have written. Every block is
    checked against its digest. Missing, damaged or mismatched shards are refused.

    \b
    dphead features join train.shard-*-of-4.h5 -o train.h5
    """
    from dphead_extract.features.format import verify as check
    from dphead_extract.shards import join_shards

    from dphead.fit.people import record_joined

    with shown("joining and checking shards"):
        join_shards(shards, output)
        problems = check(output)
    record_joined(output)
    _print_joined(output, f"of {len(shards)} shards", problems)


@features.command("concat")
@click.argument("files", nargs=-1, required=True, type=values.PATH)
@_OUTPUT
def _concat(files: tuple[Path, ...], output: Path) -> None:
    """Concatenate the features of several backbones in FILES.

    All FILES must have the same images in the same order. Extract each further file
    with --same-data-as and the path of the first one. A row of the result has the
    features of all files, with equal norms.

    \b
    dphead features concat scatternet.h5 mobilenet.h5 -o both.h5
    """
    from dphead_extract.features.concatenation import concatenate
    from dphead_extract.features.format import verify as check

    with shown("concatenating and checking rows"):
        concatenate(files, output)
        problems = check(output)
    _print_joined(output, f"of {len(files)} files", problems)


def _print_joined(output: Path, made_of: str, problems: list[str]) -> None:
    """Print a summary of a joined file, its problems and the next commands."""
    from dphead_extract.features.format import open_features

    with open_features(output) as file:
        size = f"{file.n_rows:,} rows x {file.n_features:,} features"
        wrote = f"{output}: {tied(size)} {made_of}"
        say("Wrote", f"{wrote}, by {file.config['backbone']}")
        say("Data set", file.dataset_id)
        if file.class_names is not None:
            print_budget(output)
    print_problems(problems)


@click.command()
@click.argument("file", type=values.PATH)
def verify(file: Path) -> None:
    """Check a features FILE. The output is private: no guarantee covers it.

    Exit code 0: no problems. 1: problems, listed. 2: the file is unusable.

    \b
    dphead verify train.h5
    """
    from dphead_extract.features.format import verify as check

    with shown("checking rows"):
        problems = check(file)
    print_problems(problems)
    if problems:
        raise SystemExit(1)


def print_written(done: Any, *details: str) -> None:
    """Print a written features file, with its size and details."""
    names = done.class_names
    classes = "classes not declared" if names is None else f"{len(names)} classes"
    size = tied(f"{done.n_rows:,} rows x {done.n_features:,} features")
    state = "; already complete" if done.already_complete else ""
    wrote = f"{done.path}: {size}, {tied(classes)}{state}"
    say("Wrote", ", ".join((wrote, *details)))


def declared(system: str | None, new: bool) -> Any:
    """Return the `People` of `--people` and `--new-people`, with their index."""
    from dphead_extract.people import People

    from dphead.fit.ledgers import people_index
    from dphead.fit.noted import has_home

    index = people_index(declares=system is not None) if has_home() else None
    return People(index, system, new)


def print_people(people: dict[str, Any] | None, path: Path | None = None) -> None:
    """Print in which data sets people are recognized.

    `people` is `People.record` of a file. If it is None, print the declaration of the
    data set of `path`, a features file, because it can be newer than the file.
    """
    if people is None and path is not None:
        from dphead_extract.features.format import open_features

        from dphead.fit.ledgers import RowGroups, declared_people

        with open_features(path) as file:
            people = declared_people(RowGroups.of(file))
    if people is None:
        say(
            "People",
            "! recognized only within this data set. If other data sets have the same "
            "people, name their id system with --people",
        )
    elif people["new"]:
        say(
            "People",
            f"declared new in the id system {people['system']}, so this data set has "
            "a ledger of its own",
            "Ids are compared letter by letter: P-3 and p-3 are different people",
        )
    else:
        say("People", f"id system {people['system']}: its data sets share one ledger")


def print_budget(features: Path) -> None:
    """Print the next commands: set a budget, if this is still possible, and fit.

    A budget can be set only once, and only before the first fit.
    """
    from dphead_extract.features.format import open_features

    from dphead.fit.ledgers import counted_in, read_ledger
    from dphead.privacy.ledger import LedgerError

    with open_features(features) as file:
        splits, grouped = file.split_names, file.group is not None
        counted, begun = counted_in(file.dataset_id), True
    # ignore an unusable ledger, which a fit reports
    with suppress(LedgerError), closing(read_ledger(None, counted)) as book:
        begun = book.count_fits() > 0 or book.budget() is not None
    split = " --split train" if len(splits) > 1 else ""
    split += " --test-split test" if splits == ["train", "test"] else ""
    name = shlex.quote(str(features))
    # `fit` refuses a source with groups until the user decides; this cap is an example
    cap = " --group-cap 4" if grouped else ""
    lines = [f"dphead fit {name}{split} --epsilon 1{cap} -o run"]
    if grouped:
        lines.append(
            "4 is an example: choose before the first fit how many rows (images) of "
            "each person are used, from public knowledge (docs/patients.md)"
        )
    if not begun:
        lines = [
            "before the first fit, set a budget for all fits:",
            f"dphead ledger budget {name} --epsilon 3 --delta 1e-5",
            *lines,
        ]
    say("Next", *lines)


def print_problems(problems: list[str], left_out: Counter[str] | None = None) -> None:
    """Print left-out items by reason, and problems, on standard error.

    They are private. If there are none, say so on standard output.
    """
    parts = {"Problems": ([f"! {problem}" for problem in problems], "none found")}
    if left_out is not None:
        counts = (+left_out).most_common()  # only reasons that occurred
        lines = [f"{count:,} {reason}" for reason, count in counts]
        parts = {"Left out": (lines, "nothing"), **parts}
    for label, (lines, none) in parts.items():
        if lines:
            say(label, _TITLE, *lines, err=True)
        else:
            say(label, none)
