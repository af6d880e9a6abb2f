"""Rows come back as they were stored, and say where they are from."""

from benchmarks import store


def test_every_stored_row_has_its_source():
    for path in sorted(store.RESULTS.rglob("*.jsonl")):
        for row in store.read(path):
            assert {"commit", "date", "machine"} <= set(row), path
