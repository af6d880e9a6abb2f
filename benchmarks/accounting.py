"""Plots that need no data: TB21's Figure 9, and the trade-off curve of its CIFAR-10
row.
"""

from pathlib import Path

from dphead.analysis.plots import figure9, tradeoff_plot
from dphead.privacy.accounting import GaussianEvent

FOLDER = Path(__file__).parent / "results" / "accounting"
# linear head, epsilon = 3
TB21_CIFAR10 = [GaussianEvent(5.67, 8192 / 50_000, 360), GaussianEvent(8.0, count=2)]


def write(folder: Path = FOLDER) -> list[Path]:
    """Write figure9.png and tradeoff.png to `folder`; returns their paths."""
    paths = [folder / "figure9.png", folder / "tradeoff.png"]
    figure9(paths[0])
    title = (
        "TB21, CIFAR-10, linear head: what any membership attack is limited to "
        "(zero_out)"
    )
    tradeoff_plot(paths[1], TB21_CIFAR10, title=title)
    return paths
