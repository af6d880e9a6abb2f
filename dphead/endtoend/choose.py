"""Whichever of noise, batch size and steps was left out, from the budget and the other
two. No data is needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dphead.planning.plan import BUDGET_SLACK, Target, check_budget
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.solvers.settings import RELEASES

MOST_STEPS = RELEASES  # that a search tries: a plan holds no more


@dataclass(frozen=True)
class Schedule:
    """noise_multiplier sigma, expected batch_size B and steps T of a training, and the
    epsilon that they cost. sampling_prob, epoch_steps: as `ReleaseSpec`.
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
    """Complete a schedule: the least noise, the largest batch or the most steps that
    the target allows.

    others: further releases of the same fit. epsilon = inf: no noise, batch size and
        steps must be given. epoch_steps: of random allocation, whose batches are of
        about n_rows / epoch_steps rows; None for Poisson batches.
    Raises ValueError unless exactly two (or all three, within the budget) are given, or
    where none fits.
    """
    epsilon = target.epsilon
    check_budget(epsilon, target.delta)
    given = {
        "noise_multiplier": noise_multiplier,
        "batch_size": batch_size,
        "steps": steps,
    }
    _check_given(given)
    _check_ranges(n_rows, given)

    whole = epoch_steps or 1  # what steps are a multiple of
    accounting.require(
        (steps or 0) % whole == 0,
        f"steps must be whole epochs of {whole}",
        "steps",
        steps,
        f"Use {max(1, (steps or 0) // whole) * whole}, or another batch size.",
    )

    def prob(batch: int) -> float:
        return batch / n_rows if epoch_steps is None else 1.0

    def event(sigma: float, batch: int, count: int) -> GaussianEvent:
        return GaussianEvent(sigma, prob(batch), count, epoch_steps=whole)

    def cost(sigma: float, batch: int, count: int) -> float:
        return target.cost([*others, event(sigma, batch, count)])

    if noise_multiplier is None:
        assert batch_size is not None
        assert steps is not None
        if epsilon == float("inf"):
            return Schedule(0.0, batch_size, steps, epsilon, prob(batch_size), whole)
        events = [*others, event(1.0, batch_size, steps)]
        sigma = target.scale(events, fixed=range(len(others)))
        spent = cost(sigma, batch_size, steps)
        return Schedule(sigma, batch_size, steps, spent, prob(batch_size), whole)
    sigma = noise_multiplier
    if batch_size is None:
        assert steps is not None
        count = steps
        batch_size = _largest(
            lambda b: cost(sigma, b, count) <= epsilon, n_rows, "batch_size", epsilon
        )
    elif steps is None:
        batch = batch_size
        most = MOST_STEPS // whole
        epochs = _largest(
            lambda k: cost(sigma, batch, k * whole) <= epsilon, most, "steps", epsilon
        )
        steps = epochs * whole
        if epochs == most:
            raise ValueError(
                f"the budget must end before {MOST_STEPS} steps, got "
                f"{noise_multiplier=}, {batch_size=}. Give steps, or less noise."
            )
    spent = cost(sigma, batch_size, steps)
    found = Schedule(sigma, batch_size, steps, spent, prob(batch_size), whole)
    if found.epsilon > epsilon * (1 + BUDGET_SLACK):
        raise ValueError(
            f"epsilon must be at least {found.epsilon:.6g} for these settings, got "
            f"{epsilon=}. Leave one of them out."
        )
    return found


def _check_given(given: dict[str, float | None]) -> None:
    """ValueError unless at most one is left out."""
    missing = [name for name, value in given.items() if value is None]
    if len(missing) > 1:
        raise ValueError(
            "two of noise_multiplier, batch_size and steps must be given, got none of "
            f"{missing}. Give one."
        )


def _check_ranges(n_rows: int, given: dict[str, float | None]) -> None:
    """ValueError unless what is given is positive, and no batch or step too many."""
    for name, value in ({"n_rows": n_rows} | given).items():
        if value is not None and not value > 0:
            raise ValueError(
                f"{name} must be positive, got {name}={value}. Correct it."
            )
    batch_size, steps = given["batch_size"], given["steps"]
    if steps is not None and steps > MOST_STEPS:
        raise ValueError(
            f"steps must be at most {MOST_STEPS}, got {steps=}. Use larger batches."
        )
    if batch_size is not None and batch_size > n_rows:
        raise ValueError(
            f"batch_size must be at most n_rows={n_rows}, got {batch_size=}. Use "
            "n_rows for a full batch."
        )


def _largest(fits: Callable[[int], bool], most: int, name: str, epsilon: float) -> int:
    """The largest whole number that fits, by doubling and bisection; `fits` holds below
    some number and not above.
    """
    if not fits(1):
        raise ValueError(
            f"the budget must allow {name} = 1, got {epsilon=}. Raise it, or the noise."
        )
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
