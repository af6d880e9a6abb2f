"""`dphead fit` as a user sees it: what is refused, printed and written."""

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from commands import (
    CLASSES,
    LS,
    NOT_PRIVATE,
    OF_IMAGES,
    charges,
    contents,
    dphead,
    features_file,
    fit,
    fitted,
    id_of,
    refusal,
    refused,
    report_of,
    rows,
    words,
)
from dphead_extract.features.format import open_features, write_features
from PIL import Image
from safetensors.numpy import load_file

from dphead.analysis import check
from dphead.analysis.ledger_place import ledger_home
from dphead.analysis.metrics import evaluate_scores
from dphead.analysis.tradeoff import detection_limits
from dphead.cli import budget, summary
from dphead.estimators.classifiers import DPAutoClassifier
from dphead.fit import duration
from dphead.fit.head_file import open_head
from dphead.fit.ledgers import image_index
from dphead.fit.options import FitOptions
from dphead.fit.run import fit_files
from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu
from dphead.privacy.ledger import LedgerError
from dphead.privacy.rounding import percent_up

# --- bad input: one line, exit code 2, nothing written, nothing charged ---------------


def test_a_large_delta_needs_its_flag_and_leaves_a_warning(features, run):
    assert "--allow-large-delta" in refusal(
        "fit", features, "-o", run, *LS, "--delta", 1 / 240
    )
    assert charges() == 0
    done = fit(features, run, "--delta", 0.01, "--allow-large-delta")
    assert "! delta must be below 1/n" in words(done.out)
    assert any("below 1/n" in text for text in report_of(run)["warnings"])


# --- what is printed and written ------------------------------------------------------


def test_a_dry_run_prints_the_releases_and_touches_nothing(features, run, monkeypatch):
    monkeypatch.setattr(duration, "missing_kernels", lambda seconds: "No kernels.")
    done = fitted(
        "fit", features, "-o", run, "--method", "dp-fc", "--steps", 7, "--dry-run"
    )
    assert "gradient" in done.out
    assert "This fit takes about 1 second on this machine.\nNo kernels." in done.out
    assert not run.exists()
    assert not ledger_home().exists()


def test_the_tour_shows_what_a_fit_prints(tmp_path, monkeypatch):
    """But for digits, and for the classes of the tour's test images. `make tour` writes
    the page again.
    """
    monkeypatch.chdir(tmp_path)
    # about as many rows as in the tour, so that an accuracy is expected of them
    splits = {"split": np.arange(3000) % 2, "split_names": ("train", "test")}
    features_file(Path("f.h5"), 3000, **splits, **OF_IMAGES)
    fitted("ledger", "budget", "f.h5", "--epsilon", 3, "--delta", 1e-5)
    typed = "--split train --test-split test -o run"
    said = words(fitted("fit", "f.h5", *typed.split()).out)
    page = (Path(__file__).parents[2] / "docs/tour.md").read_text()
    shown = words(page.split(f"$ dphead fit digits.h5 {typed}\n")[1].split("\n\n")[0])

    def masked(text):
        text = re.sub(r" Classes .* (?=Budget )", " ", text)
        return re.sub(r"[\d,]*\d(\.\d+)?", lambda n: "#" + "#" * len(n[1] or ""), text)

    assert masked(said) == masked(shown)


@pytest.mark.parametrize("budget", [None, 3.0])
def test_the_limit_of_several_fits_is_the_budgets_or_says_what_it_assumes(
    features, tmp_path, budget
):
    """A plain sum of fits that were chosen by earlier results is no guarantee.

    The rows are imported, so fits on copies of them may be uncounted.
    """
    mu = 2**0.5 * mu_from_epsilon(1.0, 1e-5)
    taken = "all 2 fits in this ledger, none chosen by the results of another,"
    if budget:
        fitted("ledger", "budget", features, "--epsilon", budget, "--delta", 1e-5)
        mu = mu_from_epsilon(budget, 1e-5)
        taken = "all fits in this ledger that the budget of epsilon 3 allows"
    fit(features, tmp_path / "one")
    done = fit(features, tmp_path / "two")
    text = words(done.out)
    assert f"a membership-inference attack on {taken} detects at most" in text
    replaced = detection_limits([GaussianEvent(1 / mu)], "zero_out")[True]
    case = "compared with a fit on another row instead"
    assert f"{percent_up(replaced)} {case}" in text


def test_classes_below_half_of_the_mean_are_named(features, run, tmp_path):
    x, y = rows(90, seed=5)
    test = tmp_path / "test.h5"
    write_features(test, x, (2 - y) % 3, CLASSES)  # cats are owls here
    done = fit(features, run, "--epsilon", 8, "--test", test)
    assert "! accuracy below half of the mean over classes: " in done.out


def test_a_run_writes_what_was_typed_and_a_configuration_repeats_it(
    features, run, tmp_path
):
    options = ("--seed", 3, NOT_PRIVATE, "--delta", "1e-6", "--no-unit-norm")
    fit(features, run, *options, "--classes", "cat,dog,owl")
    again = tmp_path / "again"
    fitted("fit", "--config", run / "run.toml", "-o", again, NOT_PRIVATE)
    head = "head.safetensors"
    assert (again / head).read_bytes() == (run / head).read_bytes()
    typed, repeated = (
        tomllib.loads((folder / "run.toml").read_text()) for folder in (run, again)
    )
    assert typed == repeated
    assert typed["delta"] == 1e-6
    # what is typed goes before it
    third = tmp_path / "third"
    fitted("fit", "--config", run / "run.toml", "-o", third, "--seed", 4, NOT_PRIVATE)
    assert (third / head).read_bytes() != (run / head).read_bytes()


def test_no_file_of_the_run_holds_what_is_private(run, tmp_path):
    features = tmp_path / "f.h5"
    x, y = rows(97)
    # so that no head gets 0 or 1
    write_features(features, x, np.where(np.arange(97) < 30, (y + 1) % 3, y), CLASSES)
    fit(features, run, "--epsilon", 8)
    with open_features(features) as file:
        x = file.features[:]
        y = file.labels
        secrets = [file.salt, file.config_hash, file.config["source_digest"]]
        raw = [d.tobytes() for d in (*file.row_digest, *file.block_digest)] + [
            row.tobytes() for row in x
        ]
    head, _ = open_head(run)
    accuracy = float((head.scores(x).argmax(1) == y).mean())
    files = contents(run)
    for name, data in files.items():
        assert not any(r in data or r.hex().encode() in data for r in raw), name
        assert not any(s.encode() in data for s in secrets), name
    values = numbers_in(run)
    assert 0 < accuracy < 1 and accuracy not in values
    assert not set(np.bincount(y).tolist()) & values


def numbers_in(run):
    """Every number in the JSON files of a run."""
    found = []
    for name, data in contents(run).items():
        if name.endswith(".json"):
            json.loads(data, parse_float=found.append, parse_int=found.append)
    return set(map(float, found))


def test_error_bars_are_saved_beside_the_weights(features, run, tmp_path):
    fit(features, run, "--error-bars", "--intercept", 1)
    fit(features, tmp_path / "plain")
    tensors = load_file(run / "head.safetensors")
    for name in ("weights", "intercept"):
        assert tensors[f"{name}_std"].shape == tensors[name].shape
        assert (tensors[f"{name}_std"] > 0).all()
    assert "weights_std" not in load_file(tmp_path / "plain" / "head.safetensors")


@pytest.mark.parametrize("scope", ["private", "public"])
def test_test_figures_are_in_the_files_only_if_the_test_rows_are_public(
    features, run, tmp_path, scope
):
    test = tmp_path / "test.h5"
    x, y = rows(97, seed=5)
    # so that no head gets 0 or 1
    write_features(test, x, np.where(np.arange(97) < 30, (y + 1) % 3, y), CLASSES)
    done = fit(features, run, "--epsilon", 4, "--test", test, "--test-is", scope)
    measured = json.loads(fitted("evaluate", run, test, "--json").out)
    assert f"{100 * measured['accuracy']:.2f}" in done.out
    figures = {measured[k] for k in ("accuracy", "accuracy_se", "calibration_error")}
    assert figures & numbers_in(run) == (figures if scope == "public" else set())
    report = report_of(run)
    assert report["test"] == (measured if scope == "public" else None)
    assert report["test_is"] == scope
    assert ("declared public" in report["statement"]) == (scope == "public")


def test_public_test_rows_must_be_named(features, run):
    public = ("fit", features, "-o", run, *LS, "--test-is", "public")
    assert "--test-is public needs test images" in refusal(*public)
    assert charges() == 0


@pytest.mark.parametrize(
    "test, epsilon", [("--test-split all", 4), ("--test {}", "inf"), ("--test copy", 4)]
)
def test_training_rows_are_no_public_test_rows(features, run, tmp_path, test, epsilon):
    """The report would hold the exact accuracy on rows that it protects."""
    copied = tmp_path / "copy.h5"
    copied.write_bytes(features.read_bytes())
    named = test.format(features).replace("copy", str(copied)).split()
    fixed = ("fit", features, "-o", run, *LS, "--epsilon", epsilon, *named)
    fixed += ("--i-know-this-is-not-private",)
    assert "cannot be training rows" in refusal(*fixed, "--test-is", "public")
    assert charges() == 0
    assert not run.exists()
    assert "some or all are training" in fitted(*fixed).out
    report = report_of(run)
    assert (report["test_rows"], report["test"]) == ("training rows", None)


def test_known_training_images_are_no_public_test_rows(run, tmp_path):
    """Private ones are told to the data holder only."""
    files = [features_file(tmp_path / f"{one}.h5", **OF_IMAGES) for one in "ab"]
    for first, file in enumerate(files):  # all images but one are in both
        image_index().add(id_of(file), np.arange(first, 240, dtype=np.uint64))
    given = ("fit", files[0], "-o", run, *PROTOTYPES, "--test", files[1])
    said = refusal(*given, "--test-is", "public")
    assert "239 images of the test data set are in the training data set" in words(said)
    assert charges() == 0 and not run.exists()
    shown = fitted(*given)
    assert "! private, for the data holder only: 239 images" in words(shown.err)
    assert report_of(run)["test_rows"] == "another data set"
    assert "239 images" not in str(report_of(run))


def test_the_data_holder_is_told_of_copies_of_training_rows(tmp_path, run):
    """`extract` told it too, but benchmarks have such copies, so they are measured."""
    lines = [f"{i // 2},{-i},{i % 2},{('train', 'test')[i % 2]}" for i in range(40)]
    lines += [f"{i},{-2 * i},1,test" for i in range(7)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["x0,x1,label,split", *lines]))
    file = table.with_suffix(".h5")
    given = ("--classes", "0,1", "--not-fitted-on-these-rows", "-o", file)
    fitted("features", "import", table, *given)
    given = ("fit", file, "--split", "train", "--test-split", "test", "-o", run)
    shown = fitted(*given, "--test-is", "public", "--dry-run")
    told = "! private, for the data holder only: 7 test rows are equal to training"
    assert told in words(shown.err)


@pytest.mark.parametrize("command", ["fit", "finetune"])
def test_a_seed_is_charged_only_if_the_user_confirms_it(features, run, command):
    """Its epsilon is infinite, and the ledger never forgets it."""
    said = refusal(command, features, "-o", run, "--seed", 0)
    assert "--seed 0 makes the noise known" in said
    assert "Confirm with --i-know-this-is-not-private" in said
    assert charges() == 0 and not run.exists()


def test_a_fit_of_the_library_needs_the_confirmation_too(features, run):
    options = FitOptions(features=features, out=run, method="dp-ls", seed=0)
    for wrong in (options, replace(options, seed=None, epsilon=math.inf)):
        with pytest.raises(LedgerError, match="a ledger of its own"):
            fit_files(wrong)
    assert charges() == 0 and not run.exists()
    fit_files(replace(options, not_private=True))
    assert charges() == 1


def test_without_privacy_every_place_says_so_and_no_sum_is_stored(
    features, run, tmp_path, monkeypatch
):
    from dphead.fit import run as module

    seen = {}
    save = module.save_head

    def spy(folder, *rest):
        seen[folder.name] = set(contents(folder))
        save(folder, *rest)

    monkeypatch.setattr(module, "save_head", spy)
    fit(features, tmp_path / "noisy")
    command = ("fit", features, "-o", run, *LS, "--epsilon", "inf")
    assert "Confirm with --i-know-this-is-not-private" in refusal(*command)
    assert not run.exists()
    done = fitted(*command, "--i-know-this-is-not-private")
    # so the spy would have seen them
    assert any(name.endswith(".npy") for name in seen["noisy"])
    assert seen["run"] == {"lock"}
    report = report_of(run)
    g = report["guarantee"]
    known = {"private": False, "epsilon": "inf", "mu": None, "rho": None}
    assert known.items() <= g.items() and g["profiles"] == {}
    assert {r["noise_multiplier"] for r in g["releases"]} == {0.0}
    assert report["statement"].startswith("Not private")
    assert "NOT PRIVATE" in done.out
    assert "epsilon inf" in fitted("ledger", "show", features).out


def test_a_seed_and_what_may_be_published_are_never_in_one_text(features, run):
    """Where an expected accuracy is released, as by auto."""
    auto = ("fit", features, "-o", run, "--backend", "numpy", "--per-class-share", 0.1)
    shown = [fitted(*auto, "--seed", 3, NOT_PRIVATE, "-v").out]
    shown += [fitted("ledger", "show", features).out, dphead("check", run).out]
    shown += [p.read_text() for p in run.iterdir() if p.suffix in (".json", ".html")]
    assert not any("may be published" in words(text) for text in shown)
    assert all("epsilon 1" not in text for text in shown[:3])
    fits = json.loads((run / "ledger.json").read_text())["fits"]
    assert [fit["epsilon"] for fit in fits] == ["inf"]
    again = fitted(*auto[:3], run.with_name("again"), *auto[4:]).out
    assert "may be published" in words(again)
    # the data set's total knows of the first fit
    assert "epsilon inf spent" in again


def test_under_add_remove_the_number_of_rows_is_in_no_file(features, run):
    done = fit(features, run, "--relation", "add_remove", "--nominal-n", 250)
    found = numbers_in(run)
    assert 250 in found and 240 not in found
    for text in (done.out, report_of(run)["statement"]):
        # a folder's name may hold any number
        assert not re.search(r"\b240\b", text.replace(str(run), "run"))


@pytest.mark.parametrize(
    "name, accountant, options",
    [
        ("fc23", "zcdp", "--method dp-fc --learning-rate 1 --ridge 0.1"),
        # of one method only
        ("tb21", "rdp-classic", "--batch-size 60 --epochs 1 --lr 0.1"),
        ("de22", "rdp", "--method dp-sgd --steps 3"),
    ],
)
def test_presets_run_and_are_reported(features, run, name, accountant, options):
    given = ("--preset", name, *options.split(), "--backend", "numpy", "--epsilon", 2)
    fitted("fit", features, "-o", run, *given)
    report = report_of(run)
    assert report["method"]["preset"] == name
    assert name in report["method"]["source"].lower()
    guarantee = report["guarantee"]
    assert guarantee["calibrated_with"] == accountant
    assert guarantee["epsilon"] <= 2.0
    assert guarantee["profiles"][f"paper:{name}"] == pytest.approx(2.0, rel=1e-3)
    assert report["tuning"] == "NOT ACCOUNTED"


def test_a_preset_of_several_methods_has_a_delta_and_needs_one_of_them(features, run):
    fit = ("fit", features, "-o", run, "--preset", "fc23-imagenet")
    said = refusal(*fit)
    assert "a method among dp-adam, dp-fc, dp-ls, dp-newton" in said
    fitted(*fit, "--method", "dp-ls", "--alpha", 1, "--ridge", 0.1)
    assert report_of(run)["guarantee"]["delta"] == 8e-7


def test_defaults_on_fresh_data_were_not_tuned_and_a_second_fit_may_have_been(
    features, tmp_path
):
    for name, tuning in (("one", "none"), ("two", "NOT ACCOUNTED")):
        fit(features, tmp_path / name)
        assert report_of(tmp_path / name)["tuning"] == tuning
    fit(features, tmp_path / "three", "--tuning", "public data")
    assert report_of(tmp_path / "three")["tuning"] == "public data"


# --- groups ---------------------------------------------------------------------------


@pytest.fixture
def grouped(tmp_path):
    """A features file of 40 groups of 6 rows."""
    return features_file(tmp_path / "grouped.h5", group=np.arange(240) // 6)


def test_a_few_groups_do_not_tell_an_accuracy(grouped, run):
    given = ("--method", "auto", "--epsilon", 0.2, "--group-cap", 2, "--delta", 1e-4)
    said = words(fitted("fit", grouped, "-o", run, *given).out)
    assert "too few groups for a precise estimate" in said


@pytest.mark.parametrize(
    "more, counted", [(LS, "2 count"), (("--group-mean",), "2 means count")]
)
def test_groups_are_protected_whole_and_named_in_the_report(
    grouped, run, more, counted
):
    """Where means of groups count, no accuracy is counted."""
    given = (*more, "--epsilon", 4, "--delta", "1e-4", "--group-cap", 2)
    done = fitted("fit", grouped, "-o", run, *given)
    report = report_of(run)
    g = report["guarantee"]
    unit = f"one person (group) with all their rows, of which at most {counted}"
    assert g["protected_unit"] == unit and unit in words(done.out)
    assert "differ in one group:" in report["statement"]
    assert {r["group_cap"] for r in g["releases"]} == {g["group_cap"]} == {2}
    assert g["group_mean"] == (more is not LS)
    assert not report["warnings"]
    assert report["expected_accuracy"] is None and "expected on new" not in done.out
    code, out, err = dphead("check", run)
    assert "one row" not in out + err
    assert code in (0, 1)


def test_a_cap_without_groups_is_refused_and_groups_without_a_decision_are(
    tmp_path, run, features, grouped
):
    assert "(`group_cap`) needs groups, and" in refusal(
        "fit", features, "-o", run, *LS, "--group-cap", 2
    )
    command = ("fit", grouped, "-o", run, *LS, "--delta", "1e-4")
    said = refusal(*command)
    assert "--group-cap K to protect each group, or --protect image" in said
    both = refusal(*command, "--group-cap", 2, "--protect", "image")
    assert "Drop one of the two" in both
    mean = refusal(*command, "--group-mean", "--protect", "image")
    assert "`--group-mean` (`group_mean`) needs `--group-cap`" in mean
    auto = ("fit", grouped, "-o", run, "--delta", "1e-4", "--per-class-share", 0.1)
    said = refusal(*auto, "--group-cap", 2, "--group-mean")
    assert "`per_class_share` needs images" in said
    assert charges() == 0
    assert not run.exists()
    fitted(*command, "--protect", "image")
    report = report_of(run)
    assert any("--protect image confirms" in w for w in report["warnings"])
    assert report["guarantee"]["protected_unit"] == "one row"
    assert report["data"]["grouped"]
    assert "people with several rows: the source" in dphead("check", run).out
    again = (*auto[:3], run.with_name("again"), *auto[4:])
    said = words(fitted(*again, "--protect", "image").out)
    assert said.count("on new rows of the same people") == 2
    capped = run.with_name("capped")
    cap = (*command[:2], "-o", capped, *command[4:], "--group-cap", 6)
    assert "This ledger protects single rows, as its first" in words(refusal(*cap))
    own = ("--ledger", tmp_path / "own.sqlite")  # one ledger protects one unit
    fitted(*cap, *own)
    assert "people with several rows" not in dphead("check", capped).out


def test_the_first_fit_says_what_it_fixes_and_later_fits_may_have_another_cap(
    tmp_path, grouped
):
    """Each cap counts at its own: epsilons of full batches add up by their mu."""
    command = ("fit", grouped, *LS, "--delta", "1e-4")
    first = fitted(*command, "--group-cap", 2, "-o", tmp_path / "two")
    assert "Later fits can have a different --group-cap" in words(first.out + first.err)
    second = fitted(*command, "--group-cap", 5, "-o", tmp_path / "five")
    assert "This first fit decides" not in words(second.out + second.err)
    two, five = (report_of(tmp_path / name) for name in ("two", "five"))
    mu = math.hypot(two["guarantee"]["mu"], five["guarantee"]["mu"])
    assert five["ledger"]["total_epsilon"] == epsilon_from_mu(mu, 1e-4)
    assert two["guarantee"]["epsilon"] == pytest.approx(1.0)
    for folder in ("two", "five"):
        assert dphead("check", tmp_path / folder).code in (0, 1)
    image = (*command, "--protect", "image", "-o", tmp_path / "image")
    assert "This ledger protects groups, as its first" in words(refusal(*image))
    own = ("--ledger", tmp_path / "own.sqlite")
    said = fitted(*image, *own)
    assert "No later fit can take --group-cap" in words(said.out + said.err)


# --- names that people type -----------------------------------------------------------


def test_names_typed_in_another_way_mean_the_same(features, run):
    for name in ("dpsgd", "dp_sgd", "DP-SGD"):
        wrong = dphead("fit", features, "-o", run, "--method", name, "--lr", 0)
        assert "learning_rate must be" in refused(wrong)
    typed = ("--method", "dpsgd", "-e", 0.9, "--lr", 0.5, "--batch_size", 60)
    more = ("--set", "steps=3", "--accountant", "rdp")  # it is quick
    fitted("fit", features, "-o", run, *typed, *more)
    report = report_of(run)
    settings = report["method"]["settings"]
    assert report["method"]["name"] == "dp-sgd"
    assert report["guarantee"]["target_epsilon"] == 0.9
    assert (settings["learning_rate"], settings["steps"]) == (0.5, 3)
    assert settings["sampling_prob"] == 60 / 240


def test_a_setting_is_given_once(features, run):
    twice = ("--method", "dp-sgd", "--lr", 1, "--set", "learning_rate=2")
    said = refusal("fit", features, "-o", run, *twice)
    assert "cannot repeat an option" in said
    assert charges() == 0


PROTOTYPES = ("--method", "prototypes", "--backend", "numpy")


def imported(folder, name, fraction, *more):
    """Sixty embeddings, a fraction of which are test rows."""
    x = np.random.default_rng(0).random((60, 4), np.float32)
    np.savez(folder / "x.npz", features=x, labels=np.arange(60) % 2)
    given = ("--classes", "0,1", "--test-fraction", fraction, *more)
    fitted("features", "import", folder / "x.npz", "-o", folder / name, *given)
    return folder / name


def test_rows_that_positions_set_apart_are_not_fitted_by_add_remove(tmp_path):
    """Without row 0, tens of other rows would change between training and test."""
    features = imported(tmp_path, "f.h5", 0.3)
    fit = ("fit", features, "--split", "train", *PROTOTYPES, "-o", tmp_path / "run")
    added = dphead(*fit, "--relation", "add_remove", "--nominal-n", 40)
    assert "--relation add_remove cannot be used" in refused(added)
    model = DPAutoClassifier(split="train", relation="add_remove", nominal_n=40)
    with pytest.raises(ValueError, match="add_remove cannot be used"):
        model.fit(str(features))
    assert charges() == 0
    fitted(*fit)


@pytest.mark.parametrize("by", ["fraction", "table"])
def test_test_rows_split_in_another_file_are_no_public_test_rows(tmp_path, by):
    """Another --test-fraction or table makes test rows of what is trained on here."""
    if by == "fraction":
        one = imported(tmp_path, "one.h5", 0.3)
        two = imported(tmp_path, "two.h5", 0.6, "--same-data-as", one)
    else:
        one, two = swapped_tables(tmp_path)
    fit = ("fit", one, "--split", "train", *PROTOTYPES, "--test", two)
    fit += ("--test-split", "test", "-o", tmp_path / "run")
    said = refusal(*fit, "--test-is", "public")
    assert "split of the training file (after --test-fraction, `test`)" in said
    assert charges() == 0
    assert "some or all are training" in fitted(*fit).out


def table_of_groups(folder, people, split, *more):
    """Import 40 rows of a table with these ids and splits."""
    lines = [f"{i % 2},{-i},{i % 2},{p},{split[i % 2]}" for i, p in enumerate(people)]
    table = folder / f"{split[0]}.csv"
    table.write_text("\n".join(["x0,x1,label,group,split", *lines]))
    given = ("--classes", "0,1", "--not-fitted-on-these-rows", *more)
    fitted("features", "import", table, "-o", table.with_suffix(".h5"), *given)
    return table.with_suffix(".h5")


def test_rows_of_protected_people_are_no_public_test_rows(tmp_path, run):
    """One person's rows would change exact figures that the report publishes."""
    people = [i if i < 14 else 100 + i // 2 for i in range(40)]  # 13 in both splits
    file = table_of_groups(tmp_path, people, ("train", "test"))
    given = ("fit", file, "--split", "train", "--test-split", "test", *PROTOTYPES)
    public = (*given, "-o", run, "--test-is", "public")
    said = refusal(*public, "--group-cap", 2)
    assert "The groups of 13 test rows have training rows too" in words(said)
    assert charges() == 0 and not run.exists()
    shown = fitted(*given, "-o", run, "--group-cap", 2)
    assert "! private, for the data holder only: the groups of 13" in words(shown.err)
    assert report_of(run)["test_rows"] == "another split"
    assert "have training rows" not in str(report_of(run))


def test_each_person_in_one_split_may_be_a_public_test_row(tmp_path, run):
    """Rows without an id are people of their own."""
    people = ["" if i < 20 else i for i in range(40)]
    file = table_of_groups(tmp_path, people, ("train", "test"))
    given = (file, "--split", "train", "--test-split", "test", "--test-is", "public")
    shown = fitted("fit", *given, *PROTOTYPES, "-o", run, "--group-cap", 2)
    assert "have training rows too" not in words(shown.err)
    report = report_of(run)
    assert report["test"]["n"] == 20
    assert "No guarantee of a fit or a ledger covers" in report["statement"]


def swapped_tables(folder):
    """Extract 40 images by two tables: one's training images are the other's test."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i}.png")
    files = []
    for name in ("one", "two"):
        splits = ("train", "test") if name == "one" else ("test", "train")
        lines = [f"{i}.png,{i // 2 % 2},{splits[i % 2]}" for i in range(40)]
        table = folder / f"{name}.csv"
        table.write_text("\n".join(["path,label,split", *lines]))
        files.append(folder / f"{name}.h5")
        given = ("--backbone", "scatternet", "--scatter-j", 1, "--image-size", 8)
        given += ("--channels", 1, "--classes", "0,1")
        fitted("extract", table, "-o", files[-1], *given)
    return files


@pytest.mark.parametrize("terminal", [True, False])
def test_a_fit_of_too_few_rows_asks_before_the_charge_where_it_can(
    tmp_path, monkeypatch, terminal
):
    """Without a terminal it goes on, and says the same; --yes asks nothing."""
    asked = []

    def no(text, **more):
        asked.append(text)
        raise click.Abort

    monkeypatch.setattr(budget, "on_terminal", lambda: terminal)
    monkeypatch.setattr(click, "confirm", no)
    features = features_file(tmp_path / "f.h5", n=40, d=400)
    of_all = ("--epsilon", 3, "--delta", 1e-5)
    fitted("ledger", "budget", features, *of_all)
    few = ("fit", features, *LS, "--epsilon", 0.3, "-o")
    done = dphead(*few, tmp_path / "run")
    assert "Too few rows" in done.out
    assert asked == ["Charge this fit all the same?"] * terminal
    assert (done.code == 0) == (tmp_path / "run").exists() == (not terminal)
    before = charges()
    fitted(*few, tmp_path / "another", "--yes")
    assert len(asked) == terminal and charges() == before + 1


def test_a_class_that_is_never_predicted_is_named_and_not_stored(tmp_path):
    """The third class has no training rows, and test rows are private."""
    x, y = rows(4000, 12, 2, 0)
    write_features(tmp_path / "f.h5", x, y, CLASSES)
    x, y = rows(90, 12, 2, 3)
    y[:20] = 2  # rows like those of the other classes
    test, run = tmp_path / "test.h5", tmp_path / "run"
    write_features(test, x, y, CLASSES)
    done = fit(tmp_path / "f.h5", run, "--test", test, "--epsilon", 8)
    missed = f"{CLASSES[2]} is never predicted, on 20 test rows"
    assert missed in words(done.out)
    assert "try --method auto --balanced, a larger epsilon" in words(done.out)
    recall = (
        rf"Classes 0\.00 % of 20 in class {CLASSES[2]} .* "
        rf"Mistakes .*20 in class {CLASSES[2]}: 0 r"
    )
    assert re.search(recall, words(done.out))
    assert all(b"never predicted" not in file for file in contents(run).values())
    assert "confusion" not in (run / "report.json").read_text()
    done = words(fitted("evaluate", run, test).out)
    assert missed in done
    assert re.search(rf"20 in class {CLASSES[2]}: 0 right, \d+ as", done)


def test_a_fit_names_classes_that_no_released_number_shows_as_check_and_card_do(
    features, run
):
    """And advises what its method takes: --balanced if it was not given."""
    done = fit(features, run)
    untold = "no released number tells whether each class is ever predicted"
    assert f"! {untold}. Measure each class" in words(done.out)
    assert untold in words(dphead("check", run).out)
    assert untold.capitalize() in words((run / "report.html").read_text())

    report, low = report_of(run), {"accuracy": 0.3, "low": 0.0, "high": 0.9}
    each = [low | {"low": 0.1}, low | {"low": 0.1}, low]
    accuracy = {"each": each, "balanced": low, "weakest": 2, "worst": low}
    report |= {"class_accuracy": accuracy}
    said = words(" ".join(summary._accuracy(report, None)))
    assert f"of the released accuracies: {CLASSES[2]}. Measure them" in said
    assert untold not in said
    assert "Not balanced" not in said
    kept = words(" ".join(summary._accuracy(report | {"balanced": False}, None)))
    assert "Not balanced: released numbers do not show that" in kept

    # classes 1 and 2 are never predicted, and class 2 has no public test row
    test = evaluate_scores(np.eye(3)[[0, 0]], np.array([0, 1]))
    public = {"test": test, "test_is": "public", "test_rows": "other rows"}
    bare = report | public | {"class_accuracy": None}
    said = words(" ".join(summary._accuracy(bare, test)))
    assert f"predicted for any public test row: {CLASSES[2]}. Measure them" in said
    assert f"{CLASSES[1]} is never predicted" in said
    said = words(" ".join(summary._accuracy(report | public, test)))
    assert f"released accuracies: {CLASSES[2]}. Measure them" in said
    assert "predicted for any public test row, or ever predicted, by" in said

    help_missed = check.help_missed
    assert help_missed(report).startswith("--method auto --balanced, a larger")
    settings = report["method"]["settings"]
    settings |= {"intercept": 0.3}
    report["method"]["settings"] = settings | {"balanced": False}
    assert help_missed(report).startswith("--balanced, a larger")
    report["method"]["settings"] = settings | {"balanced": False, "intercept": 0}
    assert help_missed(report).startswith("--balanced --intercept 0.3, a larger")
    report["method"]["settings"] = settings | {"balanced": True}
    assert help_missed(report).startswith("a larger")


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fc"])
def test_what_is_advised_for_a_missed_class_is_accepted(features, run, method):
    given = ("fit", features, "--method", method, "--batch-size", 240, "--steps", 1)
    given = given if method == "dp-sgd" else ("fit", features, "--method", method)
    fitted(*given, "-o", run, "--seed", 1, NOT_PRIVATE)
    advised, _, rest = check.help_missed(report_of(run)).partition(", ")
    assert rest.startswith("a larger epsilon")
    again = (*given, *advised.split(), "-o", run.with_name("again"))
    fitted(*again, "--seed", 1, NOT_PRIVATE)


def test_no_count_of_classes_is_advised_where_it_is_refused():
    report = {"method": {"name": "auto"}, "guarantee": {"group_mean": False}}
    report["data"] = {"class_names": ["cat", "dog"]}
    assert "--per-class-share" in next(check.about_classes(report))
    network = {"method": {"name": "finetune wrn-16-4"}}
    for other in ({"guarantee": {"group_mean": True}}, network):
        assert "--per-class-share" not in next(check.about_classes(report | other))
