"""Draw stored results: beside the papers' numbers, and accuracy against epsilon.

`python -m benchmarks figures` writes a picture of each paper for TABLES.md and
docs/papers.md, and one for docs/results.md.
"""

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks import claims, verdicts
from benchmarks.claims import Claim
from benchmarks.commands import METHODS
from benchmarks.jobs import run_here
from benchmarks.plots import BLUE, ORANGE, new_figure, save_figure
from benchmarks.runner import stored
from benchmarks.store import RESULTS, heads
from benchmarks.tables import title_of

NAME = "cifar10-mobilenetv2"
OUT = RESULTS.parents[1] / "docs" / "pictures" / "accuracy.png"
COLORS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vPX"
FC23 = {"ImageNet-1K | DP-LS | 1": "DP-LS", "ImageNet-1K | DP-Newton | 10": "DP-Newton"}
FC23 |= {f"ImageNet-1K | {name} | 10": f"{name}, 10" for name in ("DP-FC", "DP-Adam")}
PICTURES = {  # panels of each paper: a title, and values of its claims' fields
    "fc23": (
        ("Table 3, CIFAR-10: ViT-B/16; here MobileNetV2", {"table": "3"}),
        ("Table 4, CIFAR-100: ViT-B/16; here MobileNetV2, half", {"table": "4"}),
    ),
    "tb21": (
        ("Table 1: ScatterNet, MNIST", {"table": "1", "dataset": "mnist"}),
        ("Table 2: ScatterNet, no noise, by normalization", {"table": "2"}),
    ),
    "de22": (("Table 2: WRN-40-4; here WRN-16-1, 16 pixels", {"table": "2"}),),
}


def write() -> list[Path]:
    """Draw every picture, and return their paths."""
    by_key = verdicts.by_key_of(stored())
    paths = [accuracies()]
    for paper, panels in PICTURES.items():
        figure, axes = new_figure(len(panels), (max(5.5 * len(panels), 6.4), 4.4))
        for one, (title, where) in zip(axes, panels, strict=True):
            found = [
                claim
                for claim in claims.load()
                if claim.paper.lower() == paper
                and run_here(claim)
                and claim.features != "CNN on ScatterNet"
                and all(getattr(claim, k) == v for k, v in where.items())
            ]
            beside(one, found, by_key)
            one.set_title(title, fontsize=10)
        paths.append(RESULTS / "figures" / f"{paper}.png")
        save_figure(figure, paths[-1], dpi=110)
    return paths


def beside(axes: Any, found: list[Claim], by_key: dict[str, list[Any]]) -> None:
    """Draw the paper's numbers (dashed, hollow) beside ours, against epsilon.

    If two numbers of a line have one epsilon, the line is drawn in printed order.
    """
    lines: dict[str, list[Claim]] = defaultdict(list)
    for claim in found:
        name = FC23.get(claim.row, "") if claim.paper == "FC23" else claim.features
        if name and not (claim.paper == "FC23" and claim.epsilon == "inf"):
            lines[name].append(claim)
    names = [*FC23.values(), *(name for name in lines if name not in FC23.values())]
    for name, line in lines.items():
        at = names.index(name) % len(FC23)
        by_epsilon = len({claim.epsilon for claim in line}) == len(line)
        x = [float(c.epsilon) if by_epsilon else i for i, c in enumerate(line)]
        style: dict[str, Any] = {"color": COLORS[at], "marker": MARKERS[at]}
        printed = [float("nan") if c.at_most else float(c.value) for c in line]
        hollow = {"markerfacecolor": "white", "linestyle": "--", "linewidth": 0.9}
        axes.plot(x, printed, label=f"{name}: the paper", **style, **hollow)
        rows = [by_key.get(run_here(c)[0].key, []) for c in line]
        ours = [[100 * row["accuracy"] for row in of] or [float("nan")] for of in rows]
        axes.plot(x, list(map(mean, ours)), label=f"{name}: here", **style)
        if by_epsilon:
            axes.set(xscale="log" if len(line) > 5 else "linear", xlabel="ε")
        else:
            words = [
                f"{c.row.split(' (')[0]} {c.settings.get('normalization', '')}"
                for c in line
            ]
            axes.set_xticks(x, words, rotation=20, ha="right", fontsize=8)
    axes.set_ylabel("accuracy in %")
    axes.legend(frameon=False, fontsize=8)


def accuracies() -> Path:
    """Draw a line for each method, as mean and standard deviation over noise draws.

    A dashed line is the accuracy without noise.
    """
    figure, (axes,) = new_figure(1, (6.4, 4.4))
    ticks: set[float] = set()
    for method, color, marker in zip(METHODS, COLORS, MARKERS, strict=True):
        cells = heads(NAME, method)
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
    axes.set_title(title_of(NAME), fontsize=11)
    axes.legend(frameon=False, fontsize=9, ncols=2)
    save_figure(figure, OUT)
    return OUT
