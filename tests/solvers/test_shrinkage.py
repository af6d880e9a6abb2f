"""A spectrum shrunk by the noise's law, and the head that is made with it."""

import numpy as np
import pytest
from fits import head_of, right

from dphead.planning.methods import make_method
from dphead.privacy.contract import Released
from dphead.solvers import DPFC, LeastSquares, ProblemInfo
from dphead.solvers.head import center_classes
from dphead.solvers.ridge import RidgeSolver, ridge_for
from dphead.solvers.shrinkage import shrunk_weights

D = 300


def noisy(gram, sd, rng):
    z = rng.normal(size=gram.shape)
    return gram + sd * (z + z.T) / 2


def problem(rng, n=4000, d=120, m=4):
    """(rows, labels, G, S) of a spectrum that falls by 60."""
    y = rng.integers(0, m, n)
    x = rng.normal(size=(n, d)) * np.geomspace(2, 2 / 60**0.5, d)
    x += 0.2 * rng.normal(size=(m, d))[y]
    x -= x.mean(axis=0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, y, x.T @ x, x.T @ np.eye(m)[y]


def shrunk_slowly(gram, sd):
    """The definition of a shrunk Gram matrix, with one eigenvalue at a time."""
    values, vectors = np.linalg.eigh(gram)
    smooth = sd * np.sqrt(2)
    shrunk = np.zeros_like(gram)
    for value, vector in zip(values, vectors.T, strict=True):
        pull = sum((value - e) / ((value - e) ** 2 + smooth**2) for e in values)
        shrunk += max(value - sd**2 * pull, 0) * np.outer(vector, vector)
    return shrunk


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shrink", [False, True])
def test_preconditioned_steps_are_those_of_the_slow_definition(apart, shrink):
    """Two steps from given releases, with the intercept in the Gram matrix or apart."""
    n, d, m, sd, constant = 900, 30, 4, 5.0, 0.5
    rng = np.random.default_rng(8)
    center, gradients = rng.normal(size=(d, 1)), rng.normal(size=(2, d + 1, m))
    gram = noisy(np.diag(np.geomspace(300, 0.1, d if apart else d + 1)), sd, rng)
    given = [Released(np.full((1, 1), n), 1.0), Released(center, 0.1)]
    given += [Released(gram, sd), *[Released(g, 1.0) for g in gradients]]
    facts = ProblemInfo(n, d, m, mu=1.0)
    solver = DPFC(2, intercept=constant, gram_intercept=not apart, shrink=shrink)
    asking = solver.solve(facts)
    next(asking)
    for response in given[:-1]:
        asking.send(response)
    with pytest.raises(StopIteration) as done:
        asking.send(given[-1])

    ridge = ridge_for(facts, sd, None, 0.4 if shrink else None)
    values, vectors = np.linalg.eigh(gram)
    kept = (vectors * np.maximum(values, -ridge / 2)) @ vectors.T
    matrix = shrunk_slowly(gram, sd) if shrink else kept
    if apart:
        matrix = np.block([[matrix, np.zeros((d, 1))], [np.zeros(d), n * constant**2]])
    inverse = np.linalg.inv(matrix + ridge * np.eye(d + 1))
    # 2 is the step of Böhning's bound for softmax
    wanted = -2 * inverse @ gradients.sum(axis=0)
    head = done.value.value
    found = np.vstack([head.weights, head.intercept / constant])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_without_noise_it_is_ridge_regression():
    _, _, gram, sums = problem(np.random.default_rng(3))
    expected = RidgeSolver(gram, 3.0)(center_classes(sums))
    found = shrunk_weights(Released(gram, 0.0), Released(sums, 0.0), 3.0)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("gram_sd", [1e-3, 5.0, 1e4])
@pytest.mark.parametrize("sums_sd", [1e-3, 5.0, 1e4])
def test_whatever_the_noise_the_head_is_bounded_by_the_ridge(gram_sd, sums_sd):
    """(Ĝ + λ)⁻¹ is at most 1/λ, since Ĝ is not negative."""
    rng = np.random.default_rng(4)
    for d, m in ((3, 2), (40, 7), (5, 9)):
        gram = noisy(np.eye(d), gram_sd, rng)
        sums = rng.normal(size=(d, m)) + sums_sd * rng.normal(size=(d, m))
        right = center_classes(sums)
        weights = shrunk_weights(Released(gram, gram_sd), Released(sums, sums_sd), 2.0)
        bound = np.linalg.norm(right, 2) / 2
        assert np.linalg.norm(weights, 2) <= bound * (1 + 1e-9)
        off = np.abs(weights.sum(axis=1)).max()
        assert off <= 1e-9 * abs(sums).max()


@pytest.mark.parametrize(("method", "gain"), [("dp-ls", 0.01), ("dp-fc", 0.005)])
def test_a_method_gains_by_it_on_other_rows(method, gain):
    """Mean over 8 draws of the noise."""
    rng = np.random.default_rng(6)
    x, y, _, _ = problem(rng, 8000)
    facts = ProblemInfo(4000, x.shape[1], 4)

    def accuracy(shrink, seed):
        solver = make_method(method, facts, {"shrink": shrink}).solver
        head = head_of(solver, x[:4000], y[:4000], 4, 1.0, seed)
        return right(head, x[4000:], y[4000:])

    gains = [accuracy(True, seed) - accuracy(False, seed) for seed in range(8)]
    assert np.mean(gains) > gain


@pytest.mark.parametrize("other", [{"ridge": "stein"}, {"error_bars": True}, {}])
def test_what_is_derived_for_the_spectrum_as_it_is_keeps_it(other, monkeypatch):
    """And a matrix that is too wide for its spectrum is solved with a ridge."""
    if not other:
        monkeypatch.setattr("dphead.solvers.least_squares.WIDEST_SHRUNK", 11)
    x, y, _, _ = problem(np.random.default_rng(7), 500, 12)
    heads = [
        head_of(LeastSquares(shrink=shrink, **other), x, y, 4)
        for shrink in (True, False)
    ]
    np.testing.assert_array_equal(heads[0].weights, heads[1].weights)
