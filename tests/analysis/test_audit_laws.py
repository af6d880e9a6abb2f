"""The laws of noise, samples and scores: p-values of sound draws are uniform or larger,
and each kind of defect is found by the test that is made for it.
"""

import numpy as np
import pytest
from scipy.stats import kstest

from dphead.analysis.audit_laws import (
    Evidence,
    Finding,
    NoiseRecord,
    SampleRecord,
    auc_finding,
    auc_of,
    judge,
)

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
    """The findings of draws of a fixed seed, by name. change(z, i): of release i."""
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
            record = NoiseRecord("a", shape, symmetric, units)
            evidence.add(("a", "b"), record, z, float(z.ravel()[0]), fit % 2 == 1)
    return evidence, evidence.findings()


def broken(findings, level=1e-9):
    return {f.name for f in findings if f.p < level}


@pytest.mark.parametrize(
    ("shape", "symmetric"),
    [((3, 2), False), ((2, 3, 3), True), ((1, 1), False)],
)
def test_p_values_of_sound_draws_are_uniform_or_larger(shape, symmetric):
    """Of 25 seeds the least p of all tests, times their number, is no smaller than
    uniform (fixed seeds; the law of the test's own p-value has odds of 1e-3).
    """
    least = []
    for seed in range(25):
        along = 0 if not symmetric else 1
        _, found = drawn(None, shape, bool(symmetric), 20, 2, seed + 100 * along)
        least.append(min(1.0, len(found) * min(f.p for f in found)))
    assert kstest(least, "uniform", alternative="greater").pvalue > 1e-3


NOISE = {  # a change of sound draws, and the law that it breaks
    "deviation of the noise": lambda z, i: 0.8 * z,
    "deviation of each entry": lambda z, i: z * np.array([[1.4, 1], [0, 1], [1, 1]]),
    "deviation in each step": lambda z, i: z * (0.5 if i else np.sqrt(1.75)),
    "mean of each entry": lambda z, i: z + np.array([[0.8, 0], [0, 0], [0, 0]]),
    "law of the noise": lambda z, i: np.sign(z),
    "tails of the noise": lambda z, i: np.clip(z, -1.5, 1.5) * 1.13,
    "largest draw": lambda z, i: np.where(np.abs(z) > 3.2, 9, z),
    "law of the noise's length": lambda z, i: z * np.sqrt(6 / (z**2).sum()),
    "least and most noise": lambda z, i: z * (np.abs(z).max() < 2.9),
    "entries of one release": lambda z, i: np.repeat(z[:, :1], 2, axis=1),
    "law of the scores": lambda z, i: np.abs(z),
}


@pytest.mark.parametrize("name", NOISE)
def test_each_law_of_noise_finds_its_defect(name):
    assert name not in broken(drawn()[1])
    assert name in broken(drawn(NOISE[name])[1])


def test_symmetric_noise_is_judged_on_and_off_the_diagonal():
    def half(z, _):
        return np.where(np.eye(4, dtype=bool), z, z / 2)

    def lower(z, _):
        return np.tril(z) + np.triu(z, 1) * 0.9

    sound = broken(drawn(None, (4, 4), True)[1])
    assert not sound
    assert "diagonal of the noise" in broken(drawn(half, (4, 4), True)[1])
    assert "symmetry of the noise" in broken(drawn(lower, (4, 4), True)[1])


def test_noise_that_comes_again_is_found():
    before = {}

    def of_the_last_step(z, i):
        before[i] = z
        return z if i == 0 else before[0]

    assert "successive releases" in broken(drawn(of_the_last_step)[1])

    def of_the_last_fit(z, i):
        now = -before.pop(i) if i in before else z
        if now is z:
            before[i] = z
        return now

    before.clear()
    found = broken(drawn(of_the_last_fit)[1])
    assert {"repeated noise", "releases with and without the canary"} <= found

    def of_another_fit(z, i):
        rng = np.random.default_rng(int(1e6 * abs(z[0, 0])) % 5000)
        return rng.standard_normal(z.shape)

    # 600 draws of 5,000 seeds: 36 pairs are expected
    found = broken(drawn(of_another_fit)[1])
    assert found == {"repeated noise"}


def test_rounded_noise_is_no_false_alarm():
    """A deviation of 30 units, of which one draw in 75 is exactly 0."""
    _, found = drawn(lambda z, i: np.rint(30 * z) / 30, (1, 1), fits=200, units=30.0)
    assert not broken(found, 1e-4)


def test_every_entry_of_a_large_sum_is_judged():
    """Draws of few entries are kept, but the deviation of each is known."""

    def one(z, _):
        z[17, 5] = 0
        return z

    _, found = drawn(one, (30, 8))
    assert "deviation of each entry" in broken(found)
    record = NoiseRecord("a", (30, 8), False, SD_UNITS)
    assert len(record.watched) <= 64
    rows, columns = np.unravel_index(record.watched, (30, 8))
    assert {0, 29} <= set(rows) and {0, 7} <= set(columns)


def sampled(wrong=None, prob=0.25, steps=1, releases=4, fits=60, slots=64):
    """The findings of samples of a fixed seed."""
    rng = np.random.default_rng(1)
    record = SampleRecord("a", prob, slots, steps)
    for fit in range(2 * fits):
        for i in range(releases):
            if i % steps == 0:
                places = rng.integers(0, steps, slots)
            mask = places == i % steps if steps > 1 else rng.random(slots) < prob
            if wrong is not None:
                mask = wrong(mask, fit, i, rng)
            record.add(
                fit, i, np.flatnonzero(mask), bool(mask[-1]) if fit % 2 else None
            )
    return broken(record.findings(), 1e-6)


def test_each_law_of_samples_finds_its_defect():
    assert not sampled()
    assert not sampled(None, 0.25, 4, 8)
    assert not sampled(None, 0.25, 4, 6)  # the second epoch is cut off

    def wider(mask, fit, i, rng):
        return mask | (rng.random(64) < 0.2)

    def fixed(mask, fit, i, rng):
        return rng.permutation(64) < 16

    def last(mask, fit, i, rng):
        return mask | (np.arange(64) == 63)

    masks = {}

    def same_steps(mask, fit, i, rng):
        return masks.setdefault(fit, mask)

    def same_fits(mask, fit, i, rng):
        return masks.setdefault(i, mask)

    assert "sampling rate" in sampled(wider)
    assert "sizes of the samples" in sampled(fixed)
    assert {"sampling rate of each row", "sampling rate of the canary"} <= sampled(last)
    for wrong in (same_steps, same_fits):
        masks.clear()
        assert "fresh samples" in sampled(wrong)


def test_each_law_of_allocation_finds_its_defect():
    def anew(mask, fit, i, rng):
        return rng.random(64) < 0.25

    found = sampled(anew, 0.25, 4, 8)
    assert {"a row once in a sample", "a row once in an epoch"} <= found
    steps = {}

    def first(mask, fit, i, rng):
        return steps.setdefault(i % 4, mask)

    assert "fresh samples" in sampled(first, 0.25, 4, 8)

    def early(mask, fit, i, rng):
        if i % 4 == 0:
            steps["places"] = np.minimum(rng.integers(0, 5, 64) % 5, 3)
        return steps["places"] == i % 4

    assert "rows of each step" in sampled(early, 0.25, 4, 8)


def test_auc_is_judged_on_both_sides():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((2, 500))
    scores[1] += 1.68  # AUC 0.8826
    assert auc_of(scores) == pytest.approx(0.8826, abs=0.04)
    assert auc_finding(scores, 0.88, 0.885, "").p > 1e-3
    assert auc_finding(scores, 0.5, 0.6, "").p < 1e-9
    assert auc_finding(scores, 0.999, 1.0, "").p < 1e-9
    perfect = np.array([np.zeros(500), np.ones(500)])
    assert auc_of(perfect) == 1
    assert auc_finding(perfect, 0.88, 0.885, "").p < 1e-9


def test_the_verdict_is_corrected_for_the_number_of_tests():
    found = [Finding("a", "b", p, "") for p in (2e-4, 0.3, 0.9)]
    assert judge(found, 1e-3)["passed"] is False
    assert judge(found, 5e-4)["passed"] is True
    nan = judge([*found, Finding("a", "b", float("nan"), "")], 5e-4)
    assert nan["passed"] is False
