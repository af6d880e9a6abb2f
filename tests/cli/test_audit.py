"""Check what `dphead audit` prints and writes."""

import json

import pytest
from commands import dphead

SIZES = ("--n-rows", 32, "--n-features", 3, "--n-classes", 2)


def test_an_audit_prints_bounds_beside_ceilings_and_writes_them(tmp_path):
    """Odds of a false alarm 2e-4."""
    done = dphead(
        "audit",
        "--method",
        "prototypes",
        "--epsilon",
        8,
        *SIZES,
        "--fits",
        300,
        "-o",
        tmp_path / "a",
    )
    assert done.code == 0, done.err
    printed = " ".join(done.out.split())
    for text in (
        "epsilon at least",
        "perfect attack",
        "advantage",
        "passed",
        "epsilon, recomputed",
        "tests of noise, samples and sums: 0 failed",
        "odds of at most 0.0002",
    ):
        assert text in printed
    found = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert found["passed"]
    assert found["epsilon_lower_bound"] <= 8
    assert found["laws"]["passed"]
    assert found["recomputed_epsilon"] == pytest.approx(8)


def test_missing_sizes_and_a_silly_confidence_say_what_to_do():
    done = dphead("audit", "--n-rows", 10)
    assert done.code == 2
    assert "--n-features" in done.err
    done = dphead("audit", *SIZES, "--confidence", 2)
    assert done.code == 2
    assert "from 0.51 to 0.999999" in done.err


def test_a_sensitivity_that_is_too_small_ends_with_code_1(tmp_path, monkeypatch):
    """One fit shows nothing: it is the distance without noise that fails."""
    from dphead.privacy import statistics

    command = (
        "audit",
        "--method",
        "dp-sgd",
        "--steps",
        1,
        *SIZES,
        "--fits",
        1,
        "--group-cap",
        2,
        "-o",
        tmp_path,
    )
    done = dphead(*command)
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["group_cap"] == 2
    monkeypatch.setattr(
        statistics.Gradient, "sensitivity_sq", lambda *_: statistics.RADIUS**4 // 4
    )
    done = dphead(*command)
    assert done.code == 1, done.out
    assert "FAILED: movement by the canary" in done.out


def test_a_method_has_no_random_allocation():
    done = dphead("audit", *SIZES, "--sampling", "allocation")
    assert done.code == 2
    assert "needs `--network`" in done.err
