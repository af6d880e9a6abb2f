"""Total amount of noise: definition, validity, simulation."""

import math

import numpy as np
import pytest

from dphead.analysis.tan import predict_accuracy, require_public, simulate, total_amount_of_noise
from dphead.privacy.accounting import GaussianEvent, epsilon


def test_definition_and_figure_2():
    """Figure 2: eta = 0.13 and 0.95 are epsilon_TAN = 1 and 8 at delta = 1 / 1.2 million."""
    for eta, eps in ((0.13, 1.0), (0.95, 8.0)):
        found = total_amount_of_noise(4.0, eta * 4.0 / 30, 1800, 1 / 1.2e6)
        assert found.eta == pytest.approx(eta) and found.total_noise == pytest.approx(1 / eta)
        assert found.epsilon == pytest.approx(eta**2 + 2 * eta * math.sqrt(math.log(1.2e6)))
        assert found.epsilon == pytest.approx(eps, rel=0.05)


def test_the_rule_sigma_at_least_two():
    """At constant eta epsilon stays while sigma >= 2, and explodes below."""
    fine, wall = total_amount_of_noise(2.5, 0.01, 10_000, 1e-6), total_amount_of_noise(0.5, 0.002, 10_000, 1e-6)
    assert fine.eta == pytest.approx(wall.eta) and fine.valid and not wall.valid and "below 2" in wall.reason
    spent = [epsilon([GaussianEvent(s, q, 10_000)], 1e-6, accountant="rdp") for s, q in ((2.5, 0.01), (0.5, 0.002))]
    assert spent[0] == pytest.approx(fine.epsilon, rel=0.15) and spent[1] > 2 * fine.epsilon


def test_simulation_keeps_eta_and_is_for_public_data():
    sigma, batch = simulate(2.5, 16384, 128)
    assert (sigma, batch) == (2.5 / 128, 128)
    full, small = (total_amount_of_noise(s, b / 1.2e6, 72_000, 1e-6) for s, b in ((2.5, 16384), (sigma, batch)))
    assert full.eta == pytest.approx(small.eta)
    require_public(True)
    with pytest.raises(ValueError, match="needs public data"):
        require_public(False)


def test_prediction_is_the_line_in_log2():
    sizes = np.array([128, 256, 512, 1024])
    assert predict_accuracy(sizes, 0.5 - 0.01 * np.log2(sizes), 16384) == pytest.approx(0.5 - 0.14)
    with pytest.raises(ValueError, match="at least 2 different"):
        predict_accuracy(np.array([128, 128]), np.array([0.1, 0.2]), 1024)


@pytest.mark.parametrize("bad", [(0.0, 0.1, 10, 1e-5), (1.0, 0.0, 10, 1e-5), (1.0, 0.1, 0, 1e-5), (1.0, 0.1, 10, 1.0)])
def test_bad_input(bad):
    with pytest.raises(ValueError, match="must"):
        total_amount_of_noise(*bad)
    with pytest.raises(ValueError, match="must be at least 1"):
        simulate(2.0, 64, 128)
