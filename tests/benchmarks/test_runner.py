"""The selector, the resume, and what a row holds; on a hundred fake rows."""

import numpy as np
import pytest
from click.testing import CliRunner

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
    assert all(j.features.startswith("scatternet") for _, j in pairs)


@pytest.mark.parametrize(
    "selector", ["TB22", "TB21/99", "TB21/1/imagenet", "TB21/1/mnist/x"]
)
def test_an_unknown_selector_is_refused(selector):
    with pytest.raises(ValueError, match="a selector must be"):
        jobs.select(selector)


def test_every_claim_has_jobs_or_a_reason():
    for claim in claims.load():
        assert bool(jobs.why_not(claim)) != bool(jobs.jobs_of(claim)), claim


def test_our_row_stands_beside_fc23s_cifar10():
    own = [job for claim, job in jobs.select("FC23/3") if claim is None]
    assert len(own) == 8 * 9
    assert {job.features for job in own} == {"mobilenetv2-128"}
    assert jobs.select("FC23/2") == []
    assert {job.preset for _, job in jobs.select("De22/5/cifar10")} == {"de22"}
    assert [job.solver().steps for job in jobs.own_de22()] == [250, 500, 1000]


def test_rows_of_the_heads_benchmark_are_not_run_again():
    jobs_ = {job.key: job for job in jobs.own()}
    rows = runner.reused()
    assert {(jobs_[r["key"]].label) for r in rows} == {
        "dp-ls, 1",
        "dp-newton, 1",
        "dp-fc, 10",
    }
    assert len([r for r in rows if r["method"] == "dp-fc" and r["epsilon"] == 1.0]) == 5


def test_each_private_row_is_run_under_both_accountings():
    accountants = {j.accountant for _, j in jobs.select("TB21/1/mnist")}
    assert accountants == {"rdp-classic", "auto"}


def test_a_table_without_noise_clips_all_the_same():
    job = next(
        j
        for c, j in jobs.select("TB21/2/mnist")
        if c.settings["normalization"] == "none"
    )
    assert job.clip_only
    assert job.epsilon == float("inf")
    assert job.solver().clip_norm == 0.1
    assert job.solver().learning_rate == 2


def test_a_sweep_is_a_fixed_part_of_the_whole_grid():
    every = jobs.sweep("cifar10", 360)
    part = jobs.sweep("cifar10")
    assert len({job.key for job in every}) == 360
    assert len(part) == jobs.SWEEP == 36
    assert {job.key for job in part} <= {job.key for job in every}
    assert part == jobs.sweep("cifar10")
    assert {job.draws for job in part} == {1}
    assert {job.epsilon for job in part} == {3.0}


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
    assert "not runnable here" in said
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_an_unknown_selector():
    from benchmarks.commands import main

    found = CliRunner().invoke(main, ["run", "XY99", "--dry-run"])
    assert found.exit_code == 1
    assert "a selector must be" in found.output


def test_options_of_an_extraction():
    assert (
        features.extract_options("mnist", "scatternet")
        == "--backbone scatternet --normalize none"
    )
    assert features.extract_options("cifar10", "scatternet").endswith(
        "--std 0.229,0.224,0.225"
    )
    assert (
        features.extract_options("mnist", "scatternet-synthetic")
        == "--backbone scatternet --normalize synthetic"
    )
    assert (
        features.extract_options("cifar10", "scatternet-unscaled")
        == "--backbone scatternet --normalize none"
    )
    with pytest.raises(ValueError, match="features must be"):
        features.extract_options("mnist", "resnet")
