"""Load the numbers that four papers print: `load("FC23")` returns a Claim for each.

`<paper>.toml` has a `[[table]]` for each printed table, or several if rows differ in
more than their cells. Its `rows` are the printed rows in their order, with `|` between
cells. An empty label repeats the label above. `columns` describes the cells: a name
(`epochs`) is a label, and `name=value, ...` is a column of claimed numbers with values
that hold for all of them. Names that are not fields of a Claim are settings, which
override the preset's.

In a cell, "98.1 ± 0.1" and "98.1 (0.1)" are a value and its standard deviation. `-`,
`—`, `/` and an empty cell claim nothing, except that `-` means "at most" if the table
has `at_most`. `?` marks a number that is damaged in the paper's text. A column of
`metric=epsilon` is also the row's epsilon. A `[[settings]]` block has a printed table
of settings: each column of its `preset` is a claim about epsilon. `needs.toml` has the
data, weights and options that a claim needs to run here.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from dphead.planning import presets

FOLDER = Path(__file__).parent
PAPERS = ("FC23", "TB21", "De22", "TAN23")
CELL = re.compile(
    r"(?P<value>[+-]?\d+(?:[.,]\d+)*)(?:\s*(?:±\s*|\(±?)(?P<sd>\??\d+(?:\.\d+)?)\)?)?"
)
NOTHING = {"", "-", "—", "/"}
FIELDS = {
    "dataset",
    "features",
    "method",
    "epsilon",
    "delta",
    "metric",
    "unit",
    "preset",
    "source",
}


@dataclass(frozen=True)
class Claim:
    """Hold one printed number, with texts as printed in the paper.

    row, column: place in the table. settings: the row's settings besides the preset.
    epsilon: a float as text, "inf", or "" if unknown. delta: a float as text, ""
    without privacy. value, sd: in `unit`. at_most: whether the value is an upper bound.
    source: the cited work, "" if the number is the paper's own. needs: weights and
    other requirements of the features (needs.toml), empty for a cited number.
    unreadable: why the number or its row cannot be read, or "". number: position among
    the numbers of one id.
    """

    paper: str
    table: str
    row: str
    column: str
    value: str
    metric: str
    unit: str
    sd: str = ""
    at_most: bool = False
    dataset: str = ""
    features: str = ""
    method: str = ""
    epsilon: str = ""
    delta: str = ""
    preset: str = ""
    source: str = ""
    unreadable: str = ""
    settings: Mapping[str, int | float | str] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    number: int = 1

    @property
    def id(self) -> str:
        """Return PAPER-TABLE-DATASET-EPSILON, which all cells of a column share."""
        names = (self.paper, self.table, self.dataset, self.epsilon)
        return "-".join(filter(None, names))

    @property
    def name(self) -> str:
        """Return ID:NUMBER, which no other cell has."""
        return f"{self.id}:{self.number}"

    @property
    def n_rows(self) -> int:
        """Return the number of training rows."""
        found = self.settings.get("training_rows", data(self.dataset)["train_rows"])
        return int(found)


def load(paper: str | None = None) -> list[Claim]:
    """Return every claim of a paper, or of all papers, in printed order.

    An unreadable table is one claim without a value.

    Raises ValueError for an unknown paper, a row with too few or too many cells, or a
    cell that is not a number.
    """
    found: list[Claim] = []
    for name in PAPERS if paper is None else (paper,):
        for table in tables(name)["table"]:
            found += _claims(name, table)
        for table in tables(name).get("settings", []):
            found += _epsilons(name, table)
    counts = Counter[str]()
    for place, claim in enumerate(found):
        counts[claim.id] += 1
        found[place] = replace(claim, number=counts[claim.id])
    return found


@cache
def tables(paper: str) -> dict[str, Any]:
    """Return the contents of a paper's file.

    The keys are text (the paper's file name), common, delta, names and table (a list).
    """
    if paper not in PAPERS:
        raise ValueError(
            f"there is no paper {paper!r}. The papers are {', '.join(PAPERS)}."
        )
    return tomllib.loads((FOLDER / f"{paper.lower()}.toml").read_text())


def rows(table: dict[str, Any]) -> list[list[str]]:
    """Return the cells of each printed row of a table.

    Raises ValueError if a row has more or fewer cells than the table has columns.
    """
    cells = [
        [cell.strip() for cell in line.split("|")]
        for line in table["rows"].strip().splitlines()
    ]
    for row in cells:
        if len(row) != len(table["columns"]):
            raise ValueError(
                f"the row {row} must have a cell for each of "
                f"{table['columns']}. Correct the file."
            )
    return cells


def _claims(paper: str, table: dict[str, Any]) -> Iterator[Claim]:
    file = tables(paper)
    given = (
        file["common"]
        | {k: v for k, v in table.items() if k in FIELDS}
        | table.get("settings", {})
    )
    place = {"paper": paper, "table": table["table"]}
    if "unreadable" in table:
        yield Claim(
            **place,
            row="",
            column="",
            value="",
            **given,
            unreadable=table["unreadable"],
        )
    labels: dict[str, str] = {}
    for row in rows(table):
        cells = dict(zip(table["columns"], row, strict=True))
        labels |= {
            name: cell for name, cell in cells.items() if "=" not in name and cell
        }
        said = {
            name: file.get("names", {}).get(cell, cell) for name, cell in labels.items()
        }
        for column, cell in cells.items():
            if column.startswith("metric=epsilon,"):
                said["epsilon"] = cell
        for column, cell in cells.items():
            if "=" in column and (
                cell not in NOTHING or (cell == "-" and "at_most" in table)
            ):
                fields = (
                    given
                    | said
                    | dict(part.strip().split("=") for part in column.split(","))
                )
                yield _claim(
                    fields,
                    table,
                    cell,
                    **place,
                    row=" | ".join(labels.values()),
                    column=column,
                )


def _epsilons(paper: str, table: dict[str, Any]) -> Iterator[Claim]:
    """Yield a claim about epsilon for each column of a preset."""
    given = dict(table)
    place = {"paper": paper, "table": given.pop("table"), "column": "metric=epsilon"}
    for settings in presets.columns(table["preset"]):
        said = {name: str(value) for name, value in settings.items()}
        fields = {"metric": "epsilon", "unit": ""} | given | said
        row = " | ".join(f"{name} {value}" for name, value in said.items())
        yield _claim(fields, table, said["epsilon"], **place, row=row)


def _claim(
    fields: dict[str, Any], block: dict[str, Any], cell: str, **place: str
) -> Claim:
    """Build a claim from its fields and cell, and add its delta, preset and needs.

    Raises ValueError if the cell is not a number.
    """
    match = CELL.fullmatch(block["at_most"] if cell == "-" else cell.lstrip("?"))
    if match is None:
        raise ValueError(
            f"the cell {cell!r} of {place} is not a number. Correct the file."
        )
    damaged = cell.startswith("?") or any(
        str(v).startswith("?") for v in fields.values()
    )
    fields = {k: "" if str(v).startswith("?") else v for k, v in fields.items()}
    value, sd = (
        match["value"],
        match["sd"] if match["sd"] and match["sd"][0] != "?" else "",
    )
    cited, dataset = bool(fields.get("source")), fields["dataset"]
    fields["preset"] = "" if cited else fields.get("preset", "").format(**fields)
    delta = _delta(fields.get("delta", "")) or tables(place["paper"])["delta"].get(
        dataset, ""
    )
    fields["delta"] = "" if fields.get("epsilon") == "inf" else delta
    return Claim(
        **place,
        **{k: v for k, v in fields.items() if k in FIELDS},
        value=value,
        sd=sd,
        at_most=cell == "-",
        unreadable=block["damaged"] if damaged else "",
        settings={k: _number(v) for k, v in fields.items() if k not in FIELDS and v},
        needs={} if cited else needs("features")[fields["features"]],
    )


def _number(text: str) -> int | float | str:
    """Return texts such as "32,768", "18K" and "n=100" as numbers, others unchanged."""
    match = re.fullmatch(r"(?:n=)?(\d+(?:\.\d+)?)([KM]?)", text.replace(",", ""))
    if match is None:
        return text
    number = float(match[1]) * {"": 1, "K": 1_000, "M": 1_000_000}[match[2]]
    return int(number) if number.is_integer() else number


def _delta(text: str) -> str:
    """Return a printed delta as a float's text.

    "8·10^-7" and "8.10^-7" become "8e-7", "10^-6" becomes "1e-6", and "1/5000" becomes
    "0.0002".
    """
    power = re.fullmatch(r"(?:(\d+)[.·])?10\^(-\d+)", text)
    if power:
        return f"{power[1] or 1}e{power[2]}"
    part = re.fullmatch(r"1/(\d+)", text)
    return repr(1 / int(part[1])) if part else text


def data(dataset: str) -> dict[str, Any]:
    """Return a data set's images and public numbers of rows."""
    return needs("data")[dataset]


def tried(claim: Claim) -> list[str]:
    """Return notes on runs of a claim at a different size."""
    return [
        found["text"]
        for found in needs("tried")
        if all(getattr(claim, name) == value for name, value in found["claim"].items())
    ]


def needs(part: str) -> Any:
    """Return a part of needs.toml."""
    return _needs()[part]


@cache
def _needs() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "needs.toml").read_text())
