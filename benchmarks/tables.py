"""Render stored results as Markdown tables.

They are written to benchmarks/TABLES.md, and between markers in README.md and docs/.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks import claims, papers, verdicts
from benchmarks.commands import METHODS
from benchmarks.experiments import audit_defects, peers, scale
from benchmarks.prose import table, wrapped
from benchmarks.runner import stored
from benchmarks.store import RESULTS, heads, read

TITLES = tomllib.loads((Path(__file__).parent / "titles.toml").read_text())
INTRODUCTION = """# The papers' tables

The tables show claimed and measured accuracy in %, as mean ± standard deviation over
paired noise draws (draw k has seed k). The verdict is *reproduced* if the difference is
at most max(0.3, 2 √(sd²/k + sd_claim²)), and otherwise *above* or *below*. A median
absolute deviation is reproduced if the difference is at most half of its last digit.
The first run of a claim has the paper's settings, and noise calibrated by the paper's
accountant. Other runs have our settings, which we chose on held-out rows, or the
tightest accountant (exact, or PLD for Poisson batches) and so less noise. The table
shows the ε of each run under both accountants. `python -m benchmarks reproduce
PAPER-TABLE` runs missing fits. `results/claims/` has every fit with its settings,
commit, machine and ε by every accountant.
"""
SCATTERNET = """The table shows the test accuracy in % as mean ± standard deviation over
noise draws. A number without a standard deviation is one draw. The names stand for
these options:

- without normalization: `--normalize none`
- by synthetic images: `--normalize synthetic`
- per-image normalization: `--normalize local` (the default)
- two scales: `--scatter-j 1,2`
- opponent colors: `--colors opponent`
- mirrored: `--mirror`
- patches of ScatterNet's maps: `--backbone deep-patches`
- two scales and 48 px: two files of such features, concatenated (`docs/patches.md`)

Each option was chosen on held-out training rows. On the test rows of Fashion-MNIST,
patches (one scale) have a lower accuracy than ScatterNet.

Rows with per-image normalization or patches were measured with the current `auto`. The
other rows were measured with an earlier `auto`, which took fewer and shorter steps
above ε = 0.5, so these rows may be too low."""
BACKBONE_NOTE = """The table shows the test accuracy of `auto` in % as mean ± standard
deviation over noise draws. ε = inf is one run without noise or clipping. Both backbones
were trained on ImageNet-1k. TABLES.md has every method on each of them."""
SUMMARY = """Each printed number counts once, by the run with the paper's settings and
accounting. The last column counts the numbers that any run reproduces, including runs
with our settings, or with less noise by a tighter accountant.

- *In small* means a smaller network: only the order of the numbers in a column is
  compared.
- *Arithmetic* numbers follow from a formula. They agree if the formula gives the
  printed digits for one of the training set sizes in the paper.
- *Not printed* means that the paper lacks settings or digits.

TABLES.md shows every run, explains the numbers below, and has the commands and the
estimated hours of all other numbers."""
Row = dict[str, Any]
Head = tuple[str, str]  # a file of results/heads/, and a method
PAGES = tuple(
    Path(name)
    for name in ("README.md", "docs/results.md", "docs/audit.md", "docs/papers.md")
)


def title_of(name: str) -> str:
    """Return the title of a table, or of the features of rows."""
    parts = ("heads", "backbones", "tables")
    return next((TITLES[p][name] for p in parts if name in TITLES[p]), name)


def accuracy_table(name: str) -> str:
    """Render mean ± sd of test accuracy over noise draws, a line for each method."""
    found = {method: heads(name, method) for method in METHODS}
    epsilons = sorted({e for cells in found.values() for e in cells})
    lines = [
        [method, *map(_cell, (cells[e] for e in epsilons))]
        for method, cells in found.items()
        if cells
    ]
    return table(["method", *verdicts.columns(epsilons)], lines)


def auto_table(titles: dict[str, str], epsilons: Sequence[float]) -> str:
    """Render `auto`: a line for each name of `titles`, a column for each epsilon."""
    lines = []
    for name, title in titles.items():
        if cells := heads(name, "auto"):
            lines.append([title, *map(_cell, (cells[e] for e in epsilons))])
    return table(["features", *verdicts.columns(epsilons)], lines)


def differences(pairs: Sequence[tuple[str, Head, Head]]) -> str:
    """Render differences of two heads' mean accuracies, in points at each epsilon."""
    found = [(title, _means(*one), _means(*other)) for title, one, other in pairs]
    epsilons = sorted({e for _, one, other in found for e in one.keys() & other.keys()})
    lines = [
        [title, *(_difference(one.get(e), other.get(e)) for e in epsilons)]
        for title, one, other in found
    ]
    return table(["difference", *verdicts.columns(epsilons)], lines)


def _difference(one: float | None, other: float | None) -> str:
    return "—" if one is None or other is None else f"{round(one - other, 1) + 0:+.1f}"


def gains() -> str:
    """Render what larger images and other backbones add to the accuracy of `auto`."""
    return differences(
        [
            (f"{data}: {what}", (f"{name}-{one}", "auto"), (f"{name}-{two}", "auto"))
            for name, data in TITLES["data"].items()
            for what, (one, two) in TITLES["gains"].items()
        ]
    )


def compared_with_fc() -> str:
    """Render DP-SGD and DP-Adam minus DP-FC, on all features that have both."""
    return differences(
        [
            (f"{title.partition(' (')[0]}: {method}", (name, method), (name, "dp-fc"))
            for name, title in TITLES["backbones"].items()
            for method in ("dp-sgd", "dp-adam")
            if _means(name, method) and _means(name, "dp-fc")
        ]
    )


def _means(features: str, method: str) -> dict[float, float]:
    """Return the mean accuracy in % of a method at each epsilon."""
    return {e: mean(values) for e, values in heads(features, method).items()}


def cost_table(rows: list[Row]) -> str:
    """Render median wall seconds and highest peak memory of `dphead fit`."""
    cells: dict[tuple[str, str, float], list[Row]] = defaultdict(list)
    for r in rows:
        cells[r["dataset"], r["method"], r["epsilon"]].append(r)
    names = ("features", "method", "ε", "seconds (median)", "runs", "peak memory")
    lines = []
    for (dataset, method, epsilon), group in cells.items():
        seconds = median(r["seconds"] for r in group)
        memory = max(r["peak_memory_mb"] for r in group)
        cells_of = [
            title_of(dataset),
            method,
            f"{epsilon:g}",
            f"{seconds:.1f}",
            str(len(group)),
        ]
        lines.append([*cells_of, f"{memory:.0f} MB"])
    return table(names, lines)


def render() -> dict[str, str]:
    """Return every table by the name of its marker."""
    tables = {
        "papers": f"{papers.table()}\n\n{papers.NOTE}",
        "five": f"{papers.summary()}\n\n{papers.SHORT_NOTE}",
        "verdicts": f"{verdicts.summary(stored(), by_table=False)}\n\n{SUMMARY}",
    }
    for path in sorted((RESULTS / "heads").glob("*.jsonl")):
        rows = read(path)
        note = (
            "The table shows the test accuracy in %, as mean ± standard deviation over "
            "noise draws. "
            f"{_source(rows)}"
        )
        tables[path.stem] = f"{accuracy_table(path.stem)}\n\n{note}"
    scatternet = auto_table(TITLES["heads"], (0.1, 0.5, 1.0, 2.0, 3.0))
    tables["scatternet"] = f"{scatternet}\n\n{SCATTERNET}"
    backbones = auto_table(TITLES["backbones"], (0.5, 1.0, 2.0, 8.0, float("inf")))
    tables["backbones"] = f"{backbones}\n\n{BACKBONE_NOTE}"
    tables["gains"] = gains()
    tables["compared-with-fc"] = compared_with_fc()
    costs = read(RESULTS / "cost.jsonl")
    newest = {(r["dataset"], r["method"], r["epsilon"]): r["commit"] for r in costs}
    costs = [
        r
        for r in costs
        if r["commit"] == newest[r["dataset"], r["method"], r["epsilon"]]
    ]
    tables["cost"] = (
        f"{cost_table(costs)}\n\nThe table shows the time of the whole command. "
        f"{_source(costs)}"
    )
    tables["defects"] = audit_defects.table()
    tables["hidden"] = audit_defects.repeated_table()
    steps = [row for row in read(peers.OUT / "steps.jsonl") if "started" in row]
    tables["peers"] = f"{peers.table()}\n\n{_source(steps)}"
    tables["scale"] = f"{scale.table()} {_source(read(scale.OUT / 'rows.jsonl'))}"
    return tables


def write(
    pages: Sequence[Path] = PAGES, out: Path = Path("benchmarks/TABLES.md")
) -> None:
    """Write TABLES.md, and the tables in pages of prose.

    In a page, a table replaces the text between `<!-- table: NAME -->` and
    `<!-- end -->`.
    """
    tables = render()
    rows = stored()
    parts = [f"## Summary of verdicts\n\n{verdicts.summary(rows)}\n\n{SUMMARY}\n"]
    for name, text in tables.items():
        # these tables are only on other pages
        if name in ("five", "verdicts", "gains", "compared-with-fc"):
            continue
        parts.append(f"## {title_of(name)}\n\n{text}\n")
    parts.append(INTRODUCTION)
    # the paper with most measured rows comes first
    for paper in sorted(claims.PAPERS, key=lambda p: p != "TB21"):
        parts.append(verdicts.paper_section(paper, rows))
    head = (
        "# Measured results\n\n`make tables` writes this file from "
        "`benchmarks/results/`.\n\n"
    )
    page = head + "\n".join(parts)
    # links are relative to the project's folder, in which `benchmarks` is
    out.write_text(wrapped(page.replace("](benchmarks/", "](")))
    for path in pages:
        up = "](../benchmarks/" if path.parent.name == "docs" else "](benchmarks/"
        text = path.read_text()
        for name, shown in tables.items():
            text = _between_markers(text, name, shown.replace("](benchmarks/", up))
        path.write_text(wrapped(text))


def _between_markers(text: str, name: str, table: str) -> str:
    pattern = rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)"
    return re.sub(
        pattern,
        lambda m: m.group(1) + table + "\n" + m.group(2),
        text,
        flags=re.DOTALL,
    )


def _source(rows: list[Row]) -> str:
    commits = ", ".join(sorted({r["commit"] for r in rows}))
    return f"Commit {commits}; {'; '.join(sorted({r['machine'] for r in rows}))}."


def _cell(values: list[float]) -> str:
    return verdicts.mean_sd(values) if values else "—"
