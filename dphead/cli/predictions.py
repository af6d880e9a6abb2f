"""Write predictions as a table: CSV, JSON or Parquet.

The table has rows, names and the k most likely classes.
"""

import json
import locale
import sys
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.items import unit_ids
from dphead_extract.safe_text import one_line, write_csv

from dphead.analysis.metrics import classified
from dphead.privacy.atomic_write import write_atomically, write_text

_FORMATS = ("csv", "json", "parquet")


def format_of(output: Path | None) -> str:
    """Return the format of an output's name, or CSV for standard output.

    Raises ValueError for an unknown ending.
    """
    kind = "csv" if output is None else output.suffix.lstrip(".").lower()
    if kind not in _FORMATS:
        raise ValueError(
            f"-o must end in .csv, .json or .parquet, got {output}. Use another name."
        )
    return kind


def mean_per_person(
    probabilities: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean probabilities of each group's rows that have a class.

    A row without a group is its own group.

    Returns
    -------
    (n_groups, n_classes) float
        The means, in the order of the first rows; NaN if no row has a class.
    (n_groups,) int
        Number of rows in each mean.
    (n_groups,) int
        Index of each group's first row.
    """
    _, first, person = np.unique(
        unit_ids(groups), return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    person, known = np.argsort(order)[person], classified(probabilities)
    sums = np.zeros((len(first), probabilities.shape[1]))
    np.add.at(sums, person[known], probabilities[known])
    counts = np.bincount(person[known], minlength=len(first))
    means = np.full_like(sums, np.nan)
    np.divide(sums, counts[:, None], out=means, where=counts[:, None] > 0)
    return means, counts, first[order]


def prediction_rows(
    probabilities: np.ndarray,
    classes: list[str],
    names: Any,
    top: int,
    counts: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Return one dict per row, with its most likely classes.

    The keys are row, image (if names are known), class, probability, class_2,
    probability_2, ... With `counts`, rows are people: the keys person, images and
    first_image replace row and image.

    Parameters
    ----------
    probabilities : ndarray of shape (n, n_classes)
        Probabilities. For a row of NaN, class and probability are None.
    classes : list of str
        The classes' names.
    names : sequence of shape (n,), or None
        The rows' names.
    top : int
        Largest number of classes to list for each row.
    counts : ndarray of shape (n,), optional
        Number of images of each person.
    """
    known = classified(probabilities)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    found = []
    for row, best in enumerate(order):
        entry: dict[str, Any] = {"row": row}
        if counts is not None:
            entry = {"person": row, "images": int(counts[row])}
        if names is not None:
            entry["image" if counts is None else "first_image"] = names[row]
        for place, position in enumerate(best, 1):
            more = "" if place == 1 else f"_{place}"
            probability = round(float(probabilities[row, position]), 4)
            entry[f"class{more}"] = classes[position] if known[row] else None
            entry[f"probability{more}"] = probability if known[row] else None
        found.append(entry)
    return found


def write_predictions(
    rows: list[dict[str, Any]], output: Path | None, kind: str, excel: bool = False
) -> None:
    """Write the rows to a file, or to standard output.

    With `excel`, CSV has a byte order mark, and the decimal sign and the separator of
    this machine's locale, as Excel expects them.
    """
    if output is not None and kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        made = pyarrow.Table.from_pylist(rows)
        write_atomically(
            output, lambda file: parquet.write_table(made, file), typed=True
        )
        return
    if output is None and kind == "csv" and sys.stdout.isatty():
        rows = [_on_screen(row) for row in rows]
    text = json.dumps(rows, indent=1) + "\n" if kind == "json" else _csv(rows, excel)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, typed=True)


def _csv(rows: list[dict[str, Any]], excel: bool) -> str:
    columns = list(rows[0]) if rows else ["row", "class", "probability"]
    sign = decimal_sign() if excel else "."
    cells = (
        [
            f"{v:.4f}".replace(".", sign) if isinstance(v, float) else v
            for v in row.values()
        ]
        for row in rows
    )
    # where a comma is the decimal sign, Excel separates cells by semicolons
    text = write_csv([columns, *cells], ";" if sign == "," else ",")
    return f"\ufeff{text}" if excel else text


def decimal_sign() -> str:
    """Return the decimal sign of this machine's locale, "." if it is unknown."""
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        locale.setlocale(locale.LC_NUMERIC, "")
        return str(locale.localeconv()["decimal_point"])
    except locale.Error:
        return "."
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


def _on_screen(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without line feeds, which would look like further rows."""
    return {k: one_line(v) if isinstance(v, str) else v for k, v in row.items()}
