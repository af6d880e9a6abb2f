"""Trade-off curves and what bounds an attacker."""

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from benchmarks.arithmetic import advantage_bound
from dphead.analysis.tradeoff import (
    delta_curve,
    detection_limits,
    gaussian_tradeoff,
    limits_of_total,
    max_advantage,
    tradeoff,
    true_positive_rates,
)
from dphead.privacy.accounting import GaussianEvent, compose_epsilon

FULL = [GaussianEvent(4.0), GaussianEvent(3.0)]
SAMPLED = [GaussianEvent(2.0, 0.1, 100)]
RATES = np.array([0.0, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])


def rate_of(events, fpr, relation="zero_out"):
    """The limit for one row under the relation's own step."""
    replaced = relation == "replace_one"
    return true_positive_rates(events, [fpr], relation, replaced=replaced)[0]


def test_a_perfect_gaussian_attack_reaches_the_curve():
    threshold = norm.isf(RATES)
    assert gaussian_tradeoff(1.3, RATES) == pytest.approx(
        norm.cdf(threshold, loc=1.3), abs=1e-12
    )
    assert gaussian_tradeoff(0.0, RATES) == pytest.approx(1 - RATES)


def test_full_batches_use_the_closed_form_and_noiseless_hides_nothing():
    assert tradeoff(FULL, RATES) == pytest.approx(
        gaussian_tradeoff(np.sqrt(1 / 16 + 1 / 9), RATES)
    )
    assert max_advantage(FULL) == pytest.approx(
        2 * ndtr(np.sqrt(1 / 16 + 1 / 9) / 2) - 1
    )
    assert rate_of([GaussianEvent(0.0)], 0.1) == 1.0
    assert max_advantage([]) == 0.0
    assert rate_of([], 0.25) == 0.25


def test_the_pld_curve_lies_just_under_the_gaussian_one():
    """An all but full Poisson batch is a Gaussian: the lines of its (epsilon, delta)
    pairs envelop the same curve.
    """
    nearly = [GaussianEvent(1.0, 1 - 1e-9, 1)]
    curve = tradeoff(nearly, RATES)
    exact = gaussian_tradeoff(1.0, RATES)
    assert np.all(curve <= exact + 1e-9)
    assert np.all(curve >= exact - 1e-3)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_poisson_curve_is_a_tradeoff_function(relation):
    grid = np.linspace(0, 1, 60)
    curve = tradeoff(SAMPLED, grid, relation)
    # falling and convex
    assert np.all(np.diff(curve) <= 1e-12)
    assert np.all(np.diff(curve, 2) >= -1e-9)
    assert np.all(curve <= 1 - grid + 1e-12)
    assert np.all(curve >= 0)
    assert 1 - curve[0] == pytest.approx(0, abs=1e-6)
    eps = compose_epsilon(SAMPLED, 1e-5, relation)
    assert rate_of(SAMPLED, 1e-3, relation) <= min(1, np.exp(eps) * 1e-3 + 1.01e-5)
    assert max_advantage(SAMPLED, relation) <= advantage_bound(eps, 1e-5)


def test_allocated_rows_with_little_noise_are_limited_as_in_one_step():
    """Where their own grid is coarse. 1e-3 is for the 2,000 lines of the curve."""
    sigma = 0.3
    allocated = [GaussianEvent(sigma, count=20, epoch_steps=10)]
    known = gaussian_tradeoff(np.sqrt(2) / sigma, RATES)
    found = tradeoff(allocated, RATES)
    assert np.all(found[known > 1e-6] >= known[known > 1e-6] * (1 - 1e-3))
    asked = [compose_epsilon(allocated, 1e-5)]
    assert delta_curve(allocated, asked)[0] <= 1e-5 * (1 + 1e-9)


def test_bad_rates_are_refused():
    with pytest.raises(ValueError, match="`fpr` must be"):
        true_positive_rates(FULL, [1.5])
    with pytest.raises(ValueError, match="replaced=False"):
        true_positive_rates(FULL, [0.5], "replace_one", replaced=False)


def test_a_replaced_row_is_two_steps():
    """Of two Gaussians mu apart, and of the sampled ones by the two-step bound."""
    mu = np.sqrt(1 / 16 + 1 / 9)
    twice = true_positive_rates(FULL, RATES)
    assert twice == pytest.approx(norm.sf(norm.isf(RATES), loc=2 * mu), abs=1e-12)
    assert max_advantage(FULL, replaced=True) == pytest.approx(2 * ndtr(mu) - 1)
    once = true_positive_rates(SAMPLED, RATES, replaced=False)
    both = true_positive_rates(SAMPLED, RATES)
    assert both == pytest.approx(true_positive_rates(SAMPLED, once, replaced=False))
    gain = max_advantage(SAMPLED, replaced=True)
    assert np.all(both - RATES <= gain + 1e-12)
    assert gain == 2 * max_advantage(SAMPLED)


def test_the_default_is_an_empty_place_where_the_number_of_rows_is_private():
    assert [*detection_limits(FULL, "add_remove")] == [False, True]
    assert [*detection_limits(FULL, "zero_out")] == [True, False]
    assert true_positive_rates(FULL, RATES, "add_remove") == pytest.approx(
        1 - tradeoff(FULL, RATES, "add_remove")
    )


def test_the_limits_of_a_total_follow_from_its_epsilon():
    total = compose_epsilon(FULL, 1e-5)
    exact = limits_of_total(total, 1e-5, "zero_out", exact=True)
    assert exact == pytest.approx(detection_limits(FULL, "zero_out"), rel=1e-6)
    coarse = limits_of_total(total, 1e-5, "zero_out", exact=False)
    assert all(coarse[key] > exact[key] for key in exact)
    assert coarse[False] == pytest.approx(np.exp(total) * 0.01 + 1e-5)
    assert coarse[True] == pytest.approx(np.exp(total) * coarse[False] + 1e-5)
    endless = limits_of_total(float("inf"), 1e-5, "zero_out", exact=True)
    assert endless == {True: 1.0, False: 1.0}
    assert limits_of_total(0.0, 1e-5, "add_remove", exact=True)[False] < 0.0101
