"""Sums by XLA: the integers of the reference, on one device and on eight, kept or
sent.
"""

import json
from functools import lru_cache

import jax
import numpy as np
import pytest
from commands import Fork
from core import STATISTICS, D, M, added, hostile, integer_sum, one_block, toy

from dphead.data.arrays import ArrayRows
from dphead.fit.backends import block_sum
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import (
    ChannelMoment,
    ClassCounts,
    ClassGrams,
    ClassSums,
    Gradient,
    Gram,
    SigmoidHessians,
)
from dphead.privacy.transform import RADIUS, RowTransform
from dphead.sums import jax as jax_sums
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.jax import JaxSums
from dphead.sums.passes import NO_ROWS
from dphead.sums.reference import ReferenceSums, rows_key
from dphead.sums.verified import VerifiedSum, known_answers

# a statistic of each kind of sum
LAYOUTS = [ChannelMoment(M), Gram(M), ClassGrams(M), ClassSums(M), Gradient(M)]

# Sums of each layout on eight devices, and a head.
SCRIPT = """
import json, sys
import jax, numpy as np
from core import D, M, integer_sum, one_block, toy
from dphead.data.arrays import ArrayRows
from fits import plan_and_fit
from dphead.privacy.noise import NoiseSource
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ChannelMoment, ClassGrams, ClassSums
from dphead.privacy.statistics import Gradient, Gram
from dphead.privacy.transform import RowTransform
from dphead.sums.verified import VerifiedSum
from dphead.sums.jax import JaxSums
from dphead.privacy.contract import SumTask
from dphead.solvers import DPFC, ProblemInfo

LAYOUTS = [ChannelMoment(M), Gram(M), ClassGrams(M), ClassSums(M), Gradient(M)]
assert len(jax.devices()) == 8
x, y = toy(4000)
params = Params(RowTransform(append=1.0), np.full((D + 1, M), 0.1))
plain = Params(RowTransform(), np.full((D, M), 0.1))
sums = {}
for q in LAYOUTS:
    p = plain if "ChannelMoment" in q.name else params
    total = integer_sum(q, p, x, y, block_rows=2048, block_sum=JaxSums())
    sums[q.name] = total.tolist()
devices = {}
for rows in (128, 384, 2048, 8192):
    block, _ = one_block(*toy(rows))
    placed = JaxSums().rows(SumTask(LAYOUTS[-1], params, 1.0), block)
    devices[rows] = len(placed.q.sharding.device_set)
facts = ProblemInfo(4000, D, M)
summer = VerifiedSum(JaxSums(), memory=1 << 20)
rows = ArrayRows(x, y)
done = plan_and_fit(DPFC(steps=4), rows, facts, noise=NoiseSource(3), summer=summer)
json.dump([sums, devices, done.trained.weights.tobytes().hex()], sys.stdout)
"""


def params_of(statistic, n_features=D, n_classes=M):
    """Weights, and a constant where the statistic takes one."""
    append = 0.0 if "ChannelMoment" in statistic.name else 1.0
    transform = RowTransform(append=append)
    weights = np.random.default_rng(1).normal(
        size=(transform.width(n_features), n_classes)
    )
    return Params(transform, weights)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """On eight devices: sums by statistic, devices of a block of some rows, and a
    seeded head.

    Each statistic is compiled anew: these have one of each layout. The other tests have
    every statistic on one device.
    """
    flags = "--xla_force_host_platform_device_count=8"
    done = Fork(tmp_path_factory.mktemp("devices"), SCRIPT, XLA_FLAGS=flags).wait()
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("statistic", LAYOUTS, ids=repr)
def test_eight_devices_give_the_references_integers(results, statistic):
    append = 0.0 if isinstance(statistic, ChannelMoment) else 1.0
    transform = RowTransform(append=append)
    params = Params(transform, np.full((transform.width(D), M), 0.1))
    expected = integer_sum(statistic, params, *toy(4000), block_sum=ReferenceSums())
    found = np.array(results[0][statistic.name], np.int64)
    assert np.array_equal(found, expected)


def test_rows_are_spread_over_all_devices_where_each_has_as_many(results):
    assert results[1] == {"128": 8, "384": 8, "2048": 8, "8192": 8}


def test_one_device_and_eight_give_the_head_of_numpy_byte_for_byte(results):
    """One seed, so one noise, drawn once on the total."""
    from fits import plan_and_fit

    from dphead.privacy.noise import NoiseSource
    from dphead.solvers import DPFC, ProblemInfo

    facts = ProblemInfo(4000, D, M)
    rows = ArrayRows(*toy(4000))
    one, alone = (
        plan_and_fit(
            DPFC(steps=4), rows, facts, noise=NoiseSource(3), summer=summer
        ).trained.weights.tobytes()
        for summer in (VerifiedSum(JaxSums(), memory=1 << 20), None)
    )
    assert bytes.fromhex(results[2]) == one == alone


# what is compiled as for accelerators
HALVES = lru_cache(jax_sums.compiled.__wrapped__)


@pytest.fixture(params=["float64", "halves"])
def products(request, monkeypatch):
    """Products as processors make them, and as accelerators do."""
    if request.param == "halves":
        monkeypatch.setattr(jax_sums, "compiled", HALVES)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    return request.param


# Only products of small numbers differ on accelerators: those of gradients, Gram
# matrices and class sums.
IN_HALVES = [
    Gradient(M),
    Gradient(M, "sigmoid", "features"),
    Gram(M),
    ClassGrams(M),
    ClassSums(M),
]
CASES = [
    *(("float64", q) for q in STATISTICS),
    *(("halves", q) for q in IN_HALVES),
]


# of channel moments, which count sets in one way, the first
SETS_CASES = [
    *(("float64", q) for q in STATISTICS if q.takes_sets and q not in STATISTICS[1:4]),
    ("halves", Gradient(M, "sigmoid")),
]


@pytest.mark.parametrize(
    "products, statistic", SETS_CASES, indirect=["products"], ids=str
)
def test_sums_of_label_sets_are_the_references(statistic, products):
    """Sets of none, some and all, and what is no set."""
    x, _ = toy(500)
    x[3], x[4, 1], x[5] = np.nan, np.inf, 0
    sets = np.random.default_rng(0).integers(0, 2, (500, M))
    sets[::7], sets[1::7], sets[2::7, 0] = 0, 1, 2
    params = params_of(statistic)
    one, other = (
        integer_sum(
            statistic, params, ArrayRows(x, sets, 256), None, 0.3, block_sum=way
        )
        for way in (JaxSums(), ReferenceSums())
    )
    assert np.array_equal(one, other)


@pytest.mark.parametrize("products, statistic", CASES, indirect=["products"], ids=str)
def test_sums_are_the_references(statistic, products):
    """Rows with labels of no class, that are not finite, zero, tiny and huge."""
    x, y = toy(500)
    y[::7] = -1
    x[3], x[4, 1], x[5] = np.nan, np.inf, 0
    x[6:40] *= np.logspace(-38, 36, 34, dtype=np.float32)[:, None]
    rows = ArrayRows(x, y, 256)
    params = params_of(statistic)
    for indices in (None, np.arange(0, 500, 3)):
        one, other = (
            integer_sum(
                statistic, params, rows, None, 0.3, block_sum=way, indices=indices
            )
            for way in (JaxSums(), ReferenceSums())
        )
        assert one.dtype == np.int64
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "statistic",
    [Gram(M), ClassSums(M), Gradient(M), SigmoidHessians(M), ClassCounts(M)],
    ids=repr,
)
def test_what_a_device_adds_of_one_block_is_the_references(statistic, products):
    """Padding holds ordinary rows of a class; some labels are of none."""
    x, y = hostile(256, D, M, 1)
    index = np.where(np.arange(256) % 9 == 4, -1, np.arange(256))
    center = 0.3 * np.random.default_rng(1).standard_normal(D)
    weights = np.random.default_rng(2).standard_normal((D + 1, M))
    params = Params(RowTransform(False, center, None, 0.5), weights)
    # the width and the clip norm for which the sums above were compiled
    one, other = (
        added(way, statistic, params, x, y, index, 0.3)
        for way in (JaxSums(), ReferenceSums())
    )
    assert np.array_equal(one, other)


def test_the_known_answers_hold(products):
    known_answers(JaxSums(), {Gram(M), Gradient(M)}, 24)


@pytest.mark.parametrize("value", [RADIUS, -RADIUS])
def test_sums_of_the_largest_entries_are_exact_in_halves(value, products):
    """8,192 rows of one entry each, all at the clip: no sum of halves overflows."""
    x = np.zeros((8192, 3), np.float32)
    x[:, 1] = np.sign(value)
    block, used = one_block(x, np.zeros(8192, int))
    ask = SumTask(Gram(1), Params(), 1.0)
    way = JaxSums()
    rows = way.rows(ask, block)
    entry = int(np.asarray(rows.q)[0, 1])
    total = way.add(ask, rows, block.y, used, np.zeros((3, 3), np.int64))
    assert abs(entry) >= RADIUS - 2
    assert np.asarray(total)[1, 1] == 8192 * entry**2


@pytest.mark.parametrize(
    "products, rows, one, other",
    [("halves", 2**19, RADIUS, RADIUS), ("float64", 2**23 + 9, 2**30 - 1, 1)],
    indirect=["products"],
)
def test_products_of_blocks_of_any_length_are_exact(products, rows, one, other):
    """In one piece int32 would overflow, and float64 round an odd number beyond
    2**53.
    """
    with jax.enable_x64(True):
        a = np.full((1, rows), one, np.int32)
        b = np.full((rows, 1), other, np.int32)
        how = {"halves": jax_sums.short_product, "float64": jax_sums.wide_product}
        arrays = jax.numpy.asarray(a), jax.numpy.asarray(b)
        total = jax_sums.in_runs(how[products], *arrays)
    assert total.dtype == np.int64
    assert int(total[0, 0]) == rows * one * other


def test_only_small_numbers_go_in_halves(monkeypatch):
    """A channel moment has up to 2**20, which two halves of 8 bits cannot hold.

    Sums are traced and not computed, which would compile each statistic.
    """

    def traced(function):
        return lambda *arrays: jax.numpy.zeros(
            jax.eval_shape(function, *arrays).shape, np.int64
        )

    used = []
    for name in ("short_product", "wide_product"):
        real = getattr(jax_sums, name)

        def seen(a, b, name=name, real=real):
            used.append(name)
            return real(a, b)

        monkeypatch.setattr(jax_sums, name, seen)
    monkeypatch.setattr(jax_sums, "compiled", jax_sums.compiled.__wrapped__)
    monkeypatch.setattr(jax, "jit", traced)
    monkeypatch.setattr(jax_sums, "on_accelerator", lambda: True)
    for statistic in STATISTICS:
        rows = CpuSums().rows(*asked(statistic))
        used.clear()
        ask, block = asked(statistic)
        JaxSums().add(ask, rows, block.y, block.index >= 0, 0)
        assert len(set(used)) == 1, statistic
        assert used[0] == "wide_product" or statistic.max_entry <= RADIUS**2, statistic


def asked(statistic):
    x, y = toy(128)
    block, _ = one_block(x, y)
    return SumTask(statistic, params_of(statistic), 1.0), block


@pytest.mark.parametrize("memory", [1 << 20, 4 * 256 * (2 * 6 + 8)])
def test_rows_kept_on_the_devices_serve_no_other_slot_transform_or_fit(memory):
    """Over passes with one transform, a second one, and Poisson samples (the nearly
    full one begins and ends as the full batch does, with gaps between). A transform of
    equal numbers is another fit's, with other rows.
    """
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2000, 6)).astype(np.float32)
    y = rng.integers(-1, 3, 2000)
    x[7], x[8] = np.nan, np.inf
    first = RowTransform(True)
    second = RowTransform()
    passes = [(x, first), (x, first), (x, second), (x + 1, RowTransform())]
    kept = KeptRows(memory)
    for values, transform in passes:
        rows = ArrayRows(values, y, 256)
        for sampling_prob in (1.0, 0.97, 0.5, 1.0):
            params = Params(transform, rng.standard_normal((6, 3)))
            indices = (
                None
                if sampling_prob == 1
                else np.flatnonzero(rng.random(2000) < sampling_prob)
            )
            served, sent = (
                integer_sum(
                    Gradient(3),
                    params,
                    rows,
                    block_sum=JaxSums(),
                    indices=indices,
                    kept=k,
                )
                for k in (kept, NO_ROWS)
            )
            assert np.array_equal(served, sent)
        made = [made for _, _, made in kept._kept.values()]
        held = sum(one.q.nbytes + one.scale.nbytes for one in made)
        # and a sample's last block, if it has one slot, or more in a row
        whole = 8 * 256 * (2 * 6 + 8)
        assert min(memory, whole) <= held <= min(memory, 2 * whole)


def test_the_backend_keeps_rows_where_it_computes(monkeypatch):
    """On accelerators half of their memory is for rows, whatever the host has."""
    for name, kind, memory in (
        ("numpy", CpuSums, 7),
        ("reference", ReferenceSums, 0),
        ("jax", CpuSums, 7),
    ):
        sums, found = block_sum(name, 7)
        assert isinstance(sums, kind)
        assert found == memory

    class Device:
        def memory_stats(self):
            return {"bytes_limit": 100}

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(), Device()])
    assert block_sum("jax", 7)[1] == 100


def test_rows_on_a_device_are_those_of_their_own_transform():
    x, _ = toy(128)
    way = JaxSums()
    kept = KeptRows(1 << 20)
    block = Block(np.arange(128), x, np.zeros(128, int))
    for transform in (
        RowTransform(),
        RowTransform(True),
        RowTransform(False, np.ones(D)),
        RowTransform(),
    ):
        ask = SumTask(ClassSums(M), Params(transform), 0.7)
        pieces = kept(rows_key(ask), block.index, lambda ask=ask: way.rows(ask, block))
        ((found, _),) = pieces
        wanted = ReferenceSums().rows(ask, block)
        assert np.array_equal(found.q, wanted.q)
        assert np.array_equal(found.scale, wanted.scale)


def test_two_halves_are_the_number():
    x = np.arange(-RADIUS, RADIUS + 1)
    halves = jax_sums.halves(jax.numpy.asarray(x.astype(np.int32)))
    low, high = (np.asarray(half).astype(np.int64) for half in halves)
    assert [half.dtype for half in halves] == [np.int8, np.int8]
    assert np.array_equal(low + 64 * high, x)
    assert np.abs(low + high).max() <= 96


@pytest.mark.parametrize("cores", [1, 3, 7, 50])
def test_every_row_is_rounded_whatever_the_number_of_cores(monkeypatch, cores):
    """50 cores are more than the 40 rows. 40 is no multiple of 3 and 7."""
    monkeypatch.setattr(jax_sums, "cores", lambda: cores)
    x, y = hostile(40, D, M, 0)
    params = Params(RowTransform(), np.zeros((x.shape[1], M)))
    ask = SumTask(Gradient(M), params, 1.0)
    block = Block(np.arange(len(x)), x, y)
    wanted = ReferenceSums().rows(ask, block)
    found = JaxSums().rows(ask, block)
    np.testing.assert_array_equal(np.asarray(found.q), wanted.q)
    np.testing.assert_array_equal(np.asarray(found.scale), wanted.scale)
