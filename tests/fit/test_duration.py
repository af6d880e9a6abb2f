"""A fit tells before its charge how long it takes, and is refused if it takes hours."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from fits import METHODS

from dphead.data.arrays import ArrayRows
from dphead.fit import memory
from dphead.fit.duration import (
    LONG_SECONDS,
    check_duration,
    expected_seconds,
    missing_kernels,
)
from dphead.fit.files import source_of_arrays
from dphead.fit.fit import (
    About,
    Fit,
    RowSizes,
    _warn_once,
    array_sum,
    fit_rows,
    warn_of_duration,
)
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.ledger import Ledger
from dphead.solvers import LeastSquares, Newton, ProblemInfo
from dphead.sums import kernels

LARGE = ProblemInfo(50_000, 1280, 200, mu=0.3)


def seconds(solver, facts=LARGE):
    return expected_seconds(solver.plan(facts), facts)


def test_a_matrix_for_each_class_takes_hours_and_is_refused_before_the_charge(
    monkeypatch,
):
    # the matrices need 15 GB, which a busy machine has not free
    monkeypatch.setattr(memory, "available", lambda: 10**11)
    solver, facts, book = Newton(steps=100), ProblemInfo(500, 1280, 200), Ledger()
    assert seconds(solver, facts) > 3600
    plan = make_plan(solver, facts, epsilon=1.0, delta=1e-6)
    rows = ArrayRows(np.zeros((500, 1280), np.float32), np.zeros(500, int))
    with pytest.raises(
        ValueError, match=r"would need about \d+ hours? .*dp-fc` or `--method auto"
    ):
        fit_rows(plan, rows, ledger=book)
    assert book.fits() == []


@pytest.mark.parametrize(
    "name", ["auto", *(name for name in METHODS if name != "dp-newton")]
)
def test_no_other_method_has_a_limit(name):
    """None would be faster at what they do, and all are within a minute here."""
    solver = make_method(name, LARGE, {}).solver
    assert check_duration(solver.plan(LARGE), LARGE, solver.name) < 3 * LONG_SECONDS
    many = ProblemInfo(10**9, 1280, 200, mu=0.3)
    assert check_duration(solver.plan(many), many, solver.name) > LONG_SECONDS


STORED = Path(__file__).parents[2] / "benchmarks/results/duration/rows.jsonl"


@pytest.mark.skipif(not STORED.is_file(), reason="stored rows are in the repository")
def test_forecasts_are_near_the_stored_times_of_one_core(monkeypatch):
    """Within 1.25 for one matrix per class, and within 1.7 for other sums.

    A later row of another machine needs rates of its own.
    """
    monkeypatch.setattr("dphead.fit.duration.cores", lambda: 1)
    for row in map(json.loads, STORED.read_text().splitlines()):
        name, _, steps = row["method"].partition(", ")
        if row["cpu_seconds"] < 1 or steps == "sigmoid loss":
            continue
        facts = ProblemInfo(row["n_rows"], row["n_features"], row["n_classes"])
        grams = name.endswith("--class-grams")
        given: dict[str, int] = {"class_grams": True} if grams else {}
        if steps:
            given["steps"] = int(steps.split()[0])
        solver = make_method(name.split()[0], facts, given).solver
        plan = make_plan(solver, facts, epsilon=row["epsilon"], delta=1e-6)
        ratio = row["cpu_seconds"] / expected_seconds(plan.releases, plan.facts)
        most = 1.25 if grams or name == "dp-newton" else 1.7
        assert 1 / most < ratio < most, row


def test_a_matrix_per_class_counts_its_checks_and_copies(monkeypatch):
    """Up to 2,048 rows are added twice; each entry is also copied, and tested once."""
    monkeypatch.setattr("dphead.fit.duration.cores", lambda: 1)
    one, two, three, four = (
        seconds(Newton(), ProblemInfo(n, 1280, 10, mu=0.3))
        for n in (1024, 2048, 3072, 4096)
    )
    assert two - one == pytest.approx(2 * (four - three), rel=0.05)
    steps = [seconds(Newton(steps=t), ProblemInfo(9, 640, 10, mu=0.3)) for t in (1, 2)]
    assert steps[0] < steps[1] < 2 * steps[0]


def test_a_long_fit_without_compiled_kernels_takes_longer_and_warns(monkeypatch):
    facts = ProblemInfo(10**6, 64, 10, mu=0.3)
    plan = make_plan(LeastSquares(), facts, epsilon=1.0, delta=1e-7)
    compiled = expected_seconds(plan.releases, facts)
    assert missing_kernels(3600.0) == ""
    monkeypatch.setattr(kernels, "library", None)
    assert expected_seconds(plan.releases, facts) > 5 * compiled
    assert missing_kernels(0.5) == ""
    about = About(source=source_of_arrays(64, []), name="dp-ls")
    sizes = RowSizes(10**6, 64)
    rows = ArrayRows(np.zeros((1, 64), np.float32), np.zeros(1, int))  # not read
    summer = array_sum(plan)
    fit = Fit(plan=plan, about=about, sizes=sizes, rows=lambda: rows, summer=summer)
    _warn_once.cache_clear()
    with pytest.warns(UserWarning, match="Install a C compiler, then type") as told:
        for _ in range(2):
            with warnings.catch_warnings():  # Python itself would warn again
                warn_of_duration(fit, fit.check())
    assert len(told) == 1


def test_a_checkout_and_an_installation_compile_kernels_in_different_ways(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(kernels, "library", None)
    monkeypatch.setattr(kernels, "stale", lambda: False)
    root = Path(__file__).parents[2]
    assert f"--no-deps -e {root}`" in missing_kernels(3600.0)
    monkeypatch.setattr(kernels.sources, "FOLDER", tmp_path / "dphead/sums/kernels")
    assert missing_kernels(3600.0).endswith("--no-cache-dir dphead`.")
