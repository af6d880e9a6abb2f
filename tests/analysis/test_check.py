"""Each check fires where it should, and stays silent where it should not."""

import json
import shutil
from hashlib import sha256

import numpy as np
import pytest
from commands import (
    OF_IMAGES,
    features_file,
    fitted,
    ledger_of,
    ledger_path_of,
    report_of,
    words,
)
from safetensors.numpy import load_file, save_file

from dphead.analysis import records
from dphead.analysis.card.page import model_card
from dphead.analysis.check import check, notes
from dphead.analysis.protected import name_unit
from dphead.analysis.records import read_run
from dphead.analysis.sealed import write_json
from dphead.fit import report as reports
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger import Ledger
from dphead.privacy.rounding import rounded_up
from dphead.solvers.settings import MOST_RELEASES


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One private run of two classes of releases, with public test rows, and its
    features and ledger.
    """
    folder = tmp_path_factory.mktemp("made")
    features = features_file(folder / "train.h5", **OF_IMAGES)
    test = features_file(folder / "test.h5", seed=1, **OF_IMAGES)
    book = folder / "book.sqlite"
    options = "--method dp-fc --steps 3 --backend numpy --test-is public --tuning"
    given = (*options.split(), "public data", "--test", test, "--ledger", book)
    fitted("fit", features, "-o", folder / "run", *given)
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
    write_json(run / "report.json", report)


def names(run, ledger=None):
    return [f.name for f in check(read_run(run, ledger))]


def fit(folder, options="", run="run", **features):
    """Fit prototypes on the folder's features file, and return the run folder."""
    path = folder / "f.h5"
    if not path.exists():
        features_file(path, **OF_IMAGES, **features)
    given = f"--method prototypes {options}".split()
    fitted("fit", path, "-o", folder / run, *given)
    return folder / run


def test_a_run_with_nothing_to_say_is_clean(run):
    found = read_run(run)
    assert check(found) == []
    (unknown,) = notes(found)  # the index has no images of the file
    assert "can fail to recognize fits on the same images" in unknown
    assert records.SCHEMA == reports.SCHEMA


# --- no privacy, fixed seed, delta: the fits themselves -------------------------------


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            "--epsilon inf --seed 0 --i-know-this-is-not-private",
            ["no privacy", "fixed seed"],
        ),
        # n = 240: 1/n = 0.004167
        ("--delta 0.00417 --allow-large-delta", ["delta >= 1/n"]),
        ("--delta 0.00416 --relation replace_one", []),
        (
            "--relation add_remove --nominal-n 200 --delta 0.005 --allow-large-delta",
            ["delta >= 1/n"],
        ),
    ],
)
def test_settings_of_the_guarantee(tmp_path, options, expected):
    assert names(fit(tmp_path, options)) == expected


def test_the_delta_of_all_fits_can_be_too_large(tmp_path):
    """A budget is stated as the guarantee for all fits. Here, it fits no data set."""
    book = tmp_path / "book.sqlite"
    fitted("ledger", "budget", book, "--epsilon", 3, "--delta", 0.05)
    found = read_run(fit(tmp_path, f"--epsilon 1 --ledger {book}"))
    (said,) = (one for one in check(found) if one.name == "delta >= 1/n")
    assert "got delta=0.05" in said.what and "budget" in said.todo
    card = words(model_card(found.report))
    assert "permits publishing whole rows | open | δ = 0.05 for all fits, 12" in card


# --- changed reports ------------------------------------------------------------------

NO_TEST = {"test": None, "test_is": None}
PRIVATE = ["private metrics stored"]
TUNED = ["unaccounted tuning"]


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"data": {"classes_declared": ""}}, ["inferred classes"]),
        ({"data": {"classes_declared": "labels"}}, ["inferred classes"]),
        ({"data": {"classes_declared": None}}, ["inferred classes"]),
        ({"tuning": "NOT ACCOUNTED"}, [*TUNED, "test set used for selection"]),
        ({"tuning": "NOT ACCOUNTED", **NO_TEST}, TUNED),
        ({"tuning": "charged", **NO_TEST}, TUNED),  # by no other fit in the ledger
        ({"tuning": "none", **NO_TEST}, []),
        ({"test_is": "private"}, PRIVATE),
        ({"test_rows": "training rows"}, PRIVATE),
        ({"test_rows": "another split"}, []),
        # dp-fc releases no count that it could come from
        ({"expected_accuracy": {"low": 0.8}}, PRIVATE),
        ({"class_accuracy": {"weakest": 1}}, PRIVATE),
        ({"method": {"train_accuracy": 0.9}}, PRIVATE),
        ({"ledger": {"path": ":memory:"}}, ["other fits uncounted"]),
    ],
)
def test_a_change_of_the_report_is_a_finding(run, changes, expected):
    change(run, **changes)
    assert names(run) == expected


# --- tuning ---------------------------------------------------------------------------


def test_tuning_that_was_charged(tmp_path):
    first, second = (fit(tmp_path, "--tuning charged", f"run{i}") for i in range(2))
    assert names(first) == ["unaccounted tuning"]
    assert names(second) == []
    remark, unknown, _ = notes(read_run(first))
    assert "each class is ever predicted" in unknown  # test rows are not public
    total = report_of(second)["ledger"]["total_epsilon"]
    assert remark.startswith("1 later fit: ")
    assert rounded_up(total, 5) in remark


# --- classes and features -------------------------------------------------------------


@pytest.mark.parametrize(
    "extraction, fires",
    [
        (
            {
                "normalization": {"kind": "unit"},
                "weights_sha256": "00",
                "transform": {"mean": [0.485, 0.456, 0.406]},
            },
            False,
        ),
        ({"backbone": "scatternet", "transform": {"mean": None}}, False),
        ({"backbone": "arrays", "transform": {}}, True),
        ({"normalization": {"kind": "standardize"}}, True),
        (
            {
                "backbone": "deep-patches",
                "weights_sha256": "",
                "transform": {"mean": [0.5, 0.5, 0.5]},
            },
            True,
        ),
        # a fine-tuned network's own pixels, which have no digest of weights
        (
            {
                "backbone": "pixels",
                "weights_sha256": None,
                "transform": {"mean": [0.5, 0.5, 0.5]},
            },
            False,
        ),
        ({"weights_sha256": "00", "transform": {"mean": [0.449]}}, False),
        # CIFAR-10's own
        (
            {"weights_sha256": "00", "transform": {"mean": [0.491, 0.482, 0.446]}},
            True,
        ),
    ],
)
def test_preprocessing_that_depends_on_the_data(run, extraction, fires):
    changed = report_of(run)["data"]["extraction"] | extraction
    rows = {"protected_unit": f"one {name_unit(changed)}"}
    change(run, data={"extraction": changed}, guarantee=rows)
    assert names(run) == (["data-dependent preprocessing"] if fires else [])


def test_preprocessing_of_one_of_two_backbones(run):
    own = report_of(run)["data"]["extraction"]
    other = own | {"normalization": {"kind": "standardize"}}
    both = own | {"backbone_kwargs": {"parts": [own, other]}}
    change(run, data={"extraction": both})
    assert names(run) == ["data-dependent preprocessing"]


def test_an_extraction_that_is_not_recorded(run):
    rows = {"protected_unit": "one row"}
    change(run, data={"extraction": None}, guarantee=rows)
    assert names(run) == []  # head.json has it too
    shutil.copy(run / "report.json", run.parent / "alone.json")
    assert names(run.parent / "alone.json") == ["data-dependent preprocessing"]


def test_a_center_that_nothing_released(run):
    """dp-fc centers by a released mean; with the release hidden under another name, the
    center came for free.
    """
    assert "center" in load_file(run / "head.safetensors")
    for name in ("report.json", "ledger.json", "head.json"):
        text = (run / name).read_text().replace("ChannelMoment", "ClassSums")
        write_json(run / name, json.loads(text))
    change(run, ledger={"path": "/nowhere"})
    assert names(run) == ["data-dependent preprocessing"]
    with_tensors(run, center=None)
    assert names(run) == []


def test_axes_that_nobody_declared_public(run):
    with_tensors(run, axes=np.eye(12, dtype=np.float32))
    assert names(run) == ["data-dependent preprocessing"]
    change(run, data={"axes": {"count": 12, "n_rows": 50, "dataset_id": None}})
    assert names(run) == []


def test_classes_that_public_rows_or_released_numbers_do_not_show_are_named(run):
    """By public test rows, if there are any; else by intervals that contain 0."""
    report = report_of(run)
    test, labels = report["test"], report["data"]["class_names"]
    change(run, test={"predicted_n": [0, *test["predicted_n"][1:]]})
    (finding,) = check(read_run(run))
    assert finding.name == "class not shown predicted"
    assert finding.what.endswith(f"predicted for any public test image: {labels[0]}")
    change(run, test={"per_class_n": [0, *test["per_class_n"][1:]]})
    # nor is a class without test rows
    assert "class not shown predicted" in names(run)
    seen = {"accuracy": 0.3, "low": 0.1, "high": 0.5}
    change(run, class_accuracy={"each": [seen] * len(labels)})
    assert "class not shown predicted" not in names(run)
    each = [*[seen] * (len(labels) - 1), seen | {"low": 0.0}]
    change(run, test=None, test_is=None, class_accuracy={"each": each})
    found = {f.name: f.what for f in check(read_run(run))}
    named = found.get("class not shown predicted", "nothing")
    assert named.endswith(f"accuracies: {labels[-1]}")
    change(run, class_accuracy={"each": [seen] * len(labels)})
    assert "class not shown predicted" not in names(run)


def with_tensors(run, **tensors):
    """Write other tensors into the head; None removes one."""
    found = load_file(run / "head.safetensors") | tensors
    kept = {name: value for name, value in found.items() if value is not None}
    save_file(kept, run / "head.safetensors")
    digest = sha256((run / "head.safetensors").read_bytes()).hexdigest()
    change(run, provenance={"tensors_sha256": digest})
    facts = json.loads((run / "head.json").read_text())
    write_json(run / "head.json", facts | {"tensors_sha256": digest})


# --- private metrics ------------------------------------------------------------------


def test_files_beside_the_report(run):
    np.save(run / "scores.npy", np.zeros(3))
    assert names(run) == ["private metrics stored"]
    assert "scores.npy" in check(read_run(run))[0].what
    (run / "scores.npy").unlink()
    assert names(run) == []


# --- the ledger -----------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="belongs to data set"):
        read_run(run, ledger_of(other).path)


# --- what was changed -----------------------------------------------------------------


SAID = "(1, 1e-05)-differentially private. Protected unit: "
CHANGES = {  # name: (an entry of the report, another value)
    "epsilon": ("guarantee.epsilon", 0.5),
    "more_noise": ("guarantee.releases.0.noise_multiplier", 99.0),
    "fewer_releases": ("guarantee.releases.-1.count", 1),
    "no_releases": ("guarantee.releases", []),
    "negative_count": ("guarantee.releases.0.count", -1),
    "delta": ("guarantee.delta", 1e-6),
    "no_delta": ("guarantee.delta", None),
    "mu": ("guarantee.mu", 0.01),
    "no_rho": ("guarantee.rho", None),
    "relation": ("guarantee.neighboring_relation", "replace_one"),
    "unit": ("guarantee.protected_unit", "every patient with all rows"),
    "not_private": ("guarantee.private", False),
    "seeded": ("guarantee.seeded", True),
    "total": ("ledger.total_epsilon", 0.5),
    "a_budget": ("ledger.budget", {"epsilon": 3.0, "delta": 1e-5, "order": 8.0}),
    "fit": ("ledger.fit_id", "0" * 32),
    "classes": ("data.class_names", ["a", "b", "c"]),
    "text_for_a_number": ("data.n_rows", "240"),
    "statement": ("statement", SAID.replace("(1,", "(0.5,") + "one row"),
    "unit_in_words": ("statement", f"{SAID}each patient"),
    "newer": ("schema", 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_report_that_was_changed_is_an_input_error(run, name):
    path, value = CHANGES[name]
    report = report_of(run)
    *parts, last = (int(p) if p.strip("-").isdigit() else p for p in path.split("."))
    place = report
    for part in parts:
        place = place[part]
    place[last] = value
    write_json(run / "report.json", report)
    with pytest.raises(ValueError, match=r"Restore|Pass a run folder") as error:
        read_run(run)
    assert "report" in str(error.value)


def test_the_longest_plan_that_a_fit_may_have_is_read_from_its_report(run):
    report = report_of(run)
    row = report["guarantee"]["releases"][0]
    others = report["guarantee"]["releases"][1:]
    row["count"] = MOST_RELEASES
    plan = records.plan_of(report, run)
    assert len(plan.specs) == MOST_RELEASES + sum(other["count"] for other in others)
    row["count"] += 1
    with pytest.raises(ValueError, match="`guarantee`: the count 1048577 is not"):
        records.plan_of(report, run)
    row |= {"count": 1, "sampling_prob": 3}
    # the remedy is that of a changed report, not that of a new plan
    with pytest.raises(ValueError, match=r"\(0, 1\], got 3\. Restore the file from a"):
        records.plan_of(report, run)
    row["ReleaseSpec"] = row.pop("count")
    with pytest.raises(ValueError, match=r"under `guarantee`\. Restore the file"):
        records.plan_of(report, run)


def test_a_report_changed_together_with_its_copy_still_contradicts_the_ledger(run):
    """Twice the noise of one release, and an epsilon and a statement that follow from
    it.
    """
    report = report_of(run)
    copied = json.loads((run / "ledger.json").read_text())
    row = report["guarantee"]["releases"][0]
    row["noise_multiplier"] *= 2
    rows = report["guarantee"]["releases"]
    events = [GaussianEvent(r["noise_multiplier"], 1.0, r["count"]) for r in rows]
    mu = accounting.total_mu(events)
    epsilon = accounting.epsilon_from_mu(mu, 1e-5)
    report["guarantee"] |= {"epsilon": epsilon, "mu": mu, "rho": mu * mu / 2}
    report["guarantee"]["nominal_epsilon"] = epsilon
    report["statement"] = report["statement"].replace(
        "(1, 1e-05)", f"({rounded_up(epsilon)}, 1e-05)"
    )
    copied["fits"][0]["releases"][0]["noise_multiplier"] *= 2
    write_json(run / "report.json", report)
    write_json(run / "ledger.json", copied)
    with pytest.raises(ValueError, match="different releases for this fit"):
        read_run(run)
    report["ledger"]["path"] = "/nowhere"
    write_json(run / "report.json", report)
    assert "not reachable" in notes(read_run(run))[0]


def test_a_damaged_ledger_is_no_witness(run):
    import sqlite3

    path = ledger_path_of(run)
    book = sqlite3.connect(path)
    book.execute("DROP TRIGGER fits_update")
    book.execute("UPDATE fits SET description = 'another'")
    book.commit()
    book.close()
    with pytest.raises(ValueError, match="is damaged: "):
        read_run(run)
