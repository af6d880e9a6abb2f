"""Means of groups: what counts, that a group moves no other's means, and how far it
moves a sum.
"""

import numpy as np
import pytest
from core import NAMES, STATISTICS, D, M, largest_move
from definitions import means_of_groups
from dphead_extract.features.format import open_features, write_features
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dphead.data.arrays import ArrayRows
from dphead.data.features import FeaturesRows, load_features
from dphead.planning.plan import make_plan
from dphead.privacy import group_means as module
from dphead.privacy.accounting import RELATIONS
from dphead.privacy.group_means import group_means
from dphead.privacy.sampling import within_cap
from dphead.privacy.statistics import ClassSums
from dphead.solvers import Auto, ProblemInfo

VALUES = st.sampled_from(
    [0.0, 1.0, -1.0, 0.1, 1e-45, 1e30, -1e30, -3e38, 3.4e38, np.nan, np.inf, -np.inf]
)
ROWS = st.lists(
    st.tuples(VALUES, VALUES, st.integers(-1, 4), st.integers(-1, 3)),
    min_size=1,
    max_size=24,
)


def arrays(rows):
    """Features, labels (-1 to 4: some beyond the classes) and groups of drawn rows."""
    x, y, groups = (
        np.array([r[a:b] for r in rows]) for a, b in ((0, 2), (2, 3), (3, 4))
    )
    return x.astype(np.float32), y[:, 0].astype(int), groups[:, 0].astype(int)


def counted(x, y, groups, cap):
    """The rows and labels of `ArrayRows`, in the order of slots."""
    return slots(ArrayRows(x, y, None, groups, cap, group_mean=True))[:2]


def slots(rows, chosen=None):
    """Rows, labels and slots of all blocks, without padding."""
    blocks = list(rows.blocks(chosen))
    used = np.concatenate([b.index >= 0 for b in blocks])
    return tuple(
        np.concatenate([getattr(b, name) for b in blocks])[used]
        for name in ("x", "y", "index")
    )


# 1 + 1e30 - 1e30 is 0, and 1 + (1e30 - 1e30) is 1: the first two rows are read together
ASSOCIATED = [(0, 0, 0, 1), (1, 0, 0, 0), (1e30, 0, 0, 0), (-1e30, 0, 0, 0)]


@given(ROWS, st.integers(1, 3), st.integers(1, 9))
@example(ASSOCIATED, 1, 2)
@settings(deadline=None)
def test_rows_that_count_are_those_of_the_definition(rows, cap, together):
    """Bit for bit, however many rows are read at a time: rows that are not finite,
    labels out of range, and groups with more classes than the cap among them.
    """
    x, y, groups = arrays(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NUMBERS", 2 * together)
        found, labels = counted(x, y, groups, cap)
    wanted, classes = means_of_groups(x, y, groups, cap)
    assert np.array_equal(labels, classes)
    assert np.array_equal(found, wanted, equal_nan=True)


@given(ROWS, ROWS, st.integers(1, 3), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_group_moves_no_bit_of_another_groups_means(rows, others, cap, random):
    """Rows of group 9 go into any places between the rest, and leave each of their
    means as it is.
    """
    x, y, groups = arrays(rows)
    more_x, more_y, _ = arrays(others)
    place = np.zeros(len(x) + len(more_x), bool)
    place[random.sample(range(len(place)), len(x))] = True
    both_x, both_y = np.zeros((len(place), 2), np.float32), np.zeros(len(place), int)
    both = np.full(len(place), 9)
    both_x[place], both_y[place], both[place] = x, y, groups
    both_x[~place], both_y[~place] = more_x, more_y
    alone, labels = counted(x, y, groups, cap)
    beside, classes = counted(both_x, both_y, both, cap)
    assert np.array_equal(beside[place], alone, equal_nan=True)
    assert np.array_equal(classes[place], labels)
    assert (classes[~place] >= 0).sum() <= cap
    assert ((classes < 0) | within_cap(both, cap)).all()


def test_ten_thousand_rows_of_a_group_are_one_mean():
    """Their own alone, added one at a time: another order would give other bits."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(10_050, D)) * 10.0 ** rng.uniform(-6, 6, (10_050, 1))).astype(
        np.float32
    )
    groups = np.append(np.zeros(10_000, int), np.arange(50) % 7 + 1)[
        rng.permutation(10_050)
    ]
    y = np.zeros(10_050, int)
    found, labels = counted(x, y, groups, 3)
    own = np.flatnonzero(groups == 0)
    total = np.zeros(D)
    for row in x[own]:
        total += row
    assert np.array_equal(found[own[0]], (total / 10_000).astype(np.float32))
    assert (labels[own[1:]] == -1).all()
    assert (labels >= 0).sum() == 8


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
def test_a_group_moves_a_sum_by_at_most_its_number_of_means(statistic, relation):
    """A group of 9 hostile rows of three classes, capped at 2, against none, or against
    another of as many rows or of one: and at least one statistic reaches the bound.
    """
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, D)).astype(np.float32)
    y = rng.integers(0, M, 60)
    x[:9], y[:9] = 1e3 * np.eye(D)[0], np.arange(9) % 3
    x[4] = np.nan
    groups = np.where(np.arange(60) < 9, 7, np.arange(60) // 4 + 8)
    bound = 4 * statistic.sensitivity_sq(relation, 1.0)
    largest = largest_move(
        statistic, relation, x, y, groups, group_cap=2, group_mean=True
    )
    assert largest <= bound
    if isinstance(statistic, ClassSums) and relation == "replace_one":
        assert largest >= 0.49 * bound  # the two means are of different classes


@pytest.fixture
def file(tmp_path):
    """Rows of 40 groups in two splits; group 3 is in both. Some are unreadable."""
    rng = np.random.default_rng(0)
    n = 1500
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y, groups = rng.integers(-1, 3, n), rng.integers(0, 40, n)
    split = (groups > 30).astype(int)
    split[np.flatnonzero(groups == 3)[::2]] = 1
    valid = np.ones(n, bool)
    valid[rng.permutation(n)[:20]] = False
    x[~valid] = 0
    write_features(
        tmp_path / "f.h5",
        x,
        y,
        ["a", "b", "c"],
        group=groups,
        split=split,
        split_names=["train", "test"],
        valid=valid,
    )
    own = split == 0
    wanted = means_of_groups(x[own], np.where(valid, y, -1)[own], groups[own], 2)
    return tmp_path / "f.h5", wanted


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_file_gives_the_means_of_its_split_streamed_or_loaded(file, memory):
    """In parts, as several processes read it, and for any slots: the means of the whole
    split's rows, and of no other split's.
    """
    path, (x, y) = file
    rows, opened = load_features(path, "train", memory, 2, group_mean=True)
    with opened:
        for chosen in (None, np.arange(0, len(x), 7)):
            found, labels, index = slots(rows, chosen)
            assert np.array_equal(found, x[index], equal_nan=True)
            assert np.array_equal(labels, y[index])
        for start, stop in ((0, 500), (500, len(x)), (7, 8)):
            found, labels, index = slots(rows.part(start, stop, memory))
            assert np.array_equal(found, x[start:stop], equal_nan=True)
            assert np.array_equal(labels, y[start:stop])


def test_rows_to_measure_on_are_as_they_are(file):
    path, _ = file
    with open_features(path) as opened:
        plain, means = (
            FeaturesRows(opened, "test", group_cap=1, group_mean=mean)
            for mean in (False, True)
        )
        for name in ("measured_features", "measured_labels"):
            pair = [getattr(rows, name)() for rows in (plain, means)]
            assert np.array_equal(*pair, equal_nan=True)


def test_means_without_a_cap_or_of_label_sets_are_refused():
    x, sets = np.ones((4, 2), np.float32), np.ones((4, 3), int)
    with pytest.raises(ValueError, match=r"group_mean.* needs .*group.cap"):
        ArrayRows(x, sets[:, 0], group_mean=True)
    with pytest.raises(ValueError, match=r"group_mean. needs one class per row"):
        ArrayRows(x, sets, groups=np.arange(4), group_cap=1, group_mean=True)
    with pytest.raises(ValueError, match=r"group_mean.* needs .*group.cap"):
        make_plan(
            Auto(), ProblemInfo(99, D, M), epsilon=1.0, delta=1e-5, group_mean=True
        )


def test_no_accuracy_is_counted_on_means():
    """They are easier than the rows that they are made of."""
    facts = ProblemInfo(5000, D, M)
    target = {"epsilon": 1.0, "delta": 1e-5, "group_cap": 2, "group_mean": True}
    plan = make_plan(Auto(), facts, **target)
    assert not any("Correct" in spec.statistic for spec in plan.specs)
    assert 1 - 1e-6 < plan.epsilon_spent() <= 1.0
    with pytest.raises(ValueError, match=r"per_class_share. needs images"):
        make_plan(Auto(per_class_share=0.1), facts, **target)


def test_an_empty_group_column_has_no_means():
    means, y = group_means(np.zeros(0, int), np.zeros(0, int), 1)
    assert len(y) == 0 and means.starts.tolist() == [0]
