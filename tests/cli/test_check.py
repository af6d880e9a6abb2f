"""`dphead check` as a user runs it: exit codes, findings, JSON."""

import json
import shutil

import pytest
from commands import contents, dphead, features_file, fitted, refused, report_of

LS = ("--method", "dp-ls", "--backend", "numpy")


@pytest.fixture
def features(tmp_path):
    return features_file(tmp_path / "train.h5", backbone="resnet18")


@pytest.fixture
def run(features, tmp_path):
    fitted("fit", features, "-o", tmp_path / "run", *LS)
    return tmp_path / "run"


def test_a_clean_run_exits_with_0(run):
    before = contents(run)
    done = dphead("check", run)
    assert done.code == 0
    first, _, third, *_ = done.out.splitlines()
    assert first.startswith("Data set   epsilon 1 spent (delta 1e-05) in 1 fit;")
    assert third.startswith("This run   epsilon 1 at delta 1e-05, zero_out, for one")
    assert "nothing found" in done.out
    assert "Fix" not in done.out
    assert contents(run) == before
    alone = dphead("check", run / "report.json")
    assert alone.code == 0
    assert "a report alone was checked" in alone.out


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--epsilon inf --i-know-this-is-not-private", {"no privacy"}),
        ("--seed 3", {"fixed seed"}),
        ("--delta 0.01 --allow-large-delta", {"delta >= 1/n"}),
        ("--ridge 0.1", {"unaccounted tuning"}),
        ("--method dp-sgd --batch-size 60 --steps 2 --tuning none", set()),
        (
            "--ridge 0.1 --test-split all",
            {"unaccounted tuning", "test set used for selection"},
        ),
    ],
)
def test_findings_are_numbered_with_what_mends_them_and_exit_with_1(
    features, tmp_path, options, names
):
    fitted("fit", features, "-o", tmp_path / "run", *LS, *options.split())
    done = dphead("check", tmp_path / "run")
    lines = [line.split(None, 1) for line in done.out.splitlines() if line]
    numbered = [line for line in lines if line[0].isdigit()]
    assert {text.split(":")[0] for _, text in numbered} == names
    assert [int(n) for n, _ in numbered] == list(range(1, len(names) + 1))
    for word in ("Fix", "Why"):
        assert [line[0] for line in lines].count(word) == len(names)
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.code == (1 if names else 0)
    assert ("NOT PRIVATE" in done.out) == ("inf" in options or "seed" in options)
    found = json.loads(dphead("check", tmp_path / "run", "--json").out)
    assert {f["name"] for f in found["findings"]} == names
    assert all(set(f) == {"name", "what", "why", "todo"} for f in found["findings"])


def test_what_is_no_report_or_was_changed_exits_with_2(run, tmp_path):
    report = report_of(run)
    for name, change in {
        "schema": {"schema": 99},
        "epsilon": {"guarantee": report["guarantee"] | {"epsilon": 0.5}},
        "statement": {"statement": report["statement"].replace("(1, ", "(0.1, ")},
    }.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(report | change))
        assert name in refused(dphead("check", path))
    (tmp_path / "text.json").write_text("no JSON")
    for path in (
        tmp_path / "text.json",
        tmp_path / "missing",
        tmp_path,
        tmp_path / "train.h5",
    ):
        refused(dphead("check", path))


def test_a_ledger_that_was_moved_can_be_named(run, tmp_path):
    ledger = report_of(run)["ledger"]["path"]
    shutil.move(ledger, tmp_path / "moved.sqlite")
    done = dphead("check", run)
    assert done.code == 0
    assert "is not reachable" in done.out
    assert (
        "not reachable"
        not in fitted("check", run, "--ledger", tmp_path / "moved.sqlite").out
    )
    assert "must exist" in refused(
        dphead("check", run, "--ledger", tmp_path / "none.sqlite")
    )
