"""Sensitivity: what one row can move the computed sum, and that the bounds are reached (ALGORITHMS.md §1 and §5)."""

import math

import numpy as np
import pytest
from core import NAMES, QUERIES, CompiledGradient, D, M, clipped_sum, one_block, toy
from dphead.privacy.mechanism import numpy_block_sum
from dphead.privacy.sums import slack
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.analysis.definitions import per_example
from dphead.privacy.accounting import RELATIONS
from dphead.privacy.statistics import (
    ChannelMoment,
    ClassCounts,
    ClassGrams,
    ClassSums,
    CorrectCount,
    Gradient,
    Gram,
    Params,
    SigmoidHessians,
)
from dphead.privacy.transform import RowTransform
from dphead.solvers.base import LinearHead

CENTER = np.array([0.5, -1.0, 0.25, 2.0], np.float32)
SCALE = np.array([1.0, 3.0, 0.5, 1e-3], np.float32)
TRANSFORMS = [
    RowTransform(), RowTransform(True), RowTransform(True, CENTER), RowTransform(False, CENTER, SCALE),
    RowTransform(False, None, np.full(D, 1e-20, np.float32)), RowTransform(True, CENTER, SCALE, 0.5),
    RowTransform(append=1.0), RowTransform(True, append=30.0),
]  # fmt: skip
SIZES = [0.0, 1e-45, 1e-42, 2e-23, 1e-19, 1e-15, 1e-3, 1.0, 7.0, 1e4, 1e15, 4e18, 1e20, 1e30, 3.4e38]
SHAPES = ["ones", "normal", "axis", "signs"]
row = st.tuples(st.sampled_from(SHAPES), st.sampled_from(SIZES), st.integers(0, 5), st.integers(-1, M))
bad_row = st.tuples(st.sampled_from(["nan", "inf", "-inf"]), st.just(1.0), st.integers(0, 5), st.integers(-1, M))
a_row = st.one_of(row, row, row, bad_row)
clipped_row = st.tuples(
    st.sampled_from(["axis", *SHAPES]), st.sampled_from([7.0, 1e4, 1e15]), st.integers(0, 5), st.integers(0, M - 1)
)
some_rows = st.tuples(st.lists(a_row, max_size=4), st.one_of(clipped_row, clipped_row, a_row))


def make(spec) -> tuple[np.ndarray, int]:
    shape, size, seed, label = spec
    rng = np.random.default_rng(seed)
    if shape in ("nan", "inf", "-inf"):
        x = rng.standard_normal(D)
        x[seed % D] = float(shape)
    else:
        x = {"ones": np.ones(D), "normal": rng.standard_normal(D), "axis": np.eye(D)[seed % D],
             "signs": rng.choice([-1.0, 1.0], D)}[shape]  # fmt: skip
        x = np.clip(x * size, -3.4e38, 3.4e38)
    return x.astype(np.float32), label


def neighbours(specs, other, relation):
    """Two neighbouring data sets over the same slots: the last row is there or not, or is replaced."""
    rows = [make(s) for s in specs]
    x, y = np.stack([r[0] for r in rows]), np.array([r[1] for r in rows])
    x2, y2 = x.copy(), y.copy()
    if relation == "replace_one":
        kind, spec = other
        if kind == "opposite":
            x2[-1] = -x[-1]
        elif kind == "turned":  # orthogonal, for a row along an axis
            x2[-1] = np.roll(x[-1], 1)
        elif kind == "flipped label":
            y2[-1] = (y[-1] + 1) % M
        else:
            x2[-1], y2[-1] = make(spec)
    else:
        y2[-1] = -1  # the slot is empty
    return x, y, x2, y2


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize("relation", RELATIONS)
@settings(max_examples=40)
@given(
    transform=st.sampled_from(TRANSFORMS),
    specs=some_rows.map(lambda rows: [*rows[0], rows[1]]),
    other=st.tuples(st.sampled_from(["opposite", "turned", "flipped label", "any"]), a_row),
    clip_norm=st.sampled_from([1e-6, 0.03, 1.0, 1e3]), size=st.sampled_from([0.0, 1.0, 50.0, 1e19, 1e36]),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_one_row_moves_the_computed_sum_by_at_most_the_sensitivity(
    relation, query, transform, specs, other, clip_norm, size, seed
):
    """The last row is the one that differs: mostly one that is clipped, so that most examples come near the bound."""
    x, y, x2, y2 = neighbours(specs, other, relation)
    width = transform.width(D)
    if isinstance(query, ChannelMoment) and query.n_channels and width % query.n_channels:
        return
    weights = (size * np.random.default_rng(seed).standard_normal((width, M))).clip(-3e38, 3e38).astype(np.float32)
    params = Params(transform, weights)
    a, b = clipped_sum(query, params, x, y, clip_norm), clipped_sum(query, params, x2, y2, clip_norm)
    assert np.isfinite(a).all() and np.isfinite(b).all()
    bound = query.sensitivity(clip_norm, relation, transform.append)
    assert np.linalg.norm(a - b) <= bound * (1 + slack(len(x), width + M, a.size, 0.0))


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize(
    "size, weight, margin", [(2e-23, 1e36, 0), (0.9e-19, 1e35, 0), (5e17, 0.0, 45), (5e17, 0.0, 52)]
)
def test_norms_that_underflow_are_clipped(backend, size, weight, margin):
    """Squares of tiny numbers vanish in float32 (and XLA flushes denormals): the product of norms must not be 0."""
    from dphead.sums.jax import jax_block_sum

    block_sum = numpy_block_sum if backend == "numpy" else jax_block_sum
    d = 1000
    x, y = np.full((1, d), size, np.float32), np.array([0])
    weights = np.full((d, M), weight, np.float32)
    if margin:  # softmax that is nearly certain: residuals of 1e-20 or 1e-23 against a row of norm 1.6e19
        weights[:, 0] = margin / (size * d)
    for query in (Gradient(M, "squared"), Gradient(M), Gradient(M, "sigmoid"), CompiledGradient(M)):
        for clip_norm in (1e-6, 1e-3, 1.0):
            block, keep = one_block(x, y)
            total = block_sum(query, Params(weights=weights), block, keep, clip_norm, np.zeros((d, M)))
            assert np.linalg.norm(np.asarray(total)) <= clip_norm * (1 + slack(1, d + M, d * M, 0.0))


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@settings(max_examples=60)
@given(
    transform=st.sampled_from(TRANSFORMS), specs=st.lists(a_row, min_size=1, max_size=5),
    clip_norm=st.sampled_from([1e-3, 1.0, 100.0]), seed=st.integers(0, 5),
)  # fmt: skip
def test_the_fast_sum_is_the_sum_of_the_definition(query, transform, specs, clip_norm, seed):
    """Tolerance: float32 rounding of a row (4 (d + m) units, twice for a product), and of its scores z = xW, whose
    error is d units of ||x|| ||W|| and moves the residual by as much, at most by all of it."""
    rows = [
        make(s) for s in specs if s[1] not in (1e-15, 4e18)
    ]  # at the edges of zero and of overflow the two may differ
    width = transform.width(D)
    if not rows or (isinstance(query, ChannelMoment) and query.n_channels and width % query.n_channels):
        return
    weights = np.random.default_rng(seed).standard_normal((width, M)).astype(np.float32)
    params = Params(transform, weights)
    x, y = np.stack([r[0] for r in rows]), np.array([r[1] for r in rows])
    slow = [per_example(query, params, xi, int(yi), clip_norm) for xi, yi in zip(x, y, strict=True)]
    fast = clipped_sum(query, params, x, y, clip_norm)
    unit = 2.0**-24
    tolerance = 0.0
    single = query.sensitivity(clip_norm, "zero_out", transform.append)
    for xi, value in zip(x, slow, strict=True):
        score = 0.0
        if isinstance(query, Gradient | SigmoidHessians):
            with np.errstate(all="ignore"):
                norm = float(np.linalg.norm(np.nan_to_num(xi.astype(np.float64)))) * 4 + 40
            norm = min(norm, clip_norm + 40) if query.clips == "features" else norm
            score = min(2.0, 16 * width * unit * norm * float(np.linalg.norm(weights)))
        size = float(np.linalg.norm(value))
        # a transform that subtracts may cancel: its absolute error is units of what was subtracted
        cancelled = 0.0 if transform.center is None else 64 * unit * 10
        tolerance += (size * 200 * unit) + min(single, single * (score + cancelled / min(clip_norm, 1.0)))
    assert np.linalg.norm(fast - np.sum(slow, axis=0)) <= tolerance + 1e-30
    for xi, yi, value in zip(x, y, slow, strict=True):
        if not np.isfinite(xi).all() or not 0 <= yi < M:
            assert not value.any()


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize("transform", [RowTransform(), RowTransform(True, CENTER), RowTransform(append=0.5)])
def test_the_fast_sum_of_ordinary_rows_is_the_definition_closely(query, transform):
    if isinstance(query, ChannelMoment) and query.n_channels and transform.append:
        pytest.skip("channels do not divide the width")
    x, y = toy(300)
    weights = np.random.default_rng(0).standard_normal((transform.width(D), M)).astype(np.float32)
    params = Params(transform, weights)
    slow = sum(per_example(query, params, xi, int(yi), 0.7) for xi, yi in zip(x, y, strict=True))
    np.testing.assert_allclose(clipped_sum(query, params, x, y, 0.7), slow, rtol=0, atol=300 * 3e-7)


def test_padding_and_bad_rows_contribute_exactly_zero_after_a_transform_that_moves_them():
    """A centre moves zero rows off zero, so masking before the transform would count them (defect 13)."""
    transform = RowTransform(False, CENTER, None, 1.0)
    x, y = toy(5)
    bad = np.array([[np.nan, 0, 0, 0], [np.inf, 1, 1, 1], [3.4e38] * 4, [1, 1, 1, 1], [1, 1, 1, 1]], np.float32)
    for query in QUERIES:
        if isinstance(query, ChannelMoment) and query.n_channels:
            continue
        params = Params(transform, np.ones((D + 1, M), np.float32))
        alone = clipped_sum(query, params, x, y)
        mixed = clipped_sum(query, params, np.concatenate([x, bad]), np.concatenate([y, [0, 1, 2, -1, M]]))
        assert np.array_equal(alone, mixed)
        block, keep = one_block(x, y)
        block.x[5:] = 7.0  # padding that is not even zero
        block.y[5:] = 0
        assert np.array_equal(alone, numpy_block_sum(query, params, block, keep, 1.0, np.zeros(alone.shape)))
        nothing = clipped_sum(query, params, bad, np.array([0, 1, 2, -1, M]))
        assert not nothing.any()


def test_a_row_counts_zero_when_its_squared_norm_overflows_before_or_after_the_transform():
    big = np.full((1, D), 1e30, np.float32)
    for transform in TRANSFORMS:
        assert not clipped_sum(ClassSums(M), Params(transform), big, np.array([0])).any()
    blown = RowTransform(False, None, np.full(D, 1e30, np.float32))
    assert not clipped_sum(ClassSums(M), Params(blown), np.ones((1, D), np.float32), np.array([0])).any()


@pytest.mark.parametrize("append", [math.nan, math.inf, -math.inf, 1e-300, 1e200])
def test_a_constant_that_would_spoil_the_sensitivity_is_refused(append):
    with pytest.raises(ValueError, match="append"):
        RowTransform(append=append)


def test_a_count_of_correct_rows_is_the_accuracy_of_the_head():
    """As `LinearHead.scores` decides, after the same transform; ties, bad labels and bad rows are not correct."""
    x, y = toy(300)
    y[:5] = [-1, M, 0, 1, 2]
    x[2:5] = [[np.nan] * D, [np.inf] * D, [0] * D]
    transform = RowTransform(True, np.full(D, 0.1, np.float32), None, 0.5)
    weights = np.random.default_rng(3).normal(size=(D + 1, M)).astype(np.float32)
    head = LinearHead(weights[:-1], 0.5 * weights[-1], transform)
    with np.errstate(invalid="ignore"):
        expected = np.sum((head.scores(x).argmax(axis=1) == y)[4:])
    assert clipped_sum(CorrectCount(M), Params(transform, weights), x, y)[0, 0] == expected
    assert clipped_sum(CorrectCount(M), Params(weights=np.zeros((D, M))), x, y)[0, 0] == 0


# --- the bounds are reached -------------------------------------------------------------------------------------

E = np.eye(D)
THETA = 0.04
LEFT = math.cos(THETA) * E[0] - math.sin(THETA) * E[1]
RIGHT = math.cos(THETA) * E[0] + math.sin(THETA) * E[1]
HUGE = 1e6


def steer(*signs, bias=None):
    """Weights that decide a class by the sign of the second coordinate alone (columns times it), or of the constant."""
    w = np.zeros((D if bias is None else D + 1, len(signs)))
    w[1 if bias is None else -1] = HUGE * np.array(signs)
    return w


# query, relation, append, (row, label), (row, label) or None, weights
WORST = [
    (ChannelMoment(M), "zero_out", 0, (E[0], 0), None, None),
    (ChannelMoment(M), "replace_one", 0, (E[0], 0), (-E[0], 0), None),
    (ChannelMoment(M, 2), "zero_out", 0, (E[0], 0), None, None),
    (ChannelMoment(M, 2), "replace_one", 0, (9 * E[0], 0), (9 * E[1], 0), None),
    (ChannelMoment(M, 1, 2), "replace_one", 0, (9 * (E[0] + E[1]), 0), (-9 * (E[0] + E[1]), 0), None),
    (ChannelMoment(M, 2, 2), "replace_one", 0, (9 * E[0], 0), (9 * E[3], 0), None),
    (Gram(M), "zero_out", 0, (5 * E[0], 0), None, None),
    (Gram(M), "zero_out", 0.7, (5 * E[0], 0), None, None),
    (Gram(M), "replace_one", 0, (5 * E[0], 0), (5 * E[1], 0), None),
    (ClassGrams(M), "zero_out", 0.7, (5 * E[0], 0), None, None),
    (ClassGrams(M), "replace_one", 0.7, (5 * E[0], 0), (5 * E[0], 1), None),
    (SigmoidHessians(M), "zero_out", 0.7, (5 * E[0], 0), None, np.zeros((D + 1, M))),
    (SigmoidHessians(M), "replace_one", 0, (5 * E[0], 0), (5 * E[1], 0), np.zeros((D, M))),
    (ClassSums(M), "zero_out", 0.7, (5 * E[0], 0), None, None),
    (ClassSums(M), "replace_one", 0, (5 * E[0], 0), (-5 * E[0], 0), None),
    (ClassSums(M), "replace_one", 0.7, (5 * E[0], 0), (-5 * E[0], 0), None),
    (ClassSums(M), "replace_one", 3.0, (5 * E[0], 0), (5 * E[0], 1), None),
    (ClassCounts(M), "zero_out", 0, (E[0], 0), None, None),
    (ClassCounts(M), "replace_one", 0, (E[0], 0), (E[0], 1), None),
    (CorrectCount(M), "zero_out", 0, (E[0], 0), None, np.eye(D, M)),
    (CorrectCount(M), "replace_one", 0, (E[0], 0), (E[0], 1), np.eye(D, M)),
    (Gradient(M), "zero_out", 0, (9 * E[0], 0), None, np.zeros((D, M))),
    (Gradient(M), "zero_out", 0.7, (9 * E[0], 0), None, np.zeros((D + 1, M))),
    (Gradient(M), "replace_one", 0, (9 * E[0], 0), (-9 * E[0], 0), np.zeros((D, M))),
    (Gradient(M, "sigmoid"), "replace_one", 0, (9 * E[0], 0), (-9 * E[0], 0), np.zeros((D, M))),
    (Gradient(M, "squared"), "replace_one", 0, (9 * E[0], 0), (-9 * E[0], 0), np.zeros((D, M))),
    (Gradient(M, "softmax", "features"), "zero_out", 0, (9 * RIGHT, 0), None, steer(-1, 1, 0)),
    (Gradient(M, "softmax", "features"), "zero_out", 0.7, (9 * E[0], 0), None, steer(-1, 1, 0, bias=True)),
    (Gradient(M, "softmax", "features"), "replace_one", 0, (9 * RIGHT, 0), (9 * LEFT, 1), steer(-1, 1, 0)),
    (Gradient(M, "sigmoid", "features"), "zero_out", 0, (9 * RIGHT, 0), None, steer(-1, 1, 1)),
    (Gradient(M, "sigmoid", "features"), "zero_out", 0.7, (9 * E[0], 0), None, steer(-1, 1, 1, bias=True)),
    (Gradient(M, "sigmoid", "features"), "replace_one", 0, (9 * RIGHT, 0), (-9 * LEFT, 0), steer(-1, 1, 1)),
    (Gradient(M, "sigmoid", "features"), "replace_one", 0.1, (9 * E[0], 0), (-9 * E[0], 0), steer(-1, 1, 1, bias=True)),
]  # fmt: skip
WORST += [
    (CompiledGradient(M, "softmax", q.clip), *case) for q, *case in WORST if getattr(q, "loss", None) == "softmax"
]


@pytest.mark.parametrize("query, relation, append, a, b, weights", WORST, ids=lambda v: getattr(v, "name", None))
@pytest.mark.parametrize("clip_norm", [1.0, 0.1])
def test_a_worst_case_reaches_the_sensitivity(query, relation, append, a, b, weights, clip_norm):
    """Sigmoid and softmax bounds are suprema, reached as ||W|| grows; the last 0.1 % is the steering angle."""
    append = append * clip_norm  # the cases are homogeneous in (x, b)
    params = Params(RowTransform(append=append), None if weights is None else weights.astype(np.float32) / clip_norm)
    x1, y1 = a[0][None].astype(np.float32), np.array([a[1]])
    x2, y2 = (x1, np.array([-1])) if b is None else (b[0][None].astype(np.float32), np.array([b[1]]))
    moved = np.linalg.norm(
        clipped_sum(query, params, x1, y1, clip_norm) - clipped_sum(query, params, x2, y2, clip_norm)
    )
    bound = query.sensitivity(clip_norm, relation, append)
    assert 0.99 * bound <= moved <= bound * (1 + 1e-5)


def test_every_query_and_relation_has_a_worst_case():
    """add_remove has zero_out's sensitivity in every query."""
    covered = {(q.name, r) for q, r, *_ in WORST}
    for query in QUERIES:
        assert query.sensitivity(0.3, "add_remove", 0.2) == query.sensitivity(0.3, "zero_out", 0.2)
        assert (query.name, "replace_one") in covered or isinstance(query, SigmoidHessians)
        assert any(type(q) is type(query) and r == "zero_out" for q, r, *_ in WORST)


@pytest.mark.parametrize("clip_norm, append", [(1.0, 0.0), (0.5, 0.25), (2.0, 1.0)])
def test_the_table_of_sensitivities(clip_norm, append):
    """ALGORITHMS.md §1, number by number, from its own formulas."""
    r2, m = clip_norm**2 + append**2, M
    r = math.sqrt(r2)
    table = {
        ChannelMoment(m): (clip_norm, 2 * clip_norm),
        ChannelMoment(m, 2): (clip_norm, math.sqrt(2) * clip_norm),
        Gram(m): (r2, math.sqrt(2) * r2),
        ClassGrams(m): (r2, math.sqrt(2) * r2),
        SigmoidHessians(m): (math.sqrt(m) * r2 / 4, math.sqrt(2 * m) * r2 / 4),
        ClassSums(m): (r, max(2 * clip_norm, math.sqrt(2) * r)),
        ClassCounts(m): (1.0, math.sqrt(2)),
        CorrectCount(m): (1.0, 1.0),
        Gradient(m): (clip_norm, 2 * clip_norm),
        Gradient(m, "softmax", "features"): (math.sqrt(2) * r, 2 * math.sqrt(2) * r),
        Gradient(m, "sigmoid", "features"): (math.sqrt(m) * r, 2 * math.sqrt(m) * r),
    }
    for query, (single, replaced) in table.items():
        assert query.sensitivity(clip_norm, "zero_out", append) == pytest.approx(single, rel=1e-12)
        assert query.sensitivity(clip_norm, "add_remove", append) == pytest.approx(single, rel=1e-12)
        assert query.sensitivity(clip_norm, "replace_one", append) == pytest.approx(replaced, rel=1e-12)


def test_a_squared_loss_cannot_bound_its_residual_by_its_features():
    with pytest.raises(ValueError, match="squared"):
        Gradient(M, "squared", "features")


@pytest.mark.parametrize("columns", [[0, 0, 0], [0, 1, 0], [0, 1, 2]])
def test_classes_of_equal_weights_share_one_hessian_product(columns):
    """The shortcut looks at public weights only and changes no Hessian (tolerance: float32 rows against float64)."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((5, 3))[:, columns]
    query, params = SigmoidHessians(3), Params(RowTransform(), weights)
    x, y = rng.standard_normal((128, 5)).astype(np.float32), rng.integers(0, 3, 128)
    fast = query.clipped_sum(params, x, y, np.ones(128, bool), 1.0, np.zeros(query.shape(5)))
    slow = sum(per_example(query, params, x[i], y[i], 1.0) for i in range(128))
    assert query.same(params) == columns
    np.testing.assert_allclose(fast, slow, atol=128 * 2e-7)
