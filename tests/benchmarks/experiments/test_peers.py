"""Each contender is measured by a command of the group, in a process of its own."""

import pytest

from benchmarks.experiments import peers

pytestmark = pytest.mark.usefixtures("children_here")


def taking(seconds):
    """A contender's result where a step takes so long."""
    return lambda *_: {"seconds": [seconds] * 3, "peak_mb": 1.0}


def test_a_contender_is_measured_on_all_rows(monkeypatch):
    asked = []

    def one(name, *sizes):
        asked.append((name, sizes))
        return {"seconds": [0.1, 0.3, 0.2], "peak_mb": 1.0}

    monkeypatch.setattr(peers, "one", one)
    found = peers.measure("jax, not private", 200, 8, 3)
    assert asked == [("jax, not private", (200, 8, 3))]
    assert found["rows_timed"] == 200
    assert found["seconds_a_step"] == 0.2


def test_what_takes_too_long_on_fewer_rows_too_is_not_run(monkeypatch):
    monkeypatch.setattr(peers, "one", taking(2 * peers.LIMIT))
    assert "s a step" in peers.measure("dphead", 200, 8, 3)["not_run"]


def test_what_needs_too_much_memory_runs_on_fewer_rows(monkeypatch):
    monkeypatch.setattr(peers, "one", taking(1.0))
    rows = round(2 * peers.MEMORY / peers.needs("opacus, hooks", 1, 100, 100))
    found = peers.measure("opacus, hooks", rows, 100, 100)
    assert found["rows_timed"] == rows // peers.FEWER
    assert found["seconds_a_step"] == pytest.approx(peers.FEWER, rel=1e-3)


def test_a_contender_that_fails_says_why(monkeypatch):
    def one(*_):
        raise RuntimeError("no such library")

    monkeypatch.setattr(peers, "one", one)
    assert "no such library" in peers.measure("jax_privacy", 200, 8, 3)["not_run"]
