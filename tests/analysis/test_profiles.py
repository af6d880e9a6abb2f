"""The papers' own accountants."""

import pytest

from dphead.analysis.profiles import (
    PROFILES,
    all_profiles,
    profile_epsilon,
)
from dphead.privacy.accounting import (
    RELATIONS,
    GaussianEvent,
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


def outcomes(relation="zero_out"):
    return {name: profile_epsilon(name, TB21, 1e-5, relation) for name in PROFILES}


def test_what_does_not_apply_says_why():
    found = outcomes()
    assert found["exact"].epsilon is None
    assert "full batches" in found["exact"].reason
    assert found["paper:fc23"].epsilon is None
    assert found["paper:de22"].epsilon is not None
    replaced = outcomes("replace_one")
    assert [n for n, o in replaced.items() if o.epsilon is not None] == ["pld"]
    assert all(o.reason for o in replaced.values() if o.epsilon is None)
    assert "delta" in profile_epsilon("pld", TB21, 1e-12).reason
    with pytest.raises(ValueError, match="delta must lie"):
        all_profiles(TB21, 0.0)
