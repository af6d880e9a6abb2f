"""From names and presets to solvers: the papers' own numbers, and which settings are
refused.
"""

import math

import numpy as np
import pytest
from fits import answered

from dphead.planning import presets
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.contract import Released
from dphead.solvers import ProblemInfo
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization

FACTS = ProblemInfo(1000, 8, 4)
MNIST = ProblemInfo(60_000, 81 * 49, 10)
CIFAR = ProblemInfo(50_000, 243 * 64, 10)
FC23 = {  # what the paper searches and does not print (Tables 6-9: two ranges each)
    "dp-fc": {"learning_rate": 1.0, "ridge": 0.1},
    "dp-ls": {"alpha": 1.0, "ridge": 0.1},
    "dp-newton": {"learning_rate": 1.0, "ridge": 0.1},
    "dp-adam": {"learning_rate": 0.1, "weight_decay": 0.0},
}


def asked(solver):
    """What a solver asks that is told zeros."""

    def zeros(ask):
        width = ask.params.transform.width(FACTS.n_features)
        return Released(np.zeros(ask.statistic.shape(width)), 1.0)

    return answered(solver, FACTS, zeros)[0]


# --- FC23: Tables 6-9 -----------------------------------------------------------------


@pytest.mark.parametrize(
    "method, count", [("dp-fc", 11), ("dp-ls", 3), ("dp-newton", 20), ("dp-adam", 100)]
)
def test_fc23_has_one_noise_multiplier_and_the_papers_count_of_releases(method, count):
    """rho = (T + 1) / 2 sigma^2 for DP-FC, 3 / 2 sigma^2 for DP-LS, T / sigma^2 for
    DP-Newton, T / 2 sigma^2.
    """
    made = make_method(method, FACTS, FC23[method], "fc23")
    assert {p.clip_norm for p in made.solver.plan(FACTS)} == {0.005}
    assert not any(ask.params.transform.unit_norm for ask in asked(made.solver))
    plan = make_plan(
        made.solver, FACTS, epsilon=1.0, delta=1e-5, accountant=made.accountant
    )
    sigmas = [s.noise_multiplier for s in plan.specs]
    assert len(sigmas) == count
    assert max(sigmas) == pytest.approx(min(sigmas), rel=1e-12)
    rho = count / (2 * sigmas[0] ** 2)
    assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(1.0, rel=1e-6)


def test_fc23_asks_for_what_the_paper_does_not_print():
    for name in FC23["dp-fc"]:
        rest = {k: v for k, v in FC23["dp-fc"].items() if k != name}
        with pytest.raises(ValueError, match=name):
            make_method("dp-fc", FACTS, rest, "fc23")


# --- TB21: Tables 12 and 13, SN+Linear ------------------------------------------------


@pytest.mark.parametrize(
    "preset, facts, batch, epochs, base_rate, data_norm",
    [
        ("tb21-mnist", MNIST, 4096, 40, 1.0, (81, 0.2, 0.05, 8.0)),
        ("tb21-fashion-mnist", MNIST, 8192, 40, 1.0, None),
        ("tb21-cifar10", CIFAR, 8192, 60, 0.25, (243, 1.0, 1.5, 8.0)),
    ],
)
def test_tb21_is_table_13(preset, facts, batch, epochs, base_rate, data_norm):
    """The learning rate is the base one times B / 512; batches of B of n rows are
    Poisson with q = B / n.
    """
    made = make_method("dp-sgd", facts, {}, preset)
    solver = made.solver
    assert (solver.optimizer, solver.loss, solver.momentum, solver.clip_norm) == (
        "sgd",
        "softmax",
        0.9,
        0.1,
    )
    assert solver.sampling_prob == batch / facts.n_rows
    assert solver.steps == round(epochs * facts.n_rows / batch)
    assert solver.learning_rate == pytest.approx(base_rate * batch / 512)
    assert made.accountant == "rdp-classic"
    if data_norm is None:
        assert solver.centering == Centering(Centering.share, unit_norm=False)
        assert not solver.centering.plan(facts, 1.0)
    else:
        assert solver.centering == ChannelNormalization(*data_norm)


# --- De22: Table 21 -------------------------------------------------------------------


@pytest.mark.parametrize("epsilon, steps, sigma", [(1.0, 500, 21.2), (4.0, 2000, 11.8)])
def test_de22_is_table_21(epsilon, steps, sigma):
    """ImageNet, n = 1,281,167, delta = 8e-7.

    The paper's noise is printed to three digits and searched on a grid, and is at most
    1 % above what its accountant needs.
    """
    facts = ProblemInfo(1_281_167, 16, 1000)
    made = make_method("dp-sgd", facts, {"steps": steps}, "de22")
    solver = made.solver
    assert (
        solver.clip_norm,
        solver.learning_rate,
        solver.momentum,
        solver.weight_decay,
    ) == (1.0, 25.6, 0.0, 0.0)
    assert solver.sampling_prob == 2**18 / facts.n_rows
    assert solver.normalize
    assert (solver.average, solver.ema_decay) == ("ema", 0.99999)
    plan = make_plan(
        solver, facts, epsilon=epsilon, delta=8e-7, accountant=made.accountant
    )
    assert len(plan.specs) == steps
    assert 0 <= sigma - plan.specs[0].noise_multiplier <= 0.01 * sigma


# --- settings -------------------------------------------------------------------------


def test_a_preset_that_no_head_can_follow_is_refused():
    with pytest.raises(ValueError, match="end-to-end training"):
        make_method("dp-sgd", FACTS, {}, "de22-14")


def test_a_preset_whose_settings_depend_on_epsilon_shows_them():
    printed = r"several .*epsilon 0.1, .*learning_rate 30, .*steps 100, "
    with pytest.raises(ValueError, match=printed):
        make_method("dp-sgd", FACTS, {}, "de22-22")
    column = presets.column("de22-22", epsilon=4.0)
    options = {k: column[k] for k in ("steps", "learning_rate")}
    solver = make_method("dp-sgd", FACTS, options, "de22-22").solver
    assert (solver.steps, solver.learning_rate) == (1000, 100)


def test_a_users_setting_replaces_what_a_preset_says_in_other_words():
    solver = make_method("dp-fc", FACTS, FC23["dp-fc"] | {"epochs": 4}, "fc23").solver
    assert solver.steps == 4
    options = {"batch_size": 100, "epochs": 2, "learning_rate": 0.5}
    solver = make_method("dp-sgd", FACTS, options, "tb21").solver
    assert (solver.sampling_prob, solver.steps, solver.learning_rate) == (0.1, 20, 0.5)


@pytest.mark.parametrize(
    "name, options, preset, message",
    [
        ("dp-magic", {}, None, "is unknown. Choose one of .*auto"),
        ("dp-fc", {}, "fc24", "is unknown. Choose one of de22"),
        ("prototypes", {}, "fc23", "no settings for prototypes"),
        ("dp-ls", {"momentum": 0.9}, None, "momentum"),
        ("dp-sgd", {"steps": 3, "epochs": 3}, None, "set the same number"),
        ("dp-fc", {"centering": None, "centring": 1}, None, "centring"),
        ("dp-sgd", {"batch_size": 0}, None, "batch_size must be"),
    ],
)
def test_what_cannot_be_run_is_refused(name, options, preset, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, FACTS, options, preset)


def test_epochs_and_a_base_learning_rate_are_of_allocated_batches():
    options = {"epochs": 2, "base_learning_rate": 512.0, "epoch_steps": 10}
    solver = make_method("dp-sgd", FACTS, options).solver
    assert (solver.steps, solver.learning_rate) == (20, FACTS.n_rows / 10)
