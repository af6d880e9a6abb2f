"""Implement `dphead evaluate` and `dphead predict` for a finished run.

Their output is exact for the given rows, and the guarantee does not cover it.
"""

import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from dphead_extract.declared import Option
from dphead_extract.options import LAYOUT
from dphead_extract.sources.columns import COLUMNS, Columns

from dphead.cli import values
from dphead.cli.command import PRINTED, WithOptions, option_group
from dphead.cli.options import AS_JSON
from dphead.cli.progress import Progress, shown
from dphead.cli.text import percent, print_json, say

_reading = partial(Option, section="Rows and networks")


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Hold a run folder and the options for the rows to measure or predict."""

    run: Annotated[Path, Option("", flags=("RUN",), existing="a run folder")]
    source: Annotated[
        Path,
        Option("", flags=("SOURCE",), existing="images or a features file"),
    ]
    split: Annotated[
        str | None,
        _reading("Split of SOURCE to use. Required if SOURCE has several splits."),
    ] = None
    layout: Annotated[str | None, LAYOUT] = None
    columns: Annotated[Columns, COLUMNS] = field(default_factory=Columns)
    weights: Annotated[
        tuple[Path, ...],
        _reading(
            "Weights file of the head's backbone, if SOURCE is images and the features "
            "were extracted with --weights. Repeat it for each backbone of `dphead "
            "features concat`, in the same order.",
            repeated=True,
            existing="a weights file",
        ),
    ] = ()
    model: Annotated[
        str | None,
        _reading(
            "Your own model, as package.module:function. Use the name given in "
            "training."
        ),
    ] = None
    device: Annotated[str, _reading("Device: auto, cpu or cuda.")] = "auto"

    def __post_init__(self) -> None:
        if self.of_network and self.weights:
            raise ValueError(
                f"`--weights` is for heads, but {self.run} holds a network. Remove "
                "`--weights`."
            )
        if self.model is not None and not self.of_network:
            raise ValueError(
                f"`--model` is for networks, but {self.run} holds none. Remove "
                "`--model`."
            )

    def roles(self, embeddings: bool = False) -> Columns:
        """Return the declared columns, for a table of images or for embeddings.

        Raises ValueError if columns of features are named for images.
        """
        if self.columns.features and not embeddings:
            raise ValueError(
                "--columns features=NAME is for a file of embeddings, got "
                f"{self.source}. Drop features=NAME."
            )
        return self.columns

    def check_features(self, kind: str) -> None:
        """Raise ValueError for an option that is for images, if SOURCE has features."""
        given = {
            "--layout": self.layout is not None,
            "--weights": self.weights != (),
            "--device": self.device not in ("auto", "cpu"),
        }
        if wrong := [option for option, used in given.items() if used]:
            raise ValueError(
                f"{wrong[0]} is for images, and {self.source} is {kind}. Drop "
                f"{wrong[0]}."
            )

    @property
    def of_network(self) -> bool:
        """Return whether the run trained a network, not a head."""
        return (self.run / "model.json").exists()


@click.command(cls=WithOptions, declared="dphead.cli.evaluate:_Asked")
@option_group(PRINTED, AS_JSON)
def evaluate(as_json: bool, **given: Any) -> None:
    """Measure the accuracy, class accuracies and calibration of RUN on SOURCE.

    SOURCE is a features file, or images in any form that `extract` reads. For a head on
    imported embeddings, SOURCE may be a file of embeddings by the same model. The
    figures are exact for its rows, so the guarantee of RUN does not cover them. Nothing
    is stored. An unreadable image, or a row that is not finite, counts as wrong.

    \b
    dphead evaluate run test.h5
    """
    from dphead.analysis.protected import of_people
    from dphead.cli.summary import shown_accuracy, shown_classes, shown_confusion

    asked = _Asked(**given)
    with shown("reading rows") as progress:
        metrics, names = _measured(asked, progress)
    if as_json:
        print_json(metrics, indent=None)
        return
    what = "network" if asked.of_network else "head"
    lines = {
        "Rows": [f"{metrics['n']:,} with a label of the classes{of_people(metrics)}"],
        "Accuracy": [f"{shown_accuracy(metrics)} (± one standard error)"],
    }
    if metrics["top5"] is not None:
        lines["Top 5"] = [percent(metrics["top5"])]
    balanced = percent(metrics["balanced_accuracy"])
    gap = percent(metrics["calibration_error"])
    lines["Balanced"] = [f"{balanced} (mean of the class accuracies)"]
    lines["Confidence"] = [f"off by {gap} on average (calibration error)"]
    lines["Classes"] = shown_classes(metrics, names)
    lines["Classes"] += _shown_missed(asked.run, metrics, names)
    if metrics["confusion"]:
        lines["Mistakes"] = shown_confusion(metrics["confusion"], names)
    if none := metrics["n_without_class"]:
        lines["No class"] = [f"{_without_class(none)}, counted as wrong"]
    lines["Note"] = [
        f"These figures have no noise, and the {what}'s guarantee does not cover the "
        "measured rows."
    ]
    for label, texts in lines.items():
        say(label, *texts)


def _without_class(count: int) -> str:
    """Return the number of rows without a class, with the reason."""
    rows = "1 row is" if count == 1 else f"{count:,} rows are"
    return f"{rows} unreadable or not finite: no class"


def _shown_missed(run: Path, metrics: dict[str, Any], names: list[str]) -> list[str]:
    """Return lines on the classes that were never predicted."""
    from dphead.analysis.check import help_missed
    from dphead.analysis.sealed import read_json
    from dphead.cli.summary import missed_classes

    remedy, report = "a larger epsilon, or more rows of the class", run / "report.json"
    if report.exists():
        remedy = help_missed(read_json(report, "report"))
    return list(missed_classes(metrics, names, "rows", remedy))


def _open_network(asked: _Asked, measured: bool) -> tuple[tuple[Any, Any, Any], dict]:
    """Return (network, state, rows), and the contents of model.json."""
    from dphead.finetune import saved

    network, state, facts = saved.read_network(asked.run, asked.device, asked.model)
    rows = saved.open_rows(
        network, facts, asked.source, asked.split, asked.layout, measured, asked.roles()
    )
    return (network, state, rows), facts


def _measured(asked: _Asked, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Return (metrics, class names)."""
    if asked.of_network:
        from dphead.finetune import saved

        opened, facts = _open_network(asked, measured=True)
        progress.begin("measuring")
        return saved.measure_network(*opened), facts["class_names"]
    from dphead.analysis.metrics import evaluate_labeled
    from dphead.fit import files

    with tempfile.TemporaryDirectory() as folder:
        source, split = _features(asked, folder, progress, labeled=True)
        opened = files.open_matching(asked.run, source, split, labeled=True)
    head, facts, x, y, groups = opened
    return evaluate_labeled(head.scores(x), y, head.loss, groups), facts["class_names"]


def _predicted(
    asked: _Asked, progress: Progress, grouped: bool
) -> tuple[Any, list[str], Any, Any]:
    """Return (probabilities, class names, names or None, group ids if `grouped`)."""
    from dphead.analysis.metrics import probabilities

    if asked.of_network:
        if grouped:
            raise ValueError(
                f"--per-person is for heads, but {asked.run} holds a network. Remove "
                "--per-person."
            )
        from dphead.finetune import saved

        opened, facts = _open_network(asked, measured=False)
        progress.begin("predicting")
        return (
            probabilities(saved.scores(*opened)),
            facts["class_names"],
            opened[2].names,
            None,
        )
    from dphead.fit import files

    with tempfile.TemporaryDirectory() as folder:
        source, split = _features(asked, folder, progress)
        head, facts, x, _, groups = files.open_matching(asked.run, source, split)
        names = files.row_names(source, split)
    if grouped and groups is None:
        raise ValueError(
            "--per-person needs groups, and the source has none. Name the column of "
            "people with --columns group=NAME. A features file needs this option when "
            "`dphead extract` or `dphead features import` writes it."
        )
    found = probabilities(head.scores(x), head.loss)
    return found, facts["class_names"], names, groups


def _features(
    asked: _Asked, folder: str, progress: Progress, labeled: bool = False
) -> tuple[Path, str | None]:
    """Return the features file for a head, and the split to read.

    The file is the source itself, or a new file in `folder`, made from images or
    embeddings.
    """
    from dphead.analysis.protected import made_of_images
    from dphead.fit import files
    from dphead.fit.head_file import open_head

    made = open_head(asked.run)[1].get("extraction")
    if files.is_features_file(asked.source):
        files.check_layout(asked.source, asked.layout, asked.roles())
        asked.check_features("a features file")
        return asked.source, asked.split
    output = Path(folder, "features.h5")
    if asked.source.is_file() and not made_of_images(made):
        asked.check_features("a file of embeddings")
        backbone = files.import_like(
            asked.run, asked.source, output, labeled, asked.roles(embeddings=True)
        )
        said = f"{asked.source}: read as embeddings by {backbone}, the head's model"
        say("Rows", said, err=True)
        return output, asked.split
    progress.begin("loading the backbone")
    files.extract_like(
        asked.run,
        asked.source,
        output,
        labeled,
        asked.weights,
        progress,
        split=asked.split,
        layout=asked.layout,
        columns=asked.roles(),
        device=asked.device,
    )
    return output, None


@click.command(cls=WithOptions, declared="dphead.cli.evaluate:_Asked")
@option_group(
    "Table of predictions",
    click.option(
        "-o",
        "--output",
        type=values.PATH,
        help="File to write the predictions to, with the ending .csv, .json or "
        ".parquet. Default: CSV on standard output.",
    ),
    click.option(
        "--top",
        type=values.NATURAL,
        default=3,
        help="Number of most likely classes to list for each row.",
    ),
    click.option(
        "--csv-dialect",
        type=click.Choice(["plain", "excel"]),
        default="plain",
        help="excel: CSV that Excel opens in the language of this machine.",
    ),
    click.option(
        "--per-person",
        is_flag=True,
        help="Write one line for each group of SOURCE: the mean of the probabilities "
        "of its images, and their number.",
    ),
)
def predict(
    output: Path | None, top: int, csv_dialect: str, per_person: bool, **given: Any
) -> None:
    """Write the most likely classes and their probabilities for each row of SOURCE.

    SOURCE is a features file, images in any form that `extract` reads, or one image
    file. Images go through the backbone recorded in the run folder. For a head on
    imported embeddings, SOURCE may be a file of embeddings by the same model, such as
    emb.npz. For a features file, the file names of images are listed if the table that
    `extract` wrote is in the same folder. An unreadable image, or a row that is not
    finite, gets no class.

    \b
    dphead predict run new_images/ -o predictions.csv
    """
    asked = _Asked(**given)

    from dphead.analysis.metrics import classified
    from dphead.cli.predictions import (
        format_of,
        mean_per_person,
        prediction_rows,
        write_predictions,
    )

    kind = format_of(output)
    if csv_dialect == "excel" and kind != "csv":
        raise click.UsageError(
            f"--csv-dialect needs a CSV file, got {output}. Use the ending .csv."
        )
    with shown("reading rows") as progress:
        found, classes, names, groups = _predicted(asked, progress, per_person)
    if per_person:
        means, counts, first = mean_per_person(found, groups)
        names = None if names is None else [names[row] for row in first]
        rows = prediction_rows(means, classes, names, top, counts)
    else:
        rows = prediction_rows(found, classes, names, top)
    write_predictions(rows, output, kind, csv_dialect == "excel")
    if output is not None:
        what = "people" if per_person else "rows"
        say("Wrote", f"{output}: {len(rows):,} {what}")
    if none := int((~classified(found)).sum()):
        # standard output may carry the table
        say("No class", _without_class(none), err=output is None)
