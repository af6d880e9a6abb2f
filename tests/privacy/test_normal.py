"""round(N(0, sd²)) against its law: exact probabilities, the inversion that defines it,
and words chosen to deceive.

A draw is k exactly if its uniform p lies between Φ at two boundaries, which mpmath
decides here; the generator of a test gives words of our choice. Statistical tests have
fixed seeds, so that they pass or fail for good.
"""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dphead.privacy import normal
from dphead.privacy.noise import NoiseSource
from dphead.privacy.normal import (
    definition,
    over_root_two,
    quantile,
    rounded_gaussian,
    symmetric_rounded_gaussian,
    upper_tail,
)

ALARM = 1e-6  # p-value below which a law is rejected
ALL = 2**64 - 1
SIGN = 2**63
SDS = (0.0625, 0.1, 1.0, 3.7, 1000.0, 2.0**30, 2.0**36, 2.0**44)


class Words:
    """A generator that gives these words first, and then, one at a time, `then` for
    ever.
    """

    def __init__(self, words, then=1):
        self.words = np.array(words, np.uint64)
        self.then = then
        self.asked = 0  # words beyond the first

    def integers(self, low, high, size, dtype):
        assert (low, high, dtype) == (0, 2**64, np.uint64)
        given, self.words = self.words[:size], self.words[size:]
        if len(given) == size:
            return given
        assert size == 1
        self.asked += 1
        return np.array([self.then], np.uint64)


def fresh(seed):
    return NoiseSource(seed).generator(0, "noise")


def phi(x):
    """Φ(−x)."""
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def is_the_draw(draw, word, sd, then):
    """Whether round(sd·Φ⁻¹(U)) is `draw`, where U's digits are `word` and then `then`
    over and over.
    """
    p = (mpmath.mpf(word & ~SIGN) + mpmath.mpf(then) / ALL) / mpmath.mpf(2) ** 64
    k = abs(draw)
    above = (
        mpmath.mpf(1) / 2 if k == 0 else phi((k - mpmath.mpf(1) / 2) / mpmath.mpf(sd))
    )
    sign_is_right = k == 0 or (draw < 0) == (word >= SIGN)
    return sign_is_right and phi((k + mpmath.mpf(1) / 2) / mpmath.mpf(sd)) <= p <= above


def last_digits_above(k, sd):
    """The 64 digits and the next 64 of p where the draw changes from k to k + 1."""
    digits = int(
        mpmath.floor(
            phi((k + mpmath.mpf(1) / 2) / mpmath.mpf(sd)) * mpmath.mpf(2) ** 128
        )
    )
    return divmod(digits, 2**64)


@pytest.fixture(autouse=True)
def sixty_digits():
    with mpmath.workprec(400):
        yield


def rejected(draws, sd):
    """χ² of all integers that are expected five times or more, the rest together on
    each side.
    """
    n = len(draws)
    edge = int(np.ceil(sd * stats.norm.isf(5 / n)))
    edge = max(edge - 2, 1)
    ks = np.arange(-edge, edge + 1)
    below = stats.norm.cdf((ks - 0.5) / sd)
    above = stats.norm.cdf((ks + 0.5) / sd)
    inner = np.where(
        ks < 0,
        above - below,
        stats.norm.sf((ks - 0.5) / sd) - stats.norm.sf((ks + 0.5) / sd),
    )
    inner[0], inner[-1] = above[0], above[0]
    seen = np.bincount(np.clip(draws, -edge, edge) + edge, minlength=len(ks))
    keep = inner * n >= 5
    assert keep.sum() >= 2
    return (
        stats.chisquare(
            seen[keep], inner[keep] * seen[keep].sum() / inner[keep].sum()
        ).pvalue
        < ALARM
    )


@pytest.mark.parametrize("sd", [0.25, 1.0, 3.7, 40.0])
def test_every_integer_appears_as_often_as_it_should(sd):
    """300,000 draws: enough to reject 0.98 and 1.02 of the deviation, or a draw off by
    a hundredth of a step.
    """
    draws = rounded_gaussian(fresh(1), (300_000,), sd)
    assert not rejected(draws, sd)
    assert rejected(draws, 0.98 * sd)
    assert rejected(draws, 1.02 * sd)


@pytest.mark.parametrize("sd", [1e5, 2.0**30, 2.0**40 + 1])
def test_large_deviations_are_gaussian_and_their_low_digits_uniform(sd):
    """At 2^30 the lowest digits are the 31st and later of the draw: float32 noise has
    none.
    """
    n = 200_000 if sd < 2**35 else 5_000
    draws = rounded_gaussian(fresh(2), (n,), sd)
    assert stats.kstest(draws / sd, "norm").pvalue > ALARM
    low = np.bincount(draws & 63, minlength=64)
    assert stats.chisquare(low).pvalue > ALARM
    assert stats.binomtest(int((draws < 0).sum()), n).pvalue > ALARM
    magnitudes = np.abs(draws)
    assert stats.ks_2samp(magnitudes[draws < 0], magnitudes[draws > 0]).pvalue > ALARM


@pytest.mark.parametrize("sd", SDS)
@pytest.mark.parametrize("then", [1, 2**63, ALL - 1])
def test_draws_are_the_inverse_of_the_distribution_function(sd, then):
    """Against mpmath, for words at random, words at both ends of each sign, and words
    of every length.
    """
    count = 60 if sd < 2**40 else 20
    random = (
        np.random.default_rng(5).integers(0, 2**64, count, dtype=np.uint64).tolist()
    )
    lengths = [(1 << b) + d for b in range(1, 64, 2) for d in (-1, 0, 1)]
    ends = [0, 1, SIGN - 1, SIGN, SIGN + 1, ALL]
    words = random + lengths + ends
    draws = rounded_gaussian(Words(words, then), (len(words),), sd).tolist()
    wrong = [
        (w, k)
        for w, k in zip(words, draws, strict=True)
        if not is_the_draw(k, w, sd, then)
    ]
    assert wrong == []


@pytest.mark.parametrize("sd", SDS)
@pytest.mark.parametrize(
    "deviations", [0.0, 0.01, 0.5, 1.0, 2.5, 4.4, 4.6, 6.0, 8.0, 9.0]
)
def test_words_at_a_boundary_fall_on_its_right_side(sd, deviations):
    """The digits of p agree with Φ at the boundary in all 64 places, and the next 64
    decide.
    """
    k = round(deviations * sd)
    word, following = last_digits_above(k, sd)
    if word == 0 and following < 2**32:
        pytest.skip(
            "the boundary lies beyond all of 128 digits: a deviation of a tenth of a "
            "step"
        )
    for sign in (0, SIGN):
        words = [word | sign, word | sign]
        below = Words(words, following - 1)
        above = Words(words, following + 1)
        outer = rounded_gaussian(below, (2,), sd).tolist()
        inner = rounded_gaussian(above, (2,), sd).tolist()
        assert below.asked >= 2
        assert above.asked >= 2
        assert outer == 2 * [-k - 1 if sign else k + 1]
        assert inner == 2 * [-k if sign else k]


def test_digits_are_drawn_until_the_side_is_certain():
    """128 digits agree with the boundary; only the third word decides."""
    digits = int(mpmath.floor(phi(mpmath.mpf(3.5) / 3) * mpmath.mpf(2) ** 192))
    first, rest = divmod(digits, 2**128)
    for offset, expected in ((-1, 4), (1, 3)):
        words = iter([rest >> 64, (rest & ALL) + offset * 2**40])
        tail = normal.Tail(first, lambda words=words: next(words))
        assert definition(tail, 3.0) == expected
        assert tail.bits == 192


@pytest.mark.parametrize("sd", [1.0, 1000.0, 2.0**38])
def test_the_fast_draws_are_those_of_the_slow_definition(sd):
    words = np.random.default_rng(6).integers(0, 2**64, 3000, dtype=np.uint64).tolist()
    fast = rounded_gaussian(Words(words, 77), (len(words),), sd).tolist()
    slow = [definition(normal.Tail(w & ~SIGN, lambda: 77), sd) for w in words]
    assert fast == [-k if w >= SIGN else k for w, k in zip(words, slow, strict=True)]


def test_the_inverse_errs_by_less_than_its_bound():
    """At both ends and the middle of each cell, at the ends of the range, and at 1,000
    words: for every p that the 64 digits leave open, −Φ⁻¹(p) lies within MARGIN/2·(1 +
    x) of the float64 value.
    """
    middles = normal.lookup_cells()[0].astype(np.int64)
    half = (
        np.int64(1) << np.floor(np.log2(middles.astype(float))).astype(np.int64)
    ) >> 6
    drawn = np.random.default_rng(7).integers(2**46, 2**63, 1000)
    ends = np.array(
        [2**46, 2**46 + 1, 2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63 - 513], np.int64
    )
    tails = np.concatenate(
        [middles, middles - half, middles + half - 1, middles + 1, drawn, ends]
    )
    values = quantile(tails)
    mpmath.mp.prec = 150  # restored by the fixture
    for tail, value in zip(tails.tolist(), values.tolist(), strict=True):
        error = mpmath.mpf(normal.QUANTILE_ERROR) / 2 * (1 + abs(value))
        unit = mpmath.mpf(2) ** -64
        assert phi(value + error) <= tail * unit, tail
        assert phi(value - error) >= (tail + 1) * unit, tail


@given(st.fractions(0, 30), st.sampled_from([64, 128, 192, 320]))
@example(Fraction(1, 10**30), 320)
@example(Fraction(30), 320)
def test_the_tail_in_integers_errs_by_at_most_two(x, bits):
    with mpmath.workprec(2000):
        exact = phi(mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
        assert abs(upper_tail(x, bits) - exact) <= 2


def test_rows_and_classes_are_independent():
    """40 columns that are longer than a block: correlations of draws and of their
    squares, 6 standard errors.
    """
    draws = rounded_gaussian(fresh(11), (40, 10_000), 50.0).astype(float)
    off = ~np.eye(40, dtype=bool)
    for values in (draws, draws**2):
        assert np.abs(np.corrcoef(values)[off]).max() < 6 / np.sqrt(10_000)
        assert np.abs(
            np.corrcoef(values[:, :-1], values[:, 1:])[:40, 40:]
        ).max() < 6 / np.sqrt(10_000)
    assert len(np.unique(draws[:, :30], axis=0)) == 40


def test_symmetric_draws_have_full_variance_on_the_diagonal_and_half_off_it():
    draws = symmetric_rounded_gaussian(fresh(13), (3, 300, 300), 40.0)
    assert draws.dtype == np.int64
    assert np.array_equal(draws, np.swapaxes(draws, 1, 2))
    rows, columns = np.triu_indices(300, 1)
    off = draws[:, rows, columns].ravel()
    diagonal = np.diagonal(draws, axis1=1, axis2=2).ravel()
    assert not rejected(off, 40 / np.sqrt(2))
    assert rejected(off, 40.0)
    assert not rejected(diagonal, 40.0)
    assert rejected(diagonal, 40 / np.sqrt(2))


@given(st.floats(0.1, 2.0**44))
def test_the_deviation_off_the_diagonal_is_never_less_than_planned(sd):
    value = over_root_two(sd)
    assert 2 * Fraction(value) ** 2 >= Fraction(sd) ** 2
    assert value <= sd / np.sqrt(2) * (1 + 1e-15)


@pytest.mark.parametrize("sd", [0.0, -1.0, 0.01, 2.0**44 + 1, 2.0**45, np.inf, np.nan])
def test_deviations_that_are_not_covered_are_refused(sd):
    with pytest.raises(ValueError, match="sd must be from"):
        rounded_gaussian(fresh(1), (3,), sd)


def test_an_inverse_that_errs_is_noticed(monkeypatch):
    """The table's values come from scipy and are corrected; a guess too far for one
    step is refused.
    """
    monkeypatch.setattr(normal, "ndtri", lambda p: stats.norm.ppf(p) + 1e-9)
    with pytest.raises(ArithmeticError, match="ndtri has an error"):
        normal.value_and_slope(2**62)


def test_tails_appear_as_often_as_they_should():
    """Four million draws: 27 are expected beyond 4.5 deviations, and 10,800 beyond
    three.
    """
    draws = np.abs(rounded_gaussian(fresh(3), (4_000_000,), 1000.0))
    for boundary in (3000.5, 4000.5, 4500.5):
        expected = 2 * stats.norm.sf(boundary / 1000)
        assert (
            stats.binomtest(int((draws > boundary).sum()), draws.size, expected).pvalue
            > ALARM
        )


@pytest.mark.parametrize(
    "x", [0, Fraction(1, 10**30), Fraction(1, 3), 1, Fraction(3, 2), 9, 14, 30]
)
def test_the_tail_in_integers_at_its_extremes(x):
    for bits in (64, 320):
        with mpmath.workprec(2000):
            exact = (
                phi(mpmath.mpf(Fraction(x).numerator) / Fraction(x).denominator)
                * mpmath.mpf(2) ** bits
            )
            assert abs(upper_tail(Fraction(x), bits) - exact) <= 2


def test_few_draws_need_more_digits(monkeypatch):
    """The odds at sd = 2^30 are 2·sd·MARGIN·(1 + E|Z|) + 2^-17 = 2e-5 a draw: 4 of
    200,000.
    """
    asked = []
    monkeypatch.setattr(normal, "definition", lambda tail, sd: asked.append(tail) or 0)
    rounded_gaussian(fresh(8), (200_000,), 2.0**30)
    assert len(asked) < 20


def test_symmetric_draws_are_independent_across_rows_and_classes():
    draws = symmetric_rounded_gaussian(fresh(14), (20, 80, 80), 40.0)
    row, column = np.triu_indices(80, 1)
    off = draws[:, row, column].astype(float)
    assert np.abs(np.corrcoef(off)[np.triu_indices(20, 1)]).max() < 6 / np.sqrt(
        off.shape[1]
    )
    entries = off.T[:400]  # 20 classes each: no two entries share their draws
    assert len(np.unique(entries, axis=0)) == 400


def test_only_the_entries_that_are_needed_are_drawn():
    source = fresh(15)
    asked = []

    class Counter:
        def integers(self, low, high, size, dtype):
            asked.append(size)
            return source.integers(low, high, size, dtype=dtype)

    symmetric_rounded_gaussian(Counter(), (2, 70, 70), 3.0)
    assert 2 * 70 * 71 // 2 <= sum(asked) < 2 * 70 * 71 // 2 + 10
