"""Each size is measured by a command of the group, in a process of its own."""

import pytest

from benchmarks import store
from benchmarks.experiments import scale


@pytest.fixture
def out(monkeypatch, tmp_path, children_here):
    """Rows go to a folder of the test, and no rate is measured."""
    monkeypatch.setattr(scale, "OUT", tmp_path)
    monkeypatch.setattr(scale, "machine_rates", lambda: {"flops": 1e9, "bytes": 1e9})
    return tmp_path


def test_a_run_stores_a_row_a_size(out, monkeypatch, tmp_path):
    (tmp_path / "synthetic.h5").write_bytes(b"0" * 1000)
    asked = []

    def one(path, n):
        asked.append((path, n))
        return {"seconds": {"Gram": 1.0, "ClassSums": 0.5}, "peak_bytes": n}

    monkeypatch.setattr(scale, "one", one)
    scale.run(tmp_path, (100, 200))
    assert asked == [(tmp_path / "synthetic.h5", n) for n in (100, 200)]
    rows = store.read(out / "rows.jsonl")
    assert [r["n"] for r in rows] == [100, 200]
    assert {r["total_seconds"] for r in rows} == {1.5}
    assert scale.newest() == rows


def test_seconds_that_grow_with_rows_have_a_slope_of_one():
    rows = [{"n": n, "total_seconds": n / 1e5} for n in (10, 100_000, 1_000_000)]
    assert scale.slope(rows) == pytest.approx(1)
