"""Plan trainings with much noise, and simulate them at lower cost [TAN23].

In the flat region (sigma of 2 or more), epsilon depends only on the total amount of
noise, to a good approximation. Simulations keep this amount constant. A simulated run
has a very large epsilon and charges nothing, so its images must be public.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dphead.analysis.tan import (
    MIN_SIGMA,
    Prediction,
    check_sizes,
    predict_with_interval,
)
from dphead.finetune.choose import Schedule, schedule
from dphead.finetune.settings import Settings
from dphead.planning.plan import Target, check_budget
from dphead.privacy.rounding import as_declared


def plans(
    n_rows: int,
    *,
    epsilon: float,
    delta: float,
    steps: Sequence[int],
    noise_multiplier: float = MIN_SIGMA,
) -> list[Schedule]:
    """Return, for each number of steps, the schedule that spends the budget.

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

    Returns
    -------
    list of Schedule
        One for each number of steps at which a batch size below n_rows can spend the
        budget.

    Raises
    ------
    ValueError
        If sigma is below the flat region, or no number of steps spends the budget.

    Notes
    -----
    A run of T steps with batch size B processes B T rows. At constant eta
    (`analysis.tan`), this is n sigma eta sqrt(2 T). So sigma = 2 is cheapest in the
    region, and more steps cost more.
    """
    if noise_multiplier < MIN_SIGMA:
        raise ValueError(
            "Plans by the total amount of noise (TAN) need --noise-multiplier "
            f"{MIN_SIGMA:g} or more, got {noise_multiplier:g}. Pass {MIN_SIGMA:g}."
        )
    check_budget(epsilon, delta)
    target = Target(epsilon, delta, accountant="rdp")
    found = []
    why = None
    for count in steps:
        try:
            one = schedule(
                n_rows, target, noise_multiplier=noise_multiplier, steps=count
            )
            if one.batch_size < n_rows:
                found.append(one)
        except ValueError as error:
            # too many steps, for a batch of 1 or for any plan
            why = why or error
    if not found:
        raise why or ValueError(
            f"At sigma {noise_multiplier:g}, batches of all {n_rows} rows do not use "
            f"up --epsilon {as_declared(epsilon)} in {max(steps)} steps. Use more "
            "--steps, or lower --epsilon."
        )
    return found


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


def run_simulations(
    settings: Settings,
    factors: Sequence[float],
    seeds: Sequence[int],
    train: Callable[[Settings, int], float],
    *,
    data_is_public: bool,
    done: Callable[[Simulated], None] | None = None,
) -> list[Simulated]:
    """Train at each seed with batch size B / k, rounded, and noise sigma / k.

    Parameters
    ----------
    settings : Settings
        The full run's settings, with noise multiplier, batch size and steps.
    factors : sequence of float
        Factors k above 1.
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
        If the data are not public, if there are too few runs (`check_sizes`), or if a
        factor is at most 1 or above the batch size.

    References
    ----------
    TAN23, section 3.4.
    """
    if not data_is_public:
        raise ValueError(
            "simulated runs need public data. If the images are public, add "
            "--public-rows. Else train once with `dphead finetune`."
        )
    sigma, batch = settings.noise_multiplier, settings.batch_size
    assert sigma is not None
    assert batch is not None
    if not 1 < min(factors) <= max(factors) <= batch:
        raise ValueError(
            f"--factors must be above 1 and at most the batch size {batch}, got "
            f"{','.join(f'{k:g}' for k in factors)}. Use 4,8,16."
        )
    check_sizes([round(batch / k) for k in factors for _ in seeds])
    found = []
    for factor in sorted(factors, reverse=True):
        size, noise = round(batch / factor), sigma / factor
        small = replace(settings, batch_size=size, noise_multiplier=noise)
        for seed in seeds:
            found.append(Simulated(factor, size, noise, seed, train(small, seed)))
            if done is not None:
                done(found[-1])
    return found


def predict_full_run(runs: Sequence[Simulated], batch_size: float) -> Prediction:
    """Predict the accuracy of the full run by a line through simulated accuracies.

    The prediction has an interval of 95 %.
    """
    sizes, accuracies = np.array([(r.batch_size, r.accuracy) for r in runs]).T
    return predict_with_interval(sizes, accuracies, batch_size)


def decide(predictions: dict[int, Prediction]) -> tuple[int, str]:
    """Return the number of steps with the best predicted accuracy, and the reason.

    Parameters
    ----------
    predictions : dict of int to Prediction
        The prediction for each simulated number of steps.

    Returns
    -------
    tuple of (int, str)
        The number of steps, and the intervals that decide or that overlap.
    """
    best, *others = sorted(predictions, key=lambda t: -predictions[t].accuracy)
    doubt = predictions[best].doubt
    but = f". But {doubt}" if doubt else ""
    if not others:
        return best, f"no other number of steps was simulated{but}"
    # the number of steps with the highest upper bound among the others
    rival = max(others, key=lambda t: predictions[t].high)
    between = " and ".join(
        f"{in_percent(predictions[t])} at T = {t}" for t in (best, rival)
    )
    if predictions[rival].high < predictions[best].low:
        return best, f"its interval is above all others: {between}{but}"
    return best, (
        f"not resolved, because two intervals overlap: {between}. Simulate both with "
        f"more --runs or smaller --factors{but}"
    )


def in_percent(one: Prediction) -> str:
    """Return the interval of a prediction in percent, cut to 0 to 100 %."""
    return f"{100 * max(one.low, 0):.2f} to {100 * min(one.high, 1):.2f} %"
