"""A sum whose rows lie with several processes (threads here): every slot once, one
noise, the sum of one process.
"""

import numpy as np
import pytest
from core import (
    NAMES,
    STATISTICS,
    D,
    KnownNoise,
    M,
    release_one,
    reserve,
    spec_of,
    toy,
    verified,
)
from hypothesis import given
from hypothesis import strategies as st
from together import together

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import SumTask
from dphead.privacy.ledger import LedgerError
from dphead.privacy.release import release
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import (
    ClassCounts,
    ClassSums,
    Gradient,
    Gram,
)
from dphead.privacy.transform import RowTransform
from dphead.sums.cpu import CpuSums
from dphead.sums.hosts import SumOfParts, all_or_none, bounds, follow
from dphead.sums.reference import ReferenceSums
from dphead.sums.verified import VerifiedSum


def shared_releases(
    requests,
    rows,
    count,
    seed=1,
    groups=None,
    cap=None,
    change=lambda i, rows: rows,
    **spec,
):
    """Release each (statistic, params) with the rows (x, y) in `count` parts.

    Returns the first thread's values, those of the others, and what was sent.
    """
    x, y = rows
    whole = ArrayRows(x, y, 128, groups, cap)
    # Without rows beyond their cap: a group may lie in several parts.
    y = whole._y
    at = bounds(len(x), count)
    specs = [spec_of(q, len(x), group_cap=cap, **spec) for q, _ in requests]

    def work(hosts):
        part = slice(at[hosts.index], at[hosts.index + 1])
        own = ArrayRows(x[part], y[part], 128)
        own.group_cap = cap
        parts = SumOfParts(hosts, change(hosts.index, own))
        summer = VerifiedSum(CpuSums(), parts=parts)
        more = {"ledger": reserve(specs), "noise": KnownNoise(seed), "summer": summer}
        if not hosts.first:
            tasks = [
                SumTask(*one, spec.clip_norm, whole, None, spec)
                for one, spec in zip(requests, specs, strict=True)
            ]
            return [released.value for released in follow(tasks, summer, hosts)]
        more["summer"] = summer.one_pass([statistic for statistic, _ in requests])
        values = []
        for one, spec in zip(requests, specs, strict=True):
            released = release(*one, whole, spec, **more)
            values.append(hosts.share(released, whole.n_rows).value)
        return values

    found, sent = together(count, work)
    return found[0], found[1:], sent


@pytest.mark.parametrize(
    "raised, others", [(LedgerError, LedgerError), (OSError, ValueError)]
)
def test_an_error_before_a_fit_is_raised_on_all_processes(raised, others):
    """Each can then fit again: its messages match those of the others."""

    def work(hosts):
        seen = []
        for failing in (1, None):
            try:
                with all_or_none(hosts):
                    if hosts.index == failing:
                        raise raised("its own")
                seen.append(None)
            except Exception as error:
                seen.append((type(error), "its own" in str(error)))
        return seen

    of_others = [(others, False), None]
    found, _ = together(3, work)
    assert found == [of_others, [(raised, True), None], of_others]


@given(st.integers(0, 2000), st.integers(1, 40))
def test_parts_are_a_partition_of_the_slots(n_rows, processes):
    at = bounds(n_rows, processes)
    slots = [slot for i in range(processes) for slot in range(at[i], at[i + 1])]
    assert slots == list(range(n_rows))
    sizes = np.diff(at)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@pytest.mark.parametrize("count", [1, 3])
def test_the_sum_of_parts_is_the_sum_of_one_process_with_its_one_noise(
    statistic, count
):
    """One seed gives one draw, and integers add up to the same in any parts: bit for
    bit. All processes end with that value.
    """
    x, y = toy(300)
    params = Params(RowTransform(append=1.0), np.full((D + 1, M), 0.1, np.float32))
    if statistic.name.startswith("ChannelMoment"):  # of features alone
        params = Params(RowTransform())
    alone = release_one(statistic, params, ArrayRows(x, y, 128), 1).value
    (value,), others, sent = shared_releases([(statistic, params)], (x, y), count)
    assert np.array_equal(value, alone)
    assert all(np.array_equal(other, alone) for (other,) in others)
    assert sorted(i for i, _ in sent) == list(range(count))  # one sum of each, once


def test_all_parts_have_the_weights_and_the_transform_of_the_first_process():
    """Other processors compute other last bits, which can round to other integers."""
    x, y = toy(300)
    rng = np.random.default_rng(0)
    weights, center = rng.normal(size=(D, M)), rng.normal(size=D) / 9
    statistic, at = Gradient(M), bounds(300, 3)
    wanted = release_one(
        statistic, Params(RowTransform(True, center), weights), ArrayRows(x, y, 128), 1
    ).value
    spec = spec_of(statistic, 300)

    def work(hosts):
        own = ArrayRows(*(v[slice(*at[hosts.index : hosts.index + 2])] for v in (x, y)))
        summer = VerifiedSum(CpuSums(), parts=SumOfParts(hosts, own))
        other = 1 + hosts.index / 7
        params = Params(RowTransform(True, other * center), other * weights)
        whole = ArrayRows(x, y, 128)
        if not hosts.first:
            task = SumTask(statistic, params, spec.clip_norm, whole, None, spec)
            return next(follow([task], summer, hosts)).value
        more = {"ledger": reserve([spec]), "noise": KnownNoise(1), "summer": summer}
        released = release(statistic, params, whole, spec, **more)
        return hosts.share(released, 300).value

    for value in together(3, work)[0]:
        assert np.array_equal(value, wanted)


def test_parts_are_summed_once_for_all_statistics_of_a_request():
    """The values are those of a pass for each."""
    x, y = toy(300)
    params = Params(RowTransform(append=1.0))
    requests = [(Gram(M), params), (ClassSums(M), params)]
    passes = []

    def counted(i, rows):
        blocks = rows.blocks
        rows.blocks = lambda *which: passes.append(i) or blocks(*which)
        return rows

    values, _, _ = shared_releases(requests, (x, y), 3, change=counted)
    assert sorted(passes) == [0, 1, 2]
    specs = [spec_of(statistic, 300) for statistic, _ in requests]
    more = {"ledger": reserve(specs), "noise": KnownNoise(1)}
    whole = ArrayRows(x, y, 128)
    for value, (statistic, _), spec in zip(values, requests, specs, strict=True):
        # a summer for each, so that nothing waits
        alone = release(statistic, params, whole, spec, summer=verified(), **more)
        assert np.array_equal(value, alone.value)


def test_only_the_first_process_draws_noise():
    """Whatever sigma is, the sums that travel are those without noise: 2**10 for
    each row, of the classes.
    """
    x, y = toy(300)
    requests = [(ClassCounts(M), Params())]
    (value,), others, sent = shared_releases(requests, (x, y), 4, seed=None, sigma=5.0)
    for i, one in sent:
        counted = np.bincount(y[75 * i : 75 * (i + 1)], minlength=M)
        assert np.array_equal(one, counted[:, None] * 2**10)
    assert not np.array_equal(value, np.bincount(y, minlength=M)[:, None])
    assert all(np.array_equal(value, other) for (other,) in others)


@given(st.integers(1, 300), st.integers(1, 4), st.floats(0.01, 0.99))
def test_every_sampled_row_is_summed_by_the_one_process_that_holds_it(n, count, prob):
    """Without noise and a clip norm, which all processes find together."""
    x, y = toy(n)
    spec = {"sigma": 0.0, "clip_norm": float("inf"), "sampling_prob": prob}
    requests = [(ClassSums(M), Params())]
    (value,), others, _ = shared_releases(requests, (x, y), count, **spec)
    alone = release_one(*requests[0], ArrayRows(x, y, 128), 1, **spec).value
    assert np.array_equal(value, alone)
    assert all(np.array_equal(other, alone) for (other,) in others)


def test_a_group_that_lies_in_several_parts_keeps_its_cap():
    x = np.ones((300, D), np.float32)
    y = np.zeros(300, int)
    groups = np.arange(300) % 3  # each group has rows in every part
    for prob in (1.0, 0.999999):
        (value,), _, _ = shared_releases(
            [(ClassCounts(M), Params())],
            (x, y),
            3,
            groups=groups,
            cap=2,
            sigma=0.0,
            clip_norm=float("inf"),
            sampling_prob=prob,
        )
        assert value[0, 0] == 3 * 2


class _Cheating(ArrayRows):
    """Rows whose last block is yielded so many times."""

    def __init__(self, rows, times):
        self.__dict__ = rows.__dict__
        self._times = times

    def blocks(self, indices=None, known=None):
        blocks = list(super().blocks(indices))
        yield from blocks[:-1] + blocks[-1:] * self._times


@pytest.mark.parametrize("cheater", [0, 2])
@pytest.mark.parametrize("times", [0, 2])
def test_each_process_checks_that_it_uses_each_slot_of_its_part_once(cheater, times):
    with pytest.raises(RuntimeError, match="exactly once"):
        shared_releases(
            [(ClassSums(M), Params())],
            toy(600),
            3,
            change=lambda i, rows: _Cheating(rows, times) if i == cheater else rows,
        )


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("held", [(9, None), (150, 2)])
def test_a_process_that_holds_another_part_or_cap_raises(process, held):
    x, y = toy(300)
    n, cap = held

    def change(i, rows):
        if i != process:
            return rows
        other = ArrayRows(x[:n], y[:n])
        other.group_cap = cap
        return other

    with pytest.raises(RuntimeError, match="must hold rows"):
        shared_releases([(ClassSums(M), Params())], (x, y), 2, change=change)


def test_sums_that_float64_would_round_are_added_as_they_are():
    """Beyond 2**53 float64 holds every second whole number at most."""
    own = np.array([2**60 + 1, -(2**53) - 1, -1], np.int64)
    found, _ = together(3, lambda hosts: hosts.total(own))
    for total in found:
        assert total.dtype == np.int64
        assert total.tolist() == [3 * int(v) for v in own]


def test_a_released_value_arrives_bit_for_bit():
    """Also a negative zero and a NaN, which a sum over processes would change."""
    sent = np.array([-0.0, np.nan, 5e-324, -np.inf])
    other = np.ones(4)
    found, _ = together(2, lambda h: h.from_first(sent if h.first else other))
    for value in found:
        assert value.tobytes() == sent.tobytes()


def test_the_largest_norm_of_parts_is_that_of_all_rows():
    x, y = toy(300)
    x *= np.linspace(0.1, 3.7, 300, dtype=np.float32)[:, None]
    whole = ArrayRows(x, y)
    spec = spec_of(ClassSums(M), 300)
    request = SumTask(ClassSums(M), Params(), np.inf, whole, spec=spec)
    alone = VerifiedSum().largest_norm(request)

    def work(hosts):
        at = bounds(300, hosts.count)
        own = ArrayRows(*(a[at[hosts.index] : at[hosts.index + 1]] for a in (x, y)))
        if not hosts.first:
            hosts.next(0, None, 300)
        return SumOfParts(hosts, own).largest_norm(request, ReferenceSums())

    for count in (1, 3):
        assert together(count, work)[0] == [alone] * count


@pytest.mark.parametrize("texts", [["", "é", "long " * 99], ["same", "same", "same"]])
def test_texts_and_bytes_arrive_as_they_are_whatever_their_length(texts):
    def work(hosts):
        own = texts[hosts.index]
        return hosts.texts(own), hosts.bytes_from_first(own.encode())

    found, _ = together(3, work)
    assert found == [(texts, texts[0].encode())] * 3
