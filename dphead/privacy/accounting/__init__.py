"""Compute (epsilon, delta) from a list of releases. This decides a charge.

Full batches have a closed form (Gaussian differential privacy, GDP). Poisson batches
use privacy loss distributions (PLD, `loss_distribution.py`). Both have Renyi
divergences (RDP), which budgets need. `dphead/planning/calibration.py` does the
inverse: it computes the noise from a budget.

Where floating point or a grid leaves a doubt, results must be rounded to the safe side.

References
----------
Dong, Roth, Su 2022 (GDP); Balle, Wang 2018 (its epsilon); Mironov 2017 and Mironov,
Talwar, Zhang 2019 (RDP); Feldman, Zrnic 2021 (filters).
"""

import logging
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import erfcx, gammaln, ndtr

RELATIONS = ("zero_out", "add_remove", "replace_one")
ACCOUNTANTS = ("auto", "exact", "pld", "rdp")
# dp_accounting 0.6's default orders, and powers of two for very small epsilons
RDP_ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(2**k for k in range(7, 14)),
)
# Limits, each to the safe side. They are chosen, not measured. The noise is a noise
# multiplier.
LARGEST_EPSILON = 1e12  # a larger epsilon is reported as infinite
SMALLEST_RDP_NOISE = 1e-3  # Poisson batches with less noise get infinite RDP
LARGEST_NOISE = 1e8  # Poisson batches with more noise are charged as with this
# 36 units of 2**-53: erfcx errs by at most 8.3 units (measured at 330,000 points
# against mpmath), and each operation around it by half a unit.
MILLS_ROUNDING = 4e-15
RDP_ROUNDING = 2e-15  # relative error of the few operations of a divergence or epsilon


@dataclass(frozen=True)
class GaussianEvent:
    """Describe `count` releases of a Gaussian mechanism, as the accountants see them.

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation over sensitivity; 0 is not private. For full batches it
        is over the relation's own sensitivity, so the same event holds under every
        relation. For Poisson batches it is over the zero-out sensitivity (the clip norm
        C), also under replace-one. For allocated rows it is over C.
    sampling_prob : float, default 1.0
        Sampling rate in (0, 1]; below 1 for Poisson batches.
    count : int, default 1
        Number of releases.
    rows_per_unit : int, default 1
        The most rows of one unit of privacy (a row, or a group of rows) that count.
    epoch_steps : int, default 1
        Above 1 for random allocation: an epoch is so many of these releases, and each
        row is in one of them, at random (proofs/allocation.md). Then the units are
        rows.

    Raises
    ------
    ValueError
        If a value is out of range, or if rows are allocated and also sampled or
        grouped.
    """

    noise_multiplier: float
    sampling_prob: float = 1.0
    count: int = 1
    rows_per_unit: int = 1
    epoch_steps: int = 1

    def __post_init__(self) -> None:
        sd, q = self.noise_multiplier, self.sampling_prob
        count, rows = self.count, self.rows_per_unit
        whole = 0 <= count < math.inf and count == int(count)
        some = type(rows) is int and 1 <= rows < 2**31
        unit = "a protected unit must have a row, or a whole number (int) of them"
        require(sd >= 0, "noise_multiplier must be at least 0", "noise_multiplier", sd)
        require(0 < q <= 1, "sampling_prob must lie in (0, 1]", "sampling_prob", q)
        require(whole, "count must be whole", "count", count)
        require(some, unit, "rows_per_unit", rows)
        steps = self.epoch_steps
        many = type(steps) is int and 1 <= steps < 2**31
        epoch = "an epoch must have a step, or a whole number (int) of them"
        require(many, epoch, "epoch_steps", steps)
        alone = steps == 1 or (q == 1 and rows == 1)
        only = "allocated rows must be units, and in no Poisson batches"
        require(alone, only, "(sampling_prob, rows_per_unit)", (q, rows))

    @property
    def is_full(self) -> bool:
        """Return whether every row is in each of these releases."""
        return self.sampling_prob == 1 and self.epoch_steps == 1

    @property
    def epochs(self) -> int:
        """Return how many epochs these releases begin.

        An epoch counts from its first release.
        """
        return -(-int(self.count) // self.epoch_steps)


def event_of(release: Mapping[str, Any]) -> GaussianEvent:
    """Return the event of one release, as the accountants see it.

    Parameters
    ----------
    release : mapping
        `ReleaseSpec.row()`, or the same from a ledger. `group_cap` may be missing, in a
        ledger older than groups. `epoch_steps` is missing where it is 1, and `private`
        where it is True.

    Returns
    -------
    GaussianEvent
        A release with `private` False counts as one without noise.

    Guarantee
    ---------
    Plans, the ledger and `ReleaseSpec` all get their events here. So a release cannot
    be charged as one thing and reported as another.
    """
    cap = release.get("group_cap")
    private = release.get("private", True)
    return GaussianEvent(
        release["noise_multiplier"] if private else 0.0,
        release["sampling_prob"],
        rows_per_unit=1 if cap is None else cap,
        epoch_steps=release.get("epoch_steps", 1),
    )


def together(events: Iterable[GaussianEvent]) -> list[GaussianEvent]:
    """Return the same releases with equal ones in one event, in order of appearance."""
    counts: Counter[GaussianEvent] = Counter()
    for event in events:
        one = event if event.count == 1 else replace(event, count=1)
        counts[one] += event.count
    return [replace(event, count=count) for event, count in counts.items()]


def require(
    ok: bool, what: str, name: str, value: object, hint: str = "Correct it."
) -> None:
    """Raise ValueError unless `ok`; the message says `what` must hold."""
    if not ok:
        raise ValueError(f"{what}, got {name}={value!r}. {hint}")


def check(delta: float = 0.5, relation: str = "zero_out") -> None:
    """Raise ValueError if `delta` or `relation` is invalid."""
    hint = "Use less than 1 / (number of rows)."
    require(0 < delta < 1, "delta must lie in (0, 1)", "delta", delta, hint)
    known = f"relation must be one of {RELATIONS}"
    require(relation in RELATIONS, known, "relation", relation)


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
        "exact" takes only full batches. "rdp" takes no allocated rows; for Poisson
        batches it takes neither replace-one nor units of several rows. "auto" is exact
        for full batches and PLD otherwise. It is the smaller of PLD and RDP, where RDP
        applies, if rounding leaves PLD little or nothing of a small delta, or if losses
        exceed 1e6. For allocated rows, "auto" and "pld" also compute a bound with each
        epoch as one full batch, and take the smaller one.
    coarser : float, default 1.0
        How many times wider the grid of PLD is.

    Returns
    -------
    float
        Epsilon; infinite if a release has no noise.

    Raises
    ------
    ValueError
        If an argument is invalid or the accountant does not apply.

    Guarantee
    ---------
    An upper bound, for noise multipliers and sampling probabilities that were fixed
    before the data were read.
    """
    check(delta, relation)
    known = f"accountant must be one of {ACCOUNTANTS}"
    require(accountant in ACCOUNTANTS, known, "accountant", accountant)
    mu = total_mu(events)
    if mu is None and accountant == "exact":
        raise ValueError(
            "exact needs full batches, got events='Poisson batches'. Use pld or rdp."
        )
    if any(e.noise_multiplier == 0 and e.count for e in events):
        return math.inf
    if mu is not None and accountant in ("auto", "exact"):
        return epsilon_from_mu(mu, delta)
    if accountant == "rdp":
        curve = rdp_curve(events, RDP_ORDERS, relation)
        return epsilon_from_rdp(RDP_ORDERS, curve, delta)
    from dphead.privacy.accounting.pld import pld_epsilon  # the import takes seconds

    found = pld_epsilon(tuple(events), delta, relation, coarser)
    if any(e.epoch_steps > 1 for e in events):
        return min(found, compose_epsilon(in_one_step(events), delta, relation, "auto"))
    units = max((e.rows_per_unit for e in events), default=1)
    if accountant == "pld" or relation == "replace_one" or units > 1:
        return found
    # Rounding takes about 1e-13 per release off delta. That is seldom much, and RDP
    # takes time.
    count = sum(e.count for e in events)
    if found < math.inf and delta > 1e-11 * count:
        return found
    return min(found, compose_epsilon(events, delta, relation, "rdp"))


def in_one_step(events: Iterable[GaussianEvent]) -> list[GaussianEvent]:
    """Return the same releases with each allocated epoch as one full batch.

    It costs no less: it is what an observer who knew a row's step would see of the
    epoch (proofs/allocation.md).
    """
    found = []
    for event in events:
        if event.epoch_steps > 1:
            event = replace(event, count=event.epochs, epoch_steps=1)
        found.append(event)
    return found


def total_mu(events: Sequence[GaussianEvent]) -> float | None:
    """Return the GDP parameter mu of the composition.

    It is sqrt(sum of count * (rows_per_unit / noise_multiplier)**2).

    Returns
    -------
    float or None
        None if a batch is sampled or allocated.

    Guarantee
    ---------
    Exact for full batches with noise fixed beforehand, also if a query depends on
    earlier results.

    References
    ----------
    Dong, Roth, Su 2022, Corollary 2 and, for groups, Theorem 6.
    """
    events = [e for e in events if e.count]
    if not all(e.is_full for e in events):
        return None
    if any(e.noise_multiplier == 0 for e in events):
        return math.inf
    mus = []
    for e in events:
        mus.append(e.rows_per_unit * math.sqrt(e.count) / e.noise_multiplier)
    return math.hypot(*mus)


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Guarantee
    ---------
    Never below the true value. Infinite if the true value exceeds 1e12.

    References
    ----------
    Balle, Wang 2018, Theorem 8.
    """
    check(delta)
    require(mu >= 0, "mu must be at least 0", "mu", mu)
    target = math.log(delta)
    # The upper end is zCDP's conversion, which is above the exact one.
    low = 0.0
    high = mu * mu / 2 + mu * math.sqrt(-2 * target)
    if not high < LARGEST_EPSILON:
        return math.inf
    if mu == 0 or log_delta(mu, 0.0) <= target:
        return 0.0
    while low < (middle := (low + high) / 2) < high:
        if log_delta(mu, middle) <= target:
            high = middle
        else:
            low = middle
    return high


def log_delta(mu: float, epsilon: float) -> float:
    """Return an upper bound, tight to rounding, on log delta(epsilon) of mu-GDP.

    mu is positive and finite. delta = Phi(t) - e^epsilon Phi(t - mu), where t = mu/2 -
    epsilon/mu. Since e^epsilon phi(t - mu) = phi(t), delta equals phi(t) [R(t) - R(t -
    mu)] with Mills' ratio R(x) = Phi(x)/phi(x). So no large numbers are subtracted.
    """
    t = mu / 2 - epsilon / mu
    log_phi = -t * t / 2 - 0.5 * math.log(2 * math.pi)
    tail = _mills_ratio(t - mu)
    if t > 0:
        excess = float(ndtr(t)) - math.exp(log_phi) * tail
        bound = math.log(excess + MILLS_ROUNDING)
    else:
        ratio = _mills_ratio(t)
        excess = max(ratio - tail, 0.0) + MILLS_ROUNDING * ratio
        bound = log_phi + math.log(excess)
    # How far rounding of t can move log delta: its slope there is at most |t| + 1.3.
    moved = (abs(t) + 1.3) * (epsilon / mu + mu / 2)
    slack = 4e-16 * (2 + t * t + moved)
    return min(0.0, bound + slack)


def _mills_ratio(x: float) -> float:
    """Return Phi(x) / phi(x) of the standard normal law."""
    scaled = float(erfcx(-x / math.sqrt(2)))
    return math.sqrt(math.pi / 2) * scaled


def rdp_curve(
    events: Sequence[GaussianEvent], orders: Sequence[float], relation: str = "zero_out"
) -> np.ndarray:
    """Return the total Renyi divergence at each order above 1.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases.
    orders : sequence of float
        Orders above 1.
    relation : {"zero_out", "add_remove", "replace_one"}, default "zero_out"
        The neighboring relation.

    Returns
    -------
    ndarray of float64, shape (len(orders),)
        The divergences.

    Raises
    ------
    ValueError
        For allocated rows, and for Poisson batches under replace-one or with units of
        several rows: their pairs have no bound here.

    Guarantee
    ---------
    An upper bound at each order. At fractional orders this assumes that dp_accounting's
    series keeps falling once it begins to fall, which is tested.

    References
    ----------
    Mironov 2017, Corollary 3; Mironov, Talwar, Zhang 2019, section 3.
    """
    check(relation=relation)
    total = np.zeros(len(orders))
    rounding = RDP_ROUNDING + len(events) * 2.0**-52  # covers the additions below too
    for event in (e for e in events if e.count):
        if event.is_full:
            mu = total_mu([event]) or 0.0
            # The square of a small mu could be rounded to zero.
            half = max(mu * mu / 2, sys.float_info.min) if mu else 0.0
            total = total + np.asarray(orders) * (half * (1 + rounding))
            continue
        sd, q, rows = event.noise_multiplier, event.sampling_prob, event.rows_per_unit
        steps = event.epoch_steps
        known = "RDP needs full or Poisson batches"
        require(steps == 1, known, "epoch_steps", steps, "Use pld.")
        pair = "RDP of Poisson batches needs zero_out or add_remove"
        unit = "RDP of Poisson batches needs units of one row"
        require(relation != "replace_one", pair, "relation", relation, "Use pld.")
        require(rows == 1, unit, "rows_per_unit", rows, "Use pld.")
        total = total + event.count * _poisson_rdp(q, sd, tuple(orders))
    return total


@lru_cache(maxsize=256)
def _poisson_rdp(
    sampling_prob: float, noise_multiplier: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Return the Renyi divergence of one Poisson batch at each order.

    It is that of dp_accounting, plus what its rounding may have taken off.
    """
    # The import takes seconds.
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    if noise_multiplier < SMALLEST_RDP_NOISE:
        return np.full(len(orders), np.inf)
    # Less noise costs more, so this is on the safe side.
    noise_multiplier = min(noise_multiplier, LARGEST_NOISE)
    # dp_accounting warns of orders at which its series does not converge. Their result
    # is infinite, which is safe.
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        values: Any = rdp._compute_rdp_poisson_subsampled_gaussian(
            sampling_prob, noise_multiplier, orders
        )
    finally:
        logger.disabled = before
    return np.maximum(values, 0.0) + _rdp_rounding(values, sampling_prob, orders)


def _rdp_rounding(
    values: np.ndarray, sampling_prob: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Return at least what dp_accounting's rounding took off each divergence.

    (order - 1) times a divergence is the logarithm of a sum of positive terms. So its
    error is at most that of the logarithms of the terms and of the partial sums. The
    numbers in them are at most `size`: lgamma(order + 1), order log q, order log(1 -
    q), the logarithm of the sum, and the exponent, which is below the sum of these. A
    few operations per term each round by 2**-53 of that, and there are order + 1 terms.

    The series of a fractional order has all signs positive, which gives an upper bound.
    It is cut at e**-30 of the sum and alternates from there. The 1e-12 covers the cut.
    """
    alpha = np.asarray(orders, float)
    logs = -math.log(sampling_prob) - math.log1p(-sampling_prob)
    size = 10 + gammaln(alpha + 1) + 2 * alpha * logs
    size = size + np.maximum(values, 0.0) * (alpha - 1)
    rounding = 2.0**-53 * (alpha + 20) * size
    return (1e-12 + rounding) / (alpha - 1)


def rdp_epsilon(order: float, rdp: float, delta: float) -> float:
    """Return the epsilon that follows from RDP at one order.

    Guarantee
    ---------
    (order, rdp)-RDP implies (result, delta)-DP.

    References
    ----------
    Canonne, Kamath, Steinke 2020, Proposition 12; Balle et al. 2020, Theorem 21.
    """
    check(delta)
    require(order > 1, "order must be above 1", "order", order)
    logs = math.log(delta), math.log(order)
    failure = sum(logs) / (order - 1)
    gain = math.log1p(-1 / order)
    sizes = rdp - gain + (abs(logs[0]) + logs[1]) / (order - 1)
    found = rdp + gain - failure + RDP_ROUNDING * sizes
    return math.inf if math.isnan(found) else max(0.0, found)


def epsilon_from_rdp(
    orders: Sequence[float], rdp: Sequence[float] | np.ndarray, delta: float
) -> float:
    """Return the smallest epsilon over the orders.

    Guarantee
    ---------
    An upper bound if every order's divergence is one.
    """
    check(delta)
    if not np.any(rdp):
        return 0.0
    pairs = zip(orders, rdp, strict=True)
    return min(rdp_epsilon(order, float(r), delta) for order, r in pairs)


def filter_order(epsilon: float, delta: float) -> float:
    """Return the one RDP order of an adaptive filter, from the budget alone.

    Candidates are 1.1, 1.2, ..., 10, whole numbers, and roots of powers of two up to
    8,192. The result is the one at which a Gaussian mechanism may spend most.

    Guarantee
    ---------
    None is needed: any order that is fixed beforehand is valid. This one loses least.

    References
    ----------
    Feldman, Zrnic 2021.
    """
    check(delta)
    finite = 0 < epsilon < math.inf
    require(finite, "epsilon must be positive and finite", "epsilon", epsilon)

    def room(order: float) -> float:
        """Return the largest mu²/2 that the budget allows a Gaussian mechanism."""
        failure = math.log(delta * order) / (order - 1)
        return (epsilon - math.log1p(-1 / order) + failure) / order

    fine = [x / 10 for x in range(11, 101)]
    coarse = [round(2 ** (x / 8)) for x in range(48, 105)]
    return float(max([*fine, *range(11, 64), *coarse], key=room))
