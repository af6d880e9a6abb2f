"""Run fits of synthetic rows through `release`, and read them as an auditor.

An audit compares two worlds: fits with a worst-case row, the canary, and fits without
it. The fits are not charged, so no private row may be audited.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dphead.analysis.audit_rows import (
    NO_CLASS,
    AuditRows,
    Sums,
)
from dphead.planning.plan import Plan
from dphead.privacy.contract import Released, ReleaseSpec, SumTask
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.sampling import Allocation
from dphead.privacy.statistic_base import Params, Statistic, root
from dphead.privacy.statistics import ClassSums, Gram
from dphead.solvers.base import ProblemInfo, Solver
from dphead.sums.verified import VerifiedSum

# Chosen, not measured.
SHARED_ROWS = 15  # rows besides the canary's; all other rows have no class
# sizes of the sums of `NoiseAlone`: 64 x 8 entries, and 24 x 25 / 2 of a symmetric sum
_ALONE_FEATURES, _ALONE_CLASSES, _ALONE_SYMMETRIC = 64, 8, 24
# norm of the canary in clip norms: without clipping, it moves sums far too much
_CANARY_NORM = 10.0
_ROWS_BEYOND_CAP = 2  # rows of a canary group beyond the cap, which must add zero
_MAX_CANARIES = 10  # largest number of problems in an audit; each holds the rows twice


@dataclass(frozen=True)
class Problem:
    """Hold the rows common to both worlds, and the row in which they differ.

    Attributes
    ----------
    facts : ProblemInfo
        The sizes.
    relation : str
        The neighboring relation.
    x, y : (n, d) and (n,) arrays
        The shared rows and their classes.
    canary : (array, int)
        The row and class in which the worlds differ.
    neighbor : (array, int) or None
        The row in the canary's place in the other world (replace_one), or None.
    group_cap : int or None
        Group cap of the plan. With a cap, the canary is a group of `copies` equal rows.
    copies : int
        Number of the canary's rows.
    slots, groups : (n + copies,) int
        Positions and group ids of the shared rows, then of the canary's rows.
    """

    facts: ProblemInfo
    relation: str
    x: np.ndarray
    y: np.ndarray
    canary: tuple[np.ndarray, int]
    neighbor: tuple[np.ndarray, int] | None
    group_cap: int | None
    copies: int
    slots: np.ndarray
    groups: np.ndarray

    def world(self, inside: bool) -> AuditRows:
        """Return the rows with the canary, or without it.

        Without it, the canary's slots have `neighbor` (replace_one) or no class
        (zero_out), or are removed (add_remove).
        """
        n_rows, copies = self.facts.n_rows, self.copies
        slots, groups = self.slots, self.groups
        row = self.canary if inside else self.neighbor
        if row is None and self.relation == "add_remove":
            removed = np.sort(slots[-copies:])
            slots, groups = slots[:-copies], groups[:-copies]
            slots = slots - np.searchsorted(removed, slots)
            n_rows, copies = n_rows - copies, 0
        x, label = row or (np.zeros(self.facts.n_features, np.float32), NO_CLASS)
        all_x = np.vstack([self.x, np.tile(x, (copies, 1))])
        all_y = np.append(self.y, np.full(copies, label))
        return AuditRows(all_x, all_y, n_rows, slots, groups, self.group_cap)


def random_places(
    n_rows: int, shared: int, copies: int, slot: int | None = None
) -> dict[str, np.ndarray]:
    """Return random slots and group ids of shared rows, then of a canary's rows.

    The last row is in `slot`, if it is given. All slots are close together, so that few
    pieces of slots are summed. Every shared row has a group of its own.
    """
    random = np.random.default_rng()
    count = shared + copies
    last = int(random.integers(n_rows)) if slot is None else slot
    size = min(n_rows, 4 * count)
    first = int(np.clip(last - random.integers(size), 0, n_rows - size))
    others = np.setdiff1d(np.arange(first, first + size), [last])
    slots = np.append(random.choice(others, count - 1, replace=False), last)
    # include large ids, because the cap must hold for every id
    ids = random.choice(n_rows, shared + 1, replace=False)
    ids *= random.choice([1, 2**31 + 1])
    return {"slots": slots, "groups": np.append(ids, np.full(copies - 1, ids[-1]))}


def worst_case(
    facts: ProblemInfo, plan: Plan, *, label: int = 0, seed: int | None = None
) -> Problem:
    """Return a synthetic problem with a canary far longer than every clip norm.

    Parameters
    ----------
    facts : ProblemInfo
        The sizes.
    plan : Plan
        The plan to audit.
    label : int, default 0
        The canary's class.
    seed : int, optional
        Seed of the canary's random direction. Without a seed, it is the first axis.

    Returns
    -------
    Problem
        The problem.

    Raises
    ------
    ValueError
        If the plan protects groups of several rows and has random batches.

    Notes
    -----
    The canary is ten times as long as the largest clip norm, or as 1 if that is larger.
    The shared rows equal the canary and have the next class, which keeps the canary's
    residual large during training. With random batches there are no shared rows,
    because their secret sampling would only hide the canary. With a group cap and full
    batches, the canary is a group of two rows more than the cap, if there are so many.
    Under replace_one the neighbor is the opposite row, or one at 120 degrees if a
    second moment of several features is released.
    """
    cap = plan.group_cap
    sampled = any(s.sampling_prob < 1 or s.epoch_steps > 1 for s in plan.specs)
    if sampled and cap not in (None, 1):
        raise ValueError(
            f"`--group-cap {cap}` needs full batches, but this method samples its "
            "batches. Remove `--group-cap`, or choose a method with full batches."
        )
    beyond = 0 if cap is None or sampled else _ROWS_BEYOND_CAP
    copies = min(facts.n_rows, (cap or 1) + beyond)
    count = 0 if sampled else min(SHARED_ROWS, facts.n_rows - copies)
    axes = np.eye(facts.n_features, 2)
    if seed is not None:
        draws = np.random.default_rng(seed).standard_normal(axes.shape)
        axes = np.linalg.qr(draws)[0]
    norm = _CANARY_NORM * max(1.0, *(s.clip_norm for s in plan.specs))
    row = (norm * axes[:, 0]).astype(np.float32)
    neighbor = None
    if plan.relation == "replace_one":
        other = -row
        if facts.n_features > 1 and any("Gram" in s.statistic for s in plan.specs):
            other = (norm * (axes @ [-0.5, np.sqrt(0.75)])).astype(np.float32)
        neighbor = other, label
    return Problem(
        facts,
        plan.relation,
        x=np.tile(row, (count, 1)),
        y=np.full(count, (label + 1) % facts.n_classes),
        canary=(row, label),
        neighbor=neighbor,
        group_cap=cap,
        copies=copies,
        **random_places(facts.n_rows, count, copies),
    )


def worst_cases(facts: ProblemInfo, plan: Plan, fits: int) -> list[Problem]:
    """Return a problem for each class, at most ten and at most `fits`.

    The first canary lies on the first axis. The other canaries have random directions.
    """
    count = min(_MAX_CANARIES, facts.n_classes, fits)
    labels = np.random.default_rng(0).permutation(np.arange(1, facts.n_classes))
    others = [
        worst_case(facts, plan, label=int(label), seed=int(label))
        for label in labels[: count - 1]
    ]
    return [worst_case(facts, plan), *others]


@dataclass(frozen=True, eq=False)
class Seen:
    """Hold the request, the value and the secret sample of one release.

    `sample` has the summed slots, or None for all.
    """

    statistic: Statistic
    params: Params
    spec: ReleaseSpec
    released: Released
    sample: np.ndarray | None

    @property
    def kind(self) -> tuple[str, str]:
        """Return the kind of the release: its label and its statistic's name."""
        return self.spec.label, self.statistic.name

    def units(self) -> tuple[np.ndarray, int]:
        """Return the value in units of the integer sum, as whole numbers of float64.

        The second value is the number of entries that are not exactly such a number
        times the unit. The last bits of such an entry could reveal rows.
        """
        value = np.ascontiguousarray(self.released.value)
        unit = self.statistic.unit(self.spec.clip_norm, self.params.transform.append)
        # sums of audits are below 2**51, so this rounds to the released integers
        units = np.rint(value / unit) + 0.0  # no negative zero
        broken = (units * unit).view(np.int64) != value.view(np.int64)
        return units, int(np.count_nonzero(broken))


@dataclass(frozen=True, eq=False)
class _Reading:
    """Hold the auditor's results for one release.

    Attributes
    ----------
    sd : float
        The planned standard deviation of the noise, in units of the integer sum.
    ratio : float
        The release's log-likelihood ratio.
    own : float
        Squared distance of the two worlds' sums, divided by sd squared.
    noise : array
        The added noise, divided by sd.
    score : float or None
        Component of the noise along the difference of the two worlds' sums. None if the
        sums are equal.
    share : float
        Distance of the two worlds' sums, divided by the sensitivity.
    has_canary : bool
        Whether the canary's slot was summed.
    broken : int
        Released entries that are not whole numbers of units.
    """

    sd: float
    ratio: float
    own: float
    noise: np.ndarray
    score: float | None
    share: float
    has_canary: bool
    broken: int


class Witness:
    """Read releases as an auditor who knows the exact sums of both worlds."""

    def __init__(self, problem: Problem) -> None:
        self.worlds = [Sums(problem.world(inside)) for inside in (False, True)]
        self._canary = problem.slots[-1]

    def read(self, seen: Seen, inside: bool) -> _Reading:
        """Return a release's comparison with the sums of both worlds.

        `inside` is True if the canary is in the fit.

        Symmetric noise has half the variance off the diagonal, and each such entry
        appears twice. Sums over all entries therefore equal sums over independent
        entries. The standard deviation comes from the plan, not from the release.
        """
        spec = seen.spec
        sums = [world.total(seen.statistic, seen.params, spec) for world in self.worlds]
        # with sampled batches there are no shared rows
        shared = sums[0] if seen.sample is None else np.zeros_like(sums[0])
        units, broken = seen.units()
        value = units - shared
        shifts = [total - shared for total in sums]
        sd = planned(seen)[1]
        difference = sums[1] - sums[0]
        distance = float(np.linalg.norm(difference))
        present = seen.sample is None or self._canary in seen.sample
        noise = value - shifts[inside] * present
        score = (
            float(np.vdot(difference, noise)) / (distance * sd) if distance else None
        )
        ratios = [
            _log_mixture(
                float(np.vdot(shift, value)),
                float(np.vdot(shift, shift)),
                sd**2,
                spec.sampling_prob,
            )
            for shift in shifts
        ]
        ratio = ratios[1] - ratios[0]
        share = share_of_sensitivity(seen, difference)
        own = (distance / sd) ** 2
        return _Reading(sd, ratio, own, noise / sd, score, share, present, broken)


def planned(seen: Seen) -> tuple[float, float]:
    """Return the planned sensitivity of a sum and the standard deviation of its noise.

    Both are in units of the integer sum. In a Poisson batch, replacing a row moves the
    sum by twice the clip norm. The accountant counts this factor of 2, so it does not
    increase the noise.
    """
    statistic, spec, append = seen.statistic, seen.spec, seen.params.transform.append
    sampled = spec.sampling_prob < 1
    relation = "zero_out" if sampled else spec.relation
    row = root(statistic.sensitivity_sq(relation, spec.clip_norm, append))
    twice = 2 if sampled and spec.relation == "replace_one" else 1
    return twice * row, row * spec.noise_multiplier


def share_of_sensitivity(seen: Seen, move: np.ndarray) -> float:
    """Return the norm of a sum's change, divided by a unit of privacy's sensitivity."""
    cap = seen.spec.group_cap or 1
    return float(np.linalg.norm(move)) / (planned(seen)[0] * cap)


def _log_mixture(along: float, length2: float, variance: float, prob: float) -> float:
    """Return the log of the density ratio of (1 - q) N(0) + q N(shift) to N(0).

    `along` is the value's inner product with the shift, and `length2` the shift's
    squared length.
    """
    ratio = (along - length2 / 2) / variance
    if prob == 1:
        return ratio
    return float(np.logaddexp(np.log1p(-prob), np.log(prob) + ratio))


class _NoLedger:
    """Act as a fit's ledger without recording anything.

    Audited rows are synthetic and spend no budget.
    """

    def __init__(self) -> None:
        self._sequences, self._allocated = itertools.count(), itertools.count()
        self.allocation = Allocation()

    def step_of(self, sequence: int, epoch_steps: int) -> int:
        """Return the step of the next allocated release in its epoch."""
        return next(self._allocated) % epoch_steps

    def begin(self, spec: dict[str, Any]) -> tuple[int, None]:
        """Return the next sequence number, and None: no earlier run stored a value."""
        return next(self._sequences), None

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Drop the value."""


class _UnrecordedSpec(ReleaseSpec):
    """Describe a planned release without its ledger row.

    Building that row would double the time of a small fit.
    """

    def row(self) -> dict[str, Any]:
        """Return an empty row, which the ledger of an audit ignores."""
        return {}


class _Watched:
    """Sum like a verified sum, and record the summed slots."""

    def __init__(self, sums: Sums) -> None:
        self.source = sums.source
        self._verified = VerifiedSum(sums)
        self.sample: np.ndarray | None = None

    def __call__(self, task: SumTask) -> np.ndarray:
        self.sample = task.indices
        return self._verified(task)

    def largest_norm(self, task: SumTask) -> float:
        """Return the largest norm, as the verified sum does."""
        return self._verified.largest_norm(task)


def _released(
    statistic: Statistic,
    params: Params,
    spec: ReleaseSpec,
    ledger: Any,
    noise: NoiseSource,
    watched: _Watched,
) -> Seen:
    """Make one release, and return it with its secret sample."""
    released = release(
        statistic,
        params,
        watched.source,
        spec,
        ledger=ledger,
        noise=noise,
        summer=watched,
    )
    return Seen(statistic, params, spec, released, watched.sample)


def uncharged(plan: Plan) -> list[ReleaseSpec]:
    """Return the plan's releases for `transcript`."""
    return [_UnrecordedSpec(**vars(spec)) for spec in plan.specs]


def transcript(
    solver: Solver,
    facts: ProblemInfo,
    specs: list[ReleaseSpec],
    noise: NoiseSource,
    sums: Sums,
) -> Iterator[Seen]:
    """Run one fit through `release`, and yield each release. No head is computed."""
    ledger, watched = _NoLedger(), _Watched(sums)
    steps = solver.solve(facts)
    request, left = next(steps), deque(specs)
    while left:
        answers = []
        for ask in request.each():
            spec = left.popleft()
            if ask.label != spec.label:
                raise RuntimeError(
                    f"Internal error: the solver requested {ask.label!r}, and "
                    f"{spec.label!r} is planned. Please report it."
                )
            seen = _released(ask.statistic, ask.params, spec, ledger, noise, watched)
            yield seen
            answers.append(seen.released)
        if left:
            answer: Any = answers if request.more else answers[0]
            request = steps.send(answer)
    steps.close()


class NoiseAlone:
    """Release sums of no rows, with the noise of the method's releases.

    One sum is symmetric and one is not, if the method has both kinds. Their many
    entries show the distribution of the noise in few fits.

    Parameters
    ----------
    kinds : iterable of Seen
        Releases of the method.
    noise : NoiseSource
        Source of the noise.
    """

    def __init__(self, kinds: Iterable[Seen], noise: NoiseSource) -> None:
        self._noise, self._params = noise, Params()
        sides = {kind.statistic.symmetric: kind for kind in kinds}
        self._planned: list[tuple[Statistic, ReleaseSpec, Sums]] = []
        for symmetric, kind in sides.items():
            statistic = Gram(1) if symmetric else ClassSums(_ALONE_CLASSES)
            size = _ALONE_SYMMETRIC if symmetric else _ALONE_FEATURES
            nobody = np.zeros(0, int)
            rows = np.zeros((0, size), np.float32)
            rows = AuditRows(rows, nobody, 1, slots=nobody, groups=nobody)
            clip_norm, relation = kind.spec.clip_norm, kind.spec.relation
            row = root(statistic.sensitivity_sq(relation, clip_norm))
            spec = _UnrecordedSpec(
                f"noise alone{', symmetric' * symmetric}",
                statistic.name,
                clip_norm,
                planned(kind)[1] / row,
                n_rows=1,
                relation=relation,
            )
            self._planned.append((statistic, spec, Sums(rows)))

    def __iter__(self) -> Iterator[Seen]:
        """Release each sum once."""
        for statistic, spec, sums in self._planned:
            watched = _Watched(sums)
            yield _released(
                statistic, self._params, spec, _NoLedger(), self._noise, watched
            )
