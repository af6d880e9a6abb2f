"""Implement `dphead evaluate` and `dphead predict`: a finished run on other rows.

What they print is exact for these rows, and outside the guarantee.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.choices import PATH
from dphead.cli.options import AS_JSON, BITS, INTENSITY, LAYOUT
from dphead.cli.paths import check_there
from dphead.cli.progress import Progress, shown
from dphead.cli.text import section, tied

SHOWN_CLASSES = 20  # how many of the weakest the text names; chosen, not measured
SPLIT_OF_SOURCE = click.option("--split", help="Split of SOURCE, if it has several.")
VOTE = click.option(
    "--vote",
    type=values.Whole(0, values.SEVERAL),
    default=0,
    help="A network trained on views: so many views of an image vote.",
)
WEIGHTS = click.option(
    "--weights",
    type=PATH,
    help="A head's backbone's weights file, to turn images into features.",
)
DEVICE = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu or cuda."
)


@dataclass(frozen=True)
class Asked:
    """Hold a run folder, and the rows to measure or predict."""

    run: Path
    source: Path
    split: str | None
    layout: str | None
    bits: int | None
    intensity: tuple[float, float] | None
    vote: int
    weights: Path | None
    device: str

    @property
    def of_network(self) -> bool:
        """Return whether the run is of a whole network, not of a head."""
        return (self.run / "model.json").exists()

    def check_there(self) -> None:
        """Raise ValueError for a path that does not exist."""
        check_there("a run folder", self.run)
        check_there("images or a features file", self.source)
        check_there("a weights file", self.weights)


@dataclass(frozen=True)
class Predicted:
    """Hold predictions.

    `probabilities` has shape (n, n_classes). `names` are the rows', or None; `classes`
    are the classes' names.
    """

    probabilities: Any
    names: Any
    classes: list[str]


@click.command(short_help="Measure a head or a network on labelled rows.")
@click.argument("run", type=PATH)
@click.argument("source", type=PATH)
@SPLIT_OF_SOURCE
@LAYOUT
@BITS
@INTENSITY
@VOTE
@WEIGHTS
@DEVICE
@AS_JSON
def evaluate(as_json: bool, **given: Any) -> None:
    """Accuracy, its standard error, top-5, per-class accuracy and calibration of what
    RUN holds, on SOURCE.

    SOURCE is images in any form `extract` reads, or a features file.
    The numbers are exact functions of those rows and are not covered by the guarantee
    of RUN: nothing is stored. A row without a class, unreadable or not finite, counts
    as wrong.
    """
    asked = Asked(**given)
    asked.check_there()

    from dphead.fit.report import plain

    with shown("reading rows") as progress:
        metrics, names = _measured(asked, progress)
    if as_json:
        import json

        click.echo(json.dumps(plain(metrics)))
        return
    what = "network" if asked.of_network else "head"
    for label, lines in _shown_metrics(metrics, names, asked.vote).items():
        click.echo(section(label, lines))
    if none := metrics["n_without_class"]:
        click.echo(section("No class", [f"{without_class(none)}, counted as wrong"]))
    note = f"exact functions of these rows: the {what}'s guarantee does not cover them."
    click.echo(section("Note", [f"These figures are {note}"]))


def without_class(count: int) -> str:
    """Say how many rows have no class, and why."""
    rows = "1 row is" if count == 1 else f"{count:,} rows are"
    return f"{rows} unreadable or not finite: no class"


def _shown_metrics(
    metrics: dict[str, Any], names: list[str], vote: int
) -> dict[str, list[str]]:
    """Return the metrics as labelled lines."""
    accuracy = f"{100 * metrics['accuracy']:.2f} ± {100 * metrics['accuracy_se']:.2f} %"
    parts = {
        "Rows": [f"{metrics['n']:,} with a label of the classes"],
        "Accuracy": [f"{tied(accuracy)} (± one standard error)"],
    }
    if vote:
        voted = f"{100 * metrics['vote_accuracy']:.2f} %"
        parts["By vote"] = [f"{tied(voted)} ({vote} views an image)"]
    if metrics["top5"] is not None:
        parts["Top 5"] = [f"{100 * metrics['top5']:.2f} %"]
    gap = f"{100 * metrics['calibration_error']:.2f} %"
    parts["Confidence"] = [f"off by {tied(gap)} in the mean (calibration error)"]
    parts["Classes"] = _shown_classes(metrics, names)
    return parts


def _shown_classes(metrics: dict[str, Any], names: list[str]) -> list[str]:
    """Return the accuracy of each class that has rows, the weakest first."""
    each, counts = metrics["per_class_accuracy"], metrics["per_class_n"]
    there = [k for k, count in enumerate(counts) if count]
    there.sort(key=lambda k: (each[k], k))
    lines = [
        tied(f"{100 * each[k]:6.2f} % of {counts[k]:,}: {names[k]}")
        for k in there[:SHOWN_CLASSES]
    ]
    rest = len(there) - len(lines)
    return [*lines, f"and {rest:,} others, all with --json"] if rest else lines


def _heads_do_not_vote(vote: int) -> None:
    if vote:
        raise ValueError(
            f"a vote needs the run folder of a network, got {vote=} for a head. Leave "
            "--vote out."
        )


def _networks_have_weights(weights: Path | None) -> None:
    if weights is not None:
        raise ValueError(
            f"a network's weights are in its run folder, got {weights=}. Leave "
            "--weights out."
        )


def _check_range(asked: Asked, trained: dict[str, Any]) -> None:
    """Refuse samples declared in another range than that of the training images.

    `trained` is what was recorded of the training images.
    """
    from dphead_extract.images import PixelRange

    given, own = PixelRange(asked.bits, asked.intensity), PixelRange.of(trained)
    if given not in (PixelRange(), own):
        raise ValueError(
            "the range of samples must be that of the training images, "
            f"{own.record() or 'none declared'}, got {given.record()}. Leave --bits "
            "and --intensity out."
        )


def _measured(asked: Asked, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Return (metrics, class names)."""
    if asked.of_network:
        from dphead.finetune import saved

        _networks_have_weights(asked.weights)
        network, state, facts = saved.load_network(asked.run, asked.device)
        _check_range(asked, facts.get("pixels", {}))
        rows = saved.open_rows(
            network, facts, asked.source, asked.split, asked.layout, measured=True
        )
        progress.begin("measuring")
        found = saved.evaluate(network, state, rows, asked.vote)
        return found, facts["class_names"]
    import tempfile

    from dphead.fit import files

    _heads_do_not_vote(asked.vote)
    with tempfile.TemporaryDirectory() as folder:
        source = _features(asked, Path(folder), progress, labelled=True)
        split = asked.split if source == asked.source else None
        head, facts, x, y = files.open_matching(asked.run, source, split, labelled=True)
    return files.evaluate(head, (x, y), len(facts["class_names"])), facts["class_names"]


def _features(
    asked: Asked, folder: Path, progress: Progress, labelled: bool = False
) -> Path:
    """Return the features file for a head.

    It is the source, or a file extracted from images into `folder`.
    """
    from dphead.fit import files
    from dphead.fit.head_file import load_head

    made = load_head(asked.run)[1].get("extraction") or {}
    _check_range(asked, made.get("transform") or {})
    if files.is_features_file(asked.source):
        files.check_layout(asked.layout, asked.source)
        return asked.source
    progress.begin("loading the frozen network")
    images = files.Images(
        asked.source, asked.split, asked.layout, labelled, asked.weights, asked.device
    )

    def told(done: int, total: int) -> None:
        progress(done, total, "extracting features")

    return files.extract_like(asked.run, images, folder / "features.h5", told)


@click.command(short_help="Predict classes for a features file or images.")
@click.argument("run", type=PATH)
@click.argument("source", type=PATH)
@click.option(
    "-o", "--output", type=PATH, help="File to write (default: standard output)."
)
@click.option(
    "--top",
    type=values.COUNT,
    default=3,
    show_default=True,
    help="The so many most likely classes of each image.",
)
@click.option(
    "--format",
    "asked_format",
    type=click.Choice(["csv", "json", "parquet"]),
    help="Default: by the file's name, else csv.",
)
@SPLIT_OF_SOURCE
@LAYOUT
@BITS
@INTENSITY
@VOTE
@WEIGHTS
@DEVICE
def predict(
    output: Path | None, top: int, asked_format: str | None, **given: Any
) -> None:
    """Write row, file name and the most likely classes with their probabilities for
    each row of SOURCE: a features file, or images in any form `extract` reads.

    Images go through the network and settings that the run folder records. A features
    file's rows have names where the table that `extract` wrote is beside it. With a
    vote, the probability is the share of the views. A row that is not finite, or an
    image that cannot be read, has no class and no probability.
    """
    asked = Asked(**given)
    asked.check_there()

    from dphead.analysis.metrics import classified
    from dphead.cli.predictions import format_of, table, write

    kind = format_of(output, asked_format)
    with shown("reading rows") as progress:
        found = _predicted(asked, progress)
    write(table(found.probabilities, found.classes, found.names, top), output, kind)
    if output is not None:
        wrote = f"{output}: {len(found.probabilities):,} rows"
        click.echo(section("Wrote", [wrote]))
    if none := int((~classified(found.probabilities)).sum()):
        # standard output may hold the table
        click.echo(section("No class", [without_class(none)]), err=output is None)


def _predicted(asked: Asked, progress: Progress) -> Predicted:
    if asked.of_network:
        return _predicted_by_network(asked, progress)
    import tempfile

    from dphead.analysis.metrics import probabilities
    from dphead.fit import files

    _heads_do_not_vote(asked.vote)
    with tempfile.TemporaryDirectory() as folder:
        source = _features(asked, Path(folder), progress)
        # extraction has already selected the split
        split = asked.split if source == asked.source else None
        head, facts, x, _ = files.open_matching(asked.run, source, split)
        names = files.row_names(source, split)
    p = probabilities(head.scores(x), head.loss)
    return Predicted(p, names, facts["class_names"])


def _predicted_by_network(asked: Asked, progress: Progress) -> Predicted:
    from dphead.analysis.metrics import probabilities
    from dphead.finetune import saved

    _networks_have_weights(asked.weights)
    network, state, facts = saved.load_network(asked.run, asked.device)
    _check_range(asked, facts.get("pixels", {}))
    rows = saved.open_rows(network, facts, asked.source, asked.split, asked.layout)
    progress.begin("predicting")
    scores = saved.scores(network, state, rows, asked.vote)
    shares = scores / scores.sum(axis=1, keepdims=True) if asked.vote else None
    p = probabilities(scores) if shares is None else shares
    return Predicted(p, rows.names, facts["class_names"])
