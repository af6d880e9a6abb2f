"""Each check fires where it should, and stays silent where it should not."""

import copy
import json
import shutil

import numpy as np
import pytest
from commands import (
    OF_IMAGES,
    features_file,
    fitted,
    ledger_of,
    ledger_path_of,
    report_of,
)
from safetensors.numpy import load_file, save_file

from dphead.analysis import records
from dphead.analysis.check import CHECKS, check, notes
from dphead.analysis.records import read_run
from dphead.fit import report as reports
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger import Ledger


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One private run of two classes of releases, with public test rows, and its
    features and ledger.
    """
    folder = tmp_path_factory.mktemp("made")
    features = features_file(folder / "train.h5", **OF_IMAGES)
    test = features_file(folder / "test.h5", seed=1, **OF_IMAGES)
    book = folder / "book.sqlite"
    options = (
        "--method",
        "dp-fc",
        "--steps",
        3,
        "--backend",
        "numpy",
        "--tuning",
        "public data",
        "--ledger",
        book,
    )
    fitted(
        "fit",
        features,
        "-o",
        folder / "run",
        *options,
        "--test",
        test,
        "--test-is",
        "public",
    )
    return folder


@pytest.fixture
def run(made, tmp_path):
    """A copy beside the ledger, whose path begins at the run's folder."""
    return shutil.copytree(made / "run", made / tmp_path.name)


def change(run, **parts):
    """Write other values into the report; a value that is a dict replaces single
    entries.
    """
    report = report_of(run)
    for name, value in parts.items():
        report[name] = (
            (report[name] or {}) | value if isinstance(value, dict) else value
        )
    (run / "report.json").write_text(json.dumps(report))


def names(run, ledger=None):
    return [f.name for f in check(read_run(run, ledger))]


def test_a_run_with_nothing_to_say_is_clean(run):
    found = read_run(run)
    assert check(found) == []
    assert notes(found) == []
    assert records.SCHEMA == reports.SCHEMA
    assert len({c.__name__ for c in CHECKS}) == len(CHECKS)


def test_each_finding_says_what_why_and_what_to_do_in_a_line_each(run):
    change(
        run, tuning="NOT ACCOUNTED", data={"classes_declared": "", "extraction": None}
    )
    for finding in check(read_run(run)):
        for text in (finding.name, finding.what, finding.why, finding.todo):
            assert text
            assert "\n" not in text
            assert not text.endswith(".")  # the command adds it


# --- no privacy, fixed seed, delta: the fits themselves -------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--epsilon inf --i-know-this-is-not-private", ["no privacy"]),
        ("--seed 0", ["fixed seed"]),
        (
            "--epsilon inf --seed 0 --i-know-this-is-not-private",
            ["no privacy", "fixed seed"],
        ),
        # n = 240: 1/n = 0.004167
        ("--delta 0.00417 --allow-large-delta", ["delta >= 1/n"]),
        ("--delta 0.00416 --relation replace_one", []),
        ("--relation add_remove --nominal-n 200 --delta 0.00499", []),
        (
            "--relation add_remove --nominal-n 200 --delta 0.005 --allow-large-delta",
            ["delta >= 1/n"],
        ),
    ],
)
def test_settings_of_the_guarantee(tmp_path, options, expected):
    features = features_file(tmp_path / "f.h5", **OF_IMAGES)
    fitted(
        "fit",
        features,
        "-o",
        tmp_path / "run",
        "--method",
        "prototypes",
        *options.split(),
    )
    assert names(tmp_path / "run") == expected


# --- tuning and the test rows ---------------------------------------------------------


@pytest.mark.parametrize("tuning", reports.TUNING)
def test_unaccounted_tuning(run, tuning):
    """`charged` needs another fit in the ledger."""
    change(run, tuning=tuning, test_is=None, test=None)
    assert names(run) == (
        ["unaccounted tuning"] if tuning in ("NOT ACCOUNTED", "charged") else []
    )


def test_tuning_that_was_charged(tmp_path):
    features = features_file(tmp_path / "f.h5", **OF_IMAGES)
    for i in range(2):
        fitted(
            "fit",
            features,
            "-o",
            tmp_path / f"run{i}",
            "--method",
            "prototypes",
            "--tuning",
            "charged",
        )
    assert names(tmp_path / "run0") == ["unaccounted tuning"]
    assert names(tmp_path / "run1") == []
    (remark,) = notes(read_run(tmp_path / "run0"))
    total = report_of(tmp_path / "run1")["ledger"]["total_epsilon"]
    assert remark.startswith("1 later fit: ")
    assert f"{total:.5g}" in remark


@pytest.mark.parametrize(
    ("tuning", "fires"), [("NOT ACCOUNTED", True), ("public data", False)]
)
def test_test_rows_used_for_selection(run, tuning, fires):
    change(run, tuning=tuning)
    assert ("test set used for selection" in names(run)) == fires
    change(run, tuning=tuning, test=None, test_is=None)
    assert "test set used for selection" not in names(run)


# --- classes and features -------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "fires"),
    [
        ("classes-flag", False),
        ("folder-names-flag", False),
        ("fit-flag", False),
        ("", True),
        ("labels", True),
        (None, True),
    ],
)
def test_inferred_classes(run, declared, fires):
    change(run, data={"classes_declared": declared})
    assert names(run) == (["inferred classes"] if fires else [])


def test_classes_given_to_the_fit_are_declared(tmp_path):
    features = features_file(tmp_path / "f.h5", classes=None, **OF_IMAGES)
    fitted(
        "fit",
        features,
        "-o",
        tmp_path / "run",
        "--method",
        "prototypes",
        "--classes",
        "cat,dog,owl",
    )
    assert report_of(tmp_path / "run")["data"]["classes_declared"] == "fit-flag"
    assert names(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("extraction", "fires"),
    [
        ({}, False),
        (
            {"backbone": "scatternet", "normalization": {"kind": "group", "groups": 9}},
            False,
        ),
        (
            {
                "normalization": {"kind": "unit"},
                "transform": {"mean": [0.485, 0.456, 0.406]},
            },
            False,
        ),
        (
            {
                "backbone": "scatternet",
                "normalization": {"kind": "synthetic", "images": 400},
            },
            False,
        ),
        ({"backbone": "scatternet", "transform": {"mean": None}}, False),
        ({"backbone": "arrays", "transform": {}}, True),
        ({"backbone": "imported", "transform": {"columns_sha256": "0" * 64}}, True),
        ({"transform": {}}, True),  # a network's name alone
        ({"normalization": {"kind": "standardize"}}, True),
        ({"backbone": "scatternet", "transform": {"mean": [0.5, 0.5, 0.5]}}, True),
        ({"transform": {"mean": [0.491, 0.482, 0.446]}}, True),  # CIFAR-10's own
    ],
)
def test_preprocessing_that_depends_on_the_data(run, extraction, fires):
    change(run, data={"extraction": report_of(run)["data"]["extraction"] | extraction})
    assert names(run) == (["data-dependent preprocessing"] if fires else [])


def test_an_extraction_that_is_not_recorded(run):
    change(run, data={"extraction": None})
    assert names(run) == []  # head.json has it too
    shutil.copy(run / "report.json", run.parent / "alone.json")
    assert names(run.parent / "alone.json") == ["data-dependent preprocessing"]


def test_a_centre_that_nothing_released(run):
    """dp-fc centres by a released mean; with the release hidden under another name, the
    centre came for free.
    """
    assert "center" in load_file(run / "head.safetensors")
    for name in ("report.json", "ledger.json", "head.json"):
        text = (run / name).read_text().replace("ChannelMoment", "ClassSums")
        facts = json.loads(text)
        for digest in ("sha256", "tensors_sha256"):
            facts.pop(digest, None)
        (run / name).write_text(json.dumps(facts))
    change(run, ledger={"path": "/nowhere"})
    assert names(run) == ["data-dependent preprocessing"]
    tensors = {
        k: v for k, v in load_file(run / "head.safetensors").items() if k != "center"
    }
    save_file(tensors, run / "head.safetensors")
    change(run, provenance={"tensors_sha256": None})  # of before it was recorded
    assert names(run) == []


# --- private metrics ------------------------------------------------------------------


def test_private_metrics(run):
    name = "private metrics stored"
    change(run, test_is="private")
    assert names(run) == [name]
    change(run, test_is="public", test_rows="training rows")
    assert names(run) == [name]
    change(run, test_rows="another split")
    assert names(run) == []
    # dp-ls releases no count that it could come from
    change(run, expected_accuracy={"low": 0.8})
    assert names(run) == [name]
    change(run, expected_accuracy=None)
    change(run, class_accuracy={"weakest": 1})
    assert names(run) == [name]
    change(run, class_accuracy=None)
    change(run, method={"train_accuracy": 0.9})
    assert names(run) == [name]


def test_an_expected_accuracy_that_was_released_is_no_private_metric(tmp_path):
    features = features_file(tmp_path / "f.h5", **OF_IMAGES)
    fitted(
        "fit",
        features,
        "-o",
        tmp_path / "run",
        "--method",
        "auto",
        "--per-class-share",
        0.1,
        "--tuning",
        "none",
        "--ledger",
        tmp_path / "ledger.sqlite",
    )
    report = report_of(tmp_path / "run")
    assert report["expected_accuracy"] is not None
    assert len(report["class_accuracy"]["each"]) == 3
    assert names(tmp_path / "run") == []


def test_files_beside_the_report(run):
    np.save(run / "scores.npy", np.zeros(3))
    assert names(run) == ["private metrics stored"]
    assert "scores.npy" in check(read_run(run))[0].what
    (run / "scores.npy").unlink()
    assert names(run) == []


# --- the ledger -----------------------------------------------------------------------


def test_a_fit_that_counts_only_itself(run):
    change(run, ledger={"path": ":memory:"})
    assert names(run) == ["other fits uncounted"]
    change(run, data={"dataset_id": None})
    assert names(run) == ["other fits uncounted"]


def test_a_fit_that_the_ledger_does_not_hold(run, made, tmp_path):
    other = tmp_path / "other.sqlite"
    Ledger(other).close()
    assert names(run, other) == ["fit not in the ledger"]
    assert names(run, made / "book.sqlite") == []
    change(run, ledger={"fits": 2})
    assert names(run, made / "book.sqlite") == ["fit not in the ledger"]


def test_another_data_sets_ledger_is_refused(run, tmp_path):
    other = features_file(tmp_path / "other.h5", seed=2, **OF_IMAGES)
    fitted("fit", other, "-o", tmp_path / "run2", "--method", "prototypes")
    with pytest.raises(ValueError, match="must be this data set's"):
        read_run(run, ledger_of(other).path)


# --- what was changed -----------------------------------------------------------------


def lower_epsilon(report):
    report["guarantee"]["epsilon"] /= 2


def more_noise(report):
    report["guarantee"]["releases"][0]["noise_multiplier"] *= 2


def fewer_releases(report):
    report["guarantee"]["releases"][-1]["count"] -= 1


def no_releases(report):
    report["guarantee"]["releases"] = []


def negative_count(report):
    report["guarantee"]["releases"][0]["count"] = -1


def smaller_delta(report):
    report["guarantee"]["delta"] /= 10


def smaller_mu(report):
    report["guarantee"]["mu"] = 0.01


def no_rho(report):
    report["guarantee"]["rho"] = None


def other_relation(report):
    report["guarantee"]["neighboring_relation"] = "replace_one"


def smaller_total(report):
    report["ledger"]["total_epsilon"] /= 2


def a_budget(report):
    """A limit that nobody fixed, which card and registry would name."""
    report["ledger"]["budget"] = {"epsilon": 3.0, "delta": 1e-5, "order": 8.0}


def other_fit(report):
    report["ledger"]["fit_id"] = "0" * 32


def other_classes(report):
    report["data"]["class_names"] = ["a", "b", "c"]


def other_text(report):
    report["statement"] = report["statement"].replace("(1, 1e-05)", "(0.5, 1e-05)")


def other_unit(report):
    report["guarantee"]["protected_unit"] = "every patient with all rows"


def other_unit_in_words(report):
    named = "Protected unit: "
    text = report["statement"].replace(f"{named}one row", f"{named}each patient")
    report["statement"] = text


def not_private(report):
    report["guarantee"]["private"] = False


def seeded(report):
    report["guarantee"]["seeded"] = True


def missing(report):
    del report["guarantee"]["delta"]


def text_for_a_number(report):
    report["data"]["n_rows"] = "240"


def newer(report):
    report["schema"] = 2


CHANGES = [
    lower_epsilon,
    more_noise,
    fewer_releases,
    no_releases,
    negative_count,
    smaller_delta,
    smaller_mu,
    no_rho,
    other_relation,
    smaller_total,
    a_budget,
    other_fit,
    other_classes,
    other_text,
    other_unit,
    other_unit_in_words,
    not_private,
    seeded,
    missing,
    text_for_a_number,
    newer,
]


@pytest.mark.parametrize("damage", CHANGES, ids=lambda f: f.__name__)
def test_a_report_that_was_changed_is_an_input_error(run, damage):
    report = copy.deepcopy(report_of(run))
    damage(report)
    (run / "report.json").write_text(json.dumps(report))
    with pytest.raises(ValueError, match=r"must .*, got .*\. ") as error:
        read_run(run)
    assert "report" in str(error.value)


def test_a_report_changed_together_with_its_copy_still_contradicts_the_ledger(run):
    """Twice the noise of one release, and an epsilon and a statement that follow from
    it.
    """
    report = report_of(run)
    copied = json.loads((run / "ledger.json").read_text())
    del copied["sha256"]
    row = report["guarantee"]["releases"][0]
    row["noise_multiplier"] *= 2
    rows = report["guarantee"]["releases"]
    events = [GaussianEvent(r["noise_multiplier"], 1.0, r["count"]) for r in rows]
    mu = accounting.total_mu(events)
    epsilon = accounting.epsilon_from_mu(mu, 1e-5)
    report["guarantee"] |= {"epsilon": epsilon, "mu": mu, "rho": mu * mu / 2}
    report["guarantee"]["nominal_epsilon"] = epsilon
    report["statement"] = report["statement"].replace(
        "(1, 1e-05)", f"({epsilon:.4g}, 1e-05)"
    )
    copied["fits"][0]["releases"][0]["noise_multiplier"] *= 2
    (run / "report.json").write_text(json.dumps(report))
    (run / "ledger.json").write_text(json.dumps(copied))
    with pytest.raises(ValueError, match="the ledger charged"):
        read_run(run)
    report["ledger"]["path"] = "/nowhere"
    (run / "report.json").write_text(json.dumps(report))
    assert "not reachable" in notes(read_run(run))[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "no json", '{"schema": "1"}'])
def test_what_is_no_report(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ValueError, match="must"):
        read_run(tmp_path)


def test_a_class_may_be_called_inf(tmp_path):
    features = features_file(
        tmp_path / "f.h5", classes=["inf", "nan", "owl"], **OF_IMAGES
    )
    fitted("fit", features, "-o", tmp_path / "run", "--method", "prototypes")
    assert names(tmp_path / "run") == []


def says_the_same(changed, whole):
    """As JSON: a float64 may have another seventeenth digit and be the same number."""
    try:
        return json.loads(changed) == json.loads(whole)
    except ValueError:
        return False


@pytest.mark.parametrize(
    "name", ["report.json", "ledger.json", "head.json", "head.safetensors"]
)
def test_a_changed_file_is_refused_wherever_it_was_changed(run, name):
    """A flipped class name or warning was "nothing found"."""
    whole = (run / name).read_bytes()
    for at in range(5, len(whole), len(whole) // 20):
        changed = bytearray(whole)
        changed[at] ^= 4
        if says_the_same(changed, whole):
            continue
        (run / name).write_bytes(changed)
        with pytest.raises(ValueError, match="must"):
            read_run(run)


def test_a_damaged_ledger_is_no_witness(run):
    import sqlite3

    path = ledger_path_of(run)
    book = sqlite3.connect(path)
    book.execute("DROP TRIGGER fits_update")
    book.execute("UPDATE fits SET description = 'another'")
    book.commit()
    book.close()
    with pytest.raises(ValueError, match="a ledger must be undamaged"):
        read_run(run)


def test_records_of_another_form_are_one_line(run):
    for part in (3, None, [], {"name": 3}):
        change(run, method=part)
        with pytest.raises(ValueError, match="must"):
            check(read_run(run))
