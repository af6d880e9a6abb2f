"""Sensitivity: how far one row moves the sum of integers, in integers, and that the
bounds are reached.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from core import (
    BOUNDED,
    NAMES,
    STATISTICS,
    D,
    M,
    clipped_sum,
    integer_sum,
    sensitivity,
    toy,
)
from definitions import per_example
from hypothesis import given
from hypothesis import strategies as st

from dphead.privacy import statistics
from dphead.privacy.accounting import RELATIONS
from dphead.privacy.loss import LOSSES
from dphead.privacy.statistic_base import Params
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


def neighbors(specs, other, relation):
    """Two neighboring data sets over the same slots: the last row is there or not, or
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


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@pytest.mark.parametrize("relation", RELATIONS)
@given(
    transform=st.sampled_from(TRANSFORMS),
    compiled=st.booleans(),
    specs=some_rows.map(lambda rows: [*rows[0], rows[1]]),
    other=st.tuples(
        st.sampled_from(["opposite", "turned", "flipped label", "any"]), a_row
    ),
    clip_norm=st.sampled_from([1e-6, 0.03, 1.0, 1e3]),
    drawn=st.tuples(st.sampled_from([0.0, 1.0, 50.0, 1e19, 1e36]), st.integers(0, 3)),
)
def test_one_row_moves_the_computed_sum_by_at_most_the_sensitivity(
    relation, statistic, transform, compiled, specs, other, clip_norm, drawn
):
    """In whole numbers, with no slack.

    The last row is the one that differs: mostly one that is clipped, so that most
    examples come near the bound. drawn: size and seed of the weights.
    """
    size, seed = drawn
    x, y, x2, y2 = neighbors(specs, other, relation)
    width = transform.width(D)
    if isinstance(statistic, ChannelMoment) and transform.append:
        return
    weights = (
        (size * np.random.default_rng(seed).standard_normal((width, M)))
        .clip(-3e38, 3e38)
        .astype(np.float32)
    )
    params = Params(transform, weights)
    way = CpuSums(compiled)
    a, b = (
        integer_sum(statistic, params, *pair, clip_norm, block_sum=way)
        for pair in ((x, y), (x2, y2))
    )
    moved = (a - b).ravel().astype(object)
    assert moved @ moved <= statistic.sensitivity_sq(
        relation, clip_norm, transform.append
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "size, weight, margin",
    [(2e-23, 1e36, 0), (0.9e-19, 1e35, 0), (5e17, 0.0, 45), (5e17, 0.0, 52)],
)
def test_norms_that_underflow_are_clipped(compiled, size, weight, margin):
    """Squares of tiny numbers vanish in float32: the product of norms must not be 0."""
    d = 1000
    x = np.full((1, d), size, np.float32)
    y = np.array([0])
    weights = np.full((d, M), weight)
    # softmax that is nearly certain: residuals of 1e-20 or 1e-23 against a row of norm
    # 1.6e19
    if margin:
        weights[:, 0] = margin / (size * d)
    for statistic in (Gradient(M, "squared"), Gradient(M), Gradient(M, "sigmoid")):
        for clip_norm in (1e-6, 1e-3, 1.0):
            way = CpuSums(compiled)
            total = integer_sum(
                statistic, Params(weights=weights), x, y, clip_norm, block_sum=way
            ).ravel()
            assert total @ total <= statistic.sensitivity_sq("zero_out", clip_norm)


def grid_error(statistic, params, x, clip_norm):
    """How far a row's integers may be from its definition, in real numbers.

    Each of a row's and a residual's integers is rounded or truncated, and aimed a
    little below the bound (`aim`): both are off by at most 1/1000 of their length here,
    where widths are small, and by sqrt(width) units for tiny rows. A score is off by as
    much of ||row|| ||weights||, which moves a prediction by a quarter of it, and by all
    of it for the squared loss; that is cut at all the row can add. Powers are truncated
    by 2**-11.
    """
    single = sensitivity(statistic, clip_norm, "zero_out", params.transform.append)
    score = 0.0
    if isinstance(statistic, Gradient | SigmoidHessians):
        fine = transformed(params.transform, x[None])
        norm = (
            float(np.hypot(fine.norm()[0], params.transform.append))
            if fine.finite[0]
            else 0.0
        )
        if statistic.clips == "features":
            norm = min(norm, float(np.hypot(clip_norm, params.transform.append)))
        moved = 4e-3 * norm * float(np.linalg.norm(params.weights))
        score = moved * norm if statistic.clips == "rows" else moved * single
        if getattr(statistic, "loss", "") == "squared":
            score *= 4
    return min(2 * single, 4e-3 * single + score)


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@given(
    transform=st.sampled_from(TRANSFORMS),
    specs=st.lists(a_row, min_size=1, max_size=5),
    clip_norm=st.sampled_from([1e-3, 1.0, 100.0]),
    seed=st.integers(0, 5),
)
def test_the_fast_sum_is_the_sum_of_the_definition(
    statistic, transform, specs, clip_norm, seed
):
    """Tolerance: the grid's (`grid_error`), for each row.

    Rows that do not count add exactly nothing to either.
    """
    width = transform.width(D)
    if isinstance(statistic, ChannelMoment) and transform.append:
        return
    rows = [make(s) for s in specs]
    weights = np.random.default_rng(seed).standard_normal((width, M)).astype(np.float32)
    params = Params(transform, weights)
    x = np.stack([r[0] for r in rows])
    y = np.array([r[1] for r in rows])
    with np.errstate(all="ignore"):
        slow = [
            per_example(statistic, params, xi, int(yi), clip_norm)
            for xi, yi in zip(x, y, strict=True)
        ]
    fast = clipped_sum(statistic, params, x, y, clip_norm)
    counted = [i for i in range(len(x)) if np.isfinite(x[i]).all() and 0 <= y[i] < M]
    tolerance = sum(grid_error(statistic, params, x[i], clip_norm) for i in counted)
    assert np.linalg.norm(fast - np.sum(slow, axis=0)) <= tolerance
    assert not np.any([slow[i] for i in range(len(x)) if i not in counted])


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@pytest.mark.parametrize(
    "transform", [RowTransform(), RowTransform(True, CENTER), RowTransform(append=0.5)]
)
def test_the_fast_sum_of_ordinary_rows_is_the_definition_closely(statistic, transform):
    """0.1 % of the sum's size if all rows agreed; the trials differ by about 1/4095 a
    row.
    """
    if isinstance(statistic, ChannelMoment) and transform.append:
        pytest.skip("moments are of features alone")
    x, y = toy(300)
    weights = (
        np.random.default_rng(0)
        .standard_normal((transform.width(D), M))
        .astype(np.float32)
    )
    params = Params(transform, weights)
    slow = sum(
        per_example(statistic, params, xi, int(yi), 0.7)
        for xi, yi in zip(x, y, strict=True)
    )
    single = sensitivity(statistic, 0.7, "zero_out", transform.append)
    assert (
        np.linalg.norm(clipped_sum(statistic, params, x, y, 0.7) - slow)
        <= 300 * 1e-3 * single
    )


def test_a_count_of_correct_rows_is_the_accuracy_of_the_head():
    """As `LinearHead.scores` decides, after the same transform; bad labels and bad rows
    count nothing, and a tie is not correct.
    """
    x, y = toy(300)
    y[:5] = -1, M, 0, 1, 2
    x[2:5] = [[np.nan] * D, [np.inf] * D, [0] * D]
    transform = RowTransform(True, np.full(D, 0.1, np.float32), None, 0.5)
    weights = np.random.default_rng(3).normal(size=(D + 1, M)).astype(np.float32)
    head = LinearHead(weights[:-1], 0.5 * weights[-1], transform)
    params = Params(transform, weights)
    labels = y[4:]
    right = head.scores(x[4:]).argmax(axis=1) == labels
    counts = clipped_sum(CorrectCounts(M), params, x, y)
    assert counts[:, 0].tolist() == [right.sum(), 296 - right.sum()]
    each = clipped_sum(ClassCorrectCounts(M), params, x, y)
    assert each[:, 0].tolist() == np.bincount(labels[right], minlength=M).tolist()
    assert each.sum(axis=1).tolist() == np.bincount(labels, minlength=M).tolist()


@pytest.mark.parametrize("tied", [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_tie_is_not_correct_whichever_classes_tie(tied):
    x = np.ones((M, D), np.float32)
    y = np.arange(M)
    weights = np.zeros((D, M))
    weights[:, list(tied)] = 1.0
    above = weights + 1e-3 * np.eye(M)[tied[0]]
    for way in (CpuSums(compiled=False), CpuSums()):
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
    for statistic in (ChannelMoment(M, power, 3), ChannelMoment(M, power)):
        for clip_norm in (1e-6, 0.7, 1e6):
            together = statistic.rows(RowTransform(), x, clip_norm)
            length = (together.q**2).sum(axis=1)
            assert length.max() <= statistic.sensitivity_sq("zero_out", clip_norm)
            assert length[-1] >= (0.999 * statistic.max_entry) ** 2
            assert not length[6]
            for i in range(len(x)):
                alone = statistic.rows(RowTransform(), x[i : i + 1], clip_norm)
                assert np.array_equal(alone.q[0], together.q[i])
                assert alone.scale[0] == together.scale[i]


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
def test_no_entry_of_a_row_is_larger_than_sums_have_room_for(statistic):
    """Rows along an axis, clipped, put all they may into one entry."""
    far = 9 * np.eye(D)
    x = np.concatenate([far, -far]).astype(np.float32)
    for weights in (np.zeros((D, M)), 100 * np.eye(D, M), -100 * np.eye(D, M)):
        for row in x:
            total = integer_sum(
                statistic, Params(weights=weights), row[None], np.array([0])
            )
            assert np.abs(total).max() <= statistic.max_entry


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


FIRST, SECOND, BOTH = 9 * E[0], 9 * E[1], 9 * (E[0] + E[1])
NONE, EYE = np.zeros((D, M)), np.eye(D, M)
GONE = None


def worst_residuals(loss):
    """A wrong class has all probability. If each class is predicted on its own, all but
    the row's class are predicted, or that class alone.
    """
    statistic, sets = Gradient(M, loss, "features"), LOSSES[loss].takes_sets
    signs = (-1, 1, 1) if sets else (-1, 1, 0)
    yield statistic, 0, 9 * RIGHT, GONE, steer(*signs)
    yield statistic, 0.7, FIRST, GONE, steer(*signs, bias=True)
    if sets:
        yield statistic, 0, 9 * RIGHT, (-9 * LEFT, 0), steer(*signs)
        yield statistic, 0.1, FIRST, (-FIRST, 0), steer(*signs, bias=True)
    else:
        yield statistic, 0, 9 * RIGHT, (9 * LEFT, 1), steer(*signs)


# statistic, append, the row (of class 0), what replaces it (row, class) or that it is
# gone, weights
WORST = [
    (ChannelMoment(M), 0, FIRST, GONE, NONE),
    (ChannelMoment(M), 0, FIRST, (-FIRST, 0), NONE),
    (ChannelMoment(M, 2), 0, FIRST, GONE, NONE),
    (ChannelMoment(M, 2), 0, FIRST, (SECOND, 0), NONE),
    (ChannelMoment(M, 1, 2), 0, BOTH, (-BOTH, 0), NONE),
    (ChannelMoment(M, 2, 2), 0, FIRST, (9 * E[3], 0), NONE),
    (Gram(M), 0.7, FIRST, GONE, NONE),
    (Gram(M), 0, FIRST, (SECOND, 0), NONE),
    (ClassGrams(M), 0.7, FIRST, GONE, NONE),
    (ClassGrams(M), 0.7, FIRST, (FIRST, 1), NONE),
    (SigmoidHessians(M), 0.7, FIRST, GONE, np.zeros((D + 1, M))),
    (SigmoidHessians(M), 0, FIRST, (SECOND, 0), NONE),
    (ClassSums(M), 0.7, FIRST, GONE, NONE),
    (ClassSums(M), 0, FIRST, (-FIRST, 0), NONE),
    (ClassSums(M), 0.7, FIRST, (-FIRST, 0), NONE),
    (ClassSums(M), 3.0, FIRST, (FIRST, 1), NONE),
    (ClassCounts(M), 0, FIRST, GONE, NONE),
    (ClassCounts(M), 0, FIRST, (FIRST, 1), NONE),
    (CorrectCounts(M), 0, FIRST, GONE, EYE),
    (CorrectCounts(M), 0, FIRST, (FIRST, 1), EYE),
    (ClassCorrectCounts(M), 0, FIRST, GONE, EYE),
    (ClassCorrectCounts(M), 0, FIRST, (FIRST, 1), EYE),
    (RowCounts(M), 0, FIRST, GONE, NONE),
    (RowCounts(M), 0, FIRST, (FIRST, -1), NONE),
    (Gradient(M), 0.7, FIRST, GONE, np.zeros((D + 1, M))),
    *((Gradient(M, loss), 0, FIRST, (-FIRST, 0), NONE) for loss in LOSSES),
    *(case for loss in BOUNDED for case in worst_residuals(loss)),
]


@pytest.mark.parametrize(
    "statistic, append, row, other, weights",
    WORST,
    ids=lambda v: getattr(v, "name", None),
)
@pytest.mark.parametrize("clip_norm", [1.0, 0.1])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_worst_case_reaches_the_sensitivity(
    statistic, append, row, other, weights, clip_norm, compiled
):
    """Sigmoid and softmax bounds are suprema, reached as ||W|| grows; the last 0.1 % is
    the steering angle.
    """
    append = append * clip_norm  # the cases are homogeneous in (x, b)
    transform = RowTransform(append=append)
    params = Params(transform, weights[: transform.width(D)] / clip_norm)
    way = CpuSums(compiled)
    one, two = (
        integer_sum(
            statistic,
            params,
            x[None].astype(np.float32),
            np.array([y]),
            clip_norm,
            block_sum=way,
        )
        for x, y in ((row, 0), other or (row, -1))
    )
    moved = (one - two).ravel().astype(object)
    relation = "replace_one" if other else "zero_out"
    bound = statistic.sensitivity_sq(relation, clip_norm, append)
    assert 0.99**2 * bound <= moved @ moved <= bound


def test_every_statistic_and_relation_has_a_worst_case():
    """add_remove has zero_out's sensitivity in every statistic."""
    for statistic in STATISTICS:
        assert sensitivity(statistic, 0.3, "add_remove", 0.2) == sensitivity(
            statistic, 0.3, "zero_out", 0.2
        )
    replaced = {q for q, _, _, other, _ in WORST if other}
    gone = {type(q) for q, _, _, other, _ in WORST if other is GONE}
    assert [q.name for q in STATISTICS if q not in replaced] == []
    assert [q.name for q in STATISTICS if type(q) not in gone] == []


@pytest.mark.parametrize("clip_norm, append", [(1.0, 0.0), (0.5, 0.25), (2.0, 1.0)])
def test_the_table_of_sensitivities(clip_norm, append):
    """proofs/sensitivity.md, number by number, from its own formulas.

    Class sums of replaced rows have a whole bound, which is below the real one by less
    than one unit of 4095.
    """
    m, c = M, clip_norm
    r2 = c**2 + append**2
    r = math.sqrt(r2)
    two = math.sqrt(2)
    table = {
        **{ChannelMoment(m, 1, channels): (c, 2 * c) for channels in (0, 2)},
        **{ChannelMoment(m, 2, channels): (c, two * c) for channels in (0, 2)},
        Gram(m): (r2, two * r2),
        ClassGrams(m): (r2, two * r2),
        SigmoidHessians(m): (math.sqrt(m) * r2 / 4, math.sqrt(2 * m) * r2 / 4),
        ClassSums(m): (r, max(2 * c, two * r)),
        ClassCounts(m): (1.0, two),
        CorrectCounts(m): (1.0, two),
        ClassCorrectCounts(m): (1.0, two),
        RowCounts(m): (1.0, 1.0),
        **{Gradient(m, loss): (c, 2 * c) for loss in LOSSES},
    }
    for loss in BOUNDED:
        longest = math.sqrt(m) if LOSSES[loss].takes_sets else two
        table[Gradient(m, loss, "features")] = (longest * r, 2 * longest * r)
    assert set(table) == set(STATISTICS)
    for statistic, (single, replaced) in table.items():
        rel = 1e-3 if isinstance(statistic, ClassSums) else 1e-12
        for relation, size in (("zero_out", single), ("replace_one", replaced)):
            found = sensitivity(statistic, c, relation, append)
            assert found == pytest.approx(size, rel=rel)


def test_the_proof_has_a_line_for_every_statistic_and_bounded_loss():
    page = Path(statistics.__file__).parent / "proofs/sensitivity.md"
    lines = {f"`Gradient({loss}, " for loss in BOUNDED}
    lines |= {f"`{type(statistic).__name__}" for statistic in STATISTICS}
    found = page.read_text()
    assert [line for line in sorted(lines) if f"\n| {line}" not in found] == []


@pytest.mark.parametrize("d, channels", [(1, 0), (4, 0), (4, 2)])
def test_moments_of_a_transform_with_a_constant_are_refused(d, channels):
    """Of one feature, numpy would have added its moment to the constant's place as
    well: sqrt(2) C.
    """
    params = Params(RowTransform(append=0.5))
    with pytest.raises(ValueError, match="without an appended constant"):
        integer_sum(
            ChannelMoment(M, 1, channels),
            params,
            np.ones((3, d), np.float32),
            np.zeros(3, int),
        )


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@pytest.mark.parametrize("append", [0.0, 0.5])
def test_a_clip_norm_for_fits_without_noise_clips_no_row(statistic, append):
    """Sums at that clip norm, and at one four times as large, agree but for their
    grids.
    """
    if isinstance(statistic, ChannelMoment) and append:
        pytest.skip("moments are of features alone")
    x, y = toy(100)
    params = Params(
        RowTransform(append=append),
        np.random.default_rng(1).standard_normal((D + bool(append), M)),
    )
    largest = float(transformed(params.transform, x).norm().max())
    clip_norm = statistic.unclipped(largest, params)
    exact = sum(
        per_example(statistic, params, a, int(b), 1e300)
        for a, b in zip(x, y, strict=True)
    )
    total = clipped_sum(statistic, params, x, y, clip_norm)
    single = sensitivity(statistic, clip_norm, "zero_out", append)
    assert np.linalg.norm(total - exact) <= 100 * 2e-3 * single
    assert statistic.unclipped(0.0, params) > 0  # rows of zeros have a unit too


@pytest.mark.parametrize("m", [2, 9, 100, 2**20])
def test_a_hessians_sensitivity_is_that_of_its_number_of_classes(m):
    for relation, times in (("zero_out", 1), ("replace_one", 2)):
        found = SigmoidHessians(m).sensitivity_sq(relation, 1.0)
        assert found == times * m * 2**12 * 4095**4


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChannelMoment(M, 3),  # can be negative: rows are twice as far apart
        lambda: ChannelMoment(M, np.int64(2)),
        lambda: ChannelMoment(M, n_channels=-1),
        lambda: Gradient(M, clip="x"),
        lambda: Gradient(M, "squared", "features"),
        lambda: Gradient(M, "new"),
    ],
)
def test_what_has_no_bound_is_refused(make):
    with pytest.raises(ValueError, match=r"must|moments|squared"):
        make()


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
