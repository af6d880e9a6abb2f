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
    ("selector", "tables", "datasets"),
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


def test_networks_that_were_trained_are_not_fitted_again():
    """Their rows are stored; a head's runner could not make them."""
    done = {row["key"] for row in runner.stored()}
    assert {job.key for job in jobs.TRAINED.values()} <= done
    assert runner.hours([]) == 0


@pytest.mark.parametrize(
    "selector", ["TB22", "TB21/99", "TB21/1/imagenet", "TB21/1/mnist/x"]
)
def test_an_unknown_selector_is_refused(selector):
    with pytest.raises(ValueError, match="a selector must be"):
        jobs.select(selector)


def test_every_claim_has_jobs_or_a_reason():
    for claim in claims.load():
        assert bool(jobs.standing(claim)[0]) != bool(jobs.jobs_of(claim)), claim


def test_group_norm_in_memory_is_the_extractors():
    x = np.random.default_rng(0).normal(size=(5, 3969)).astype(np.float32)
    rows = features.grouped(x.copy(), "scatternet-g27").reshape(5, 27, -1)
    # float32 means of 147 values
    np.testing.assert_allclose(rows.mean(axis=2), 0, atol=1e-5)
    # EPSILON is added to the variance
    np.testing.assert_allclose(rows.var(axis=2), 1, atol=1e-3)
    groups = x.reshape(5, 27, -1)
    some = groups[2, 3]
    one = (some - some.mean()) / np.sqrt(some.var() + 1e-5)
    np.testing.assert_allclose(rows[2, 3], one, atol=1e-5)
    assert np.array_equal(features.grouped(x.copy(), "scatternet"), x)


def test_equal_jobs_have_one_key_and_draws_do_not_change_it():
    one = SMALL[0]
    two = jobs.Job(**{**SMALL[0].__dict__, "draws": 9, "label": "x"})
    assert one.key == two.key != SMALL[1].key


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
    assert {
        "key",
        "seed",
        "solver",
        "features",
        "commit",
        "machine",
        "date",
        "accuracy",
        "worst_class",
    } <= set(row)
    assert row["seed"] == 4
    assert row["seconds"] > 0
    assert row["peak_memory_mb"] > 0
    assert row["profiles"]["pld"] <= 3 < row["profiles"]["paper:tb21"]
    assert row["profiles"]["pld"] == pytest.approx(row["exact_epsilon"])


def test_clip_only_clips_and_adds_no_noise(tiny):
    loose, tight = (
        jobs.Job(
            "digits",
            "scatternet",
            "dp-sgd",
            float("inf"),
            settings={"steps": 3, "clip_norm": c},
            clip_only=True,
        )
        for c in (1e6, 1e-3)
    )
    rows = [runner.fit(job, seed) for job in (loose, tight) for seed in (0, 1)]
    assert rows[0]["accuracy"] == rows[1]["accuracy"]
    assert rows[0]["noise_multipliers"] == [0.0]


def test_a_dry_run_tells_hours_and_runs_nothing(tiny, tmp_path, capsys):
    runner.run("TB21/1", None, 1, True, tmp_path)
    said = capsys.readouterr().out
    assert "hours" in said
    assert "needs an accelerator" in said
    assert not list(tmp_path.iterdir())
