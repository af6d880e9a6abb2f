"""Total amount of noise: definition, validity, simulation."""

import math

import numpy as np
import pytest

from dphead.analysis.tan import (
    predict_with_interval,
    total_amount_of_noise,
)
from dphead.privacy.accounting import GaussianEvent, compose_epsilon


def test_definition_and_figure_2():
    """Figure 2: eta = 0.13 and 0.95 are epsilon_TAN = 1 and 8 at delta = 1 / 1.2
    million.
    """
    for eta, eps in ((0.13, 1.0), (0.95, 8.0)):
        found = total_amount_of_noise(4.0, eta * 4.0 / 30, 1800, 1 / 1.2e6)
        assert found.eta == pytest.approx(eta)
        assert found.total_noise == pytest.approx(1 / eta)
        assert found.epsilon == pytest.approx(
            eta**2 + 2 * eta * math.sqrt(math.log(1.2e6))
        )
        assert found.epsilon == pytest.approx(eps, rel=0.05)


def test_the_rule_sigma_at_least_two():
    """At constant eta epsilon stays while sigma >= 2, and explodes below."""
    fine = total_amount_of_noise(2.5, 0.01, 10_000, 1e-6)
    wall = total_amount_of_noise(0.5, 0.002, 10_000, 1e-6)
    assert fine.eta == pytest.approx(wall.eta)
    assert fine.reason == ""
    assert "below 2" in wall.reason
    spent = [
        compose_epsilon([GaussianEvent(s, q, 10_000)], 1e-6, accountant="rdp")
        for s, q in ((2.5, 0.01), (0.5, 0.002))
    ]
    assert spent[0] == pytest.approx(fine.epsilon, rel=0.15)
    assert spent[1] > 2 * fine.epsilon


def test_the_prediction_interval_is_students():
    """Against scipy's own regression, and covering new runs as often as it says."""
    from scipy.stats import linregress

    sizes = np.array([64, 64, 128, 128, 256, 256])
    values = np.array([0.50, 0.52, 0.53, 0.55, 0.55, 0.58])
    found = predict_with_interval(sizes, values, 1024)
    line = linregress(np.log2(sizes), values)
    assert found.accuracy == pytest.approx(line.intercept + 10 * line.slope)
    assert found.slope == pytest.approx(line.slope)
    assert found.accuracy - found.low == pytest.approx(found.high - found.accuracy)
    assert found.low < found.accuracy
    rng = np.random.default_rng(0)
    covered = 0
    x = np.repeat([64, 128, 256], 3)
    for _ in range(2000):
        y = 0.3 + 0.02 * np.log2(x) + rng.normal(0, 0.01, 9)
        interval = predict_with_interval(x, y, 2048, 0.9)
        covered += (
            interval.low <= 0.3 + 0.02 * 11 + rng.normal(0, 0.01) <= interval.high
        )
    # four binomial standard errors
    assert covered / 2000 == pytest.approx(0.9, abs=0.027)
    with pytest.raises(ValueError, match="at least 3 runs"):
        predict_with_interval(np.array([64, 128]), np.array([0.5, 0.6]), 1024)
