"""The institution's statement: its values, its verdict, and the documents with it."""

import datetime

import pytest
from commands import (
    dphead,
    features_file,
    fit,
    fitted,
    refusal,
    words,
)

from dphead.analysis.card.about import About, read_about, verdict
from dphead.analysis.records import read_run
from dphead.privacy.rounding import rounded_up

ABOUT = """
institution = "St. Example"
purpose = "Sort <radiographs>"
contact = "dpo@example.org"
date = 2026-11-27
patients = 60
max_epsilon = 5
min_accuracy = 0.8
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of groups with public test rows."""
    folder = tmp_path_factory.mktemp("about")
    train = features_file(folder / "train.h5", group=[str(i // 4) for i in range(240)])
    test = features_file(folder / "test.h5", n=90, seed=5)
    method = ("--method", "dp-ls", "--epsilon", 3, "--group-cap", 4)
    tested = ("--test", test, "--test-is", "public", "--backend", "numpy")
    fitted("fit", train, "-o", folder / "run", *method, *tested)
    (folder / "about.toml").write_text(ABOUT)
    return folder


@pytest.mark.parametrize(
    "line, wrong, message",
    [
        ("date = 2026-11-27", "", "lacks date"),
        ("patients = 60", "patients = -1", "must be a positive number"),
        ("", 'color = "red"\n', "unknown keys: color"),
        ("", 'signatory = ""\n', "`signatory` in .* must be a text"),
        ("", "signatory\n", "is not a TOML file"),
    ],
)
def test_missing_wrong_and_unknown_values_are_refused(tmp_path, line, wrong, message):
    path = tmp_path / "about.toml"
    path.write_text(ABOUT.replace(line, wrong, 1))
    with pytest.raises(ValueError, match=message):
        read_about(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_about(tmp_path / "none.toml")


def test_the_verdict_compares_the_stated_limits(made):
    report = read_run(made / "run").report

    def found(**limits):
        day = datetime.date(2026, 11, 27)
        return verdict(About("a", "b", "c", day, **limits), report)

    assert found() == ("", "")
    assert found(max_epsilon=3.0)[0] == "open"  # copies of imported rows
    assert found(max_epsilon=2.9)[0] == "outside"
    report["data"]["image_index"] = "0a"
    assert found(max_epsilon=3.0)[0] == "within"
    assert found(max_epsilon=2.9)[0] == "outside"
    report["test"] |= {"accuracy": 0.9, "n": 250}
    for limit, status in ((0.86, "within"), (0.9, "open"), (0.94, "outside")):
        assert found(min_accuracy=limit)[0] == status
    # images of one person are not independent
    few = report["test"] | {"accuracy": 0.9, "n": 250, "n_groups": 25}
    for error, accuracy, interval in (
        (0.06, 0.9, "73.5 to 97.9 %"),  # as 25 independent images
        (0.0, 1.0, "88.7 to 100.0 %"),
        (0.004, 0.996, "88.7 to 100.0 %"),  # one mistake is no better than none
    ):
        report["test"] = few | {"accuracy": accuracy, "accuracy_se": error}
        status, said = found(min_accuracy=0.89)
        assert status == "open" and interval in said
    del report["test"]["n_groups"]
    # no mistake does not mean that no mistake is possible
    for n, interval in ((5, "54.9 to 100.0 %"), (20, "86.1 to 100.0 %")):
        report["test"] |= {"accuracy": 1.0, "n": n}
        status, said = found(min_accuracy=0.95)
        assert status == "open" and interval in said
    # one limit that is exceeded decides
    assert found(max_epsilon=2.9, min_accuracy=0.1)[0] == "outside"
    report["ledger"]["elsewhere"] = [{}]
    assert found(max_epsilon=3.0)[0] == "open"
    report["test"] = report["expected_accuracy"] = None
    assert found(min_accuracy=0.1)[1].endswith("no accuracy was released.")


def test_the_documents_have_the_statement_and_check_knows_them(made):
    run = made / "run"
    fitted("report", run, "--about", made / "about.toml")
    html = (run / "report.html").read_text()
    for part in ("St. Example", "240, of 60 people", "Not decided by this report"):
        assert part in html
    assert "Sort &lt;radiographs&gt;" in html
    assert "that show several people" in html
    unit = "one person (group) with all their rows, of which at most 4 count"
    assert f"protects <b>{unit}</b>" in html
    assert "share of training people" in html and "a fit on another person" in html
    said = "of which at most 4 count, by the group column of the features"
    assert said in read_run(run).report["statement"]
    fitted("report", run, "--dpia")  # with the copy in the run folder
    annex = (run / "dpia.html").read_text()
    assert "Needs legal review" in annex and "St. Example" in annex
    for heading in ("Art. 35(7)(d)", "EDPB Opinion 28/2024", "NIST SP 800-226"):
        assert heading in annex
    fitted("report", run, "--card")
    card = (run / "README.md").read_text()
    assert "Sort &lt;radiographs>" in card and f"| protects | {unit} |" in card
    assert "private metrics stored" not in dphead("check", run).out
    (run / "about.toml").write_text(ABOUT.replace("60", "61"))
    said = dphead("check", run).out
    assert "dpia.html does not match" in said and "report.html does not match" in said
    (made / "other.toml").write_text(ABOUT.replace("60", "62"))
    fitted("report", run, "--dpia", "--about", made / "other.toml")
    assert "private metrics stored" not in dphead("check", run).out
    assert "exclude each other" in refusal("report", run, "--card", "--dpia")


def test_fits_that_exceed_the_stated_limit_later_are_named(tmp_path):
    train, one, two = (tmp_path / name for name in ("train.h5", "one", "two"))
    features_file(train)
    (tmp_path / "about.toml").write_text(ABOUT.replace("= 5", "= 1.2"))
    for run in (one, two):
        fit(train, run)
        if run == one:
            fitted("report", run, "--about", tmp_path / "about.toml")
    total = rounded_up(read_run(one).spent_now.epsilon)
    said = (
        f"the ledger now has epsilon {total} at delta 1e-05, and about.toml allows 1.2"
    )
    for run, is_told in ((one, True), (two, False)):  # the card of two says "outside"
        told = fitted("report", run, "--about", tmp_path / "about.toml").err
        checked = words(dphead("check", run).out)
        assert [said in words(told), said in checked] == [is_told] * 2
