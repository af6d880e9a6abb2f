"""What a budget is foretold to buy, beside what it buys."""

import math
from dataclasses import replace

import numpy as np
import pytest
from commands import charges, features_file, fitted
from dphead_extract.features.format import group_ids
from fits import head_of, quick_sums, right
from sklearn.datasets import load_digits

from dphead.fit.forecast import (
    LookAlike,
    Question,
    forecast,
    open_look_alike,
    split_rows,
)
from dphead.planning.methods import make_method
from dphead.solvers.base import ProblemInfo


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return LookAlike(x, y, 10, are_public=True)


def ask(n_rows, **more):
    """A question of the quickest method that learns well."""
    usual = {"draws": 2, "method": "dp-ls"}
    return Question(n_rows=n_rows, **usual | more)


def at_one(look_alike, **more):
    """What epsilon 1 buys a thousand rows."""
    return forecast(look_alike, ask(1000, epsilons=(1.0,), **more))


def test_rows_that_nobody_declared_public_are_refused(tmp_path):
    path = features_file(tmp_path / "f.h5")
    for attempt in (
        lambda: LookAlike(np.zeros((9, 2)), np.zeros(9, int), 2),
        lambda: open_look_alike(path, None, False),
        lambda: open_look_alike(tmp_path / "missing.h5", None, False),
    ):
        with pytest.raises(ValueError, match="not declared public"):
            attempt()


def test_what_is_foretold_is_what_fits_of_as_many_rows_reach(digits):
    """900 rows that stand for 1,437 (with little noise: accuracy grows with rows), and
    1,437 private ones.
    """
    epsilons = (0.5, 2.0)
    few = replace(digits, x=digits.x[:1125], y=digits.y[:1125])
    found = forecast(few, ask(1437, epsilons=epsilons, draws=6))
    assert (found.n_train, found.n_held_out) == (900, 225)
    facts = ProblemInfo(1437, 64, 10)
    solver = make_method("dp-ls", facts, {}).solver
    verified = quick_sums()
    for point in found.points:
        reached = []
        for seed in range(6):
            order = np.random.default_rng(100 + seed).permutation(len(digits.y))
            train, new = order[:1437], order[1437:]
            rows = digits.x[train], digits.y[train], 10
            head = head_of(solver, *rows, point.epsilon, 100 + seed, summer=verified)
            reached.append(right(head, digits.x[new], digits.y[new]))
        error = math.hypot(point.sd or 0, np.std(reached, ddof=1)) / math.sqrt(6)
        # three standard errors, and a point for what fewer rows generalize worse
        assert point.accuracy == pytest.approx(np.mean(reached), abs=3 * error + 0.01)
    assert found.points[0].accuracy < found.points[1].accuracy <= found.ceiling.accuracy


def test_the_same_question_has_the_same_answer_and_charges_nothing(digits):
    question = ask(400, epsilons=(4.0, 1.0, 4.0))
    told = []
    found = forecast(digits, question, lambda *args: told.append(args))
    assert found == forecast(digits, question)
    assert [p.epsilon for p in found.points] == [1.0, 4.0]
    assert (found.n_train, found.n_held_out) == (400, 359)
    assert [done for done, *_ in told] == list(range(1, 7))
    assert {total for _, total, _ in told} == {6}
    assert charges() == 0
    assert found != forecast(digits, replace(question, seed=5))


def test_groups_have_more_noise_and_are_on_one_side(digits):
    groups = np.arange(len(digits.y)) // 4
    people = replace(digits, groups=groups)
    alone = at_one(people)
    capped = at_one(people, group_cap=4)
    # a look-alike without groups: all rows count, for people of four
    assumed = at_one(digits, group_cap=4)
    assert alone.unit == "one row"
    assert capped.unit.startswith("one person (group)")
    for found in (capped, assumed):
        assert found.points[0].accuracy < alone.points[0].accuracy - 0.02
    # fewer of a group's rows count than there are: less is learned of them
    half = at_one(people, group_cap=1)
    wide = at_one(digits, group_cap=1)
    assert half.points[0].accuracy < wide.points[0].accuracy


@pytest.mark.parametrize("seed", range(2))
def test_no_group_is_on_both_sides_and_the_sizes_are_those_that_are_said(seed):
    groups = np.random.default_rng(seed).integers(-1, 40, 300)
    train, held_out = split_rows(groups, 10**6, seed)
    assert sorted([*train, *held_out]) == list(range(300))
    assert not set(groups[train]) & set(groups[held_out]) - {-1}
    assert 60 <= len(held_out) < 60 + np.bincount(groups + 1).max()
    few, _ = split_rows(groups, 100, seed)
    assert len(few) == 100 and set(few) <= set(train)
    again = split_rows(groups, 10**6, seed + 1)
    assert not np.array_equal(again[1], held_out)
    singles = split_rows(np.full(70_000, -1), 20_000, seed)
    assert [len(part) for part in singles] == [20_000, 10_000]


@pytest.mark.parametrize("seed", range(3))
def test_a_split_does_not_undo_the_order_that_a_file_was_shuffled_into(seed):
    """By numpy and the same seed, from rows in the order of their classes."""
    shuffled = np.random.default_rng(seed).permutation(1000)
    for order in (shuffled, np.argsort(shuffled)):
        labels = np.repeat(np.arange(10), 100)[order]
        _, held_out = split_rows(np.full(1000, -1), 1000, seed)
        assert np.bincount(labels[held_out], minlength=10).min() > 5


def test_a_files_rows_and_the_ledgers_that_know_them(tmp_path):
    group = np.arange(240) // 2
    path = features_file(tmp_path / "f.h5", group=group)
    found, charged = open_look_alike(path, None, True)
    assert found.x.shape == (240, 12) and found.n_classes == 3 and charged == []
    assert found.groups is not None
    np.testing.assert_array_equal(found.groups, group_ids(group, 240))
    command = ("fit", path, "--method", "dp-ls", "--delta", "1e-3", "-o")
    fitted(*command, tmp_path / "run", "--protect", "image")
    _, (ledger,) = open_look_alike(path, None, True)
    assert "(1 fit for single rows under zero_out) of this data set" in str(ledger)
