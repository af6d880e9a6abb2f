"""Compute the epsilon of a list of releases, for charges and reports.

Full batches have a closed form (`gdp`). Poisson batches and allocated rows use privacy
loss distributions (`pld`). Full batches and most Poisson batches also have Renyi
divergences (`rdp`), which several fits with random batches need.
`dphead/planning/calibration.py` computes the inverse, noise from an epsilon.
"""

import math
from collections.abc import Sequence

from dphead.privacy.accounting.events import (
    GaussianEvent,
    check,
    in_one_step,
    require,
)
from dphead.privacy.accounting.gdp import epsilon_from_mu, total_mu
from dphead.privacy.accounting.rdp import RDP_ORDERS, epsilon_from_rdp, rdp_curve
from dphead.privacy.python_values import python_value

ACCOUNTANTS = ("auto", "exact", "pld", "rdp")


def compose_epsilon(
    events: Sequence[GaussianEvent],
    delta: float,
    relation: str = "zero_out",
    accountant: str = "auto",
    coarser: float = 1.0,
) -> float:
    """Return the epsilon of the composition at `delta`.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases.
    delta : float
        In (0, 1).
    relation : {"zero_out", "add_remove", "replace_one"}, default "zero_out"
        The neighboring relation.
    accountant : {"auto", "exact", "pld", "rdp"}, default "auto"
        "exact" takes only full batches. "rdp" takes no allocated rows. For Poisson
        batches it takes neither replace-one nor units of several rows. "auto" is exact
        for full batches and PLD otherwise. If PLD is infinite, or if delta is at most
        1e-11 per release, "auto" is the smaller of PLD and RDP, where RDP applies. For
        allocated rows, "auto" and "pld" also compute a bound with each epoch as one
        full batch, and take the smaller one.
    coarser : float, default 1.0
        Factor on the width of PLD's grid.

    Returns
    -------
    float
        Epsilon; infinite if a release has no noise, or if the accountant finds no
        finite bound.

    Raises
    ------
    ValueError
        If an argument is invalid or the accountant does not apply.

    Guarantee
    ---------
    An upper bound, if noise multipliers and sampling rates were fixed before the data
    were read.
    """
    delta = python_value(delta)
    check(delta, relation)
    known = f"accountant must be one of {', '.join(ACCOUNTANTS)}"
    require(accountant in ACCOUNTANTS, known, "accountant", accountant, "Use auto.")
    # mu is None if a batch is random: then there is no closed form.
    mu = total_mu(events)
    if mu is None and accountant == "exact":
        raise ValueError(
            "`accountant` 'exact' needs full batches, got Poisson batches or "
            "allocated rows. Use 'pld'."
        )
    # A release without noise has no finite epsilon, whatever the accountant is.
    if any(e.noise_multiplier == 0 and e.count for e in events):
        return math.inf
    if mu is not None and accountant in ("auto", "exact"):
        return epsilon_from_mu(mu, delta)
    if accountant == "rdp":
        curve = rdp_curve(events, RDP_ORDERS, relation)
        return epsilon_from_rdp(RDP_ORDERS, curve, delta)
    from dphead.privacy.accounting.pld import pld_epsilon  # the import takes seconds

    found = pld_epsilon(tuple(events), delta, relation, coarser)
    # Both are upper bounds, so take the smaller one. At low noise, the grid of an epoch
    # is too coarse.
    if any(e.epoch_steps > 1 for e in events):
        return min(found, compose_epsilon(in_one_step(events), delta, relation, "auto"))
    # For Poisson batches, RDP has no bound under replace-one or for units of several
    # rows (`rdp_curve`).
    units = max((e.rows_per_unit for e in events), default=1)
    if accountant == "pld" or relation == "replace_one" or units > 1:
        return found
    # Rounding uses about 1e-13 of delta per release. RDP is slow, so try it only if
    # that matters.
    count = sum(e.count for e in events)
    if found < math.inf and delta > 1e-11 * count:
        return found
    return min(found, compose_epsilon(events, delta, relation, "rdp"))
