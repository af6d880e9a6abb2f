"""The profile of a choice among runs: against enumeration, simulation, an adversary and
the published bound.
"""

import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.special import ndtr, ndtri
from scipy.stats import nbinom, poisson

from dphead.analysis.selection_profile import (
    NumberOfRuns,
    density_bound,
    profile_epsilon,
    run_profile,
)
from dphead.privacy.accounting import GaussianEvent, compose_epsilon

DELTA = 1e-5
SHAPES = (0.0, 0.5, 1.0, 3.0, math.inf)


@lru_cache
def chances_of(mean, shape, most=4_000):
    """P(K = 0), P(K = 1), ...; found without generating functions.

    Cut where the rest is below 1e-12 for the means of these tests.
    """
    k = np.arange(most)
    if math.isinf(shape):
        return poisson.pmf(k, mean)

    def law(halt):
        if shape > 0:
            found = nbinom.pmf(k, shape, halt)
        else:
            found = (1 - halt) ** k / np.maximum(k, 1)
        found[0] = 0
        return found / found.sum()

    def excess(log_halt):
        return k @ law(math.exp(log_halt)) - mean

    return law(math.exp(brentq(excess, -7.0, -1e-9, xtol=1e-13)))


def best_of(run, score, chances):
    """The law of the best outcome: of k runs, none scores more and not all score less.

    run, score: (m,). Outcomes of one score share its chance as one run's do. Last comes
    the outcome of no run.
    """
    k = np.arange(len(chances))
    found = np.zeros(len(run) + 1)
    found[-1] = chances[0]
    for level in np.unique(score):
        less = run[score < level].sum()
        tied = run[score == level].sum()
        share = chances @ ((less + tied) ** k - less**k)
        found[:-1][score == level] = share * run[score == level] / tied
    return found


def delta_of(p, q, epsilons):
    factors = np.exp(epsilons)[:, None]
    return np.maximum(p - factors * q, 0).sum(axis=1)


def worst_of(p, q):
    """The exact profile of a discrete pair, in either direction."""
    return lambda epsilons: np.maximum(
        delta_of(p, q, epsilons), delta_of(q, p, epsilons)
    )


laws = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
# randomized response, the likelier answer scored last or first
@example([0.6, 0.4], [0.4, 0.6], [0, 1], 1.0, 4.0)
@example([0.6, 0.4], [0.4, 0.6], [1, 0], 1.0, 4.0)
@given(
    laws,
    laws,
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.sampled_from(SHAPES),
    st.sampled_from((1.5, 4.0, 25.0)),
)
def test_a_choice_among_few_outcomes_is_within_its_bound(p, q, score, shape, mean):
    """Rounding of the 4,000 powers: below 1e-9."""
    p = np.array(p) / np.sum(p)
    q = np.array(q) / np.sum(q)
    score = np.array(score)
    chances = chances_of(mean, shape)
    runs = NumberOfRuns.of(mean, shape)
    chosen = best_of(p, score, chances)
    other = best_of(q, score, chances)
    epsilons = np.array([0.0, 0.3, 1.0, 3.0])
    exact = worst_of(chosen, other)(epsilons)
    deltas = worst_of(p, q)
    shifts, weights = density_bound(runs, deltas, 6.0)
    for eps, least in zip(epsilons, exact, strict=True):
        assert mean * weights @ deltas(eps - shifts) >= least - 1e-9


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.0, 25.0])
def test_the_law_of_the_number_of_runs(shape, mean):
    """f'(1 - t) against its sum over k."""
    if mean == 1 and shape < math.inf:
        chances = np.array([0.0, 1.0])
    else:
        chances = chances_of(mean, shape)
    k = np.arange(1, len(chances))
    t = np.array([0.0, 0.01, 0.3, 1.0])
    sums = [chances[1:] @ (k * (1 - each) ** (k - 1)) for each in t]
    found = mean * np.exp(NumberOfRuns.of(mean, shape).log_density(t))
    assert found == pytest.approx(sums, rel=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("mean", "mu"), [(7.0, 1e-3), (300.0, 1.7)])
def test_the_density_bound_is_above_the_densities(shape, mean, mu):
    """At many shares t and factors z, with the Gaussian's own trade-off."""
    runs = NumberOfRuns.of(mean, shape)
    deltas = run_profile([GaussianEvent(1 / mu)], "zero_out")
    reach = compose_epsilon([GaussianEvent(1 / mu)], 1e-9)
    shifts, weights = density_bound(runs, deltas, reach)
    assert np.all(weights >= 0)
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    x = np.linspace(-8, 8, 4001)
    ours = np.exp(runs.log_density(ndtr(x)))
    theirs = np.exp(runs.log_density(ndtr(x + mu)))
    for z in np.exp(np.linspace(-1, shifts[-1], 400)):
        most = np.max(ours - z * theirs)
        assert weights @ np.maximum(1 - z * np.exp(-shifts), 0) >= most


def test_sampled_batches_are_bounded_like_the_full_ones_that_they_become():
    """Probabilities near 1: the loss distribution and the closed form within 1 %."""
    full = profile_epsilon([GaussianEvent(3.0)], 10, DELTA, 1.0)
    sampled = profile_epsilon([GaussianEvent(3.0, 1 - 1e-9)], 10, DELTA, 1.0)
    assert sampled == pytest.approx(full, rel=0.01)


def test_no_noise_has_no_bound_and_no_release_costs_nothing():
    assert math.isinf(profile_epsilon([GaussianEvent(0.0)], 5, DELTA, 1.0))
    assert profile_epsilon([], 5, DELTA, 1.0) == 0
    assert profile_epsilon([GaussianEvent(1e9)], 5, DELTA, 1.0) == 0


def test_no_size_of_a_loss_warns():
    """Of 10,000 runs by Poisson's law the largest ratio of densities is e**1900."""
    with np.errstate(all="raise", under="ignore"):
        found = profile_epsilon([GaussianEvent(0.5)], 10_000, DELTA, math.inf)
    assert 1000 < found < 10_000


def generating_function(runs):
    """f(1 - t) of the law, up to a constant."""
    if math.isinf(runs.shape):
        return lambda t: math.exp(-runs.mean * t)
    width = math.log1p(runs.rate)
    if runs.shape == 0:
        return lambda t: -math.log1p(runs.rate * t) / width
    whole = -math.expm1(-runs.shape * width)
    return lambda t: math.expm1(-runs.shape * math.log1p(runs.rate * t)) / whole


def adversary(runs, mu, cuts):
    """Least epsilon of the choice among N(mu, 1), beside N(0, 1), with three scores:
    best below the first cut, then above the second, then between.
    """
    low, high = cuts
    spans = [(-40.0, low), (high, 40.0), (low, high)]
    f = generating_function(runs)
    densities = []
    for mean in (mu, 0.0):
        beaten = 0.0
        found = []
        for start, stop in spans:
            share = ndtr(stop - mean) - ndtr(start - mean)
            found.append((f(beaten) - f(beaten + share)) / share)
            beaten += share
        densities.append(found)

    def excess(eps):
        delta = -DELTA
        for ours, theirs, (start, stop) in zip(*densities, spans, strict=True):
            x = (eps + math.log(theirs / ours)) / mu + mu / 2
            x = min(max(x, start), stop)
            delta += ours * (ndtr(mu - x) - ndtr(mu - stop))
            delta -= math.exp(eps) * theirs * (ndtr(-x) - ndtr(-stop))
        return delta

    return brentq(excess, 0.0, 60.0) if excess(0.0) > 0 else 0.0


def worst_score(runs, mu):
    """The most that the adversary gets from any two cuts."""

    def cost(logs):
        share, tail = np.exp(np.minimum(logs, -0.7))
        return -adversary(runs, mu, (mu + ndtri(share), mu - ndtri(tail)))

    starts = [(a, b) for a in (-6.0, -3.0, -1.0) for b in (-9.0, -5.0)]
    start = min(starts, key=cost)
    return -minimize(cost, start, method="Nelder-Mead").fun


def test_the_choice_that_is_simulated_is_the_one_that_is_enumerated():
    """Runs in a loop, the first of the best kept: five standard deviations."""
    rng = np.random.default_rng(0)
    run = np.array([0.5, 0.2, 0.2, 0.1])
    score = np.array([0, 1, 1, 2])
    draws = 20_000
    counts = np.zeros(5)
    for _ in range(draws):
        outcomes = rng.choice(4, size=rng.poisson(1.5), p=run)
        first = outcomes[np.argmax(score[outcomes])] if len(outcomes) else 4
        counts[first] += 1
    exact = best_of(run, score, chances_of(1.5, math.inf))
    sd = np.sqrt(draws * exact * (1 - exact))
    assert np.all(np.abs(counts - draws * exact) < 5 * sd)


@pytest.mark.parametrize("shape", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("mean", [2.0, 50.0])
@pytest.mark.parametrize("mu", [0.0325, 0.268, 1.67])
def test_an_adversarial_score_comes_near_the_bound(shape, mean, mu):
    """Within 2 % of epsilon: a score of three values."""
    found = profile_epsilon([GaussianEvent(1 / mu)], mean, DELTA, shape)
    worst = worst_score(NumberOfRuns.of(mean, shape), mu)
    assert worst <= found <= 1.02 * worst


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [2.0, 50.0])
def test_one_factor_for_all_scores_is_never_less(shape, mean):
    """Koskela, Redberg, Wang 2024: the mean times delta at epsilon - log factor."""
    mu = 0.5
    trial = [GaussianEvent(1 / mu)]
    x = np.linspace(-12, 12, 100_001)
    runs = NumberOfRuns.of(mean, shape)
    factor = np.max(runs.log_density(ndtr(x)) - runs.log_density(ndtr(x + mu)))
    published = compose_epsilon(trial, DELTA / mean) + factor
    assert profile_epsilon(trial, mean, DELTA, shape) < published
