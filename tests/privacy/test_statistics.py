"""Sensitivity: how far one row moves the sum of integers, in integers, and that the
bounds are reached.
"""

import math

import numpy as np
import pytest
from core import (
    NAMES,
    QUERIES,
    D,
    M,
    clipped_sum,
    integer_sum,
    sensitivity,
    toy,
)
from definitions import per_example
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.privacy import statistics
from dphead.privacy.accounting import RELATIONS
from dphead.privacy.query import Params
from dphead.privacy.statistics import (
    ChannelMoment,
    ClassCorrectCounts,
    ClassCounts,
    ClassGrams,
    ClassSums,
    CorrectCounts,
    Gradient,
    Gram,
    RowCounts,
    SigmoidHessians,
)
from dphead.privacy.transform import RowTransform, transformed
from dphead.solvers.head import LinearHead
from dphead.sums.cpu import CpuSums

CENTER = np.array([0.5, -1.0, 0.25, 2.0], np.float32)
SCALE = np.array([1.0, 3.0, 0.5, 1e-3], np.float32)
TRANSFORMS = [
    RowTransform(),
    RowTransform(True),
    RowTransform(True, CENTER),
    RowTransform(False, CENTER, SCALE),
    RowTransform(False, None, np.full(D, 1e-20, np.float32)),
    RowTransform(True, CENTER, SCALE, 0.5),
    RowTransform(append=1.0),
    RowTransform(True, append=30.0),
]
SIZES = [
    0.0,
    1e-45,
    1e-42,
    2e-23,
    1e-19,
    1e-15,
    1e-3,
    1.0,
    7.0,
    1e4,
    1e15,
    4e18,
    1e20,
    1e30,
    3.4e38,
]
SHAPES = ["ones", "normal", "axis", "signs"]
row = st.tuples(
    st.sampled_from(SHAPES),
    st.sampled_from(SIZES),
    st.integers(0, 5),
    st.integers(-1, M),
)
bad_row = st.tuples(
    st.sampled_from(["nan", "inf", "-inf"]),
    st.just(1.0),
    st.integers(0, 5),
    st.integers(-1, M),
)
a_row = st.one_of(row, row, row, bad_row)
clipped_row = st.tuples(
    st.sampled_from(["axis", *SHAPES]),
    st.sampled_from([7.0, 1e4, 1e15]),
    st.integers(0, 5),
    st.integers(0, M - 1),
)
some_rows = st.tuples(
    st.lists(a_row, max_size=4), st.one_of(clipped_row, clipped_row, a_row)
)


def make(spec) -> tuple[np.ndarray, int]:
    shape, size, seed, label = spec
    rng = np.random.default_rng(seed)
    if shape in ("nan", "inf", "-inf"):
        x = rng.standard_normal(D)
        x[seed % D] = float(shape)
    else:
        x = {
            "ones": np.ones(D),
            "normal": rng.standard_normal(D),
            "axis": np.eye(D)[seed % D],
            "signs": rng.choice([-1.0, 1.0], D),
        }[shape]
        x = np.clip(x * size, -3.4e38, 3.4e38)
    return x.astype(np.float32), label


def neighbours(specs, other, relation):
    """Two neighbouring data sets over the same slots: the last row is there or not, or
    is replaced.
    """
    rows = [make(s) for s in specs]
    x = np.stack([r[0] for r in rows])
    y = np.array([r[1] for r in rows])
    x2 = x.copy()
    y2 = y.copy()
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
    compiled_from=st.sampled_from([0, 1 << 12]),
    specs=some_rows.map(lambda rows: [*rows[0], rows[1]]),
    other=st.tuples(
        st.sampled_from(["opposite", "turned", "flipped label", "any"]), a_row
    ),
    clip_norm=st.sampled_from([1e-6, 0.03, 1.0, 1e3]),
    drawn=st.tuples(st.sampled_from([0.0, 1.0, 50.0, 1e19, 1e36]), st.integers(0, 3)),
)
def test_one_row_moves_the_computed_sum_by_at_most_the_sensitivity(
    relation, query, transform, compiled_from, specs, other, clip_norm, drawn
):
    """In whole numbers, with no slack.

    The last row is the one that differs: mostly one that is clipped, so that most
    examples come near the bound. drawn: size and seed of the weights.
    """
    size, seed = drawn
    x, y, x2, y2 = neighbours(specs, other, relation)
    width = transform.width(D)
    if isinstance(query, ChannelMoment) and transform.append:
        return
    weights = (
        (size * np.random.default_rng(seed).standard_normal((width, M)))
        .clip(-3e38, 3e38)
        .astype(np.float32)
    )
    params = Params(transform, weights)
    way = CpuSums(compiled_from=compiled_from)
    a, b = (
        integer_sum(query, params, *pair, clip_norm, block_sum=way)
        for pair in ((x, y), (x2, y2))
    )
    moved = (a - b).ravel().astype(object)
    assert moved @ moved <= query.sensitivity_sq(relation, clip_norm, transform.append)


@pytest.mark.parametrize("compiled_from", [0, 1 << 20])
@pytest.mark.parametrize(
    "size, weight, margin",
    [
        (2e-23, 1e36, 0),
        (0.9e-19, 1e35, 0),
        (5e17, 0.0, 45),
        (5e17, 0.0, 52),
    ],
)
def test_norms_that_underflow_are_clipped(compiled_from, size, weight, margin):
    """Squares of tiny numbers vanish in float32: the product of norms must not be 0."""
    d = 1000
    x = np.full((1, d), size, np.float32)
    y = np.array([0])
    weights = np.full((d, M), weight)
    # softmax that is nearly certain: residuals of 1e-20 or 1e-23 against a row of norm
    # 1.6e19
    if margin:
        weights[:, 0] = margin / (size * d)
    for query in (Gradient(M, "squared"), Gradient(M), Gradient(M, "sigmoid")):
        for clip_norm in (1e-6, 1e-3, 1.0):
            way = CpuSums(compiled_from=compiled_from)
            total = integer_sum(
                query, Params(weights=weights), x, y, clip_norm, block_sum=way
            ).ravel()
            assert total @ total <= query.sensitivity_sq("zero_out", clip_norm)


def grid_error(query, params, x, clip_norm):
    """How far a row's integers may be from its definition, in real numbers.

    Each of a row's and a residual's integers is rounded or truncated, and aimed a
    little below the bound (`aim`): both are off by at most 1/1000 of their length here,
    where widths are small, and by sqrt(width) units for tiny rows. A score is off by as
    much of ||row|| ||weights||, which moves a prediction by a quarter of it, and by all
    of it for the squared loss; that is cut at all the row can add. Powers are truncated
    by 2**-11.
    """
    single = sensitivity(query, clip_norm, "zero_out", params.transform.append)
    score = 0.0
    if isinstance(query, Gradient | SigmoidHessians):
        fine = transformed(params.transform, x[None])
        norm = (
            float(np.hypot(fine.norm()[0], params.transform.append))
            if fine.finite[0]
            else 0.0
        )
        if query.clips == "features":
            norm = min(norm, float(np.hypot(clip_norm, params.transform.append)))
        moved = 4e-3 * norm * float(np.linalg.norm(params.weights))
        score = moved * norm if query.clips == "rows" else moved * single
        if getattr(query, "loss", "") == "squared":
            score *= 4
    return min(2 * single, 4e-3 * single + score)


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@settings(max_examples=60)
@given(
    transform=st.sampled_from(TRANSFORMS),
    specs=st.lists(a_row, min_size=1, max_size=5),
    clip_norm=st.sampled_from([1e-3, 1.0, 100.0]),
    seed=st.integers(0, 5),
)
def test_the_fast_sum_is_the_sum_of_the_definition(
    query, transform, specs, clip_norm, seed
):
    """Tolerance: the grid's (`grid_error`), for each row.

    Rows that do not count add exactly nothing to either.
    """
    width = transform.width(D)
    if isinstance(query, ChannelMoment) and transform.append:
        return
    rows = [make(s) for s in specs]
    weights = np.random.default_rng(seed).standard_normal((width, M)).astype(np.float32)
    params = Params(transform, weights)
    x = np.stack([r[0] for r in rows])
    y = np.array([r[1] for r in rows])
    with np.errstate(all="ignore"):
        slow = [
            per_example(query, params, xi, int(yi), clip_norm)
            for xi, yi in zip(x, y, strict=True)
        ]
    fast = clipped_sum(query, params, x, y, clip_norm)
    counted = [i for i in range(len(x)) if np.isfinite(x[i]).all() and 0 <= y[i] < M]
    tolerance = sum(grid_error(query, params, x[i], clip_norm) for i in counted)
    assert np.linalg.norm(fast - np.sum(slow, axis=0)) <= tolerance
    assert not np.any([slow[i] for i in range(len(x)) if i not in counted])


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize(
    "transform", [RowTransform(), RowTransform(True, CENTER), RowTransform(append=0.5)]
)
def test_the_fast_sum_of_ordinary_rows_is_the_definition_closely(query, transform):
    """0.1 % of the sum's size if all rows agreed; the trials differ by about 1/4095 a
    row.
    """
    if isinstance(query, ChannelMoment) and transform.append:
        pytest.skip("moments are of features alone")
    x, y = toy(300)
    weights = (
        np.random.default_rng(0)
        .standard_normal((transform.width(D), M))
        .astype(np.float32)
    )
    params = Params(transform, weights)
    slow = sum(
        per_example(query, params, xi, int(yi), 0.7)
        for xi, yi in zip(x, y, strict=True)
    )
    single = sensitivity(query, 0.7, "zero_out", transform.append)
    assert (
        np.linalg.norm(clipped_sum(query, params, x, y, 0.7) - slow)
        <= 300 * 1e-3 * single
    )


def test_a_huge_row_counts_and_a_row_that_its_transform_makes_infinite_does_not():
    """A finite row of any size is clipped; only what is not finite counts zero."""
    big = np.full((1, D), 3e38, np.float32)
    label = np.array([0])
    total = clipped_sum(ClassSums(M), Params(), big, label)
    assert np.linalg.norm(total[:, 0] - 0.5) <= 1e-3  # of norm one, along the row
    # 3e38 times it is beyond float64, or not
    for size, counts in ((1e200, True), (1e300, False)):
        blown = RowTransform(False, None, np.full(D, size))
        assert clipped_sum(ClassSums(M), Params(blown), big, label).any() == counts


def test_a_count_of_correct_rows_is_the_accuracy_of_the_head():
    """As `LinearHead.scores` decides, after the same transform; ties, bad labels and
    bad rows are not correct.
    """
    x, y = toy(300)
    y[:5] = [-1, M, 0, 1, 2]
    x[2:5] = [
        [np.nan] * D,
        [np.inf] * D,
        [0] * D,
    ]
    transform = RowTransform(True, np.full(D, 0.1, np.float32), None, 0.5)
    weights = np.random.default_rng(3).normal(size=(D + 1, M)).astype(np.float32)
    head = LinearHead(weights[:-1], 0.5 * weights[-1], transform)
    with np.errstate(invalid="ignore"):
        expected = np.sum((head.scores(x).argmax(axis=1) == y)[4:])
    counts = clipped_sum(CorrectCounts(M), Params(transform, weights), x, y)
    # 296: without two labels that are no class and two rows that are not finite
    assert counts[:, 0].tolist() == [expected, 296 - expected]
    tied = clipped_sum(CorrectCounts(M), Params(weights=np.zeros((D, M))), x, y)
    assert tied[:, 0].tolist() == [0, 296]
    each = clipped_sum(ClassCorrectCounts(M), Params(transform, weights), x, y)
    assert each.sum(axis=0).tolist() == counts[:, 0].tolist()
    finite = y[4:]
    of_class = np.bincount(finite, minlength=M)
    assert each.sum(axis=1).tolist() == of_class.tolist()
    with np.errstate(invalid="ignore"):
        right = finite[head.scores(x).argmax(axis=1)[4:] == finite]
    assert each[:, 0].tolist() == [np.sum(right == c) for c in range(M)]


@pytest.mark.parametrize(
    "tied",
    [(0, 1), (0, 2), (1, 2), (0, 1, 2)],
)
def test_a_tie_is_not_correct_whichever_classes_tie(tied):
    x = np.ones((M, D), np.float32)
    y = np.arange(M)
    weights = np.zeros((D, M))
    weights[:, list(tied)] = 1.0
    above = weights + 1e-3 * np.eye(M)[tied[0]]
    for way in (CpuSums(), CpuSums(compiled_from=0)):
        # none, and then the row of that class and no other
        for head, right in ((weights, 0), (above, 1)):
            params = Params(weights=head)
            count = clipped_sum(CorrectCounts(M), params, x, y, block_sum=way)
            assert count[:, 0].tolist() == [right, M - right]


@pytest.mark.parametrize("power", [1, 2])
def test_moments_follow_their_own_row_alone_and_are_no_longer_than_the_bound(power):
    rng = np.random.default_rng(power)
    x = (rng.standard_normal((60, 12)) * np.logspace(-20, 18, 60)[:, None]).astype(
        np.float32
    )
    x[5], x[6, 2] = 1.0, np.nan
    for query in (ChannelMoment(M, power, 3), ChannelMoment(M, power)):
        for clip_norm in (1e-6, 0.7, 1e6):
            together = query.rows(RowTransform(), x, clip_norm)
            length = (together.q**2).sum(axis=1)
            assert length.max() <= query.sensitivity_sq("zero_out", clip_norm)
            assert length[-1] >= (0.999 * query.max_entry) ** 2
            assert not length[6]
            for i in range(len(x)):
                alone = query.rows(RowTransform(), x[i : i + 1], clip_norm)
                assert np.array_equal(alone.q[0], together.q[i])
                assert alone.scale[0] == together.scale[i]


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_no_entry_of_a_row_is_larger_than_sums_have_room_for(query):
    """Rows along an axis, clipped, put all they may into one entry."""
    far = 9 * np.eye(D)
    x = np.concatenate([far, -far]).astype(np.float32)
    for weights in (
        np.zeros((D, M)),
        100 * np.eye(D, M),
        -100 * np.eye(D, M),
    ):
        for row in x:
            total = integer_sum(
                query, Params(weights=weights), row[None], np.array([0])
            )
            assert np.abs(total).max() <= query.max_entry


# --- the bounds are reached -----------------------------------------------------------

E = np.eye(D)
THETA = 0.04
LEFT = math.cos(THETA) * E[0] - math.sin(THETA) * E[1]
RIGHT = math.cos(THETA) * E[0] + math.sin(THETA) * E[1]
HUGE = 1e6


def steer(*signs, bias=None):
    """Weights that decide a class by the sign of the second coordinate alone (columns
    times it), or of the constant.
    """
    w = np.zeros((D if bias is None else D + 1, len(signs)))
    w[1 if bias is None else -1] = HUGE * np.array(signs)
    return w


# query, relation, append, (row, label), (row, label) or None, weights
WORST = [
    (ChannelMoment(M), "zero_out", 0, (E[0], 0), None, None),
    (
        ChannelMoment(M),
        "replace_one",
        0,
        (E[0], 0),
        (-E[0], 0),
        None,
    ),
    (ChannelMoment(M, 2), "zero_out", 0, (E[0], 0), None, None),
    (
        ChannelMoment(M, 2),
        "replace_one",
        0,
        (9 * E[0], 0),
        (9 * E[1], 0),
        None,
    ),
    (
        ChannelMoment(M, 1, 2),
        "replace_one",
        0,
        (9 * (E[0] + E[1]), 0),
        (-9 * (E[0] + E[1]), 0),
        None,
    ),
    (
        ChannelMoment(M, 2, 2),
        "replace_one",
        0,
        (9 * E[0], 0),
        (9 * E[3], 0),
        None,
    ),
    (Gram(M), "zero_out", 0, (5 * E[0], 0), None, None),
    (Gram(M), "zero_out", 0.7, (5 * E[0], 0), None, None),
    (
        Gram(M),
        "replace_one",
        0,
        (5 * E[0], 0),
        (5 * E[1], 0),
        None,
    ),
    (ClassGrams(M), "zero_out", 0.7, (5 * E[0], 0), None, None),
    (
        ClassGrams(M),
        "replace_one",
        0.7,
        (5 * E[0], 0),
        (5 * E[0], 1),
        None,
    ),
    (
        SigmoidHessians(M),
        "zero_out",
        0.7,
        (5 * E[0], 0),
        None,
        np.zeros((D + 1, M)),
    ),
    (
        SigmoidHessians(M),
        "replace_one",
        0,
        (5 * E[0], 0),
        (5 * E[1], 0),
        np.zeros((D, M)),
    ),
    (ClassSums(M), "zero_out", 0.7, (5 * E[0], 0), None, None),
    (
        ClassSums(M),
        "replace_one",
        0,
        (5 * E[0], 0),
        (-5 * E[0], 0),
        None,
    ),
    (
        ClassSums(M),
        "replace_one",
        0.7,
        (5 * E[0], 0),
        (-5 * E[0], 0),
        None,
    ),
    (
        ClassSums(M),
        "replace_one",
        3.0,
        (5 * E[0], 0),
        (5 * E[0], 1),
        None,
    ),
    (ClassCounts(M), "zero_out", 0, (E[0], 0), None, None),
    (
        ClassCounts(M),
        "replace_one",
        0,
        (E[0], 0),
        (E[0], 1),
        None,
    ),
    (
        CorrectCounts(M),
        "zero_out",
        0,
        (E[0], 0),
        None,
        np.eye(D, M),
    ),
    (
        ClassCorrectCounts(M),
        "zero_out",
        0,
        (E[0], 0),
        None,
        np.eye(D, M),
    ),
    (
        ClassCorrectCounts(M),
        "replace_one",
        0,
        (E[0], 0),
        (E[0], 1),
        np.eye(D, M),
    ),
    (
        CorrectCounts(M),
        "replace_one",
        0,
        (E[0], 0),
        (E[0], 1),
        np.eye(D, M),
    ),
    (RowCounts(M), "zero_out", 0, (E[0], 0), None, None),
    (
        RowCounts(M),
        "replace_one",
        0,
        (E[0], 0),
        (E[0], -1),
        None,
    ),
    (
        Gradient(M),
        "zero_out",
        0,
        (9 * E[0], 0),
        None,
        np.zeros((D, M)),
    ),
    (
        Gradient(M),
        "zero_out",
        0.7,
        (9 * E[0], 0),
        None,
        np.zeros((D + 1, M)),
    ),
    (
        Gradient(M),
        "replace_one",
        0,
        (9 * E[0], 0),
        (-9 * E[0], 0),
        np.zeros((D, M)),
    ),
    (
        Gradient(M, "sigmoid"),
        "replace_one",
        0,
        (9 * E[0], 0),
        (-9 * E[0], 0),
        np.zeros((D, M)),
    ),
    (
        Gradient(M, "squared"),
        "replace_one",
        0,
        (9 * E[0], 0),
        (-9 * E[0], 0),
        np.zeros((D, M)),
    ),
    (
        Gradient(M, "softmax", "features"),
        "zero_out",
        0,
        (9 * RIGHT, 0),
        None,
        steer(-1, 1, 0),
    ),
    (
        Gradient(M, "softmax", "features"),
        "zero_out",
        0.7,
        (9 * E[0], 0),
        None,
        steer(-1, 1, 0, bias=True),
    ),
    (
        Gradient(M, "softmax", "features"),
        "replace_one",
        0,
        (9 * RIGHT, 0),
        (9 * LEFT, 1),
        steer(-1, 1, 0),
    ),
    (
        Gradient(M, "sigmoid", "features"),
        "zero_out",
        0,
        (9 * RIGHT, 0),
        None,
        steer(-1, 1, 1),
    ),
    (
        Gradient(M, "sigmoid", "features"),
        "zero_out",
        0.7,
        (9 * E[0], 0),
        None,
        steer(-1, 1, 1, bias=True),
    ),
    (
        Gradient(M, "sigmoid", "features"),
        "replace_one",
        0,
        (9 * RIGHT, 0),
        (-9 * LEFT, 0),
        steer(-1, 1, 1),
    ),
    (
        Gradient(M, "sigmoid", "features"),
        "replace_one",
        0.1,
        (9 * E[0], 0),
        (-9 * E[0], 0),
        steer(-1, 1, 1, bias=True),
    ),
]


@pytest.mark.parametrize(
    "query, relation, append, a, b, weights",
    WORST,
    ids=lambda v: getattr(v, "name", None),
)
@pytest.mark.parametrize("clip_norm", [1.0, 0.1])
@pytest.mark.parametrize("compiled_from", [0, 1 << 12])
def test_a_worst_case_reaches_the_sensitivity(
    query, relation, append, a, b, weights, clip_norm, compiled_from
):
    """Sigmoid and softmax bounds are suprema, reached as ||W|| grows; the last 0.1 % is
    the steering angle.
    """
    append = append * clip_norm  # the cases are homogeneous in (x, b)
    params = Params(
        RowTransform(append=append),
        None if weights is None else weights.astype(np.float32) / clip_norm,
    )
    x1 = a[0][None].astype(np.float32)
    y1 = np.array([a[1]])
    x2, y2 = (
        (x1, np.array([-1]))
        if b is None
        else (b[0][None].astype(np.float32), np.array([b[1]]))
    )
    way = CpuSums(compiled_from=compiled_from)
    one, other = (
        integer_sum(query, params, *pair, clip_norm, block_sum=way)
        for pair in ((x1, y1), (x2, y2))
    )
    moved = (one - other).ravel().astype(object)
    bound = query.sensitivity_sq(relation, clip_norm, append)
    assert 0.99**2 * bound <= moved @ moved <= bound


def test_every_query_and_relation_has_a_worst_case():
    """add_remove has zero_out's sensitivity in every query."""
    covered = {(q.name, r) for q, r, *_ in WORST}
    for query in QUERIES:
        assert sensitivity(query, 0.3, "add_remove", 0.2) == sensitivity(
            query, 0.3, "zero_out", 0.2
        )
        assert (query.name, "replace_one") in covered or isinstance(
            query, SigmoidHessians
        )
        assert any(type(q) is type(query) and r == "zero_out" for q, r, *_ in WORST)


@pytest.mark.parametrize("clip_norm, append", [(1.0, 0.0), (0.5, 0.25), (2.0, 1.0)])
def test_the_table_of_sensitivities(clip_norm, append):
    """proofs/sensitivity.md, number by number, from its own formulas.

    Class sums of replaced rows have a whole bound, which is below the real one by less
    than one unit of 4095.
    """
    r2 = clip_norm**2 + append**2
    m = M
    r = math.sqrt(r2)
    table = {
        ChannelMoment(m): (clip_norm, 2 * clip_norm),
        ChannelMoment(m, 2): (clip_norm, math.sqrt(2) * clip_norm),
        Gram(m): (r2, math.sqrt(2) * r2),
        ClassGrams(m): (r2, math.sqrt(2) * r2),
        SigmoidHessians(m): (math.sqrt(m) * r2 / 4, math.sqrt(2 * m) * r2 / 4),
        ClassSums(m): (r, max(2 * clip_norm, math.sqrt(2) * r)),
        ClassCounts(m): (1.0, math.sqrt(2)),
        CorrectCounts(m): (1.0, math.sqrt(2)),
        ClassCorrectCounts(m): (1.0, math.sqrt(2)),
        RowCounts(m): (1.0, 1.0),
        Gradient(m): (clip_norm, 2 * clip_norm),
        Gradient(
            m,
            "softmax",
            "features",
        ): (math.sqrt(2) * r, 2 * math.sqrt(2) * r),
        Gradient(
            m,
            "sigmoid",
            "features",
        ): (math.sqrt(m) * r, 2 * math.sqrt(m) * r),
    }
    for query, (single, replaced) in table.items():
        assert sensitivity(query, clip_norm, "zero_out", append) == pytest.approx(
            single, rel=1e-12
        )
        assert sensitivity(query, clip_norm, "add_remove", append) == pytest.approx(
            single, rel=1e-12
        )
        rel = 1e-3 if isinstance(query, ClassSums) else 1e-12
        assert sensitivity(query, clip_norm, "replace_one", append) == pytest.approx(
            replaced, rel=rel
        )


@pytest.mark.parametrize("d, channels", [(1, 0), (4, 0), (4, 2)])
def test_moments_of_a_transform_with_a_constant_are_refused(d, channels):
    """Of one feature, numpy would have added its moment to the constant's place as
    well: sqrt(2) C.
    """
    params = Params(RowTransform(append=0.5))
    with pytest.raises(ValueError, match="features alone"):
        integer_sum(
            ChannelMoment(M, 1, channels),
            params,
            np.ones((3, d), np.float32),
            np.zeros(3, int),
        )


def test_a_squared_loss_cannot_bound_its_residual_by_its_features():
    with pytest.raises(ValueError, match="squared"):
        Gradient(M, "squared", "features")


def test_a_loss_that_is_not_defined_bounds_no_residual(monkeypatch):
    """A new one, allowed by its type alone, would have the bound of sigmoids."""
    with pytest.raises(ValueError, match="or squared, got loss='new'"):
        Gradient(M, "new")  # type: ignore[arg-type]
    monkeypatch.setattr(statistics, "LOSSES", ("new",))
    with pytest.raises(ValueError, match="or squared, got loss='new'"):
        Gradient(M, "new").longest_residual()  # type: ignore[arg-type]


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize("append", [0.0, 0.5])
def test_a_clip_norm_for_fits_without_noise_clips_no_row(query, append):
    """Sums at that clip norm, and at one four times as large, agree but for their
    grids.
    """
    if isinstance(query, ChannelMoment) and append:
        pytest.skip("moments are of features alone")
    x, y = toy(100)
    params = Params(
        RowTransform(append=append),
        np.random.default_rng(1).standard_normal((D + bool(append), M)),
    )
    largest = float(transformed(params.transform, x).norm().max())
    clip_norm = query.no_clip(largest, params)
    exact = sum(
        per_example(
            query,
            params,
            a,
            int(b),
            1e300,
        )
        for a, b in zip(x, y, strict=True)
    )
    total = clipped_sum(query, params, x, y, clip_norm)
    single = sensitivity(query, clip_norm, "zero_out", append)
    assert np.linalg.norm(total - exact) <= 100 * 2e-3 * single


@pytest.mark.parametrize(
    "given",
    [
        {"power": 3},
        {"power": 0},
        {"power": np.int64(2)},
        {"power": 1.0},
        {"n_channels": -1},
        {"n_channels": np.int64(4)},
    ],
    ids=str,
)
def test_moments_are_means_or_means_of_squares(given):
    """A third power can be negative: its rows are up to twice as far apart."""
    with pytest.raises(ValueError, match=r"power|n_channels"):
        ChannelMoment(M, **given)


def test_a_clip_is_of_rows_or_of_features():
    with pytest.raises(ValueError, match="clip must be rows or features"):
        Gradient(M, clip="x")


@pytest.mark.parametrize("m", [*range(2, 40), 100, 1000, 2**20])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_hessians_sensitivity_is_that_of_its_number_of_classes(m, relation):
    times = 2 if relation == "replace_one" else 1
    found = SigmoidHessians(m).sensitivity_sq(relation, 1.0)
    assert found == times * m * 2**12 * 4095**4
