"""The papers' own accountants, and shuffled batches."""

import math

import pytest

from dphead.analysis.profiles import (
    PROFILES,
    all_outcomes,
    all_profiles,
    profile_epsilon,
    shuffled_epsilon,
)
from dphead.privacy.accounting import (
    RELATIONS,
    GaussianEvent,
    compose_epsilon,
    epsilon_from_mu,
)

TB21 = [GaussianEvent(5.67, 8192 / 50_000, 360), GaussianEvent(8.0), GaussianEvent(8.0)]


def test_every_profile_of_a_full_batch_run_bounds_the_exact_one():
    events = [GaussianEvent(3.0, 1.0, 3), GaussianEvent(9.0)]
    for relation in RELATIONS:
        found = all_profiles(events, 1e-5, relation)
        assert list(found) == list(PROFILES)
        assert all(
            value is not None and value >= found["exact"] * (1 - 1e-9)
            for value in found.values()
        )
        assert found["pld"] == found["exact"]  # no grid where losses are known


def test_what_does_not_apply_says_why():
    found = all_outcomes(TB21, 1e-5)
    assert found["exact"].epsilon is None
    assert "full batches" in found["exact"].reason
    assert found["paper:fc23"].epsilon is None
    assert found["paper:de22"].epsilon is not None
    replaced = all_outcomes(TB21, 1e-5, "replace_one")
    assert [n for n, o in replaced.items() if o.epsilon is not None] == ["pld"]
    assert all(o.reason for o in replaced.values() if o.epsilon is None)
    assert "delta" in profile_epsilon("pld", TB21, 1e-12).reason
    with pytest.raises(ValueError, match="must be one of exact"):
        profile_epsilon("paper:none", TB21, 1e-5)
    with pytest.raises(ValueError, match="delta must lie"):
        all_profiles(TB21, 0.0)


def test_shuffled_batches_of_tb21_cifar10():
    extra = [GaussianEvent(8.0), GaussianEvent(8.0)]
    found = shuffled_epsilon(5.67, 60, 1e-5, "zero_out", extra)
    assert found.epsilon == pytest.approx(6.37, abs=0.01)
    assert compose_epsilon(TB21, 1e-5) < found.epsilon
    double = shuffled_epsilon(5.67, 60, 1e-5, "replace_one")
    assert double.mu == pytest.approx(2 * math.sqrt(60) / 5.67)
    assert double.epsilon == epsilon_from_mu(double.mu, 1e-5)


def test_shuffled_batches_refuse_add_remove():
    for bad in (("add_remove", ()), ("zero_out", TB21)):
        with pytest.raises(ValueError, match=r"--shuffled-epochs|must be full batches"):
            shuffled_epsilon(5.67, 60, 1e-5, *bad)
