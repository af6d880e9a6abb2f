"""`dphead check` as a user runs it: exit codes, findings, JSON."""

import json
import shutil

import numpy as np
import pytest
from commands import (
    LS,
    OF_IMAGES,
    contents,
    dphead,
    features_file,
    fit,
    fitted,
    ledger_path_of,
    refusal,
    report_of,
    rows,
    words,
)

from dphead.analysis.card.page import model_card, page
from dphead.analysis.sealed import write_json


@pytest.fixture
def features(tmp_path):
    return features_file(tmp_path / "train.h5", **OF_IMAGES)


@pytest.fixture
def run(features, tmp_path):
    fit(features, tmp_path / "run")
    return tmp_path / "run"


def test_a_clean_run_exits_with_0(run):
    before = contents(run)
    done = dphead("check", run)
    assert done.code == 0
    first, _, third, *_ = done.out.splitlines()
    assert first.startswith("Data set   epsilon 1 spent (delta 1e-05) in 1 fit;")
    assert third.startswith("This run   epsilon 1 at delta 1e-05 for one")
    assert "no findings" in done.out
    assert "Fix" not in done.out
    assert contents(run) == before
    assert "dphead predict RUN/ IMAGES/" in model_card(report_of(run))
    alone = dphead("check", run / "report.json")
    assert alone.code == 0
    assert "only a report was checked" in alone.out
    assert "lacks files" not in done.out + alone.out
    (run / "head.json").unlink()
    (run / "ledger.json").unlink()
    said = words(dphead("check", run).out)
    assert "not compared with the report: head.json, ledger.json" in said


def next_of(printed: str) -> list[str]:
    """The commands that a fit's last paragraph names."""
    return [line.strip() for line in printed.split("Next  ")[1].splitlines()]


def test_imported_rows_are_not_said_to_be_extracted_from_images(tmp_path, monkeypatch):
    named = ("--backbone", "resnet18")
    monkeypatch.chdir(tmp_path)
    features_file(tmp_path / "old.h5", backbone="resnet18")
    np.savez(tmp_path / "new.npz", features=rows(30, seed=1)[0])
    fitted("features", "import", "new.npz", "-o", "new.h5", *named)
    said = next_of(fitted("fit", "old.h5", "-o", "run", *LS).out)
    assert said == ["dphead check run", "dphead predict run new.h5 -o predictions.csv"]
    fitted(*said[1].split()[1:])
    (tmp_path / "new_images").mkdir()
    assert "Pass a features file" in refusal("predict", "run", "new_images/")

    checked = dphead("check", "run", "--json")
    (finding,) = json.loads(checked.out)["findings"]
    assert checked.code == 1
    assert finding["name"] == "data-dependent preprocessing"
    assert "imported or written from arrays (backbone 'resnet18')" in finding["what"]
    report = report_of(tmp_path / "run")
    assert "each row is assumed to be independent" in model_card(report)
    for text in (report["statement"], page(report), model_card(report)):
        assert "image" not in text
        assert "row" in text


def test_what_is_no_report_or_was_changed_exits_with_2(run, tmp_path):
    report = report_of(run)
    for name, change in {
        "schema": {"schema": 99},
        "epsilon": {"guarantee": report["guarantee"] | {"epsilon": 0.5}},
        "statement": {"statement": report["statement"].replace("(1, ", "(0.1, ")},
    }.items():
        path = tmp_path / f"{name}.json"
        write_json(path, report | change)
        assert name in refusal("check", path)
    (tmp_path / "text.json").write_text("no JSON")
    for path in (
        tmp_path / "text.json",
        tmp_path / "missing",
        tmp_path,
        tmp_path / "train.h5",
    ):
        refusal("check", path)


def test_a_ledger_that_was_moved_can_be_named(run, tmp_path):
    ledger = ledger_path_of(run)
    shutil.move(ledger, tmp_path / "moved.sqlite")
    done = dphead("check", run)
    assert done.code == 0
    assert "is not reachable" in words(done.out)
    assert (
        "not reachable"
        not in fitted("check", run, "--ledger", tmp_path / "moved.sqlite").out
    )
    assert "does not exist" in refusal(
        "check", run, "--ledger", tmp_path / "none.sqlite"
    )


def test_options_that_are_not_those_of_the_run_are_refused(run):
    """run.toml is held against the report, as the head is."""
    assert dphead("check", run).code != 2
    options = run / "run.toml"
    options.write_text(options.read_text() + "epsilon = 9\n")
    assert "run.toml has" in refusal("check", run)
    report = report_of(run)
    report["provenance"]["config_sha256"] = None
    write_json(run / "report.json", report)
    assert "run.toml has" in refusal("check", run)
    options.unlink()
    assert dphead("check", run).code != 2
