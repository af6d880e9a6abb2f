"""The selector, the resume, and what a row holds; on a hundred fake rows."""

import numpy as np
import pytest

from benchmarks import claims, features, jobs, runner
from benchmarks.store import read
from dphead.data.arrays import ArrayRows
from dphead.solvers import ProblemInfo

FACTS = ProblemInfo(200, 16, 10)


@pytest.fixture
def tiny(monkeypatch):
    """Every data set is 200 rows of 16 features, in 4 channels."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 10
    x = rng.normal(size=(200, 16)).astype(np.float32) + y[:, None] * 0.1
    data = features.Loaded(ArrayRows(x, y), x, y, FACTS, {"digest": "0" * 16})
    monkeypatch.setattr(features, "load", lambda *_: data)
    monkeypatch.setattr(features, "files", lambda *_: [])
    monkeypatch.setattr(jobs, "quick", lambda: SMALL)


SMALL = [
    jobs.Job("digits", "scatternet", "dp-sgd", 1.0, settings={"steps": 3}, draws=2),
    jobs.Job(
        "digits",
        "scatternet",
        "dp-sgd",
        3.0,
        settings={"steps": 3, "batch_size": 50},
        draws=1,
    ),
]


@pytest.mark.parametrize(
    "selector, tables, datasets",
    [
        ("TB21/1", {"1"}, {"mnist", "fashion-mnist", "cifar10"}),
        ("tb21/19/mnist", {"19"}, {"mnist"}),
        ("TB21/2/cifar10", {"2"}, {"cifar10"}),
    ],
)
def test_a_selector_names_claims_and_their_jobs(selector, tables, datasets):
    pairs = jobs.select(selector)
    assert {c.table for c, _ in pairs} == tables
    assert {j.dataset for _, j in pairs} == datasets
    assert all(
        j.features.startswith("scatternet") or j in jobs.TRAINED.values()
        for _, j in pairs
    )


def test_every_claim_has_jobs_or_a_reason():
    for claim in claims.load():
        assert bool(jobs.standing(claim)[0]) != bool(jobs.jobs_of(claim)), claim


def test_a_run_stores_rows_and_resumes(tiny, tmp_path):
    assert len(runner.missing("quick", tmp_path)) == 3
    runner.run("quick", None, 1, False, tmp_path)
    rows = read(tmp_path / "quick.jsonl")
    assert sorted((r["job"]["epsilon"], r["seed"]) for r in rows) == [
        ("1.0", 0),
        ("1.0", 1),
        ("3.0", 0),
    ]
    # a first draw of everything comes first
    assert [r["seed"] for r in rows] == [0, 0, 1]
    assert not runner.missing("quick", tmp_path)
    lines = (tmp_path / "quick.jsonl").read_text().splitlines()
    (tmp_path / "quick.jsonl").write_text(lines[0] + "\n")  # a run that was killed
    assert len(runner.missing("quick", tmp_path)) == 2
    runner.run("quick", None, 1, False, tmp_path)
    again = read(tmp_path / "quick.jsonl")
    assert sorted(r["accuracy"] for r in again) == sorted(r["accuracy"] for r in rows)


def test_a_row_says_how_it_came_about(tiny):
    row = runner.fit(SMALL[1], 4)
    assert row["seed"] == 4 and row["commit"] and row["date"]
    assert row["seconds"] > 0 and row["peak_memory_mb"] > 0
    assert row["profiles"]["pld"] <= 3 < row["profiles"]["paper:tb21"]
    assert row["profiles"]["pld"] == pytest.approx(row["exact_epsilon"])
