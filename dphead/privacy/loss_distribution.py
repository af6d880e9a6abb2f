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
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import (
    AdjacencyType,
    MixtureGaussianPrivacyLoss,
)
from scipy.stats import binom

from dphead.privacy.accounting import (
    LARGEST_NOISE,
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
# What dp_accounting's Fourier transforms may lose of delta: once, and with each sampled
# release. Measured, not proven: at most 8e-17 a release, beside transforms of longer
# numbers and an integral (proofs/poisson.md).
ROUNDING = 1e-13
ROUNDING_EACH = 2e-15
RAREST = 1e-7  # rarer rows have losses that rounding hides from dp_accounting
RARELY_NONE = 1e-6  # less is not resolved by 1 - (the chance that some row is sampled)
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
    sampled = [e for e in events if e.sampling_prob < 1]
    left = delta - ROUNDING - ROUNDING_EACH * sum(e.count for e in sampled)
    left -= sum(_lost_by_inversion(e) for e in sampled)
    return float(distribution.get_epsilon_for_delta(left)) if left > 0 else math.inf


def _lost_by_inversion(event: GaussianEvent) -> float:
    """At least what dp_accounting's mixtures lose of delta: units of several rows.

    Its bisection finds the point t where the loss is a given one, but for h = 1e-6. The
    loss changes by at most k / sd**2 per unit there, and h k / sd**2 < 1 wherever a
    loss is below 1e6. So a release loses at most the integral over h of a density, at
    most 0.4 / sd, times exp(h k / sd**2) - 1: below 0.3 h**2 k / sd**3. Numbers of size
    (k / sd)**2 are rounded too. Releases lose the sum (proofs/groups.md).
    """
    k, sd = event.rows_per_unit, event.noise_multiplier
    if k == 1:
        return 0.0
    return event.count * (0.3e-12 * k / sd**3 + 1e-14 * (1 + (k / sd) ** 2))


def loss_distribution(
    events: Sequence[GaussianEvent], relation: str = "zero_out", coarser: float = 1.0
) -> pld.PrivacyLossDistribution | None:
    """The privacy loss distribution of the composition; None if a loss may exceed 1e6.

    coarser: how many times wider the grid is. ValueError for units of several rows in
    Poisson batches under replace_one.

    Guarantee: pessimistic: never below the true delta, but for ROUNDING, for
    ROUNDING_EACH with each Poisson batch, and with units of several rows for
    `_lost_by_inversion`.
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
    sd = min(event.noise_multiplier, LARGEST_NOISE)  # less noise costs more
    q, k = event.sampling_prob, event.rows_per_unit
    if k == 1:
        return pld.from_gaussian_mechanism(
            sd,
            sampling_prob=q,
            value_discretization_interval=interval,
            neighboring_relation=NEIGHBOURS[relation],
        )
    # More sampling costs more: a sample at q is a thinned one at more than q.
    chances = np.asarray(binom.pmf(range(k + 1), k, max(q, RAREST)))
    if chances[0] < RARELY_NONE:
        # One row where there was none costs more.
        chances[1] += chances[0]
        chances[0] = 0.0
        # so that their sum is at least 1, also in float
        chances = np.minimum(chances * (1 + 1e-14) / chances.sum(), 1.0)
    pmfs = []
    for direction in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        losses = _GroupLosses(
            sd, range(k + 1), chances.tolist(), adjacency_type=direction
        )
        pmf = pld._create_pld_pmf_from_monotone_privacy_loss(
            losses, value_discretization_interval=interval, use_connect_dots=True
        )
        pmfs.append(pmf)
    return pld.PrivacyLossDistribution(*pmfs)


class _GroupLosses(MixtureGaussianPrivacyLoss):
    """dp_accounting's mixture, without its jump beside the extreme loss.

    A sample without any row of the unit bounds the loss on one side, by -log P(none).
    dp_accounting takes a loss within 1e-8 + 1e-5 of that size (np.isclose) for the
    bound itself, and loses up to as much of delta.
    """

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Delta at increasing epsilons; beside the extreme loss on a chord.

        Delta is convex in exp(epsilon), so a chord is above it, and at and beyond the
        extreme it is known: 0, or 1 - exp(epsilon).
        """
        deltas: Any = super().get_delta_for_epsilon(epsilon)
        if self._sampling_prob == 1:
            return deltas
        extreme = -math.log1p(-self._sampling_prob)
        gap = 1e-7 + 2e-5 * extreme  # more than isclose's, and than any rounding
        if self.adjacency_type == AdjacencyType.ADD:
            low, high = extreme - gap, extreme + gap
            before = np.flatnonzero(epsilon <= low)
            left, top = -math.inf, 1.0
            if len(before):
                left, top = epsilon[before[-1]], deltas[before[-1]]
            right, bottom = high, 0.0
        else:
            low, high = -extreme - gap, -extreme + gap
            after = np.flatnonzero(epsilon >= high)
            left, top = low, -math.expm1(low)
            right, bottom = high, top  # delta does not grow
            if len(after):
                right, bottom = epsilon[after[0]], deltas[after[0]]
        near = (epsilon > low) & (epsilon < high)
        start = math.exp(left - right)
        weight = (np.exp(epsilon[near] - right) - start) / (1 - start)
        deltas[near] = top + weight * (bottom - top)
        return deltas
