"""Poisson batches as `release` draws them: counts, independence, sizes, empty
batches.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from core import (
    D,
    KnownNoise,
    M,
    clipped_sum,
    release_many,
    release_one,
    reserve,
    spec_of,
    toy,
    verified,
)
from scipy import stats

from dphead.data.arrays import ArrayRows
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.sampling import Allocation, poisson_sample, random_steps
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassCounts, ClassSums


class Watched(ArrayRows):
    """Rows that note which slots each pass asked for."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.asked = []

    def blocks(self, indices=None, known=None):
        self.asked.append(indices)
        return super().blocks(indices)


def batches(n, prob, times, seed=4):
    """Inclusion matrix (times, n) of the batches of one fit, through `release`."""
    rows = Watched(np.zeros((n, 1), np.float32), np.zeros(n, int))
    release_many(ClassCounts(1), Params(), rows, times, seed, sampling_prob=prob)
    included = np.zeros((times, n), bool)
    for t, indices in enumerate(rows.asked):
        included[t, indices] = True
    return included


N = 120
Q = 0.15
T = 600


@pytest.fixture(scope="module")
def included():
    return batches(N, Q, T)


def test_inclusion_counts_are_binomial(included):
    counts = included.sum(axis=0)
    gaps = counts - T * Q
    chi2 = float((gaps**2 / (T * Q * (1 - Q))).sum())
    assert 1e-6 < stats.chi2.sf(chi2, N) < 1 - 1e-6
    error = np.sqrt(Q * (1 - Q) / (N * T))
    assert abs(included.mean() - Q) < 5 * error
    assert all(stats.binomtest(int(c), T, Q).pvalue > 1e-8 for c in counts)


def test_batch_sizes_vary_as_a_binomial(included):
    """A shuffled or fixed-size batch has variance 0, and is another mechanism (defects
    7, 8 and 11).
    """
    sizes = included.sum(axis=1)
    variance = N * Q * (1 - Q)
    assert np.var(sizes) == pytest.approx(variance, rel=6 * np.sqrt(2 / T))
    # an over-full batch is not truncated
    assert sizes.max() > N * Q + 3 * np.sqrt(variance)
    expected = stats.binom.pmf(np.arange(N + 1), N, Q) * T
    low, high = 10, 26
    observed = np.bincount(np.clip(sizes, low, high), minlength=high + 1)[low:]
    wanted = np.concatenate(
        [[expected[: low + 1].sum()], expected[low + 1 : high], [expected[high:].sum()]]
    )
    assert stats.chisquare(observed, wanted * T / wanted.sum()).pvalue > 1e-6


def test_empty_batches_happen_and_still_release_noise():
    """(1 - q)^n of them; a step that skipped its noise would show that the batch was
    empty (defect 11).
    """
    n = 4
    prob = 0.2
    times = 500
    rows = Watched(np.ones((n, D), np.float32), np.zeros(n, int))
    values = release_many(
        ClassSums(M), Params(), rows, times, 4, sampling_prob=prob
    ).reshape(times, -1)
    empty = np.array([len(i) == 0 for i in rows.asked])
    assert stats.binomtest(int(empty.sum()), times, (1 - prob) ** n).pvalue > 1e-6
    assert len(values) == times
    noise = values[empty]
    # one number is rounded to zero with odds 1e-4
    assert np.all(np.any(noise != 0, axis=1))
    assert np.std(noise) == pytest.approx(1, abs=6 / np.sqrt(2 * noise.size))
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("prob", [0.02, 0.97])
@pytest.mark.parametrize("block_rows", [128, 1024])
def test_every_sampled_row_counts_once_whatever_the_block_size(prob, block_rows):
    """Also when far more rows are drawn than a block holds."""
    x, y = toy(900)
    statistic = ClassSums(M)
    params = Params()
    rows = Watched(x, y, block_rows=block_rows)
    spec = spec_of(statistic, 900, sigma=0.0, sampling_prob=prob, clip_norm=1.0)
    ledger = reserve([spec])
    noise = KnownNoise(6)
    value = release(
        statistic, params, rows, spec, ledger=ledger, noise=noise, summer=verified()
    ).value
    chosen = rows.asked[0]
    assert np.array_equal(value, clipped_sum(statistic, params, x[chosen], y[chosen]))
    again = poisson_sample(900, prob, NoiseSource(6).generator(0, "sample"))
    assert np.array_equal(chosen, again)


def test_the_fast_sampler_is_the_definition():
    for prob in (0.001, 0.3, 0.999):
        fast = poisson_sample(500, prob, NoiseSource(1).generator(0, "sample"))
        generator = NoiseSource(1).generator(0, "sample")
        slow = [i for i in range(500) if generator.random() < prob]
        assert fast.tolist() == slow
        assert np.all(np.diff(fast) > 0)


@pytest.mark.parametrize("prob", [0.3, 2.0**-60, 1 - 2.0**-53, 3 * 2.0**-54])
def test_a_row_is_in_a_sample_with_at_most_its_probability(prob):
    """A uniform is j 2**-53.

    Those below the bound: floor(prob 2**53), in whole numbers.
    """
    below = math.floor(Fraction(prob) * 2**53)

    class Uniforms:
        def random(self, n):
            return np.array([max(below - 1, 0), below]) * 2.0**-53

    assert poisson_sample(2, prob, Uniforms()).tolist() == ([0] if below else [])


def test_full_batches_ask_for_no_sample():
    rows = Watched(*toy(50))
    release_one(ClassSums(M), Params(), rows)
    assert rows.asked == [None]


STEPS = 7
EPOCHS = 60


@pytest.fixture(scope="module")
def allocated():
    """(EPOCHS, STEPS, N) which rows each release of a fit with allocation used."""
    rows = Watched(np.zeros((N, 1), np.float32), np.zeros(N, int))
    times = EPOCHS * STEPS
    release_many(ClassCounts(1), Params(), rows, times, 8, epoch_steps=STEPS)
    included = np.zeros((times, N), bool)
    for t, indices in enumerate(rows.asked):
        assert np.all(np.diff(indices) > 0)
        included[t, indices] = True
    return included.reshape(EPOCHS, STEPS, N)


def test_an_allocated_row_is_in_exactly_one_step_of_each_epoch(allocated):
    assert np.all(allocated.sum(axis=1) == 1)


def test_steps_of_rows_are_uniform_and_independent(allocated):
    """Of each row by chi-square; of pairs of rows and of successive epochs by the
    correlation of being in one step, at 6 standard errors.
    """
    counts = allocated.sum(axis=0)
    chi2 = ((counts - EPOCHS / STEPS) ** 2 / (EPOCHS / STEPS)).sum(axis=0)
    assert stats.chi2.sf(chi2, STEPS - 1).min() > 1e-6
    assert 1e-6 < stats.chi2.sf(chi2.sum(), N * (STEPS - 1)) < 1 - 1e-6
    steps = allocated.argmax(axis=1)
    first, second = np.triu_indices(N, 1)
    same = steps[:, first] == steps[:, second]
    error = math.sqrt((1 / STEPS) * (1 - 1 / STEPS) / EPOCHS)
    assert np.abs(same.mean(axis=0) - 1 / STEPS).max() < 6 * error
    again = (steps[1:] == steps[:-1]).mean(axis=0)
    assert np.abs(again - 1 / STEPS).max() < 6 * error


class Given:
    """A generator of 64-bit numbers that are given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def integers(self, low, high, size, dtype):
        assert (low, high, dtype) == (0, 2**64, np.uint64)
        drawn, self.numbers = self.numbers[:size], self.numbers[size:]
        return np.array(drawn, np.uint64)


def test_a_step_has_no_bias_of_a_remainder():
    """2**64 = 3 mult. of 5 + 1: of 2**64 numbers one is left over, and drawn again."""
    left_over = 2**64 % 5
    assert left_over == 1
    source = Given(0, 1, 2**64 - 1, 0, 9)
    assert random_steps(3, 5, source).tolist() == [9 % 5, 1, (2**64 - 1) % 5]
    assert source.numbers == []
    largest = 2**31 - 1
    redrawn = Given(2**64 % largest - 1, 2**64 % largest)
    assert random_steps(1, largest, redrawn).tolist() == [2**64 % largest % largest]


def test_only_the_next_step_of_an_epoch_that_was_begun_here_has_rows():
    """What follows a step that was left out, or not committed, or another's, is empty:
    else a row could be used twice in one epoch.
    """

    def rows(allocation, step, steps=2, seed=1):
        return set(allocation.rows(step, steps, 100, np.random.default_rng(seed)))

    whole, lost, skipped = Allocation(), Allocation(), Allocation()
    used = rows(whole, 0, seed=0)
    assert 0 < len(used) < 100
    whole.released(0)
    rest = rows(whole, 1)
    assert used | rest == set(range(100))
    assert not used & rest
    rows(lost, 0, seed=0)  # not committed
    assert not rows(lost, 1)
    assert not rows(Allocation(), 1)
    rows(skipped, 0, 5, seed=0)
    skipped.released(0)
    for step in (2, 3, 4):
        assert not rows(skipped, step, 5)
        skipped.released(step)
    assert rows(skipped, 0, 5)


def test_an_allocation_says_nothing_of_itself():
    allocation = Allocation()
    allocation.rows(0, 2, 10, np.random.default_rng(0))
    assert "array" not in repr(allocation)


def test_rows_are_included_independently(included):
    """7,140 pairs at 6 standard errors."""
    correlation = np.corrcoef(included.T.astype(float))[np.triu_indices(N, 1)]
    assert np.abs(correlation).max() < 6 / np.sqrt(T)
    assert np.std(correlation) * np.sqrt(T) == pytest.approx(1, abs=0.1)


def test_batches_of_successive_steps_are_independent(included):
    steps = np.corrcoef(included[:-1].T.astype(float), included[1:].T.astype(float))[
        :N, N:
    ]
    assert np.abs(steps).max() < 6 / np.sqrt(T)


def test_the_sample_and_the_noise_are_drawn_apart():
    """The uniform numbers that chose the batch must not be those of its noise."""
    source = NoiseSource(1)
    assert (
        source.generator(0, "sample").random() != source.generator(0, "noise").random()
    )


def test_batches_of_an_epoch_vary_as_binomials(allocated):
    """A shuffled epoch has equal batches, and is another mechanism."""
    sizes = allocated.sum(axis=2)
    variance = N * (1 / STEPS) * (1 - 1 / STEPS)
    spread = 6 * math.sqrt(2 / (EPOCHS * STEPS))
    assert np.var(sizes) == pytest.approx(variance, rel=spread)
