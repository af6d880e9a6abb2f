"""Sums on a CPU, compiled or not, are the reference's integers: for every statistic,
row and number of classes.
"""

import numpy as np
import pytest
from core import D, added, hostile, integer_sum, toy

from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import (
    ChannelMoment,
    ClassCorrectCounts,
    ClassCounts,
    ClassGrams,
    ClassSums,
    CorrectCounts,
    Gradient,
    Gram,
    RowCounts,
    SigmoidHessians,
)
from dphead.privacy.transform import RowTransform
from dphead.sums import kernels, passes
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import ReferenceSums


def statistics(m):
    return [
        Gradient(m),
        Gradient(m, "softmax", "features"),
        Gradient(m, "sigmoid"),
        Gradient(m, "squared"),
        Gradient(m, "sigmoid", "features"),
        ClassSums(m),
        ClassCounts(m),
        CorrectCounts(m),
        ClassCorrectCounts(m),
        RowCounts(m),
        Gram(m),
        ClassGrams(m),
        SigmoidHessians(m),
        ChannelMoment(m),
        ChannelMoment(m, 2),
    ]


@pytest.mark.parametrize("m", [2, 3, 8, 9, 16, 17, 37, 100, 1000])
def test_all_ways_give_the_references_integers(monkeypatch, m):
    monkeypatch.setattr(passes, "cores", lambda: 2)
    rng = np.random.default_rng(m)
    for d, n, transform in (
        (5, 300, RowTransform()),
        (37, 140, RowTransform(True, rng.standard_normal(37), None, 0.5)),
    ):
        x, y = hostile(n, d, m, m)
        size = 10.0 ** rng.integers(-3, 6)
        weights = rng.standard_normal((transform.width(d), m)) * size
        params = Params(transform, weights)
        for statistic in statistics(m):
            if isinstance(statistic, ChannelMoment) and transform.append:
                continue
            if m > 100 and isinstance(statistic, ClassGrams):
                continue
            wanted = integer_sum(
                statistic, params, x, y, 0.7, block_sum=ReferenceSums()
            )
            for way in (CpuSums(compiled=False), CpuSums()):
                found = integer_sum(statistic, params, x, y, 0.7, 64, way)
                assert np.array_equal(wanted, found), statistic.name


@pytest.mark.parametrize("m", [2, 17, 65])
@pytest.mark.parametrize("clip_norm", [0.05, 1e3])
def test_what_kernels_add_of_one_block_is_the_references(m, clip_norm):
    """Without the pass, whose secret run would raise first. 1,300 rows: more than a
    piece, and a tail of a chunk; padding holds ordinary rows of a class.
    """
    x, y = hostile(1300, 12, m, m)
    index = np.where(np.arange(1300) % 9 == 4, -1, np.arange(1300))
    rng = np.random.default_rng(m)
    transform = RowTransform(False, 0.3 * rng.standard_normal(12), None, 0.5)
    plain = Params(RowTransform(), rng.standard_normal((12, m)))
    params = Params(transform, 3 * rng.standard_normal((13, m)))
    for statistic in statistics(m):
        own = plain if isinstance(statistic, ChannelMoment) else params
        wanted = added(ReferenceSums(), statistic, own, x, y, index, clip_norm)
        for way in (CpuSums(compiled=False), CpuSums()):
            assert np.array_equal(
                wanted, added(way, statistic, own, x, y, index, clip_norm)
            ), statistic.name


@pytest.mark.parametrize("m", [2, 17, 100])
def test_what_is_added_of_label_sets_is_the_references(m):
    """Sets of none, some and all, and what is no set; padding holds an ordinary row."""
    x, _ = hostile(1300, 12, m, m)
    rng = np.random.default_rng(m)
    sets = (rng.random((1300, m)) < rng.random((1300, 1))).astype(np.int8)
    sets[::6] = 0
    sets[1::6] = 1
    sets[2::6, 0] = -1
    sets[3::6, -1] = 2
    index = np.where(np.arange(1300) % 9 == 4, -1, np.arange(1300))
    params = Params(RowTransform(append=0.5), 3 * rng.standard_normal((13, m)))
    plain = Params(RowTransform(), params.weights[1:])
    for statistic in statistics(m):
        if not statistic.takes_sets or (
            m > 50 and isinstance(statistic, SigmoidHessians)
        ):
            continue
        own = plain if isinstance(statistic, ChannelMoment) else params
        wanted = added(ReferenceSums(), statistic, own, x, sets, index)
        for way in (CpuSums(compiled=False), CpuSums()):
            assert np.array_equal(wanted, added(way, statistic, own, x, sets, index))


@pytest.mark.parametrize("compiled", [True, False])
def test_sums_beyond_24_bits_are_exact(compiled):
    """Float32 would round them."""
    x = np.tile(np.array([3.0, 4.0, 0.1], np.float32), (900, 1))
    y = np.zeros(900, int)
    for statistic in (Gram(2), ClassSums(2), Gradient(2, "sigmoid")):
        params = Params(weights=np.zeros((3, 2)))
        sums = [
            added(way, statistic, params, x, y, np.arange(900))
            for way in (CpuSums(compiled), ReferenceSums())
        ]
        assert np.array_equal(*sums)


def test_an_installation_without_kernels_sums_by_numpy(monkeypatch):
    """As it is without a C compiler."""
    monkeypatch.setattr(kernels, "library", None)
    x, y = hostile(300, 12, 3, 0)
    params = Params(RowTransform(True), np.ones((12, 3)))
    for statistic in statistics(3):
        asked = (statistic, params, x, y, 0.7)
        wanted = integer_sum(*asked, block_sum=ReferenceSums())
        assert np.array_equal(wanted, integer_sum(*asked, block_sum=CpuSums()))


@pytest.mark.parametrize("shape", [(D, 2), (D - 1, 3)])
def test_weights_of_another_shape_are_refused(shape):
    """Compiled loops check no bounds: they would write beside the sum, where no noise
    is added.
    """
    params = Params(weights=np.zeros(shape))
    message = "do not fit the gradient|could not be broadcast|mismatch in its core"
    with pytest.raises(ValueError, match=message):
        integer_sum(Gradient(3), params, *toy(130), block_sum=CpuSums())
