"""Components and regressions from the releases of their definitions."""

import numpy as np
import pytest
from definitions import per_example
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge

from dphead.data.arrays import ArrayRows
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo, Response
from dphead.solvers.components import PrincipalComponents
from dphead.solvers.regression import RidgeRegression

N, D = 400, 6
SOLVERS = [PrincipalComponents(2), RidgeRegression(), RidgeRegression(mean_share=0.0)]
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=repr)


def data(seed=0):
    """Rows of norms below and above 1, their first column's half the last's."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(N, D)) * [
        0.6,
        0.4,
        0.2,
        0.1,
        0.1,
        0.0,
    ]
    x[:, -1] = 0.3 + 0.5 * x[:, 0]
    return x.astype(np.float32)


def by_definition(solver, x):
    """The head of sums that are added one row at a time, in real numbers."""
    facts = ProblemInfo(*x.shape, 1)
    planned = {release.label: release for release in solver.plan(facts)}
    steps = solver.solve(facts)
    answer = None
    while True:
        try:
            ask = next(steps) if answer is None else steps.send(answer)
        except StopIteration as stop:
            return stop.value
        clip = planned[ask.label].clip_norm
        rows = [
            per_example(
                ask.query,
                ask.params,
                row,
                0,
                clip,
            )
            for row in x
        ]
        answer = Response(np.sum(rows, axis=0), 0.0)


def fitted(solver, x, epsilon=1e9, seed=0):
    """The head of a fit of rows that all count."""
    facts = ProblemInfo(*x.shape, 1)
    plan = make_plan(solver, facts, epsilon=epsilon, delta=1e-5)
    rows = ArrayRows(x, np.zeros(len(x), np.int64))
    return fit_head(
        solver,
        rows,
        facts,
        plan,
        Run(noise=NoiseSource(seed)),
    ).head


@each_solver
def test_a_fit_with_hardly_any_noise_is_that_of_the_definitions(solver):
    """Both clip at the row norm; without noise nothing is clipped."""
    x = data()
    assert (
        np.linalg.norm(
            x,
            axis=1,
        )
        > 1.0
    ).sum() > 20
    ours, theirs = fitted(solver, x), by_definition(solver, x)
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=4e-3)
    np.testing.assert_allclose(ours.intercept, theirs.intercept, atol=4e-3)


def test_without_noise_components_are_scikit_learns():
    x = 3 * data()
    ours = fitted(PrincipalComponents(3), x, np.inf)
    theirs = PCA(3).fit(x)
    likeness = np.abs(theirs.components_ @ ours.weights)
    np.testing.assert_allclose(likeness, np.eye(3), atol=2e-3)
    expected = theirs.explained_variance_ * (N - 1) / N
    np.testing.assert_allclose(ours.variances[:3], expected, rtol=1e-3)
    np.testing.assert_allclose(ours.transform.center, theirs.mean_, atol=1e-3)


def test_without_noise_the_regression_is_scikit_learns():
    x = data()
    ours = fitted(RidgeRegression(ridge=0.01), x, np.inf)
    theirs = Ridge(0.01 * N).fit(
        x[:, :-1],
        x[:, -1],
    )
    np.testing.assert_allclose(
        ours.weights[:, 0],
        theirs.coef_,
        atol=2e-3,
    )
    np.testing.assert_allclose(ours.intercept[0], theirs.intercept_, atol=2e-3)


@each_solver
def test_a_count_a_mean_and_a_gram_matrix_are_all_that_is_released(solver):
    facts = ProblemInfo(N, D, 1)
    plan = make_plan(solver, facts, epsilon=1.0, delta=1e-5)
    labels = [spec.label for spec in plan.specs]
    of_the_mean = ["rows that count", "mean"] if solver.mean_share else []
    assert labels == [*of_the_mean, "gram"]
    norm = np.sqrt(2.0) if isinstance(solver, RidgeRegression) else 1.0
    norms = [spec.clip_norm for spec in plan.specs if spec.label != "rows that count"]
    assert norms == pytest.approx([norm] * len(norms))
    shares = np.array([1 / spec.noise_multiplier**2 for spec in plan.specs])
    assert shares[-1] / shares.sum() == pytest.approx(1 - solver.mean_share)
    assert 0.99 < plan.epsilon_spent() <= 1.0
