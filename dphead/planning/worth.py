"""Compare the noise of a head with its number of rows, from public numbers only."""

import math
from collections.abc import Iterator

from dphead.planning.calibration import mu_from_epsilon
from dphead.planning.plan import Target
from dphead.privacy.accounting.gdp import epsilon_from_mu
from dphead.privacy.rounding import as_declared, rounded_up
from dphead.solvers.base import ProblemInfo
from dphead.solvers.on_axes import number_of_axes

# Least value of (rows of a class) · μ / sqrt(columns). Without privacy, heads gain some
# accuracy over guessing. Below this value, most keep less than 70 % of this gain;
# results/worth.
_ENOUGH = 0.8
_LARGEST_EPSILON = 10.0  # largest epsilon to advise; chosen


def rows_of_noise(target: Target, facts: ProblemInfo) -> float:
    """Return the number of rows of each class that the noise of a fit outweighs.

    Parameters
    ----------
    target : Target
        Budget and unit of privacy.
    facts : ProblemInfo
        Public sizes, without the budget.

    Returns
    -------
    float
        Number of rows. It is 0 without privacy.

    Notes
    -----
    The noise in a sum of unit rows has the norm sqrt(n_features)/μ. The signal of a
    class grows with its rows. How far classes are apart is private, so the factor
    _ENOUGH comes from measurements.
    """
    return _ENOUGH * math.sqrt(facts.n_features) / target.budgeted(facts).mu


def about_noise(target: Target, facts: ProblemInfo, unit: str) -> Iterator[str]:
    """Yield a line on the noise in rows per class, and advice if rows may be too few.

    The lines after the first one begin with "! ". `unit` is the name of a row.

    Notes
    -----
    With groups, the number of people is private, so the number of used rows or means
    is unknown.
    """
    needed = rows_of_noise(target, facts)
    own, cap = facts.n_rows / facts.n_classes, target.group_cap
    counted = "mean" if target.group_mean else unit
    number = "at most " if cap else ""
    number += "about " if target.relation == "add_remove" else ""
    yield (
        f"worth about {math.ceil(needed):,} {counted}s of each class; you have {number}"
        f"{facts.n_rows:,} in all, {own:,.0f} for each of {facts.n_classes} classes on "
        "average"
    )
    if own >= needed and cap:
        counts = f"1 {counted} of each person counts"
        if cap > 1:
            counts = f"{cap:,} {counted}s of each person count"
        yield (
            f"! At most {counts}. The number of people is private, so these {counted}s "
            "may still be too few for this noise"
        )
    if own >= needed:
        return
    yield (
        f"! Too few {unit}s: with so much noise, 8 in 10 measured heads lost over 30 % "
        "of their gain over guessing, compared to heads without privacy. In half of "
        "the measured heads, some class had less than half of its accuracy without "
        "privacy. What helps most comes first:"
    )
    mu = mu_from_epsilon(target.epsilon, target.delta) * needed / own
    epsilon = epsilon_from_mu(mu, target.delta)
    if epsilon <= _LARGEST_EPSILON:
        yield (
            f"! a larger epsilon: {rounded_up(epsilon, 2)} instead of "
            f"{as_declared(target.epsilon)}"
        )
    if (target.group_cap or 1) > 1 and not target.group_mean:
        yield (
            f"! means of each group's {unit}s: --group-mean (`group_mean=True`), with "
            "a group cap of 1 if each group has one class"
        )
    if number_of_axes(target.budgeted(facts)):
        yield (
            f"! a few thousand similar public {unit}s, for axes: --axes-from "
            "(`axes_from`)"
        )
    yield f"! more {unit}s, a backbone with fewer features, or fewer classes"


def is_too_little(target: Target, facts: ProblemInfo) -> bool:
    """Return whether the noise outweighs the rows of an average class."""
    return facts.n_rows / facts.n_classes < rows_of_noise(target, facts)
