"""Draw plots that need no data: TB21's Figure 9, and TAN23's Figures 2 and 3."""

import math
from pathlib import Path

import numpy as np

from benchmarks.plots import BLUE, ORANGE, new_figure, save_figure
from benchmarks.store import RESULTS
from dphead.analysis.tan import MIN_SIGMA, total_amount_of_noise
from dphead.planning.calibration import calibrate
from dphead.privacy.accounting import GaussianEvent, compose_epsilon, rdp_curve

# of a whole training, by epsilon; eta of a step, delta and steps are those of all
TAN23_ETA = {1: 0.13, 8: 0.95}
TAN23_ETA_STEP = 3.9e-3
TAN23_DELTA = 1 / 1.2e6
TAN23_STEPS = (1800, 7200, 18_000, 72_000)
_PRIVACY_WALL = 0.5  # noise multiplier, TAN23 Figure 2; below, epsilon is meaningless
_PLOTTED_SIGMAS = np.geomspace(0.3, 16, 40)  # noise multipliers of the axes; chosen
_FIGURE3_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)  # RDP orders; chosen


def write(folder: Path = RESULTS) -> list[Path]:
    """Write the plots to folders of `folder`; returns their paths."""
    return [figure9(folder / "figures"), *tan23(folder / "finetune")]


def figure9_noise(
    epsilon: float, epochs: int = 10, batches: int = 98, prob: float = 512 / 50_000
) -> tuple[float, float]:
    """Return the noise multipliers of DP-SGD and of amplification by iteration.

    Delta is 1e-5. The first multiplier is over the clip norm, under zero-out. The
    second one is over a row's Lipschitz bound, under replace-one, and holds if only the
    last iterate leaves. The paper leaves out the last 1 % of rows (footnote 12),
    which is less than a batch. So this is the noise for rows of the last batch, which
    are amplified in all epochs except the last.

    References
    ----------
    TB21, Figure 9. Feldman, Mironov, Talwar, Thakurta 2018, Theorems 22 and 23:
    RDP 2 α / σ² ((epochs − 1) / batches + 1) at order α, that of a Gaussian release
    with a noise multiplier of σ / (2 √((epochs − 1) / batches + 1)).
    """
    steps = GaussianEvent(1.0, prob, round(epochs / prob))
    sampled, alone = (
        calibrate([event], epsilon, 1e-5, accountant="rdp")
        for event in (steps, GaussianEvent(1.0))
    )
    return sampled, 2 * alone * math.sqrt((epochs - 1) / batches + 1)


def figure9(folder: Path) -> Path:
    """Draw TB21's Figure 9; returns its path."""
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


def tan23(folder: Path) -> list[Path]:
    """Figures 2 and 3 at each epsilon; returns their paths."""
    paths = []
    for epsilon, eta in TAN23_ETA.items():
        path = folder / f"tan23-epsilon{epsilon}.png"
        draw(path, eta, TAN23_DELTA, TAN23_STEPS, TAN23_ETA_STEP)
        paths.append(path)
    return paths


def epsilon_curve(
    eta: float, steps: int, delta: float, sigmas: np.ndarray = _PLOTTED_SIGMAS
) -> np.ndarray:
    """Return the RDP epsilon at each sigma, with q such that eta is constant.

    Epsilon is NaN if q would exceed 1.

    References
    ----------
    TAN23, Figure 2.
    """

    def epsilon(sigma: float) -> float:
        prob = eta * sigma * math.sqrt(2 / steps)
        if prob > 1:
            return np.nan
        event = GaussianEvent(sigma, prob, steps)
        return compose_epsilon([event], delta, accountant="rdp")

    return np.array([epsilon(float(sigma)) for sigma in sigmas])


def rdp_ratio(
    eta_step: float, order: float, sigmas: np.ndarray = _PLOTTED_SIGMAS
) -> np.ndarray:
    """Return g_alpha(sigma, q) / (alpha eta_step²) at each sigma.

    eta_step = q / (sqrt 2 sigma) is constant. The ratio is NaN where q would exceed 1.

    References
    ----------
    TAN23, Figure 3.
    """

    def ratio(sigma: float) -> float:
        prob = eta_step * math.sqrt(2) * sigma
        if prob > 1:
            return np.nan
        (found,) = rdp_curve([GaussianEvent(sigma, prob)], [order])
        return found / (order * eta_step**2)

    return np.array([ratio(float(sigma)) for sigma in sigmas])


def draw(
    path: str | Path, eta: float, delta: float, steps: tuple[int, ...], eta_step: float
) -> None:
    """Draw Figure 2 (left) for this eta and Figure 3 (right) for this eta_step.

    Both show the privacy wall and the flat region.
    """
    figure, (left, right) = new_figure(2, (10, 4))
    for count in steps:
        left.plot(
            _PLOTTED_SIGMAS, epsilon_curve(eta, count, delta), label=f"T = {count:,}"
        )
    flat = total_amount_of_noise(
        MIN_SIGMA,
        min(1.0, eta * MIN_SIGMA * math.sqrt(2 / steps[-1])),
        steps[-1],
        delta,
    )
    left.axhline(flat.epsilon, color="gray", linestyle=":", label="ε TAN")
    left.set_yscale("log")
    left.set_ylabel("ε (RDP)")
    left.set_title(f"η = {eta:.3g}, δ = {delta:g}")
    for order in _FIGURE3_ORDERS:
        right.plot(_PLOTTED_SIGMAS, rdp_ratio(eta_step, order), label=f"α = {order:g}")
    right.axhline(1, color="gray", linestyle=":")
    right.set_yscale("log")
    right.set_ylim(0.5, 100)
    right.set_ylabel("RDP of a step / (α η² of a step)")
    right.set_title(f"η of a step = {eta_step:.3g}")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("noise multiplier σ")
        axes.axvspan(
            _PLOTTED_SIGMAS[0],
            _PRIVACY_WALL,
            color="tab:red",
            alpha=0.12,
            label=f"wall: σ < {_PRIVACY_WALL:g}",
        )
        axes.axvspan(
            MIN_SIGMA,
            _PLOTTED_SIGMAS[-1],
            color="tab:green",
            alpha=0.08,
            label=f"flat: σ ≥ {MIN_SIGMA:g}",
        )
        axes.legend(fontsize=7)
    save_figure(figure, path, dpi=130)
