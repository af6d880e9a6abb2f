"""Bound membership-inference attacks: trade-off curves, true-positive rates, advantage.

An attack decides whether a row was used for training. If the row was not used, another
row was used instead, or no other row. Each bound states which of the two it assumes.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.special import ndtr, ndtri

from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.accounting import (
    GaussianEvent,
    in_one_step,
    log_delta,
    require,
    total_mu,
)
from dphead.privacy.python_values import python_value
from dphead.privacy.rounding import percent_up

# false-positive rates printed by `dphead account`
REPORTED_RATES = (0.001, 0.01, 0.1)
# false-positive rate of sentences that state one bound; chosen
FALSE_POSITIVE_RATE = 0.01
# keys in JSON output, by `replaced`: another row is used instead, or no other row
PLACES = {True: "replaced", False: "absent"}
# smallest false-negative rates at given false-positive rates
_Curve = Callable[[np.ndarray], np.ndarray]


def gaussian_tradeoff(mu: float, fpr: np.ndarray | Sequence[float]) -> np.ndarray:
    """Return the smallest false-negative rates of attacks on a mu-GDP mechanism.

    Parameters
    ----------
    mu : float
        Parameter of Gaussian differential privacy, at least 0.
    fpr : array of float
        False-positive rates in [0, 1].

    Returns
    -------
    array of float
        Phi(Phi^-1(1 - fpr) - mu).

    References
    ----------
    Dong, Roth, Su 2022, equation 6.
    """
    rates = np.asarray(fpr, float)
    return ndtr(-ndtri(rates) - mu) if mu > 0 else 1 - rates


def epsilon_delta_tradeoff(
    epsilon: float, delta: float, fpr: np.ndarray | Sequence[float]
) -> np.ndarray:
    """Return the smallest false-negative rates of attacks on (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    fpr : array of float
        False-positive rates in [0, 1].

    Returns
    -------
    array of float
        max(0, 1 - delta - e^eps fpr, e^-eps (1 - delta - fpr)).

    References
    ----------
    Dong, Roth, Su 2022, Proposition 3.
    """
    rates = np.asarray(fpr, float)
    likely = 1 - delta - math.exp(min(epsilon, 700.0)) * rates
    unlikely = math.exp(-epsilon) * (1 - delta - rates)
    return np.maximum(0.0, np.maximum(likely, unlikely))


def delta_from_mu(mu: float, epsilon: float) -> float:
    """Return the delta of a mu-GDP mechanism at `epsilon`.

    The result is an upper bound, and exact up to rounding.

    Parameters
    ----------
    mu : float
        Parameter of Gaussian differential privacy, at least 0; may be infinite.
    epsilon : float
        At least 0; may be infinite.

    Returns
    -------
    float
        Delta in [0, 1].

    Raises
    ------
    ValueError
        If `mu` or `epsilon` is negative.

    References
    ----------
    Balle, Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 1.
    """
    mu, epsilon = python_value(mu), python_value(epsilon)
    require(epsilon >= 0, "epsilon must be at least 0", "epsilon", epsilon)
    require(mu >= 0, "mu must be at least 0", "mu", mu)
    if mu == 0 or (math.isinf(epsilon) and not math.isinf(mu)):
        return 0.0
    return 1.0 if mu > 1e100 and epsilon < mu else math.exp(log_delta(mu, epsilon))


def delta_curve(
    events: Sequence[GaussianEvent],
    epsilons: np.ndarray | Sequence[float],
    relation: str = "zero_out",
) -> np.ndarray:
    """Return the delta of a composition at each epsilon.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases.
    epsilons : array of float
        Values of at least 0.
    relation : str, default "zero_out"
        The neighboring relation of the releases.

    Returns
    -------
    array of float
        Delta at each epsilon.

    Notes
    -----
    Delta is exact for full batches, and otherwise computed from privacy loss
    distributions. Allocated rows have two bounds, for allocation and for one full batch
    per epoch. The smaller one is returned, as by `accounting.compose_epsilon`.
    """
    mu = total_mu(events)
    if mu is not None:
        return np.array([delta_from_mu(mu, float(e)) for e in epsilons])
    # the import takes seconds
    from dphead.privacy.accounting.pld import loss_distribution

    noiseless = any(e.noise_multiplier == 0 and e.count for e in events)
    distribution = None if noiseless else loss_distribution(events, relation)
    asked = np.asarray(epsilons, float)
    found = np.ones(len(asked))
    if distribution is not None:
        each = [losses.deltas(asked) for losses in distribution]
        found = np.minimum(1.0, np.max(each, axis=0))
    if any(e.epoch_steps > 1 for e in events):
        found = np.minimum(found, delta_curve(in_one_step(events), asked, relation))
    return found


def tradeoff(
    events: Sequence[GaussianEvent],
    fpr: np.ndarray | Sequence[float],
    relation: str = "zero_out",
) -> np.ndarray:
    """Return a lower bound on the false-negative rate of any attack on the composition.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases that the attacker sees.
    fpr : array of float
        False-positive rates in [0, 1].
    relation : str, default "zero_out"
        The neighboring relation of the releases.

    Returns
    -------
    array of float
        False-negative rates, one for each rate.

    Notes
    -----
    The curve is exact for full batches. Otherwise it is the supremum over 2,000
    epsilons of max(0, 1 - delta - e^eps fpr, e^-eps (1 - delta - fpr)).

    References
    ----------
    Dong, Roth, Su 2022, Propositions 3 and 6.
    """
    return _tradeoff_function(events, relation)(np.asarray(fpr, float))


def _tradeoff_function(events: Sequence[GaussianEvent], relation: str) -> _Curve:
    """Return the curve of `tradeoff` as a function of false-positive rates."""
    mu = total_mu(events)
    if mu is not None:
        return partial(gaussian_tradeoff, mu)
    epsilons = np.concatenate([[0.0], np.geomspace(1e-4, 700.0, 1999)])
    hit = 1 - delta_curve(events, epsilons, relation)
    steep = np.exp(epsilons)
    flat = np.exp(-epsilons)

    def false_negatives(rates: np.ndarray) -> np.ndarray:
        bound = []
        for rate in rates.ravel():
            likely = float(np.max(hit - steep * rate))
            unlikely = float(np.max(flat * (hit - rate)))
            bound.append(max(0.0, likely, unlikely))
        return np.array(bound).reshape(rates.shape)

    return false_negatives


def is_replaced(relation: str) -> bool:
    """Return whether a relation's bounds assume, by default, that a row is replaced.

    With a public number of rows, another row is used in its place. With a private
    number (add_remove), no other row is used.
    """
    return relation != "add_remove"


def true_positive_rates(
    events: Sequence[GaussianEvent],
    fpr: np.ndarray | Sequence[float],
    relation: str = "zero_out",
    *,
    replaced: bool | None = None,
) -> np.ndarray:
    """Return upper bounds on the true-positive rates of membership inference.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases that the attacker sees.
    fpr : array of float
        False-positive rates in [0, 1].
    relation : str
        The neighboring relation of the releases.
    replaced : bool, optional
        Whether to compare with a fit on another row instead, not without the row.
        Default: `is_replaced(relation)`.

    Returns
    -------
    array of float
        Upper bounds in [0, 1], one for each rate.

    Raises
    ------
    ValueError
        If a rate is outside [0, 1], or for `replaced=False` under replace_one.

    Notes
    -----
    Under zero_out and add_remove, replacing a row takes two steps: removing one and
    adding one. A mechanism with trade-off curve f then has the curve f(1 - f(x)), which
    is G_{2 mu} for f = G_mu.

    References
    ----------
    Dong, Roth, Su 2022, Theorem 2.14.
    """
    rates = np.asarray(fpr, float)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(
            f"`fpr` must be from 0 to 1, got {fpr}. Pass a rate such as 0.001."
        )
    if replaced is None:
        replaced = is_replaced(relation)
    if relation == "replace_one" and not replaced:
        raise ValueError(
            "`replaced=False` is not valid with the relation replace_one. Remove it, "
            "or use the relation zero_out or add_remove."
        )
    return _hits(_tradeoff_function(events, relation), rates, relation, replaced)


def _hits(
    curve: _Curve, rates: np.ndarray, relation: str, replaced: bool
) -> np.ndarray:
    """Return the bounds of `true_positive_rates` by a trade-off curve."""
    hits = 1.0 - curve(rates)
    if replaced and relation != "replace_one":
        hits = 1.0 - curve(hits)
    return hits


def comparisons(relation: str) -> list[bool]:
    """Return the values of `replaced` that a relation allows, default first."""
    default = is_replaced(relation)
    return [default] if relation == "replace_one" else [default, not default]


def detection_limits(
    events: Sequence[GaussianEvent], relation: str
) -> dict[bool, float]:
    """Return upper bounds on the true-positive rate at FALSE_POSITIVE_RATE.

    The keys are the values of `comparisons`. The default comes first.
    """
    return _limits_of_curve(_tradeoff_function(events, relation), relation)


def _limits_of_curve(curve: _Curve, relation: str) -> dict[bool, float]:
    rate = np.array([FALSE_POSITIVE_RATE])
    return {
        replaced: float(_hits(curve, rate, relation, replaced)[0])
        for replaced in comparisons(relation)
    }


def limits_of_total(
    epsilon: float, delta: float, relation: str, *, exact: bool
) -> dict[bool, float]:
    """Return the bounds of `detection_limits` from the total of several fits.

    Parameters
    ----------
    epsilon, delta : float
        The total of the fits.
    relation : str
        The neighboring relation of all fits.
    exact : bool
        Whether all fits use full batches, so that their composition is mu-GDP.
        Otherwise the curve is for (epsilon, delta)-differential privacy.

    Returns
    -------
    dict
        Upper bound in [0, 1] for each value of `comparisons`, the default first.
    """
    if exact and math.isfinite(epsilon):
        mu = mu_from_epsilon(epsilon, delta)
        return detection_limits([GaussianEvent(1 / mu)] if mu > 0 else [], relation)
    curve = partial(epsilon_delta_tradeoff, epsilon, delta)
    return _limits_of_curve(curve, relation)


def alternative(replaced: bool, unit: str) -> str:
    """Return text that follows "compared with a fit": what the other fit used."""
    if replaced:
        return f"on another {unit} instead"
    return f"without the {unit}"


def plural(unit: str) -> str:
    """Return the plural of a unit's name, such as "image" or "person"."""
    return "people" if unit == "person" else f"{unit}s"


def detection(limits: dict[bool, float], what: str, unit: str) -> str:
    """Return a sentence with the bounds of `detection_limits`, rounded up.

    Parameters
    ----------
    limits : dict
        Result of `detection_limits` or `limits_of_total`.
    what : str
        Target of the attack, such as "this head".
    unit : str
        Name of a row or of a group, such as "image" or "person".
    """
    shares = [
        f"{percent_up(limit)} compared with a fit {alternative(replaced, unit)}"
        for replaced, limit in limits.items()
    ]
    return (
        f"At a {100 * FALSE_POSITIVE_RATE:g} % false-positive rate, a "
        f"membership-inference attack on {what} detects at most this share of training "
        f"{plural(unit)}: {', '.join(shares)}."
    )


def max_advantage(
    events: Sequence[GaussianEvent],
    relation: str = "zero_out",
    *,
    replaced: bool = False,
) -> float:
    """Return an upper bound on the true- minus the false-positive rate of any attack.

    Parameters
    ----------
    events : sequence of GaussianEvent
        The releases that the attacker sees.
    relation : str, default "zero_out"
        The neighboring relation of the releases.
    replaced : bool, default False
        As in `true_positive_rates`.

    Returns
    -------
    float
        Upper limit on the advantage, in [0, 1].

    Notes
    -----
    The advantage is delta at epsilon 0: 2 Phi(mu/2) - 1 for mu-GDP. If another row
    would have been used instead, two steps give the advantage of 2 mu for mu-GDP, and
    otherwise at most twice the advantage of one step.
    """
    one_step = float(delta_curve(events, [0.0], relation)[0])
    if not replaced or relation == "replace_one":
        return one_step
    mu = total_mu(events)
    return min(1.0, 2 * one_step) if mu is None else delta_from_mu(2 * mu, 0.0)
