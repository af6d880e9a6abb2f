"""The criterion for λ against brute force: unbiased for the true training loss, where
the plug-in one is not.
"""

import numpy as np
import pytest
from fits import head_of, right

from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.contract import Released
from dphead.solvers import LeastSquares, ProblemInfo
from dphead.solvers.stein import SpectralRidge, candidates

D = 6
M = 3
N = 400
RIDGES = (2.0, 12.0, 60.0)  # below the noise's edge, about it, above it


def problem(d=D, n=N, decay=0.7, signal=0.5):
    rng = np.random.default_rng(0)
    y = rng.integers(0, M, n)
    spread = rng.normal(size=(n, d)) * decay ** np.arange(d)
    x = spread + signal * np.eye(M, d)[y]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x.T @ x, x.T @ np.eye(M)[y]


def released(gram, sums, gram_sd, sums_sd, rng):
    z = rng.normal(size=gram.shape)
    noisy = sums + sums_sd * rng.normal(size=sums.shape)
    return SpectralRidge(
        Released(gram + gram_sd * (z + z.T) / 2, gram_sd), Released(noisy, sums_sd)
    )


def true_loss(weights, gram, sums):
    return np.trace(weights.T @ gram @ weights) - 2 * np.trace(
        weights.T @ (sums - sums.mean(1, keepdims=True))
    )


@pytest.mark.parametrize("ridge", RIDGES)
def test_it_is_unbiased_for_the_true_training_loss_where_the_plug_in_is_not(ridge):
    """6,000 draws, half of them with eigenvalues that noise made negative, some beyond
    the pole of (G̃ + λ)⁻¹.

    The mean error is within 4 standard errors (odds 6e-5); that of the plug-in loss is
    beyond 10.
    """
    gram, sums = problem()
    rng = np.random.default_rng(1)
    gaps = []
    plugged = []
    beyond = 0
    for _ in range(6000):
        found = released(gram, sums, 8.0, 6.0, rng)
        truth = true_loss(found.weights(ridge), gram, sums)
        gaps.append(found.risk(ridge) - truth)
        plugged.append(found.plug_in(ridge) - truth)
        beyond += found._values[0] < -ridge
    if ridge == RIDGES[0]:
        assert beyond > 100
    assert abs(np.mean(gaps)) < 4 * np.std(gaps) / 6000**0.5
    assert np.mean(plugged) < -10 * np.std(plugged) / 6000**0.5


def test_without_noise_it_is_the_loss_itself():
    gram, sums = problem()
    found = SpectralRidge(Released(gram, 0.0), Released(sums, 0.0))
    assert found.risk(3.0) == pytest.approx(
        true_loss(found.weights(3.0), gram, sums), rel=1e-9
    )
    assert found.best(candidates(N, 0.0, D)) == pytest.approx(1e-4 * N)


def test_least_squares_can_use_it_and_refuses_where_it_cannot():
    rng = np.random.default_rng(4)
    y = rng.integers(0, M, 3000)
    x = rng.normal(size=(3000, D)) + 1.5 * np.eye(M, D)[y]
    facts = ProblemInfo(3000, D, M)
    solver = make_method("dp-ls", facts, {"ridge": "stein"}).solver
    assert right(head_of(solver, x, y, M, 2.0), x, y) > 0.7
    for wrong, sizes in (
        (LeastSquares("stein", class_grams=True), facts),
        (solver, ProblemInfo(9000, 5000, M)),
    ):
        with pytest.raises(ValueError, match="stein' and `--error-bars` need"):
            make_plan(wrong, sizes, epsilon=1.0, delta=1e-6)
    for method, ridge in (("dp-fc", "stein"), ("dp-ls", "best")):
        with pytest.raises(ValueError, match="ridge must be positive"):
            make_method(method, facts, {"ridge": ridge})


def test_it_chooses_better_than_the_plug_in_which_takes_the_least_ridge_it_is_given():
    """100 draws where the class sums' noise asks for a large λ: mean losses of about 14
    and 506, of 729 to be had.
    """
    gram, sums = problem(40, 4000, 1.0, 1.5)
    # from the edge of the Gram's noise
    rng = np.random.default_rng(3)
    ridges = np.geomspace(18.0, 80_000.0, 18)
    lost = np.zeros(2)
    least = 0
    for _ in range(100):
        found = released(gram, sums, 2.0, 40.0, rng)
        truth = np.array([true_loss(found.weights(r), gram, sums) for r in ridges])
        plugged = int(np.argmin([found.plug_in(r) for r in ridges]))
        least += plugged == 0
        lost += truth[[list(ridges).index(found.best(ridges)), plugged]] - truth.min()
    assert least > 95
    assert lost[0] < 0.1 * lost[1]


@pytest.mark.parametrize("ridge", RIDGES)
def test_the_divergence_is_that_of_finite_differences(ridge):
    """Central differences of step 1e-5: relative error 1e-6, far from kinks."""
    gram, sums = problem()
    found = released(gram, sums, 8.0, 6.0, np.random.default_rng(2))
    noisy = (found._vectors * found._values) @ found._vectors.T
    released_sums = found._vectors @ found._sums
    total, step = 0.0, 1e-5

    def m(matrix):
        w = SpectralRidge(Released(matrix, 1.0), Released(released_sums, 1.0)).weights(
            ridge
        )
        return w @ w.T

    for i in range(D):
        for j in range(D):
            direction = np.zeros((D, D))
            direction[i, j] += 0.5
            direction[j, i] += 0.5
            total += (
                (m(noisy + step * direction) - m(noisy - step * direction)) / (2 * step)
            )[i, j]
    assert found._divergence(found._inverse(ridge), ridge) == pytest.approx(
        total, rel=1e-5
    )
