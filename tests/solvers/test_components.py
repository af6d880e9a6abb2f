"""Components and regressions from the releases of their definitions."""

from functools import cache

import numpy as np
import pytest
from core import integer_sum
from definitions import per_example
from fits import answered, head_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, Ridge

from dphead.fit.head_file import open_head, save_head
from dphead.planning.plan import make_plan
from dphead.privacy.accounting import RELATIONS
from dphead.privacy.contract import Released
from dphead.solvers.base import ProblemInfo
from dphead.solvers.centering import typical_length
from dphead.solvers.components import PrincipalComponents
from dphead.solvers.head import float_rows
from dphead.solvers.regression import RidgeRegression
from dphead.sums.cpu import CpuSums

N, D = 400, 6
SOLVERS = [
    PrincipalComponents(2),
    PrincipalComponents(2, row_norm=1.0),
    RidgeRegression(),
    RidgeRegression(row_norm=1.0),
    RidgeRegression(mean_share=0.0),
]
UNIT = [PrincipalComponents(2), RidgeRegression(target_weight=0.5)]
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=repr)
MUCH_NOISE = 0.5  # a mu, for N rows of D features


@pytest.fixture(autouse=True, scope="module")
def _few_features_take_steps():
    """Take the steps of wide rows on the short rows of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dphead.solvers.regression._FEWEST_FEATURES", 1)
        yield


def data(seed=0):
    """Rows of norms below and above 1, their first column's half the last's."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(N, D)) * [0.6, 0.4, 0.2, 0.1, 0.1, 0.0]
    x[:, -1] = 0.3 + 0.5 * x[:, 0]
    return x.astype(np.float32)


def exchange(solver, x, mu=1.0):
    """What a solver asks that is told exact sums, and its head."""
    facts = ProblemInfo(*x.shape, 1, mu=mu)
    planned = iter(solver.plan(facts))

    def exact(ask):
        release = next(planned)
        assert ask.label == release.label
        how = (ask.statistic, ask.params)
        rows = [per_example(*how, row, 0, release.clip_norm) for row in x]
        return Released(np.sum(rows, axis=0), 0.0)

    return answered(solver, facts, exact)


def fitted(solver, x, epsilon=1e9):
    """The head of a fit of rows that all count."""
    return head_of(solver, x, np.zeros(len(x), np.int64), 1, epsilon)


@each_solver
def test_a_fit_with_hardly_any_noise_is_that_of_the_definitions(solver):
    """Both clip at the row norm; without noise nothing is clipped."""
    x = data()
    assert (np.linalg.norm(x, axis=1) > 1.0).sum() > 20
    ours, theirs = fitted(solver, x), exchange(solver, x)[1]
    assert_allclose(ours.weights, theirs.weights, atol=4e-3)
    assert_allclose(ours.intercept, theirs.intercept, atol=4e-3)


def unit_data(seed=0):
    """Rows of norm 1 around a mean of length 0.88, and a target in [-1, 1]."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(N, D)) * [0.5, 0.3, 0.3, 0.2, 0.1, 0.1] + 0.5
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    target = np.clip(x @ [1.0, -1.0, 0.5, 0.0, 0.0, 0.0], -1, 1)
    return x.astype(np.float32), target.astype(np.float32)


def rows_for(solver, x, target):
    """The rows of a fit: a regression's have the target as their last column."""
    if isinstance(solver, PrincipalComponents):
        return x
    return np.column_stack([x, target * solver.column_size]).astype(np.float32)


@cache
def scaled(solver, mu=1.0):
    """Unit rows, the last request for their sum, its clip norm, and the head."""
    rows = rows_for(solver, *unit_data())
    (*_, ask), head = exchange(solver, rows, mu)
    clip = solver.plan(ProblemInfo(*rows.shape, 1, mu=mu))[-1].clip_norm
    return rows, ask, clip, head


def test_with_much_noise_a_regression_follows_clipped_residuals():
    """The first residuals are those of the mean. A step without noise brings the head
    near least squares, although most residuals are clipped.
    """
    solver, (x, target) = RidgeRegression(), unit_data()
    rows = rows_for(solver, x, target)
    asks, head = exchange(solver, rows, MUCH_NOISE)
    assert [ask.label for ask in asks[:3]] == ["row count", "mean", "gram"]
    assert {ask.label for ask in asks[3:]} == {"residuals"}
    assert asks[2].params.transform.scale[D] == 0  # the target is not in it
    first = asks[3].params
    z = np.pad(float_rows(first.transform, rows), ((0, 0), (0, 1)), constant_values=0.5)
    # rows have 20 bits, and the target's column is an eighth of the target
    residuals = z @ first.weights[:, 0].astype(float) - 1
    assert_allclose(residuals, first.transform.center[D] - target, atol=3e-5)
    plain = LinearRegression().fit(x, target)
    left = np.var(target - head.scores(x)[:, 0]) / np.var(target)
    assert left < 1.05 - plain.score(x, target)
    for other in (RidgeRegression(ridge=0.1), RidgeRegression(row_norm=1.0)):
        assert exchange(other, rows, MUCH_NOISE)[0][-1].label == "gram"


def test_wide_rows_of_a_regression_share_the_budget_with_the_steps():
    facts = ProblemInfo(N, D, 1)
    plan = make_plan(RidgeRegression(), facts, epsilon=0.5, delta=1e-5)
    assert 0.499 < plan.epsilon_spent() <= 0.5
    count, mean, gram, *steps = plan.specs
    assert len({step.noise_multiplier for step in steps}) == 1
    norms = [step.clip_norm / np.hypot(1, 0.5) for step in steps]
    assert_allclose(norms, [0.5, 0.5, 0.3, 0.3, 0.2, 0.2])
    assert gram.clip_norm == 1
    parts = [sum(s.noise_multiplier**-2 for s in p) for p in ([count, mean], steps)]
    total = sum(s.noise_multiplier**-2 for s in plan.specs)
    assert_allclose(np.array(parts) / total, [0.1, 0.9 * 0.6])


def test_the_typical_length_is_the_root_of_the_mean_squared_distance():
    x, _ = unit_data()
    mean = x.mean(axis=0, dtype=np.float64)
    assert 0.85 < np.linalg.norm(mean) < 0.9
    squares = [float(np.sum((row - mean) ** 2)) for row in x.astype(np.float64)]
    assert typical_length(mean) == pytest.approx(np.sqrt(sum(squares) / N), rel=1e-6)
    assert typical_length(mean * 0) == 1
    unit = mean / np.linalg.norm(mean)
    assert typical_length(unit * 0.9999) == 0.1
    assert typical_length(unit * 1.01) == 1  # the mean of no unit rows


@pytest.mark.parametrize("solver", UNIT, ids=repr)
def test_training_and_prediction_use_one_transform(solver, tmp_path):
    """Solved again from rows that the training transform made, and used on new rows
    that it made: the head says the same, and so does its copy from a file.
    """
    rows, ask, clip, head = scaled(solver)
    new, transform = unit_data(1)[0], ask.params.transform
    unit = solver.centered_clip * typical_length(transform.center[:D])
    assert_allclose(transform.scale[:D], 1 / unit)
    assert (transform.scale[D:] == 1).all()  # the target's column
    z = float_rows(transform, rows)
    z *= np.minimum(1, clip / np.linalg.norm(z, axis=1, keepdims=True))
    assert np.sum(np.linalg.norm(z, axis=1) > 0.999 * clip) > 20  # many are clipped
    more = np.zeros((N, rows.shape[1] - D), np.float32)
    told = float_rows(transform, np.column_stack([new, more]))[:, :D]
    gram = z.T @ z
    if isinstance(solver, PrincipalComponents):
        values, vectors = np.linalg.eigh(gram)
        ours = head.scores(new)
        theirs = unit * told @ vectors[:, [-1, -2]]
        assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-5)
        assert_allclose(head.variances, unit**2 * values[::-1] / N, atol=1e-7)
    else:
        ridge = 1e-4 * N / unit**2
        w = np.linalg.solve(gram[:D, :D] + ridge * np.eye(D), gram[:D, D])
        theirs = (told @ w + transform.center[D]) / solver.column_size
        assert_allclose(head.scores(new)[:, 0], theirs, atol=1e-5)
    names = [str(i) for i in range(head.weights.shape[1])]
    save_head(tmp_path, head, {"class_names": names, "feature_space": ""})
    assert_array_equal(open_head(tmp_path)[0].scores(new), head.scores(new))


HOSTILE = ["opposite", "along", "random", "nan", "inf"]
LENGTHS = [1e-45, 1e-30, 1e-3, 1.0, 7.0, 1e15, 3e38]
hostile_row = st.tuples(
    st.sampled_from(HOSTILE), st.sampled_from(LENGTHS), st.integers(0, 5)
)


@pytest.mark.parametrize(
    "solver, mu", [*((one, 1.0) for one in UNIT), (RidgeRegression(), MUCH_NOISE)]
)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=20)
@given(first=hostile_row, second=hostile_row)
def test_no_hostile_row_moves_a_scaled_sum_by_more_than_its_sensitivity(
    solver, mu, relation, first, second, compiled
):
    """In whole numbers, with no slack. The last row is there or not, or is replaced."""
    rows, ask, clip, _ = scaled(solver, mu)
    assert ask.label == ("gram" if mu == 1 else "residuals")
    center = ask.params.transform.center

    def last(kind, length, seed):
        way = {"opposite": -center, "along": center}.get(
            kind, np.random.default_rng(seed).normal(size=rows.shape[1])
        )
        row = np.clip(length * way / np.linalg.norm(way), -3.4e38, 3.4e38)
        row[seed] = {"nan": np.nan, "inf": np.inf}.get(kind, row[seed])
        return np.vstack([rows[:5], row.astype(np.float32)])

    here, there = last(*first), last(*second)
    y, y2 = np.zeros(6, int), np.zeros(6, int)
    if relation != "replace_one":
        there, y2[-1] = here, -1
    way = CpuSums(compiled)
    a, b = (
        integer_sum(ask.statistic, ask.params, *pair, clip, block_sum=way)
        for pair in ((here, y), (there, y2))
    )
    moved = (a - b).ravel().astype(object)
    assert moved @ moved <= ask.statistic.sensitivity_sq(relation, clip, 0.0)


def test_without_noise_components_are_scikit_learns():
    x = 3 * data()
    ours = fitted(PrincipalComponents(3), x, np.inf)
    theirs = PCA(3).fit(x)
    likeness = np.abs(theirs.components_ @ ours.weights)
    assert_allclose(likeness, np.eye(3), atol=2e-3)
    expected = theirs.explained_variance_ * (N - 1) / N
    assert_allclose(ours.variances[:3], expected, rtol=1e-3)
    assert_allclose(ours.transform.center, theirs.mean_, atol=1e-3)


def test_without_noise_the_regression_is_scikit_learns():
    x = data()
    ours = fitted(RidgeRegression(ridge=0.01), x, np.inf)
    theirs = Ridge(0.01 * N).fit(x[:, :-1], x[:, -1])
    assert_allclose(ours.weights[:, 0], theirs.coef_, atol=2e-3)
    assert_allclose(ours.intercept[0], theirs.intercept_, atol=2e-3)


@each_solver
def test_a_count_a_mean_and_a_gram_matrix_are_all_that_is_released(solver):
    facts = ProblemInfo(N, D, 1)
    # little noise, so that a regression takes no steps on residuals
    plan = make_plan(solver, facts, epsilon=4.0, delta=1e-5)
    labels = [spec.label for spec in plan.specs]
    of_the_mean = ["row count", "mean"] if solver.mean_share else []
    assert labels == [*of_the_mean, "gram"]
    norm = np.sqrt(2.0) if isinstance(solver, RidgeRegression) else 1.0
    norms = [spec.clip_norm for spec in plan.specs if spec.label != "row count"]
    assert norms == pytest.approx([norm] * len(norms))
    shares = np.array([1 / spec.noise_multiplier**2 for spec in plan.specs])
    assert shares[-1] / shares.sum() == pytest.approx(1 - solver.mean_share)
    assert 3.96 < plan.epsilon_spent() <= 4.0
