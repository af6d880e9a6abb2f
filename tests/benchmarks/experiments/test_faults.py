"""`python -m benchmarks faults`: rows of one commit add up, and the page says them."""

import pytest

from benchmarks.experiments import faults
from benchmarks.store import read


def row(probe, seed, commit, broken=0):
    return {
        "probe": probe,
        "tries": 10,
        "seed": seed,
        "broken": broken,
        "examples": [["a word"]] * broken,
        "seconds": 60.0,
        "commit": commit,
        "machine": "one",
    }


def test_parts_of_the_newest_commit_add_up():
    rows = [row("flips", 0, "old"), row("flips", 0, "new"), row("flips", 1, "new")]
    rows += [row("flips", 1, "new"), row("budget", 0, "old", 1)]
    assert {k: len(v) for k, v in faults.newest(rows).items()} == {
        "flips": 2,
        "budget": 1,
    }
    table = faults.table(rows)
    assert "| 20 | 0 | 2 | new |" in table
    assert "| 10 | 1 | 1 | old |" in table


def test_a_probe_stores_a_row_and_the_page_names_what_broke(monkeypatch, tmp_path):
    probe = faults.PROBES["budget"]._replace(run=lambda n, _: iter([[], ["it broke"]]))
    monkeypatch.setattr(faults, "OUT", tmp_path / "faults" / "rows.jsonl")
    monkeypatch.setitem(faults.PROBES, "budget", probe)
    faults.run("budget")
    (stored,) = read(faults.OUT)
    assert (stored["tries"], stored["broken"]) == (2, 1)
    (page,) = faults.write()
    assert "- budget: it broke" in page.read_text()


def test_an_unknown_probe_is_refused():
    with pytest.raises(ValueError, match="probe must be one of"):
        faults.run("nothing")
