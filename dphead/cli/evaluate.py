"""`dphead evaluate` and `dphead predict`."""

from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)


@click.command(short_help="Measure a head on a features file.")
@click.argument("run", type=PATH)
@click.argument("features", type=PATH)
@click.option("--split", help="Split of FEATURES, if it has several.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(run: Path, features: Path, split: str | None, as_json: bool) -> None:
    """Accuracy, its standard error, top-5, per-class accuracy and calibration of the head in RUN on FEATURES.

    The numbers are exact functions of those rows and are not covered by the head's guarantee: nothing is stored.
    """
    from dphead.report import plain
    from dphead.run import evaluate as measure
    from dphead.run import open_matching

    head, facts, x, y = open_matching(run, features, split, labelled=True)
    metrics = measure(head, (x, y), len(facts["class_names"]))
    if as_json:
        import json

        click.echo(json.dumps(plain(metrics)))
        return
    names = facts["class_names"]
    click.echo(f"rows            {metrics['n']}")
    click.echo(f"accuracy        {100 * metrics['accuracy']:.2f} ± {100 * metrics['accuracy_se']:.2f} %")
    click.echo(f"worst class     {100 * metrics['worst_class_accuracy']:.2f} % ({names[metrics['worst_class']]})")
    click.echo("These figures are exact functions of the rows above: the head's guarantee does not cover them.")


@click.command(short_help="Predict classes for a features file or images.")
@click.argument("run", type=PATH)
@click.argument("source", type=PATH)
@click.option("-o", "--output", type=PATH, help="CSV to write (default: standard output).")
@click.option("--split", help="Split of SOURCE, if it is a features file with several.")
@click.option("--weights", type=PATH, help="The backbone's weights file, to turn images into features.")
@click.option("--device", default="auto", show_default=True)
def predict(run: Path, source: Path, output: Path | None, split: str | None, weights: Path | None, device: str) -> None:
    """Write row, class and probability for each row of SOURCE: a features file, or images in any form `extract` reads.

    Images go through the head's own network and settings, which its run folder records.
    """
    import csv
    import sys
    import tempfile

    from dphead.metrics import probabilities
    from dphead.run import extract_like, is_features_file, open_matching

    with tempfile.TemporaryDirectory() as folder:
        if not is_features_file(source):
            source = extract_like(run, source, Path(folder) / "features.h5", weights, device)
        head, facts, x, _ = open_matching(run, source, split)
    p = probabilities(head.scores(x), head.loss)
    names = facts["class_names"]
    stream: Any = open(output, "w", newline="") if output else sys.stdout  # noqa: SIM115
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["row", "class", "probability"])
    for i, row in enumerate(p):
        k = int(row.argmax())
        writer.writerow([i, names[k], f"{row[k]:.4f}"])
    if output:
        stream.close()
