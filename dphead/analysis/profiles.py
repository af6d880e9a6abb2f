"""Account for the same releases as each paper did.

The accountants here are for comparison only, never for charges.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dphead.planning.calibration import classic_rdp_epsilon, epsilon_by
from dphead.privacy.accounting import (
    RELATIONS,
    GaussianEvent,
    epsilon_from_rdp,
    rdp_curve,
    total_mu,
)

# RDP orders of Opacus, which TB21 and TAN23 used, and of TensorFlow Privacy (later
# dp_accounting), which De22 used.
_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
_OPACUS_ORDERS = (*_TENTHS, *range(12, 64))
_TENSORFLOW_ORDERS = (*_TENTHS, *range(11, 64), 128, 256, 512, 1024)

PROFILES = {  # name: (accountant, orders of an RDP accountant, what it is)
    "exact": (
        "exact",
        None,
        "closed form of Gaussian differential privacy; full batches only",
    ),
    "pld": (
        "pld",
        None,
        "privacy loss distributions, connect the dots; of full batches alone exact",
    ),
    "rdp": ("rdp", None, "Renyi, improved conversion (Canonne, Kamath, Steinke 2020)"),
    "rdp-classic": ("rdp-classic", None, "Renyi, conversion of Mironov 2017"),
    "zcdp": (
        "zcdp",
        None,
        "rho + 2 sqrt(rho ln(1/delta)) (Bun, Steinke 2016); full batches only",
    ),
    "paper:fc23": (
        "zcdp",
        None,
        "zCDP as in the public code of FC23; the paper prints no conversion",
    ),
    "paper:tb21": (
        "rdp-classic",
        _OPACUS_ORDERS,
        "TB21, Lemma B.4; its shuffled batches are taken as Poisson",
    ),
    "paper:de22": (
        "rdp",
        _TENSORFLOW_ORDERS,
        "De22, section 2.2; its shuffled batches are taken as Poisson",
    ),
    "paper:tan23": (
        "rdp",
        _OPACUS_ORDERS,
        "TAN23, section 2; conversion of Balle et al. 2020",
    ),
}


class Outcome(NamedTuple):
    """Hold `epsilon` under one profile, or None and a `reason`."""

    epsilon: float | None
    reason: str


def profile_epsilon(
    name: str, events: Sequence[GaussianEvent], delta: float, relation: str = "zero_out"
) -> Outcome:
    """Return the epsilon of `events` under one profile.

    Parameters
    ----------
    name : str
        A key of PROFILES.
    events : sequence of GaussianEvent
        The releases.
    delta : float
        The delta at which epsilon is given.
    relation : str, default "zero_out"
        The neighboring relation of the releases.

    Returns
    -------
    Outcome
        Epsilon, or None with the reason if the profile does not apply.

    Raises
    ------
    ValueError
        If the name is unknown, or `delta` or `relation` is invalid.
    """
    if name not in PROFILES:
        raise ValueError(f"`name` must be one of {', '.join(PROFILES)}, got {name!r}.")
    accountant, orders, _ = PROFILES[name]
    sampled = total_mu(events) is None
    if accountant == "pld" and not sampled:
        accountant = "exact"  # the grid is an approximation and takes 1 s to load
    if sampled and accountant in ("exact", "zcdp"):
        return Outcome(None, "some batches are sampled; it counts full batches only")
    if sampled and relation == "replace_one" and accountant.startswith("rdp"):
        return Outcome(None, "no Renyi bound for Poisson batches under replace_one")
    if (
        sampled
        and accountant.startswith("rdp")
        and any(e.rows_per_unit > 1 for e in events)
    ):
        return Outcome(None, "no Renyi bound for groups in Poisson batches")
    allocated = any(e.epoch_steps > 1 for e in events)
    if allocated and accountant.startswith("rdp"):
        return Outcome(None, "no Renyi bound for allocated rows")
    try:
        if orders is None:
            found = epsilon_by(accountant, events, delta, relation)
            if (
                accountant == "pld"
                and math.isinf(found)
                and all(e.noise_multiplier for e in events)
            ):
                return Outcome(
                    None,
                    (
                        "rounding leaves nothing of so small a delta, or a loss may "
                        "exceed 1e6"
                    ),
                )
            return Outcome(found, "")
        curve = rdp_curve(events, orders, relation)
        convert = (
            classic_rdp_epsilon if accountant == "rdp-classic" else epsilon_from_rdp
        )
        return Outcome(convert(orders, curve, delta), "")
    except ValueError as error:
        if accountant == "pld" and 0 < delta < 1 and relation in RELATIONS:
            return Outcome(None, str(error))
        raise


def all_outcomes(
    events: Sequence[GaussianEvent], delta: float, relation: str = "zero_out"
) -> dict[str, Outcome]:
    """Return the outcome under every profile, in the order of PROFILES."""
    return {name: profile_epsilon(name, events, delta, relation) for name in PROFILES}


def all_profiles(
    events: Sequence[GaussianEvent], delta: float, relation: str = "zero_out"
) -> dict[str, float | None]:
    """Return the epsilon of every profile, or None if it does not apply."""
    return {
        name: outcome.epsilon
        for name, outcome in all_outcomes(events, delta, relation).items()
    }


def total_rho(events: Sequence[GaussianEvent]) -> float | None:
    """Return the zCDP parameter rho = mu² / 2 of the composition.

    The value is exact for full batches, and None if a batch is sampled.

    References
    ----------
    Bun, Steinke 2016, Proposition 1.6.
    """
    mu = total_mu(events)
    return None if mu is None else mu * mu / 2


def about_sum(total: float, accountant: str | None) -> str:
    """Explain why a ledger's total may exceed a run's own epsilon, or return "".

    Parameters
    ----------
    total : float
        Epsilon spent in the ledger.
    accountant : str or None
        The accountant of that total (`ledger.spent`), if known.

    Returns
    -------
    str
        The explanation if `accountant` is "rdp" and `total` is finite, else "".
    """
    if accountant != "rdp" or not math.isfinite(total):
        return ""
    return (
        "Random batches are added up over runs by a coarser rule (RDP) than within one "
        "run (PLD), so the total can be above the runs' own epsilons; neither is wrong."
    )
