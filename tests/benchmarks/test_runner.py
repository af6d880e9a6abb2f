"""The selector, the resume, and what a row holds; on a hundred fake rows."""

import re
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import claims, features, jobs, runner, training, verdicts
from benchmarks.commands import main
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
        ("TB21-1", {"1"}, {"mnist", "fashion-mnist", "cifar10"}),
        ("tb21-19-mnist", {"19"}, {"mnist"}),
        ("TB21-2-cifar10-inf", {"2"}, {"cifar10"}),
    ],
)
def test_a_selector_names_claims_and_their_jobs(selector, tables, datasets):
    pairs = jobs.select(selector)
    assert {c and c.table for c, _ in pairs} == tables
    assert {j.dataset for _, j in pairs} == datasets
    assert all(job.here for _, job in pairs)


def test_a_features_file_decides_claims_of_its_backbone():
    def features_of(backbone):
        return {job.features for _, job in jobs.select("FC23-3-cifar10-1.0", backbone)}

    name = "vit_base_patch16_224.augreg_in21k"
    assert features_of(name) == {"ViT-B/16, ImageNet-21k"}
    # nobody's file names the network that was trained on JFT-3B
    assert features_of("imported") == {"ViT-G/14, JFT-3B"}


def test_a_selector_without_a_claim_says_what_a_selector_is():
    with pytest.raises(ValueError, match="such as TB21-1-mnist"):
        jobs.select("TB21-1-mist")


def test_each_number_has_a_name_that_selects_it_alone():
    found = claims.load()
    names = {claim.name for claim in found}
    assert len(names) == len(found)
    for claim in (found[0], found[-1], *jobs.selected("TB21-1-mnist-2.32")):
        assert jobs.selected(claim.name.upper()) == [claim]
    # its command is printed, and no other number's
    claim = jobs.selected("TB21-1-mnist-2.32:3")[0]
    assert claim.features == features.MAPS
    assert f"reproduce {claim.name} --images" in verdicts.states([claim], {})


def test_every_claim_has_a_measurement_or_a_reason():
    for claim in claims.load():
        verdict, why = jobs.standing(claim)
        assert bool(verdict) != bool(jobs.run_here(claim)), claim
        if verdict in (jobs.ACCELERATOR, jobs.LICENSED):
            assert re.search(r"about [\d.,]+ accelerator-hours", why), claim


def test_the_jobs_of_every_claim_can_be_planned():
    count, refused = runner.plan_all(calibrate=False)
    assert count > 900 and not refused
    without = {
        (c.paper, c.features or c.table)
        for c in claims.load()
        if not jobs.commands(c)
        and jobs.standing(c)[0] not in (jobs.ARITHMETIC, jobs.CITED)
    }
    assert without == {("De22", "LeNet")}


def test_a_normalization_without_clips_is_not_rounded_to_large_units():
    (job,) = jobs.jobs_of(jobs.selected("TB21-2-mnist")[2])
    assert job.settings["normalization"]["mean_clip"] == 1e6
    _, plan = runner.prepared(job, features.facts_of("mnist", job.features))
    clips = [spec.clip_norm for spec in plan.specs[:3]]
    assert clips == [float("inf"), float("inf"), 0.1]


def test_a_job_with_a_wrong_option_is_refused():
    (job,) = jobs.jobs_of(jobs.selected("De22-3-cifar10-1")[-1])
    with pytest.raises(click.NoSuchOption):
        training.planned(replace(job, settings={"viws": 16}), calibrate=False)
    (job,) = jobs.jobs_of(jobs.selected("TAN23-5")[-1])
    with pytest.raises(ValueError, match="more than --epsilon 1"):
        training.planned(replace(job, epsilon=1.0))


def test_a_network_on_normalized_maps_is_planned_with_their_noise():
    (job,) = jobs.jobs_of(jobs.selected("TB21-1-mnist-1.2")[-1])
    with pytest.raises(ValueError, match="the cost of the fixed noise"):
        training.planned(replace(job, epsilon=0.001))


def test_each_cell_of_a_table_has_its_own_job():
    rows = [jobs.jobs_of(c)[0].rows for c in jobs.selected("TAN23-5") if c.unit]
    assert rows == [5_000, 25_000, 40_000, 50_000]
    best, small = (
        jobs.jobs_of(c)[0].settings for c in jobs.selected("TAN23-4") if c.unit
    )
    assert (best["steps"], small["steps"]) == (18_000, 72_000)
    best_of_table1 = jobs.jobs_of(jobs.selected("TAN23-1")[-1])[0]
    assert best_of_table1.settings == best
    found = [
        (c, jobs.jobs_of(c)[0])
        for c in jobs.selected("FC23-3-cifar10-1.0")
        if c.features == "ViT-B/16, ImageNet-21k"
    ]
    steps = [job.settings.get("steps") for _, job in found]
    assert steps == [None, 1, 10, 1, 10, 1, 10, 100]
    extract, reproduce = jobs.commands(found[0][0])
    assert extract[-4:] == ["--image-size", "256", "--crop-pct", "0.66666"]
    assert reproduce[-4:] == [
        "reproduce",
        found[0][0].name,
        "--features",
        "FEATURES.h5",
    ]


def test_a_run_stores_rows_and_resumes(tiny, tmp_path):
    def run():
        runner.run(runner.missing("quick", tmp_path))

    assert len(runner.missing("quick", tmp_path)) == 3
    run()
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
    run()
    again = read(tmp_path / "quick.jsonl")
    assert sorted(r["accuracy"] for r in again) == sorted(r["accuracy"] for r in rows)


def test_a_formula_is_computed_and_what_cannot_run_here_has_a_command(tmp_path):
    table = runner.reproduce("De22-13-cifar10-1.0", out=tmp_path)
    lines = table.splitlines()[2:]
    # the paper's epsilon is that of the 45,000 rows of tuning or of all 50,000
    assert "| 0.9877 | formula, 50,000 rows | arithmetic: agrees |" in lines[0]
    # what explains a difference follows
    told = runner.reproduce("TAN23-4", out=tmp_path, again=True)
    assert "q = 1/39 and 1/78" in told and "within three errors" not in told
    # two of the table's numbers are accuracies of ImageNet
    assert "needs data under a license" in told and "dphead finetune IMAGES" in told
    told = runner.reproduce("TAN23-1", out=tmp_path)
    assert "needs data under a license" in told and "dphead finetune IMAGES" in told


def test_a_repeated_fit_is_compared_with_the_stored_one(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "AGAIN", tmp_path / "again")
    out = tmp_path / "stored"
    with pytest.raises(ValueError, match="no fit of quick is stored"):
        runner.reproduce("quick", draws=1, out=out)
    runner.run(runner.missing("quick", out, draws=1))
    told = runner.reproduce("quick", draws=1, out=out).splitlines()[2:]
    assert len(told) == 2 and all(line.endswith("| agrees |") for line in told)
    path = out / "quick.jsonl"
    path.write_text(path.read_text().replace('"accuracy": 0.', '"accuracy": 1.'))
    told = runner.reproduce("quick", draws=1, out=out, again=True).splitlines()[2:]
    assert all(line.endswith("| differs |") for line in told)
    # a job that is not stored is not run
    lines = path.read_text().splitlines()
    path.write_text(lines[0] + "\n")
    monkeypatch.setattr(runner, "AGAIN", tmp_path / "fewer")
    told = runner.reproduce("quick", draws=1, out=out).splitlines()[2:]
    assert len(told) == 1


def test_an_interrupt_prints_what_is_done_so_far(tiny, tmp_path, monkeypatch):
    fit = runner.fit

    def interrupted(task):
        if task.seed:
            raise KeyboardInterrupt
        return fit(task)

    monkeypatch.setattr(runner, "AGAIN", tmp_path)
    monkeypatch.setattr(runner, "fit", interrupted)
    monkeypatch.setattr(runner, "stored", lambda _=None: read(tmp_path / "quick.jsonl"))
    runner.run(runner.missing("quick", tmp_path, draws=1))
    done = CliRunner().invoke(main, ["reproduce", "quick", "quick"])
    assert done.exit_code == 1 and "Interrupted" in done.output
    # the next selector is not run
    assert done.stdout.count("| digits, dp-sgd | 3 |") == 1


def test_a_single_number_that_is_repeated_has_its_order_among_stored_ones(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "AGAIN", tmp_path)
    monkeypatch.setattr(features, "files", lambda *_: [])
    stored = {(row["key"], row["seed"]): row for row in runner.stored()}
    monkeypatch.setattr(runner, "fit", lambda task: stored[task.job.key, task.seed])
    told = runner.reproduce("FC23-3-cifar10-1.0:5", again=True)
    (line, repeated) = (text for text in told.splitlines() if "DP-FC, 10" in text)
    assert line.endswith("| in small: agrees |") and repeated.endswith("| agrees |")


def test_a_row_says_how_it_came_about(tiny):
    row = runner.fit(runner.Task(SMALL[1], 4, Path()))
    assert row["seed"] == 4 and row["commit"] and row["date"]
    assert row["seconds"] > 0 and row["peak_memory_mb"] > 0
    assert row["profiles"]["pld"] <= 3 < row["profiles"]["paper:tb21"]
    assert row["profiles"]["pld"] == pytest.approx(row["exact_epsilon"])


def test_quick_has_19_stored_fits():
    """The page and the help say so."""
    wanted = {(job.key, seed) for job in jobs.quick() for seed in range(job.draws)}
    stored = {(row["key"], row["seed"]) for row in runner.stored()}
    assert len(wanted) == 19 and wanted <= stored
