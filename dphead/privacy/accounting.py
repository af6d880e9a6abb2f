"""From the list of releases to (epsilon, delta): what decides a charge.

`dphead/calibration.py` goes back.

Where floating point or a grid leaves a doubt, answers are rounded to the safe side.
Sources: Dong, Roth, Su 2022 (GDP); Balle, Wang 2018 (Theorem 8); Mironov, Talwar, Zhang
2019 (RDP of Poisson batches); Zhu, Dong, Wang 2022 (dominating pairs); Doroshenko et
al. 2022 (connect the dots, as in dp_accounting).
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import erfcx, ndtr

RELATIONS = ("zero_out", "add_remove", "replace_one")
ACCOUNTANTS = ("auto", "exact", "pld", "rdp", "rdp-classic", "zcdp")
# dp_accounting 0.6's default orders; the powers of two after 1,024 serve very small
# epsilons.
RDP_ORDERS = tuple(
    [1 + x / 10 for x in range(1, 100)]
    + list(range(11, 64))
    + [2**k for k in range(7, 14)]
)
# width of the grid of privacy losses (wider above epsilon = 100, in proportion)
PLD_INTERVAL = 1e-4
# below it the rounding of Fourier transforms and cut tails (1e-13 of mass) would be
# seen
PLD_MIN_DELTA = 1e-10


@dataclass(frozen=True)
class GaussianEvent:
    """`count` releases of a Gaussian mechanism, each with noise sd = noise_multiplier *
    sensitivity.

    Full batch: the sensitivity is the relation's own, so the same event holds under
    every relation. Poisson batches (sampling_prob < 1): it is the zero-out one (the
    clip norm C), also under replace_one. 0 noise is not private. rows_per_unit: the
    most rows that one protected unit (a row, or a group of them) has among those that
    count. Guarantee: none by itself; it is what the accountants see of a release.
    """

    noise_multiplier: float
    sampling_prob: float = 1.0
    count: int = 1
    rows_per_unit: int = 1

    def __post_init__(self):
        require(
            self.noise_multiplier >= 0,
            "noise_multiplier must be at least 0",
            "noise_multiplier",
            self,
        )
        require(
            0 < self.sampling_prob <= 1,
            "sampling_prob must lie in (0, 1]",
            "sampling_prob",
            self,
        )
        require(
            0 <= self.count < math.inf and self.count == int(self.count),
            "count must be whole",
            "count",
            self,
        )
        whole = type(self.rows_per_unit) is int and 1 <= self.rows_per_unit < 2**31
        require(
            whole,
            "a protected unit must have a row, or a whole number (int) of them",
            "rows_per_unit",
            self,
        )


def event_of(release: Mapping[str, Any]) -> GaussianEvent:
    """What the accountants see of one release. release: `ReleaseSpec.row()`, or the
    same from a ledger, where group_cap may be missing (it was written before there were
    groups).

    Guarantee: plans, the ledger and `ReleaseSpec` all get their events here, so a
    release cannot be charged as one thing and reported as another.
    """
    cap = release.get("group_cap")
    return GaussianEvent(
        release["noise_multiplier"],
        release["sampling_prob"],
        rows_per_unit=1 if cap is None else cap,
    )


def together(events: Iterable[GaussianEvent]) -> list[GaussianEvent]:
    """The same releases, equal ones counted in one event, in order of appearance."""
    counts: Counter[GaussianEvent] = Counter()
    for event in events:
        one = event if event.count == 1 else replace(event, count=1)
        counts[one] += event.count
    return [replace(event, count=count) for event, count in counts.items()]


def require(
    ok: bool, what: str, name: str, value: object, hint: str = "Correct it."
) -> None:
    """ValueError unless ok: `what` must hold, got value (or its attribute `name`)."""
    if not ok:
        raise ValueError(f"{what}, got {name}={getattr(value, name, value)!r}. {hint}")


def check(
    epsilon: float = 1.0,
    delta: float = 0.5,
    mu: float = 1.0,
    relation: str = "zero_out",
) -> None:
    """ValueError for a value outside its range."""
    require(epsilon >= 0, "epsilon must be at least 0", "epsilon", epsilon)
    require(
        0 < delta < 1,
        "delta must lie in (0, 1)",
        "delta",
        delta,
        "Use less than 1 / (number of rows).",
    )
    require(mu >= 0, "mu must be at least 0", "mu", mu)
    require(
        relation in RELATIONS,
        f"relation must be one of {RELATIONS}",
        "relation",
        relation,
    )


def log_delta(mu: float, epsilon: float) -> float:
    """Upper bound, tight to rounding, on log delta(epsilon) of mu-GDP (0 < mu < inf).

    With t = mu/2 - epsilon/mu and Mills' ratio R(x) = Phi(x)/phi(x), e^epsilon phi(t -
    mu) = phi(t), so that delta = Phi(t) - e^epsilon Phi(t - mu) = phi(t) [R(t) - R(t -
    mu)]: no large numbers are subtracted.
    """
    t = mu / 2 - epsilon / mu
    log_phi = -t * t / 2 - 0.5 * math.log(2 * math.pi)
    tail = math.sqrt(math.pi / 2) * float(erfcx((mu - t) / math.sqrt(2)))  # R(t - mu)
    slack = 4e-16 * (
        2 + t * t + abs(t) * (epsilon / mu + mu / 2)
    )  # what rounding of t can do to log delta
    if t > 0:
        return min(
            0.0, math.log(float(ndtr(t)) - math.exp(log_phi) * tail + 8e-16) + slack
        )
    mills = math.sqrt(math.pi / 2) * float(erfcx(-t / math.sqrt(2)))
    return min(0.0, log_phi + math.log(max(mills - tail, 0.0) + 8e-16 * mills) + slack)


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Source: Balle, Wang 2018, Theorem 8.

    Guarantee: never below the true value; infinite when that exceeds 1e12.
    """
    check(delta=delta, mu=mu)
    target = math.log(delta)
    low, high = (
        0.0,
        mu * mu / 2 + mu * math.sqrt(-2 * target),
    )  # zCDP's conversion is above the exact one
    if not high < 1e12:
        return math.inf
    if mu == 0 or log_delta(mu, 0.0) <= target:
        return 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if log_delta(mu, middle) <= target else (middle, high)
    return high


def total_mu(events: Sequence[GaussianEvent]) -> float | None:
    """GDP parameter of the composition, sqrt(sum count (rows_per_unit /
    noise_multiplier)^2); None for sampled batches.

    Source: Dong, Roth, Su 2022, Corollary 2 and, for groups, Theorem 6. Guarantee:
    exact for full batches with noise fixed beforehand, also when a query depends on
    earlier results.
    """
    events = [e for e in events if e.count]
    if any(e.sampling_prob < 1 for e in events):
        return None
    terms = [
        e.rows_per_unit * math.sqrt(e.count) / e.noise_multiplier
        if e.noise_multiplier
        else math.inf
        for e in events
    ]
    return math.hypot(*terms)


def total_rho(events: Sequence[GaussianEvent]) -> float | None:
    """zCDP parameter mu^2 / 2 of the composition; None if a batch is sampled (Bun,
    Steinke 2016, Proposition 1.6).

    Guarantee: exact for full batches.
    """
    mu = total_mu(events)
    return None if mu is None else mu * mu / 2


@lru_cache(maxsize=256)
def _poisson_rdp(
    sampling_prob: float, noise_multiplier: float, orders: tuple[float, ...]
) -> np.ndarray:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    if noise_multiplier < 1e-3:
        return np.full(len(orders), np.inf)
    logger, before = logging.getLogger("absl"), logging.getLogger("absl").disabled
    # it warns of orders whose series does not converge; they come back infinite, which
    # is safe
    logger.disabled = True
    try:
        values = rdp._compute_rdp_poisson_subsampled_gaussian(
            sampling_prob, noise_multiplier, orders
        )
    finally:
        logger.disabled = before
    # The logarithm of a sum near 1 is rounded, by less than 1e-13, before it is divided
    # by (order - 1).
    return np.maximum(values, 0.0) + 1e-13 / (np.asarray(orders) - 1)


def rdp_curve(
    events: Sequence[GaussianEvent], orders: Sequence[float], relation: str = "zero_out"
) -> np.ndarray:
    """Total Renyi divergence at each order > 1 (Mironov 2017, Corollary 3; Mironov,
    Talwar, Zhang 2019, section 3).

    Poisson batches under replace_one are refused (ValueError): dp_accounting has no RDP
    bound for that pair. Guarantee: an upper bound at each order, for zero_out and
    add_remove; for full batches under every relation.
    """
    check(relation=relation)
    total = np.zeros(len(orders))
    for event in (e for e in events if e.count):
        if event.sampling_prob < 1:
            known = relation != "replace_one"
            require(
                known,
                "RDP of Poisson batches needs zero_out or add_remove",
                "relation",
                relation,
                "Use pld.",
            )
            one_row = event.rows_per_unit == 1
            require(
                one_row,
                "RDP of Poisson batches needs units of one row",
                "rows_per_unit",
                event,
                "Use pld.",
            )
            one = _poisson_rdp(
                event.sampling_prob, event.noise_multiplier, tuple(orders)
            )
            total = total + event.count * one
        else:
            total = total + np.asarray(orders) * (total_rho([event]) or 0.0)
    return total


def rdp_epsilon(order: float, rdp: float, delta: float) -> float:
    """Epsilon from RDP at one order (Canonne, Kamath, Steinke 2020, Proposition 12;
    Balle et al. 2020, Theorem 21).

    Guarantee: (result, delta)-DP follows from (order, rdp)-RDP.
    """
    check(delta=delta)
    require(order > 1, "order must be above 1", "order", order)
    return max(
        0.0,
        rdp
        + math.log1p(-1 / order)
        - (math.log(delta) + math.log(order)) / (order - 1),
    )


def epsilon_from_rdp(
    orders: Sequence[float],
    rdp: Sequence[float] | np.ndarray,
    delta: float,
    classic: bool = False,
) -> float:
    """The least epsilon over the orders; `classic` is d + ln(1/delta)/(order-1)
    (Mironov 2017, Proposition 3).

    Guarantee: an upper bound when every order's divergence is one.
    """
    check(delta=delta)
    if not np.any(rdp):
        return 0.0
    pairs = [(a, float(r)) for a, r in zip(orders, rdp, strict=True)]
    return min(
        r - math.log(delta) / (a - 1) if classic else rdp_epsilon(a, r, delta)
        for a, r in pairs
    )


def filter_order(epsilon: float, delta: float) -> float:
    """The one RDP order of an adaptive filter, from the budget alone: where a Gaussian
    may spend most divergence.

    Source: Feldman, Zrnic 2021 fix the order beforehand. Multiples of 0.1 up to 10,
    whole numbers up to 8,192. Guarantee: none needed; any order fixed beforehand is
    valid, this one loses least.
    """
    check(delta=delta)
    require(
        0 < epsilon < math.inf,
        "epsilon must be positive and finite",
        "epsilon",
        epsilon,
    )
    orders = (
        [x / 10 for x in range(11, 101)]
        + [*range(11, 64)]
        + [round(2 ** (x / 8)) for x in range(48, 105)]
    )
    return float(
        max(
            orders,
            key=lambda a: (
                (epsilon - math.log1p(-1 / a) + math.log(delta * a) / (a - 1)) / a
            ),
        )
    )


def loss_distribution(
    events: Sequence[GaussianEvent], relation: str = "zero_out", coarser: float = 1.0
):
    """dp_accounting's privacy loss distribution of the composition; None if a loss may
    exceed 1e6.

    zero_out is REPLACE_SPECIAL: a removed row adds zero where it is sampled, in both
    directions, as add_remove does. Full batches enter as one Gaussian pair N(0, 1),
    N(mu, 1) under every relation: their multipliers are over the relation's own
    sensitivity, and REPLACE_ONE would double that (wrongly so for the Gram matrix).
    Replace-one with Poisson batches is the pair (1-q)N(0) + qN(C), (1-q)N(0) + qN(-C).
    It dominates: for rows x, x' and gamma >= 1 the hockey stick is q E[1 - gamma e^V -
    c e^U]_+ with c >= 0 and (V, U) Gaussian, of means minus half their variances and
    covariance the Gram matrix of (x' - x, -x). Each entry of that matrix can only raise
    this expectation (a convex function of a sum of martingales), and x = -x', |x| = C
    makes all entries largest at once. A unit of k rows in Poisson batches is N(0)
    against the mixture of N(jC), j binomial (k, q), by the same argument
    (proofs/groups.md). ValueError for such units under replace_one. `coarser` widens
    the grid. Guarantee: pessimistic (never below the true delta, but for 1e-13 of
    rounding, or 1e-11 with such units, whose losses dp_accounting inverts by
    bisection).
    """
    from dp_accounting import NeighboringRelation as Relation
    from dp_accounting.pld import privacy_loss_distribution as pld
    from scipy.stats import binom

    check(relation=relation)
    kind = (
        Relation.REPLACE_ONE
        if relation == "replace_one"
        else Relation.ADD_OR_REMOVE_ONE
    )
    kind = Relation.REPLACE_SPECIAL if relation == "zero_out" else kind
    full = total_mu([e for e in events if e.sampling_prob == 1]) or 0.0
    poisson = Counter()
    for e in (
        e
        for e in events
        if e.sampling_prob < 1 and e.noise_multiplier < math.inf and e.count
    ):
        known = e.rows_per_unit == 1 or relation != "replace_one"
        require(
            known,
            "groups in Poisson batches need zero_out or add_remove",
            "relation",
            relation,
            "Use full batches.",
        )
        poisson[e.noise_multiplier, e.sampling_prob, e.rows_per_unit] += int(e.count)
    # The size of the losses sets the width of the grid and nothing else; replace_one
    # counts as half the noise.
    half, orders = 0.5 if relation == "replace_one" else 1.0, (2, 4, 8, 16, 32, 64)
    curve = rdp_curve(
        [GaussianEvent(s * half / k, q, count) for (s, q, k), count in poisson.items()],
        orders,
    )
    size = epsilon_from_rdp(
        orders, curve + np.asarray(orders) * (full * full / 2), 1e-15
    )
    if not size < 1e6:
        return None
    wide = (
        10 if any(k > 1 for _, _, k in poisson) else 1
    )  # a mixture's losses take seconds to invert
    interval = PLD_INTERVAL * coarser * wide * max(1.0, size / 100)
    result = pld.identity(value_discretization_interval=interval)
    if full > 1e-100:
        result = pld.from_gaussian_mechanism(
            1 / full, value_discretization_interval=interval
        )
    for (sd, q, k), count in poisson.items():
        if k > 1:
            # dp_accounting loses chances below 1e-8. More sampling costs more: dropping
            # rows again is a mixture.
            sums = np.asarray(binom.pmf(range(k + 1), k, max(q, 1e-7))).tolist()
            one = pld.from_mixture_gaussian_mechanism(
                sd, range(k + 1), sums, value_discretization_interval=interval
            )
        else:
            one = pld.from_gaussian_mechanism(
                sd,
                sampling_prob=q,
                value_discretization_interval=interval,
                neighboring_relation=kind,
            )
        result = result.compose(one.self_compose(count))
    return result


def epsilon(
    events: Sequence[GaussianEvent],
    delta: float,
    relation: str = "zero_out",
    accountant: str = "auto",
    coarser: float = 1,
) -> float:
    """Epsilon of the composition at `delta`; `auto` is `exact` for full batches and
    `pld` otherwise.

    `rdp` uses the improved conversion, `rdp-classic` TB21's (Lemma B.4), `zcdp` rho + 2
    sqrt(rho ln(1/delta)) (Bun, Steinke 2016, Proposition 1.3). ValueError where an
    accountant does not apply. Infinite when a release has no noise. Guarantee: an upper
    bound, for noise multipliers and sampling probabilities fixed before the data were
    read.
    """
    check(delta=delta, relation=relation)
    require(
        accountant in ACCOUNTANTS,
        f"accountant must be one of {ACCOUNTANTS}",
        "accountant",
        accountant,
    )
    mu = total_mu(events)
    if mu is None and accountant in ("exact", "zcdp"):
        require(
            False,
            f"{accountant} needs full batches",
            "events",
            "Poisson batches",
            "Use pld or rdp.",
        )
    if any(e.noise_multiplier == 0 and e.count for e in events):
        return math.inf
    if mu is not None and accountant in ("auto", "exact"):
        return epsilon_from_mu(mu, delta)
    if mu is not None and accountant == "zcdp":
        return mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if accountant in ("rdp", "rdp-classic"):
        return epsilon_from_rdp(
            RDP_ORDERS,
            rdp_curve(events, RDP_ORDERS, relation),
            delta,
            accountant == "rdp-classic",
        )
    require(
        delta >= PLD_MIN_DELTA,
        f"pld needs delta of at least {PLD_MIN_DELTA}",
        "delta",
        delta,
        "Use rdp.",
    )
    return _pld_epsilon(tuple(events), delta, relation, coarser)


# A plan's calibration, its charge and its report ask for the same.
@lru_cache(maxsize=1024)
def _pld_epsilon(
    events: tuple[GaussianEvent, ...], delta: float, relation: str, coarser: float
) -> float:
    """`epsilon` by privacy loss distributions.

    Guarantee: an upper bound, as `loss_distribution`, whose rounding is taken off
    delta.
    """
    distribution = loss_distribution(events, relation, coarser)
    rounding = (
        1e-11
        if any(e.rows_per_unit > 1 and e.sampling_prob < 1 for e in events)
        else 1e-13
    )
    return (
        math.inf
        if distribution is None
        else float(distribution.get_epsilon_for_delta(delta - rounding))
    )
