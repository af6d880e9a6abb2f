"""Compute the epsilon of releases by the accountants of papers.

The results are for comparison only. The ledger computes charges by itself.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dphead.planning.calibration import classic_rdp_epsilon, epsilon_by
from dphead.privacy.accounting import (
    GaussianEvent,
    check,
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
        "privacy loss distributions, connect the dots; exact if all batches are full",
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
    """Hold the epsilon of one profile. If it is None, `reason` says why."""

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
        Epsilon, or None with the reason if the profile does not apply. With PLD, also
        None if there is noise but no finite bound.

    Raises
    ------
    ValueError
        If `delta` or `relation` is invalid.
    """
    check(delta, relation)
    accountant, orders, _ = PROFILES[name]
    if accountant == "pld" and total_mu(events) is not None:
        # PLD's grid only approximates the closed form, and importing PLD takes 1 s
        accountant = "exact"
    try:
        if orders is None:
            found = epsilon_by(accountant, events, delta, relation)
        else:
            curve = rdp_curve(events, orders, relation)
            classic = accountant == "rdp-classic"
            convert = classic_rdp_epsilon if classic else epsilon_from_rdp
            found = convert(orders, curve, delta)
    except ValueError as error:
        return Outcome(None, str(error))
    noisy = all(e.noise_multiplier for e in events)
    if accountant == "pld" and math.isinf(found) and noisy:
        why = "delta is too small for PLD's rounding, or a loss may exceed 1e6"
        return Outcome(None, why)
    return Outcome(found, "")


def all_profiles(
    events: Sequence[GaussianEvent], delta: float, relation: str = "zero_out"
) -> dict[str, float | None]:
    """Return each profile's epsilon, or None as in `profile_epsilon`."""
    return {
        name: profile_epsilon(name, events, delta, relation).epsilon
        for name in PROFILES
    }


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
        "For several runs with sampled batches, the ledger uses a coarser accountant "
        "(RDP) than for one run (PLD), so the total can be above the runs' own "
        "epsilons. Both are valid."
    )
