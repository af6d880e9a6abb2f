"""Noise for a budget: never less than the accountants ask, and hardly more."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.planning.calibration import (
    ACCOUNTANTS,
    OF_SAMPLES,
    calibrate,
    classic_rdp_epsilon,
    epsilon_by,
    mu_from_epsilon,
    smallest_scale,
)
from dphead.privacy.accounting import (
    RELATIONS,
    GaussianEvent,
    compose_epsilon,
    epsilon_from_mu,
)

fast = settings(max_examples=60, deadline=None)
deltas = st.floats(-40, -0.1).map(lambda x: 10**x)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_accountants_of_samples_take_poisson_batches(accountant):
    event = GaussianEvent(5.0, 0.1)
    if accountant in OF_SAMPLES:
        assert 0 < epsilon_by(accountant, [event], 1e-5) < 1
    else:
        with pytest.raises(ValueError, match="needs full batches"):
            epsilon_by(accountant, [event], 1e-5)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("eps", [0.1, 8.0])
def test_calibrated_noise_meets_the_budget_from_below(accountant, eps):
    events = [GaussianEvent(1.0, 1.0, 10), GaussianEvent(3.0)]
    scale = calibrate(events, eps, 1e-5, accountant=accountant)
    scaled = [GaussianEvent(e.noise_multiplier * scale, 1.0, e.count) for e in events]
    spent = epsilon_by(accountant, scaled, 1e-5)
    assert eps * (1 - (1e-3 if accountant == "pld" else 1e-6)) <= spent <= eps


@given(
    st.floats(0.05, 50), st.lists(st.floats(0.1, 10), min_size=1, max_size=4), deltas
)
@fast
def test_exact_calibration_is_one_sided(eps, sigmas, delta):
    scale = calibrate([GaussianEvent(s) for s in sigmas], eps, delta)
    assert (
        eps * (1 - 1e-6)
        <= compose_epsilon([GaussianEvent(s * scale) for s in sigmas], delta)
        <= eps
    )


@pytest.mark.parametrize("relation", RELATIONS)
def test_poisson_calibration_keeps_the_fixed_releases(relation):
    scale = calibrate(
        [GaussianEvent(1.0, 0.1, 300), GaussianEvent(8.0)],
        2.0,
        1e-5,
        relation,
        fixed=(1,),
    )
    spent = compose_epsilon(
        [GaussianEvent(scale, 0.1, 300), GaussianEvent(8.0)], 1e-5, relation
    )
    assert 2.0 * (1 - 1e-3) <= spent <= 2.0


def test_noise_for_groups_in_poisson_batches_meets_the_budget_from_below():
    events = [GaussianEvent(1.0, 1e-3, 100, 64)]
    scale = calibrate(events, 2.0, 1e-5)

    def cost(noise):
        return compose_epsilon([GaussianEvent(noise, 1e-3, 100, 64)], 1e-5)

    assert cost(scale) <= 2.0
    assert cost(0.999 * scale) > 2.0


def test_calibration_refuses_what_cannot_be():
    one = [GaussianEvent(1.0), GaussianEvent(1.0)]
    with pytest.raises(ValueError, match="epsilon must exceed"):
        calibrate(one, 1.0, 1e-5, fixed=(0,))
    with pytest.raises(ValueError, match="at least one release must be free"):
        calibrate(one, 1.0, 1e-5, fixed=(0, 1))
    for other in (-1, 2):
        with pytest.raises(ValueError, match="fixed must hold indices from 0 to 1"):
            calibrate(one, 8.0, 1e-5, fixed=(other,))
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


# The papers' accountants, which decide no charge.


@pytest.mark.parametrize("scalar", [np.float16, np.float32])
def test_a_scalar_of_numpy_is_used_exactly(scalar):
    """Its own arithmetic would round to its precision, and spend more."""
    epsilon, delta = scalar(8), 1e-5
    mu = mu_from_epsilon(epsilon, delta)
    assert type(mu) is float and mu == mu_from_epsilon(8.0, delta)
    assert epsilon_from_mu(scalar(mu), delta) == epsilon_from_mu(
        float(scalar(mu)), delta
    )
    events, declared = [GaussianEvent(1.0, sampling_prob=0.1)], scalar(1.1)
    wanted = calibrate(events, float(declared), delta, accountant="rdp")
    assert calibrate(events, declared, delta, accountant="rdp") == wanted


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_no_noise_is_infinite_and_no_release_is_free_by_every_accountant(accountant):
    assert epsilon_by(accountant, [GaussianEvent(0.0)], 1e-5) == math.inf
    for free in ([], [GaussianEvent(0.0, 1.0, 0)], [GaussianEvent(math.inf)]):
        assert epsilon_by(accountant, free, 1e-5) == 0
    assert classic_rdp_epsilon([2.0], np.zeros(1), 1e-5) == 0


@pytest.mark.parametrize(
    "accountant, relation, message",
    [
        (
            "zcdp",
            "zero_out",
            "zcdp needs full batches, got Poisson batches.*accountant pld",
        ),
        ("exact", "zero_out", "'exact' needs full batches, got Poisson batches"),
        ("rdp-classic", "replace_one", "needs zero_out or add_remove, got relation="),
        ("best", "zero_out", "accountant must be one of"),
    ],
)
def test_an_accountant_that_does_not_apply_says_so(accountant, relation, message):
    with pytest.raises(ValueError, match=message):
        epsilon_by(accountant, [GaussianEvent(5.0, 0.1, 10)], 1e-5, relation)
    group = [GaussianEvent(5.0, 0.05, 100, 2)]
    with pytest.raises(ValueError, match="needs a `--group-cap`"):
        epsilon_by("rdp-classic", group, 1e-5)


@pytest.mark.parametrize(
    "prob, count, eps, relation, most",
    [
        (0.128, 100, 8.0, "zero_out", 3),
        (0.05, 500, 3.0, "replace_one", 3),
        # the two grids differ by more than a step of the search
        (0.01, 2000, 1.0, "zero_out", 5),
    ],
)
def test_a_coarser_grid_saves_epsilons_and_changes_no_bit(
    prob, count, eps, relation, most
):
    asked = set()

    def cost(scale):
        asked.add(scale)
        return compose_epsilon([GaussianEvent(scale, prob, count)], 1e-5, relation)

    def roughly(scale):
        event = GaussianEvent(scale, prob, count)
        return compose_epsilon([event], 1e-5, relation, coarser=10)

    guess = smallest_scale(roughly, eps, 1.0, 1e-2)
    found = smallest_scale(cost, eps, guess, 1e-4, 4e-4, roughly)
    assert len(asked) <= most
    assert found == smallest_scale(cost, eps, guess, 1e-4, 4e-4)
    assert len(asked) > most
    assert cost(found) <= eps
    event = GaussianEvent(1.0, prob, count)
    assert found == calibrate([event], eps, 1e-5, relation)
