"""Without noise each solver is the textbook method: against numpy's and scikit-learn's
own answers.
"""

import numpy as np
import pytest
from core import toy
from fits import head_of, right
from sklearn.linear_model import LogisticRegression

from dphead.solvers import (
    DPFC,
    GradientDescent,
    LeastSquares,
    Newton,
    Prototypes,
)
from dphead.solvers.centering import Centering

N = 500
D = 6
M = 3
X, Y = toy(N, D, M, seed=3, scale=0.3)
X64 = X.astype(float)
HOT = np.eye(M)[Y]
RAW = Centering(0.0, unit_norm=False)
RIDGE = 0.01
# Rows and residuals are on a grid of 1 / 4095 of the largest norm, 500 of each at
# random, and the ridge divides by a hundredth: what is compared agrees to a few
# thousandths of the largest weight.
GRID = 3e-3


def assert_close(weights, wanted):
    np.testing.assert_allclose(
        weights, wanted, rtol=0, atol=GRID * np.abs(wanted).max()
    )


def fit(solver):
    return head_of(solver, X, Y, M, np.inf)


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def loss_of(kind, w):
    z = X64 @ w
    if kind == "softmax":
        return -np.log(softmax(z)[np.arange(N), Y]).mean()
    if kind == "sigmoid":
        return (np.logaddexp(0, z) - HOT * z).sum(axis=1).mean()
    return 0.5 * ((z - HOT) ** 2).sum(axis=1).mean()


def test_least_squares_solves_the_normal_equations():
    a = X64.T @ X64 + RIDGE * N * np.eye(D)
    wanted = np.linalg.solve(a, X64.T @ (HOT - 1 / M))
    assert_close(fit(LeastSquares(ridge=RIDGE, centering=RAW)).weights, wanted)


def test_class_grams_follow_algorithm_3():
    head = fit(LeastSquares(ridge=RIDGE, class_grams=True, alpha=0.3, centering=RAW))
    for j in range(M):
        rows = X64[j == Y]
        a = rows.T @ rows + 0.3 * X64.T @ X64 + RIDGE * N * np.eye(D)
        assert_close(head.weights[:, j], np.linalg.solve(a, rows.sum(axis=0)))


def test_newton_steps_are_newtons():
    w = np.zeros((D, M))
    for _ in range(3):
        p = 1 / (1 + np.exp(-X64 @ w))
        for j in range(M):
            h = (X64 * (p[:, j] * (1 - p[:, j]))[:, None]).T @ X64 + RIDGE * N * np.eye(
                D
            )
            w[:, j] -= np.linalg.solve(h, X64.T @ (p[:, j] - HOT[:, j]))
    head = fit(Newton(steps=3, ridge=RIDGE, centering=RAW))
    assert_close(head.weights, w)


def test_gradient_descent_is_gradient_descent():
    w = np.zeros((D, M))
    velocity = 0.0
    for _ in range(10):
        gradient = X64.T @ (softmax(X64 @ w) - HOT) / N + 0.01 * w
        velocity = 0.5 * velocity + gradient
        w = w - 0.7 * velocity
    solver = GradientDescent(
        steps=10, learning_rate=0.7, momentum=0.5, weight_decay=0.01, centering=RAW
    )
    assert_close(fit(solver).weights, w)


def test_adam_is_adam():
    w = np.zeros((D, M))
    first = 0.0
    second = 0.0
    for t in range(1, 9):
        gradient = X64.T @ (softmax(X64 @ w) - HOT) / N
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        w = w - 0.1 * (first / (1 - 0.9**t)) / (
            np.sqrt(second / (1 - 0.999**t)) + 1e-12
        )
    solver = GradientDescent("adam", steps=8, learning_rate=0.1, centering=RAW)
    assert_close(fit(solver).weights, w)


@pytest.mark.parametrize("average", ["mean", "ema"])
def test_averages_of_the_iterates(average):
    w = np.zeros((D, M))
    average_w = np.zeros((D, M))
    for t in range(12):
        w = w - 0.7 * X64.T @ (softmax(X64 @ w) - HOT) / N
        decay = t / (t + 1) if average == "mean" else min(0.9999, (1 + t) / (10 + t))
        average_w = decay * average_w + (1 - decay) * w
    solver = GradientDescent(
        steps=12, learning_rate=0.7, momentum=0.0, average=average, centering=RAW
    )
    assert_close(fit(solver).weights, average_w)


def test_dpfc_reaches_the_maximum_likelihood():
    reference = LogisticRegression(
        C=1e6, fit_intercept=False, max_iter=5000, tol=1e-10
    ).fit(X, Y)
    best = loss_of("softmax", reference.coef_.T.astype(float))
    ours = loss_of("softmax", fit(DPFC(steps=300, ridge=1e-6, centering=RAW)).weights)
    assert best - 1e-6 <= ours <= best + 0.01


def test_one_dpfc_step_of_squared_loss_is_least_squares():
    one = fit(DPFC(steps=1, ridge=RIDGE, loss="squared", centering=RAW)).weights
    a = X64.T @ X64 + RIDGE * N * np.eye(D)
    assert_close(one, np.linalg.solve(a, X64.T @ HOT))


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
def test_prototypes_are_class_means(rule):
    head = fit(Prototypes(rule, centering=RAW))
    means = np.stack([X64[j == Y].mean(axis=0) for j in range(M)])
    if rule == "cosine":
        middle = means.mean(axis=0)
        arms = means - middle
        cosines = (X64 - middle) @ (arms.T / np.linalg.norm(arms, axis=1))
        wanted = cosines.argmax(axis=1)
    else:
        wanted = ((X64[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert np.mean(head.scores(X).argmax(axis=1) == wanted) > 0.99


@pytest.mark.parametrize("epsilon", [3.0, np.inf])
def test_prototypes_divide_a_common_and_a_rare_class_in_the_middle(epsilon):
    """A boundary through the mean of all rows would halve the common class."""
    rng = np.random.default_rng(0)
    y = (np.arange(4200) < 200).astype(int)
    x = rng.normal(0.1, 0.1, (4200, 16)).astype(np.float32)
    x = np.where(y[:, None] == np.arange(16), x + 0.5, x)
    head = head_of(Prototypes(), x, y, 2, epsilon)
    assert min(right(head, x[y == c], y[y == c]) for c in (0, 1)) > 0.9
