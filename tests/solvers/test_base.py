"""What every solver shares: it asks for its plan in order, ignores everything but
answers, and its head scores rows.
"""

import numpy as np
import pytest
from core import toy
from fits import answered, each_method, head_of, right
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dphead.privacy.contract import Released
from dphead.privacy.transform import RowTransform, clipped_rows
from dphead.solvers import (
    DPFC,
    Auto,
    GradientDescent,
    LeastSquares,
    LinearHead,
    Newton,
    ProblemInfo,
    Prototypes,
)
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.rounding import check_clip, check_intercept

N = 600
D = 8
M = 4
FACTS = ProblemInfo(N, D, M)
X, Y = toy(N, D, M, seed=1)
SOLVERS = each_method(FACTS) | {
    "auto": Auto(),
    "dp-sgd": GradientDescent(steps=30),
    "dp-adam": GradientDescent("adam", steps=30, learning_rate=0.1),
    "sigmoid": GradientDescent(steps=30, loss="sigmoid", intercept=0.5),
    "mean": GradientDescent(steps=30, average="mean"),
    "ema": GradientDescent(steps=30, average="ema", normalize=True),
    "fc sigmoid": DPFC(loss="sigmoid", intercept=0.5, initial_bias=-1.0),
    "fc squared": DPFC(loss="squared"),
    "ls class grams": LeastSquares(class_grams=True, intercept=0.5),
    "newton": Newton(steps=3, intercept=0.5),
    "nearest": Prototypes("nearest"),
    "normalized": DPFC(
        centering=ChannelNormalization(4, 10.0, 50.0, 20.0),
        clip_norm=5.0,
        feature_clip=5.0,
    ),
}


def fit(solver, x=X, y=Y, epsilon=np.inf, seed=1):
    return head_of(solver, x, y, M, epsilon, seed)


@pytest.mark.parametrize("name", SOLVERS)
def test_separable_rows_are_learned_without_noise_and_at_a_large_epsilon(name):
    assert right(fit(SOLVERS[name]), X, Y) > 0.9
    assert right(fit(SOLVERS[name], epsilon=50.0), X, Y) > 0.8


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_asks_for_its_plan_in_order_and_only_sees_answers(name):
    solver = SOLVERS[name]
    rng = np.random.default_rng(0)

    def noise(ask):
        """Which must not crash a solver either."""
        shape = ask.statistic.shape(ask.params.transform.width(D))
        value = rng.standard_normal(shape)
        turned = np.swapaxes(value, -1, -2) if ask.statistic.symmetric else value
        return Released((value + turned) / 2, 1.0)

    asks, head = answered(solver, FACTS, noise)
    asked = [(ask.label, ask.statistic) for ask in asks]
    assert asked == [(p.label, p.statistic) for p in solver.plan(FACTS)]
    assert np.isfinite(head.scores(X)).all()
    assert head.weights.shape == (D, M)
    assert head.intercept.shape == (M,)


@pytest.mark.parametrize("name", ["dp-fc", "dp-ls", "newton", "prototypes", "nearest"])
def test_classes_without_rows_and_empty_data_are_no_error(name):
    for labels in (np.where(Y == M - 1, 0, Y), np.full(N, -1)):
        assert np.isfinite(fit(SOLVERS[name], y=labels, epsilon=1.0).scores(X)).all()


def test_a_head_of_a_loss_that_is_not_defined_is_refused():
    """Its scores would be taken for softmax's, by everything that reads them."""
    with pytest.raises(ValueError, match="got 'new'"):
        LinearHead(np.zeros((D, M)), np.zeros(M), loss="new")


def test_the_center_is_the_mean_of_unit_rows_shrunk_by_its_noise():
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert_allclose(fit(LeastSquares()).transform.center, unit.mean(axis=0), atol=1e-6)
    # noise alone is hardly subtracted, and never more than a mean of unit rows can be
    weak, at_half = (
        [
            np.linalg.norm(fit(LeastSquares(), X, Y, epsilon, seed).transform.center)
            for seed in range(8)
        ]
        for epsilon in (0.001, 0.05)
    )
    assert max(weak) <= 1 + 1e-6
    assert min(at_half) == 0
    assert fit(LeastSquares(centering=Centering(0.0))).transform.center is None


def test_rows_are_scaled_only_if_features_differ_in_size():
    """Powers 1/4 of the mean squares, 100 times apart; of even features nothing is left
    to scale.
    """
    centering = Centering(0.02, scale_share=0.01)
    even = fit(LeastSquares(centering=centering))
    assert even.transform.center is not None
    assert even.transform.scale is None
    wide = X * np.where(np.arange(D) < D // 4, 10, 1).astype(np.float32)
    scale = fit(LeastSquares(centering=centering), x=wide).transform.scale
    assert np.median(scale[D // 4 :]) / np.median(scale[: D // 4]) == pytest.approx(
        10**0.5, rel=0.2
    )


def test_channel_normalization_is_the_papers():
    solver = SOLVERS["normalized"]
    transform = fit(solver).transform
    channels = X.reshape(N, 4, 2)
    mean = channels.mean(axis=(0, 2))
    var = (channels**2).mean(axis=(0, 2)) - mean**2
    assert_allclose(transform.center, np.repeat(mean, 2), rtol=1e-4, atol=1e-5)
    assert_allclose(transform.scale, np.repeat(1 / np.sqrt(var), 2), rtol=1e-4)
    with pytest.raises(ValueError, match="n_channels"):
        ChannelNormalization(3, 1.0, 1.0).plan(FACTS, 1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3000),
    st.floats(1e-3, 1e3),
    st.floats(0.1, 1e6),
    st.integers(0, 2**32),
)
def test_a_constant_is_refused_only_where_it_leaves_nothing_of_any_row(
    d, norm, times, seed
):
    """Public numbers decide.

    Where it is not refused, rows with one large entry still count.
    """
    append = min(times * norm, 1e6)
    facts = ProblemInfo(100, d, 3, mu=1.0)
    rng = np.random.default_rng(seed)
    x = (norm * rng.normal(size=(4, d))).astype(np.float32)
    x[0], x[0, 0] = 0, 10 * norm
    q = clipped_rows(RowTransform(append=append), x, norm).q[:, :-1]
    try:
        check_intercept(facts, append, norm)
    except ValueError as error:
        assert "`intercept` is too large" in str(error)
        assert not q.any()
    else:
        assert q[0].any() or append > 100 * norm


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 1e6), st.sampled_from([0.0, 0.01, 1.0]), st.integers(1, 50))
def test_a_clip_is_refused_only_where_it_leaves_nothing_of_any_row(clip, append, d):
    """Rows of one entry, which is the largest that a row of norm one can have."""
    x = np.eye(d, dtype=np.float32)[:1]
    q = clipped_rows(RowTransform(True, append=append), x, clip).q[0, :d]
    try:
        check_clip(ProblemInfo(100, d, 3, mu=1.0), append, clip, 1.0)
    except ValueError as error:
        if append <= clip:
            assert "round to zero" in str(error)
            assert not q.any()
    else:
        assert append <= clip
        assert q.any() or clip > 8000


def test_a_bias_apart_moves_by_the_square_of_its_clipped_constant():
    facts = ProblemInfo(100, 2, 3, mu=1.0)
    solver = DPFC(
        steps=1,
        learning_rate=1.0,
        ridge=1e-3,
        loss="sigmoid",
        feature_clip=0.5,
        intercept=2.0,
        gram_intercept=False,
        initial_bias=-10.0,
        centering=Centering(0.0, False),
    )
    gradient = np.arange(9.0).reshape(3, 3)
    sums = (Released(value, 0.0) for value in (np.eye(2), gradient))
    _, head = answered(solver, facts, lambda _: next(sums))
    # ridge: in units of the mean Gram matrix of 100 rows
    assert_allclose(head.weights, -gradient[:2] / (1 + 0.1))
    moved = 2.0 * gradient[2] / (100 * 0.5**2 + 0.1)
    assert_allclose(head.intercept, -10.0 - moved)


def test_sizes_of_numpys_integers_are_pythons():
    """Such as y.max() + 1: with 17 classes of int64, Newton's Hessian had a quarter of
    its noise.
    """
    sizes = [np.int64(2000), np.int32(20), np.uint8(17)]
    facts = ProblemInfo(*sizes)
    assert facts == ProblemInfo(2000, 20, 17)
    assert {type(v) for v in (facts.n_rows, facts.n_features, facts.n_classes)} == {int}
    assert [r.statistic for r in Newton().plan(facts)] == [
        r.statistic for r in Newton().plan(ProblemInfo(2000, 20, 17))
    ]
    with pytest.raises(TypeError):
        ProblemInfo(2000.0, 20, 17)
