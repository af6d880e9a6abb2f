"""Ledgers that are merged: the sum is counted, within all budgets."""

import json
import shutil

import pytest
from core import reserve
from ledgers import (
    DELTA,
    add_fits,
    close_by_hand,
    died_everywhere,
    run_release,
    specs,
)

from dphead.privacy.accounting import compose_epsilon, filter_order
from dphead.privacy.ledger import Ledger, LedgerError, seals
from dphead.privacy.ledger.moving import holds_all, merge, move
from dphead.privacy.ledger.schema import SEALS
from dphead.privacy.ledger.store import COUNTS, JOINED, JOINS, MOVED, SUM


def budget_of(epsilon, delta=DELTA):
    """A budget as a ledger stores it."""
    order = filter_order(epsilon, delta)
    return json.dumps({"epsilon": epsilon, "delta": delta, "order": order})


@pytest.fixture
def books(tmp_path):
    return [Ledger(tmp_path / f"{name}.sqlite", name) for name in ("a", "b")]


def test_the_budget_after_a_merge_is_within_both(books):
    source, target = books
    source.set_budget(1.0, 1e-4)
    target.set_budget(2.0, 1e-5)
    reserve(specs(1, 8.0), source)
    reserve(specs(1, 8.0), target)
    merge([source], target)
    found = target.budget()
    assert (found["epsilon"], found["delta"]) == (1.0, 1e-5)
    assert target.is_sum() and target.verify() == [] and len(target.budgets()) == 2
    # the sum of three is within 2 at 1e-5, but not within 1
    refused = specs(1, 3.5)
    assert 1 < target.spent(DELTA, *(spec.event() for spec in refused)).epsilon < 2
    with pytest.raises(LedgerError, match="limit is 1 at delta 1e-05"):
        reserve(refused, target)
    reserve(specs(1, 40.0), target)
    assert target.count_fits() == 3


def test_a_budget_of_a_merge_can_be_set_again(books):
    """A second fact of the same budget, after fits, would be damage."""
    source, target = books
    source.set_budget(3.0, DELTA)
    for book in books:
        reserve(specs(1, 8.0), book)
    merge([source], target)
    before = target.facts(), target.rows(SEALS)
    target.set_budget(3.0, DELTA)
    assert (target.facts(), target.rows(SEALS)) == before and target.verify() == []
    reserve(specs(1, 8.0), target)


@pytest.mark.parametrize("first", [0.1, 1.0])
def test_random_batches_of_groups_in_two_merged_ledgers_have_their_plain_sum(
    books, first
):
    """No filter takes both, and their total is not infinite."""
    source, target = books
    target.set_budget(5.0, DELTA)
    fits = {q: specs(1, 8.0, group_cap=2, sampling_prob=q) for q in (0.1, 1.0)}
    reserve(fits[first], target)
    reserve(fits[0.1], source)
    merge([source], target)
    events, total = target.events(), target.spent(DELTA).epsilon
    assert total == compose_epsilon(events, DELTA, "zero_out", "auto") < 2
    for more in fits.values():
        assert target.remaining([spec.event() for spec in more], DELTA) == 0
        with pytest.raises(
            LedgerError, match=r"takes (no other fit|full batches only)"
        ):
            reserve(more, target)
    assert target.count_fits() == 2


def test_nothing_remains_for_random_batches_beside_merged_ones(books):
    """The budget's first fit had full batches, so it takes no other ones."""
    source, target = books
    target.set_budget(5.0, DELTA)
    sampled = specs(1, 8.0, sampling_prob=0.1)
    reserve(specs(1, 8.0), target)
    reserve(sampled, source)
    merge([source], target)
    assert target.remaining([spec.event() for spec in sampled], DELTA) == 0
    with pytest.raises(LedgerError, match="takes full batches only"):
        reserve(sampled, target)


def test_a_moved_ledger_without_charges_is_held_where_it_went(tmp_path):
    """Else `dphead ledger people` finds a ledger that moved to another place."""
    source, target = (Ledger(tmp_path / f"{name}.sqlite", "a") for name in "st")
    assert not holds_all(source, target)
    move(source, target)
    reserve(specs(1, 8.0), target)
    assert holds_all(source, target)


def test_a_budget_that_is_fixed_in_a_ledger_of_a_merged_data_set_counts(
    books, tmp_path
):
    """The mark of the first merge is no sign that the second one is complete."""
    source, target = books
    merge([source], target)
    other = Ledger(tmp_path / "other.sqlite", "a")
    other.set_budget(1.0, DELTA)
    # a death closed it before its budget was fixed in the target
    close_by_hand(other, target, "b")
    assert not holds_all(other, target)
    merge([other], target)
    assert target.budget()["epsilon"] == 1.0 and holds_all(other, target)


def test_a_ledger_takes_no_fit_before_a_merge_into_it_is_finished(
    books, tmp_path, monkeypatch
):
    """Of several ledgers, and of one that is found later. A running fit ends."""
    source, target = books
    other, late = (Ledger(tmp_path / f"{name}.sqlite", "a") for name in "ol")
    for book in (source, other, late):
        reserve(specs(1, 8.0), book)
    running = reserve(specs(9, 8.0), target)

    def merged(*sources):
        """Check all states that a death can leave, and return how many there are."""
        points = 0
        for _ in died_everywhere(monkeypatch, lambda: merge(sources, target)):
            points += 1
            lacks = not all(one.fit_ids() <= target.fit_ids() for one in sources)
            assert target.joining() == ["a"] * lacks and target.verify() == []
            if not lacks:
                continue
            for charge in (
                lambda: reserve(specs(1, 8.0), target),
                lambda: target.set_budget(9.0, DELTA),
                lambda: move(target, Ledger(tmp_path / "new.sqlite", "b")),
                lambda: merge([target], Ledger(tmp_path / "c.sqlite", "c")),
            ):
                with pytest.raises(LedgerError, match=r"data set a .* is not finished"):
                    charge()
            run_release(running, spec=specs(1, 8.0)[0])
        return points

    assert merged(source, other) == 4  # begun, closed, closed, copied
    assert target.count_fits() == 3
    assert merged(source, other, late) == 3
    assert target.count_fits() == 4 and target.verify() == []
    reserve(specs(1, 8.0), target)


def test_values_of_a_role_that_may_charge_hide_no_merge_and_no_budget(
    books, monkeypatch
):
    """It wrote the keys that the merge would use next."""
    source, target = books
    for book, epsilon in ((source, 2.0), (target, 4.0)):
        book.set_budget(epsilon, DELTA)
        reserve(specs(1, 8.0), book)
    false = {
        "joins 0": "x",
        "joined 1": "x",
        "counts x": "true",
        "budget 2": target.meta("budget"),
    }
    with target.transaction():
        for key, value in false.items():
            target.set_once(key, value)
        target.set_once(SUM, "true")
        seals.seal(target)
    begun = 0
    for _ in died_everywhere(monkeypatch, lambda: merge([source], target)):
        if source.fit_ids() <= target.fit_ids():
            continue
        begun += 1
        assert target.joining() == ["x", "a"]
    assert begun and target.budget()["epsilon"] == 2.0


def test_a_merge_of_a_ledger_that_adds_nothing_is_finished_too(
    books, tmp_path, monkeypatch
):
    """The target holds all of such a ledger as soon as it is closed."""
    source, target = books
    merge([source], target)
    late = Ledger(tmp_path / "late.sqlite", "a")
    for _ in died_everywhere(monkeypatch, lambda: merge([late], target)):
        assert target.joining() == ["a"] or late.meta(MOVED)
    assert target.joining() == []
    before = target.facts()
    merge([source, late], target)
    assert target.facts() == before


def test_a_budget_that_the_sum_breaks_stays_broken(books):
    source, target = books
    target.set_budget(1.0, DELTA)
    reserve(specs(1, 6.0), target)
    reserve(specs(1, 2.0), source)
    alone = source.spent(DELTA).epsilon
    merge([source], target)
    assert target.spent(DELTA).epsilon > alone > target.budget()["epsilon"]
    with pytest.raises(LedgerError, match="exceed the budget"):
        reserve(specs(1, 1e6), target)
    with pytest.raises(LedgerError, match="budget cannot change"):
        target.set_budget(9.0, DELTA)


def test_a_ledger_that_adds_nothing_leaves_the_budget_a_guarantee(books, tmp_path):
    source, target = books
    source.set_budget(1.0, DELTA)
    reserve(specs(1, 8.0), source)
    merge([source], target)  # into a new ledger
    merge([Ledger(tmp_path / "c.sqlite", "c")], target)  # of a new one
    assert not target.is_sum() and target.budget() == source.budget()
    late = Ledger(tmp_path / "d.sqlite", "d")
    reserve(specs(1, 8.0), late)
    unused = Ledger(tmp_path / "e.sqlite", "e")
    unused.set_budget(3.0, DELTA)
    merge([late], unused)  # a budget that was not fixed before the other's fit
    assert unused.is_sum()
    smaller = Ledger(tmp_path / "f.sqlite", "f")
    smaller.set_budget(0.5, DELTA)
    merge([smaller], target)  # nor was this one before the fit of the target
    assert target.is_sum() and target.budget()["epsilon"] == 0.5


def test_all_ledgers_of_a_data_set_are_merged_or_none(books, tmp_path):
    one, target = books
    two = Ledger(tmp_path / "two.sqlite", "a")
    reserve(specs(1, 8.0), one)
    reserve(specs(1, 8.0), target)
    reserve(specs(1, 8.0, relation="replace_one"), two)
    before = [one.facts() for one in (*books, two)]
    with pytest.raises(LedgerError, match=r"replace_one .* cannot be merged"):
        merge([one, two], target)
    with pytest.raises(LedgerError, match="A merge needs ledgers of one data set"):
        merge([one, Ledger(tmp_path / "c.sqlite", "c")], target)
    assert [one.facts() for one in (*books, two)] == before


def test_a_fit_of_two_copies_of_a_ledger_counts_once(books, tmp_path):
    source, target = books
    reserve(specs(1, 8.0), source)
    copy = tmp_path / "copy.sqlite"
    shutil.copy(source.path, copy)
    reserve(specs(1, 8.0), other := Ledger(copy, "a"))
    merge([source, other], target)
    assert target.fits() == other.fits() and target.count_fits() == 2
    assert target.verify() == []


def test_a_sum_that_is_merged_into_an_empty_ledger_stays_a_sum(books, tmp_path):
    source, target = books
    source.set_budget(1.0, DELTA)
    reserve(specs(1, 8.0), source)
    reserve(specs(1, 8.0), target)
    merge([source], target)
    last = Ledger(tmp_path / "c.sqlite", "c")
    merge([target], last)
    assert last.budget() == target.budget() and last.count_fits() == 2
    assert last.is_sum() and last.verify() == []


def test_a_merged_ledger_takes_no_charge_and_is_counted_once(books, tmp_path):
    source, target = books
    fit = reserve(specs(2, 8.0), source)
    fit.begin(specs(2, 8.0)[0].row())
    for _ in range(2):
        merge([source], target)
    assert target.fits() == source.fits() and target.count_fits() == 1
    assert source.meta(MOVED) == target.path
    for use in (
        lambda: reserve(specs(), source),
        lambda: fit.begin(specs(2, 8.0)[0].row()),
    ):
        with pytest.raises(LedgerError, match="was moved to"):
            use()
    with pytest.raises(LedgerError, match="already moved"):
        merge([source], Ledger(tmp_path / "c.sqlite", "c"))
    with pytest.raises(LedgerError, match="A merge needs ledgers of one data set"):
        merge([target], Ledger(tmp_path / "copy.sqlite", "b"))


def test_ledgers_of_another_unit_are_refused_before_either_changes(books):
    source, target = books
    reserve(specs(1, 8.0, group_cap=2), source)
    reserve(specs(1, 8.0), target)
    before = [one.facts() for one in books]
    with pytest.raises(LedgerError, match=r"groups .* cannot be merged"):
        merge([source], target)
    assert [one.facts() for one in books] == before


def test_ledgers_of_two_caps_are_merged_and_each_fit_counts_at_its_own(books):
    source, target = books
    reserve(specs(1, 8.0, group_cap=2), source)
    reserve(specs(1, 9.0, group_cap=3), target)
    merge([source], target)
    assert {event.rows_per_unit for event in target.events()} == {2, 3}


def test_a_mark_alone_does_not_finish_a_merge(books):
    """Else a false mark hides the fits of a ledger that is closed."""
    source, target = books
    reserve(specs(1, 8.0), source)
    with target.transaction():
        for mark in (JOINS, JOINED):
            target.set_once(f"{mark} 0", "a")
        seals.seal(target)
    with pytest.raises(LedgerError, match="into this ledger is not finished"):
        reserve(specs(1, 8.0), target)
    merge([source], target)
    reserve(specs(1, 8.0), target)


def test_a_fit_that_has_other_rows_in_the_target_is_not_merged(books, tmp_path):
    """Else a fit with more noise, under the same id, stands for it in the total."""
    source, target = books
    reserve(specs(1, 8.0), source)
    add_fits(source, target, times=1000)
    before = [one.facts() for one in books]
    for sources in ([source], [source, copy := Ledger(tmp_path / "copy.sqlite", "a")]):
        with pytest.raises(LedgerError, match=r"entries for the fit \w+, so one"):
            merge(sources, target)
    add_fits(source, copy, times=1000)
    with pytest.raises(LedgerError, match="different entries"):
        merge([source, copy], Ledger(tmp_path / "c.sqlite", "c"))
    assert [one.facts() for one in books] == before


@pytest.mark.parametrize(
    "times, facts, held",
    [
        (1, {}, True),
        (1000, {}, False),
        (1, {"relation": "replace_one"}, False),
        (1, {"group_cap": "2"}, False),
        (1, {"accounting": "rdp"}, False),
        (1, {"budget": budget_of(2.0)}, False),  # it was not fixed before the fit
        (1, {"budget": budget_of(2.0), SUM: "true"}, True),  # and is no guarantee here
        (1, {"budget": budget_of(4.0)}, False),
    ],
)
def test_a_merge_that_no_command_made_counts_if_it_is_as_an_honest_one(
    books, times, facts, held
):
    """Any role that may charge can write it. Then no total and no budget is smaller."""
    source, target = books
    source.set_budget(3.0, DELTA)
    reserve(specs(1, 8.0), source)
    add_fits(source, target, times, **facts, **{f"{COUNTS} a": "true"})
    close_by_hand(source, target, "b")
    assert source.verify() == target.verify() == []
    assert holds_all(source, target) == held


def test_a_merge_that_no_command_made_keeps_no_budget_of_a_charged_target(books):
    """The budgets are equal, and the fits of both can exceed them."""
    source, target = books
    for book in books:
        book.set_budget(3.0, DELTA)
        reserve(specs(1, 8.0), book)
    add_fits(source, target, 1, **{f"{COUNTS} a": "true"})
    close_by_hand(source, target, "b")
    assert source.verify() == target.verify() == []
    assert not holds_all(source, target)
    merge([source], target)
    assert target.is_sum() and holds_all(source, target)
