"""The tables of README and docs/results.md are what the stored rows say."""

from pathlib import Path

import pytest

from benchmarks import papers, tables
from benchmarks.prose import wrapped

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()


def test_the_first_table_is_auto_beside_the_papers_from_stored_rows():
    first = next(line for line in RESULTS.splitlines() if line.startswith("|"))
    assert first == papers.table().splitlines()[0]
    assert papers.table() in RESULTS
    assert wrapped(papers.NOTE) in RESULTS


def test_the_readmes_five_rows_are_some_of_them():
    summary = papers.summary()
    assert summary in README
    assert wrapped(papers.SHORT_NOTE) in README
    assert len(summary.splitlines()) == 2 + 5
    for line in summary.splitlines()[2:]:
        data, epsilon, theirs, own, ours = (
            c.strip(" *") for c in line[1:-1].split("|")
        )
        row = next(
            r
            for r in papers.table().splitlines()
            if r.startswith(f"| {data} | TB21") and f"| {epsilon} (" in r
        )
        draws = 5 if data == "CIFAR-10" else 3
        assert f"| {theirs} | {ours} ({draws}) | {own} |" in row


@pytest.mark.parametrize("name", ["cifar10-mobilenetv2", "mnist-scatternet"])
def test_the_accuracy_tables_are_the_stored_rows(name):
    assert tables.accuracy_table(name) in RESULTS
