"""Noise of TB21's Figure 9 against a direct optimization."""

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.accounting import figure9_noise
from dphead.planning.calibration import calibrate
from dphead.privacy.accounting import GaussianEvent


def test_amplification_by_iteration_is_the_best_choice_of_shifts():
    """Least sum of squares of a_t with running sums at most the shifts' so far, and
    equal at the end (Theorem 22).
    """
    batches, epochs = 4, 3
    # a row of the last batch: its first step is the first one here
    shifts = np.zeros(batches * (epochs - 1) + 1)
    shifts[::batches] = 1.0
    budget = np.cumsum(shifts)
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
    # Replace-one moves a step by 2 L and each step adds noise sigma L: the divergence
    # of order alpha is alpha / 2 (2 / sigma)^2 sum a_t^2.
    alone = calibrate([GaussianEvent(1.0)], 2.0, 1e-5, accountant="rdp")
    _, found = figure9_noise(2.0, epochs, batches, prob=1.0)
    # the optimizer stops at 1e-6 of the sum
    assert found == pytest.approx(2 * alone * best.fun**0.5, rel=1e-4)


def test_a_single_step_is_a_replace_one_gaussian():
    alone = calibrate([GaussianEvent(1.0)], 1.0, 1e-5, accountant="rdp")
    sampled, found = figure9_noise(1.0, epochs=1, batches=1, prob=1.0)
    assert (sampled, found) == (alone, 2 * alone)
