"""`dphead evaluate` and `dphead predict`."""

from pathlib import Path
from typing import Any

import click

from dphead.cli.extract import LAYOUT

PATH = click.Path(path_type=Path)
VOTE = click.option(
    "--vote",
    type=click.IntRange(min=0),
    default=0,
    help="A network trained on views: so many views of an image vote.",
)


@click.command(short_help="Measure a head or a network on labelled rows.")
@click.argument("run", type=PATH)
@click.argument("source", type=PATH)
@click.option("--split", help="Split of SOURCE, if it has several.")
@LAYOUT
@VOTE
@click.option("--device", default="auto", show_default=True, help="Of a network.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    run: Path,
    source: Path,
    split: str | None,
    layout: str | None,
    vote: int,
    device: str,
    as_json: bool,
) -> None:
    """Accuracy, its standard error, top-5, per-class accuracy and calibration of what
    RUN holds, on SOURCE.

    SOURCE is a features file for a head, and what the training took, images or a
    features file, for a network.
    The numbers are exact functions of those rows and are not covered by the guarantee
    of RUN: nothing is stored.
    """
    from dphead.runs.report import plain

    metrics, names = _measured(run, source, split, layout, vote, device)
    if as_json:
        import json

        click.echo(json.dumps(plain(metrics)))
        return
    click.echo(f"rows            {metrics['n']}")
    click.echo(
        f"accuracy        {100 * metrics['accuracy']:.2f} ± "
        f"{100 * metrics['accuracy_se']:.2f} %"
    )
    if vote:
        click.echo(
            f"by vote         {100 * metrics['vote_accuracy']:.2f} % ({vote} views an "
            "image)"
        )
    click.echo(
        f"worst class     {100 * metrics['worst_class_accuracy']:.2f} % "
        f"({names[metrics['worst_class']]})"
    )
    what = "network" if _is_network(run) else "head"
    click.echo(
        f"These figures are exact functions of the rows above: the {what}'s guarantee "
        "does not cover them."
    )


def _is_network(run: Path) -> bool:
    return (run / "model.json").exists()


def _heads_do_not_vote(vote: int) -> None:
    if vote:
        raise ValueError(
            f"a vote needs the run folder of a network, got {vote=} for a head. Leave "
            "--vote out."
        )


def _measured(
    run: Path,
    source: Path,
    split: str | None,
    layout: str | None,
    vote: int,
    device: str,
) -> tuple[dict[str, Any], list[str]]:
    """(metrics, class names)."""
    if _is_network(run):
        from dphead.endtoend import saved

        network, state, facts = saved.load_network(run, device)
        x, y = saved.open_rows(network, facts, source, split, layout, measured=True)
        return saved.evaluate(network, state, x, y, vote), facts["class_names"]
    from dphead.runs import files

    _heads_do_not_vote(vote)
    files.check_layout(layout, source)
    head, facts, x, y = files.open_matching(run, source, split, labelled=True)
    return files.evaluate(head, (x, y), len(facts["class_names"])), facts["class_names"]


@click.command(short_help="Predict classes for a features file or images.")
@click.argument("run", type=PATH)
@click.argument("source", type=PATH)
@click.option(
    "-o", "--output", type=PATH, help="CSV to write (default: standard output)."
)
@click.option("--split", help="Split of SOURCE, if it has several.")
@LAYOUT
@VOTE
@click.option(
    "--weights",
    type=PATH,
    help="A head's backbone's weights file, to turn images into features.",
)
@click.option("--device", default="auto", show_default=True)
def predict(
    run: Path,
    source: Path,
    output: Path | None,
    split: str | None,
    layout: str | None,
    vote: int,
    weights: Path | None,
    device: str,
) -> None:
    """Write row, class and probability for each row of SOURCE: a features file, or
    images in any form `extract` reads.

    Images go through the network and settings that the run folder records. With a vote,
    the probability is the share of the views.
    """
    import csv
    import sys

    p, names = _predicted(run, source, split, layout, vote, weights, device)
    stream: Any = open(output, "w", newline="") if output else sys.stdout  # noqa: SIM115
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["row", "class", "probability"])
    for i, row in enumerate(p):
        k = int(row.argmax())
        writer.writerow([i, names[k], f"{row[k]:.4f}"])
    if output:
        stream.close()


def _predicted(
    run: Path,
    source: Path,
    split: str | None,
    layout: str | None,
    vote: int,
    weights: Path | None,
    device: str,
) -> tuple[Any, list[str]]:
    """(probabilities (n, n_classes), class names)."""
    import tempfile

    from dphead.analysis.metrics import probabilities

    if _is_network(run):
        from dphead.endtoend import saved

        if weights is not None:
            raise ValueError(
                f"a network's weights are in its run folder, got {weights=}. Leave "
                "--weights out."
            )
        network, state, facts = saved.load_network(run, device)
        scores = saved.scores(
            network,
            state,
            saved.open_rows(network, facts, source, split, layout)[0],
            vote,
        )
        p = (
            scores / scores.sum(axis=1, keepdims=True)
            if vote
            else probabilities(scores)
        )
        return p, facts["class_names"]
    from dphead.runs import files

    _heads_do_not_vote(vote)
    with tempfile.TemporaryDirectory() as folder:
        if files.is_features_file(source):
            files.check_layout(layout, source)
        else:
            source = files.extract_like(
                run,
                source,
                Path(folder) / "features.h5",
                weights,
                device,
                split,
                layout,
            )
        head, facts, x, _ = files.open_matching(run, source, split)
    return probabilities(head.scores(x), head.loss), facts["class_names"]
