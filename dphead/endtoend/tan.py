"""TAN23's way to tune at a fraction of the price: plan in the flat region, simulate at
a constant amount of noise.

A simulated run spends a vast epsilon and charges nothing: its images must be public.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dphead.analysis.tan import (
    MIN_SIGMA,
    Prediction,
    predict_with_interval,
    require_public,
    simulate,
)
from dphead.endtoend.choose import Schedule, schedule
from dphead.endtoend.settings import Settings
from dphead.planning.plan import Target, check_budget


def plans(
    n_rows: int,
    *,
    epsilon: float,
    delta: float,
    steps: Sequence[int],
    noise_multiplier: float = MIN_SIGMA,
    accountant: str = "rdp",
) -> list[Schedule]:
    """For each number of steps the cheapest batch in the flat region (sigma >= 2) that
    spends the budget.

    A run costs B T rows; at constant eta that is n sigma eta sqrt(2 T), so sigma = 2 is
    the cheapest of the region and more steps cost more. Steps at which even one row a
    batch, or all of them, miss the budget are left out.
    """
    if noise_multiplier < MIN_SIGMA:
        raise ValueError(
            f"the flat region begins at sigma = {MIN_SIGMA:g}, got "
            f"{noise_multiplier=}. Use more noise."
        )
    check_budget(epsilon, delta)
    if n_rows < 1:
        raise ValueError(f"there must be rows, got {n_rows=}. Give their number.")
    target = Target(epsilon, delta, accountant=accountant)
    found = []
    for count in steps:
        try:
            one = schedule(
                n_rows, target, noise_multiplier=noise_multiplier, steps=count
            )
        except ValueError:
            continue
        if one.batch_size < n_rows:
            found.append(one)
    if not found:
        raise ValueError(
            f"no number of steps spends this budget at sigma >= 2, got {epsilon=}, "
            f"steps={list(steps)}. Give another budget or number of rows."
        )
    return found


def cheapest(found: Sequence[Schedule]) -> Schedule:
    """The plan of the fewest rows processed."""
    return min(found, key=lambda s: s.batch_size * s.steps)


@dataclass(frozen=True)
class Simulated:
    """One simulated run: its factor k, settings, seed, accuracy on public rows, and the
    vast epsilon it would cost.
    """

    factor: float
    batch_size: float
    noise_multiplier: float
    seed: int
    accuracy: float


def simulated_settings(settings: Settings, factor: float) -> Settings:
    """The settings at (B / k, sigma / k), same steps and learning rate [TAN23 section
    3.4].
    """
    if (
        settings.noise_multiplier is None
        or settings.batch_size is None
        or settings.steps is None
    ):
        raise ValueError(
            "a simulation needs noise_multiplier, batch_size and steps, got one "
            "missing. Plan first."
        )
    sigma, batch = simulate(settings.noise_multiplier, settings.batch_size, factor)
    return replace(settings, noise_multiplier=sigma, batch_size=max(1, round(batch)))


def run_simulations(
    settings: Settings,
    factors: Sequence[float],
    seeds: Sequence[int],
    train: Callable[[Settings, int], float],
    *,
    data_is_public: bool,
    done: Callable[[Simulated], None] | None = None,
) -> list[Simulated]:
    """Train at each factor and seed.

    train: (settings, seed) to an accuracy on rows that were not trained on.

    Raises ValueError unless the data are public: at sigma / k a run spends a vast
    epsilon.
    """
    require_public(data_is_public)
    if len(set(factors)) < 2 or min(factors) <= 1:
        raise ValueError(
            f"a line needs at least two factors above 1, got factors={list(factors)}. "
            "Give more."
        )
    found = []
    for factor in sorted(factors, reverse=True):
        small = simulated_settings(settings, factor)
        for seed in seeds:
            accuracy = train(small, seed)
            one = Simulated(
                factor,
                float(small.batch_size or 0),
                small.noise_multiplier or 0.0,
                seed,
                accuracy,
            )
            found.append(one)
            if done is not None:
                done(one)
    return found


def predict(
    runs: Sequence[Simulated], batch_size: float, confidence: float = 0.95
) -> Prediction:
    """The full run's accuracy from the line through the simulated ones, with a
    prediction interval.
    """
    sizes = np.array([r.batch_size for r in runs])
    accuracies = np.array([r.accuracy for r in runs])
    return predict_with_interval(sizes, accuracies, batch_size, confidence)
