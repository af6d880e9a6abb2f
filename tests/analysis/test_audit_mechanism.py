"""Audits of functions: fixed seeds, so that no result changes."""

import doctest
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

import dphead
from dphead.analysis import audit_mechanism as module
from dphead.analysis.audit_bounds import EpsilonDeltaClaim, epsilon_bound
from dphead.planning.calibration import mu_from_epsilon

audit_mechanism = module.audit_mechanism
ROWS = np.zeros((5, 3))
NEIGHBORS = ROWS, np.vstack([ROWS[:4], np.ones((1, 3)) / math.sqrt(3)])


def gaussian_sum(sigma, seed=0):
    rng = np.random.default_rng(seed)
    return lambda rows: rows.sum(axis=0) + sigma * rng.standard_normal(3)


def test_a_gaussian_mechanism_passes_and_half_of_its_noise_fails():
    sigma = 1 / mu_from_epsilon(1.0, 1e-5)
    claim = {"epsilon": 1.0, "delta": 1e-5, "neighbors": NEIGHBORS, "gaussian": True}
    sound = audit_mechanism(gaussian_sum(sigma), fits=4000, **claim)
    assert sound["passed"]
    assert sound["mu"] == pytest.approx(1 / sigma)
    assert 0 < sound["epsilon_from_mu"] < 1
    # 2,000 tested runs: the advantage has a standard error below 0.016
    assert sound["advantage"] == pytest.approx(sound["ceilings"]["advantage"], abs=0.07)
    broken = audit_mechanism(gaussian_sum(sigma / 3), fits=4000, **claim)
    assert not broken["passed"]
    assert broken["mu_lower_bound"] > sound["mu"]


def test_the_same_claim_without_gaussian_dp_allows_more():
    claim = EpsilonDeltaClaim(1.0, 1e-5)
    assert claim.mu is None
    # randomized response has this advantage: (e - 1) / (e + 1), and delta more
    assert claim.advantage == pytest.approx(math.tanh(0.5) + 1e-5, abs=1e-5)
    found = audit_mechanism(gaussian_sum(0.1), 1.0, 1e-5, NEIGHBORS)
    assert not found["passed"]
    assert found["epsilon_from_mu"] is found["mu"] is None
    # no attack with 500 runs gets further than this
    assert found["epsilon_lower_bound"] <= math.log(500 / 10.5)


LEAKS = {  # an output of a data set with the record (True) or without it
    "noise of another deviation": lambda rng, has: rng.normal(scale=3 if has else 1),
    "a rare word": lambda rng, has: float(has and rng.random() < 0.1),
    "a word that is missing": lambda rng, has: float(not has and rng.random() < 0.1),
    "no noise": lambda rng, has: has,
    "one number of twenty": lambda rng, has: (
        rng.normal(size=20) + 4 * has * np.eye(20)[7]
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_of_any_kind_refutes_a_small_claim(name):
    rng = np.random.default_rng(1)
    found = audit_mechanism(
        lambda has: LEAKS[name](rng, has), 0.1, 1e-5, (False, True), fits=2000
    )
    assert not found["passed"]
    assert found["epsilon_lower_bound"] > 0.1


def test_a_function_that_returns_one_buffer_is_audited_as_it_answered():
    buffer = np.zeros(3)

    def filled(rows):  # without noise
        buffer[:] = rows.sum(axis=0)
        return buffer

    assert not audit_mechanism(filled, 1.0, 1e-5, NEIGHBORS)["passed"]


@pytest.mark.parametrize("kind", ["array", "cells of a frame"])
def test_a_function_that_changes_its_rows_gets_the_same_rows_in_each_run(kind):
    def scaled(data):  # without noise
        found = 0.0
        for row in data if kind == "array" else data["image"]:
            row /= 255
            found += row.sum()
        return found

    both = [np.array(rows, float) for rows in NEIGHBORS]
    given = both
    if kind != "array":
        given = [pd.DataFrame({"image": [*rows]}) for rows in both]
    assert not audit_mechanism(scaled, 1.0, 1e-5, given)["passed"]
    assert all(map(np.array_equal, both, NEIGHBORS))


def global_rows():
    """A data set of a module: its pickle is its name."""
    return ROWS


@pytest.mark.parametrize(
    "data, said",
    [(lambda: ROWS, "cannot be pickled"), (global_rows, "all runs would share")],
)
def test_a_data_set_that_no_copy_reaches_is_refused(data, said):
    with pytest.raises(ValueError, match=said):
        audit_mechanism(lambda load: load().sum(), 1.0, 1e-5, (data, data))


def test_correct_mechanisms_fail_as_seldom_as_the_confidence_says():
    """Randomized response at exactly its epsilon: 200 audits at confidence 0.9. Above
    the count here, a rate of 0.1 has odds of 1e-4.
    """
    rng = np.random.default_rng(2)
    truth = math.e / (1 + math.e)

    def response(has):
        return has ^ (rng.random() > truth)

    failed = sum(
        not audit_mechanism(response, 1.0, 0.0, (False, True), fits=80, confidence=0.9)[
            "passed"
        ]
        for _ in range(200)
    )
    assert failed <= binom.isf(1e-4, 200, 0.1)


@pytest.mark.parametrize("scale", [1e308, 1e-300, 5e-324])
def test_a_mechanism_without_noise_fails_at_every_scale(scale):
    """The squares of its outputs overflow or vanish."""
    found = audit_mechanism(lambda n: scale * n, 1.0, 0.0, (-1, 1), fits=100)
    assert not found["passed"]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"epsilon": 0}, "epsilon must be positive"),
        ({"epsilon": math.inf}, "epsilon must be positive"),
        ({"delta": 1.0}, "delta in"),
        ({"delta": 0.0, "gaussian": True}, "delta must lie in"),
        ({"confidence": 1}, "confidence must be between"),
        ({"fits": 2}, "fits must be at least 4"),
        ({"neighbors": [1]}, "must be a pair"),
        ({"neighbors": {"one": 1, "two": 2}}, "must be a pair"),
        ({"neighbors": (2, 2)}, "are equal"),
        ({"function": lambda n: []}, "0 values"),
        ({"function": lambda n: 2**60 + n}, "that float64 rounds"),
        ({"function": lambda n: [2**60 + n, 0.5]}, "that float64 rounds"),
        ({"function": lambda n: [2**63 + n, -1]}, "that float64 rounds"),
        ({"function": lambda n: (np.int64(2**60 + n), 0.5)}, "that float64 rounds"),
        ({"function": lambda n: np.zeros(n)}, "different shapes"),
        ({"function": lambda n: np.zeros((n, 3 - n))}, "different shapes"),
        ({"function": lambda n: np.ma.masked_array([1.0, n], [n, 0])}, "is a masked"),
        ({"function": lambda n: [np.ma.masked_array([1.0], [n])]}, "is a masked"),
        ({"function": lambda n: math.nan}, "not finite"),
        ({"function": lambda n: 1j * n}, "type complex128"),
        ({"function": str}, "Return real numbers"),
        ({"neighbors": ((one for one in [1]), [1])}, "cannot be pickled"),
    ],
)
def test_what_cannot_be_audited_is_refused(given, said):
    asked = {"function": float, "epsilon": 1.0, "delta": 1e-5, "neighbors": (1, 2)}
    with pytest.raises(ValueError, match=said):
        audit_mechanism(**asked | given)


@pytest.mark.parametrize("n", [11, 50, 500, 31_600, 10**6])
def test_no_bound_exceeds_the_documented_one(n):
    error = (1 - 0.9999) / 2
    bound = float(epsilon_bound(0, 0, n, 0.0, error))
    assert bound < math.log(n / 10.5)
    assert bound > math.log(n / 11) or n < 100
    if n == 31_600:
        assert 8 < bound < 8.001


def test_the_function_is_public_and_its_example_runs():
    assert dphead.audit_mechanism is audit_mechanism
    assert "audit_mechanism" in vars(dphead)["__all__"]
    done = doctest.testmod(module)
    assert done.attempted and not done.failed
