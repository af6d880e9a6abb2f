"""Privacy amplification by iteration: descent of which only the last iterate leaves.

Feldman, Mironov, Talwar, Thakurta 2018, as compared with DP-SGD in TB21's appendix D.3
and Figure 9.

The guarantee is replace-one and holds only if: the loss is convex and beta-smooth in
the parameters for every row the clip admits (features are clipped, not gradients); the
step is constant and at most 2 / beta; there is no momentum, and nothing but the last
iterate leaves (no checkpoint, average, progress or early stop). The order of rows may
be known. Rows differ: one in the last batch has no amplification at all, and its
epsilon must be told as well.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.plots import BLUE, ORANGE, new_figure, save_figure
from dphead.planning.calibration import calibrate, smallest_scale
from dphead.privacy.accounting import GaussianEvent

FIGURE9_EPSILONS = tuple(np.geomspace(0.1, 100, 25))  # chosen
# rho grows linearly in the order, so orders are free: fine enough for epsilon from 1e-3
# to 1e4.
RDP_ORDERS = 1 + np.geomspace(1e-3, 1e6, 4000)


def row_rho(noise_multiplier: float, batches: int, epochs: int) -> np.ndarray:
    """rho of each batch's rows, shape (batches,): they have (alpha, rho * alpha)-RDP
    under replace_one.

    noise_multiplier is the noise's standard deviation over the Lipschitz bound L of one
    row, in a sum of gradients; a row replaced moves the sum by 2L. One epoch: rho = 2 /
    (sigma^2 r) with r steps from the row's own, inclusive, to the end (Feldman et al.
    2018, Theorem 23). Several: each earlier use is absorbed in the `batches` steps up
    to the next (their Theorem 22 with shifts a_t = s / batches, then s / r), which adds
    2 (epochs - 1) / (sigma^2 batches).
    """
    left = batches - np.arange(batches)
    return 2 / noise_multiplier**2 * ((epochs - 1) / batches + 1 / left)


class Iteration(NamedTuple):
    """Epsilon that at least `covered` of the rows enjoy, and the worst row's."""

    epsilon: float
    covered: float
    worst_epsilon: float


def iteration_epsilon(
    noise_multiplier: float,
    batches: int,
    epochs: int,
    delta: float,
    fraction: float = 0.99,
) -> Iteration:
    """Epsilon under replace_one that at least `fraction` of the rows enjoy, and the
    epsilon of the worst rows.

    A `fraction` below 1 is not (epsilon, delta)-DP: it is what TB21's Figure 9 draws
    (footnote 12, 99 %). Whole batches are left out, the last ones; `covered` is the
    share that remains. The conversion is the improved one.
    """
    rho = row_rho(noise_multiplier, batches, epochs)
    kept = min(batches, math.ceil(fraction * batches - 1e-9))
    return Iteration(
        _epsilon(rho[kept - 1], delta), kept / batches, _epsilon(rho[-1], delta)
    )


def _epsilon(rho: float, delta: float) -> float:
    """Canonne, Kamath, Steinke 2020, Proposition 12, over RDP_ORDERS.

    For a divergence of rho * order at each order.
    """
    values = (
        RDP_ORDERS * rho
        + np.log1p(-1 / RDP_ORDERS)
        - (math.log(delta) + np.log(RDP_ORDERS)) / (RDP_ORDERS - 1)
    )
    return max(0.0, float(values.min()))


def iteration_noise(
    epsilon: float, batches: int, epochs: int, delta: float, fraction: float = 0.99
) -> float:
    """Least noise multiplier (over L) with which `fraction` of the rows have `epsilon`;
    safe to 1e-6.
    """

    def cost(noise: float) -> float:
        return iteration_epsilon(noise, batches, epochs, delta, fraction).epsilon

    return smallest_scale(cost, epsilon, 1.0, 1e-6)


def figure9(
    path: str | Path,
    epsilons: Sequence[float] = FIGURE9_EPSILONS,
    batch_size: int = 512,
    n_rows: int = 50_000,
    epochs: int = 10,
    delta: float = 1e-5,
) -> None:
    """Draw TB21's Figure 9 to `path`.

    Noise that `epochs` epochs need for (epsilon, delta): DP-SGD by RDP, as the paper
    counts it, and privacy amplification by iteration for 99 % of the rows (footnote
    12). A batch of more than 1 % of the rows cannot be left out, so at the paper's own
    sizes (98 batches) the latter holds for every row. Noise is over the clip norm C
    (zero-out) and over the Lipschitz bound L (replace-one: a row moves a sum by 2 L).
    """
    batches = -(-n_rows // batch_size)
    steps = round(epochs * n_rows / batch_size)
    event = [GaussianEvent(1.0, batch_size / n_rows, steps)]
    covered = iteration_epsilon(1.0, batches, epochs, delta).covered
    rows = "every row" if covered == 1 else f"{100 * covered:.3g} % of rows"
    noise = {
        "DP-SGD": [calibrate(event, e, delta, accountant="rdp") for e in epsilons],
        f"amplification by iteration, {rows}": [
            iteration_noise(e, batches, epochs, delta) for e in epsilons
        ],
    }
    figure, (axes,) = new_figure(1, (6.4, 4.4))
    for (name, sigmas), color in zip(noise.items(), (BLUE, ORANGE), strict=True):
        axes.loglog(epsilons, sigmas, color=color, label=name)
    axes.set(
        xlabel="ε", ylabel="noise multiplier σ", xlim=(min(epsilons), max(epsilons))
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False)
    axes.set_title(
        f"{epochs} epochs, batches of {batch_size} of {n_rows:,} rows, δ = {delta:g}",
        fontsize=11,
    )
    save_figure(figure, path)
