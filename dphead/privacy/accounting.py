"""From the list of releases to (epsilon, delta), and from a budget to the noise.

Every function here is an upper bound on what was spent: where floating point or a grid leaves a doubt, the answer is
rounded away from the reader. Sources: Dong, Roth, Su 2022 (GDP); Balle, Wang 2018 (Theorem 8); Mironov, Talwar, Zhang
2019 (RDP of Poisson batches); Zhu, Dong, Wang 2022 (dominating pairs); Doroshenko et al. 2022 (connect the dots).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

RELATIONS = ("zero_out", "add_remove", "replace_one")
ACCOUNTANTS = ("auto", "exact", "pld", "rdp", "rdp-classic", "zcdp")
# dp_accounting 0.6's default orders; the powers of two after 1,024 serve very small epsilons.
RDP_ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [2**k for k in range(7, 14)])
PLD_INTERVAL = 1e-4  # width of the grid of privacy losses
PLD_MIN_DELTA = 1e-10  # below it the rounding of the Fourier transforms (at most 1e-13 of mass) would be seen


@dataclass(frozen=True)
class GaussianEvent:
    """`count` releases of a Gaussian mechanism, each with noise sd = noise_multiplier * sensitivity.

    Full batch: the sensitivity is the relation's own, so the same event holds under every relation. Poisson batches
    (sampling_prob < 1): it is the zero-out one (the clip norm C), also under replace_one. 0 noise is not private.
    Guarantee: none by itself; it is what the accountants see of a release.
    """

    noise_multiplier: float
    sampling_prob: float = 1.0
    count: int = 1

    def __post_init__(self):
        _require(self.noise_multiplier >= 0, "noise_multiplier must be at least 0", "noise_multiplier", self)
        _require(0 < self.sampling_prob <= 1, "sampling_prob must lie in (0, 1]", "sampling_prob", self)
        _require(self.count >= 0 and self.count == int(self.count), "count must be a whole number", "count", self)


def _require(ok: bool, what: str, name: str, value: object, hint: str = "Correct it.") -> None:
    if not ok:
        raise ValueError(f"{what}, got {name}={getattr(value, name, value)!r}. {hint}")


def _check(epsilon: float = 1.0, delta: float = 0.5, mu: float = 1.0, relation: str = RELATIONS[0]) -> None:
    _require(epsilon >= 0, "epsilon must be at least 0", "epsilon", epsilon)
    _require(0 < delta < 1, "delta must lie in (0, 1)", "delta", delta, "Use less than 1 / (number of rows).")
    _require(mu >= 0, "mu must be at least 0", "mu", mu)
    _require(relation in RELATIONS, f"relation must be one of {RELATIONS}", "relation", relation)


def _log_delta(mu: float, epsilon: float) -> float:
    """Upper bound, tight to rounding, on log delta(epsilon) of mu-GDP (0 < mu < inf).

    With t = mu/2 - epsilon/mu and Mills' ratio R(x) = Phi(x)/phi(x), e^epsilon phi(t - mu) = phi(t), so that
    delta = Phi(t) - e^epsilon Phi(t - mu) = phi(t) [R(t) - R(t - mu)]: no large numbers are subtracted.
    """
    t = mu / 2 - epsilon / mu
    log_phi = -t * t / 2 - 0.5 * math.log(2 * math.pi)
    tail = math.sqrt(math.pi / 2) * float(erfcx((mu - t) / math.sqrt(2)))  # R(t - mu)
    slack = 4e-16 * (2 + t * t + abs(t) * (epsilon / mu + mu / 2))  # rounding of t, relative to delta
    if t > 0:
        rest = float(ndtr(t)) - math.exp(log_phi) * tail + 8e-16
        return min(0.0, math.log(rest) + slack)
    mills = math.sqrt(math.pi / 2) * float(erfcx(-t / math.sqrt(2)))
    return min(0.0, log_phi + math.log(max(mills - tail, 0.0) + 8e-16 * mills) + slack)


def delta_from_mu(mu: float, epsilon: float) -> float:
    """Delta of a mu-GDP mechanism at `epsilon` (Balle, Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 1).

    Guarantee: never below the true value; above it by rounding only.
    """
    _check(epsilon=epsilon, mu=mu)
    if mu == 0 or (math.isinf(epsilon) and not math.isinf(mu)):
        return 0.0
    return 1.0 if math.isinf(mu) else math.exp(_log_delta(mu, epsilon))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-DP. Source: as `delta_from_mu`.

    Guarantee: never below the true value.
    """
    _check(delta=delta, mu=mu)
    target = math.log(delta)
    if mu == 0 or (mu < 1e150 and _log_delta(mu, 0.0) <= target):
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * target)  # zCDP's conversion is above the exact one
    if not high < 1e15:
        return math.inf
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _log_delta(mu, middle) <= target else (middle, high)
    return high


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Largest mu whose GDP guarantee implies (epsilon, delta)-DP. Source: as `delta_from_mu`.

    Guarantee: epsilon_from_mu(result, delta) <= epsilon; infinite only for an infinite epsilon.
    """
    _check(epsilon=epsilon, delta=delta)
    if math.isinf(epsilon):
        return math.inf
    low, high, target = 0.0, 1.0, math.log(delta)
    while _log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high and high - low > 1e-300:
        low, high = (middle, high) if _log_delta(middle, epsilon) <= target else (low, middle)
    step = 1e-15
    while epsilon_from_mu(low, delta) > epsilon:
        low, step = low * (1 - step), 2 * step
    return low


def total_mu(events: Sequence[GaussianEvent]) -> float | None:
    """GDP parameter of the composition, sqrt(sum count / noise_multiplier^2); None if a batch is sampled.

    Source: Dong, Roth, Su 2022, Corollary 2, for noise multipliers fixed beforehand.
    Guarantee: exact for full batches, also when each query depends on earlier results.
    """
    if any(e.sampling_prob < 1 and e.count for e in events):
        return None
    if any(e.noise_multiplier == 0 and e.count for e in events):
        return math.inf
    return math.hypot(*(math.sqrt(e.count) / e.noise_multiplier for e in events if e.count))


def total_rho(events: Sequence[GaussianEvent]) -> float | None:
    """zCDP parameter mu^2 / 2 of the composition; None if a batch is sampled (Bun, Steinke 2016, Proposition 1.6).

    Guarantee: exact for full batches.
    """
    mu = total_mu(events)
    return None if mu is None else mu * mu / 2


@lru_cache(maxsize=256)
def _poisson_rdp(sampling_prob: float, noise_multiplier: float, orders: tuple[float, ...]) -> np.ndarray:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    if noise_multiplier < 1e-3:
        return np.full(len(orders), np.inf)
    values = rdp._compute_rdp_poisson_subsampled_gaussian(sampling_prob, noise_multiplier, orders)
    # A sum of log terms near log 1 is rounded: one unit of 1e-14 before the division by (order - 1).
    return np.maximum(values, 0.0) + 1e-14 / (np.asarray(orders) - 1)


def rdp_curve(events: Sequence[GaussianEvent], orders: Sequence[float], relation: str = "zero_out") -> np.ndarray:
    """Total Renyi divergence at each order > 1 (Mironov 2017, Corollary 3; Mironov, Talwar, Zhang 2019, section 3).

    Poisson batches under replace_one are refused: dp_accounting has no RDP bound for that pair.
    Guarantee: an upper bound at each order, for zero_out and add_remove; for full batches under every relation.
    """
    _check(relation=relation)
    total = np.zeros(len(orders))
    for event in (e for e in events if e.count):
        if event.sampling_prob < 1:
            _require(relation != "replace_one", "RDP of Poisson batches needs zero_out or add_remove", "relation",
                     relation, "Use the pld accountant.")  # fmt: skip
            one = _poisson_rdp(event.sampling_prob, event.noise_multiplier, tuple(orders))
        else:
            one = np.asarray(orders) * (total_rho([replace(event, count=1)]) or 0.0)
        total = total + event.count * one
    return total


def rdp_epsilon(order: float, rdp: float, delta: float) -> float:
    """Epsilon from RDP at one order (Canonne, Kamath, Steinke 2020, Proposition 12; Balle et al. 2020, Theorem 21).

    Guarantee: (result, delta)-DP follows from (order, rdp)-RDP.
    """
    _check(delta=delta)
    _require(order > 1, "order must be above 1", "order", order)
    return max(0.0, rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))


def filter_order(epsilon: float, delta: float) -> float:
    """The one RDP order of an adaptive filter, from the budget alone: where a Gaussian gets the most divergence.

    Source: Feldman, Zrnic 2021 fix the order beforehand. Multiples of 0.1 up to 10, whole numbers up to 8,192.
    Guarantee: none needed; any order fixed beforehand is valid, this one loses least.
    """
    _check(epsilon=epsilon, delta=delta)
    _require(0 < epsilon < math.inf, "epsilon must be positive and finite", "epsilon", epsilon)
    orders = [x / 10 for x in range(11, 101)] + list(range(11, 64)) + sorted({round(2 ** (x / 8)) for x in range(48, 105)})
    return float(max(orders, key=lambda a: (epsilon - math.log1p(-1 / a) + math.log(delta * a) / (a - 1)) / a))


def _pld(events: Sequence[GaussianEvent], relation: str, coarser: float = 1.0):
    """The privacy loss distribution of the composition, or None when its losses exceed 1e6.

    zero_out is REPLACE_SPECIAL: a removed row adds zero where it is sampled, in both directions, as add_remove does.
    The full-batch events enter as one Gaussian pair N(0, 1), N(mu, 1) under every relation: their multipliers are over
    the relation's own sensitivity, and dp_accounting's REPLACE_ONE would double it (wrongly so for the Gram matrix).
    Replace-one with Poisson batches uses the pair (1-q)N(0) + qN(C), (1-q)N(0) + qN(-C). It dominates: with rows x, x'
    and gamma >= 1 the hockey stick is q E[1 - gamma e^V - c e^U]_+ with c >= 0 and (V, U) Gaussian, of means minus half
    their variances and Gram matrix that of (x' - x, -x). Each entry of that matrix raises the expectation of a convex
    function of such a sum, and x = -x', |x| = C makes all entries largest at once. AUDIT.md has the steps.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    kind = {"zero_out": NeighboringRelation.REPLACE_SPECIAL, "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
            "replace_one": NeighboringRelation.REPLACE_ONE}[relation]  # fmt: skip
    counts = Counter()
    for e in events:
        if e.sampling_prob < 1 and e.noise_multiplier < math.inf:
            counts[e.noise_multiplier, e.sampling_prob] += int(e.count)
    mu = total_mu([e for e in events if e.sampling_prob == 1]) or 0.0
    # The size of the losses, for the width of the grid only: twice the multiplier stands in for replace_one.
    halved = 0.5 if relation == "replace_one" else 1.0
    rough = [GaussianEvent(1 / mu)] if 1e-300 < mu < 1e300 else []
    rough += [GaussianEvent(s * halved, q, c) for (s, q), c in counts.items() if c]
    orders = (1.5, 2, 4, 8, 16, 32, 64)
    size = min(rdp_epsilon(a, r, 1e-15) for a, r in zip(orders, rdp_curve(rough, orders), strict=True))
    if mu >= 1e300 or not size < 1e6:
        return None
    interval = PLD_INTERVAL * coarser * max(1.0, size / 100)
    result = pld.identity(value_discretization_interval=interval)
    if rough and 1e-300 < mu:
        result = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
    for (noise_multiplier, sampling_prob), count in counts.items():
        if count:
            one = pld.from_gaussian_mechanism(noise_multiplier, sampling_prob=sampling_prob,
                                              value_discretization_interval=interval, neighboring_relation=kind)  # fmt: skip
            result = result.compose(one.self_compose(count))
    return result


def epsilon(
    events: Sequence[GaussianEvent], delta: float, relation: str = "zero_out", accountant: str = "auto", *,
    coarser: float = 1.0,
) -> float:  # fmt: skip
    """Epsilon of the composition at `delta`; `auto` is `exact` for full batches and `pld` otherwise.

    `rdp` uses the improved conversion, `rdp-classic` d + ln(1/delta)/(order-1) (Mironov 2017, Proposition 3), `zcdp`
    rho + 2 sqrt(rho ln(1/delta)) (Bun, Steinke 2016, Proposition 1.3). `coarser` widens pld's grid, for a first look.
    Raises ValueError where an accountant does not apply. Infinite when a release has no noise.
    Guarantee: an upper bound, for noise multipliers and sampling probabilities fixed before the data were read.
    """
    _check(delta=delta, relation=relation)
    _require(accountant in ACCOUNTANTS, f"accountant must be one of {ACCOUNTANTS}", "accountant", accountant)
    mu = total_mu(events)
    if any(e.noise_multiplier == 0 and e.count for e in events):
        return math.inf
    if accountant in ("exact", "zcdp"):
        _require(mu is not None, f"{accountant} accounting needs full batches", "sampling_prob",
                 min(e.sampling_prob for e in events) if events else 1.0, "Use pld or rdp.")  # fmt: skip
    if mu is not None and accountant in ("auto", "exact"):
        return epsilon_from_mu(mu, delta)
    if mu is not None and accountant == "zcdp":
        return mu * mu / 2 + 2 * math.sqrt(mu * mu / 2 * -math.log(delta))
    if accountant in ("rdp", "rdp-classic"):
        return epsilon_from_rdp(RDP_ORDERS, rdp_curve(events, RDP_ORDERS, relation), delta, accountant == "rdp-classic")
    _require(delta >= PLD_MIN_DELTA, f"pld accounting needs delta of at least {PLD_MIN_DELTA}", "delta", delta,
             "Use the rdp accountant.")  # fmt: skip
    distribution = _pld(events, relation, coarser)
    return math.inf if distribution is None else float(distribution.get_epsilon_for_delta(delta - 1e-13))


def epsilon_from_rdp(orders: Sequence[float], rdp: Sequence[float] | np.ndarray, delta: float, classic=False) -> float:
    """The least epsilon over the orders; `classic` converts as TB21's Lemma B.4, else as `rdp_epsilon`.

    Guarantee: an upper bound when the whole curve was fixed beforehand.
    """
    if not np.any(rdp):
        return 0.0
    pairs = zip(orders, rdp, strict=True)
    if classic:
        return min(float(r) - math.log(delta) / (a - 1) for a, r in pairs)
    return min(rdp_epsilon(a, float(r), delta) for a, r in pairs)


def delta_curve(
    events: Sequence[GaussianEvent], epsilons: Sequence[float] | np.ndarray, relation: str = "zero_out"
) -> np.ndarray:
    """Delta at each epsilon, exact for full batches, else from the PLD. Source: as `epsilon`.

    Guarantee: upper bounds (for Poisson batches never below 1e-13, what the PLD's rounding can hide).
    """
    _check(relation=relation)
    if (mu := total_mu(events)) is not None:
        return np.array([delta_from_mu(mu, float(e)) for e in epsilons])
    none = any(e.noise_multiplier == 0 and e.count for e in events)
    distribution = None if none else _pld(events, relation)
    if distribution is None:
        return np.ones(len(epsilons))
    return np.array([min(1.0, float(distribution.get_delta_for_epsilon(float(e))) + 1e-13) for e in epsilons])


def _smallest_scale(spent: Callable[[float], float], target: float, guess: float, tolerance: float) -> float:
    """Smallest s, to a relative tolerance and on the safe side, with spent(s) <= target; `spent` decreases."""

    def excess(log_scale: float) -> float:
        value = min(max(spent(math.exp(log_scale)), 1e-12), 1e12)
        return math.log(value / target)

    low = high = math.log(guess)
    step = 4 * tolerance
    if excess(low) > 0:
        while excess(high := high + step) > 0:
            low, step = high, min(4 * step, 2.0)
            _require(high < 200, "the budget must be reachable by more noise", "epsilon", target)
    else:
        while excess(low := low - step) <= 0:
            high, step = low, min(4 * step, 2.0)
            if low < -200:
                return math.exp(low)
    root = float(brentq(excess, low, high, xtol=tolerance / 8)) + tolerance / 8  # type: ignore[arg-type]
    while spent(scale := math.exp(root)) > target:
        root += tolerance / 2
    return scale


def calibrate(
    events: Sequence[GaussianEvent], epsilon: float, delta: float, relation: str = "zero_out",
    accountant: str = "auto", fixed: Collection[int] = (),
) -> float:  # fmt: skip
    """Smallest s such that multiplying every noise multiplier not in `fixed` (indices) by s meets the budget.

    0 for an infinite epsilon. Relative error 1e-7 (1e-4 with pld). ValueError if `fixed` leaves nothing. Source: own.
    Guarantee: `epsilon` of the scaled events, with the same accountant, is at most the target.
    """
    _check(epsilon=epsilon, delta=delta, relation=relation)
    _require(epsilon > 0, "epsilon must be positive to calibrate noise", "epsilon", epsilon)
    free = [e for i, e in enumerate(events) if i not in fixed and e.count]
    _require(bool(free), "at least one release must be free to scale", "fixed", tuple(fixed))
    if math.isinf(epsilon):
        return 0.0
    _require(all(0 < e.noise_multiplier < math.inf for e in free), "free noise multipliers must be positive and finite",
             "noise_multiplier", [e.noise_multiplier for e in free], "Start from 1.")  # fmt: skip
    held = [e for i, e in enumerate(events) if i in fixed]
    spend = globals()["epsilon"]
    spent_held = spend(held, delta, relation, accountant)
    _require(spent_held < epsilon, "the fixed releases alone must cost less than the budget", "epsilon", spent_held,
             f"Raise the budget above {spent_held:.6g} or the fixed noise.")  # fmt: skip

    def scaled(s: float) -> list[GaussianEvent]:
        return held + [replace(e, noise_multiplier=e.noise_multiplier * s) for e in free]

    mu_free, mu_held = total_mu(free), total_mu(held)
    if accountant in ("auto", "exact") and mu_free is not None and mu_held is not None:
        target = mu_from_epsilon(epsilon, delta)
        scale, step = mu_free / math.sqrt((target - mu_held) * (target + mu_held)), 1e-15
        while spend(scaled(scale), delta, relation, accountant) > epsilon:
            scale, step = scale * (1 + step), 2 * step
        return scale
    if accountant in ("auto", "pld"):
        guess = _smallest_scale(lambda s: spend(scaled(s), delta, relation, "pld", coarser=10), epsilon, 1.0, 1e-2)
        return _smallest_scale(lambda s: spend(scaled(s), delta, relation, "pld"), epsilon, guess, 1e-4)
    return _smallest_scale(lambda s: spend(scaled(s), delta, relation, accountant), epsilon, 1.0, 1e-7)
