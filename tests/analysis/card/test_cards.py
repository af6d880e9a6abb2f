"""The model card for Hugging Face and the entry of OpenDP's registry."""

import json
import re

import pytest
import yaml
from commands import dphead as run_dphead
from commands import features_file, fitted, refused

from dphead.analysis.card.model_card import metadata, model_card
from dphead.analysis.card.registry import registry_entry
from dphead.analysis.records import read_run

LS = ("--method", "dp-ls", "--epsilon", 1, "--backend", "numpy")
# schemas/deployments-schema.yaml of opendp/deployments-registry-data at 057e5d8: of
# each object its fields, those that must be there marked by *; no others are allowed
FIELDS = {
    "": "url_slug* deployment*",
    "deployment": "basic* dp_variant privacy_loss deployment_model implementation "
    "administrative*",
    "basic": "name* data_curators* description* intended_use* data_product_type* "
    "data_product_region* data_product_sector publication_date*",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details number_of_privacy_units "
    "privacy_parameters privacy_parameters_details",
    "privacy_parameters": "epsilon delta rho",
    "deployment_model": "model_name model_name_details trust_assumptions actors "
    "release_type release_type_details data_source_type data_source_type_details "
    "access_type access_type_details",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms composition "
    "post_processing justification utility additional_information",
    "administrative": "evidence_sources status* registry_authors* tier*",
}
CHOICES = {
    "data_product_type": {"Machine learning model", "Summary statistics"},
    "data_product_sector": {"Technology", "Healthcare", "Education"},
    "variant_name": {"Approximate DP", "Zero-concentrated DP"},
    "model_name": {"Local", "Central", "Shuffle", "Federated"},
    "release_type": {"One release", "Many releases"},
    "data_source_type": {"Static", "Dynamic"},
    "access_type": {"Interactive", "Non-interactive"},
    "status": {"Draft", "Pending"},
    "tier": {1, 2, 3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    features = features_file(folder / "train.h5")
    test = features_file(folder / "test.h5", n=90, seed=5)
    given = ("--ledger", folder / "ledger.sqlite", "--test", test)
    fitted("fit", features, "-o", folder / "private", *LS, *given)
    given += ("--test-is", "public")
    fitted("fit", features, "-o", folder / "public", *LS, *given)
    return folder


def problems(name, value):
    """What the schema would not let pass, in an object and those in it."""
    fields = FIELDS[name].split()
    allowed = {field.rstrip("*") for field in fields}
    needed = {field.rstrip("*") for field in fields if field.endswith("*")}
    found = [f"{name}: no {key}" for key in needed - set(value)]
    found += [f"{name}: {key} is not allowed" for key in set(value) - allowed]
    for key, inner in value.items():
        if isinstance(inner, dict):
            found += problems(key, inner)
        elif key in CHOICES and inner not in CHOICES[key]:
            found.append(f"{key}: {inner}")
        elif key in ("data_curators", "registry_authors"):
            found += [] if inner else [f"{key}: none"]
        elif name == "privacy_parameters":
            found += [] if isinstance(inner, float) else [f"{key}: {inner}"]
        elif key in ("number_of_privacy_units", "tier"):
            found += [] if isinstance(inner, int) else [f"{key}: {inner}"]
        elif not isinstance(inner, str):
            found.append(f"{key}: {inner}")
    return found


@pytest.mark.parametrize("name", ["private", "public"])
def test_an_entry_of_the_registry_is_what_its_schema_allows(folder, name):
    entry = yaml.safe_load(registry_entry(read_run(folder / name).report))
    assert problems("", entry) == []
    (curator,) = entry["deployment"]["basic"]["data_curators"]
    assert set(curator) == {"data_curator_name", "data_curator_type"}
    assert curator["data_curator_type"] in ("Government", "Industry", "Nonprofit")
    date = entry["deployment"]["basic"]["publication_date"]
    assert isinstance(date, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", date)


def test_an_entry_says_the_guarantee(folder):
    report = read_run(folder / "private").report
    deployment = yaml.safe_load(registry_entry(report))["deployment"]
    loss, g = deployment["privacy_loss"], report["guarantee"]
    expected = {"epsilon": g["epsilon"], "delta": g["delta"], "rho": g["rho"]}
    assert loss["privacy_parameters"] == expected
    assert f"mu = {g['mu']:.6g}" in loss["privacy_parameters_details"]
    assert loss["number_of_privacy_units"] == 240
    assert deployment["implementation"]["utility"] == "No accuracy was released."


def test_a_run_without_privacy_has_no_entry(folder, tmp_path):
    features = folder / "train.h5"
    fitted("fit", features, "-o", tmp_path / "seeded", *LS, "--seed", 1)
    said = refused(run_dphead("report", tmp_path / "seeded", "--registry"))
    assert "needs a private run" in said
    (tmp_path / "seeded/registry.yaml").write_text("an entry")
    assert "registry.yaml is not what" in run_dphead("check", tmp_path / "seeded").out
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


def test_a_model_card_holds_the_guarantee_the_hazards_and_no_folder(folder):
    report = read_run(folder / "private").report
    text = model_card(report)
    words = " ".join(text.split())
    assert report["ledger"]["path"] not in text and "ledger.sqlite" in text
    assert "(1, 1e-05)-differentially private" in words
    assert "| ε, δ | 1, 1e-05 |" in text
    assert "| Side channels | not covered |" in text
    assert max(len(x) for x in text.splitlines() if not x.startswith("|")) <= 100
    assert "\n\n\n" not in text


def test_names_in_a_model_card_are_text(folder):
    report = read_run(folder / "public").report
    report["data"]["class_names"] = ["<img src=x>", "a|b", "c"]
    text = model_card(report)
    assert "<img" not in text and "&lt;img src=x>" in text and "a\\|b" in text


def test_the_command_writes_into_the_run_folder_or_where_it_is_told(folder, tmp_path):
    said = fitted("report", folder / "public", "--card").out
    assert str(folder / "public/README.md") in said and "TODO" in said
    fitted("report", folder / "public", "--registry", "-o", tmp_path / "entry.yaml")
    assert yaml.safe_load((tmp_path / "entry.yaml").read_text())["deployment"]
    text = fitted("report", folder / "public", "--registry", "-o", "-").out
    assert text == (tmp_path / "entry.yaml").read_text()
    assert "README.md" not in run_dphead("check", folder / "public").out
    with open(folder / "public/README.md", "a") as file:
        file.write("private accuracy 93.1 %\n")
    assert "README.md is not what" in run_dphead("check", folder / "public").out
    both = ("--card", "--registry")
    assert "one of" in refused(run_dphead("report", folder / "public", *both))
    fitted("report", folder / "public/report.json", "-o", tmp_path / "page.html")
    page = (folder / "public/report.html").read_text()
    assert (tmp_path / "page.html").read_text() == page
    assert "report" in refused(run_dphead("report", tmp_path))


def test_a_base_model_is_named_where_the_hub_has_it():
    extraction = {"backbone": "hf-hub:timm/resnet18.a1_in1k"}
    report = {"data": {"extraction": extraction}, "test": None}
    report |= {"guarantee": {"private": True}}
    assert metadata(report)["base_model"] == "timm/resnet18.a1_in1k"
