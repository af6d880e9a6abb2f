"""Compute the epsilon that a ledger's releases spent, and the epsilon that remains.

proofs/ledger.md, "Across fits", has the proofs.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from dphead.privacy.accounting import (
    RDP_ORDERS,
    GaussianEvent,
    compose_epsilon,
    epsilon_from_rdp,
    rdp_curve,
)
from dphead.privacy.ledger.schema import LedgerError, canonical
from dphead.privacy.rounding import as_declared, rounded_down


class Spent(NamedTuple):
    """Hold the epsilon that was spent, and its accountant: "exact", "pld" or "rdp"."""

    epsilon: float
    accountant: str | None


def spent(
    events: Sequence[GaussianEvent],
    fits: int,
    delta: float,
    relation: str,
    budget: Mapping[str, float] | None = None,
) -> Spent:
    """Return the epsilon at `delta` of all releases that a ledger holds.

    All figures of spent epsilon, and the filter's decision (`Ledger._check`), come from
    this function. So no figure exceeds the budget, up to the filter's tolerance, unless
    ledgers were merged or entries were added to the ledger without dphead.

    Parameters
    ----------
    events : sequence of GaussianEvent
        All releases of the ledger.
    fits : int
        Number of fits that these releases belong to.
    delta : float
        In (0, 1).
    relation : {"zero_out", "add_remove", "replace_one"}
        The neighboring relation.
    budget : mapping or None, default None
        The ledger's budget: epsilon, delta, the RDP order ("order"), "is_sum"
        (`Ledger.is_sum`), and "filter": "gdp", "rdp", or None before the first fit.

    Returns
    -------
    Spent
        Epsilon and its accountant. Epsilon is infinite if a release has no noise, or if
        the accountant has no finite bound.

    Notes
    -----
    - Full batches: the exact epsilon.
    - Random batches of one fit: that fit's own epsilon, reported as "pld". This is
      `compose_epsilon` with "auto": PLD, or another bound if that bound is smaller.
    - Random batches of several fits: RDP at the budget's order, or at the best order
      without a budget. Where RDP does not apply, the result is infinite with a budget.
      Without a budget, or after a merge, it is the same as for one fit.

    Guarantee
    ---------
    With a budget and without "is_sum", the guarantee is the claim about filters in
    proofs/ledger.md. Otherwise the result is a plain sum. The sum is a guarantee only
    if the results of no fit were used to plan another, because the noise must be fixed
    beforehand.

    References
    ----------
    Rogers, Roth, Ullman, Vadhan 2016; Whitehouse et al. 2023.
    """
    # A fit without noise, or with a seed, makes every total infinite.
    if any(e.noise_multiplier == 0 for e in events):
        return Spent(math.inf, "exact")
    # GDP: the filter by sum of mu^2 is exact [Smith, Thakurta 2022].
    if all(e.is_full for e in events):
        return Spent(compose_epsilon(events, delta, relation, "exact"), "exact")
    # The noise of one fit was fixed before any release, so its PLD is valid. Several
    # fits need an RDP bound, and there is none for sampled groups, allocation and
    # replace-one. `check_divergence` refuses a later fit with these.
    known = _has_divergence(events, relation)
    if not known and fits > 1 and budget is not None and not budget.get("is_sum"):
        # no charge of dphead leads here: another program wrote a row
        return Spent(math.inf, "rdp")
    if fits == 1 or not known:
        return Spent(compose_epsilon(events, delta, relation, "auto"), "pld")
    # The order of a filter is fixed with the budget. A later choice of the best order
    # would depend on what the fits released.
    orders = RDP_ORDERS if budget is None else [budget["order"]]
    # RDP filter at one order [Feldman, Zrnic 2021].
    curve = rdp_curve(events, orders, relation)
    return Spent(epsilon_from_rdp(orders, curve, delta), "rdp")


def remaining(
    events: Sequence[GaussianEvent],
    fits: int,
    kind: Sequence[GaussianEvent],
    relation: str,
    budget: Mapping[str, float],
    delta: float,
) -> float:
    """Return the largest epsilon that one more fit of a kind may take from a budget.

    The result is a figure for users. The filter decides each charge.

    Parameters
    ----------
    events, fits, relation, budget
        As for `spent`.
    kind : sequence of GaussianEvent
        Releases of the further fit. Only their noise is scaled.
    delta : float
        The further fit's own delta. The filter uses the budget's delta.

    Returns
    -------
    float
        Epsilon of the further fit at `delta`, without earlier fits. 0 if the filter
        takes no such fit.
    """
    if not fits and delta == budget["delta"]:
        return budget["epsilon"]
    full = all(e.is_full for e in kind)
    old_full = all(e.is_full for e in events)
    known = (full and old_full) or _has_divergence([*events, *kind], relation)
    if fits and (not known or (budget["filter"] == "gdp" and not full)):
        # `Ledger._check` refuses this fit: the budget takes full batches only, or RDP
        # does not bound all releases
        return 0.0

    # More noise spends less, so the largest epsilon is found by bisection.
    def scaled(exponent: float) -> list[GaussianEvent]:
        """Return the further fit with 2**exponent times its noise."""
        factor = 2.0**exponent
        return [replace(e, noise_multiplier=e.noise_multiplier * factor) for e in kind]

    def within(exponent: float) -> bool:
        """Return whether the total with the scaled fit is within the budget."""
        # The budget's delta, as in the filter, whatever the further fit's delta is.
        both = [*events, *scaled(exponent)]
        total = spent(both, fits + 1, budget["delta"], relation, budget).epsilon
        return total <= budget["epsilon"]

    # Exponents of the factor on the noise.
    low, high = -20.0, 20.0  # far beyond the noise of any useful fit; chosen
    if not within(high):
        return 0.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) else (middle, high)
    # The epsilon that the plan of this further fit would report.
    accountant = "exact" if full else "auto"
    return compose_epsilon(scaled(high), delta, relation, accountant)


def in_words(
    left: float, delta: float, budget: Mapping[str, float], which: str = "this one"
) -> str:
    """Return text with the epsilon that remains for one more fit, and its delta.

    Parameters
    ----------
    left, delta, budget
        The result of `remaining`, and its last two arguments.
    which : str, default "this one"
        Words for the fit that the further fit resembles.
    """
    at = "" if delta == budget["delta"] else f" at delta {as_declared(delta)}"
    # No fit can use a smaller epsilon.
    amount = rounded_down(left) if left >= 1e-6 else "0"
    return f"epsilon {amount}{at} remaining for a fit like {which}"


def check_epochs(specs: Sequence[dict[str, Any]]) -> None:
    """Raise LedgerError unless allocated releases form whole epochs of equal releases.

    A part of an epoch is charged like the whole epoch.
    """
    # Equal releases in a row: `Charge.step_of` counts their epochs in the same way.
    # Neighbors only: a different release between two epochs begins a new one.
    for text, equal in groupby(canonical(s) for s in specs):
        steps = json.loads(text).get("epoch_steps", 1)
        count = len(list(equal))
        if count % steps:
            raise LedgerError(
                f"Random allocation needs whole epochs, got {count} steps for epochs "
                f"of {steps}. Set the number of steps to a multiple of {steps}."
            )


def _has_divergence(events: Sequence[GaussianEvent], relation: str) -> bool:
    """Return whether RDP bounds releases that include random batches."""
    # RDP bounds full batches for groups too (proofs/groups.md, "Full batches").
    single = all(e.is_full or e.rows_per_unit == e.epoch_steps == 1 for e in events)
    return single and relation != "replace_one"


def check_divergence(events: Sequence[GaussianEvent], relation: str) -> None:
    """Raise LedgerError if RDP, which the filter sums, does not bound the events.

    `events` must include those of earlier fits, because a first fit is charged without
    this check.
    """
    if not _has_divergence(events, relation):
        rows = max((e.rows_per_unit for e in events if not e.is_full), default=1)
        found = f"the group cap {rows}" if rows > 1 else "random allocation"
        found = f"the relation {relation}" if relation == "replace_one" else found
        raise LedgerError(
            "The first fit of this budget had random batches. A later fit then needs "
            "the neighboring relation zero_out or add_remove, and no fit may have "
            "random batches with a group cap above 1, or random allocation. Got "
            f"{found}. Nothing was charged. Change this fit. If the first fit is the "
            "cause, this budget takes no other fit."
        )
