"""Test an audit's noise, samples and scores against their distributions.

The auditor knows every row and therefore knows the noise of each release exactly. A
sound mechanism draws independent normal numbers with the planned deviation, and a new
sample for each step. Then each p-value below is exact or too large. `judge` corrects
for the number of tests.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import binom, chi2, chisquare, kstest, norm, poisson, t

from dphead.analysis.audit_bounds import auc_of

# Chosen, not measured.
_MOST_WATCHED = 64  # largest number of entries kept per release
_MOST_KEPT = 10_000_000  # largest number of values kept per kind of release
_MOST_COMPARED = 200_000  # largest sample of a Kolmogorov-Smirnov test
_TAILS = (1.0, 2.0, 3.0, 4.0)  # standard deviations beyond which draws are counted
_LIKELY_REPEATS = 1e-3  # above this number of expected repeats, repeats are not tested
_POWER = 0.99  # probability to detect a defect with the number of fits in `needs`


@dataclass(frozen=True)
class Finding:
    """Hold the result of one test of the audit.

    Attributes
    ----------
    name, about : str
        Name of the test, and the tested releases.
    p : float
        p-value: probability of such a result for a sound mechanism.
    measured : str
        Measured value in words.
    """

    name: str
    about: str
    p: float
    measured: str


def _lesser_tail(law: Any, value: Any) -> Any:
    """Return the two-sided p-value of a value under a scipy law."""
    return np.minimum(1.0, 2 * np.minimum(law.cdf(value), law.sf(_before(law, value))))


def _before(law: Any, value: Any) -> Any:
    """Return the point where sf is the probability of `value` or more."""
    discrete = hasattr(law.dist, "pmf")
    return np.asarray(value) - 1 if discrete else value


def _least_of(ps: Any) -> float:
    """Return the p-value of the smallest of several p-values (Bonferroni)."""
    ps = np.asarray(ps, float).ravel()
    return float(min(1.0, len(ps) * ps.min())) if len(ps) else 1.0


def _correlation_p(x: np.ndarray, y: np.ndarray) -> float:
    """Return the two-sided p-value of the correlation of two vectors of mean 0.

    The p-value is exact if one vector has independent normal numbers of equal
    deviation.
    """
    return float(_correlated_p(_correlation(x, y), len(x)))


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    lengths = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / lengths if lengths else 0.0  # zeros have their own test


def _correlated_p(r: Any, n: int) -> Any:
    """Return the two-sided p-values of correlations of n pairs of mean 0."""
    if n < 2:
        return np.ones(np.shape(r))
    r = np.clip(r, -1, 1)
    with np.errstate(divide="ignore"):
        return 2 * t.sf(np.abs(r) * np.sqrt((n - 1) / (1 - r * r)), n - 1)


def _uniform_p(values: np.ndarray) -> float:
    """Return the Kolmogorov-Smirnov p-value for uniform numbers."""
    return float(kstest(_some(values), "uniform").pvalue) if len(values) else 1.0


def _normal_p(values: np.ndarray) -> tuple[float, str]:
    """Return the p-value for normal numbers, and the measured distance."""
    some = _some(values)
    test = kstest(some, "norm")
    return float(test.pvalue), f"distance {test.statistic:.2g} of {len(some):,}"


def _some(values: np.ndarray) -> np.ndarray:
    """Return at most MOST_COMPARED of the numbers, spread evenly over the audit."""
    return values[:: max(1, -(-len(values) // _MOST_COMPARED))]


@dataclass
class NoiseRecord:
    """Record the noise of all releases of one kind, in planned standard deviations.

    Attributes
    ----------
    label : str
        Label of the releases.
    shape : tuple of int
        Shape of the sum.
    symmetric : bool
        Whether the sum is symmetric. Then only its upper triangle is kept, and the
        planned deviation off the diagonal is sqrt(1/2).
    sd_units : float
        The planned deviation in units of the integer sum.
    kept, lengths, along, insides : lists
        For each release: watched entries, squared length, component along the worlds'
        difference, and whether the canary was in the fit.
    asymmetric : int
        Number of sums that violate their symmetry.
    """

    label: str
    shape: tuple[int, ...]
    symmetric: bool
    sd_units: float
    kept: list[np.ndarray] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    along: list[float] = field(default_factory=list)
    insides: list[bool] = field(default_factory=list)
    asymmetric: int = 0

    def __post_init__(self) -> None:
        width = self.shape[-1]
        places = np.arange(math.prod(self.shape)).reshape(self.shape)
        scale = np.ones(self.shape)
        if self.symmetric:
            upper = np.triu(np.ones((width, width), bool))
            scale = np.where(np.eye(width, dtype=bool), 1.0, math.sqrt(2)) * scale
            upper = np.broadcast_to(upper, self.shape)
            self.places, self.scale = places[upper], scale[upper]
        else:
            self.places, self.scale = places.ravel(), scale.ravel()
        self.entries = len(self.places)
        self.watched = np.arange(self.entries)
        if self.entries > _MOST_WATCHED:
            self.watched = self._block()
        self.sums, self.squares = np.zeros((2, self.entries))
        self._random = np.random.default_rng(0)

    def _block(self) -> np.ndarray:
        """Choose entries at the intersections of some indices of each axis.

        The entries include some with a common row and some with a common column.
        """
        rng = np.random.default_rng(0)
        each = max(2, int(_MOST_WATCHED ** (1 / len(self.shape))))
        chosen = np.ones(self.shape, bool)
        last = np.zeros(0, bool)
        for axis, size in enumerate(self.shape):
            inner = rng.permutation(np.arange(1, max(1, size - 1)))
            some = np.unique([0, size - 1, *inner[: each - 2]])
            mask = np.isin(np.arange(size), some)
            if self.symmetric and axis == len(self.shape) - 1:
                mask = last  # the same rows as columns
            last = mask
            chosen &= mask.reshape(-1, *[1] * (len(self.shape) - axis - 1))
        return np.flatnonzero(chosen.ravel()[self.places])

    def add(self, noise: np.ndarray, along: float | None, inside: bool) -> np.ndarray:
        """Record one release and return its watched entries.

        Parameters
        ----------
        noise : array
            The noise, of the sum's shape.
        along : float or None
            Its component along the worlds' difference; None if the worlds do not
            differ.
        inside : bool
            Whether the canary is in the fit.
        """
        if self.symmetric and not np.array_equal(noise, np.swapaxes(noise, -1, -2)):
            # the rounding of sums without noise is far below 1e-6
            gap = np.abs(noise - np.swapaxes(noise, -1, -2)).max()
            self.asymmetric += int(gap > 1e-6)
        # undo the rounding to integers, or a draw of exactly 0 would have p = 0
        spread = self._random.uniform(-0.5, 0.5, self.entries) / self.sd_units
        own = (noise.ravel()[self.places] + spread) * self.scale
        self.sums += own
        self.squares += own * own
        self.lengths.append(float(own @ own))
        self.insides.append(inside)
        self.along.append(np.nan if along is None else along)
        watched = own[self.watched]
        if len(self.kept) * len(self.watched) < _MOST_KEPT:
            self.kept.append(watched)
        return watched

    def findings(self, releases: int) -> Iterator[Finding]:
        """Test the noise; `releases` counts this kind in one fit."""
        yield from self._scale(releases)
        yield from self._law()
        yield from self._dependence(releases)
        yield from self._scores(releases)

    def _scale(self, releases: int) -> Iterator[Finding]:
        n = len(self.lengths)
        lengths = np.array(self.lengths)
        inside = np.array(self.insides)
        per_release = lengths[: n - n % releases].reshape(-1, releases)
        whole = lengths.sum() / (n * self.entries)
        shown = f"{math.sqrt(whole):.4g} of the planned deviation"
        p = _lesser_tail(chi2(n * self.entries), lengths.sum())
        yield Finding("deviation of the noise", self.label, float(p), shown)
        worlds = [lengths[inside], lengths[~inside]]
        worlds = [w for w in worlds if len(w)]
        ps = [_lesser_tail(chi2(len(w) * self.entries), w.sum()) for w in worlds]
        roots = [math.sqrt(w.mean() / self.entries) for w in worlds]
        shown = "with the canary and without: " + ", ".join(f"{r:.4g}" for r in roots)
        yield Finding("deviation in each world", self.label, _least_of(ps), shown)
        law = chi2(len(per_release) * self.entries)
        totals = per_release.sum(axis=0)
        roots = np.sqrt(totals / (len(per_release) * self.entries))
        p = _least_of(_lesser_tail(law, totals))
        yield Finding("deviation in each step", self.label, p, _between(roots))
        p = _least_of(_lesser_tail(chi2(n), self.squares))
        roots = np.sqrt(self.squares / n)
        yield Finding("deviation of each entry", self.label, p, _between(roots))
        if self.symmetric:
            diagonal = self.scale == 1
            ps, roots = [], []
            for part in (diagonal, ~diagonal):
                if part.any():
                    total = self.squares[part].sum()
                    ps.append(_lesser_tail(chi2(n * part.sum()), total))
                    roots.append(math.sqrt(total / (n * part.sum())))
            shown = "diagonal and off it " + ", ".join(f"{r:.4g}" for r in roots)
            yield Finding("diagonal of the noise", self.label, _least_of(ps), shown)
            shown = f"{self.asymmetric} sums are not symmetric"
            p = 0.0 if self.asymmetric else 1.0
            yield Finding("symmetry of the noise", self.label, p, shown)
        means = self.sums / math.sqrt(n)
        shown = f"largest {np.abs(means).max():.2g} standard errors"
        p = _least_of(2 * norm.sf(np.abs(means)))
        yield Finding("mean of each entry", self.label, p, shown)

    def _law(self) -> Iterator[Finding]:
        draws = np.array(self.kept).ravel()
        p, shown = _normal_p(draws)
        yield Finding("law of the noise", self.label, p, f"{shown} draws")
        sizes = np.abs(draws)
        counts = np.array([(sizes > tail).sum() for tail in _TAILS])
        law = binom(len(draws), 2 * norm.sf(_TAILS))
        expected = len(draws) * 2 * norm.sf(_TAILS)
        p = _least_of(_lesser_tail(law, counts))
        shown = ", ".join(
            f"{c} of {e:.3g} beyond {tail:g}"
            for c, e, tail in zip(counts, expected, _TAILS, strict=True)
        )
        yield Finding("tails of the noise", self.label, p, shown)
        largest = float(sizes.max())
        p = min(1.0, len(draws) * 2 * norm.sf(largest))
        shown = f"{largest:.3g} standard deviations"
        yield Finding("largest draw", self.label, float(p), shown)
        lengths = np.array(self.lengths)
        p = _uniform_p(chi2.cdf(lengths, self.entries))
        ends = (lengths.min(), lengths.max())
        shown = f"{ends[0]:.3g} to {ends[1]:.3g} for {self.entries}"
        yield Finding("law of the noise's length", self.label, p, shown)
        p = (
            _least_of(_lesser_tail(chi2(self.entries), np.array(ends)))
            * len(lengths)
            / 2
        )
        yield Finding("least and most noise", self.label, min(1.0, p), shown)

    def _dependence(self, releases: int) -> Iterator[Finding]:
        draws = np.array(self.kept)
        n, watched = draws.shape
        if watched > 1:
            first, second = np.triu_indices(watched, 1)
            lengths = np.maximum(np.sqrt((draws**2).sum(axis=0)), 1e-100)
            r = ((draws.T @ draws) / np.outer(lengths, lengths))[first, second]
            shown = f"largest correlation {np.abs(r).max():.2g}"
            p = _least_of(_correlated_p(r, n))
            yield Finding("entries of one release", self.label, p, shown)
        fits = draws[: n - n % releases].reshape(-1, releases * watched)
        for name, first, second in (
            ("releases with and without the canary", fits[0::2], fits[1::2]),
            ("releases of successive fits", fits[1:-1:2], fits[2::2]),
        ):
            count = min(len(first), len(second))
            x, y = first[:count].ravel(), second[:count].ravel()
            if len(x) > 1:
                shown = f"correlation {_correlation(x, y):.2g}"
                yield Finding(name, self.label, _correlation_p(x, y), shown)
        yield from self._repeats(draws)

    def _repeats(self, draws: np.ndarray) -> Iterator[Finding]:
        """Count equal and opposite draws, which a sound release does not have."""
        units = np.rint(draws * self.sd_units / self.scale[self.watched])
        first = units[np.arange(len(units)), (units != 0).argmax(axis=1)]
        units = units * np.where(first < 0, -1, 1)[:, None]
        counts = Counter(row.tobytes() for row in units + 0.0)  # no negative zero
        repeats = sum(c * (c - 1) // 2 for c in counts.values())
        pairs = len(units) * (len(units) - 1) / 2
        one = 2 * math.sqrt(math.pi) * self.sd_units / self.scale[self.watched]
        expected = 2 * pairs * math.exp(-float(np.log(np.maximum(one, 1)).sum()))
        if expected < _LIKELY_REPEATS:
            p = float(poisson.sf(repeats - 1, expected)) if repeats else 1.0
            shown = f"{repeats} equal or opposite pairs of {len(units):,} draws"
            yield Finding("repeated noise", self.label, p, shown)

    def _scores(self, releases: int) -> Iterator[Finding]:
        """Test the component of the noise along the score.

        A release's contribution to the score is N(-mu**2/2, mu**2) without the canary
        and N(mu**2/2, mu**2) with it. `along` is this number minus its mean, divided by
        mu.
        """
        along = np.array(self.along)
        inside = np.array(self.insides)
        for name, world in (("without", ~inside), ("with", inside)):
            part = along[world]
            part = part[np.isfinite(part)]
            if len(part):
                p, shown = _normal_p(part)
                about = f"{self.label}, {name} the canary"
                yield Finding("law of the scores", about, p, f"{shown} scores")
        whole = along[: len(along) - len(along) % releases].reshape(-1, releases)
        if releases > 1 and np.isfinite(whole).all() and len(whole):
            sums = whole.sum(axis=1) / math.sqrt(releases)
            p = float(kstest(sums, "norm").pvalue)
            shown = f"deviation {sums.std():.3g}"
            yield Finding("scores over a fit's steps", self.label, p, shown)


def _between(roots: np.ndarray) -> str:
    return f"{roots.min():.4g} to {roots.max():.4g} of the planned deviation"


@dataclass
class SampleRecord:
    """Record the secret samples of all releases of one kind.

    Attributes
    ----------
    label : str
        Label of the releases.
    prob : float
        Probability of a slot in one release.
    slots : int
        Number of slots common to both worlds.
    epoch_steps : int
        Steps of an epoch; 1 for Poisson batches.
    """

    label: str
    prob: float
    slots: int
    epoch_steps: int = 1
    twice: int = 0
    missing: int = 0
    canary: list[bool] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    # (common slots, pairs) of successive samples, and of successive fits
    common: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.slots)
        self.totals = np.zeros(self.epoch_steps)
        self._last: dict[str, np.ndarray] = {}
        self._used = np.zeros(self.slots, int)
        self._steps = np.full(self.slots, -1)

    def add(
        self, fit: int, number: int, indices: np.ndarray, has_canary: bool | None
    ) -> None:
        """Record one sample.

        Parameters
        ----------
        fit : int
            Number of the fit.
        number : int
            Index of the release among its kind in this fit.
        indices : array of int
            The slots of the sample.
        has_canary : bool or None
            Whether the canary's slot is in it; None if there is no canary.
        """
        if has_canary is not None:
            self.canary.append(has_canary)
        self.twice += len(indices) - len(np.unique(indices))
        mask = np.zeros(self.slots, bool)
        mask[indices[indices < self.slots]] = True
        self.counts += mask
        step = number % self.epoch_steps
        if self.epoch_steps == 1:
            self.sizes.append(int(mask.sum()))
            self._compare("steps", mask, len(self.sizes))
            self._compare(f"fits {number}", mask, fit)
            return
        if step == 0:
            self._used[:] = 0
            self._steps[:] = -1
            self.sizes.append(int(mask.sum()))
        self._used += mask
        self._steps[mask] = step
        self.twice += int((mask & (self._used > 1)).sum())
        if step + 1 == self.epoch_steps:
            self.missing += int((self._used == 0).sum())
            self.totals += np.bincount(self._steps + 1, minlength=step + 2)[1:]
            self._compare("epochs", self._steps.copy(), len(self.sizes))

    def _compare(self, name: str, now: np.ndarray, turn: int) -> None:
        """Count the slots common to two samples, in two counts of disjoint pairs."""
        before = self._last.get(name)
        self._last[name] = now
        if before is None:
            return
        same = before & now if now.dtype == bool else (before == now) & (now >= 0)
        count = self.common.setdefault(f"{name.split()[0]} {turn % 2}", [0, 0])
        count[0] += int(same.sum())
        count[1] += 1

    def findings(self) -> Iterator[Finding]:
        """Test the samples."""
        n = len(self.sizes)
        shown = f"{self.twice} rows twice"
        yield Finding(
            "a row once in a sample", self.label, float(not self.twice), shown
        )
        if self.epoch_steps > 1:
            shown = f"{self.missing} rows in no step of an epoch"
            p = float(not self.missing)
            yield Finding("a row once in an epoch", self.label, p, shown)
            whole = self.totals.sum() > 0  # epochs that were not cut off
            p = float(chisquare(self.totals).pvalue) if whole else 1.0
            shown = f"{self.totals.min():.0f} to {self.totals.max():.0f} rows a step"
            yield Finding("rows of each step", self.label, p, shown)
        else:
            law = binom(n * self.slots, self.prob)
            rate = self.counts.sum() / (n * self.slots)
            shown = f"{rate:.4g} for {self.prob:.4g}"
            p = float(_lesser_tail(law, self.counts.sum()))
            yield Finding("sampling rate", self.label, p, shown)
            p = _least_of(_lesser_tail(binom(n, self.prob), self.counts))
            rates = self.counts / n
            shown = f"{rates.min():.4g} to {rates.max():.4g} for {self.prob:.4g}"
            yield Finding("sampling rate of each row", self.label, p, shown)
        sizes = np.array(self.sizes)
        law: Any = binom(self.slots, self.prob)
        # randomized p-values are exactly uniform for a discrete distribution
        draw = np.random.default_rng(0).random(n)
        p = _uniform_p(law.cdf(sizes) - draw * law.pmf(sizes))
        shown = f"deviation {sizes.std():.3g} for {law.std():.3g}"
        yield Finding("sizes of the samples", self.label, p, shown)
        if self.canary:
            law = binom(len(self.canary), self.prob)
            p = float(_lesser_tail(law, sum(self.canary)))
            shown = f"{np.mean(self.canary):.4g} for {self.prob:.4g}"
            yield Finding("sampling rate of the canary", self.label, p, shown)
        square = self.prob**2 if self.epoch_steps == 1 else 1 / self.epoch_steps
        for name in ("steps", "epochs", "fits"):
            found = [c for key, c in self.common.items() if key.split()[0] == name]
            ps = [_lesser_tail(binom(m * self.slots, square), c) for c, m in found]
            if ps:
                rate = sum(c for c, _ in found) / sum(m for _, m in found) / self.slots
                shown = f"{rate:.3g} in common for {square:.3g}"
                about = f"{self.label}, successive {name}"
                yield Finding("fresh samples", about, _least_of(ps), shown)


class Evidence:
    """Record each release of an audit, and test all recorded releases.

    `slots` is the number of rows that both worlds have.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.noise: dict[Any, NoiseRecord] = {}
        self.samples: dict[Any, SampleRecord] = {}
        self._fit = 0
        self._numbers: Counter[Any] = Counter()  # releases in this fit, by kind
        self._before: tuple[int, np.ndarray] | None = None
        self._neighbors: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def begin(self) -> None:
        """Start a fit."""
        self._fit += 1
        self._numbers.clear()
        self._before = None

    def add(
        self,
        kind: tuple[str, str],
        record: NoiseRecord,
        noise: np.ndarray,
        along: float | None,
        inside: bool,
    ) -> int:
        """Record a release's noise, and return its index among its kind in this fit."""
        known = self.noise.setdefault(kind, record)
        kept = known.add(noise, along, inside)
        place = sum(self._numbers.values())
        number = self._numbers[kind]
        self._numbers[kind] += 1
        if self._before is not None:
            pairs = self._neighbors.setdefault(place, [])
            size = min(len(kept), len(self._before[1]))
            if len(pairs) < _MOST_COMPARED:
                pairs.append((self._before[1][:size], kept[:size]))
        self._before = place, kept
        return number

    def sample(
        self,
        kind: tuple[str, str],
        prob: float,
        epoch_steps: int,
        number: int,
        indices: np.ndarray,
        has_canary: bool | None,
    ) -> None:
        """Record a release's sample."""
        known = self.samples.get(kind)
        if known is None:
            known = SampleRecord(kind[0], prob, self._slots, epoch_steps)
            self.samples[kind] = known
        known.add(self._fit, number, indices, has_canary)

    def findings(self) -> list[Finding]:
        """Run every test."""
        found: list[Finding] = []
        for kind, record in self.noise.items():
            found += record.findings(max(1, self._numbers[kind]))
        for record in self.samples.values():
            found += record.findings()
        ps, largest = [], 0.0
        for pairs in self._neighbors.values():
            x, y = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
            ps.append(_correlation_p(x, y))
            largest = max(largest, abs(_correlation(x, y)))
        if ps:
            shown = f"largest correlation {largest:.2g}"
            found.append(Finding("successive releases", "a fit", _least_of(ps), shown))
        return found


def auc_finding(scores: np.ndarray, least: float, most: float, sound: str) -> Finding:
    """Test the attack's AUC against a perfect attack's, on both sides.

    Parameters
    ----------
    scores : (2, n) float
        The scores; row 1 is with the canary.
    least, most : float
        Bounds on the AUC of a perfect attack.
    sound : str
        These bounds in words.

    Notes
    -----
    The p-value is Bernstein's bound for U-statistics (Hoeffding 1963, section 5). It is
    conservative and valid for any n.
    """
    n = scores.shape[1]
    auc = auc_of(scores)
    edge = min(max(auc, least), most)
    gap = abs(auc - edge)
    variance = max(edge * (1 - edge), 1e-12)
    p = min(1.0, 2 * math.exp(-n * gap**2 / (2 * variance + 2 * gap / 3)))
    shown = f"{auc:.4f} for {sound}"
    return Finding("AUC of the scores", "all releases", p, shown)


def judge(findings: Sequence[Finding], alarm: float) -> dict[str, Any]:
    """Return the verdict on all tests.

    Parameters
    ----------
    findings : sequence of Finding
        The tests.
    alarm : float
        Upper bound on the probability that a sound mechanism fails. Each test gets an
        equal part of it (Bonferroni), whatever their dependence.

    Returns
    -------
    dict
        "passed" is False if one p-value is below its level.
    """
    level = alarm / max(1, len(findings))
    failed = [f for f in findings if not f.p >= level]
    least = min(findings, key=lambda f: f.p)
    return {
        "tests": len(findings),
        "alarm": alarm,
        "level": level,
        "least_p": least.p,
        "least": f"{least.name} ({least.about})",
        "failed": [vars(f) for f in sorted(failed, key=lambda f: f.p)],
        "passed": not failed,
    }


def needs(evidence: Evidence, fits: int, level: float) -> list[dict[str, Any]]:
    """Return the number of fits in each world needed to detect small defects.

    Each is detected with probability POWER at `level`, by a normal approximation.
    """
    margin = float(norm.isf(level / 2) + norm.isf(1 - _POWER))
    found: dict[str, float] = {}
    for record in evidence.noise.values():
        a_fit = len(record.lengths) * record.entries / fits
        draws = len(record.kept) * len(record.watched) / fits
        for less in (0.05, 0.01):
            numbers = margin**2 / (2 * less**2)
            _raise_to(found, f"noise {less:.0%} too small", numbers / a_fit)
        beyond = {3.0: 2.7e-3, 4.0: 6.3e-5}
        for tail, chance in beyond.items():
            numbers = -math.log(level / len(_TAILS) / 2) / chance
            _raise_to(found, f"noise cut at {tail:g} deviations", numbers / draws)
        releases = len(record.lengths) / fits
        for bits in (16, 32):
            # at least one repeated pair, whose number is Poisson
            numbers = math.sqrt(2 * 2.0**bits * -math.log(1 - _POWER))
            _raise_to(found, f"noise from a seed of {bits} bits", numbers / releases)
        if len(record.watched) > 1:
            pairs = len(record.watched) * (len(record.watched) - 1) / 2
            wide = float(norm.isf(level / pairs / 2) + norm.isf(1 - _POWER))
            for r in (0.1, 0.02):
                numbers = (wide / r) ** 2
                _raise_to(
                    found, f"a correlation of {r:g} between entries", numbers / releases
                )
    for record in evidence.samples.values():
        a_fit = len(record.sizes) * record.slots / fits
        for more in (0.1, 0.01):
            numbers = (1 - record.prob) / record.prob * (margin / more) ** 2
            if record.epoch_steps == 1:
                _raise_to(
                    found, f"a sampling rate {more:.0%} too large", numbers / a_fit
                )
    return [
        {"defect": name, "fits": math.ceil(number)} for name, number in found.items()
    ]


def _raise_to(found: dict[str, float], name: str, number: float) -> None:
    """Keep the largest number, so that every kind of release shows the defect."""
    found[name] = max(found.get(name, 0.0), number)
