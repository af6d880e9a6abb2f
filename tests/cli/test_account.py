"""`dphead account` without data."""

import json
import math
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dphead.cli.account import ACCOUNTANTS, RELATIONS, account
from dphead.privacy import accounting

TB21 = "--delta 1e-5 --noise-multiplier 5.67 --sampling-prob 0.16384 --steps 360 --gaussian 8 --gaussian 8"


def run(text):
    return CliRunner().invoke(account, text.split())


def test_noise_to_epsilon_prints_every_accountant():
    result = run(TB21)
    assert result.exit_code == 0, result.output
    for text in ("2.382", "2.591", "2.997", "does not apply", "paper:tb21", "zero_out"):
        assert text in result.output


def test_budget_to_noise_meets_it_from_below():
    result = run("--epsilon 3 --delta 1e-5 --sampling-prob 0.16384 --steps 360 --gaussian 8 --json")
    found = json.loads(result.output)
    assert found["noise_multiplier"] > 4.4 and 2.997 <= found["epsilon"] <= 3
    assert found["mu"] is None and found["profiles"]["exact"]["reason"]


def test_full_batch_has_mu_and_rho():
    found = json.loads(run("--epsilon 1 --delta 1e-5 --steps 11 --json").output)
    assert found["mu"] == pytest.approx(0.26805112321) and found["rho"] == pytest.approx(found["mu"] ** 2 / 2)
    assert found["noise_multiplier"] == pytest.approx(math.sqrt(11) / found["mu"])
    assert found["profiles"]["paper:fc23"]["epsilon"] > 1.3
    assert "mu  0.268051" in run("--epsilon 1 --delta 1e-5 --steps 11").output


def test_relation_accountant_and_shuffled_batches():
    double = json.loads(run(TB21 + " --relation replace_one --json").output)
    assert double["epsilon"] > 4 and double["profiles"]["rdp"]["epsilon"] is None
    assert json.loads(run(TB21 + " --accountant rdp --json").output)["epsilon"] == pytest.approx(2.591, abs=1e-3)
    shuffled = run(TB21 + " --shuffled-epochs 60").output
    assert "6.371" in shuffled and "not a guarantee" in shuffled
    assert json.loads(run("--delta 1e-5 --epsilon inf --json").output)["epsilon"] == "inf"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--delta 1e-5", "Exactly one of"),
        ("--delta 1e-5 --epsilon 1 --noise-multiplier 1", "Exactly one of"),
        ("--epsilon 1", "--delta"),
        ("--delta 1e-5 --epsilon 0", "epsilon must be positive"),
        ("--delta 1e-5 --epsilon -1", "epsilon must be positive"),
        ("--delta 1e-5 --epsilon nan", "epsilon must be positive"),
        ("--delta 0 --epsilon 1", "delta must lie in (0, 1)"),
        ("--delta 1 --noise-multiplier 1", "delta must lie in (0, 1)"),
        ("--delta 1e-5 --noise-multiplier -1", "noise_multiplier must be"),
        ("--delta 1e-5 --noise-multiplier 1 --sampling-prob 0", "sampling_prob must lie"),
        ("--delta 1e-5 --epsilon 1 --gaussian 1", "The fixed ones cost"),
        ("--delta 1e-5 --epsilon 1 --steps 0", "at least one release"),
        ("--delta 1e-5 --epsilon 1 --sampling-prob .1 --accountant exact", "full batches"),
        ("--delta 1e-5 --noise-multiplier 1 --relation swap", "swap"),
        ("--delta 1e-5 --noise-multiplier 1 --relation add_remove --shuffled-epochs 3", "shuffled batches need"),
    ],
)
def test_wrong_arguments_exit_with_2(arguments, message):
    result = run(arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_module_is_light_and_its_choices_are_the_accountants():
    assert RELATIONS == accounting.RELATIONS and ACCOUNTANTS == accounting.ACCOUNTANTS
    heavy = "import sys, dphead.cli.account; print([m for m in ('numpy', 'scipy', 'rich', 'jax') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True).stdout.strip() == "[]"
