"""`release`: what is refused, when it is charged, and that nothing a row holds can raise, warn or skip the noise."""

import copy
import math
import pickle
import sys
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
from core import NAMES, QUERIES, CompiledGradient, D, M, clipped_sum, release_one, reserve, spec_of, toy
from dphead.privacy.mechanism import _transformed, numpy_block_sum
from dphead.privacy.sums import PIECE

from dphead.data import ArrayRows
from dphead.privacy import mechanism
from dphead.privacy.accounting import epsilon_from_mu
from dphead.privacy.contract import Block, ReleaseSpec
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.noise import NoiseSource, gaussian
from dphead.privacy.release import noise_scale, release
from dphead.privacy.statistics import ClassCounts, ClassGrams, ClassSums, Gradient, Gram, GramAndSums, Params, Query
from dphead.privacy.transform import RowTransform
from dphead.sums.caches import KeptSums, NextSum
from dphead.sums.cpu import CpuSums
from dphead.sums.jax import jax_block_sum

HOSTILE = np.array(
    [[np.nan] * D, [np.inf] * D, [-np.inf, 0, 0, 0], [3.4e38] * D, [1e30] * D, [1e-45] * D, [0.0] * D, [1, -1, 1e19, 0],
     [-0.0] * D, [1e-19] * D], np.float32
)  # fmt: skip
LABELS = np.array([0, 1, 2, 0, 1, 2, -1, M, 2**31 - 1, -(2**31)])


class Custom:
    """A row source that hands out the blocks it is given."""

    def __init__(self, n_rows, *blocks):
        self.n_rows, self.n_features, self.group_cap, self.given = n_rows, D, None, blocks

    def blocks(self, indices=None):
        yield from self.given


def block(index, dtype=np.float32, label=0):
    index = np.concatenate([index, np.full(-len(index) % 128, -1)])
    return Block(index, np.ones((len(index), D), dtype), np.full(len(index), label, np.int32))


@pytest.mark.parametrize(
    "blocks",
    [
        [block([0, 1, 2, 3]), block([0])],
        [block([0, 1, 2, 2, 3])],
        [block([0, 1, 2])],
        [],
        [block([0, 1, 2, 3])] * 2,
        [block([0, 1, 2, 3])] * 257,  # a count kept in eight bits would have come round to one
        [block([0, 1, 2, 3]), *[block([1])] * 256],
    ],
    ids=["row again", "row twice in a block", "row missing", "nothing", "pass twice", "257 passes", "row 257 times"],
)
@pytest.mark.parametrize("prob", [1.0, 0.999999])
def test_a_pass_that_does_not_use_each_slot_exactly_once_raises(blocks, prob):
    """A repeated stream counts rows twice (defect 2)."""
    with pytest.raises(RuntimeError, match="exactly once"):
        release_one(ClassCounts(M), Params(), Custom(4, *blocks), sampling_prob=prob)


def test_a_sampled_pass_that_hands_out_other_rows_raises():
    class Wrong(ArrayRows):
        def blocks(self, indices=None):
            return super().blocks((indices + 1) % self.n_rows)

    with pytest.raises(RuntimeError, match="exactly once"):
        release_one(ClassCounts(M), Params(), Wrong(*toy(50)), sampling_prob=0.5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_blocks_of_another_precision_are_refused(dtype):
    with pytest.raises(TypeError, match="float32"):
        release_one(ClassCounts(M), Params(), Custom(4, block([0, 1, 2, 3], dtype)))


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize("transform", [RowTransform(), RowTransform(True, np.full(D, 0.1, np.float32), None, 0.0)])
@pytest.mark.parametrize("weight", [0.0, 1e36])
def test_nothing_raises_or_warns_because_of_a_rows_value(query, transform, weight):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, len(HOSTILE)):
            params = Params(transform, np.full((D, M), weight, np.float32))
            rows = ArrayRows(HOSTILE[-n:], LABELS[-n:])
            for block_sum in (numpy_block_sum, jax_block_sum):
                released = release_one(query, params, rows, block_sum=block_sum)
                assert np.isfinite(released.value).all() and np.all(released.value != 0)


def test_the_value_is_the_sum_plus_the_seeded_noise_on_the_grid():
    """The noise that was added, drawn again from the same seed: sd = σΔ(1 + slack), added once."""
    x, y = toy(300)
    for query, relation in ((Gram(M), "zero_out"), (ClassSums(M), "replace_one"), (Gradient(M), "add_remove")):
        params = Params(RowTransform(append=0.5), np.zeros((D + 1, M), np.float32))
        spec = spec_of(query, 300, clip_norm=0.7, sigma=1.9, relation=relation)
        ledger = reserve([spec, spec])
        for sequence in (0, 1):
            released = release(query, params, ArrayRows(x, y), spec, ledger=ledger, noise=NoiseSource(8))
            base = query.sensitivity(0.7, relation, 0.5)
            assert 1.9 * base < released.noise_sd < 1.9 * base * 1.01
            z = gaussian(
                NoiseSource(8).generator(sequence, "noise"), released.value.shape, released.noise_sd, query.symmetric
            )
            exact = clipped_sum(query, params, x, y, 0.7, relation=relation)
            _, grid = noise_scale(query, spec, 0.5, D + 1)
            assert np.abs(released.value - exact - z).max() <= grid * 1.001


def test_an_epsilon_of_infinity_adds_nothing():
    x, y = toy(300)
    value = release_one(ClassSums(M), Params(), ArrayRows(x, y), sigma=0.0, clip_norm=math.inf).value
    np.testing.assert_allclose(value, [[x[y == c, j].sum(dtype=float) for c in range(M)] for j in range(D)], atol=1e-9)


@pytest.mark.parametrize(
    "change",
    [{"clip_norm": math.nan}, {"clip_norm": math.inf}, {"clip_norm": 0.0}, {"clip_norm": 1e-7}, {"clip_norm": -1.0},
     {"noise_multiplier": math.nan}, {"noise_multiplier": math.inf}, {"noise_multiplier": -1.0}, {"sampling_prob": 0.0},
     {"sampling_prob": 1.5}, {"sampling_prob": math.nan}, {"relation": "add_one"}],
    ids=str,
)  # fmt: skip
def test_a_spec_that_would_not_mean_what_it_says_is_refused(change):
    good = {"label": "a", "query": "q", "clip_norm": 1.0, "noise_multiplier": 1.0, "n_rows": 5}
    ReleaseSpec(**good)
    with pytest.raises(ValueError):
        ReleaseSpec(**(good | change))


class Broken(Query):
    """A sensitivity that is not a positive number must never turn the noise off."""

    value: float = math.nan

    def sensitivity(self, clip_norm, relation, append=0.0):
        return type(self).value

    def shape(self, width):
        return (width, 1)

    def factors(self, xp, params, phi, squared, y, keep, clip_norm):
        return phi, keep[:, None].astype(np.float32)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_no_sensitivity_turns_the_noise_off(value):
    Broken.value = value
    with np.errstate(all="ignore"), pytest.raises((ValueError, OverflowError)):
        release_one(Broken(M), Params(), ArrayRows(*toy(20)))


class Counted(ArrayRows):
    reads = 0

    def blocks(self, indices=None):
        Counted.reads += 1
        return super().blocks(indices)


@pytest.fixture
def rows():
    Counted.reads = 0
    return Counted(*toy(40))


def test_a_release_that_was_not_planned_reads_nothing(rows):
    query = ClassSums(M)
    spec = spec_of(query, 40)
    ledger = reserve([spec])
    others = [
        spec_of(query, 40, sigma=0.9), spec_of(query, 40, clip_norm=2.0), spec_of(query, 40, relation="replace_one"),
        spec_of(query, 40, sampling_prob=0.5), spec_of(query, 40, label="other"),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(LedgerError):
            release(query, Params(), rows, other, ledger=ledger, noise=NoiseSource(1))
    with pytest.raises(ValueError, match="planned"):
        release(Gram(M), Params(), rows, spec, ledger=ledger, noise=NoiseSource(1))
    assert Counted.reads == 0
    release(query, Params(), rows, spec, ledger=ledger, noise=NoiseSource(1))
    with pytest.raises(LedgerError):  # one more step than was accounted for (defect 3)
        release(query, Params(), rows, spec, ledger=ledger, noise=NoiseSource(1))
    assert Counted.reads == 1


def test_the_public_number_of_rows_must_be_the_planned_one_except_where_it_is_private(rows):
    query = ClassSums(M)
    for relation in ("zero_out", "replace_one"):
        spec = spec_of(query, 39, relation=relation)
        with pytest.raises(ValueError, match="n_rows"):
            release(query, Params(), rows, spec, ledger=reserve([spec]), noise=NoiseSource(1))
    assert Counted.reads == 0
    spec = spec_of(query, 39, relation="add_remove")
    release(query, Params(), rows, spec, ledger=reserve([spec]), noise=NoiseSource(1))


def test_the_charge_is_durable_before_the_first_row_is_read(tmp_path):
    """A second connection sees the reservation and the start while the rows are being read."""
    query = ClassSums(M)
    x, y = toy(40)
    spec = spec_of(query, 40)
    path = tmp_path / "ledger.sqlite"
    seen = []

    class Spy(ArrayRows):
        def blocks(self, indices=None):
            fit = Ledger(path).fits()[0]
            seen.append([r["state"] for r in fit["releases"]])
            return super().blocks(indices)

    fit = reserve([spec, spec], Ledger(path), tmp_path / "run")
    release(query, Params(), Spy(x, y), spec, ledger=fit, noise=NoiseSource(1))
    release(query, Params(), Spy(x, y), spec, ledger=fit, noise=NoiseSource(1))
    assert seen == [["started", "reserved"], ["committed", "started"]]


def test_a_value_is_committed_before_it_is_returned(tmp_path, monkeypatch):
    query = ClassSums(M)
    spec = spec_of(query, 40)
    fit = reserve([spec], Ledger(tmp_path / "l.sqlite"), tmp_path / "run")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("dphead.privacy.ledger.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        release(query, Params(), ArrayRows(*toy(40)), spec, ledger=fit, noise=NoiseSource(1))
    assert fit.ledger.fits()[0]["releases"][0]["state"] == "started"


def test_a_stored_value_is_flushed_before_it_is_logged(tmp_path, monkeypatch):
    """Logged first, a crash could leave a release that counts as observed and whose value is lost or half written."""
    import os

    query = ClassSums(M)
    spec = spec_of(query, 40)
    fit = reserve([spec], Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(f"dphead.privacy.ledger.os.{name}", lambda *a, n=name, f=real: (order.append(n), f(*a))[1])

    def trace(sql):
        """What SQLite runs: an insertion is logged when its transaction is over."""
        if sql == "COMMIT":
            order.append(sql)

    fit.ledger._db.set_trace_callback(trace)
    release(query, Params(), ArrayRows(*toy(40)), spec, ledger=fit, noise=NoiseSource(1))
    # the first is that of "started"
    assert order == ["COMMIT", "fsync", "replace", "fsync", "COMMIT"]


def test_releases_that_do_not_fit_their_grid_are_refused(rows):
    spec = spec_of(ClassSums(M), 40, sigma=1e12)
    with pytest.raises(ValueError, match="grid"):
        release(ClassSums(M), Params(), rows, spec, ledger=reserve([spec]), noise=NoiseSource(1))
    assert Counted.reads == 0


@pytest.mark.parametrize("block_rows", [256, 3 * PIECE])
@pytest.mark.parametrize(
    "query", [Gradient(3), CompiledGradient(3), CompiledGradient(3, "softmax", "features")], ids=repr
)
def test_kept_rows_give_the_same_sums_and_never_serve_another_transform_or_sample(query, block_rows):
    """Bit for bit, over passes with one transform, a second one, Poisson samples (the nearly full one begins and ends
    as the full batch does, with gaps between), and a limit. Blocks are pieces, and several pieces."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((4000, 6)).astype(np.float32), rng.integers(-1, 3, 4000)
    x[7], x[8] = np.nan, np.inf
    rows = ArrayRows(x, y, block_rows)
    transforms = [RowTransform(True, rng.standard_normal(6).astype(np.float32)), RowTransform(True), RowTransform()]
    for memory in (1 << 20, 3 * PIECE * 6 * 4):
        kept = CpuSums(memory)
        for transform in [transforms[0], *transforms, transforms[0]]:
            for sampling_prob in (1.0, 0.97, 0.5, 1.0):
                weights = rng.standard_normal((6, 3)).astype(np.float32)
                sums = [
                    release_one(query, Params(transform, weights), rows, 3, b, sampling_prob=sampling_prob)
                    for b in (kept, CpuSums())
                ]
                assert np.array_equal(sums[0].value, sums[1].value)
        assert sum(phi.nbytes for phi, _ in kept.kept._kept[1].values()) <= memory


def test_chunks_without_a_slot_are_left_out_where_the_number_of_slots_is_public(monkeypatch):
    """A sample, and all rows where n is private, are the same work whatever their number."""
    asked = []
    add = Gradient.clipped_sum
    monkeypatch.setattr(Gradient, "clipped_sum", lambda q, p, x, *a: asked.append(len(x)) or add(q, p, x, *a))
    weights = np.zeros((4, 3), np.float32)
    for n, relation, sampling_prob, wanted in [
        (700, "zero_out", 1.0, [512, 256]),  # 188 rows of the second block: two chunks
        (700, "add_remove", 1.0, [256] * 3),
        (600, "add_remove", 1.0, [256] * 3),
        (700, "zero_out", 0.05, [256]),
    ]:
        x, y = toy(n)
        more = {"relation": relation, "sampling_prob": sampling_prob}
        release_one(Gradient(3), Params(weights=weights), ArrayRows(x, y, 512), **more)
        assert sorted(asked, reverse=True) == wanted
        asked.clear()


def test_rows_kept_between_passes_are_never_those_of_another_transform():
    """Blocks of one pass are summed by several threads: the first to see a new transform must not let another thread
    find the old rows under it. A thread switch after every few instructions; there is no false alarm."""
    from concurrent.futures import ThreadPoolExecutor

    x, _ = toy(512)
    sums, transforms = (
        CpuSums(1 << 20),
        [RowTransform(), RowTransform(True), RowTransform(False, np.ones(D, np.float32))],
    )
    wanted = [t.apply(np, x[:128])[0] for t in transforms]
    index, interval, wrong = np.arange(128), sys.getswitchinterval(), 0
    sys.setswitchinterval(1e-7)
    try:
        with ThreadPoolExecutor(4) as pool:
            for i in range(1500):
                transform = transforms[i % 3]
                got = list(pool.map(lambda _, t=transform: sums.kept(t, index, x[:128], _transformed)[0], range(4)))
                wrong += sum(not np.array_equal(g, wanted[i % 3]) for g in got)
    finally:
        sys.setswitchinterval(interval)
    assert wrong == 0


def _adding(done):
    def add(item, out):
        if item is None:
            raise OSError("a block cannot be read")
        time.sleep(0.02)
        done.append(threading.get_ident())
        return np.add(out, item, out=out)

    return add


def test_no_block_is_summed_after_a_pass_has_failed(monkeypatch):
    """And the next pass adds up all of its own."""
    monkeypatch.setattr(mechanism, "cores", lambda: 2)
    done = []
    with pytest.raises(OSError, match="cannot be read"):
        mechanism._on_every_core(_adding(done), iter([1, None, 2, 3, 4]), partial(np.zeros, 1))
    seen = len(done)
    time.sleep(0.2)
    assert 0 < len(done) == seen
    assert mechanism._on_every_core(_adding(done), iter([3, 4, 5]), partial(np.zeros, 1)) == 12


def test_an_interrupt_while_a_thread_starts_leaves_the_next_pass_one_thread_a_sum(monkeypatch):
    """Threads kept between passes did not: the executor lost count of one that had started, and two added to a sum."""
    monkeypatch.setattr(mechanism, "cores", lambda: 2)
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mechanism._on_every_core(_adding([]), iter(range(9)), partial(np.zeros, 1))
    monkeypatch.setattr(threading.Thread, "start", start)
    by = []
    assert mechanism._on_every_core(_adding(by), iter(range(9)), partial(np.zeros, 1)) == 36
    assert len(set(by)) == 2


def releases(asks, next_sum, store=None, block_sum=numpy_block_sum, done=0):
    """The values of one fit's releases; asks: (query, params, rows, what the spec has besides) each."""
    specs = [spec_of(query, rows.n_rows, **more) for query, _, rows, more in asks]
    ledger, noise = reserve(specs, store=store), NoiseSource(1)
    return [
        release(query, params, rows, spec, ledger=ledger, noise=noise, block_sum=block_sum, next_sum=next_sum).value
        for (query, params, rows, _), spec in zip(asks, specs, strict=True)
    ]


@pytest.mark.parametrize("block_sum", [numpy_block_sum, jax_block_sum], ids=["numpy", "jax"])
@pytest.mark.parametrize("m", [M, 40])
@pytest.mark.parametrize("relation", ["zero_out", "add_remove", "replace_one"])
def test_class_sums_planned_after_a_gram_matrix_are_made_in_its_pass(block_sum, m, relation):
    """The same values as from two passes, but for float64 sums in another order: at most a step of the grid, 1e-4."""
    x, y = toy(600, 7, m)
    x[3], x[4], y[5], y[6] = np.nan, np.inf, m, -1
    params = Params(RowTransform(True, np.full(7, 0.1, np.float32), None, 0.5))
    more = {"relation": relation, "clip_norm": 0.7}
    values = []
    for next_sum in (NextSum(), None):
        Counted.reads, rows = 0, Counted(x, y, 256)
        values.append(
            releases(
                [(Gram(m), params, rows, more), (ClassSums(m), params, rows, {**more, "sigma": 0.3, "label": "other"})],
                next_sum,
                block_sum=block_sum,
            )
        )
        assert Counted.reads == (1 if next_sum else 2)
    for one, two in zip(*values, strict=True):
        assert one.base is None and one.flags.c_contiguous  # a view would lead to the sums that wait
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-4)
    assert np.array_equal(values[0][0], values[0][0].T)


def test_class_sums_that_wait_serve_the_planned_release_of_the_same_rows_only(rows):
    """Everything else reads the rows again and gives the value that it gives with nothing waiting."""
    plain, other = Params(RowTransform()), Params(RowTransform(unit_norm=True))
    gram, sums = (Gram(M), plain, rows, {}), (ClassSums(M), plain, rows, {})
    cases = [
        [gram, sums],
        [gram, (ClassSums(M), other, rows, {})],
        [gram, (ClassSums(M), Params(RowTransform()), rows, {})],
        [gram, (ClassSums(M), plain, Counted(*toy(40, seed=9)), {})],
        [gram, (ClassSums(M), plain, rows, {"clip_norm": 0.5})],
        [gram, (ClassSums(M), plain, rows, {"sampling_prob": 0.5})],
        [(Gram(M), plain, rows, {"sampling_prob": 0.5}), (ClassSums(M), plain, rows, {"sampling_prob": 0.5})],
        [gram, (ClassSums(M + 1), plain, rows, {})],
        [gram, (ClassCounts(M), plain, rows, {}), sums],
        [gram, sums, sums],
        [sums, gram],
    ]
    for asks in cases:
        Counted.reads = 0
        values, saved = releases(asks, NextSum()), 1 if asks[:2] == [gram, sums] else 0
        assert Counted.reads == len(asks) - saved
        for value, alone in zip(values, releases(asks, None), strict=True):
            np.testing.assert_allclose(value, alone, rtol=0, atol=1e-4)


def test_sums_without_noise_wait_in_memory_only(tmp_path, rows):
    """They cannot be pickled or copied; the store holds the values that carry noise; the joint query is no release."""
    next_sum, params = NextSum(), Params()
    asks = [(Gram(M), params, rows, {}), (ClassSums(M), params, rows, {})]
    specs = [spec_of(query, 40) for query, *_ in asks]
    ledger = reserve(specs, store=tmp_path)
    value = release(Gram(M), params, rows, specs[0], ledger=ledger, noise=NoiseSource(1), next_sum=next_sum).value
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stay in memory"):
            leave(next_sum)
    stored = [np.load(file) for file in tmp_path.glob("*.npy")]
    assert len(stored) == 1 and np.array_equal(stored[0], value)
    spec = spec_of(GramAndSums(M), 40)
    with pytest.raises(NotImplementedError):
        release(GramAndSums(M), params, rows, spec, ledger=reserve([spec]), noise=NoiseSource(1))


def test_kept_sums_serve_further_fits_on_the_same_rows_each_with_noise_of_its_own(rows):
    """Another noise level, label and transform object of the same numbers: no pass; the values are a new pass's."""

    def fit(next_sum, sigma, center):
        params = Params(RowTransform(True, np.full(D, center, np.float32), None, 0.5))
        asks = [
            (query, params, rows, {"sigma": sigma, "label": f"{query.name} {sigma}"})
            for query in (Gram(M), ClassSums(M))
        ]
        return releases(asks, next_sum)

    kept, Counted.reads = KeptSums(), 0
    values = [fit(kept, sigma, 0.1) for sigma in (1.0, 0.2, 3.0)]
    assert Counted.reads == 1
    for sigma, both in zip((1.0, 0.2, 3.0), values, strict=True):
        for value, alone in zip(both, fit(NextSum(), sigma, 0.1), strict=True):
            assert np.array_equal(value, alone)  # the same seed's noise on the same sums
    Counted.reads = 0
    np.testing.assert_array_equal(fit(kept, 1.0, 0.2)[0], fit(NextSum(), 1.0, 0.2)[0])
    assert Counted.reads == 2


def test_kept_sums_serve_no_other_rows_transform_clip_relation_or_sample(rows):
    """Each of these reads the rows, and gives what it gives with nothing kept."""
    plain, sampled = Params(RowTransform()), {"sampling_prob": 0.5}
    others = [
        (Gram(M), Params(RowTransform(unit_norm=True)), rows, {}),
        (Gram(M), Params(RowTransform(append=0.5)), rows, {}),
        (Gram(M), Params(RowTransform(scale=np.full(D, 2.0, np.float32))), rows, {}),
        (Gram(M), plain, Counted(*toy(40, seed=9)), {}),
        (Gram(M), plain, rows, {"clip_norm": 0.5}),
        (Gram(M), plain, rows, {"relation": "replace_one"}),
        (Gram(M), plain, rows, sampled),
        (ClassGrams(M), plain, rows, {}),
        (ClassSums(M + 1), plain, rows, {}),
        (ClassCounts(M), plain, rows, {}),
    ]
    for other in others:
        kept = KeptSums()
        releases([(Gram(M), plain, rows, {}), (ClassSums(M), plain, rows, {})], kept)
        Counted.reads = 0
        value, alone = releases([other], kept)[0], releases([other], None)[0]
        assert Counted.reads == 2 and np.array_equal(value, alone)


def test_sums_that_wait_are_dropped_when_kept_sums_answer(rows):
    """A fit that stopped between its two releases leaves class sums; the next fit's Gram matrix drops them."""
    kept, params, spec = KeptSums(), Params(), spec_of(Gram(M), 40)
    planned = [spec, spec_of(ClassSums(M), 40)]
    for _ in range(2):
        ledger = reserve(planned)
        release(Gram(M), params, rows, spec, ledger=ledger, noise=NoiseSource(1), next_sum=kept)
    assert kept._held is None and Counted.reads == 1


def test_kept_sums_know_a_transform_by_its_numbers_when_they_were_used(rows):
    """Another type, or numbers that changed in place, is another transform."""

    class Doubled(RowTransform):
        def apply(self, xp, x):
            return super().apply(xp, 2 * x)

    center = np.zeros(D, np.float32)
    kept, params = KeptSums(), Params(RowTransform(center=center))
    releases([(Gram(M), params, rows, {})], kept)
    center[:] = 5
    releases([(Gram(M), params, rows, {}), (Gram(M), Params(Doubled(center=center)), rows, {})], kept)
    assert Counted.reads == 3


def test_kept_sums_are_charged_in_every_fit_and_stay_in_memory(tmp_path, rows):
    """A budget of 1.5 times one release's mu² refuses the second; nothing can copy what is kept."""
    ledger, kept, spec = Ledger(tmp_path / "ledger.sqlite"), KeptSums(), spec_of(Gram(M), 40)
    ledger.set_budget(epsilon_from_mu(1.5**0.5, 1e-5), 1e-5)
    release(Gram(M), Params(), rows, spec, ledger=reserve([spec], ledger), noise=NoiseSource(), next_sum=kept)
    with pytest.raises(LedgerError):
        reserve([spec], ledger)
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stay in memory"):
            leave(kept)


def test_class_sums_are_summed_again_after_a_crash_between_the_two(tmp_path, rows):
    """The Gram matrix's value is loaded, so nothing waits: the class sums read the rows."""
    specs, params = [spec_of(query, 40) for query in (Gram(M), ClassSums(M))], Params()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    fit = reserve(specs, ledger, tmp_path / "fit")
    first = release(Gram(M), params, rows, specs[0], ledger=fit, noise=NoiseSource(1), next_sum=NextSum()).value
    fit._lock.close()
    fit = ledger.resume("hash", fit.fit_id, tmp_path / "fit")
    Counted.reads, next_sum = 0, NextSum()
    again, sums = (
        release(query, params, rows, spec, ledger=fit, noise=NoiseSource(1), next_sum=next_sum).value
        for query, spec in zip((Gram(M), ClassSums(M)), specs, strict=True)
    )
    assert np.array_equal(first, again) and Counted.reads == 1
    np.testing.assert_allclose(sums, releases([(ClassSums(M), params, rows, {})] * 2, None)[1], rtol=0, atol=1e-4)
