"""The experiments beside the papers' tables, on a few fake rows: searches, curves, the
last iterate.
"""

import numpy as np
import pytest

from benchmarks import features
from benchmarks.experiments import curves, last_iterate, tuning
from benchmarks.jobs import Job
from dphead.privacy.accounting import epsilon_from_mu
from dphead.rows.arrays import ArrayRows
from dphead.solvers import PublicFacts

D = 6
M = 3
N = 384


@pytest.fixture
def tiny(monkeypatch):
    rng = np.random.default_rng(0)
    y = np.arange(N) % M
    x = rng.normal(size=(N, D)) + 3 * np.eye(D)[y]
    x = x.astype(np.float32)

    def load(dataset, name, held_out=False):
        n = N - 128 if held_out else N
        return features.Loaded(
            ArrayRows(x[:n], y[:n], 128),
            x[-128:],
            y[-128:],
            PublicFacts(n, D, M),
            {"digest": "0"},
        )

    monkeypatch.setattr(features, "load", load)
    return x, y


@pytest.mark.parametrize("method", tuning.METHODS)
def test_remembered_sums_change_no_head(tiny, method):
    trials = tuning.Trials()
    settings = dict.fromkeys(tuning.square(method), 1e-3)
    first = trials.head(method, settings, 8.0, 1, trials.kept)
    trials.head(method, settings, 1.0, 2, trials.kept)
    again = trials.head(method, settings, 8.0, 1, trials.kept)
    fresh = tuning.Trials().head(method, settings, 8.0, 1, trials.kept)
    assert np.array_equal(first.weights, again.weights)
    assert np.array_equal(first.weights, fresh.weights)


def test_a_counted_search_spends_less_on_each_trial():
    mu = tuning.trial_mu(1.0)
    assert epsilon_from_mu(mu, tuning.DELTA) < 0.5
    assert tuning.trial_mu(8.0) > mu


def test_both_searches_give_a_row_a_draw(tiny, monkeypatch):
    monkeypatch.setattr(tuning, "TRIALS", 2)
    monkeypatch.setattr(tuning, "DRAWS", 2)
    trials = tuning.Trials()
    for search in (tuning.not_accounted, tuning.accounted):
        rows = list(search(trials, "dp-fc", 8.0))
        assert [r["seed"] for r in rows] == [0, 1]
        assert all(0 <= r["accuracy"] <= 1 for r in rows)
    fake = [
        {"method": "dp-fc", "way": tuning.FREE, "epsilon": 8.0, "accuracy": a}
        for a in (0.5, 0.6)
    ]
    text = tuning.table(fake, {("dp-fc", 8.0): [85.0]})
    assert "55.00 ± 7.07 (2 draws)" in text
    assert "85.00 (1 draw)" in text


def test_a_curve_ends_where_the_budget_does(tiny, monkeypatch):
    monkeypatch.setattr(curves, "SETTINGS", {"batch_size": 128, "epochs": 4})
    wanted = [
        Job(
            "mnist",
            "scatternet",
            "dp-sgd",
            e,
            preset="tb21",
            clip_only=e == float("inf"),
            settings={"batch_size": 128, "epochs": 4, "base_learning_rate": 1.0},
        )
        for e in (3.0, float("inf"))
    ]
    private, clipped = curves.curves(wanted)
    epochs, accuracies, pld, rdp = zip(*private["points"], strict=True)
    assert epochs == (1, 2, 3)
    assert list(pld) == sorted(pld)
    assert pld[-1] < 3
    assert rdp[-1] > pld[-1]
    assert clipped["points"][-1][2:] == [None, None]
    assert clipped["points"][-1][1] > 0.8
    assert min(accuracies) >= 0


def test_the_last_iterate_is_gradient_descent(tiny):
    x, y = tiny
    rates = np.array([2.0, 0.5])
    weights = last_iterate.last_iterates(
        ArrayRows(x, y, 128), rates, np.zeros(2), 1, 2, 0
    )
    unit = np.c_[
        x / np.linalg.norm(x, axis=1, keepdims=True), np.full(N, last_iterate.BIAS)
    ]
    order = np.random.default_rng(0).permutation(N)
    for rate, found in zip(rates, weights, strict=True):
        w = np.zeros((D + 1, M))
        for index in (order[::2], order[1::2]):
            p = np.exp(unit[index] @ w)
            p /= p.sum(1, keepdims=True)
            residual = p - np.eye(M)[y[index]]
            w -= rate * unit[index].T @ residual / len(index)
        np.testing.assert_allclose(found, w, atol=1e-5)


def test_a_step_beyond_the_theorem_is_refused(tiny):
    x, y = tiny
    with pytest.raises(ValueError, match="a step must be at most"):
        last_iterate.last_iterates(
            ArrayRows(x, y), np.array([4.0]), np.ones(1), 1, 2, 0
        )


def test_the_bounds_of_a_row_hold():
    rng = np.random.default_rng(1)
    for _ in range(50):
        x = rng.normal(size=4)
        x = np.append(x / np.linalg.norm(x), last_iterate.BIAS)
        p = rng.dirichlet(np.full(3, 0.3))
        gradient = np.linalg.norm(x) * np.linalg.norm(p - np.eye(3)[0])
        curve = np.diag(p) - np.outer(p, p)
        curvature = x @ x * np.linalg.eigvalsh(curve)[-1]
        assert gradient <= last_iterate.LIPSCHITZ
        assert curvature <= last_iterate.SMOOTHNESS
