"""The tables of README and docs/results.md are what the stored rows say."""

from pathlib import Path

import pytest

from benchmarks import papers, tables
from benchmarks.jobs import jobs_of
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
        assert f"| {theirs} | {ours} (3) | {own} |" in row


@pytest.mark.parametrize("name", ["cifar10-mobilenetv2", "mnist-scatternet"])
def test_the_accuracy_tables_are_the_stored_rows(name):
    assert (
        tables.accuracy_table(tables.read(tables.RESULTS / "heads" / f"{name}.jsonl"))
        in RESULTS
    )


def test_each_paper_is_there_with_its_best_head_and_a_smaller_exact_epsilon():
    """FC23's zCDP and TB21's classic RDP both overcount; FC23's DP-FC with 10 epochs is
    its best on ImageNet-1k.
    """
    found = {(c.paper, c.dataset, c.epsilon): c for c in papers.chosen()}
    assert found["FC23", "cifar10", "1.0"].value == "90.4"
    assert found["TB21", "cifar10", "3.0"].value == "67.0"
    assert {c.paper for c in found.values()} == {"FC23", "De22", "TB21"}
    claim = found["TB21", "cifar10", "3.0"]
    stored = [{"key": jobs_of(claim)[0].key, "exact_epsilon": 2.39}]
    assert papers.exact_epsilon(claim, stored) == 2.39
    assert papers.exact_epsilon(found["FC23", "cifar10", "1.0"], []) == pytest.approx(
        0.742, abs=1e-3
    )
    assert papers.exact_epsilon(found["De22", "cifar10", "1"], []) is None
