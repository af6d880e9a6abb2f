"""What is kept between passes serves what it was made for, in memory alone."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from core import D, KnownNoise, M, integer_sum, reserve, run, spec_of, toy

from dphead.data.arrays import ArrayRows
from dphead.privacy.accounting import epsilon_from_mu
from dphead.privacy.contract import SumTask
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.release import release
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassCounts, ClassGrams, ClassSums, Gradient, Gram
from dphead.privacy.transform import RowTransform, direction_rows
from dphead.sums.caches import KeptRows, KeptSums, NextSum
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import GramAndSums, ReferenceSums
from dphead.sums.verified import VerifiedSum


class Counted(ArrayRows):
    reads = 0

    def blocks(self, indices=None, known=None):
        Counted.reads += 1
        return super().blocks(indices)


@pytest.fixture
def rows():
    Counted.reads = 0
    return Counted(*toy(40))


@pytest.mark.parametrize(
    "statistic",
    [Gradient(3), Gradient(3, "softmax", "features"), ClassSums(3)],
    ids=repr,
)
@pytest.mark.parametrize("block_rows", [256, 1024])
def test_kept_rows_give_the_same_sums_and_never_serve_another_transform_or_sample(
    statistic, block_rows
):
    """Over passes with one transform, others, other clip norms, Poisson samples (the
    nearly full one begins and ends as the full batch does, with gaps between), and a
    limit.
    """
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3000, 6)).astype(np.float32)
    y = rng.integers(-1, 3, 3000)
    x[7], x[8] = np.nan, np.inf
    rows = ArrayRows(x, y, block_rows)
    transforms = [
        RowTransform(True, rng.standard_normal(6)),
        RowTransform(True),
        RowTransform(),
    ]
    for memory in (1 << 20, 3 * block_rows * 20):
        kept = KeptRows(memory)
        for transform in [transforms[0], *transforms, transforms[0]]:
            for clip_norm, prob in (
                (1.0, 1),
                (0.5, 1),
                (0.5, 0.97),
                (0.5, 0.5),
                (1.0, 1),
            ):
                params = Params(transform, rng.standard_normal((6, 3)))
                indices = None if prob == 1 else np.flatnonzero(rng.random(3000) < prob)
                found = integer_sum(
                    statistic, params, rows, None, clip_norm, indices=indices, kept=kept
                )
                wanted = integer_sum(
                    statistic,
                    params,
                    rows,
                    None,
                    clip_norm,
                    indices=indices,
                    block_sum=ReferenceSums(),
                )
                assert np.array_equal(found, wanted)
        assert (
            0
            < sum(
                made.q.nbytes + made.scale.nbytes for _, _, made in kept._kept.values()
            )
            <= memory
        )


def test_rows_kept_between_passes_are_never_those_of_another_transform():
    """Blocks of one pass are summed by several threads: the first to see a new
    transform must not let another thread find the old rows under it. A thread switch
    after every few instructions; there is no false alarm.
    """
    x, _ = toy(128)
    kept = KeptRows(1 << 20)
    transforms = [RowTransform(), RowTransform(True), RowTransform(False, np.ones(D))]
    wanted = [direction_rows(t, x).q for t in transforms]
    index = np.arange(128)
    interval = sys.getswitchinterval()
    wrong = 0
    sys.setswitchinterval(1e-7)
    try:
        with ThreadPoolExecutor(4) as pool:
            for i in range(600):
                t = transforms[i % 3]
                key = (t, "rows", None)
                got = list(
                    pool.map(
                        lambda _, t=t, k=key: kept(
                            k, index, lambda: direction_rows(t, x)
                        ),
                        range(4),
                    )
                )
                wrong += sum(
                    not np.array_equal(made.q, wanted[i % 3]) for ((made, _),) in got
                )
    finally:
        sys.setswitchinterval(interval)
    assert wrong == 0


@dataclass(frozen=True)
class Made:
    """What is kept, by name."""

    age: str
    i: int
    q: np.ndarray = field(default_factory=lambda: np.zeros(2), compare=False)
    scale: np.ndarray = field(default_factory=lambda: np.zeros(2), compare=False)


def test_what_is_kept_serves_its_own_key_and_slots_alone():
    """Under every pair of keys; of blocks, one is the first with padding, which is not
    kept beside it, two are not of consecutive slots.
    """
    # equal, but not the same
    one = RowTransform()
    other = RowTransform()
    keys = [
        (one, one, 1.0),
        (one, one, 0.5),
        (one, other, 1.0),
        (one, one, None),
        (other, one, 1.0),
    ]
    blocks = [
        np.arange(4),
        np.arange(4, 8),
        np.array([0, 1, 2, 3, -1, -1]),
        np.array([0, 2, 3, 4]),
        np.full(4, -1),
    ]
    for before in keys:
        for key in keys:
            kept = KeptRows(1 << 20)
            for i, index in enumerate(blocks):
                whole = slice(0, len(index))
                found = kept(before, index, lambda i=i: Made("old", i))
                assert found == [(Made("old", i), whole)]
            for i, index in enumerate(blocks):
                whole = slice(0, len(index))
                age = "old" if before is key and i < 2 else "new"
                assert kept.holds(key, index) == (age == "old")
                found = kept(key, index, lambda i=i: Made("new", i))
                assert found == [(Made(age, i), whole)]


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("padded", [1, 2])
def test_kept_blocks_serve_one_that_is_all_of_them_in_order(padded, padding):
    """Three blocks of four slots, one with padding: a run of slots, with padding or
    none, is served where whole blocks are it and no padding lies before a slot.
    """
    key = (RowTransform(), "rows", None)
    for first, last in combinations(range(13), 2):
        kept = KeptRows(1 << 20)
        for i in range(3):
            own = np.arange(4 * i, 4 * i + 4)
            behind = [-1, -1] if i == padded else []
            kept(key, np.array([*own, *behind]), lambda i=i: Made("old", i))
        index = np.array([*range(first, last), *[-1] * padding])
        whole = first % 4 == last % 4 == 0
        blocks = range(first // 4, last // 4)
        own_padding = 2 if last == 4 * padded + 4 else 0
        within = padded in blocks[:-1]
        served = whole and not within and padding == own_padding
        assert kept.holds(key, index) == served
        found = kept(key, index, lambda: Made("new", 0))
        if not served:
            assert found == [(Made("new", 0), slice(0, len(index)))]
            continue
        starts = [4 * i - first for i in blocks]
        stops = [*starts[1:], len(index)]
        assert [made for made, _ in found] == [Made("old", i) for i in blocks]
        assert [run for _, run in found] == list(map(slice, starts, stops))


def releases(asks, next_sum, store=None, block_sum=None):
    """The values of one fit's releases; asks: (statistic, params, rows, what the spec
    has besides) each.
    """
    specs = [
        spec_of(statistic, rows.n_rows, **more) for statistic, _, rows, more in asks
    ]
    noise, parts = KnownNoise(1), {"ledger": reserve(specs, store=store)}
    kept = VerifiedSum(block_sum or CpuSums(), next_sum)
    values = []
    for (statistic, params, rows, _), spec in zip(asks, specs, strict=True):
        summer = VerifiedSum(block_sum) if next_sum is None else kept
        done = release(
            statistic, params, rows, spec, noise=noise, summer=summer, **parts
        )
        values.append(done.value)
    return values


@pytest.mark.parametrize(
    "block_sum",
    [CpuSums(compiled=False), CpuSums(), ReferenceSums()],
    ids=["numpy", "compiled", "reference"],
)
@pytest.mark.parametrize("m, relation", [(M, "zero_out"), (40, "replace_one")])
def test_class_sums_planned_after_a_gram_matrix_are_made_in_its_pass(
    block_sum, m, relation
):
    """The same values as from two passes."""
    x, y = toy(600, 7, m)
    x[3], x[4], y[5], y[6] = np.nan, np.inf, m, -1
    params = Params(RowTransform(True, np.full(7, 0.1, np.float32), None, 0.5))
    more = {"relation": relation, "clip_norm": 0.7}
    values = []
    for next_sum in (NextSum(), None):
        Counted.reads, rows = 0, Counted(x, y, 256)
        asks = [
            (Gram(m), params, rows, more),
            (ClassSums(m), params, rows, {**more, "sigma": 0.3, "label": "other"}),
        ]
        values.append(releases(asks, next_sum, block_sum=block_sum))
        assert Counted.reads == (1 if next_sum else 2)
    for one, two in zip(*values, strict=True):
        # a view would lead to the sums that wait
        assert one.base is None
        assert one.flags.c_contiguous
        assert np.array_equal(one, two)
    assert np.array_equal(values[0][0], values[0][0].T)


def test_class_sums_that_wait_serve_the_planned_release_of_the_same_rows_only(rows):
    """Everything else reads the rows again and gives the value that it gives with
    nothing waiting.
    """
    plain = Params(RowTransform())
    other = Params(RowTransform(unit_norm=True))
    gram = (Gram(M), plain, rows, {})
    sums = (ClassSums(M), plain, rows, {})
    cases = [
        [gram, sums],
        [gram, (ClassSums(M), other, rows, {})],
        [gram, (ClassSums(M), Params(RowTransform()), rows, {})],
        [gram, (ClassSums(M), plain, Counted(*toy(40, seed=9)), {})],
        [gram, (ClassSums(M), plain, rows, {"clip_norm": 0.5})],
        [gram, (ClassSums(M), plain, rows, {"sampling_prob": 0.5})],
        [
            (Gram(M), plain, rows, {"sampling_prob": 0.5}),
            (ClassSums(M), plain, rows, {"sampling_prob": 0.5}),
        ],
        [gram, (ClassSums(M + 1), plain, rows, {})],
        [gram, (ClassCounts(M), plain, rows, {}), sums],
        [gram, sums, sums],
        [sums, gram],
    ]
    for asks in cases:
        Counted.reads = 0
        values = releases(asks, NextSum())
        saved = 1 if asks[:2] == [gram, sums] else 0
        assert Counted.reads == len(asks) - saved
        for value, alone in zip(values, releases(asks, None), strict=True):
            assert np.array_equal(value, alone)


def test_sums_without_noise_wait_in_memory_only(tmp_path, rows):
    """They cannot be pickled or copied; the store holds the values that carry noise;
    the joint statistic is no release.
    """
    next_sum = NextSum()
    specs = two_specs()
    summer = VerifiedSum(CpuSums(), next_sum)
    fit = reserve(specs, store=tmp_path)
    value = run(Gram(M), rows, specs[0], fit, summer=summer).value
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        for kept in (next_sum, KeptSums()):
            with pytest.raises(TypeError, match="stay in memory"):
                leave(kept)
    (stored,) = [np.load(file) for file in tmp_path.glob("*.npy")]
    assert np.array_equal(stored, value)
    spec = spec_of(GramAndSums(M), 40)
    with pytest.raises(NotImplementedError):
        run(GramAndSums(M), rows, spec, reserve([spec]))


def test_kept_sums_serve_further_fits_on_the_same_rows_each_with_noise_of_its_own(rows):
    """Another noise level, label and transform object of the same numbers: no pass; the
    values are a new pass's.
    """

    def fit(next_sum, sigma, center):
        params = Params(RowTransform(True, np.full(D, center, np.float32), None, 0.5))
        asks = [
            (
                statistic,
                params,
                rows,
                {"sigma": sigma, "label": f"{statistic.name} {sigma}"},
            )
            for statistic in (Gram(M), ClassSums(M))
        ]
        return releases(asks, next_sum)

    kept, Counted.reads = KeptSums(), 0
    values = [fit(kept, sigma, 0.1) for sigma in (1.0, 0.2, 3.0)]
    assert Counted.reads == 1
    for sigma, both in zip((1.0, 0.2, 3.0), values, strict=True):
        for value, alone in zip(both, fit(NextSum(), sigma, 0.1), strict=True):
            # the same seed's noise on the same sums
            assert np.array_equal(value, alone)
    Counted.reads = 0
    np.testing.assert_array_equal(fit(kept, 1.0, 0.2)[0], fit(NextSum(), 1.0, 0.2)[0])
    assert Counted.reads == 2


def test_kept_sums_serve_no_other_rows_transform_clip_relation_or_sample(rows):
    """Each of these reads the rows, and gives what it gives with nothing kept."""
    plain = Params(RowTransform())
    sampled = {"sampling_prob": 0.5}
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
        value = releases([other], kept)[0]
        alone = releases([other], None)[0]
        assert Counted.reads == 2
        assert np.array_equal(value, alone)


def test_kept_sums_serve_fits_without_noise_at_a_clip_that_noise_would_refuse(rows):
    """After its charge a fit must not stop because a spec with noise could not be made
    of its own.
    """
    summer = VerifiedSum(CpuSums(), KeptSums())
    specs = two_specs(clip_norm=1e7, sigma=0.0)
    values = []
    for _ in range(2):
        fit = reserve(specs, epsilon=np.inf)
        for statistic, spec in zip((Gram(M), ClassSums(M)), specs, strict=True):
            values.append(run(statistic, rows, spec, fit, summer=summer).value)
        assert Counted.reads == 2  # one a sum: the next one's clip has no noise
    for first, again in zip(values[:2], values[2:], strict=True):
        assert np.array_equal(first, again)


def test_sums_that_wait_are_dropped_when_kept_sums_answer(rows):
    """A fit that stopped between its two releases leaves class sums; the next fit's
    Gram matrix drops them.
    """
    kept = KeptSums()
    specs = two_specs()
    for _ in range(2):
        summer = VerifiedSum(CpuSums(), kept)
        run(Gram(M), rows, specs[0], reserve(specs), summer=summer)
    assert kept._held is None
    assert Counted.reads == 1


def test_kept_sums_know_a_transform_by_its_type_and_numbers(rows):
    """Equal numbers serve, though the array that they came from has changed since."""

    class Doubled(RowTransform):
        pass

    center = np.zeros(D, np.float32)
    kept = KeptSums()
    params = Params(RowTransform(center=center))
    releases([(Gram(M), params, rows, {})], kept)
    center[:] = 5
    releases([(Gram(M), params, rows, {})], kept)
    assert Counted.reads == 1
    for transform in (
        Doubled(center=np.zeros(D, np.float32)),
        RowTransform(center=center),
    ):
        releases([(Gram(M), Params(transform), rows, {})], kept)
    assert Counted.reads == 3


def test_kept_sums_are_charged_in_every_fit_and_stay_in_memory(rows):
    """A budget of 1.5 times one release's mu² refuses the second; nothing can copy what
    is kept.
    """
    ledger = Ledger()
    spec = spec_of(Gram(M), 40)
    ledger.set_budget(epsilon_from_mu(1.5**0.5, 1e-5), 1e-5)
    summer = VerifiedSum(CpuSums(), KeptSums())
    run(Gram(M), rows, spec, reserve([spec], ledger), summer=summer)
    with pytest.raises(LedgerError):
        reserve([spec], ledger)


def test_class_sums_are_summed_again_after_a_crash_between_the_two(tmp_path, rows):
    """The Gram matrix's value is loaded, so nothing waits: the class sums read the
    rows.
    """
    specs = two_specs()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    fit = reserve(specs, ledger, tmp_path / "fit")
    summer = VerifiedSum(CpuSums(), NextSum())
    first = run(Gram(M), rows, specs[0], fit, summer=summer).value
    fit._lock.close()
    fit = ledger.resume("hash", fit.fit_id, tmp_path / "fit")
    Counted.reads, summer = 0, VerifiedSum(CpuSums(), NextSum())
    again, sums = (
        run(statistic, rows, spec, fit, summer=summer).value
        for statistic, spec in zip((Gram(M), ClassSums(M)), specs, strict=True)
    )
    assert np.array_equal(first, again)
    assert Counted.reads == 1
    alone = releases([(ClassSums(M), Params(), rows, {})] * 2, None)[1]
    assert np.array_equal(sums, alone)


def two_specs(**more):
    """A Gram matrix and class sums of 40 rows."""
    return [spec_of(statistic, 40, **more) for statistic in (Gram(M), ClassSums(M))]


def test_a_gram_matrix_leads_to_no_class_sums(rows):
    """What is handed out is no view of the two sums of one pass, which would hold the
    class sums without noise.
    """
    specs = [spec_of(statistic, 40) for statistic in (Gram(M), ClassSums(M))]
    request = SumTask(Gram(M), Params(), 1.0, rows, None, specs[0], specs[1])
    value = NextSum()(request, lambda statistic: np.ones(statistic.shape(D), np.int64))
    assert value.shape == (D, D)
    assert value.base is None


def test_class_sums_that_wait_serve_the_spec_that_was_planned(rows):
    """Of the same statistic, rows and transform: `release` asks for no other, and what
    waits does not rely on it.
    """
    plain = Params()
    planned = spec_of(ClassSums(M), 40)
    for spec in (
        planned,
        replace(planned, clip_norm=0.5),
        replace(planned, label="other"),
    ):
        next_sum = NextSum()
        asked = []

        def total(statistic, asked=asked):
            asked.append(type(statistic))
            return np.ones(statistic.shape(D), np.int64)

        next_sum(
            SumTask(Gram(M), plain, 1.0, rows, None, spec_of(Gram(M), 40), planned),
            total,
        )
        next_sum(SumTask(ClassSums(M), plain, spec.clip_norm, rows, spec=spec), total)
        assert asked == [GramAndSums, ClassSums][: 1 if spec == planned else 2]
