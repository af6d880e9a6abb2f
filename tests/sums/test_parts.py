"""A sum whose rows lie with several processes (threads here): every slot once, one
noise, the sum of one process.
"""

import threading
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from core import (
    NAMES,
    QUERIES,
    D,
    KnownNoise,
    M,
    door,
    release_one,
    reserve,
    spec_of,
    toy,
)
from hypothesis import given
from hypothesis import strategies as st

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import ReleaseSpec, SumRequest
from dphead.privacy.query import Params
from dphead.privacy.release import release
from dphead.privacy.statistics import (
    COUNT_SCALE,
    ClassCounts,
    ClassSums,
    Gram,
    SigmoidHessians,
)
from dphead.privacy.transform import RowTransform
from dphead.sums import parts as parts_module
from dphead.sums.cpu import CpuSums
from dphead.sums.parts import PartAsk, SumOfParts, _sum, bounds, serve
from dphead.sums.passes import NO_ROWS
from dphead.sums.reference import ask_of
from dphead.sums.verified import VerifiedSum


class Threads:
    """The processes of `parts`, as threads.

    sent: every sum that a thread sent; asked: what it was asked.
    """

    def __init__(self, count):
        self.count, self.sent, self.asked = count, [], []
        self._asks = [SimpleQueue() for _ in range(count)]
        self._answers = [SimpleQueue() for _ in range(count)]

    def ask(self, process, ask):
        self.asked.append((process, ask))
        self._asks[process].put(ask)

    def receive(self, process, shape):
        value = self._answers[process].get(timeout=600)
        if isinstance(value, Exception):
            raise value
        assert value.shape == shape
        assert value.dtype == np.int64
        return value

    def end(self):
        for asks in self._asks:
            asks.put(None)

    def first(self, process):
        """The way of thread `process` to the first."""
        return _First(self, self._asks[process], self._answers[process])

    def run(self, process, own):
        try:
            serve(self.first(process), own, CpuSums())
        except Exception as error:
            self._answers[process].put(error)


class _First:
    def __init__(self, threads, asks, answers):
        self._threads, self._asks, self._answers = threads, asks, answers

    def next(self):
        return self._asks.get(timeout=600)

    def answer(self, value):
        self._threads.sent.append(value)
        self._answers.put(value)


@contextmanager
def parts(x, y, count, groups=None, cap=None, change=lambda i, rows: rows):
    """(rows as a whole, Threads, the first one's part) with the other threads at
    work.
    """
    whole = ArrayRows(x, y, 128, groups, cap)
    y = whole._y  # without the rows beyond their cap: a group may lie in several parts
    at = bounds(len(x), count)
    threads = Threads(count)
    own = []
    for i in range(count):
        part = ArrayRows(
            x[at[i] : at[i + 1]],
            y[at[i] : at[i + 1]],
            128,
        )
        part.group_cap = cap
        own.append(change(i, part))
    running = [
        threading.Thread(target=threads.run, args=(i, own[i]), daemon=True)
        for i in range(1, count)
    ]
    for t in running:
        t.start()
    try:
        yield whole, threads, own[0]
    finally:
        threads.end()
        for t in running:
            t.join(timeout=600)


def shared_release(
    query,
    params,
    rows,
    count,
    seed=1,
    cap=None,
    groups=None,
    change=lambda i, rows: rows,
    **spec,
):
    """`core.release_one` with the rows (x, y) in `count` parts: the released value and
    the Threads.
    """
    x, y = rows
    with parts(x, y, count, groups, cap, change) as (whole, threads, own):
        s = spec_of(query, len(x), group_cap=cap, **spec)
        summer = VerifiedSum(CpuSums(), parts=SumOfParts(threads, own))
        value = release(
            query,
            params,
            whole,
            s,
            ledger=reserve([s]),
            noise=KnownNoise(seed),
            summer=summer,
        )
        return value.value, threads


@given(st.integers(0, 2000), st.integers(1, 40))
def test_parts_are_a_partition_of_the_slots(n_rows, processes):
    at = bounds(n_rows, processes)
    slots = [slot for i in range(processes) for slot in range(at[i], at[i + 1])]
    assert slots == list(range(n_rows))
    sizes = np.diff(at)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_sum_of_parts_is_the_sum_of_one_process_with_its_one_noise(query, count):
    """The same seed gives the same one draw, and integers add up to the same in any
    parts: bit for bit.
    """
    x, y = toy(300)
    params = Params(
        RowTransform(append=1.0),
        np.full((D + 1, M), 0.1, np.float32),
    )
    if query.name.startswith("ChannelMoment"):  # of features alone
        params = Params(RowTransform())
    alone = release_one(query, params, ArrayRows(x, y, 128), 1).value
    value, threads = shared_release(query, params, (x, y), count)
    assert np.array_equal(value, alone)
    assert len(threads.sent) == count - 1  # one sum of each other process, once


def test_class_sums_of_parts_are_made_in_the_pass_of_the_gram_matrix():
    """The others sum once for both releases; the values are those of one process
    without `NextSum`.
    """
    x, y = toy(300)
    params = Params(RowTransform(append=1.0))
    queries = (Gram(M), ClassSums(M))
    specs = [spec_of(query, 300) for query in queries]
    values = []
    with parts(x, y, 3) as (whole, threads, own):
        for summer in (VerifiedSum(CpuSums(), parts=SumOfParts(threads, own)), None):
            more = {"ledger": reserve(specs), "noise": KnownNoise(1)}
            # alone: a summer for each, so that nothing waits
            pairs = zip(queries, specs, strict=True)
            values.append(
                [
                    release(q, params, whole, s, summer=summer or door(), **more).value
                    for q, s in pairs
                ]
            )
    assert len(threads.sent) == 2
    for together, alone in zip(*values, strict=True):
        assert np.array_equal(together, alone)


def test_only_the_first_process_draws_noise():
    """Whatever sigma is, the sums that travel are those without noise: COUNT_SCALE for
    each row, of the classes.
    """
    x, y = toy(300)
    value, threads = shared_release(
        ClassCounts(M), Params(), (x, y), 4, sigma=5.0, seed=None
    )
    counted = []
    for i in (75, 150, 225):
        rows = np.bincount(y[i : i + 75], minlength=M)
        counted.append(rows[:, None] * COUNT_SCALE)
    assert sorted(one.tolist() for one in threads.sent) == sorted(
        one.tolist() for one in counted
    )
    assert not np.array_equal(value, np.bincount(y, minlength=M)[:, None])


@given(
    st.integers(1, 300),
    st.integers(1, 5),
    st.floats(0.01, 0.99),
)
def test_every_sampled_row_is_asked_of_one_process_that_holds_it(n, count, prob):
    x, y = toy(n)
    query = ClassSums(M)
    spec = {"sigma": 0.0, "clip_norm": float("inf"), "sampling_prob": prob}
    value, threads = shared_release(query, Params(), (x, y), count, **spec)
    alone = release_one(query, Params(), ArrayRows(x, y, 128), 1, **spec).value
    assert np.array_equal(value, alone)
    at = bounds(n, count)
    for process, ask in threads.asked:
        assert ask.n_rows == at[process + 1] - at[process]
        # it learns nothing of the others' sample
        assert np.all((ask.indices >= 0) & (ask.indices < ask.n_rows))


def test_a_group_that_lies_in_several_parts_keeps_its_cap():
    x = np.ones((300, D), np.float32)
    y = np.zeros(300, int)
    groups = np.arange(300) % 3  # each group has rows in every part
    for prob in (1.0, 0.999999):
        value, _ = shared_release(
            ClassCounts(M),
            Params(),
            (x, y),
            3,
            cap=2,
            groups=groups,
            sigma=0.0,
            clip_norm=float("inf"),
            sampling_prob=prob,
        )
        assert value[0, 0] == 6  # 3 groups, 2 rows of each; not 2 of each in every part


class _Cheating:
    """A part that yields one of its blocks twice, or not at all."""

    def __init__(self, rows, times):
        self._rows, self._times = rows, times
        self.n_rows, self.n_features, self.group_cap = (
            rows.n_rows,
            rows.n_features,
            rows.group_cap,
        )

    def blocks(self, indices=None, known=None):
        blocks = list(self._rows.blocks(indices))
        yield from blocks[:-1] + blocks[-1:] * self._times


@pytest.mark.parametrize("cheater", [0, 1, 2])
@pytest.mark.parametrize("times", [0, 2])
def test_each_process_checks_that_it_uses_each_slot_of_its_part_once(cheater, times):
    x, y = toy(600)
    with pytest.raises(RuntimeError, match="each row slot exactly once"):
        shared_release(
            ClassSums(M),
            Params(),
            (x, y),
            3,
            change=lambda i, rows: _Cheating(rows, times) if i == cheater else rows,
        )


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_holds_another_part_raises(process):
    x, y = toy(301)
    with pytest.raises(RuntimeError, match="must hold the part"):
        shared_release(
            ClassSums(M),
            Params(),
            (x, y),
            2,
            change=lambda i, rows: ArrayRows(x[:9], y[:9]) if i == process else rows,
        )


@pytest.mark.parametrize(
    ("n_rows", "held"),
    [(4, None), (4, 1), (4, 3), (5, 2)],
)
def test_a_process_that_holds_another_part_or_cap_does_not_sum_it(n_rows, held):
    """Its own rows are checked before they are read: the first process cannot see
    them.
    """
    x, y = toy(4)
    own = ArrayRows(x, y, groups=np.arange(4), group_cap=held)
    query = ClassSums(M)
    ask = PartAsk(query, Params(), spec_of(query, 8, group_cap=2), 1.0, n_rows, None)
    # a pass would find that slots are missing, which is another error
    own.blocks = lambda *asked: iter(())
    with pytest.raises(RuntimeError, match="must hold the part that it is asked for"):
        _sum(ask, own, CpuSums(), NO_ROWS)


def test_sums_that_float64_would_round_are_added_as_they_are(monkeypatch):
    """Beyond 2**53 float64 holds every second whole number at most."""
    own = np.array(
        [2**60 + 1, -(2**53) - 1, -1],
        np.int64,
    )
    monkeypatch.setattr(parts_module, "_sum", lambda *given: own[:, None].copy())
    x, y = toy(4)
    query = ClassCounts(3)
    with parts(x, y, 3) as (whole, threads, first):
        request = SumRequest(query, Params(), whole, spec_of(query, 4), 1.0)
        ask = ask_of(query, request.params, 1.0, whole)
        total = SumOfParts(threads, first)(ask, request, CpuSums())
    assert total.dtype == np.int64
    assert total[:, 0].tolist() == [3 * int(v) for v in own]


def test_no_number_of_rows_is_too_many_for_a_process():
    """The private number of rows must not decide, after the charge, whether a fit goes
    on.
    """
    query = SigmoidHessians(2)
    spec = ReleaseSpec("hessians", query.name, 1.0, 1.0, 1000, relation="add_remove")

    def stops(n_rows):
        rows: Any = SimpleNamespace(n_rows=n_rows, n_features=3, group_cap=None)
        processes: Any = SimpleNamespace(count=2, ask=lambda process, ask: None)
        try:
            SumOfParts(processes, rows)._send(
                query, SumRequest(query, Params(), rows, spec, 1.0), 1.0
            )
        except ValueError:
            return True
        return False

    most = 2 * (2**53 // query.max_entry)  # of which float64 holds every sum
    assert [stops(n) for n in (most, most + 1)] == [False, False]


def test_the_largest_norm_of_parts_is_that_of_all_rows():
    """Its bits travel as an integer."""
    x, y = toy(300)
    x *= np.linspace(0.1, 3.7, 300, dtype=np.float32)[:, None]
    request = SumRequest(
        ClassSums(M), Params(), ArrayRows(x, y), spec_of(ClassSums(M), 300), np.inf
    )
    alone = VerifiedSum().largest_norm(request)
    for count in (1, 3):
        with parts(x, y, count) as (whole, threads, own):
            found = SumOfParts(threads, own).largest_norm(replace(request, rows=whole))
        assert found == alone
