"""Draw accuracy on CIFAR-10 against epsilon from stored rows, for docs/results.md."""

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from benchmarks.heads import METHODS
from benchmarks.plots import BLUE, ORANGE, new_figure, save_figure
from benchmarks.store import RESULTS, read
from benchmarks.tables import TITLES

NAME = "cifar10-mobilenetv2"
OUT = RESULTS.parents[1] / "docs" / "pictures" / "accuracy.png"
COLORS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vPX"


def write() -> list[Path]:
    """Draw a line for each method, as mean and standard deviation over noise draws.

    A dashed line is the accuracy without noise.
    """
    figure, (axes,) = new_figure(1, (6.4, 4.4))
    ticks: set[float] = set()
    for method, color, marker in zip(METHODS, COLORS, MARKERS, strict=True):
        cells: dict[float, list[float]] = defaultdict(list)
        for row in read(RESULTS / "heads" / f"{NAME}.jsonl"):
            if row["method"] == method:
                cells[row["epsilon"]].append(100 * row["accuracy"])
        for value in cells.pop(float("inf"), [])[:1]:
            axes.axhline(value, color=color, linestyle="--", linewidth=0.7)
        x = sorted(cells)
        ticks |= cells.keys()
        axes.errorbar(
            x,
            [mean(cells[e]) for e in x],
            [stdev(cells[e]) if len(cells[e]) > 1 else 0.0 for e in x],
            color=color,
            marker=marker,
            markersize=5,
            capsize=2,
            linewidth=1.2,
            label=method,
        )
    axes.plot(
        [], [], "--", color="gray", linewidth=0.7, label="dashed: no noise (ε = ∞)"
    )
    axes.set(
        xscale="log",
        xlabel="ε (δ = 1e-5, zero-out, exact)",
        ylabel="test accuracy in %",
    )
    axes.set_xticks(sorted(ticks), [f"{e:g}" for e in sorted(ticks)])
    axes.set_xticks([], minor=True)
    axes.set_title(TITLES[NAME], fontsize=11)
    axes.legend(frameon=False, fontsize=9, ncols=2)
    save_figure(figure, OUT)
    return [OUT]
