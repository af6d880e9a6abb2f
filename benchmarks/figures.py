"""The papers' figures redrawn from stored rows, into results/figures. matplotlib is
imported when used.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.heads import METHODS
from benchmarks.plots import new_figure, save_figure
from benchmarks.store import RESULTS, read
from benchmarks.tables import TITLES

FOLDER = RESULTS / "figures"
README_FIGURE = RESULTS.parents[1] / "docs" / "pictures" / "accuracy.png"
# Okabe, Ito 2008
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vPX"
Row = dict[str, Any]


def write(folder: Path = FOLDER) -> list[Path]:
    """Draw every figure that there are rows for; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [of_readme()]
    for path in sorted((RESULTS / "heads").glob("*.jsonl")):
        rows = read(path)
        if len({row["method"] for row in rows}) > 1:
            paths.append(
                accuracy(
                    folder / f"accuracy-{path.stem}.png",
                    rows,
                    TITLES.get(path.stem, path.stem),
                )
            )
    return paths


def of_readme(path: Path = README_FIGURE) -> Path:
    """The README's: every method on CIFAR-10 against epsilon."""
    name = "cifar10-mobilenetv2"
    return accuracy(path, read(RESULTS / "heads" / f"{name}.jsonl"), TITLES[name])


def accuracy(path: Path, rows: list[Row], title: str) -> Path:
    """Test accuracy against epsilon, a line a method, mean ± sd over draws; dashed:
    without noise.
    """
    figure, (axes,) = new_figure(1, (6.4, 4.4))
    for method, color, marker in zip(METHODS, COLORS, MARKERS, strict=True):
        cells = _cells(
            (r["epsilon"], r["accuracy"]) for r in rows if r["method"] == method
        )
        x = [e for e in cells if e < float("inf")]
        if x:
            _line(axes, x, [cells[e] for e in x], color, marker, method)
        if float("inf") in cells:
            axes.axhline(
                cells[float("inf")][0], color=color, linestyle="--", linewidth=0.7
            )
    axes.set(
        xscale="log",
        xlabel="ε (δ = 1e-5, zero-out, exact)",
        ylabel="test accuracy in %",
    )
    _plain_ticks(
        axes, sorted({r["epsilon"] for r in rows if r["epsilon"] < float("inf")})
    )
    axes.set_title(title, fontsize=11)
    axes.legend(frameon=False, fontsize=9, ncols=2)
    save_figure(figure, path)
    return path


def _cells(pairs: Any) -> dict[Any, list[float]]:
    """Values in % by key, keys in order."""
    cells: dict[Any, list[float]] = defaultdict(list)
    for key, value in pairs:
        cells[key].append(100 * value)
    return dict(sorted(cells.items()))


def _line(
    axes: Any,
    x: Sequence[float],
    values: Sequence[list[float]],
    color: str,
    marker: str,
    label: str,
) -> None:
    error = [stdev(v) if len(v) > 1 else 0.0 for v in values]
    axes.errorbar(
        x,
        [mean(v) for v in values],
        error,
        color=color,
        marker=marker,
        markersize=5,
        capsize=2,
        linewidth=1.2,
        label=label,
    )


def _plain_ticks(axes: Any, values: Sequence[float]) -> None:
    axes.set_xticks(list(values), [f"{v:g}" for v in values])
    axes.set_xticks([], minor=True)
