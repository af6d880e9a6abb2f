"""A public head is where `auto` starts: it helps where noise is large, and counts by
its directions alone.
"""

import os

import numpy as np
import pytest
from fits import head_of, plan_and_fit, right

from dphead.data.arrays import ArrayRows
from dphead.planning.plan import make_plan
from dphead.privacy.ledger import Ledger
from dphead.solvers import Auto, ProblemInfo
from dphead.solvers.prior import PublicPrior, read_prior

D, M = 60, 4


def blobs(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, M, n)
    rows = 0.5 * rng.normal(size=(n, D)) + np.eye(M, D)[y]
    return rows.astype(np.float32), y


def accuracy(prior, epsilon, seeds=2):
    heads = (
        head_of(Auto(prior=prior), *blobs(1000, seed), M, epsilon, seed)
        for seed in range(seeds)
    )
    return np.mean([right(head, *blobs(5000, 99)) for head in heads])


def test_a_good_prior_helps_where_noise_is_large_and_a_wrong_one_is_outgrown():
    """Directions of the classes: 7 points and more at epsilon 0.5.

    Those of other classes: at most 5 lost at 8.
    """
    assert accuracy(PublicPrior(np.eye(D, M)), 0.5) > accuracy(None, 0.5) + 0.07
    wrong = PublicPrior(np.roll(np.eye(D, M), 1, axis=1))
    assert accuracy(wrong, 8.0) > accuracy(None, 8.0) - 0.05


def test_a_prior_changes_no_noise_and_is_another_plan():
    facts = ProblemInfo(1000, D, M)
    solvers = Auto(), Auto(prior=PublicPrior(np.eye(D, M)))
    plans = [make_plan(one, facts, epsilon=1.0, delta=1e-6) for one in solvers]
    assert plans[0].specs == plans[1].specs
    assert plans[0].digest("", None) != plans[1].digest("", None)


def test_what_is_no_prior_for_these_features_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must contain only finite numbers"):
        PublicPrior(np.full((D, M), np.nan))
    (tmp_path / "prior.npy").write_text("no array")
    with pytest.raises(ValueError, match="must be an \\.npy file"):
        read_prior(tmp_path / "prior.npy")


@pytest.mark.parametrize("shape", [(D + 1, M), (D, M + 1)])
def test_a_prior_of_a_wrong_shape_is_refused_with_nothing_charged(shape):
    ledger = Ledger()
    solver = Auto(prior=PublicPrior(np.eye(*shape)))
    facts = ProblemInfo(1000, D, M)
    with pytest.raises(ValueError, match=r"prior. must have shape"):
        plan_and_fit(solver, ArrayRows(*blobs(1000, 0)), facts, ledger=ledger)
    with pytest.raises(ValueError, match=r"prior. must have shape"):
        make_plan(solver, facts, epsilon=1.0, delta=1e-6)
    assert ledger.fits() == []


def test_a_pipe_is_no_prior(tmp_path):
    """A read of it would wait for ever."""
    os.mkfifo(tmp_path / "prior.npy")
    with pytest.raises(ValueError, match="not a regular file"):
        read_prior(tmp_path / "prior.npy")
