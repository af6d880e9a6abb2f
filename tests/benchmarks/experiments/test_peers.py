"""The table of steps beside other libraries."""

from benchmarks.experiments import peers


def test_a_contender_that_failed_in_one_run_keeps_its_other_runs(monkeypatch):
    size = {"n": 10, "d": 2, "m": 2}
    timed = {"seconds_a_step": 0.5, "rows_timed": 10, "peak_mb": 100.0}
    ours = size | timed | {"contender": "dphead", "roofline_seconds": 0.1}
    other = size | {"contender": "jax_privacy"}
    rows = [ours, ours, other | {"not_run": "no memory"}, other | timed]
    monkeypatch.setattr(peers, "SIZES", ((10, 2, 2),))
    monkeypatch.setattr(peers, "CONTENDERS", {"dphead": None, "jax_privacy": None})
    stored = [row | {"started": i} for i, row in enumerate(rows)]
    monkeypatch.setattr(peers, "read", lambda path: stored)
    assert f"| {other['contender']} | 0.5 (one run; 1×), 0.1 GB |" in peers.table()
    stored.pop()
    assert f"| {other['contender']} | no memory |" in peers.table()
