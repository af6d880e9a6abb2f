"""Named accountants: the same releases, as each paper would have counted them.

For comparison: no charge may be taken from here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dphead.planning.calibration import classic_rdp_epsilon, epsilon_by
from dphead.privacy.accounting import (
    RELATIONS,
    GaussianEvent,
    epsilon,
    epsilon_from_mu,
    epsilon_from_rdp,
    rdp_curve,
    total_mu,
)

# The orders of Opacus, which TB21 and TAN23 used, and of TensorFlow Privacy (later
# dp_accounting), which De22 used.
_TENTHS = tuple(1 + x / 10 for x in range(1, 100))
OPACUS_ORDERS = (*_TENTHS, *range(12, 64))
TENSORFLOW_ORDERS = (*_TENTHS, *range(11, 64), 128, 256, 512, 1024)

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
        OPACUS_ORDERS,
        "TB21, Lemma B.4; its shuffled batches are taken as Poisson",
    ),
    "paper:de22": (
        "rdp",
        TENSORFLOW_ORDERS,
        "De22, section 2.2; its shuffled batches are taken as Poisson",
    ),
    "paper:tan23": (
        "rdp",
        OPACUS_ORDERS,
        "TAN23, section 2; conversion of Balle et al. 2020",
    ),
}


class Outcome(NamedTuple):
    """`epsilon` under one profile, or None and the `reason` why it does not apply."""

    epsilon: float | None
    reason: str


def profile_epsilon(
    name: str, events: Sequence[GaussianEvent], delta: float, relation: str = "zero_out"
) -> Outcome:
    """Epsilon of `events` under the profile `name` (a key of PROFILES).

    ValueError for an unknown name.
    """
    if name not in PROFILES:
        raise ValueError(
            f"profile must be one of {tuple(PROFILES)}, got {name=}. Choose one of "
            "them."
        )
    accountant, orders, _ = PROFILES[name]
    sampled = total_mu(events) is None
    if accountant == "pld" and not sampled:
        accountant = "exact"  # what a grid comes close to, and takes a second to load
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
    """Every profile with its epsilon or the reason for none, in the order of
    PROFILES.
    """
    return {name: profile_epsilon(name, events, delta, relation) for name in PROFILES}


def all_profiles(
    events: Sequence[GaussianEvent], delta: float, relation: str = "zero_out"
) -> dict[str, float | None]:
    """Every profile's epsilon; None where it does not apply."""
    return {
        name: outcome.epsilon
        for name, outcome in all_outcomes(events, delta, relation).items()
    }


def total_rho(events: Sequence[GaussianEvent]) -> float | None:
    """zCDP parameter mu**2 / 2 of the composition, exact; None if a batch is sampled.

    Source: Bun, Steinke 2016, Proposition 1.6.
    """
    mu = total_mu(events)
    return None if mu is None else mu * mu / 2


def about_sum(total: float, accountant: str | None) -> str:
    """Say why what a ledger spent is above a run's own epsilon; "" where it is not.

    accountant: of the total (`ledger.spent`); None in a report that does not name it.
    """
    if accountant != "rdp" or not math.isfinite(total):
        return ""
    return (
        "Random batches are added up over runs by a coarser rule (RDP) than within one "
        "run (PLD), so the total can be above the runs' own epsilons; neither is wrong."
    )


class Shuffled(NamedTuple):
    """Guarantee of shuffled batches, and what the papers print in its place."""

    epsilon: float
    mu: float
    # a convention, not a guarantee: the sampler that ran is not Poisson's
    poisson_convention: float | None


def shuffled_epsilon(
    noise_multiplier: float,
    epochs: int,
    delta: float,
    relation: str = "zero_out",
    extra_events: Sequence[GaussianEvent] = (),
    sampling_prob: float | None = None,
    steps: int | None = None,
) -> Shuffled:
    """Epsilon when rows are shuffled into batches: a row meets one release an epoch, mu
    = sqrt(epochs) / sigma.

    noise_multiplier is over the clip norm C; under replace_one a row moves its batch by
    2C. `extra_events` are full batches over the relation's own sensitivity. With
    `sampling_prob` and `steps` the Poisson number is given too.
    ValueError under add_remove, where one row moves every later batch. Source: Dong,
    Roth, Su 2022 (parallel, then sequential composition of Gaussian mechanisms); the
    order of the rows may be known, so nothing is amplified.
    """
    if relation not in RELATIONS or relation == "add_remove":
        raise ValueError(
            f"shuffled batches need zero_out or replace_one, got {relation=}. One row "
            "more or less moves all batches: use Poisson batches."
        )
    if not (epochs >= 0 and noise_multiplier > 0):
        raise ValueError(
            f"epochs and noise must be positive, got {epochs=}, {noise_multiplier=}. "
            "Correct them."
        )
    extra = total_mu(extra_events)
    if extra is None:
        raise ValueError(
            "extra_events must be full batches, got extra_events=Poisson batches. "
            "Account for them apart."
        )
    mu = math.hypot(
        (2 if relation == "replace_one" else 1) * math.sqrt(epochs) / noise_multiplier,
        extra,
    )
    convention = None
    if sampling_prob is not None and steps is not None:
        convention = epsilon(
            [GaussianEvent(noise_multiplier, sampling_prob, steps), *extra_events],
            delta,
            relation,
        )
    return Shuffled(epsilon_from_mu(mu, delta), mu, convention)
