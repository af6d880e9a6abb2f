"""report.html: what it says, and what it must not hold."""

import json
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from commands import (
    CLASSES,
    dphead,
    fitted,
    report_of,
    rows,
    words,
)
from dphead_extract.features.format import write_features

from dphead.analysis.card.kept import altered, rendered
from dphead.analysis.card.page import dpia, model_card, page
from dphead.analysis.card.risk import limits_of
from dphead.analysis.protected import counts_all_fits
from dphead.analysis.records import read_run
from dphead.analysis.tradeoff import alternative
from dphead.fit.options import FitOptions
from dphead.fit.report import statement_of
from dphead.fit.run import fit_files
from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.rounding import percent_up, rounded_up


class Text(HTMLParser):
    """The words of a page, and its tags."""

    def __init__(self, html):
        super().__init__()
        self.words, self.tags, self.references = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        names = ("href", "src", "srcset", "action", "data", "xlink:href")
        self.references += [value for name, value in attrs if name in names]

    def handle_data(self, data):
        self.words += data.split()


def text(html):
    return " ".join(Text(html).words).replace("\u00a0", " ")


def test_a_fit_writes_the_page_of_its_report(folder):
    html = (folder / "private/report.html").read_text()
    assert html == page(read_run(folder / "private").report)
    said = text(html)
    own = [one for one in limits_of(read_run(folder / "private").report) if one.own]
    assert [one.replaced for one in own] == [True, False]
    for one in own:
        other = alternative(one.replaced, "row")
        assert f"{percent_up(one.hits[1])} compared with a fit {other}" in said
    assert "any feasible computation" in said
    mu = rounded_up(mu_from_epsilon(1, 1e-4))
    assert f"ε 1 δ 0.0001 μ {mu} protects one row relation zero_out" in said
    assert "1 (this head)" in said
    assert "ε = 1 of 5 at δ = 0.0001, by 1 fit." in said
    report = json.loads((folder / "private/report.json").read_text())
    for release in report["guarantee"]["releases"]:
        assert release["label"] in said
    for value in ("dataset_id", "feature_space"):
        assert report["data"][value] in said
    head = json.loads((folder / "private/head.json").read_text())
    assert head["tensors_sha256"] in said


def test_the_page_asks_the_network_for_nothing_and_runs_nothing(folder):
    html = (folder / "public/report.html").read_text()
    parsed = Text(html)
    assert parsed.references == []
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(parsed.tags)
    assert "http:" not in html and "https:" not in html and "url(" not in html
    assert "default-src 'none'" in html


def test_figures_on_private_test_rows_are_not_in_the_page(
    folder, tmp_path, monkeypatch
):
    """The page of a fit is the same whatever its private test rows are."""
    x, y = rows(90, seed=5)
    pages, accuracies = [], []
    for name, labels in (("right", y), ("wrong", np.roll(y, 1))):
        own = tmp_path / name
        own.mkdir()
        # neither fit knows of the other's ledger
        monkeypatch.setenv("DPHEAD_HOME", str(own / "home"))
        write_features(own / "test.h5", x, labels, CLASSES)
        options = FitOptions(
            features=folder / "train.h5",
            out=own / "run",
            method="dp-ls",
            delta=1e-4,
            seed=3,
            not_private=True,
            test=own / "test.h5",
            ledger=own / "ledger.sqlite",
        )
        accuracies.append(fit_files(options)["test"]["accuracy"])
        report = json.loads((own / "run/report.json").read_text())
        html = (own / "run/report.html").read_text()
        pages.append(html.replace(report["ledger"]["fit_id"], "FIT"))
    assert accuracies[0] > accuracies[1] + 0.3
    assert pages[0] == pages[1]


def test_classes_are_shown_where_test_rows_are_public_and_never_otherwise(folder):
    private = text((folder / "private/report.html").read_text())
    public = text((folder / "public/report.html").read_text())
    test = json.loads((folder / "public/report.json").read_text())["test"]
    for name in ("Accuracy of each class on public", "on public test rows"):
        assert name in public and name not in private
    assert f"{100 * test['accuracy']:.2f} %" in public
    assert "the accuracy on test rows stays with the data holder" in private
    assert "Results on test rows stay with the data holder" in private


def changed(report, **parts):
    return report | {key: report[key] | value for key, value in parts.items()}


def test_names_are_text_and_no_markup(folder):
    report = read_run(folder / "public").report
    names = ["<script>alert(1)</script>", '"><img src=x>', "&amp;"]
    parsed = Text(page(changed(report, data={"class_names": names})))
    assert not {"script", "img"} & set(parsed.tags)
    assert "<script>alert(1)</script>" in parsed.words


def test_what_is_altered_in_a_page_is_found(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "public", run)
    found = dphead("check", run).out
    assert "report.html" not in found
    with open(run / "report.html", "a") as file:
        file.write("<p>private accuracy 93.1 %")
    done = dphead("check", run)
    assert done.code == 1
    assert "report.html does not match report.json" in done.out
    fitted("report", run)
    assert "report.html" not in dphead("check", run).out
    (run / "README.md").write_bytes(b"\xff")  # not even text
    assert "README.md does not match" in dphead("check", run).out


@pytest.mark.parametrize("name", ["warnings", "method", "test", "data"])
@pytest.mark.parametrize("value", [[[]], None])
def test_a_report_of_another_form_is_told_in_a_line(folder, tmp_path, name, value):
    """Whoever wrote it: `check` and `report` end without a traceback."""
    run = tmp_path / "run"
    shutil.copytree(folder / "public", run)
    report = report_of(run)
    for broken in (
        report | {name: value},
        {key: report[key] for key in report if key != name},
    ):
        for finding in altered(run, broken):
            assert "does not match report.json" in finding.what
        try:
            rendered("report.html", broken)
        except ValueError as error:
            assert "\n" not in str(error)


def statuses(report):
    """The status of each hazard in the model card."""
    table = model_card(report).split("| hazard | status | reason |")[1]
    lines = [line.split(" | ") for line in table.splitlines()[2:] if line]
    return {name.removeprefix("| "): status for name, status, *_ in lines[:-1]}


def test_hazards_stand_as_the_report_says(folder):
    report = read_run(folder / "private").report
    report = changed(report, data={"image_index": "0a"})
    found = statuses(report)
    assert found["Several releases of the same data"] == "met"
    assert found["Side channels"] == "not covered"
    assert found["Delta that permits publishing whole rows"] == "met"
    assert found["Utility and bias"] == "open"
    low = {"accuracy": 0.31, "low": 0.1, "high": 0.5}
    released = report | {"class_accuracy": {"each": [low] * 3, "worst": low}}
    said = words(model_card(released))
    assert "worst class 31 % expected, by the released accuracies" in said
    assert "| class | accuracy, released with noise |" in said
    assert statuses(released)["Utility and bias"] == "stated"
    worse = changed(report, guarantee={"delta": 0.5}, ledger={"budget": None})
    worse["tuning"] = "NOT ACCOUNTED"
    found = statuses(worse)
    assert found["Several releases of the same data"] == "open"
    assert found["Delta that permits publishing whole rows"] == "open"
    assert found["Settings tuned on the data"] == "open"


def test_a_card_says_whether_its_ledger_counts_fits_on_copies_of_the_rows(folder):
    imported = read_run(folder / "private").report
    known = changed(imported, data={"image_index": "0a"})
    for report, is_known in ((known, True), (imported, False)):
        report |= {"statement": statement_of(report)}
        cards = {of.__name__: words(of(report)) for of in (page, dpia, model_card)}
        for name, card in cards.items():
            said = "One ledger counts all known fits; a limit" in card
            assert said == is_known, name
            assert ("only if it read all images of that source" in card) == is_known
            copies = "to recognize fits on the same rows under another data set id"
            assert (copies in card) != is_known, name
        status = statuses(report)["Several releases of the same data"]
        assert status == ("met" if is_known else "open")


def test_a_report_without_a_line_on_known_images_counts_no_fits_on_copies(folder):
    """As a report of an earlier version, or of arrays."""
    report = changed(read_run(folder / "private").report, data={})
    del report["data"]["image_index"]
    assert not counts_all_fits(report)
    report["data"]["people"] = {"system": "clinic", "new": False}
    assert not counts_all_fits(report)
    report["data"]["image_index"] = "0a"
    assert counts_all_fits(report)
    in_memory = {"ledger": report["ledger"] | {"path": ":memory:"}}
    assert not counts_all_fits(report | in_memory)
    report["data"]["dataset_id"] = None
    assert not counts_all_fits(report)


def test_the_choice_of_public_axes_is_stated_with_the_defaults(folder):
    report = read_run(folder / "private").report | {"tuning": "none"}
    for count, said in ((4, "no tuning, with chosen public axes;"), (0, "no tuning;")):
        axes = {"axes": {"count": count, "n_rows": 90, "dataset_id": None}}
        assert said in words(model_card(changed(report, data=axes)))
