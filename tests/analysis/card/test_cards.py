"""The model card for Hugging Face."""

import json

import yaml
from commands import (
    NOT_PRIVATE,
    fit,
    fitted,
    refused,
    words,
)
from commands import (
    dphead as run_dphead,
)

from dphead.analysis.card.page import dpia, model_card, page
from dphead.analysis.records import read_run


def test_the_card_of_a_run_without_privacy_says_so(folder, tmp_path):
    features = folder / "train.h5"
    fit(features, tmp_path / "seeded", "--seed", 1, NOT_PRIVATE)
    (tmp_path / "seeded/README.md").write_text("a card")
    assert "README.md does not match" in run_dphead("check", tmp_path / "seeded").out
    text = model_card(read_run(tmp_path / "seeded").report)
    assert "NOT PRIVATE" in text and "Reproducible, not private" in text
    assert "| ε, δ |" not in text
    assert "differential-privacy" not in text  # as a tag, by which heads are found


def front(text):
    """The metadata of a card."""
    _, found, _ = text.split("---\n", 2)
    return yaml.safe_load(found)


def test_a_model_card_has_results_where_test_rows_are_public_alone(folder):
    public = model_card(read_run(folder / "public").report)
    private = model_card(read_run(folder / "private").report)
    test = json.loads((folder / "public/report.json").read_text())["test"]
    (result,) = front(public)["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "value": test["accuracy"]}]
    assert "model-index" not in front(private)
    assert "accuracy on public test rows" not in private
    assert "No accuracy was released." in private


def test_every_document_says_where_decisions_weight_classes_equally(folder):
    report = read_run(folder / "private").report
    for balanced, said in ((True, 1), (False, 0), (None, 0)):
        for make in (page, dpia, model_card):
            text = words(make(report | {"balanced": balanced}))
            assert text.count("assume that classes are equally frequent") == said


def test_no_document_calls_the_limit_of_a_sum_a_guarantee(folder):
    """After a merge, the budget did not apply to all fits from the start."""
    report = read_run(folder / "public").report
    before = {"fixed before the first fit", "fixed beforehand"}
    for make in (page, dpia, model_card):
        assert any(part in words(make(report)) for part in before)
    report["ledger"]["is_sum"] = True
    report["statement"] = ""
    for make in (page, dpia, model_card):
        text = words(make(report))
        assert not any(part in text for part in before)
        assert "the limit did not apply to all fits from the start" in text
        assert "ε = 5 did not" in text if make is model_card else "of 5" in text


def test_names_in_a_model_card_are_text(folder):
    report = read_run(folder / "public").report
    report["data"]["class_names"] = ["<img src=x>", "a|b", "c"]
    text = model_card(report)
    assert "<img" not in text and "&lt;img src=x>" in text and "a\\|b" in text


def test_the_command_writes_into_the_run_folder_or_where_it_is_told(folder, tmp_path):
    said = fitted("report", folder / "public", "--card").out
    assert str(folder / "public/README.md") in said and "TODO" in said
    text = fitted("report", folder / "public", "--card", "-o", "-").out
    assert text == (folder / "public/README.md").read_text()
    assert "README.md" not in run_dphead("check", folder / "public").out
    with open(folder / "public/README.md", "a") as file:
        file.write("private accuracy 93.1 %\n")
    assert "README.md does not match" in run_dphead("check", folder / "public").out
    fitted("report", folder / "public/report.json", "-o", tmp_path / "page.html")
    page = (folder / "public/report.html").read_text()
    assert (tmp_path / "page.html").read_text() == page
    assert "report" in refused(run_dphead("report", tmp_path))


def test_a_base_model_is_named_where_the_hub_has_it(folder):
    extraction = {"backbone": "hf-hub:timm/resnet18.a1_in1k"}
    report = read_run(folder / "private").report
    report = report | {"data": report["data"] | {"extraction": extraction}}
    assert front(model_card(report))["base_model"] == "timm/resnet18.a1_in1k"


def test_a_backbone_has_no_markup_in_the_model_card(folder):
    report = read_run(folder / "private").report
    extraction = {**report["data"]["extraction"], "backbone": "<img src=x>"}
    report = report | {"data": report["data"] | {"extraction": extraction}}
    card = model_card(report)
    assert "&lt;img" in card and "<img" not in card


def test_each_backbone_of_joined_features_is_named_with_its_weights(folder):
    parts = [
        {"backbone": "hf-hub:timm/resnet18.a1_in1k", "weights_sha256": "12" * 32},
        {"backbone": "scatternet", "weights_sha256": ""},
        {"backbone": "hf-hub:timm/vit_tiny", "weights_sha256": "ab" * 32},
    ]
    report = read_run(folder / "private").report
    made = {"backbone": "joined", "backbone_kwargs": {"parts": parts}}
    report = report | {"data": report["data"] | {"extraction": made}}
    for said in (page(report), model_card(report)):
        for number, part in enumerate(parts, 1):
            assert f"backbone {number}" in said.lower() and part["backbone"] in said
            assert part["weights_sha256"] in said
        assert "backbone 2 weights" not in said.lower()
    assert front(model_card(report))["base_model"] == [
        "timm/resnet18.a1_in1k",
        "timm/vit_tiny",
    ]
