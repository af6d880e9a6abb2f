"""What is kept between passes serves what it was made for, in memory alone."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
from core import D, integer_sum, toy

from dphead.data.arrays import ArrayRows
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums, Gradient
from dphead.privacy.transform import RowTransform, direction_rows
from dphead.sums.caches import KeptRows
from dphead.sums.reference import ReferenceSums


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
