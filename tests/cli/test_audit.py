"""Check what `dphead audit` prints and writes."""

import json

import pytest
from commands import (
    dphead,
    fitted,
    words,
)

# a correct method fails an audit with odds of at most 2e-6
SIZES = ("--sizes", "32,3,2", "--confidence", 0.999999)


def test_an_audit_prints_bounds_beside_ceilings_and_writes_them(tmp_path):
    given = ("--method", "prototypes", "--epsilon", 8, *SIZES, "--fits", 100)
    done = fitted("audit", *given, "-o", tmp_path / "a")
    printed = words(done.out)
    for text in (
        "epsilon at least",
        "perfect attack",
        "advantage",
        "passed",
        "epsilon, recomputed",
        "tests of noise and sums: 0 failed",
        "probability at most 2e-06",
    ):
        assert text in printed
    found = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert found["passed"]
    assert found["epsilon_lower_bound"] <= 8
    assert found["laws"]["passed"]
    assert found["recomputed_epsilon"] == pytest.approx(8)


@pytest.mark.parametrize(
    "given, said",
    [
        (("--sizes", "10"), "ROWS,FEATURES,CLASSES"),
        ((*SIZES, "--confidence", 2), "from 0.51 to 0.999999"),
        ((*SIZES, "--group-cap", 2, "--group-mean"), "does not compute means"),
        # a method has no random allocation
        ((*SIZES, "--sampling", "allocation"), "--sampling"),
    ],
)
def test_what_cannot_be_audited_is_refused(given, said):
    done = dphead("audit", *given)
    assert done.code == 2 and said in done.err


def test_a_runs_configuration_describes_the_audited_fit(tmp_path, run):
    """The files that it names are not used, and typed options override it."""
    run.mkdir()
    lines = ["features = 'gone.h5'", "method = 'prototypes'", "epsilon = 2", "seed = 1"]
    (run / "run.toml").write_text("\n".join([*lines, "group-cap = 2"]))
    config = ("--config", run / "run.toml", *SIZES, "--fits", 1)
    done = fitted("audit", *config, "--set", "intercept=0.5", "-o", tmp_path)
    assert "! The seed 1 makes the noise of the fit known" in done.out
    found = json.loads((tmp_path / "audit.json").read_text())
    assert (found["epsilon"], found["group_cap"]) == (2, 2)
    assert "intercept=0.5" in found["solver"]


def test_an_audit_without_samples_says_so(tmp_path):
    (tmp_path / "run.toml").write_text("method='dp-sgd'\nset=['batch_size=20']")
    given = ("audit", "--config", tmp_path / "run.toml", "--fits", 1, "--steps", 2)
    sure = ("--confidence", 0.999999)
    printed = words(fitted(*given, "--sizes", "10,3,2", *sure).out)
    assert "tests of noise and sums: 0 failed" in printed
    assert "! With a batch size of 20, each batch has all 10 rows" in printed
    printed = words(fitted(*given, "--sizes", "40,3,2", *sure).out)
    assert "tests of noise, samples and sums: 0 failed" in printed
    assert "batch size" not in printed


def test_a_sensitivity_that_is_too_small_ends_with_code_1(tmp_path, monkeypatch):
    """One fit shows nothing: it is the distance without noise that fails."""
    from dphead.privacy import statistics

    command = ("audit", "--method", "dp-sgd", "--steps", 1, *SIZES, "--fits", 1)
    command += ("--group-cap", 2, "-o", tmp_path)
    fitted(*command)
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["group_cap"] == 2
    monkeypatch.setattr(
        statistics.Gradient, "sensitivity_sq", lambda *_: statistics.RADIUS**4 // 4
    )
    done = dphead(*command)
    assert done.code == 1, done.out
    assert "FAILED: movement by the canary" in done.out
