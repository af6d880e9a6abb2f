"""Privacy amplification by iteration against the paper's figure and a direct
optimization.
"""

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.iteration import iteration_epsilon, iteration_noise, row_rho
from dphead.privacy.accounting import epsilon_from_mu


def test_one_epoch_is_the_theorem_of_feldman_et_al():
    steps_left = np.array([5, 4, 3, 2, 1])
    assert row_rho(4.0, 5, 1) == pytest.approx(2 / 16 / steps_left)


@pytest.mark.parametrize("position", [0, 2, 3])
def test_several_epochs_are_the_best_choice_of_shifts(position):
    """Least sum of squares of a_t with running sums at most the shifts' so far, and
    equal at the end (Theorem 22).
    """
    batches, epochs = 4, 3
    shifts = np.zeros(batches * epochs)
    shifts[position::batches] = 1.0
    shifts, budget = shifts[position:], np.cumsum(shifts[position:])
    limits = [
        {"type": "ineq", "fun": lambda a: budget - np.cumsum(a)},
        {"type": "eq", "fun": lambda a: a.sum() - budget[-1]},
    ]
    best = minimize(
        lambda a: a @ a,
        np.full(len(shifts), 0.1),
        jac=lambda a: 2 * a,
        constraints=limits,
        method="SLSQP",
    )
    assert best.success
    # Replace-one moves a step by 2 L and each step adds noise sigma L: rho = (2 /
    # sigma)^2 / 2 * sum a_t^2.
    assert row_rho(3.0, batches, epochs)[position] == pytest.approx(
        (2 / 3) ** 2 / 2 * best.fun, rel=1e-4
    )


def test_noise_and_epsilon_are_inverse_and_the_worst_row_is_told():
    noise = iteration_noise(2.0, 200, 3, 1e-5)
    found = iteration_epsilon(noise, 200, 3, 1e-5)
    assert 2.0 * (1 - 1e-4) <= found.epsilon <= 2.0
    assert found.covered >= 0.99
    assert found.worst_epsilon > found.epsilon
    assert iteration_epsilon(noise, 200, 3, 1e-5, 1.0).epsilon == found.worst_epsilon
    # one batch of 50 is more than 1 %
    assert iteration_epsilon(noise, 50, 3, 1e-5).covered == 1.0


def test_a_single_step_is_a_replace_one_gaussian():
    found = iteration_epsilon(5.0, 1, 1, 1e-5)
    assert (
        epsilon_from_mu(2 / 5.0, 1e-5)
        <= found.epsilon
        <= epsilon_from_mu(2 / 5.0, 1e-5) * 1.2
    )
