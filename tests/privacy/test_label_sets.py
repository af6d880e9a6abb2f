"""Rows with any number of classes: how far one moves a sum, what counts, and which
statistics refuse them.
"""

import numpy as np
import pytest
from core import (
    STATISTICS,
    D,
    M,
    clipped_sum,
    hostile,
    integer_sum,
    sensitivity,
    toy,
)
from definitions import per_example
from hypothesis import given
from hypothesis import strategies as st

from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.accounting import RELATIONS
from dphead.privacy.ledger import Ledger
from dphead.privacy.loss import LOSSES, Sigmoid
from dphead.privacy.predictions import PROBABILITY_SCALE, IntegerWeights
from dphead.privacy.statistic_base import Chunk, Params, labeled, targets
from dphead.privacy.statistics import (
    ChannelMoment,
    Gradient,
    Gram,
    RowCounts,
    SigmoidHessians,
)
from dphead.privacy.transform import RADIUS, IntegerRows, RowTransform
from dphead.solvers.base import ProblemInfo
from dphead.solvers.gradient import GradientDescent
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import ReferenceSums

TAKING = [q for q in STATISTICS if q.takes_sets]
REFUSING = [q for q in STATISTICS if not q.takes_sets]
IDS = [q.name for q in TAKING]
WAYS = [ReferenceSums(), CpuSums(compiled=False), CpuSums()]
CENTER = np.array([0.5, -1.0, 0.25, 2.0], np.float32)
TRANSFORMS = [
    RowTransform(),
    RowTransform(True, CENTER),
    RowTransform(append=1.0),
    RowTransform(True, append=30.0),
]
NO_SETS = [[2, 0, 1], [-1, 1, 0], [1, 1, 256], [np.nan, 0, 1], [0, 0.5, 1]]


def sets_of(kind, n=1, m=M, seed=0):
    """(n, m): no class, all of them, or any."""
    if kind in ("none", "all"):
        return np.full((n, m), int(kind == "all"))
    return np.random.default_rng(seed).integers(0, 2, (n, m))


def params_of(statistic, transform=None, size=1.0, seed=0):
    transform = transform or RowTransform()
    width = transform.width(D)
    weights = size * np.random.default_rng(seed).standard_normal((width, M))
    return Params(transform, weights.clip(-3e38, 3e38).astype(np.float32))


def takes_constant(statistic, transform):
    return "ChannelMoment" not in statistic.name or not transform.append


def test_what_has_a_bound_for_any_set_takes_them_and_nothing_else():
    """Each class that a row has would move these sums of one class a row once more."""
    whole = {ChannelMoment, Gram, SigmoidHessians, RowCounts}
    for q in STATISTICS:
        alone = isinstance(q, Gradient) and LOSSES[q.loss].takes_sets
        assert q.takes_sets == (alone or type(q) in whole), q.name
    x, _ = toy(20)
    wrong = [(q, M) for q in REFUSING] + [(q, m) for q in TAKING for m in (2, 4)]
    for statistic, m in wrong:
        for way in WAYS:
            with pytest.raises(ValueError, match=r"one class per row|Label sets must"):
                integer_sum(
                    statistic,
                    params_of(statistic),
                    x,
                    sets_of("any", 20, m),
                    block_sum=way,
                )


hostile_x = st.one_of(
    st.sampled_from([[np.nan] * D, [np.inf, 0, 0, 0], [0.0] * D, [3e38] * D]),
    st.tuples(st.integers(0, 9), st.sampled_from([1e-45, 1.0, 1e4, 1e19])).map(
        lambda drawn: np.random.default_rng(drawn[0]).standard_normal(D) * drawn[1]
    ),
)
hostile_set = st.one_of(
    st.sampled_from(["none", "all"]).map(lambda kind: sets_of(kind)[0]),
    st.lists(st.integers(0, 1), min_size=M, max_size=M),
    st.sampled_from(NO_SETS),
)
hostile_row = st.tuples(hostile_x, hostile_set)


@pytest.mark.parametrize("statistic", TAKING, ids=IDS)
@pytest.mark.parametrize("relation", RELATIONS)
@given(
    rows=st.lists(hostile_row, min_size=1, max_size=4),
    other=st.one_of(st.none(), hostile_row),
    transform=st.sampled_from(TRANSFORMS),
    clip_norm=st.sampled_from([1e-6, 0.03, 1.0, 1e3]),
    weights=st.tuples(st.sampled_from([0.0, 1.0, 1e19, 1e36]), st.integers(0, 3)),
)
def test_a_row_with_any_set_moves_the_sum_by_at_most_the_sensitivity(
    statistic, relation, rows, other, transform, clip_norm, weights
):
    """In whole numbers, with no slack. The last row goes, or is replaced by another, or
    by the opposite row with the opposite set.
    """
    if not takes_constant(statistic, transform):
        return
    params = params_of(statistic, transform, *weights)
    x = np.array([r[0] for r in rows], np.float32)
    y = np.array([r[1] for r in rows], float)
    x2, y2 = x.copy(), y.copy()
    if relation != "replace_one":
        y2[-1] = -1
    elif other is None:
        x2[-1], y2[-1] = -x[-1], 1 - y[-1]
    else:
        x2[-1], y2[-1] = other
    for way in WAYS:
        a, b = (
            integer_sum(statistic, params, *pair, clip_norm, block_sum=way)
            for pair in ((x, y), (x2, y2))
        )
        moved = (a - b).ravel().astype(object)
        bound = statistic.sensitivity_sq(relation, clip_norm, transform.append)
        assert moved @ moved <= bound


@pytest.mark.parametrize("statistic", TAKING, ids=IDS)
def test_a_set_of_one_class_is_that_class(statistic):
    """Rows of all sizes, some not finite, some of no class."""
    x, y = hostile(300, D, M, 3)
    known = (y >= 0) & (y < M)
    sets = np.where(known[:, None], y[:, None] == np.arange(M), -1)
    for transform in TRANSFORMS:
        if takes_constant(statistic, transform):
            params = params_of(statistic, transform, 3.0)
            for way in WAYS:
                one, other = (
                    integer_sum(statistic, params, x, labels, 0.7, block_sum=way)
                    for labels in (y, sets)
                )
                assert np.array_equal(one, other)


@pytest.mark.parametrize("statistic", TAKING, ids=IDS)
@pytest.mark.parametrize("kind", ["any", "none", "all"])
def test_the_sum_over_sets_is_that_of_the_definition(statistic, kind):
    """Within 0.1 % of what all rows could add together, and the same integers by every
    way of adding.
    """
    x, _ = toy(300)
    sets = sets_of(kind, 300)
    for transform in (RowTransform(), RowTransform(True, CENTER, None, 0.5)):
        if not takes_constant(statistic, transform):
            continue
        params = params_of(statistic, transform)
        slow = sum(
            per_example(statistic, params, a, b, 0.7)
            for a, b in zip(x, sets, strict=True)
        )
        fast = clipped_sum(statistic, params, x, sets, 0.7)
        single = sensitivity(statistic, 0.7, "zero_out", transform.append)
        assert np.linalg.norm(fast - slow) <= 300 * 1e-3 * single
        found = [
            integer_sum(statistic, params, x, sets, 0.7, block_sum=way) for way in WAYS
        ]
        assert all(np.array_equal(found[0], one) for one in found)


@pytest.mark.parametrize("statistic", TAKING, ids=IDS)
def test_what_is_no_set_counts_zero_and_no_class_at_all_counts(statistic):
    """One number that is neither one nor zero takes the row out, as one that is not
    finite does; an empty set is a set.
    """
    x, _ = toy(20)
    sets = sets_of("any", 20)
    params = params_of(statistic)
    rows = np.concatenate([x, x[: len(NO_SETS)], [[np.nan] * D, [np.inf] * D]])
    labels = np.concatenate([sets, NO_SETS, [[1, 1, 1], [0, 0, 0]]])
    for way in WAYS:
        alone = integer_sum(statistic, params, x, sets, 0.7, block_sum=way)
        mixed = integer_sum(statistic, params, rows, labels, 0.7, block_sum=way)
        assert np.array_equal(alone, mixed)
        empty = integer_sum(
            statistic, params, x[:1], sets_of("none"), 0.7, block_sum=way
        )
        assert empty.any()
    assert not per_example(statistic, params, x[0], np.array(NO_SETS[0]), 0.7).any()


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_worst_case_of_all_classes_reaches_the_sensitivity(relation):
    """All predicted and none of them there: a residual of sqrt(m), which with clipped
    features is the longest. In its place a row that is nearly equal, but for the small
    coordinate that decides, has all and none are predicted.
    """
    statistic = Gradient(M, "sigmoid", "features")
    x = np.array([[9.0, 0.3, 0, 0]], np.float32)
    x2 = x * [1, -1, 1, 1]
    params = Params(weights=1e6 * np.eye(D)[:, [1, 1, 1]])
    moved = integer_sum(statistic, params, x, sets_of("none"))
    if relation == "replace_one":
        moved = moved - integer_sum(statistic, params, x2, sets_of("all"))
    moved = moved.ravel().astype(object)
    bound = statistic.sensitivity_sq(relation, 1.0)
    assert 0.99**2 * bound <= moved @ moved <= bound


def test_residuals_of_one_to_a_thousand_classes_do_not_overflow():
    """proofs/exactness.md, "Bit counts": a prediction is in [0, 2**16] and a target is
    one of its ends, whatever the set, so m squares add up to at most m 2**32, which is
    reached where all are predicted and none are there, and the other way round.
    """
    rows = IntegerRows(np.full((3, 1), RADIUS, np.int16), np.ones(3))
    for m in (1, 2, 3, 9, 64, 100, 999, 1000):
        kinds = [sets_of(kind, 1, m) for kind in ("none", "all", "any")]
        sets = np.concatenate(kinds).astype(np.int8)
        for sign, longest in ((1, 0), (-1, 1)):
            w = IntegerWeights(np.full((m, 1), sign * 32767, np.int16), 1.0)
            chunk = Chunk(rows, sets, np.ones(3, bool), w, 1e-6)
            p = Sigmoid().predictions(np, *chunk.scores(np))
            r = p - PROBABILITY_SCALE * targets(np, chunk, m)
            assert np.abs(r).max() <= PROBABILITY_SCALE
            squared = (r * r).sum(axis=1).tolist()
            assert max(squared) == squared[longest] == m * 2**32 <= 2**53
            assert squared[1 - longest] == 0
            for clip in ("rows", "features"):
                statistic = Gradient(m, "sigmoid", clip)
                q, l = statistic.factors(np, chunk)
                lengths = (l * l).sum(axis=1)
                assert 0.95 * RADIUS**2 <= lengths[longest] <= lengths.max()
                assert lengths.max() <= RADIUS**2
                assert (np.abs(l) * np.abs(q)).max() <= statistic.max_entry


def test_a_label_that_is_no_set_is_none_by_the_core_itself():
    """Whatever a source of rows hands in."""
    statistic = Gradient(M, "sigmoid")
    y = np.array([[2, 0, 1], [-1, 1, 0], [0, 0, 0], [1, 1, 1]])
    assert labeled(statistic, y).tolist() == [False, False, True, True]
    with pytest.raises(ValueError, match="Label sets must have shape"):
        labeled(statistic, y[:, :, None])


@pytest.mark.parametrize("statistic", TAKING, ids=IDS)
def test_rows_of_sets_beyond_their_groups_cap_count_zero(statistic):
    x, _ = toy(60)
    sets = sets_of("any", 60)
    groups = np.arange(60) // 3
    rows = ArrayRows(x, sets, groups=groups, group_cap=2)
    first = np.arange(60) % 3 < 2
    params = params_of(statistic)
    capped = integer_sum(statistic, params, rows)
    assert np.array_equal(capped, integer_sum(statistic, params, x[first], sets[first]))


def test_a_fit_on_sets_with_a_statistic_of_one_class_is_refused_before_its_charge():
    x, _ = toy(40)
    book = Ledger()
    solver = GradientDescent(steps=1, loss="softmax")
    facts = ProblemInfo(40, D, M)
    plan = make_plan(solver, facts, epsilon=1.0, delta=1e-3)
    for rows in (ArrayRows(x, sets_of("any", 40)), ArrayRows(x, sets_of("none", 40))):
        with pytest.raises(ValueError, match="needs one class per row"):
            fit_rows(plan, rows, ledger=book)
    assert book.fits() == []


@pytest.mark.parametrize("statistic", TAKING, ids=IDS)
@pytest.mark.parametrize("m", [M - 1, M + 1])
def test_sets_of_another_number_of_classes_are_refused(statistic, m):
    x, _ = toy(20)
    for way in WAYS:
        with pytest.raises(ValueError, match="Label sets must have shape"):
            integer_sum(
                statistic, params_of(statistic), x, sets_of("any", 20, m), block_sum=way
            )
