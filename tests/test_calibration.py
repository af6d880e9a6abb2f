"""Noise for a budget: never less than the accountants ask, and hardly more."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.calibration import calibrate, mu_from_epsilon
from dphead.privacy.accounting import RELATIONS, GaussianEvent, epsilon, epsilon_from_mu

fast = settings(max_examples=60, deadline=None)
deltas = st.floats(-40, -0.1).map(lambda x: 10**x)


@pytest.mark.parametrize("accountant", ["auto", "exact", "rdp", "rdp-classic", "zcdp", "pld"])
@pytest.mark.parametrize("eps", [0.1, 1.0, 8.0])
def test_calibrated_noise_meets_the_budget_from_below(accountant, eps):
    events = [GaussianEvent(1.0, 1.0, 10), GaussianEvent(3.0)]
    scale = calibrate(events, eps, 1e-5, accountant=accountant)
    scaled = [GaussianEvent(e.noise_multiplier * scale, 1.0, e.count) for e in events]
    spent = epsilon(scaled, 1e-5, accountant=accountant)
    assert eps * (1 - (1e-3 if accountant == "pld" else 1e-6)) <= spent <= eps


@given(st.floats(0.05, 50), st.lists(st.floats(0.1, 10), min_size=1, max_size=4), deltas)
@fast
def test_exact_calibration_is_one_sided(eps, sigmas, delta):
    scale = calibrate([GaussianEvent(s) for s in sigmas], eps, delta)
    assert eps * (1 - 1e-6) <= epsilon([GaussianEvent(s * scale) for s in sigmas], delta) <= eps


@pytest.mark.parametrize("relation", RELATIONS)
def test_poisson_calibration_keeps_the_fixed_releases(relation):
    scale = calibrate([GaussianEvent(1.0, 0.1, 300), GaussianEvent(8.0)], 2.0, 1e-5, relation, fixed=(1,))
    spent = epsilon([GaussianEvent(scale, 0.1, 300), GaussianEvent(8.0)], 1e-5, relation)
    assert 2.0 * (1 - 1e-3) <= spent <= 2.0


def test_calibration_refuses_what_cannot_be():
    one = [GaussianEvent(1.0), GaussianEvent(1.0)]
    with pytest.raises(ValueError, match="exceed what the fixed releases cost"):
        calibrate(one, 1.0, 1e-5, fixed=(0,))
    with pytest.raises(ValueError, match="at least one release must be free"):
        calibrate(one, 1.0, 1e-5, fixed=(0, 1))
    with pytest.raises(ValueError, match="positive and finite"):
        calibrate([GaussianEvent(0.0)], 1.0, 1e-5)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        calibrate(one, 0.0, 1e-5)
    assert calibrate(one, math.inf, 1e-5) == 0.0


@given(st.floats(-3, 2).map(lambda x: 10**x), deltas)
@fast
def test_the_mu_of_a_budget_does_not_exceed_it(eps, delta):
    """To the last bit: solvers and audits use it as it is."""
    assert epsilon_from_mu(mu_from_epsilon(eps, delta), delta) <= eps
