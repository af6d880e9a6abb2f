"""The papers' figures redrawn from stored rows, into results/figures. matplotlib is
imported when used.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.experiments import curves
from benchmarks.heads import METHODS
from benchmarks.jobs import Job, jobs_of, selected
from benchmarks.runner import stored
from benchmarks.store import RESULTS, read
from benchmarks.tables import HEADS
from dphead.analysis.plots import new_figure, save_figure
from dphead.planning.calibration import calibrate
from dphead.privacy.accounting import GaussianEvent

FOLDER = RESULTS / "figures"
README_FIGURE = RESULTS.parents[1] / "docs" / "pictures" / "accuracy.png"
# Okabe, Ito 2008
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vPX"
Row = dict[str, Any]


def write(folder: Path = FOLDER) -> list[Path]:
    """Draw every figure that there are rows for; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [noise_law(folder / "tb21-figure6.png"), of_readme()]
    for path in sorted((RESULTS / "heads").glob("*.jsonl")):
        rows = read(path)
        if len({row["method"] for row in rows}) > 1:
            paths.append(
                accuracy(
                    folder / f"accuracy-{path.stem}.png",
                    rows,
                    HEADS.get(path.stem, path.stem),
                )
            )
    rows = stored()
    for dataset in ("mnist", "fashion-mnist", "cifar10"):
        paths += claimed_and_measured(folder / f"tb21-{dataset}.png", rows, dataset)
    if epochs := read(curves.OUT):
        paths.append(convergence(folder / "tb21-convergence.png", epochs))
    return paths


def of_readme(path: Path = README_FIGURE) -> Path:
    """The README's: every method on CIFAR-10 against epsilon."""
    name = "cifar10-mobilenetv2"
    return accuracy(path, read(RESULTS / "heads" / f"{name}.jsonl"), HEADS[name])


def accuracy(path: Path, rows: list[Row], title: str) -> Path:
    """Test accuracy against epsilon, a line a method, mean ± sd over draws; dashed:
    without noise.
    """
    figure, (axes,) = new_figure(path, 1, (6.4, 4.4))
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


def noise_law(
    path: Path,
    epsilon: float = 3.0,
    epochs: int = 60,
    n_rows: int = 50_000,
    delta: float = 1e-5,
    powers: Sequence[int] = range(9, 16),
) -> Path:
    """TB21's Figure 6: noise multiplier against sampling rate at fixed epochs, beside
    Claim D.1's square root.

    powers: binary logarithms of the batch sizes.
    """
    rates = np.array([2.0**k for k in powers]) / n_rows
    figure, (axes,) = new_figure(path, 1, (6.4, 4.4))
    for accountant, color, marker in (
        ("rdp-classic", COLORS[0], "o"),
        ("auto", COLORS[1], "s"),
    ):
        sigmas = [
            calibrate(
                [GaussianEvent(1.0, q, round(epochs / q))],
                epsilon,
                delta,
                accountant=accountant,
            )
            for q in rates
        ]
        name = {"rdp-classic": "RDP, as TB21 counts", "auto": "PLD"}[accountant]
        axes.loglog(rates, sigmas, marker=marker, color=color, label=name)
        law = sigmas[-1] * np.sqrt(rates / rates[-1])
        axes.loglog(rates, law, color=color, linestyle="--", linewidth=0.8)
    axes.plot(
        [],
        [],
        color="#777777",
        linestyle="--",
        linewidth=0.8,
        label="∝ √(B/N), Claim D.1",
    )
    axes.set(xlabel="sampling rate B/N", ylabel="noise multiplier σ")
    _plain_ticks(axes, [0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.set_title(
        f"TB21, Figure 6: ε = {epsilon:g}, δ = {delta:g}, {epochs} epochs", fontsize=11
    )
    axes.legend(frameon=False)
    save_figure(figure, path)
    return path


def convergence(path: Path, rows: list[Row]) -> Path:
    """TB21's Figures 3 and 11: accuracy after each epoch with and without noise; and
    against what was spent by then.
    """
    figure, (left, right) = new_figure(path, 2, (9.6, 4.4))
    rates = sorted({r["job"]["settings"]["base_learning_rate"] for r in rows})
    for row in rows:
        epochs, accuracies, pld, rdp = zip(*row["points"], strict=True)
        color = COLORS[rates.index(row["job"]["settings"]["base_learning_rate"])]
        percent = [100 * a for a in accuracies]
        rate = f"base learning rate {row['job']['settings']['base_learning_rate']:g}"
        if row["job"]["clip_only"]:
            left.plot(
                epochs, percent, color=color, linestyle="--", label=f"{rate}, no noise"
            )
            continue
        left.plot(
            epochs, percent, color=color, label=f"{rate}, ε = {row['job']['epsilon']}"
        )
        right.plot(pld, percent, color=color, label=f"{rate}, PLD")
        right.plot(
            rdp, percent, color=color, linestyle=":", label=f"{rate}, as TB21 counts"
        )
    low = min(100 * min(p[1] for p in r["points"][2:]) for r in rows)
    left.set(xlabel="epoch", ylabel="test accuracy in %", ylim=(low - 0.5, None))
    right.set(xlabel="ε spent so far (δ = 1e-5)", ylim=left.get_ylim())
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
    job = rows[0]["job"]
    left.set_title(
        f"{job['dataset']}, group norm, batches of {job['settings']['batch_size']}",
        fontsize=11,
    )
    right.set_title("the same runs with noise", fontsize=11)
    save_figure(figure, path)
    return path


def claimed_and_measured(path: Path, rows: list[Row], dataset: str) -> list[Path]:
    """TB21's Table 1 as points: claimed, and what each way of running it gave.

    Nothing without two measured points.
    """
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row["key"]].append(row)
    found = [c for c in selected(f"TB21/1/{dataset}") if jobs_of(c)]
    lines: dict[str, dict[float, list[float]]] = defaultdict(dict)
    for claim in found:
        for job in jobs_of(claim):
            if by_key[job.key]:
                lines[_way(job)][float(claim.epsilon)] = [
                    100 * r["accuracy"] for r in by_key[job.key]
                ]
    if sum(map(len, lines.values())) < 2:
        return []
    figure, (axes,) = new_figure(path, 1, (6.4, 4.4))
    axes.plot(
        [float(c.epsilon) for c in found],
        [float(c.value) for c in found],
        "k*",
        markersize=11,
        label="claimed",
    )
    for (label, points), color, marker in zip(
        lines.items(), COLORS, MARKERS, strict=False
    ):
        _line(axes, list(points), list(points.values()), color, marker, label)
    axes.set(xlabel="ε (δ = 1e-5)", ylabel="test accuracy in %")
    axes.set_title(
        f"TB21, Table 1: {dataset}, ScatterNet and a linear head", fontsize=11
    )
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)
    return [path]


def _way(job: Job) -> str:
    chosen = (
        "settings chosen on held-out rows"
        if "held-out" in job.label
        else "settings of Table 13"
    )
    return f"{chosen}, {job.label.rpartition(', ')[2]}"


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
