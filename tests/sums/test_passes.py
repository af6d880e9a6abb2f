"""One pass over rows: each slot once, on every core, and a secret run of rows added
again.
"""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from core import NAMES, STATISTICS, D, M, integer_sum, release_one, toy

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import Block
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import (
    ClassCounts,
    ClassSums,
    CorrectCounts,
    Gradient,
    Gram,
    RowCounts,
)
from dphead.privacy.transform import RowTransform
from dphead.sums import passes
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import mirror
from dphead.sums.reference import ReferenceSums


class Custom:
    """A row source that hands out the blocks it is given."""

    def __init__(self, n_rows, *blocks):
        self.n_rows, self.n_features, self.group_cap, self.given = (
            n_rows,
            D,
            None,
            blocks,
        )

    def blocks(self, indices=None, known=None):
        yield from self.given


def block(index, dtype=np.float32, label=0):
    index = np.concatenate([index, np.full(-len(index) % 128, -1)])
    return Block(
        index, np.ones((len(index), D), dtype), np.full(len(index), label, np.int32)
    )


@pytest.mark.parametrize(
    "blocks",
    [
        [block([0, 1, 2, 3]), block([0])],
        [block([0, 1, 2, 2, 3])],
        [block([0, 1, 2])],
        [],
        [block([0, 1, 2, 3])] * 2,
        # a count kept in eight bits would have come round to one
        [block([0, 1, 2, 3])] * 257,
        [block([0, 1, 2, 3]), *[block([1])] * 256],
    ],
    ids=[
        "row again",
        "row twice in a block",
        "row missing",
        "nothing",
        "pass twice",
        "257 passes",
        "row 257 times",
    ],
)
@pytest.mark.parametrize("prob", [1.0, 0.999999])
def test_a_pass_that_does_not_use_each_slot_exactly_once_raises(blocks, prob):
    """A repeated stream counts rows twice (defect 2)."""
    with pytest.raises(RuntimeError, match="exactly once"):
        release_one(ClassCounts(M), Params(), Custom(4, *blocks), sampling_prob=prob)


def test_a_sampled_pass_that_hands_out_other_rows_raises():
    class Wrong(ArrayRows):
        def blocks(self, indices=None, known=None):
            return super().blocks((indices + 1) % self.n_rows)

    with pytest.raises(RuntimeError, match="exactly once"):
        release_one(ClassCounts(M), Params(), Wrong(*toy(50)), sampling_prob=0.5)


def test_padding_of_a_block_is_not_used_whatever_it_holds():
    """Ordinary rows of a class, in slots that are none (defect 13)."""
    x = np.ones((6, D), np.float32)
    y = np.zeros(6, np.int32)
    padded = Custom(3, Block(np.array([0, -1, 1, -1, 2, -1]), x, y))
    for statistic in (ClassCounts(M), ClassSums(M), Gram(M)):
        assert np.array_equal(
            integer_sum(statistic, Params(), padded),
            integer_sum(statistic, Params(), x[:3], y[:3]),
        )


class Streamed(ArrayRows):
    """Rows whose features are read where the pass does not know them.

    read: the slots of blocks that were.
    """

    def blocks(self, indices=None, known=None):
        self.read = set()
        for one in super().blocks(indices):
            if known is None or not known(one.index):
                self.read |= set(one.index.tolist())
                yield one
            else:
                yield replace(one, x=one.x[:, :0])


def test_features_of_kept_rows_are_read_for_the_secret_run_alone(monkeypatch):
    """The second pass reads one block, the one that the reference adds too, and gives
    the same sum.
    """
    x, y = toy(600)
    rows = Streamed(x, y, 128)
    kept = KeptRows(1 << 20)
    params = Params(weights=np.zeros((D, M)))
    secret = [200]
    monkeypatch.setattr(passes, "secret_slot", lambda n_rows, indices: secret[0])
    sums = []
    for slot in (200, 200, 599):
        secret[0] = slot
        try:
            sums.append(integer_sum(Gradient(M), params, rows, kept=kept))
        except Exception as error:
            raise AssertionError("the secret run needs its features") from error
        first = slot // 128 * 128
        wanted = (
            set(range(600))
            if len(sums) == 1
            else set(range(first, min(first + 128, 600)))
        )
        assert rows.read - {-1} == wanted
    assert np.array_equal(sums[0], sums[1])
    assert np.array_equal(sums[0], sums[2])


def test_a_count_uses_rows_that_gradients_kept_and_keeps_none(monkeypatch):
    """Gradients clip contributions, so both use the rows' directions. The rows of a
    gradient stay after a count under another transform.
    """
    x, y = toy(600)
    rows = Streamed(x, y, 128)
    kept = KeptRows(1 << 20)
    monkeypatch.setattr(passes, "secret_slot", lambda n_rows, indices: 200)
    weights = np.random.default_rng(0).standard_normal((D, M))
    params = Params(weights=weights)
    for statistic, own, n_read in (
        (RowCounts(M), params, 600),
        (Gradient(M), params, 600),
        (RowCounts(M), Params(RowTransform(True)), 600),
        (CorrectCounts(M), params, 128),
    ):
        found = integer_sum(statistic, own, rows, kept=kept)
        assert len(rows.read - {-1}) == n_read
        assert np.array_equal(found, integer_sum(statistic, own, x, y))


class Together(Streamed):
    """Two blocks that are known are one."""

    def blocks(self, indices=None, known=None):
        waiting = []
        for one in super().blocks(indices, known):
            waiting.append(one)
            if one.x.shape[1] or len(waiting) > 1:
                yield from joined(waiting)
                waiting = []
        yield from waiting


def joined(blocks):
    """One of two that are not read, else each as it is."""
    if len(blocks) < 2 or any(one.x.shape[1] for one in blocks):
        return blocks
    parts = zip(*((one.index, one.x, one.y) for one in blocks), strict=True)
    return [Block(*map(np.concatenate, parts))]


@pytest.mark.parametrize("way", [CpuSums(), CpuSums(compiled=False), ReferenceSums()])
def test_kept_rows_of_several_blocks_are_all_added(way):
    """Whichever the secret run's block is, which is read; the last block is short."""
    x, y = toy(1200)
    rows = Together(x, y, 128)
    kept = KeptRows(1 << 20)
    params = Params(weights=np.random.default_rng(0).standard_normal((D, M)))
    wanted = integer_sum(
        Gradient(M), params, ArrayRows(x, y), block_sum=ReferenceSums()
    )
    for _ in range(8):
        found = integer_sum(Gradient(M), params, rows, block_sum=way, kept=kept)
        assert np.array_equal(found, wanted)
    assert len(rows.read - {-1}) <= 128  # the others were known


def test_rows_that_were_not_read_are_refused():
    """A source that leaves features out unasked would have rows count zero."""
    unread = Custom(4, replace(block([0, 1, 2, 3]), x=np.ones((128, 0), np.float32)))
    with pytest.raises(Exception) as refusal:  # any: what is asserted is which
        integer_sum(ClassCounts(M), Params(), unread)
    assert "were not read" in str(refusal.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_blocks_of_another_precision_are_refused(dtype):
    with pytest.raises(TypeError, match="float32"):
        release_one(ClassCounts(M), Params(), Custom(4, block([0, 1, 2, 3], dtype)))


def of_shapes(x, y, index):
    return Block(np.arange(index), np.ones(x, np.float32), np.zeros(y, np.int32))


@pytest.mark.parametrize(
    "bad",
    [
        of_shapes((4, 1), 4, 4),  # would be added to each column
        of_shapes(4, 4, 4),
        of_shapes((4, D), (4, M, 1), 4),
        of_shapes((4, D), 3, 4),
        of_shapes((3, D), 4, 4),
    ],
)
def test_blocks_of_another_shape_are_refused(bad):
    with pytest.raises(Exception) as refused:
        release_one(ClassSums(M), Params(), Custom(4, bad))
    assert "float32 features" in str(refused.value)


class OffByOne(CpuSums):
    """A kernel that is wrong by one in one entry of one row's statistic, wherever the
    row is.
    """

    def __init__(self, entry):
        super().__init__()
        self.entry = entry

    def add(self, ask, rows, y, used, out):
        out = super().add(ask, rows, y, used, out)
        out[0, 0] += np.sum((rows.q[:, 0] == self.entry) & used)
        return out


@pytest.mark.parametrize(
    "statistic", [ClassSums(M), Gradient(M), Gram(M)], ids=lambda q: q.name
)
@pytest.mark.parametrize("sample", [False, True])
def test_a_kernel_that_is_off_by_one_in_one_row_is_caught_by_the_secret_run(
    monkeypatch, statistic, sample
):
    """Where the secret slot is in the same run of 32; elsewhere nothing is
    seen, and nothing is told.
    """
    n, bad = 300, 137
    x = np.tile(np.array([0.0, 1.0, 2.0, 1.0], np.float32), (n, 1))
    y = np.zeros(n, int)
    x[bad] = [1.0, 0.0, 0.0, 0.0]
    params = Params(weights=np.ones((D, M)))
    indices = np.arange(0, n) if sample else None
    asks = integer_sum(statistic, params, x, y, indices=indices)
    entry = 4094  # the clipped row, alone in its first entry
    wrong = 0
    for slot in range(0, n, 16):
        monkeypatch.setattr(passes.secrets, "randbelow", lambda _, slot=slot: slot)
        way = OffByOne(entry)
        if slot // 32 == bad // 32:
            wrong += 1
            with pytest.raises(RuntimeError, match="differs from the reference"):
                integer_sum(statistic, params, x, y, block_sum=way, indices=indices)
        else:
            total = integer_sum(statistic, params, x, y, block_sum=way, indices=indices)
            assert (total - asks)[0, 0] == 1
    assert wrong == 2


def test_the_secret_slot_is_any_slot_of_the_pass(monkeypatch):
    """Drawn from the operating system; of a sample, one of its slots; of nothing,
    none.
    """
    asked = []
    monkeypatch.setattr(passes.secrets, "randbelow", lambda n: asked.append(n) or n - 1)
    assert passes.secret_slot(50, None) == 49
    assert passes.secret_slot(50, np.array([3, 7, 9])) == 9
    assert passes.secret_slot(50, np.zeros(0, int)) is None
    assert passes.secret_slot(0, None) is None
    assert asked == [50, 3]


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
def test_sums_do_not_depend_on_cores_blocks_or_the_order_of_rows(
    monkeypatch, statistic
):
    x, y = toy(700)
    x[3], x[4], y[5], y[6] = np.nan, np.inf, -1, M
    params = Params(weights=np.random.default_rng(0).standard_normal((D, M)))
    order = np.random.default_rng(1).permutation(700)
    wanted = integer_sum(statistic, params, x, y)
    for cores, rows in ((1, 7), (2, 128), (3, 256)):
        monkeypatch.setattr(passes, "cores", lambda cores=cores: cores)
        for a, b in ((x, y), (x[order], y[order])):
            found = integer_sum(statistic, params, a, b, block_rows=rows)
            assert np.array_equal(wanted, found)


def test_large_sums_are_held_by_fewer_cores(monkeypatch):
    """The integers are the same with one sum for all cores."""
    x, y = toy(700)
    wanted = integer_sum(ClassSums(M), Params(), x, y)
    monkeypatch.setattr(passes, "MAX_SUM_COPY_BYTES", 0)
    assert np.array_equal(wanted, integer_sum(ClassSums(M), Params(), x, y))


@pytest.mark.parametrize("d", [1, 5, 191, 192, 193, 500])
def test_a_symmetric_sum_is_mirrored_from_its_upper_triangle(d):
    square = np.random.default_rng(d).integers(-9, 9, (2, d, d))
    wanted = np.triu(square) + np.swapaxes(np.triu(square, 1), -1, -2)
    mirror(square)
    assert np.array_equal(square, wanted)


@pytest.mark.parametrize(
    "statistic", [q for q in STATISTICS if q.symmetric], ids=lambda q: q.name
)
def test_a_symmetric_release_is_symmetric_to_the_last_bit(statistic):
    """Its noise is: an asymmetric sum would be released without any noise, whatever a
    kernel leaves below.
    """

    class Skewed(CpuSums):
        def add(self, ask, rows, y, used, out):
            return super().add(ask, rows, y, used, out) + np.tril(
                np.ones((D, D), np.int64), -1
            )

    x, y = toy(256)
    params = Params(weights=np.zeros((D, M)))
    values = [
        release_one(statistic, params, ArrayRows(x, y), block_sum=way).value
        for way in (CpuSums(), Skewed())
    ]
    assert np.array_equal(values[0], np.swapaxes(values[0], -1, -2))
    assert np.array_equal(values[0], values[1])


def _adding(done):
    def add(item, out):
        if item is None:
            raise OSError("a block cannot be read")
        time.sleep(0.02)
        done.append(threading.get_ident())
        out[0] += item
        return out

    return add


def test_no_two_threads_add_to_one_sum_at_a_time(monkeypatch):
    """Three threads, blocks of different lengths; each sum is one thread's until it
    has added.
    """
    monkeypatch.setattr(passes, "cores", lambda: 3)
    taken = []

    def add(item, out):
        assert not any(out is other for other in taken), "a sum of another thread"
        taken.append(out)
        time.sleep(0.001 * item)
        out[0] += item
        taken[:] = [other for other in taken if other is not out]
        return out

    items = [9, 1, 1, 1, 5, 1, 3, 1, 1, 7, 1]
    total = passes.on_every_core(add, iter(items), lambda: [np.zeros(1)])
    assert total == [sum(items)]


def test_no_block_is_summed_after_a_pass_has_failed(monkeypatch):
    """And the next pass adds up all of its own."""
    monkeypatch.setattr(passes, "cores", lambda: 2)
    done = []
    with pytest.raises(OSError, match="cannot be read"):
        passes.on_every_core(
            _adding(done), iter([1, None, 2, 3, 4]), lambda: [np.zeros(1)]
        )
    seen = len(done)
    time.sleep(0.2)
    assert 0 < len(done) == seen
    total = passes.on_every_core(_adding(done), iter([3, 4, 5]), lambda: [np.zeros(1)])
    assert total == [12]


def test_an_interrupt_while_a_thread_starts_leaves_the_next_pass_one_thread_a_sum(
    monkeypatch,
):
    """Threads kept between passes did not: the executor lost count of one that had
    started, and two added to a sum.
    """
    monkeypatch.setattr(passes, "cores", lambda: 2)
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        passes.on_every_core(_adding([]), iter(range(9)), lambda: [np.zeros(1)])
    monkeypatch.setattr(threading.Thread, "start", start)
    by = []
    total = passes.on_every_core(_adding(by), iter(range(9)), lambda: [np.zeros(1)])
    assert total == [36]
    assert len(set(by)) == 2


def test_kept_rows_of_a_sample_are_read_again():
    """Samples have other slots in each block."""
    rows = Streamed(*toy(600), 128)
    kept = KeptRows(1 << 20)
    params = Params(weights=np.zeros((D, M)))
    for indices in (None, np.arange(0, 600, 2)):
        found = integer_sum(Gradient(M), params, rows, indices=indices, kept=kept)
        assert rows.read - {-1} == set(
            range(600) if indices is None else indices.tolist()
        )
        assert np.array_equal(
            found,
            integer_sum(Gradient(M), params, ArrayRows(*toy(600)), indices=indices),
        )
