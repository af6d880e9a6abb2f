"""Correct draws have p-values that are uniform or larger, and each kind of defect is
found by its test.
"""

import numpy as np
import pytest
from scipy.stats import kstest

from dphead.analysis.audit_laws import Evidence, LawResult, judge

SD_UNITS = 1e6


def drawn(
    change=None,
    shape=(3, 2),
    symmetric=False,
    fits=150,
    releases=2,
    seed=0,
    units=SD_UNITS,
):
    """The findings of draws of a fixed seed. change(z, i): of release i."""
    rng = np.random.default_rng(seed)
    evidence = Evidence(10)
    for fit in range(2 * fits):
        evidence.begin()
        for i in range(releases):
            z = rng.standard_normal(shape)
            if symmetric:
                z = (z + np.swapaxes(z, -1, -2)) / 2
            if change is not None:
                z = change(z, i)
            score, inside = float(z.ravel()[0]), fit % 2 == 1
            evidence.add(
                ("a", "b"), z, score, inside, symmetric=symmetric, sd_units=units
            )
    return evidence, evidence.findings()


def broken(findings, level=1e-9):
    """The tests that fail, as (name, last words of the subject)."""
    return {f"{f.name}: {f.about.split(', ')[-1]}" for f in findings if f.p < level}


@pytest.mark.parametrize(
    "shape, symmetric", [((3, 2), False), ((2, 3, 3), True), ((1, 1), False)]
)
def test_p_values_of_correct_draws_are_uniform_or_larger(shape, symmetric):
    """Of 25 seeds the least p of all tests, times their number, is no smaller than
    uniform (fixed seeds; the law of the test's own p-value has odds of 1e-3).
    """
    least = []
    for seed in range(25):
        along = 0 if not symmetric else 1
        _, found = drawn(None, shape, bool(symmetric), 20, 2, seed + 100 * along)
        least.append(min(1.0, len(found) * min(f.p for f in found)))
    assert kstest(least, "uniform", alternative="greater").pvalue > 1e-3


NOISE = {  # a change of correct draws, and the test that finds it
    "deviation of the noise: all releases": lambda z, i: 0.8 * z,
    "deviation of the noise: each entry": lambda z, i: (
        z * np.array([[1.4, 1], [0, 1], [1, 1]])
    ),
    "deviation of the noise: each step": lambda z, i: z * (0.5 if i else np.sqrt(1.75)),
    "normality of the noise: mean of each entry": lambda z, i: (
        z + np.array([[0.8, 0], [0, 0], [0, 0]])
    ),
    "normality of the noise: draws": lambda z, i: np.clip(z, -1.5, 1.5) * 1.13,
    "normality of the noise: lengths": lambda z, i: z * np.sqrt(6 / (z**2).sum()),
    "normality of the noise: scores with the canary": lambda z, i: np.abs(z),
    "correlation of the noise: entries": lambda z, i: np.repeat(z[:, :1], 2, axis=1),
}


@pytest.mark.parametrize("name", NOISE)
def test_each_test_of_noise_finds_its_defect(name):
    assert not broken(drawn()[1])
    assert name in broken(drawn(NOISE[name])[1])


def in_units(change):
    """Change the noise in units, z and i as above."""
    return lambda z, i: change(np.rint(z * SD_UNITS).astype(int)) / SD_UNITS


def test_low_bits_that_are_not_uniform_are_found():
    """In multiples of 64 units, with one high bit fixed, and with two equal bits."""
    bits = {"low bits of the noise: a"}
    assert not bits & broken(drawn(in_units(lambda k: k))[1])
    for wrong in (
        lambda k: k // 64 * 64,
        lambda k: k & ~(1 << 12),
        lambda k: k ^ ((k >> 5 ^ k >> 2) & 1) << 5,
    ):
        assert bits <= broken(drawn(in_units(wrong))[1])
    turn = iter(range(600))  # even in the one world, odd in the other: uniform together
    found = broken(drawn(in_units(lambda k: k // 2 * 2 + next(turn) // 2 % 2))[1])
    assert found == bits


def test_noise_in_multiples_of_an_odd_number_is_found():
    """Also in multiples that are moved in one world only."""
    assert "step of the noise: a" not in broken(drawn(in_units(lambda k: k))[1])
    turn = iter(range(600))
    for wrong in (
        lambda k: k // 3 * 3,
        lambda k: k // 1001 * 1001,
        lambda k: k // 3 * 3 + next(turn) // 2 % 2,
        lambda k: np.where(np.arange(6).reshape(3, 2) == 4, k // 3 * 3, k),  # one entry
    ):
        assert broken(drawn(in_units(wrong))[1]) == {"step of the noise: a"}


def test_low_bits_of_a_small_deviation_are_not_judged():
    """A deviation of 4 units has no uniform bits, one of 2**10 has 8."""
    for units, bits in ((4.0, 0), (2.0**10, 8), (2.0**20, 18)):
        evidence, found = drawn(None, (2, 2), units=units)
        record = evidence.noise["a", "b"]
        assert record._bits == bits
        assert any("low bits" in f.name for f in found) == (bits > 0)


def test_tails_of_all_entries_count():
    """The entries beyond the 64 that are kept are cut at 2.5 deviations: 7,450 of the
    600,000 draws are beyond.
    """

    def cut(z, _):
        z[8:] = np.clip(z[8:], -2.5, 2.5)
        return z

    found = broken(drawn(cut, (40, 25), fits=150)[1])
    assert "normality of the noise: draws" in found


def test_noise_of_bounded_support_is_found_by_many_draws():
    """A sum of 12 uniforms has three quarters of the values beyond 3 deviations."""
    rng = np.random.default_rng(5)

    def uniforms(z, _):
        return rng.random((12, *z.shape)).sum(axis=0) - 6

    found = broken(drawn(uniforms, (40, 25), fits=200)[1], 1e-6)
    assert "normality of the noise: draws" in found


def test_one_release_without_noise_in_six_hundred_is_found():
    turn = iter(range(600))
    found = broken(drawn(lambda z, i: z * (next(turn) != 300))[1])
    assert found == {"normality of the noise: lengths"}


def test_symmetric_noise_is_judged_on_and_off_the_diagonal():
    eye = np.eye(4, dtype=bool)
    rng = np.random.default_rng(3)

    def apart(z, _):  # two independent halves: their average has less noise
        return np.where(eye, z, rng.standard_normal(z.shape) / np.sqrt(2))

    assert not broken(drawn(None, (4, 4), True)[1])
    name = "deviation of the noise: diagonal and off it"
    for wrong in (lambda z, _: np.where(eye, z, z / 2), apart):
        assert name in broken(drawn(wrong, (4, 4), True)[1])


def test_noise_that_comes_again_is_found():
    before = {}

    def of_the_last_step(z, i):
        before[i] = z
        return z if i == 0 else before[0]

    found = broken(drawn(of_the_last_step)[1])
    assert "correlation of the noise: successive releases of a fit" in found

    def of_the_last_fit(z, i):
        now = -before.pop(i) if i in before else z
        if now is z:
            before[i] = z
        return now

    before.clear()
    found = broken(drawn(of_the_last_fit)[1])
    assert {"repeated noise: a", "correlation of the noise: successive fits"} <= found

    def of_another_fit(z, i):
        rng = np.random.default_rng(int(1e6 * abs(z[0, 0])) % 5000)
        return rng.standard_normal(z.shape)

    # 600 draws of 5,000 seeds: 36 pairs are expected
    found = broken(drawn(of_another_fit)[1])
    assert found == {"repeated noise: a"}


def test_rounded_noise_is_no_false_alarm():
    """A deviation of 30 units, of which one draw in 75 is exactly 0."""
    _, found = drawn(lambda z, i: np.rint(30 * z) / 30, (1, 1), fits=200, units=30.0)
    assert not broken(found, 1e-4)


def test_every_entry_of_a_large_sum_is_judged():
    """Draws of few entries are kept, but the deviation of each is known."""

    def one(z, _):
        z[17, 5] = 0
        return z

    evidence, found = drawn(one, (30, 8))
    assert "deviation of the noise: each entry" in broken(found)
    watched = evidence.noise["a", "b"].watched
    rows, columns = np.unravel_index(watched, (30, 8))
    assert len(watched) <= 64
    assert len(set(rows)) == len(set(columns)) == 8


def sampled(wrong=None, prob=0.25, steps=1, releases=4, fits=60, slots=64):
    """The failed tests of samples of a fixed seed."""
    rng = np.random.default_rng(1)
    evidence = Evidence(slots)
    for fit in range(2 * fits):
        evidence.begin()
        for i in range(releases):
            if i % steps == 0:
                places = rng.integers(0, steps, slots)
            mask = places == i % steps if steps > 1 else rng.random(slots) < prob
            if wrong is not None:
                mask = wrong(mask, fit, i, rng)
            has_canary = bool(mask[-1]) if fit % 2 else None
            evidence.sample(("a", "b"), np.flatnonzero(mask), prob, steps, has_canary)
    return broken(evidence.findings(), 1e-6)


def test_each_test_of_samples_finds_its_defect():
    assert not sampled()
    masks = {}
    for name, wrong in {
        "sampling rate: all rows": lambda m, fit, i, g: m | (g.random(64) < 0.2),
        "sizes of the samples: a": lambda m, fit, i, g: g.permutation(64) < 16,
        "sampling rate: canary": lambda m, fit, i, g: m | (np.arange(64) == 63),
        "fresh samples: successive": lambda m, fit, i, g: masks.setdefault(fit, m),
        "sampling rate: each row": lambda m, fit, i, g: masks.setdefault(i, m),
    }.items():
        masks.clear()
        assert name in sampled(wrong), name


def test_each_test_of_allocation_finds_its_defect():
    assert not sampled(None, 0.25, 4, 8)
    assert not sampled(None, 0.25, 4, 6)  # the second epoch is cut off
    found = sampled(lambda m, fit, i, g: g.random(64) < 0.25, 0.25, 4, 8)
    assert "each row once an epoch: all samples" in found
    kept = {}
    found = sampled(lambda m, fit, i, g: kept.setdefault(i % 4, m), 0.25, 4, 8)
    assert "fresh samples: successive" in found

    def early(mask, fit, i, rng):
        if i % 4 == 0:
            kept["places"] = np.minimum(rng.integers(0, 5, 64), 3)
        return kept["places"] == i % 4

    assert "sampling rate: all rows" in sampled(early, 0.25, 4, 8)


def test_the_verdict_is_corrected_for_the_number_of_tests():
    found = [LawResult("a", "b", p, "") for p in (2e-4, 0.3, 0.9)]
    assert judge(found, 1e-3)["passed"] is False
    assert judge(found, 5e-4)["passed"] is True
    nan = judge([*found, LawResult("a", "b", float("nan"), "")], 5e-4)
    assert nan["passed"] is False
