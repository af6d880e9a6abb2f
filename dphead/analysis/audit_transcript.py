"""Run fits of synthetic rows through `release`, and read them as an auditor.

Fits here are not charged, so no private row may be audited.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dphead.analysis.audit_rows import NO_CLASS, AuditRows, NoLedger, Sums
from dphead.planning.plan import Plan
from dphead.privacy.contract import Released, ReleaseSpec, SumTask
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.sampling import NO_GROUP
from dphead.privacy.statistic_base import Params, Statistic, root
from dphead.solvers.base import ProblemInfo, Solver
from dphead.sums.verified import VerifiedSum

# Chosen, not measured.
_SHARED_ROWS = 15  # rows beside the canary; the other slots are unreadable images
# norm of the canary in clip norms: a shorter canary would not detect missing clipping
_CANARY_NORM = 10.0
ROWS_BEYOND_CAP = 2  # rows of a canary group beyond the cap, which must not count
_MAX_CANARIES = 10  # problems of one audit; each holds the rows twice


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
    """

    facts: ProblemInfo
    relation: str
    x: np.ndarray
    y: np.ndarray
    canary: tuple[np.ndarray, int]
    neighbor: tuple[np.ndarray, int] | None = None
    group_cap: int | None = None
    copies: int = 1

    def world(self, inside: bool) -> AuditRows:
        """Return the rows with the canary in the last slots, or without it.

        Under add_remove, the canary's slots are missing.
        """
        n_rows, copies = self.facts.n_rows, self.copies
        row = self.canary if inside else self.neighbor
        if row is None and self.relation == "add_remove":
            n_rows, copies = n_rows - copies, 0
        x, label = row or (np.zeros(self.facts.n_features, np.float32), NO_CLASS)
        all_x = np.vstack([self.x, np.tile(x, (copies, 1))])
        all_y = np.append(self.y, np.full(copies, label))
        groups = np.append(np.full(len(self.y), NO_GROUP), np.zeros(copies, int))
        return AuditRows(all_x, all_y, n_rows, groups, self.group_cap)


def worst_case(
    facts: ProblemInfo, plan: Plan, *, label: int = 0, seed: int | None = None
) -> Problem:
    """Return a synthetic problem with a canary as visible as the clip norms allow.

    Parameters
    ----------
    facts : ProblemInfo
        The sizes.
    plan : Plan
        The plan to audit.
    label : int, default 0
        The canary's class.
    seed : int, optional
        Seed of the canary's random direction. Default: the first axis.

    Returns
    -------
    Problem
        The problem.

    Raises
    ------
    ValueError
        If the plan protects groups and has sampled batches.

    Notes
    -----
    The canary is ten times as long as the largest clip norm. The shared rows
    equal the canary and have the next class, which keeps the canary's residual large
    during training. With sampled batches there are no shared rows, because their secret
    sampling would only hide the canary. With a group cap, the canary is a group of more
    rows than the cap. Under replace_one the neighbor is the opposite row, or one at 120
    degrees if a second moment is released.
    """
    cap = plan.group_cap
    sampled = any(s.sampling_prob < 1 or s.epoch_steps > 1 for s in plan.specs)
    if sampled and cap is not None:
        raise ValueError(
            f"`--group-cap {cap}` needs full batches, but this method samples its "
            "batches. Remove `--group-cap`, or choose a method with full batches."
        )
    copies = 1 if cap is None else min(facts.n_rows, cap + ROWS_BEYOND_CAP)
    count = 0 if sampled else min(_SHARED_ROWS, facts.n_rows - copies)
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
    others = np.tile(row, (count, 1)), np.full(count, (label + 1) % facts.n_classes)
    return Problem(facts, plan.relation, *others, (row, label), neighbor, cap, copies)


def worst_cases(facts: ProblemInfo, plan: Plan, fits: int) -> list[Problem]:
    """Return a problem for each class, at most ten.

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


@dataclass(frozen=True, eq=False)
class Reading:
    """Hold the auditor's results for one release.

    Attributes
    ----------
    sd : float
        The planned standard deviation of the noise.
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
    """

    sd: float
    ratio: float
    own: float
    noise: np.ndarray
    score: float | None
    share: float
    has_canary: bool


class Witness:
    """Read releases as an auditor who knows the exact sums of both worlds."""

    def __init__(self, problem: Problem) -> None:
        self.worlds = [Sums(problem.world(inside)) for inside in (False, True)]
        self._canary = problem.facts.n_rows - 1  # the last slot

    def read(self, seen: Seen, inside: bool) -> Reading:
        """Compare a release with both worlds.

        `inside` is True if the canary is in the fit.

        Symmetric noise has half the variance off the diagonal, and each such entry
        appears twice. Sums over all entries therefore equal sums over independent
        entries. The standard deviation comes from the plan, not from the release.
        """
        spec = seen.spec
        sums = [world.total(seen.statistic, seen.params, spec) for world in self.worlds]
        # with sampled batches there are no shared rows
        shared = sums[0] if seen.sample is None else np.zeros_like(sums[0])
        value = seen.released.value - shared
        shifts = [total - shared for total in sums]
        sensitivity, sd = planned(seen)
        difference = sums[1] - sums[0]
        distance = float(np.linalg.norm(difference))
        present = seen.sample is None or self._canary in seen.sample[-1:]
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
        share = distance / (sensitivity * (spec.group_cap or 1))
        own = (distance / sd) ** 2
        return Reading(sd, ratio, own, noise / sd, score, share, present)


def planned(seen: Seen) -> tuple[float, float]:
    """Return the planned sensitivity of a sum and the standard deviation of its noise.

    In a Poisson batch, replacing a row moves the sum by twice the clip norm. The
    accountant counts this factor of 2, so it does not increase the noise.
    """
    statistic, spec, append = seen.statistic, seen.spec, seen.params.transform.append
    sampled = spec.sampling_prob < 1
    relation = "zero_out" if sampled else spec.relation
    unit = statistic.unit(spec.clip_norm, append)
    row = unit * root(statistic.sensitivity_sq(relation, spec.clip_norm, append))
    twice = 2 if sampled and spec.relation == "replace_one" else 1
    return twice * row, row * spec.noise_multiplier


def _log_mixture(along: float, length2: float, variance: float, prob: float) -> float:
    """Return the log of the density ratio of (1 - q) N(0) + q N(shift) to N(0).

    `along` is the value's inner product with the shift, and `length2` the shift's
    squared length.
    """
    ratio = (along - length2 / 2) / variance
    if prob == 1:
        return ratio
    return float(np.logaddexp(np.log1p(-prob), np.log(prob) + ratio))


class _Watched:
    """Sum like a verified sum, and record the summed slots."""

    def __init__(self, sums: Sums) -> None:
        self._verified = VerifiedSum(sums)
        self.sample: np.ndarray | None = None

    def __call__(self, task: SumTask) -> np.ndarray:
        self.sample = task.indices
        return self._verified(task)

    def largest_norm(self, task: SumTask) -> float:
        """Return the largest norm, as the verified sum does."""
        return self._verified.largest_norm(task)


def transcript(
    solver: Solver,
    facts: ProblemInfo,
    specs: list[ReleaseSpec],
    noise: NoiseSource,
    sums: Sums,
) -> Iterator[Seen]:
    """Yield each release of one fit through `release`, without its head."""
    ledger: Any = NoLedger()
    watched = _Watched(sums)
    steps = solver.solve(facts)
    ask = next(steps)
    for i, spec in enumerate(specs):
        if ask.label != spec.label:
            raise RuntimeError(
                f"Internal error: the solver requested {ask.label!r} at release {i}, "
                f"which is planned as {spec.label!r}. Please report it."
            )
        released = release(
            ask.statistic,
            ask.params,
            sums.source,
            spec,
            ledger=ledger,
            noise=noise,
            summer=watched,
        )
        yield Seen(ask.statistic, ask.params, spec, released, watched.sample)
        if i + 1 < len(specs):
            ask = steps.send(released)
    steps.close()
