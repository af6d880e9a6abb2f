"""A row's statistic does not depend on where the row stands, nor on what stands beside
it.

Where neighboring data have another number of rows, or a Poisson batch has one row
fewer, all later rows move. If a row's scores moved with it, even by a last bit, nearly
tied scores would change its residual by all of its clip norm. Libraries' products of
float32 do move: OpenBLAS's kernels for processors without AVX-512 take some rows of a
block apart. Sums of whole numbers cannot, which is seen here with equality, also in
processes of their own, in which OpenBLAS is told to use the kernels of other
processors.
"""

import os
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from core import integer_sum, python

from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import (
    ChannelMoment,
    ClassCorrectCounts,
    CorrectCounts,
    Gradient,
    SigmoidHessians,
)
from dphead.privacy.transform import RowTransform
from dphead.sums.cpu import CpuSums
from dphead.sums.jax import JaxSums

CLASSES = (2, 3, 9, 16, 37, 100, 1000)
WIDTHS = (1, 3, 64, 65, 768)
# of OpenBLAS, and what numpy must not use of a newer processor's instructions
KERNELS = {
    "": "",
    "Haswell": "X86_V4 AVX512_ICL AVX512_SPR",
    "Sandybridge": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
}
PLACES = 128  # that a library may treat apart: the rows of a product


def exact_sum(
    statistic, params, x, y, *, clip_norm=1.0, cores=1, block_sum=None, indices=None
):
    """The integers without noise, as `release` computes them: in blocks of 256 rows, on
    so many cores.
    """
    with patch("dphead.sums.passes.cores", lambda: cores):
        way = CpuSums() if block_sum is None else block_sum
        more = {"block_rows": 256, "block_sum": way, "indices": indices}
        return integer_sum(statistic, params, x, y, clip_norm, **more)


def tied_weights(width, m, seed=0):
    """(width, m) float32.

    A row of ones scores nothing but rounding error, as each column adds up to zero.
    """
    rng = np.random.default_rng(seed)
    weights = np.zeros((width, m), np.float32)
    half = width // 2
    weights[:half] = 1e6 * rng.standard_normal((half, m))
    weights[half : 2 * half] = -rng.permuted(weights[:half], axis=0)
    return weights if half else rng.standard_normal((width, m)).astype(np.float32)


def hostile_labels(rows, weights):
    """Labels (n,) of n equal rows: the class that a library's product gives the row at
    its place, where it gives another one at the place before; no class elsewhere.
    """
    scores = np.matmul(rows[: 8 * PLACES].reshape(-1, PLACES, rows.shape[1]), weights)
    winners = np.resize(scores.reshape(-1, weights.shape[1]).argmax(axis=1), len(rows))
    return np.where(winners != np.roll(winners, 1), winners, -1)


def hostile(make, n, width):
    """Equal rows, weights and labels of `hostile_labels`: of the first seed at which a
    library's product moves.
    """
    rows = np.ones((n, width), np.float32)
    for seed in range(30):
        weights = make(seed)
        labels = hostile_labels(rows, weights)
        if (labels >= 0).any():
            return rows, weights, labels, seed
    # this library's products do not depend on the place
    return rows, make(0), np.zeros(n, int), 0


def check_equal_rows(m, width, cores=1, block_sum=None):
    """n equal rows add up to n times one of them, and a sample of them to as often as
    it holds: exactly.
    """
    n = 700
    transform = RowTransform(False, np.full(width, 0.25, np.float32), None, 0.5)
    rng = np.random.default_rng(m)
    ones = np.ones(width, np.float32)
    normal = rng.standard_normal(width).astype(np.float32)
    usual = rng.standard_normal((width + 1, m)).astype(np.float32)
    statistics = [Gradient(m), CorrectCounts(m)]
    if block_sum is None:  # XLA compiles for each anew
        statistics.append(ClassCorrectCounts(m))
    if m < 1000 and block_sum is None:
        statistics += [Gradient(m, "sigmoid"), Gradient(m, "squared"), ChannelMoment(m)]
        if m * width**2 <= 1 << 16:
            statistics.append(SigmoidHessians(m))
    sample = np.flatnonzero(rng.random(n) < 0.6)
    how = {"cores": cores, "block_sum": block_sum}
    for statistic in statistics:
        for row, params in (
            (ones, Params(weights=tied_weights(width, m))),
            (normal, Params(transform, usual)),
        ):
            if isinstance(statistic, ChannelMoment):
                params = Params(replace(params.transform, append=0.0))
            given = statistic, params, np.tile(row, (n, 1)), np.full(n, m // 2)
            single = exact_sum(*given, indices=np.array([0]), **how)
            for indices in (np.arange(n), sample):
                total = exact_sum(*given, indices=indices, **how)
                wanted = len(indices) * single
                assert np.array_equal(total, wanted), (statistic.name, width)


def check_count(m, width=64):
    """One row fewer, so that all others move by a place, and the numbers of correct and
    of other rows move by one row together; so do those of a Poisson sample without one
    of its rows.
    """
    x, weights, y, _ = hostile(
        lambda seed: tied_weights(width, m, seed), 100 * PLACES + 1, width
    )
    statistic = CorrectCounts(m)
    single = statistic.sensitivity_sq("add_remove", 1.0)
    sample = np.flatnonzero(np.random.default_rng(m).random(len(x)) < 0.5)
    for indices in (np.arange(len(x)), sample):
        before, after = (
            exact_sum(statistic, Params(weights=weights), x, y, indices=indices[i:])
            for i in (0, 1)
        )
        assert ((before - after) ** 2).sum() <= single, (before, after)


@pytest.mark.parametrize("m", CLASSES)
def test_equal_rows_count_the_same_at_every_place(m):
    """All widths at two numbers of classes; `check_all` has others, on two cores."""
    for width in WIDTHS if m in (9, 16) else (3, 65):
        check_equal_rows(m, width)


def test_equal_rows_count_the_same_at_every_place_of_jax():
    check_equal_rows(10, 65, block_sum=JaxSums())


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_row_fewer_moves_a_count_by_one_row_with_other_processors_kernels(
    kernel, monkeypatch
):
    monkeypatch.setenv("OPENBLAS_CORETYPE", kernel)
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", KERNELS[kernel])
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_places; "
        "test_places.check_all()"
    )
    done = python(script, os.path.dirname(__file__))
    assert done.returncode == 0, done.err


def check_all():
    """Every check, in a process whose OpenBLAS has its kernel from the environment."""
    for m in (10, 37):
        check_count(m)
    for m in (2, 9, 100):
        check_equal_rows(m, 65, cores=2)
    check_equal_rows(10, 768, cores=2)
