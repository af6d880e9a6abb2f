"""A budget, what was spent and what remains: before a fit, at a refusal, in a plan."""

import io
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from commands import (
    LS,
    NOT_PRIVATE,
    charges,
    dphead,
    fitted,
    refusal,
    refused,
    report_of,
)

from dphead.analysis.ledger_place import default_ledger_path
from dphead.cli import budget
from dphead.fit.ledgers import image_index, read_ledger

LIMIT = ("--epsilon", 2, "--delta", 1e-5)


def words(done):
    """The output on one line."""
    return " ".join(done.out.replace("\\\n", "").split())


@pytest.fixture
def terminal(monkeypatch):
    """A user who types lines on a terminal."""

    def types(text):
        monkeypatch.setattr(budget, "on_terminal", lambda: True)
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return types


@pytest.mark.parametrize("epsilon, offered", [(1, 3), (8, 8)])
def test_a_first_fit_says_how_to_set_a_budget_before_it_charges(
    features, tmp_path, epsilon, offered
):
    """A budget that admits the fit."""
    one = ("--epsilon", epsilon, "-o", tmp_path / "one")
    text = words(fitted("fit", features, *LS, *one))
    command = f"dphead ledger budget {features} --epsilon {offered} --delta 1e-05"
    assert text.index(command) < text.index("Trained")
    # then it is too late
    text = words(fitted("fit", features, *LS, "-o", tmp_path / "two"))
    assert command not in text
    assert "it is too late to set one" in text


def test_a_user_on_a_terminal_decides_before_the_first_charge(
    features, tmp_path, terminal
):
    command = ("fit", features, *LS, "-o", tmp_path / "one")
    terminal("\n")
    assert dphead(*command).code == 1
    assert charges() == 0
    terminal("y\n")
    fitted(*command)
    assert report_of(tmp_path / "one")["ledger"]["budget"] is None
    terminal("")
    fitted("fit", features, *LS, "--epsilon", 0.5, "-o", tmp_path / "two")


def test_a_fit_that_no_budget_counts_is_not_asked(features, tmp_path, terminal):
    terminal("")
    text = words(
        fitted("fit", features, *LS, "--seed", 1, NOT_PRIVATE, "-o", tmp_path / "one")
    )
    assert "ledger budget" not in text


def test_a_refusal_tells_what_was_asked_from_what_is_left(features, tmp_path):
    fitted("ledger", "budget", features, *LIMIT)
    fitted("fit", features, *LS, "--epsilon", 1.5, "-o", tmp_path / "one")
    command = ("fit", features, *LS, "--epsilon", 1.4, "-o", tmp_path / "two")
    parts = (
        "epsilon 1.4 at delta 1e-05 requested by this fit",
        "epsilon 2 at delta 1e-05 for all fits in this ledger",
        "epsilon 1.5 spent in 1 fit",
        "remaining for a fit like this one",
    )
    done = dphead(*command)
    refused(done)
    assert all(part in words(done) for part in parts)
    dry = fitted(*command, "--dry-run")
    assert all(part in words(dry) for part in (*parts, "! This fit would be refused"))
    assert charges() == 1


def test_several_fits_are_tried_on_a_budget_together(features, tmp_path):
    fitted("ledger", "budget", features, *LIMIT)
    plan = ("plan", features, "--method", "dp-ls", "--fits")
    # 0.142 is mu of epsilon 0.5, and 0.497 that of 2: 12 fits have 0.492
    done = fitted(*plan, 12, "--epsilon", 0.5)
    assert "12 fits at epsilon 0.5 and delta 1e-05" in words(done)
    assert "the ledger takes all of them, for a total of epsilon 1.96" in words(done)
    assert "at epsilon 0.5: worth about" in words(done)
    done = dphead(*plan, 13, "--epsilon", 0.5)
    assert done.code == 1
    assert "! The ledger refuses fit 13 of 13" in words(done)
    # in the order that was typed: two of 1, then those of 0.5
    done = dphead(*plan, 3, "--epsilon", "1,0.5")
    assert done.code == 1
    assert "! The ledger refuses fit 5 of 6" in words(done)
    assert charges() == 0
    assert "needs --n-rows" in refusal("plan", features)
    private = fitted(*plan, 1, "--relation", "add_remove", "--n-rows", 240)
    assert "the ledger takes all of them" in words(private)


def test_an_option_of_a_forecast_is_refused_with_fits_and_the_reverse(features):
    several = ("plan", features, "--fits", 1)
    for given in (["--json"], ["--n-rows", 240], ["--draws", 2], ["--public-rows"]):
        assert f"{given[0]} is for a forecast" in refusal(*several, *given)
    forecast = ("plan", features, "--public-rows", "--n-rows", 240)
    for given in (["--ledger", "book.sqlite"], ["--protect", "image"]):
        assert f"{given[0]} is for --fits" in refusal(*forecast, *given)


def test_a_budget_of_images_is_offered_for_their_own_ledger(
    tmp_path, monkeypatch, capsys
):
    """Other members, and other data sets of an id system, have no other one."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    name, own = "e" * 32, default_ledger_path("e" * 32)
    plan = SimpleNamespace(private=True, epsilon=1.0, delta=1e-3)
    progress = SimpleNamespace(say=print, paused=nullcontext)
    options = SimpleNamespace(
        ledger=None, features=tmp_path, out=tmp_path / "run", new_data_set=False
    )
    for people in (None, {"system": "c", "new": True}, {"system": "c", "new": False}):
        source = SimpleNamespace(dataset_id=name, grouped=False, people=people)
        fit = SimpleNamespace(announced=plan, about=SimpleNamespace(source=source))
        budget.offer_budget(fit, options, progress, ask=False)
        said = "".join(capsys.readouterr().out.split())
        assert f"dpheadledgerbudget{own}--epsilon3--delta" in said.replace("\\", "")
    assert "No index of images or people" in refusal("ledger", "budget", own, *LIMIT)
    image_index().add(name, np.arange(9, dtype=np.uint64))
    fitted("ledger", "budget", own, *LIMIT)
    assert read_ledger(None, name).budget()["epsilon"] == 2.0
    assert read_ledger(None, name).meta("dataset_id") == name
