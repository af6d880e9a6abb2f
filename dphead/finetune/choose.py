"""Solve for noise, batch size or steps, given the budget and the other two values.

The computation uses public numbers only.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dphead.planning.plan import BUDGET_SLACK, Target, check_budget
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.rounding import as_declared, rounded_up
from dphead.solvers.settings import MOST_RELEASES


@dataclass(frozen=True)
class Schedule:
    """Hold a training's noise, batch size, steps and epsilon.

    Attributes
    ----------
    noise_multiplier : float
        The noise multiplier sigma; 0 for no noise.
    batch_size : int
        The expected batch size B.
    steps : int
        The number of steps T.
    epsilon : float
        Epsilon of the training.
    sampling_prob, epoch_steps : float, int
        As in `ReleaseSpec`.
    """

    noise_multiplier: float
    batch_size: int
    steps: int
    epsilon: float
    sampling_prob: float
    epoch_steps: int = 1


def schedule(
    n_rows: int,
    target: Target,
    *,
    noise_multiplier: float | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    others: Sequence[GaussianEvent] = (),
    epoch_steps: int | None = None,
) -> Schedule:
    """Compute the smallest noise, or largest batch or number of steps, for a budget.

    Parameters
    ----------
    n_rows : int
        Public number of rows.
    target : Target
        The budget. With epsilon = inf and without noise_multiplier, there is no noise.
    noise_multiplier : float, optional
        The noise multiplier sigma.
    batch_size : int, optional
        Expected size of a batch.
    steps : int, optional
        Number of steps.
    others : sequence of GaussianEvent, default ()
        Further releases of the same fit.
    epoch_steps : int, optional
        Steps of an epoch of random allocation, with batches of about n_rows /
        epoch_steps rows; None for Poisson batches.

    Returns
    -------
    Schedule
        The three values, and the epsilon that they spend.

    Raises
    ------
    ValueError
        If a value is out of range, if `steps` are not whole epochs, if the given values
        exceed the budget, if no value of the missing setting keeps the budget, or if
        the budget allows more steps than MOST_RELEASES.

    Notes
    -----
    At least two of noise_multiplier, batch_size and steps must be given.
    """
    epsilon = target.epsilon
    check_budget(epsilon, target.delta)
    given = steps or 0
    if given > MOST_RELEASES:
        raise ValueError(
            f"--steps must be at most {MOST_RELEASES}, got {steps}. Use fewer steps "
            "with larger batches."
        )
    if (batch_size or 0) > n_rows:
        raise ValueError(
            f"--batch-size must be at most {n_rows}, the number of rows, got "
            f"{batch_size}. Use {n_rows} for a full batch."
        )
    whole = epoch_steps or 1  # steps must be a multiple of this
    accounting.require(
        given % whole == 0,
        f"--steps must be a multiple of {whole}, the number of steps of an epoch",
        "steps",
        steps,
        f"Use {max(1, given // whole) * whole}, or another batch size.",
    )

    def prob(batch: int) -> float:
        return batch / n_rows if epoch_steps is None else 1.0

    def event(sigma: float, batch: int, count: int) -> GaussianEvent:
        return GaussianEvent(sigma, prob(batch), count, epoch_steps=whole)

    def cost(sigma: float, batch: int, count: int) -> float:
        return target.cost([*others, event(sigma, batch, count)])

    spent = epsilon
    if batch_size is None:
        assert noise_multiplier is not None
        assert steps is not None
        sigma, count = noise_multiplier, steps
        batch_size = _largest(
            lambda b: cost(sigma, b, count) <= epsilon,
            n_rows,
            f"--steps {count} with a batch of 1",
            epsilon,
        )
    elif steps is None:
        assert noise_multiplier is not None
        sigma, batch, most = noise_multiplier, batch_size, MOST_RELEASES // whole
        epochs = _largest(
            lambda k: cost(sigma, batch, k * whole) <= epsilon,
            most,
            "one step" if whole == 1 else "one epoch",
            epsilon,
        )
        steps = epochs * whole
        if epochs == most:
            raise ValueError(
                f"At noise multiplier {noise_multiplier:g}, --epsilon "
                f"{as_declared(epsilon)} allows more than {MOST_RELEASES} steps. Add "
                "--steps, or use less noise."
            )
    elif noise_multiplier is None and epsilon < float("inf"):
        noise_multiplier = target.scale(
            [*others, event(1.0, batch_size, steps)], fixed=range(len(others))
        )
    if noise_multiplier is not None:
        spent = cost(noise_multiplier, batch_size, steps)
    if spent > epsilon * (1 + BUDGET_SLACK):
        raise ValueError(
            "This noise multiplier, batch size and number of steps spend epsilon "
            f"{rounded_up(spent, 6)}, more than --epsilon {as_declared(epsilon)}. Drop "
            "one of the three. The budget then sets its value."
        )
    return Schedule(
        noise_multiplier or 0.0, batch_size, steps, spent, prob(batch_size), whole
    )


def _largest(fits: Callable[[int], bool], most: int, name: str, epsilon: float) -> int:
    """Return the largest whole number up to `most` for which `fits` holds.

    The search doubles, then bisects. `fits` must be true up to some number and false
    above it.
    """
    if not fits(1):
        raise ValueError(
            f"--epsilon {as_declared(epsilon)} is too small for {name}. Raise "
            "--epsilon, or --noise-multiplier."
        )
    high = 2
    while high <= most and fits(high):
        high *= 2
    return high // 2 + bisect(
        range(high // 2 + 1, min(high, most + 1)), False, key=lambda n: not fits(n)
    )
