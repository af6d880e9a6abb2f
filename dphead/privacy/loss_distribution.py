"""Privacy loss distributions: the charge of Poisson batches.

A release is a pair of distributions, of what is seen with and without one protected
unit (proofs/poisson.md, proofs/groups.md say which pair). Its privacy loss is the
logarithm of their ratio. dp_accounting rounds losses up to a grid and composes
releases by Fourier transforms. It takes seconds to load: import this module where it
is used.

Sources: Zhu, Dong, Wang 2022 (dominating pairs); Doroshenko et al. 2022 (connect the
dots, as in dp_accounting).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom

from dphead.privacy.accounting import (
    PLD_MIN_DELTA,
    GaussianEvent,
    check,
    epsilon_from_rdp,
    rdp_curve,
    require,
    together,
    total_mu,
)

INTERVAL = 1e-4  # width of the grid; above epsilon = 100 wider in proportion
LARGEST_LOSS = 1e6  # above, epsilon is called infinite
SIZE_ORDERS = (2, 4, 8, 16, 32, 64)  # RDP orders that tell the size of the losses
RAREST = 1e-7  # dp_accounting drops chances below 1e-8
# what dp_accounting's transforms, and its bisections for groups, may lose of delta
ROUNDING = 1e-13
GROUP_ROUNDING = 1e-11
# zero_out: a removed row adds zero where it is sampled, in both directions
NEIGHBOURS = {
    "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}


# A plan's calibration, its charge and its report ask for the same.
@lru_cache(maxsize=1024)
def pld_epsilon(
    events: tuple[GaussianEvent, ...],
    delta: float,
    relation: str,
    coarser: float = 1.0,
) -> float:
    """Epsilon of the composition at delta; infinite if a loss may exceed 1e6.

    coarser: as `loss_distribution`. ValueError for a delta below PLD_MIN_DELTA.

    Guarantee: an upper bound: as `loss_distribution`, whose rounding is taken off
    delta.
    """
    enough = f"pld needs delta of at least {PLD_MIN_DELTA}"
    require(delta >= PLD_MIN_DELTA, enough, "delta", delta, "Use rdp.")
    distribution = loss_distribution(events, relation, coarser)
    if distribution is None:
        return math.inf
    groups = any(e.rows_per_unit > 1 and e.sampling_prob < 1 for e in events)
    rounding = GROUP_ROUNDING if groups else ROUNDING
    return float(distribution.get_epsilon_for_delta(delta - rounding))


def loss_distribution(
    events: Sequence[GaussianEvent], relation: str = "zero_out", coarser: float = 1.0
) -> pld.PrivacyLossDistribution | None:
    """The privacy loss distribution of the composition; None if a loss may exceed 1e6.

    coarser: how many times wider the grid is. ValueError for units of several rows in
    Poisson batches under replace_one.

    Guarantee: pessimistic: never below the true delta, but for ROUNDING, or
    GROUP_ROUNDING with units of several rows in Poisson batches.
    """
    check(relation=relation)
    full_mu = total_mu([e for e in events if e.sampling_prob == 1]) or 0.0
    sampled = (e for e in events if e.sampling_prob < 1 and e.count)
    poisson = together(e for e in sampled if e.noise_multiplier < math.inf)
    groups = any(e.rows_per_unit > 1 for e in poisson)
    require(
        not groups or relation != "replace_one",
        "groups in Poisson batches need zero_out or add_remove",
        "relation",
        relation,
        "Use full batches.",
    )
    size = _size_of_losses(full_mu, poisson, relation)
    if not size < LARGEST_LOSS:
        return None
    interval = INTERVAL * coarser
    if groups:
        interval *= 10  # a mixture's losses take seconds to invert
    interval *= max(1.0, size / 100)
    total = _full_batches(full_mu, interval)
    for event in poisson:
        one = _poisson_batch(event, relation, interval)
        total = total.compose(one.self_compose(int(event.count)))
    return total


def _size_of_losses(
    full_mu: float, poisson: Sequence[GaussianEvent], relation: str
) -> float:
    """About the largest loss: it sets the width of the grid and nothing else."""
    moved = 2 if relation == "replace_one" else 1  # how far a row moves, in clip norms
    rows = []
    for event in poisson:
        sd = event.noise_multiplier / moved / event.rows_per_unit
        rows.append(replace(event, noise_multiplier=sd, rows_per_unit=1))
    full = np.asarray(SIZE_ORDERS) * (full_mu * full_mu / 2)
    curve = rdp_curve(rows, SIZE_ORDERS) + full
    return epsilon_from_rdp(SIZE_ORDERS, curve, 1e-15)


def _full_batches(mu: float, interval: float) -> pld.PrivacyLossDistribution:
    """The pair N(0, 1), N(mu, 1), under every relation.

    A full batch's noise is over the relation's own sensitivity. dp_accounting's
    REPLACE_ONE would double that, wrongly so for the Gram matrix.
    """
    if mu <= 1e-100:
        return pld.identity(value_discretization_interval=interval)
    return pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)


def _poisson_batch(
    event: GaussianEvent, relation: str, interval: float
) -> pld.PrivacyLossDistribution:
    """The pair of one Poisson batch of probability q, with noise over the clip norm C.

    A row: N(0) and (1-q) N(0) + q N(C), and where it is replaced
    (1-q) N(0) + q N(C) and (1-q) N(0) + q N(-C). A unit of k rows: N(0) and the mixture
    of N(j C), where j is binomial (k, q).
    """
    sd, q, k = event.noise_multiplier, event.sampling_prob, event.rows_per_unit
    if k == 1:
        return pld.from_gaussian_mechanism(
            sd,
            sampling_prob=q,
            value_discretization_interval=interval,
            neighboring_relation=NEIGHBOURS[relation],
        )
    # More sampling costs more: dropping rows again is a mixture.
    chances = np.asarray(binom.pmf(range(k + 1), k, max(q, RAREST))).tolist()
    return pld.from_mixture_gaussian_mechanism(
        sd, range(k + 1), chances, value_discretization_interval=interval
    )
