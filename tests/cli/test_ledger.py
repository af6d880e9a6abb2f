"""`dphead ledger show|budget`, and the commands that there are."""

import json
import re

import numpy as np
import pytest
from commands import (
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
    ledger_of,
    refusal,
    refused,
    report_of,
    words,
)
from core import reserve
from dphead_extract.features.format import open_features
from dphead_extract.shards import blocks_of
from ledgers import specs

from dphead.cli import COMMANDS
from dphead.fit.ledgers import default_ledger_path, image_index


def test_help_lists_every_command():
    text = fitted("--help").out
    assert len(COMMANDS) >= 7
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +\S", text, re.MULTILINE), name
        assert "Usage:" in fitted(name, "--help").out


def test_show_lists_every_fit_and_the_total(features, tmp_path):
    before = fitted("ledger", "show", features).out
    assert "epsilon 0 spent in 0 fits" in before
    assert "before the first fit with dphead ledger budget" in before
    for i, epsilon in enumerate((1, 0.5)):
        fit(features, tmp_path / f"run{i}", "--epsilon", epsilon)
    text = fitted("ledger", "show", features).out
    assert text.count("dp-ls") == 2
    assert "The ledger refuses no fit" in text
    total = float(re.search(r"epsilon (\S+) spent in 2 fits", text)[1])
    assert 1.0 < total < 1.5
    # by the ledger's own path too
    assert fitted("ledger", "show", ledger_of(features).path).out == text
    found = json.loads(fitted("ledger", "show", features, "--json").out)
    assert [f["epsilon"] for f in found["fits"]] == ["1.0", "0.5"]
    assert found["budget"] is None
    labels = [r["label"] for r in found["fits"][0]["releases"]]
    assert labels == ["row count", "feature mean", "gram", "class sums"]


def test_a_budget_is_kept_until_nothing_fits(features, tmp_path):
    """Fits at epsilon = 1 have mu = 0.268; a budget of 2 (mu = 0.497) takes three of
    them (0.464), not four (0.536).
    """
    assert (
        "epsilon 2 at delta 1e-05, for all fits"
        in fitted("ledger", "budget", features, "--epsilon", 2, "--delta", 1e-5).out
    )
    for i in range(3):
        fit(features, tmp_path / f"run{i}")
    confirmed = "--i-know-this-is-not-private"
    for epsilon in (1, "inf"):
        third = ("fit", features, "-o", tmp_path / "run3", *LS, confirmed)
        said = refusal(*third, "--epsilon", epsilon)
        assert "budget" in said
    refusal("fit", features, "-o", tmp_path / "run3", *LS, "--seed", 1, NOT_PRIVATE)
    assert charges() == 3
    assert not (tmp_path / "run3").exists()
    # mu = 0.142: 0.485 in all
    fit(features, tmp_path / "run4", "--epsilon", 0.5)
    shown = fitted("ledger", "show", features).out
    assert "epsilon 1.93 spent in 4 fits" in shown
    assert "epsilon 0.4366 remaining for a fit like the last one" in shown


def test_a_total_above_a_runs_own_epsilon_is_explained(features, tmp_path):
    """One sampled fit is counted by PLD, as its own epsilon is; two by RDP."""
    sampled = ("--method", "dp-sgd", "--batch-size", 60, "--steps", 2, "--backend")
    first, run = tmp_path / "first", tmp_path / "run"
    fitted("fit", features, "-o", first, *sampled, "numpy")
    said = fitted("fit", features, "-o", run, *sampled, "numpy").out
    assert report_of(first)["ledger"]["total_epsilon"] <= 1
    assert report_of(run)["ledger"]["total_epsilon"] > 1
    why = "coarser accountant (RDP) than for one run (PLD), so the total can be"
    for text in (
        said,
        fitted("ledger", "show", features).out,
        dphead("check", run).out,
        report_of(run)["statement"],
        (run / "report.html").read_text(),
    ):
        assert why in words(text)


def test_a_budget_is_fixed_once_and_before_the_first_fit(features, tmp_path):
    late = features_file(tmp_path / "late.h5", seed=1)
    fit(late, tmp_path / "run")
    assert "before the first fit" in refusal(
        "ledger", "budget", late, "--epsilon", 3, "--delta", 1e-5
    )
    fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-5)
    fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-5)
    assert "budget cannot change" in refusal(
        "ledger", "budget", features, "--epsilon", 4, "--delta", 1e-5
    )
    assert ledger_of(features).budget()["epsilon"] == 3


def test_show_without_a_budget_is_of_the_smallest_delta(features):
    """At a delta of 0.9 one cheap fit would hide what the others spent."""
    ledger = ledger_of(features)
    for sigma, delta in ((0.5, 1e-5), (1e6, 0.9)):
        reserve(specs(1, sigma), ledger, delta=delta)
    assert "(delta 1e-05)" in fitted("ledger", "show", ledger.path).out


def test_show_says_which_number_is_the_guarantee(features, tmp_path):
    other = features_file(tmp_path / "other.h5", seed=1)
    fitted("ledger", "budget", features, "--epsilon", 2, "--delta", 1e-5)
    for source in (features, other):
        done = fit(source, tmp_path / f"run {source.stem}").out
        assert "epsilon 1 spent in 1 fit" in done
    shown = (fitted("ledger", "show", source).out for source in (features, other))
    kept, free = (words(text) for text in shown)
    for text in (kept, free):
        assert "epsilon 1 spent in 1 fit" in text
        assert "total" not in text
        # whole hours
        assert {at[-2:] for at in re.findall(r"\d\d:\d\d", text)} == {"00"}
    assert "epsilon 2 at delta 1e-05 for all fits in this ledger" in kept
    assert "a guarantee only if no fit was chosen by the results" in free


def test_a_budget_out_of_range_is_refused(features):
    for epsilon, delta, said in (
        (0, 1e-5, "needs a finite positive epsilon"),
        (1, 1, "delta must be below 1/n"),
        (1, "nan", "a number from 0"),
    ):
        budget = ("--epsilon", epsilon, "--delta", delta)
        assert said in refusal("ledger", "budget", features, *budget)
    assert ledger_of(features).budget() is None


@pytest.mark.parametrize(
    "command", [("show",), ("budget", "--epsilon", 1, "--delta", 1e-5)]
)
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path, command):
    (tmp_path / "notes.txt").write_text(
        "not a ledger, but long enough to be looked at as if it were a database\n" * 9
    )
    (tmp_path / "cut.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    before = contents(tmp_path)
    for name in ("notes.txt", "cut.h5", "missing.h5", "."):
        refusal("ledger", command[0], tmp_path / name, *command[1:])
    assert contents(tmp_path) == before


def test_verify_finds_damage(tmp_path):
    import sqlite3

    features = features_file(tmp_path / "f.h5")
    book = tmp_path / "book.sqlite"
    own = ("--ledger", book)
    fit(features, tmp_path / "run", *own, "--seed", 1, NOT_PRIVATE)
    assert "nothing found, in 1 fit" in fitted("ledger", "verify", book).out
    with sqlite3.connect(book) as db:
        db.execute("DROP TRIGGER releases_update")
        db.execute("UPDATE releases SET noise_multiplier = 1e6 WHERE sequence = 0")
    done = dphead("ledger", "verify", book)
    assert done.code == 1
    assert "damaged: fits 1 to 1" in done.out
    again = dphead("fit", features, "-o", tmp_path / "again", *LS, *own)
    assert "is damaged: " in refused(again)
    assert "is damaged: " in refusal("ledger", "show", book)


def test_a_budget_names_what_is_recognized_in_another_ledger(tmp_path):
    """All images of the file, not only some of its data set or id system."""
    path = features_file(tmp_path / "images.h5", **OF_IMAGES)
    command = ("ledger", "budget", path, "--epsilon", 1, "--delta", 1e-3)
    assert "refuses fits" not in fitted(*command).out
    image_index().add(id_of(path), np.arange(4, dtype=np.uint64))
    assert "refuses fits" not in fitted(*command).out
    with open_features(path) as file:
        image_index().mark_blocks(file.dataset_id, file.salt, blocks_of(file))
    said = words(fitted(*command).out)
    assert "refuses fits on these images in any other" in said and "same -o" not in said


def test_show_names_other_ledgers_if_a_data_set_has_no_file(tmp_path):
    path, other = features_file(tmp_path / "f.h5"), tmp_path / "other.sqlite"
    show = ("ledger", "show", path)
    assert "no fit was charged to this data set's ledger" in words(fitted(*show).out)
    fitted("fit", path, *LS, "-o", tmp_path / "run", "--ledger", other)
    said = words(fitted(*show).out)
    assert f"no ledger at {default_ledger_path(id_of(path))}. Restore it" in said
    assert f"known to the ledger {other} (1 fit" in said


def test_a_budget_with_a_large_delta_is_refused(tmp_path):
    features = features_file(tmp_path / "f.h5", n=240)
    said = fitted("ledger", "show", features).out
    assert ":memory:" not in said
    said = refusal("ledger", "budget", features, "--epsilon", 1, "--delta", 0.9)
    assert "delta must be below 1/n = 0.00416, got delta=0.9. Nothing was set" in said
    assert not default_ledger_path(id_of(features)).exists()


def test_a_budget_says_how_rows_that_the_home_does_not_know_are_recognized(
    features, tmp_path
):
    budget = ("--epsilon", 3, "--delta", 1e-5)
    other = features_file(tmp_path / "images.h5", **OF_IMAGES)
    for path, same_o, same_data in ((features, False, True), (other, True, False)):
        said = words(fitted("ledger", "budget", path, *budget).out)
        assert ("extract` with the same -o" in said) is same_o
        assert ("only with --same-data-as FILE" in said) is same_data
        assert "From now on" not in said
        book = default_ledger_path(id_of(path))  # it does not say what its rows are
        said = words(fitted("ledger", "budget", book, *budget).out)
        assert "the same -o" in said and "--same-data-as FILE" in said
