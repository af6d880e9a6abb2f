"""Tune at a fraction of the cost: plan in the flat region, then simulate [TAN23].

Simulations keep the total amount of noise constant. A simulated run has a very large
epsilon and charges nothing, so its images must be public.
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
from dphead.finetune.choose import Schedule, schedule
from dphead.finetune.settings import Settings
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
    """Return the cheapest batch in the flat region for each number of steps.

    Parameters
    ----------
    n_rows : int
        Public number of rows.
    epsilon, delta : float
        The budget.
    steps : sequence of int
        The numbers of steps to try.
    noise_multiplier : float, default MIN_SIGMA
        The noise multiplier sigma, at least 2 (the flat region).
    accountant : str, default "rdp"
        The accountant.

    Returns
    -------
    list of Schedule
        One for each number of steps that can spend the budget. Numbers of steps are
        omitted if no batch size meets it.

    Raises
    ------
    ValueError
        If sigma is below the flat region, or no number of steps spends the budget.

    Notes
    -----
    A run processes B T rows. At constant eta this is n sigma eta sqrt(2 T), so sigma =
    2 is cheapest in the region, and more steps cost more.
    """
    if noise_multiplier < MIN_SIGMA:
        raise ValueError(
            f"the flat region begins at sigma = {MIN_SIGMA:g}, got "
            f"{noise_multiplier=}. Use more noise."
        )
    check_budget(epsilon, delta)
    if n_rows < 1:
        raise ValueError(
            f"n_rows must be positive, got {n_rows=}. Pass the number of rows."
        )
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
            f"no number of steps meets this budget at sigma >= 2, got {epsilon=}, "
            f"steps={list(steps)}. Use another budget or number of rows."
        )
    return found


def cheapest(found: Sequence[Schedule]) -> Schedule:
    """Return the schedule that processes the fewest rows."""
    return min(found, key=lambda s: s.batch_size * s.steps)


@dataclass(frozen=True)
class Simulated:
    """Hold the result of one simulated run.

    Attributes
    ----------
    factor : float
        Factor k that divides batch size and noise.
    batch_size, noise_multiplier : float
        The run's settings.
    seed : int
        The run's seed.
    accuracy : float
        Accuracy on public rows.
    """

    factor: float
    batch_size: float
    noise_multiplier: float
    seed: int
    accuracy: float


def simulated_settings(settings: Settings, factor: float) -> Settings:
    """Return the settings at (B / k, sigma / k), with the same steps and learning rate.

    See TAN23 section 3.4. Raises ValueError if noise, batch size or steps is None.
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

    Parameters
    ----------
    settings : Settings
        The full run's settings.
    factors : sequence of float
        At least two factors k above 1.
    seeds : sequence of int
        Seeds to train with at each factor.
    train : callable
        Function of (settings, seed) that returns an accuracy on held-out rows.
    data_is_public : bool
        Must be True, because a run at sigma / k has a very large epsilon.
    done : callable, optional
        Called with each result.

    Returns
    -------
    list of Simulated
        Results, with the largest factor first.

    Raises
    ------
    ValueError
        If the data are not public, or there are too few factors.
    """
    require_public(data_is_public)
    if len(set(factors)) < 2 or min(factors) <= 1:
        raise ValueError(
            f"a line needs at least two factors above 1, got factors={list(factors)}. "
            "Pass more factors."
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
    """Predict the full run's accuracy by a line through simulated ones.

    Returns the prediction with its interval at this confidence.
    """
    sizes = np.array([r.batch_size for r in runs])
    accuracies = np.array([r.accuracy for r in runs])
    return predict_with_interval(sizes, accuracies, batch_size, confidence)
