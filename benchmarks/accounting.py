"""Plots that need no data: TB21's Figure 9 and the trade-off curve of its CIFAR-10 row,
and TAN23's Figures 2 and 3.
"""

from pathlib import Path

from benchmarks.iteration import figure9
from benchmarks.store import RESULTS
from dphead.analysis.plots import tradeoff_plot
from dphead.analysis.tan_plot import draw
from dphead.privacy.accounting import GaussianEvent

# linear head, epsilon = 3
TB21_CIFAR10 = [GaussianEvent(5.67, 8192 / 50_000, 360), GaussianEvent(8.0, count=2)]
# of a whole training, by epsilon; eta of a step, delta and steps are those of all
TAN23_ETA = {1: 0.13, 8: 0.95}
TAN23_ETA_STEP = 3.9e-3
TAN23_DELTA = 1 / 1.2e6
TAN23_STEPS = (1800, 7200, 18_000, 72_000)


def write(folder: Path = RESULTS) -> list[Path]:
    """Write the plots to folders of `folder`; returns their paths."""
    return [*tb21(folder / "accounting"), *tan23(folder / "finetune")]


def tb21(folder: Path) -> list[Path]:
    """Figure 9 and the trade-off curve; returns their paths."""
    paths = [folder / "figure9.png", folder / "tradeoff.png"]
    figure9(paths[0])
    title = (
        "TB21, CIFAR-10, linear head: what any membership attack is limited to "
        "(zero_out)"
    )
    tradeoff_plot(paths[1], TB21_CIFAR10, title=title)
    return paths


def tan23(folder: Path) -> list[Path]:
    """Figures 2 and 3 at each epsilon; returns their paths."""
    paths = []
    for epsilon, eta in TAN23_ETA.items():
        path = folder / f"tan23-epsilon{epsilon}.png"
        draw(path, eta, TAN23_DELTA, TAN23_STEPS, TAN23_ETA_STEP)
        paths.append(path)
    return paths
