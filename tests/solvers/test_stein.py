"""The criterion for λ against brute force: unbiased for the true training loss, where the plug-in one is not."""

import numpy as np
import pytest

from dphead.solvers.stein import SpectralRidge, candidates

D, M, N = 6, 3, 400
RIDGES = (2.0, 12.0, 60.0)  # below the noise's edge, about it, above it


def problem(d=D, n=N):
    rng = np.random.default_rng(0)
    y = rng.integers(0, M, n)
    x = rng.normal(size=(n, d)) * 0.7 ** np.arange(d) + 0.5 * np.eye(M, d)[y]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x.T @ x, x.T @ np.eye(M)[y]


def released(gram, sums, gram_sd, sums_sd, rng):
    z = rng.normal(size=gram.shape)
    noisy = sums + sums_sd * rng.normal(size=sums.shape)
    return SpectralRidge(gram + gram_sd * (z + z.T) / 2, gram_sd, noisy, sums_sd)


def true_loss(weights, gram, sums):
    return np.trace(weights.T @ gram @ weights) - 2 * np.trace(weights.T @ (sums - sums.mean(1, keepdims=True)))


@pytest.mark.parametrize("ridge", RIDGES)
def test_it_is_unbiased_for_the_true_training_loss_where_the_plug_in_is_not(ridge):
    """6,000 draws, half of them with eigenvalues that noise made negative, some beyond the pole of (G̃ + λ)⁻¹.

    The mean error is within 4 standard errors (odds 6e-5); that of the plug-in loss is beyond 10.
    """
    gram, sums = problem()
    rng = np.random.default_rng(1)
    gaps, plugged, beyond = [], [], 0
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


@pytest.mark.parametrize("ridge", RIDGES)
def test_the_divergence_is_that_of_finite_differences(ridge):
    """Central differences of step 1e-5: relative error 1e-6, far from kinks."""
    gram, sums = problem()
    found = released(gram, sums, 8.0, 6.0, np.random.default_rng(2))
    noisy = (found._vectors * found._values) @ found._vectors.T
    released_sums = found._vectors @ found._sums
    total, step = 0.0, 1e-5

    def m(matrix):
        w = SpectralRidge(matrix, 1.0, released_sums, 1.0).weights(ridge)
        return w @ w.T

    for i in range(D):
        for j in range(D):
            direction = np.zeros((D, D))
            direction[i, j] += 0.5
            direction[j, i] += 0.5
            total += ((m(noisy + step * direction) - m(noisy - step * direction)) / (2 * step))[i, j]
    assert found._divergence(found._inverse(ridge), ridge) == pytest.approx(total, rel=1e-5)


def test_it_chooses_well_where_the_plug_in_fits_the_noise():
    """Over 100 draws the chosen λ loses less than a tenth of what the plug-in's choice loses to the best λ."""
    gram, sums = problem(40, 4000)
    rng, ridges = np.random.default_rng(3), candidates(4000, 8.0, 40)
    lost = np.zeros(2)
    for _ in range(100):
        found = released(gram, sums, 8.0, 6.0, rng)
        truth = np.array([true_loss(found.weights(r), gram, sums) for r in ridges])
        plugged = ridges[int(np.argmin([found.plug_in(r) for r in ridges]))]
        for k, ridge in enumerate((found.best(ridges), plugged)):
            lost[k] += truth[list(ridges).index(ridge)] - truth.min()
    print(lost)
    assert lost[0] < 0.1 * lost[1]


def test_without_noise_it_is_the_loss_itself():
    gram, sums = problem()
    found = SpectralRidge(gram, 0.0, sums, 0.0)
    assert found.risk(3.0) == pytest.approx(true_loss(found.weights(3.0), gram, sums), rel=1e-9)
    assert found.best(candidates(N, 0.0, D)) == pytest.approx(1e-4 * N)
