"""Test the noise and samples of an audit against their claimed distributions.

The auditor knows every row and therefore the noise of each release. Correct noise has
independent normal entries with the planned deviation, and each step has a new sample.
A p-value is then exact up to small errors, or too large. `judge` corrects for the
number of tests.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from scipy.linalg import hadamard
from scipy.special import zeta
from scipy.stats import binom, chi2, kstest, norm, poisson, t

# Chosen, not measured.
_MAX_WATCHED = 64  # entries kept for each release
_MAX_KEPT = 10_000_000  # values kept for each kind of release
_MAX_COMPARED = 200_000  # largest sample of a Kolmogorov-Smirnov test
_TAILS = np.array([1.0, 2.0, 3.0, 4.0])  # deviations beyond which draws are counted
# bits of a number that are tested together, and bits by which the deviation must exceed
# them. Modulo 2**k, noise with a deviation of 2**(k + 1.5) is uniform to 1e-60.
_BYTE, _MARGIN_BITS = 8, 2
_LIKELY_REPEATS = 1e-3  # above this number of expected repeats, repeats are not tested


@dataclass(frozen=True)
class LawResult:
    """Hold the result of one test: its name, subject, p-value and measured value."""

    name: str
    about: str
    p: float
    measured: str


def _two_sided(law: Any, value: Any) -> Any:
    """Return the two-sided p-value of a value under a scipy distribution."""
    above = law.sf(np.asarray(value) - hasattr(law.dist, "pmf"))
    return np.minimum(1.0, 2 * np.minimum(law.cdf(value), above))


def _bonferroni(ps: Any) -> float:
    """Return the smallest p-value after Bonferroni's correction; 1 if there is none."""
    ps = np.asarray(ps, float).ravel()
    return float(min(1.0, len(ps) * ps.min())) if len(ps) else 1.0


def _correlation(
    about: str, pairs: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[LawResult]:
    """Yield one test result for the correlations of all pairs of vectors.

    Without pairs, yield nothing. The vectors have expectation 0. The p-value of a pair
    is exact if one vector has independent normal entries of equal deviation.
    """
    ps, largest = [], 0.0
    for x, y in pairs:
        n, lengths = len(x), math.sqrt(float(x @ x) * float(y @ y))
        r = min(1.0, abs(float(x @ y)) / max(lengths, 1e-100))
        scaled = r * math.sqrt((n - 1) / max(1 - r * r, 1e-300))
        ps.append(2 * t.sf(scaled, n - 1) if n > 1 else 1.0)
        largest = max(largest, r)
    if ps:
        shown = f"largest correlation {largest:.2g}"
        yield LawResult("correlation of the noise", about, _bonferroni(ps), shown)


def _smallest(name: str, about: str, found: list[tuple[float, str]]) -> LawResult:
    """Return one result for several p-values and their measured values.

    It has the smallest p-value, after Bonferroni's correction.
    """
    p, shown = min(found)
    return LawResult(name, about, min(1.0, len(found) * float(p)), shown)


class _Tails:
    """Count values beyond each of _TAILS, and keep the largest absolute value."""

    def __init__(self, values: np.ndarray | None = None) -> None:
        self.count, self.largest = 0, 0.0
        self.beyond = np.zeros(len(_TAILS), int)
        if values is not None:
            self.add(values)

    def add(self, values: np.ndarray) -> None:
        """Count values."""
        sizes = np.abs(values)
        self.count += len(sizes)
        self.beyond += np.count_nonzero(sizes[:, None] > _TAILS, axis=0)
        self.largest = max(self.largest, float(sizes.max()))


def _normality(
    about: str, values: np.ndarray, tails: _Tails | None = None
) -> LawResult:
    """Test whether values are standard normal: distribution, tails and largest value.

    `tails` may also count values that are not in `values`.
    """
    distance = kstest(values[:: -(-len(values) // _MAX_COMPARED)], "norm")
    seen = _Tails(values) if tails is None else tails
    chances = 2 * norm.sf(_TAILS)
    ps = _two_sided(binom(seen.count, chances), seen.beyond)
    largest = seen.largest
    found = [
        (distance.pvalue, f"distance {distance.statistic:.2g} from normal"),
        (seen.count * 2 * norm.sf(largest), f"largest is {largest:.3g} deviations"),
    ]
    expected = seen.count * chances
    for tail, p, count, wanted in zip(_TAILS, ps, seen.beyond, expected, strict=True):
        found.append((p, f"{count} of {wanted:.3g} beyond {tail:g} deviations"))
    return _smallest("normality of the noise", about, found)


class _NoiseRecord:
    """Record the noise of all releases of one kind, in planned standard deviations.

    Parameters
    ----------
    label : str
        Label of the releases.
    shape : tuple of int
        Shape of the sum.
    symmetric : bool
        Whether the sum is symmetric. Then each pair of entries counts once, and the
        planned deviation off the diagonal is sqrt(1/2).
    sd_units : float
        The planned deviation in units of the integer sum.
    """

    def __init__(
        self, label: str, shape: tuple[int, ...], symmetric: bool, sd_units: float
    ) -> None:
        self.label, self.symmetric, self.sd_units = label, symmetric, sd_units
        used, scale = np.ones(shape, bool), np.ones(shape)
        if symmetric:
            used = np.triu(used)
            scale *= np.where(np.eye(shape[-1], dtype=bool), 1.0, math.sqrt(2))
        self._used, self._scale = used, scale[used]
        self.entries = len(self._scale)
        self.watched = np.arange(self.entries)
        if self.entries > _MAX_WATCHED:
            # a corner, so that some entries have a common row and some a common column
            side = int(_MAX_WATCHED ** (1 / len(shape)))
            corner = np.all(np.indices(shape) < side, axis=0)
            self.watched = np.flatnonzero(corner[used])
        self._sums, self._squares = np.zeros((2, self.entries))
        self._tails = _Tails()
        bits = int(math.log2(sd_units)) - _MARGIN_BITS
        # (worlds, bytes, values of a byte)
        self._bytes = np.zeros((2, max(0, -(-bits // _BYTE)), 2**_BYTE), int)
        self._bits = bits
        # first draw of each world; for each entry, the largest step that divides all
        # distances of later draws from this draw
        self._first: dict[bool, np.ndarray] = {}
        self._steps = np.zeros((2, self.entries), np.int64)
        self.kept: list[np.ndarray] = []
        self.lengths: list[float] = []
        self._scores: list[float] = []
        self._insides: list[bool] = []
        self._random = np.random.default_rng(0)

    def add(self, noise: np.ndarray, score: float | None, inside: bool) -> None:
        """Record the noise of one release.

        Parameters
        ----------
        noise : array
            The noise, of the sum's shape, in planned standard deviations.
        score : float or None
            Component of the noise along the difference of the two worlds' sums. None if
            the sums are equal.
        inside : bool
            Whether the canary is in the fit.
        """
        if self.symmetric:
            # an attacker would average the two halves
            noise = (noise + np.swapaxes(noise, -1, -2)) / 2
        world = int(inside)
        units = np.rint(noise[self._used] * self.sd_units).astype(np.int64)
        apart = units - self._first.setdefault(inside, units.copy())
        self._steps[world] = np.gcd(self._steps[world], apart)
        for counts in self._bytes[world]:
            counts += np.bincount(units & 2**_BYTE - 1, minlength=2**_BYTE)
            units >>= _BYTE
        # undo the rounding to integers, or a draw of exactly 0 would have p = 0
        spread = self._random.uniform(-0.5, 0.5, self.entries) / self.sd_units
        own = (noise[self._used] + spread) * self._scale
        self._sums += own
        self._squares += own * own
        self._tails.add(own)
        self.lengths.append(float(own @ own))
        self._insides.append(inside)
        self._scores.append(np.nan if score is None else score)
        if len(self.kept) * len(self.watched) < _MAX_KEPT:
            self.kept.append(own[self.watched])

    def draws(self, releases: int) -> np.ndarray:
        """Return the kept noise as (fits, releases, entries)."""
        whole = len(self.kept) // releases * releases
        return np.array(self.kept[:whole]).reshape(-1, releases, len(self.watched))

    def findings(self, releases: int) -> Iterator[LawResult]:
        """Yield all tests of this noise; a fit has `releases` releases of this kind."""
        yield from self._deviations(releases)
        yield from self._normalities()
        draws = np.array(self.kept)
        entries = combinations(draws.T.copy(), 2)
        yield from _correlation(f"{self.label}, entries", entries)
        fits = self.draws(releases).reshape(-1, releases * len(self.watched))
        pairs = [(fits[0::2], fits[1::2]), (fits[1:-1:2], fits[2::2])]
        flat = [(x.ravel(), y[: len(x)].ravel()) for x, y in pairs if len(x)]
        yield from _correlation(f"{self.label}, successive fits", flat)
        yield from self._repeats(draws)
        yield from self._parities()
        yield from self._multiples()

    def _parities(self) -> Iterator[LawResult]:
        """Yield a test that the noise is uniform modulo powers of two, in each world.

        It is uniform if the parity of each set of its low bits is odd with probability
        1/2. So each number of odd parities has a binomial distribution. Nothing is
        yielded for noise without low bits.
        """
        found = []
        for world, each in zip(("without", "with"), self._bytes, strict=True):
            for i, counts in enumerate(each):
                n = counts.sum()
                odd = (n - hadamard(2**_BYTE) @ counts) // 2
                # entry k counts draws with an odd number of ones among the bits of k;
                # the last byte can have fewer bits
                odd = odd[1 : 2 ** min(_BYTE, self._bits - _BYTE * i)]
                ps = _two_sided(binom(n, 0.5), odd)
                worst = int(np.argmin(ps))
                bits = [_BYTE * i + b for b in range(_BYTE) if worst + 1 >> b & 1]
                named = "+".join(map(str, bits))
                shown = f"{odd[worst]:,} of {n:,} odd in bits {named}, {world}"
                found.append((_bonferroni(ps), f"{shown} the canary"))
        if found:
            yield _smallest("low bits of the noise", self.label, found)

    def _multiples(self) -> Iterator[LawResult]:
        """Yield a test that no odd number above 1 divides all distances of draws.

        A sum modulo this number would be released without noise. Correct distances are
        multiples of m with probability 1/m each. The distances are between draws of a
        world, either of one entry or of all entries, which shows more after few fits.
        """
        if self._bits <= 0 or not self._steps.any():
            return
        fewest = max(1, min(Counter(self._insides).values()) - 1)
        every = np.gcd.reduce(self._steps, axis=1, keepdims=True)
        found = []
        for steps, about in ((self._steps, "of an entry"), (every, "of all entries")):
            # drop factors of 2, which the test of low bits finds
            step = int((steps // np.maximum(1, steps & -steps)).max())
            # chance of such a step or a larger one, for all entries and worlds
            chance = steps.size * zeta(fewest * self.entries * 2 / steps.size, step)
            shown = f"draws {about} in a world are multiples of {step} units apart"
            found.append((float(chance) if step > 1 else 1.0, shown))
        yield _smallest("step of the noise", self.label, found)

    def _deviations(self, releases: int) -> Iterator[LawResult]:
        """Yield tests of the deviation: sums of squares, in several groupings."""
        lengths, n = np.array(self.lengths), len(self.lengths)

        def grouped(place: Any) -> tuple[np.ndarray, np.ndarray]:
            return np.bincount(place, lengths), np.bincount(place) * self.entries

        groupings = {
            "all releases": grouped(np.zeros(n, int)),
            "each world": grouped(np.array(self._insides, int)),
            "each step": grouped(np.arange(n) % releases),
            "each entry": (self._squares, np.full(self.entries, n)),
        }
        if self.symmetric:
            part = (self._scale > 1).astype(int)
            squares = np.bincount(part, self._squares)
            groupings["diagonal and off it"] = squares, np.bincount(part) * n
        for name, (squares, freedom) in groupings.items():
            p = _bonferroni(_two_sided(chi2(freedom), squares))
            ratios = np.sqrt(squares / freedom)
            shown = f"{ratios.min():.4g} to {ratios.max():.4g} of the planned deviation"
            about = f"{self.label}, {name}"
            yield LawResult("deviation of the noise", about, p, shown)

    def _normalities(self) -> Iterator[LawResult]:
        """Yield tests of values that are standard normal if the noise is correct."""
        lengths, law = np.array(self.lengths), chi2(self.entries)
        # use the smaller tail, which keeps its digits
        normal = np.where(
            lengths < law.median(),
            norm.ppf(law.cdf(lengths)),
            norm.isf(law.sf(lengths)),
        )
        draws = np.array(self.kept).ravel()
        yield _normality(f"{self.label}, draws", draws, self._tails)
        yield _normality(f"{self.label}, lengths", normal)
        means = self._sums / math.sqrt(len(lengths))
        yield _normality(f"{self.label}, mean of each entry", means)
        scores, inside = np.array(self._scores), np.array(self._insides)
        for name, world in (("without", ~inside), ("with", inside)):
            part = scores[world & np.isfinite(scores)]
            if len(part):
                yield _normality(f"{self.label}, scores {name} the canary", part)

    def _repeats(self, draws: np.ndarray) -> Iterator[LawResult]:
        """Yield a test for equal or opposite draws, if correct noise hardly has any."""
        step = self.sd_units / self._scale[self.watched]
        units = np.rint(draws * step)
        first = units[np.arange(len(units)), (units != 0).argmax(axis=1)]
        units = units * np.where(first < 0, -1, 1)[:, None]
        counts = Counter(row.tobytes() for row in units + 0.0)  # no negative zero
        repeats = sum(c * (c - 1) // 2 for c in counts.values())
        cells = np.log(np.maximum(2 * math.sqrt(math.pi) * step, 1)).sum()
        expected = len(units) * (len(units) - 1) * math.exp(-float(cells))
        if expected < _LIKELY_REPEATS:
            p = float(poisson.sf(repeats - 1, expected)) if repeats else 1.0
            shown = f"{repeats} equal or opposite pairs of {len(units):,} draws"
            yield LawResult("repeated noise", self.label, p, shown)


class _SampleRecord:
    """Record secret samples that contain each row with probability `prob`.

    Under random allocation, each step of an epoch has its own record.

    Parameters
    ----------
    label : str
        Label of the releases.
    prob : float
        Probability of a row in one sample.
    slots : int
        Number of rows common to both worlds.
    """

    def __init__(self, label: str, prob: float, slots: int) -> None:
        self.label, self.prob, self.slots = label, prob, slots
        self.sizes: list[int] = []
        self._counts = np.zeros(slots, int)
        self._canary: list[bool] = []
        self._last: np.ndarray | None = None
        # (common slots, pairs) of successive samples, in two sets of disjoint pairs
        self._common = np.zeros((2, 2), int)

    def add(self, mask: np.ndarray, has_canary: bool | None) -> None:
        """Record a sample, given as a mask (slots,) of bool.

        `has_canary` is None in the world without a canary.
        """
        if has_canary is not None:
            self._canary.append(has_canary)
        self._counts += mask
        if self._last is not None:
            same = int((mask & self._last).sum())
            self._common[len(self.sizes) % 2] += same, 1
        self._last = mask
        self.sizes.append(int(mask.sum()))

    def findings(self) -> Iterator[LawResult]:
        """Yield tests of the rates, sizes and common slots of the samples."""
        n, prob = len(self.sizes), self.prob
        common, pairs = self._common[self._common[:, 1] > 0].T
        counted = [
            ("sampling rate", "all rows", self._counts.sum(), n * self.slots, prob),
            ("sampling rate", "each row", self._counts, n, prob),
            ("sampling rate", "canary", sum(self._canary), len(self._canary), prob),
            ("fresh samples", "successive", common, pairs * self.slots, prob**2),
        ]
        for name, about, count, trials, chance in counted:
            rates = np.asarray(count) / np.maximum(trials, 1)
            if np.size(count) == 0 or not np.any(trials):
                continue
            p = _bonferroni(_two_sided(binom(trials, chance), count))
            shown = f"{rates.min():.4g} to {rates.max():.4g} for {chance:.4g}"
            yield LawResult(name, f"{self.label}, {about}", p, shown)
        sizes = np.array(self.sizes)
        law: Any = binom(self.slots, prob)
        # randomized p-values are exactly uniform for a discrete distribution
        draw = np.random.default_rng(0).random(n)
        p = float(kstest(law.cdf(sizes) - draw * law.pmf(sizes), "uniform").pvalue)
        shown = f"deviation {sizes.std():.3g} for {law.std():.3g}"
        yield LawResult("sizes of the samples", self.label, p, shown)


class Evidence:
    """Record the releases of an audit, and test them.

    `slots` is the number of rows that both worlds have.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.noise: dict[Any, _NoiseRecord] = {}
        self.samples: dict[Any, _SampleRecord] = {}
        self._order: list[Any] = []  # kinds of this fit's releases, in their order
        self._numbers: Counter[Any] = Counter()
        self._uses = np.zeros(slots, int)  # how often this epoch used each slot
        self._misplaced = 0

    def begin(self) -> None:
        """Start a fit."""
        self._order = []
        self._numbers.clear()

    def add(
        self,
        kind: tuple[str, str],
        noise: np.ndarray,
        score: float | None,
        inside: bool,
        *,
        symmetric: bool,
        sd_units: float,
    ) -> None:
        """Record a release of a kind (label, statistic)."""
        if kind not in self.noise:
            self.noise[kind] = _NoiseRecord(kind[0], noise.shape, symmetric, sd_units)
        self.noise[kind].add(noise, score, inside)
        self._order.append(kind)

    def sample(
        self,
        kind: tuple[str, str],
        indices: np.ndarray,
        prob: float,
        epoch_steps: int,
        has_canary: bool | None,
    ) -> None:
        """Record a release's sample; `has_canary` is None in the world without one."""
        step = self._numbers[kind] % epoch_steps
        self._numbers[kind] += 1
        uses = np.bincount(indices, minlength=self.slots)[: self.slots]
        self._uses = uses + (self._uses if step else 0)
        wrong = self._uses > 1
        if epoch_steps > 1 and step + 1 == epoch_steps:
            wrong |= self._uses == 0
        self._misplaced += int(wrong.sum())
        record = self.samples.get((kind, step))
        if record is None:
            label = kind[0] if epoch_steps == 1 else f"{kind[0]}, step {step + 1}"
            record = _SampleRecord(label, prob, self.slots)
            self.samples[kind, step] = record
        record.add(uses > 0, has_canary)

    def findings(self) -> list[LawResult]:
        """Run every test, and return the results."""
        found: list[LawResult] = []
        releases = Counter(self._order)
        for kind, record in self.noise.items():
            found += record.findings(releases[kind])
        found += _correlation("successive releases of a fit", self._successive())
        for sample in self.samples.values():
            found += sample.findings()
        if self.samples:
            shown = f"{self._misplaced} wrong uses"
            p = float(not self._misplaced)
            found.append(LawResult("each row once an epoch", "all samples", p, shown))
        return found

    def _successive(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the noise of each release and of the next one in the same fit."""
        releases = Counter(self._order)
        draws = {k: r.draws(releases[k]) for k, r in self.noise.items()}
        numbers = {kind: iter(range(n)) for kind, n in releases.items()}
        each = [draws[kind][:, next(numbers[kind])] for kind in self._order]
        for x, y in pairwise(each):
            count, size = np.minimum(x.shape, y.shape)
            yield x[:count, :size].ravel(), y[:count, :size].ravel()


def judge(findings: Sequence[LawResult], alarm: float) -> dict[str, Any]:
    """Return the verdict on all tests.

    Parameters
    ----------
    findings : sequence of LawResult
        The tests.
    alarm : float
        Largest probability that a correct mechanism fails. Each test gets an equal part
        of it (Bonferroni), which is valid for dependent tests.

    Returns
    -------
    dict
        "passed" is False if one p-value is below its level.
    """
    level = alarm / len(findings)
    ordered = sorted(findings, key=lambda f: f.p)
    failed = [vars(f) for f in ordered if not f.p >= level]
    return {
        "tests": len(findings),
        "level": level,
        "least_p": ordered[0].p,
        "least": f"{ordered[0].name} ({ordered[0].about})",
        "failed": failed,
        "passed": not failed,
    }
