"""The center is the mean of the rows that count, whichever slots hold others."""

import numpy as np
import pytest
from fits import WAYS, partly, plan_and_fit, quick_sums

from dphead.privacy.contract import Released
from dphead.privacy.noise import NoiseSource
from dphead.solvers import ProblemInfo
from dphead.solvers.centering import rows_that_count
from dphead.solvers.components import Components, PrincipalComponents
from dphead.solvers.prototypes import Prototypes

N, D = 3200, 8


def few(way, m):
    """Rows of which one in four counts, the relation, and the unit rows that count."""
    rng = np.random.default_rng(0)
    x = (1 + rng.normal(size=(N, D))).astype(np.float32)
    rows, relation, kept = partly(way, x, rng.integers(0, m, N), m)
    return rows, relation, kept / np.linalg.norm(kept, axis=1, keepdims=True)


def fitted(solver, rows, m, relation, epsilon):
    run = {"noise": NoiseSource(0), "summer": quick_sums(), "relation": relation}
    facts = ProblemInfo(N, D, m)
    return plan_and_fit(solver, rows, facts, epsilon=epsilon, **run).trained


@pytest.mark.parametrize("m", [2, 100])
@pytest.mark.parametrize("way", WAYS)
def test_the_center_is_the_mean_of_the_rows_that_count(way, m):
    """Over all slots it would be a quarter as long: the mean's length is 0.7."""
    rows, relation, kept = few(way, m)
    head = fitted(Prototypes(), rows, m, relation, 20.0)
    assert np.linalg.norm(kept.mean(axis=0)) > 0.6
    assert np.linalg.norm(head.transform.center - kept.mean(axis=0)) < 0.1


@pytest.mark.parametrize("way", WAYS)
def test_components_are_of_the_rows_that_count(way):
    """Their mean, and variances over their number."""
    rows, relation, kept = few(way, 1)
    labeled = [b.x[b.y == 0] for b in rows.blocks()]
    x = np.concatenate(labeled)
    x = x[np.any(x != 0, axis=1)]  # padding
    x = x[np.isfinite(x).all(axis=1)]
    assert len(x) == len(kept)
    head = fitted(PrincipalComponents(2, row_norm=20.0), rows, 1, relation, 1e6)
    assert isinstance(head, Components)
    np.testing.assert_allclose(head.transform.center, x.mean(axis=0), atol=0.05)
    variances = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    np.testing.assert_allclose(head.variances, variances, rtol=0.05)


@pytest.mark.parametrize(
    "found, noise_sd, n_rows",
    [
        (100.0, 0.0, 100.0),
        (100 - 2 * 10, 10.0, 100.0),
        (100 + 2 * 10, 10.0, 100.0),
        (75.0, 10.0, 75.0),
        (-150.0, 90.0, 90.0),
        (0.0, 0.0, 1.0),
    ],
)
def test_a_count_is_believed_where_noise_does_not_explain_it(found, noise_sd, n_rows):
    assert rows_that_count(Released(np.array([[found]]), noise_sd), 100) == n_rows
