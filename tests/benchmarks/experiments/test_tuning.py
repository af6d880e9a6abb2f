"""Both searches, counted and not, on a few fake rows."""

import numpy as np
import pytest

from benchmarks import store
from benchmarks.experiments import tuning
from dphead.privacy.accounting import epsilon_from_mu


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
    assert 0.5 < epsilon_from_mu(mu, tuning.DELTA) < 0.6
    assert tuning.trial_mu(8.0) > mu


def test_both_searches_give_a_row_a_draw(tiny, monkeypatch):
    monkeypatch.setattr(tuning, "TRIALS", 2)
    trials = tuning.Trials()
    for search in tuning.SEARCHES.values():
        rows = list(search(trials, "dp-fc", 8.0, [0, 1]))
        assert [r["seed"] for r in rows] == [0, 1]
        assert all(0 <= r["accuracy"] <= 1 for r in rows)


def test_a_run_makes_the_draws_that_are_missing(tiny, monkeypatch, tmp_path):
    out = tmp_path / "tuning.jsonl"
    monkeypatch.setattr(tuning, "OUT", out)
    monkeypatch.setattr(tuning, "TRIALS", 2)
    monkeypatch.setattr(tuning, "METHODS", {"dp-ls": {}})
    monkeypatch.setattr(tuning, "EPSILONS", (8.0,))
    monkeypatch.setattr(tuning, "DRAWS", 1)
    tuning.run()
    before = out.read_text()
    monkeypatch.setattr(tuning, "DRAWS", 2)
    tuning.run()
    assert out.read_text().startswith(before)
    rows = store.read(out)
    draws = [(way, seed) for seed in (0, 1) for way in tuning.SEARCHES]
    assert [(r["way"], r["seed"]) for r in rows] == draws
    assert all(r["commit"] for r in rows)


def test_the_table_has_both_ways_and_our_defaults():
    fake = [
        {"method": "dp-fc", "way": tuning.FREE, "epsilon": 8.0, "accuracy": a}
        for a in (0.5, 0.6)
    ]
    counted = {"way": tuning.COUNTED, "accuracy": 0.4, "trials": 35}
    fake.append({"method": "dp-fc", "epsilon": 8.0} | counted)
    text = tuning.table(fake, {("dp-fc", 8.0): [85.0], ("dp-ls", 8.0): [84.0]})
    assert "drawn: 35" in text
    assert "dp-ls" not in text
    assert "55.00 ± 7.07 (2 draws)" in text
    assert "85.00 (1 draw)" in text
