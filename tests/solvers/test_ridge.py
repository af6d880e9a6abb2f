"""The ridge of noisy Gram matrices."""

import numpy as np
import pytest

from dphead.solvers import ridge
from dphead.solvers.ridge import RidgeSolver


def test_a_positive_matrix_is_solved_as_it_is():
    gram = 50 * np.eye(20)
    right = np.arange(20.0)
    np.testing.assert_allclose(RidgeSolver(gram, 0.1)(right), right / 50.1)


@pytest.mark.parametrize("widest", [64, 4], ids=["spectrum raised", "ridge grown"])
def test_a_matrix_that_noise_made_indefinite_gives_a_bounded_positive_solve(
    widest, monkeypatch
):
    """The solve is symmetric positive definite, and no larger than the ridge allows
    where the spectrum is raised.
    """
    monkeypatch.setattr(ridge, "WIDEST_SPECTRUM", widest)
    noise = np.random.default_rng(0).standard_normal((20, 20))
    for gram in (noise + noise.T, np.zeros((20, 20))):
        inverse = RidgeSolver(gram, 0.1)(np.eye(20))
        values = np.linalg.eigvalsh((inverse + inverse.T) / 2)
        assert values.min() > 0
        if widest == 64:
            # eigenvalues are raised to half the ridge
            assert values.max() <= 1 / 0.05 * (1 + 1e-9)
