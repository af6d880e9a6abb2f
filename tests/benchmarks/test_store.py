"""Rows come back as they were stored, and say where they are from."""

from benchmarks import store


def test_rows_are_appended_and_read_in_order(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    assert store.read(path) == []
    rows = [
        {"seed": 0, "epsilon": 1.0, "accuracy": 0.5},
        {"seed": 1, "epsilon": float("inf"), "exact_epsilon": float("inf")},
    ]
    for row in rows:
        store.append(path, row)
    assert store.read(path) == rows


def test_a_file_is_json_without_infinities(tmp_path):
    store.append(tmp_path / "rows.jsonl", {"epsilon": float("inf"), "b": 1})
    text = (tmp_path / "rows.jsonl").read_text()
    assert text == '{"b": 1, "epsilon": "inf"}\n'


def test_a_row_says_where_it_is_from():
    source = store.provenance()
    assert source["commit"] == store.commit_of(".")
    assert "cores, Python" in source["machine"]
    assert set(source) == {"commit", "date", "machine"}


def test_a_folder_without_commits_has_no_name(tmp_path):
    assert store.commit_of(tmp_path) == ""


def test_every_stored_row_has_its_source():
    for path in sorted(store.RESULTS.rglob("*.jsonl")):
        for row in store.read(path):
            assert {"commit", "date", "machine"} <= set(row), path


def test_memory_is_in_megabytes():
    assert 20 < store.peak_memory_mb() < 100_000
