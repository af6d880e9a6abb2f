"""Draw an audit: scores in both worlds, and the bound at every threshold."""

from pathlib import Path
from typing import Any

import numpy as np

from dphead.analysis.audit_bounds import CURVE_RATES, Claim, epsilon_bound
from dphead.analysis.plots import save_figure


def plot_audit(
    result: dict[str, Any], claim: Claim, path: str | Path, title: str = ""
) -> None:
    """Write a picture of an audit.

    Parameters
    ----------
    result : dict
        The result of `audit_bounds.statements`.
    claim : Claim
        The promise.
    path : str or Path
        The file to write; its ending gives the format.
    title : str
        Title of the picture. Default: the claim.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _scores(left, result)
    _curve(right, result, claim)
    figure.suptitle(
        title
        or (
            f"audit at epsilon = {claim.epsilon:g}, delta = {claim.delta:g}, "
            f"{claim.relation}"
        )
    )
    save_figure(figure, path, dpi=110)


def _scores(axes: Any, result: dict[str, Any]) -> None:
    h, n = result["histogram"], result["fits_in_each_world"]
    fine = np.array([h["without"], h["with"]])
    edges = np.linspace(h["low"], h["high"], fine.shape[1] + 1)[::5]
    scores_of_a_bin = fine.reshape(2, -1, 5).sum(axis=2)
    coarse = scores_of_a_bin / (n * (edges[1] - edges[0]))
    for density, name, color in zip(
        coarse, ("without the canary", "with the canary"), ("C0", "C1"), strict=True
    ):
        axes.stairs(density, edges, label=name, color=color, fill=True, alpha=0.35)
        axes.stairs(density, edges, color=color)
    axes.axvline(
        0, color="black", linewidth=0.8, linestyle=":", label="threshold of mu"
    )
    cut = result["thresholds"][0]
    if h["low"] < cut < h["high"]:
        axes.axvline(
            cut,
            color="black",
            linewidth=0.8,
            linestyle="--",
            label="threshold of epsilon",
        )
    shown = np.flatnonzero(coarse.max(axis=0) > 1e-3 * coarse.max())
    axes.set_xlim(edges[shown[0]], edges[shown[-1] + 1])
    axes.set(
        xlabel="log-likelihood ratio of the transcript",
        ylabel="density",
        title=f"{n:,} fits in each world",
    )
    axes.legend(fontsize=8)


def _curve(axes: Any, result: dict[str, Any], claim: Claim) -> None:
    h, n, error = (
        result["histogram"],
        result["fits_in_each_world"],
        (1 - result["confidence"]) / 2,
    )
    scores = np.array([h["without"], h["with"]])
    above = scores[:, ::-1].cumsum(axis=1)
    bound = epsilon_bound(above[0], n - above[1], n, claim.delta, error)
    perfect = epsilon_bound(n * CURVE_RATES, n * claim.curve(), n, claim.delta, error)
    seen = above[0] > 0
    axes.plot(CURVE_RATES, perfect, color="C2", label="perfect attack, expected")
    axes.plot(
        above[0][seen] / n,
        bound[seen],
        ".",
        color="C1",
        markersize=4,
        label="this audit, each threshold alone",
    )
    place = result["counts"]["above_threshold"][0][0] / n
    axes.plot(
        [max(place, 0.5 / n)],
        [result["epsilon_lower_bound"]],
        "k*",
        label="the bound (threshold fixed before)",
    )
    axes.axhline(claim.epsilon, color="C3", linewidth=1, label="claim")
    if result["epsilon_from_mu"] is not None:
        axes.axhline(
            result["epsilon_from_mu"],
            color="C4",
            linewidth=1,
            linestyle="--",
            label="from the mu bound",
        )
    axes.set_xscale("log")
    axes.set(
        xlim=(0.5 / n, 1),
        ylim=(0, claim.epsilon * 1.08),
        xlabel="false positive rate",
        title="bound on epsilon",
    )
    axes.set_ylabel("lower bound on epsilon")
    axes.legend(fontsize=8, loc="best")
