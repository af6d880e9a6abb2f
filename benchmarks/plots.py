"""Draw the trade-off curve of a composition, and TAN23's Figures 2 and 3."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dphead.analysis.tradeoff import (
    PLACES,
    REPORTED_RATES,
    is_replaced,
    true_positive_rates,
)
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.atomic_write import write_atomically

# colors that most color-blind readers can distinguish
BLUE, ORANGE, GRAY = "#0072b2", "#d55e00", "#777777"


def tradeoff_plot(
    path: str | Path,
    events: Sequence[GaussianEvent],
    relation: str = "zero_out",
    title: str = "",
) -> None:
    """Draw the upper bound on any membership-inference attack and write it to `path`.

    Left: the trade-off curve, false-negative against false-positive rate. Right: the
    same curve as true-positive rates at small false-positive rates, with the points of
    `dphead account`'s table.

    Parameters
    ----------
    path : str or Path
        The file to write; its ending gives the format.
    events : sequence of GaussianEvent
        The releases that the attacker sees.
    relation : str, default "zero_out"
        The neighboring relation. It determines whether an unused row is replaced
        (`tradeoff.is_replaced`).
    title : str
        Title of the picture.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the ending is not a picture format.

    References
    ----------
    Dong, Roth, Su 2022.
    """
    figure, (left, right) = new_figure(2, (9.6, 4.2))
    linear, logarithmic = np.linspace(1e-6, 1, 500), np.geomspace(1e-4, 1, 400)
    rates = np.concatenate([linear, logarithmic, REPORTED_RATES])
    both = 1 - true_positive_rates(events, rates, relation)
    curve, low, points = np.split(both, [len(linear), len(linear) + len(logarithmic)])
    left.fill_between(linear, 0, curve, color=BLUE, alpha=0.12, linewidth=0)
    left.plot(linear, curve, color=BLUE)
    left.plot([0, 1], [1, 0], color=GRAY, linestyle="--", linewidth=1)
    left.annotate("guessing", (0.62, 0.4), color=GRAY, fontsize=9)
    if np.interp(0.3, linear, curve) > 0.25:
        left.annotate("out of\nreach", (0.05, 0.07), color=BLUE, fontsize=9)
    left.set(
        xlabel="false positive rate",
        ylabel="least false negative rate",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
    right.loglog(logarithmic, 1 - low, color=BLUE)
    right.loglog(logarithmic, logarithmic, color=GRAY, linestyle="--", linewidth=1)
    for rate, tpr in zip(REPORTED_RATES, 1 - points, strict=True):
        right.plot(rate, tpr, "o", color=BLUE, markersize=5)
        right.annotate(
            f"{100 * tpr:.3g} %",
            (rate, tpr),
            (-4, 5),
            textcoords="offset points",
            ha="right",
            va="bottom",
        )
    right.set(
        xlabel="false positive rate",
        ylabel="largest true positive rate",
        xlim=(1e-4, 1),
        ylim=(1e-4, 2),
    )
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_formatter(lambda rate, _: f"{100 * rate:g} %")
    place = PLACES[is_replaced(relation)]
    figure.suptitle(f"{title} (an unused row {place})".lstrip(), fontsize=11)
    save_figure(figure, path)


def new_figure(columns: int, size: tuple[float, float]) -> Any:
    """Return a figure without a window and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for one in axes:
        one.grid(True, color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, path: str | Path, dpi: int = 150) -> None:
    """Write a figure in the format of its path, and create the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.removeprefix(".").lower()
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=dpi))
