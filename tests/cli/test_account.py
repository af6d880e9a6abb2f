"""`dphead account` without data."""

import json
import math

import pytest
from commands import fitted, refusal, words

from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.rounding import rounded_up
from dphead.solvers.base import ProblemInfo

TB21 = (
    "--delta 1e-5 --noise-multiplier 5.67 --sampling-prob 0.16384 --steps 360 "
    "--gaussian 8 --gaussian 8"
)


def said(text):
    return fitted("account", *text.split()).out


def answer(text):
    return json.loads(said(f"{text} --json"))


def test_noise_to_epsilon_prints_every_accountant():
    found = said(TB21)
    for text in ("2.382", "2.592", "2.997", "does not apply", "paper:tb21", "zero_out"):
        assert text in found


def test_full_batch_has_mu_and_rho():
    arguments = "--epsilon 1 --delta 1e-5 --steps 11"
    found = answer(arguments)
    assert found["mu"] == pytest.approx(0.26805112321)
    assert found["rho"] == pytest.approx(found["mu"] ** 2 / 2)
    assert found["noise_multiplier"] == pytest.approx(math.sqrt(11) / found["mu"])
    assert found["profiles"]["paper:fc23"]["epsilon"] > 1.3
    text = said(arguments)
    assert "mu  0.268052" in text
    # Phi(Phi^-1(fpr) + mu) of a row, and twice mu where another replaces it
    assert "0.239 % at FPR 0.1 %, 1.98 % at FPR 1 %, 15.6 % at FPR 10 %" in text
    assert "0.533 % at FPR 0.1 %, 3.68 % at FPR 1 %, 22.9 % at FPR 10 %" in text


def test_the_relation_and_the_accountant_change_epsilon():
    double = answer(TB21 + " --relation replace_one")
    assert double["epsilon"] > 4
    assert double["profiles"]["rdp"]["epsilon"] is None
    by_rdp = answer(TB21 + " --accountant rdp")["epsilon"]
    assert by_rdp == pytest.approx(2.591, abs=1e-3)
    noiseless = answer("--delta 1e-5 --epsilon inf")
    assert noiseless["epsilon"] == "inf"
    for rates in noiseless["tpr_at_fpr"].values():
        assert set(rates.values()) == {1.0}


FC23 = {"preset": "fc23", "learning_rate": 1, "ridge": 1}
METHOD = "--delta 1e-5 --epsilon 1 --sizes 400,6,3"


@pytest.mark.parametrize(
    "options, expected",
    [
        ("--method dp-fc --steps 3 --relation replace_one", {"steps": 3}),
        ("--method dp-newton --preset fc23 --set learning_rate=1 --set ridge=1", FC23),
    ],
)
def test_a_methods_plan_is_the_one_that_a_fit_charges(options, expected):
    facts = ProblemInfo(400, 6, 3)
    relation = "replace_one" if "replace_one" in options else "zero_out"
    settings = {name: value for name, value in expected.items() if name != "preset"}
    method = make_method(options.split()[1], facts, settings, expected.get("preset"))
    plan = make_plan(
        method.solver,
        facts,
        epsilon=1.0,
        delta=1e-5,
        relation=relation,
        accountant=method.accountant,
    )
    found = answer(f"{METHOD} {options}")
    assert found["releases"] == plan.summary()
    assert found["epsilon"] == plan.epsilon_spent()
    assert found["relation"] == relation
    assert set(found["profiles"]) >= {"exact", "pld", "paper:fc23"}


def test_each_epsilon_of_a_preset_is_named_by_its_own_accountant():
    """FC23 spends 1 by zCDP, which the exact accountant counts as less."""
    options = "--method dp-ls --preset fc23 --set alpha=1 --set ridge=1"
    found = answer(f"{METHOD} {options}")
    assert found["solved_for"]["accountant"] == "zcdp"
    assert found["solved_for"]["epsilon"] == pytest.approx(1.0)
    assert found["accountant"] == "exact"
    assert found["epsilon"] == found["profiles"]["exact"]["epsilon"] < 0.8
    text = said(f"{METHOD} {options}")
    assert (
        f"epsilon  {rounded_up(found['epsilon'], 6)}  at delta 1e-05, zero_out, exact"
        in text
    )
    assert "by zcdp, the accountant that calibrated the noise" in text
    assert "that calibrated" not in said(METHOD + " --method dp-ls")
    sampled = "--method dp-sgd --set batch_size=40 --set steps=5"
    found = answer(f"{METHOD} {sampled}")
    assert found["accountant"] == found["solved_for"]["accountant"] == "pld"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--delta 1e-5", "exactly one of"),
        ("--epsilon 1", "--delta"),
        ("--delta 0 --epsilon 1", "must be in (0, 1), got 0.0"),
        ("--delta 1e-5 --epsilon 1 --gaussian 1", "the cost of the fixed noise"),
        (
            "--delta 1e-5 --epsilon 1 --sampling-prob .1 --accountant exact",
            "full batches",
        ),
        (
            "--delta 1e-5 --epsilon 1 --method dp-ls",
            "--sizes",
        ),
        ("--delta 1e-5 --epsilon 1 --sizes 50,6,3", "need --method"),
        (METHOD + " --method dp-ls --gaussian 3", "cannot be combined with --gaussian"),
    ],
)
def test_wrong_arguments_exit_with_2(arguments, message):
    assert message in refusal("account", *arguments.split())


def test_groups_cost_their_cap_times_the_mu_of_a_row():
    noise = "--delta 1e-5 --noise-multiplier 8"
    one, four = (answer(noise + more) for more in ("", " --group-cap 4"))
    assert four["mu"] == pytest.approx(4 * one["mu"])
    assert four["epsilon"] > 4 * one["epsilon"]
    text = said(METHOD + " --method dp-ls --group-cap 3")
    assert "for groups of at most 3 used rows" in words(text)
