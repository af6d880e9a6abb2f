"""The noise of `release` on zero input: its law, its independence, and that no draw is
repeated.

Tests with a fixed seed are deterministic. Where draws are unseeded the odds of a false
alarm are stated.
"""

import itertools

import numpy as np
import pytest
from core import D, M, python, release_many, release_one, toy
from scipy import stats

from dphead.data.arrays import ArrayRows
from dphead.privacy.noise import NoiseSource, rounded_noise
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassGrams, ClassSums, Gradient, Gram
from dphead.privacy.transform import RowTransform
from dphead.sums.cpu import CpuSums
from dphead.sums.jax import JaxSums

ALARM = 1e-6  # p-value below which a law is rejected


def zeros(n, d):
    return ArrayRows(np.zeros((n, d), np.float32), np.full(n, -1))


def rejected(z: np.ndarray, sd: float) -> list[str]:
    """Which tests say that z is not N(0, sd²): Kolmogorov-Smirnov, χ² of the variance,
    χ² of 64 equal cells.
    """
    z = np.ravel(z) / sd
    n = len(z)
    ks = stats.kstest(z, "norm").pvalue
    total = float(z @ z)
    variance = 2 * min(stats.chi2.cdf(total, n), stats.chi2.sf(total, n))
    cells = np.bincount((stats.norm.cdf(z) * 64).astype(int).clip(0, 63), minlength=64)
    shape = stats.chisquare(cells).pvalue
    return [
        name
        for name, p in (("ks", ks), ("variance", variance), ("cells", shape))
        if p < ALARM
    ]


@pytest.mark.parametrize(
    "clip_norm, sigma, way", [(0.03, 7.5, JaxSums()), (200.0, 0.4, CpuSums())]
)
def test_the_noise_is_gaussian_with_the_planned_deviation(clip_norm, sigma, way):
    """480,000 draws: enough that 0.97 and 1.03 of the deviation are rejected by all
    three tests.
    """
    released = release_one(
        ClassSums(800),
        Params(),
        zeros(3, 600),
        5,
        way,
        clip_norm=clip_norm,
        sigma=sigma,
    )
    sd = sigma * clip_norm
    assert released.noise_sd == pytest.approx(sd, rel=1e-12)
    assert rejected(released.value, released.noise_sd) == []
    for factor in (0.97, 1.03):
        assert rejected(released.value, sd / factor) == ["ks", "variance", "cells"]
    assert np.std(released.value) >= 0.995 * sd  # four standard errors


@pytest.mark.parametrize(
    "relation, factor", [("zero_out", 1.0), ("add_remove", 1.0), ("replace_one", 2.0)]
)
def test_the_noise_covers_the_relations_own_sensitivity(relation, factor):
    released = release_one(
        Gradient(500),
        Params(weights=np.zeros((400, 500))),
        zeros(3, 400),
        relation=relation,
    )
    assert rejected(released.value / factor, released.noise_sd / factor) == []
    assert np.std(released.value) == pytest.approx(factor, rel=0.01)


def test_an_accountant_that_doubles_for_poisson_gets_the_zero_out_noise():
    """Replace-one over Poisson batches: PLD's pair moves by 2C itself, so noise is over
    C (ALGORITHMS.md §2).
    """
    params = Params(weights=np.zeros((400, 500)))
    released = release_one(
        Gradient(500), params, zeros(3, 400), relation="replace_one", sampling_prob=0.5
    )
    assert np.std(released.value) == pytest.approx(1.0, rel=0.01)


def test_every_class_gets_its_own_noise():
    """The published DP-FC, DP-LS and DP-Newton code gives every class the same vector
    (defect 1).
    """
    value = release_one(ClassSums(50), Params(), zeros(3, 300)).value
    correlation = np.corrcoef(value.T)[np.triu_indices(50, 1)]
    assert np.abs(correlation).max() < 6 / np.sqrt(300)
    assert len(np.unique(value, axis=1).T) == 50


def test_noise_is_added_once_whatever_the_number_of_blocks():
    """Per block or device it would be several times too large, or too small if it were
    divided (defect 12).
    """
    x = np.zeros((1000, 300), np.float32)
    released = [
        release_one(ClassSums(100), Params(), ArrayRows(x, np.full(1000, -1), rows), 9)
        for rows in (128, 1024)
    ]
    assert np.array_equal(released[0].value, released[1].value)
    assert rejected(released[0].value, released[0].noise_sd) == []


def test_results_lie_on_the_grid_of_the_integers_that_hides_the_low_bits():
    """Mironov's attack reads float64's low bits: a result is a whole number times a
    public unit, and nothing else.
    """
    for statistic in (ClassSums(M), Gram(M), Gradient(M)):
        unit = statistic.unit(0.7, 0.5)
        params = Params(RowTransform(append=0.5), np.zeros((D + 1, M)))
        for rows in (zeros(3, D), ArrayRows(*toy(10))):
            value = release_one(statistic, params, rows, clip_norm=0.7).value
            assert np.array_equal(value, np.rint(value / unit) * unit)
            assert unit > 2**20 * np.spacing(np.abs(value).max())


def test_unseeded_draws_never_repeat():
    """The first 63-bit draws of 5,000 releases: a repeat by chance has odds
    5,000²/2^64 = 1e-12.
    """
    source = NoiseSource()
    assert source.private
    first = [source.generator(0, "noise").integers(0, 2**63) for _ in range(5_000)]
    assert len(set(first)) == len(first)


def test_the_key_is_32_fresh_bytes_of_operating_system_entropy(monkeypatch):
    asked = []

    def token_bytes(n):
        asked.append(n)
        return bytes([len(asked)]) * n

    monkeypatch.setattr("dphead.privacy.noise.secrets.token_bytes", token_bytes)
    draws = [NoiseSource().generator(0, "noise").integers(2**63) for _ in range(4)]
    assert asked == [32] * 4
    assert len(set(draws)) == 4


def test_a_fit_is_unseeded_unless_asked():
    assert NoiseSource().seed is None
    assert NoiseSource().private
    assert not NoiseSource(0).private


def test_seeded_streams_differ_by_seed_release_and_purpose_and_repeat_otherwise():
    names = list(itertools.product((0, 1), range(20), ("noise", "sample")))

    def draws():
        return [NoiseSource(seed).generator(*of).integers(2**63) for seed, *of in names]

    assert len(set(draws())) == len(names)
    assert draws() == draws()


SCRIPT = """
import os, sys
from core import *
from dphead.privacy.statistic_base import Params

import numpy as np
rows = ArrayRows(np.zeros((3, 4), np.float32), np.full(3, -1))
def draw():
    line = release_many(ClassSums(3), Params(), rows, 5).tobytes().hex() + "\\n"
    os.write(1, line.encode())  # at once: parent and child share the pipe
source = NoiseSource()
source.generator(0, "noise").random(3)
pid = os.fork()
draw()
if pid:
    os.waitpid(pid, 0)
"""


def test_processes_and_forks_started_at_once_share_no_draw():
    """Two processes, each forked: 4 x 5 releases of 12 whole numbers of deviation 4095.

    All 5 x 12 of two equal: odds below 2^-500.
    """
    started = [python(SCRIPT, wait=False) for _ in range(2)]
    lines = [line for p in started for line in p.communicate(timeout=600)[0].split()]
    values = [np.frombuffer(bytes.fromhex(line)).reshape(5, 12) for line in lines]
    assert len(values) == 4
    vectors = np.concatenate(values)
    assert len(np.unique(vectors, axis=0)) == 20


def test_compiled_sums_do_not_freeze_the_noise():
    """A key captured when a function is compiled repeats its noise at every later step
    (defect 1).
    """
    x, y = toy(50)
    statistic = Gradient(M)
    params = Params(weights=np.zeros((D, M), np.float32))
    a = release_one(statistic, params, ArrayRows(x, y), None, JaxSums()).value
    b = release_one(statistic, params, ArrayRows(x, y), None, JaxSums()).value
    # whole numbers of deviation 4095**2: a pair is equal with odds 2e-8, three with
    # 2e-21
    assert np.sum(a == b) < 3


def symmetric_noise(statistic, d):
    return release_one(statistic, Params(), zeros(3, d), 3).value


def test_gram_noise_is_symmetric_with_full_variance_on_the_diagonal_and_half_off_it():
    d = 400
    released = [release_one(Gram(M), Params(), zeros(3, d), seed) for seed in (3, 4, 5)]
    values = np.stack([one.value for one in released])
    assert np.array_equal(values, np.swapaxes(values, 1, 2))
    off = values[:, np.triu_indices(d, 1)[0], np.triu_indices(d, 1)[1]]
    diagonal = np.diagonal(values, axis1=1, axis2=2)
    sd = released[0].noise_sd
    assert rejected(off, sd / np.sqrt(2)) == []
    assert rejected(diagonal, sd) == []
    assert len(rejected(off, sd)) == 3
    assert len(rejected(diagonal, sd / np.sqrt(2))) >= 2


def test_class_grams_have_independent_symmetric_noise():
    values = symmetric_noise(ClassGrams(40), 60)
    off = values[:, np.triu_indices(60, 1)[0], np.triu_indices(60, 1)[1]]
    correlation = np.corrcoef(off)[np.triu_indices(40, 1)]
    assert np.abs(correlation).max() < 6 / np.sqrt(off.shape[1])


def test_classes_coordinates_and_releases_are_uncorrelated():
    """One matrix of all pairs: coordinates and classes of one release, over 600
    releases; and between consecutive releases (steps). 6 standard errors and 288 pairs:
    odds of a false alarm 6e-7, and the seed is fixed.
    """
    values = release_many(ClassSums(M), Params(), zeros(3, D), 600, seed=2).reshape(
        600, D * M
    )
    now = np.corrcoef(values.T)
    off = now[~np.eye(D * M, dtype=bool)]
    step = np.corrcoef(values[:-1].T, values[1:].T)[: D * M, D * M :]
    assert np.abs(off).max() < 6 / np.sqrt(600)
    assert np.abs(step).max() < 6 / np.sqrt(600)
    squares = np.corrcoef((values**2).T)[~np.eye(D * M, dtype=bool)]
    assert np.abs(squares).max() < 8 / np.sqrt(600)
    assert rejected(values, np.std(values)) == []


def test_noise_does_not_depend_on_the_data():
    x, y = toy(100)
    statistic = ClassSums(M)
    params = Params()
    with_data = release_one(statistic, params, ArrayRows(x, y), 4)
    without = release_one(statistic, params, ArrayRows(x, np.full(100, -1)), 4)
    exact = release_one(statistic, params, ArrayRows(x, y), 4, sigma=0.0)
    unit = statistic.unit(1.0)  # all three are whole numbers of it
    sums = [
        np.rint(one.value / unit).astype(np.int64)
        for one in (with_data, without, exact)
    ]
    assert np.array_equal(sums[0] - sums[1], sums[2])
    again = rounded_noise(
        NoiseSource(4).generator(0, "noise"),
        sums[1].shape,
        with_data.noise_sd / unit,
        False,
    )
    assert np.array_equal(sums[1], again)
