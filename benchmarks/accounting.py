"""Draw plots that need no data: TB21's Figure 9, and TAN23's Figures 2 and 3."""

import math
from pathlib import Path

import numpy as np

from benchmarks.plots import BLUE, ORANGE, new_figure, save_figure
from benchmarks.store import RESULTS
from dphead.analysis.tan import MIN_SIGMA, total_amount_of_noise
from dphead.planning.calibration import calibrate
from dphead.privacy.accounting import GaussianEvent, compose_epsilon, rdp_curve

# eta of a whole training, by epsilon; the next three constants hold for both epsilons
TAN23_ETA = {1: 0.13, 8: 0.95}
TAN23_ETA_STEP = 3.9e-3
TAN23_DELTA = 1 / 1.2e6
TAN23_STEPS = (1800, 7200, 18_000, 72_000)
_PRIVACY_WALL = 0.5  # noise multiplier, TAN23 Figure 2; below it, epsilon grows fast
_SIGMAS = np.geomspace(0.3, 16, 40).tolist()  # noise multipliers of the axes; chosen
_FIGURE3_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)  # RDP orders; chosen


def write(folder: Path = RESULTS) -> list[Path]:
    """Write the plots below `folder`, and return their paths."""
    two = (tan23(folder / "finetune", epsilon) for epsilon in TAN23_ETA)
    return [figure9(folder / "figures"), *two]


def figure9_noise(
    epsilon: float, epochs: int = 10, batches: int = 98, prob: float = 512 / 50_000
) -> tuple[float, float]:
    """Return the noise multipliers of DP-SGD and of amplification by iteration.

    Delta is 1e-5. The first multiplier is in units of the clip norm, under zero-out.
    The second one is in units of a row's Lipschitz bound, under replace-one, and holds
    if only the last iterate is published. The paper leaves out the last 1 % of rows
    (footnote 12), which is less than a batch. This is therefore the noise for rows of
    the last batch, which are amplified in all epochs except the last.

    References
    ----------
    TB21, Figure 9. Feldman, Mironov, Talwar, Thakurta 2018, Theorems 22 and 23:
    RDP 2 α / σ² ((epochs − 1) / batches + 1) at order α. A Gaussian release with a
    noise multiplier of σ / (2 √((epochs − 1) / batches + 1)) has the same RDP.
    """
    steps = GaussianEvent(1.0, prob, round(epochs / prob))
    sampled, alone = (
        calibrate([event], epsilon, 1e-5, accountant="rdp")
        for event in (steps, GaussianEvent(1.0))
    )
    return sampled, 2 * alone * math.sqrt((epochs - 1) / batches + 1)


def figure9(folder: Path) -> Path:
    """Draw TB21's Figure 9, and return its path."""
    epsilons = np.geomspace(0.1, 100, 25)  # chosen
    names = ("DP-SGD", "amplification by iteration, every row")
    figure, (axes,) = new_figure(1, (6.4, 4.4))
    noise = zip(*map(figure9_noise, epsilons), strict=True)
    for name, sigmas, color in zip(names, noise, (BLUE, ORANGE), strict=True):
        axes.loglog(epsilons, sigmas, color=color, label=name)
    axes.set(xlabel="ε", ylabel="noise multiplier σ", xlim=(0.1, 100))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    title = "10 epochs, batches of 512 of 50,000 rows, δ = 1e-05"
    axes.set_title(title, fontsize=11)
    save_figure(figure, path := folder / "tb21-figure9.png")
    return path


def epsilon_curve(eta: float, steps: int) -> list[float]:
    """Return the RDP epsilon at each sigma, with q such that eta is constant.

    Epsilon is NaN if q would exceed 1.

    References
    ----------
    TAN23, Figure 2.
    """
    found = []
    for sigma in _SIGMAS:
        prob = eta * sigma * math.sqrt(2 / steps)
        event = GaussianEvent(sigma, min(prob, 1.0), steps)
        epsilon = compose_epsilon([event], TAN23_DELTA, accountant="rdp")
        found.append(epsilon if prob <= 1 else math.nan)
    return found


def rdp_ratio(order: float) -> list[float]:
    """Return g_alpha(sigma, q) / (alpha eta_step²) at each sigma.

    eta_step = q / (sqrt 2 sigma) is constant. The ratio is NaN where q would exceed 1.

    References
    ----------
    TAN23, Figure 3.
    """
    found = []
    for sigma in _SIGMAS:
        prob = TAN23_ETA_STEP * math.sqrt(2) * sigma
        (rdp,) = rdp_curve([GaussianEvent(sigma, min(prob, 1.0))], [order])
        found.append(rdp / (order * TAN23_ETA_STEP**2) if prob <= 1 else math.nan)
    return found


def tan23(folder: Path, epsilon: int) -> Path:
    """Draw Figure 2 (left) and Figure 3 (right) at an epsilon, and return the path.

    Both show the privacy wall and the flat region.
    """
    eta = TAN23_ETA[epsilon]
    figure, (left, right) = new_figure(2, (10, 4))
    for steps in TAN23_STEPS:
        left.plot(_SIGMAS, epsilon_curve(eta, steps), label=f"T = {steps:,}")
    prob = min(1.0, eta * MIN_SIGMA * math.sqrt(2 / TAN23_STEPS[-1]))
    flat = total_amount_of_noise(MIN_SIGMA, prob, TAN23_STEPS[-1], TAN23_DELTA)
    left.axhline(flat.epsilon, color="gray", linestyle=":", label="ε TAN")
    left.set(ylabel="ε (RDP)", title=f"η = {eta:.3g}, δ = {TAN23_DELTA:g}")
    for order in _FIGURE3_ORDERS:
        right.plot(_SIGMAS, rdp_ratio(order), label=f"α = {order:g}")
    right.axhline(1, color="gray", linestyle=":")
    title = f"η of a step = {TAN23_ETA_STEP:.3g}"
    right.set(ylabel="RDP of a step / (α η² of a step)", title=title)
    wall, flat_region = f"wall: σ < {_PRIVACY_WALL:g}", f"flat: σ ≥ {MIN_SIGMA:g}"
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="noise multiplier σ")
        near = _SIGMAS[0], _PRIVACY_WALL
        axes.axvspan(*near, color="tab:red", alpha=0.12, label=wall)
        far = MIN_SIGMA, _SIGMAS[-1]
        axes.axvspan(*far, color="tab:green", alpha=0.08, label=flat_region)
        axes.legend(fontsize=7)
    right.set_ylim(0.5, 100)
    save_figure(figure, path := folder / f"tan23-epsilon{epsilon}.png", dpi=130)
    return path
