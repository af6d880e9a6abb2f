"""Run fits of public rows through `release`, and read them as an auditor.

Fits here are not charged, so the rows must be public or synthetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dphead.analysis.audit_rows import NO_CLASS, AuditRows, NoLedger, Repeated, Sums
from dphead.planning.plan import Plan
from dphead.privacy.contract import Released, ReleaseSpec, SumTask
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Params, Statistic, root
from dphead.privacy.release import release
from dphead.privacy.sampling import NO_GROUP
from dphead.solvers.base import ProblemInfo, Response, Solver
from dphead.sums.verified import VerifiedSum

# Chosen, not measured. rows of synthetic problems beside the canary; the rest are slots
# of unreadable images
_SHARED_ROWS = 15
# norm of the canary in clip norms: a shorter canary would not detect missing clipping
_CANARY_NORM = 10.0
ROWS_BEYOND_CAP = 2  # rows of a canary group beyond the cap, which must not count
_MOST_CANARIES = 10  # problems of one audit; each holds the rows twice


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
        """Return the rows with the canary or without it.

        Under add_remove, the canary's slots are missing.
        """
        row = self.canary if inside else self.neighbor
        n_rows = self.facts.n_rows
        if row is None and self.relation == "add_remove":
            return self._rows(self.x, self.y, 0, n_rows - self.copies)
        x, y = self.unit(row)
        all_x = np.vstack([self.x, x])
        all_y = np.append(self.y, y)
        return self._rows(all_x, all_y, len(y), n_rows)

    def unit(self, row: tuple[np.ndarray, int] | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (copies, d) and classes (copies,) of the canary's slots.

        `row` is the row in these slots, or None.
        """
        x, label = row or (np.zeros(self.facts.n_features, np.float32), NO_CLASS)
        return np.tile(x, (self.copies, 1)), np.full(self.copies, label)

    def apart(self) -> list[AuditRows]:
        """Return three separate sets of rows.

        The sets are the shared rows, the canary's slots without the canary, and the
        canary.
        """
        units = [self.unit(self.neighbor), self.unit(self.canary)]
        others = self._rows(self.x, self.y, 0, max(1, len(self.x)))
        apart = [self._rows(x, y, len(y), len(y)) for x, y in units]
        return [others, *apart]

    def _rows(
        self, x: np.ndarray, y: np.ndarray, in_unit: int, n_rows: int
    ) -> AuditRows:
        """Return rows with the last `in_unit` as one group, and no other groups."""
        groups = np.where(np.arange(len(y)) < len(y) - in_unit, NO_GROUP, 0)
        return AuditRows(x, y, n_rows, groups, self.group_cap)


def worst_case(
    facts: ProblemInfo,
    plan: Plan,
    *,
    agree: bool = False,
    label: int = 0,
    seed: int | None = None,
) -> Problem:
    """Return a synthetic problem with a canary as visible as the clip norms allow.

    Parameters
    ----------
    facts : ProblemInfo
        The sizes.
    plan : Plan
        The plan to audit.
    agree : bool, default False
        Whether the shared rows have the canary's class.
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
    The canary is CANARY_NORM times as long as the largest clip norm. The shared rows
    equal the canary, with the next class, which keeps the canary's residual large
    during training, or with its own class (`agree`). With sampled batches there are no
    shared rows, because their secret sampling would only hide the canary. With a group
    cap, the canary is a group of more rows than the cap. Under replace_one the neighbor
    is the opposite row, or one at 120 degrees if a second moment is released.
    """
    sampled = any(s.sampling_prob < 1 or s.epoch_steps > 1 for s in plan.specs)
    if sampled and plan.group_cap is not None:
        raise ValueError(
            f"an audit of groups needs full batches, got group_cap={plan.group_cap} "
            "and Poisson batches. Drop one of them."
        )
    copies = (
        1
        if plan.group_cap is None
        else min(facts.n_rows, plan.group_cap + ROWS_BEYOND_CAP)
    )
    count = 0 if sampled else min(_SHARED_ROWS, facts.n_rows - copies)
    axes = np.eye(facts.n_features, 2)
    if seed is not None:
        axes = np.random.default_rng(seed).standard_normal(axes.shape)
        axes /= np.linalg.norm(axes, axis=0)
        axes[:, 1] -= (axes[:, 0] @ axes[:, 1]) * axes[:, 0]
        axes[:, 1] /= max(np.linalg.norm(axes[:, 1]), 1e-300)
    norm = _CANARY_NORM * max(1.0, *(s.clip_norm for s in plan.specs))
    row = norm * axes[:, 0]
    neighbor = None
    if plan.relation == "replace_one":
        moments = facts.n_features > 1 and any("Gram" in s.query for s in plan.specs)
        other = norm * (axes @ [-0.5, np.sqrt(0.75)]) if moments else -row
        neighbor = (other.astype(np.float32), label)
    row = row.astype(np.float32)
    beside = label if agree else (label + 1) % facts.n_classes
    others = np.tile(row, (count, 1)), np.full(count, beside)
    return Problem(
        facts, plan.relation, *others, (row, label), neighbor, plan.group_cap, copies
    )


def worst_cases(facts: ProblemInfo, plan: Plan, fits: int) -> list[Problem]:
    """Return a problem for each class, at most MOST_CANARIES.

    The first canary lies on the first axis, the others in random directions.
    """
    count = min(_MOST_CANARIES, facts.n_classes, fits)
    labels = np.random.default_rng(0).permutation(np.arange(1, facts.n_classes))
    problems = [worst_case(facts, plan)]
    for label in labels[: count - 1]:
        problems.append(worst_case(facts, plan, label=int(label), seed=int(label)))
    return problems


def with_public_rows(
    problem: Problem, plan: Plan, x: np.ndarray, y: np.ndarray
) -> Problem:
    """Return the problem with public rows instead of synthetic ones.

    The canary takes the last slots.

    Parameters
    ----------
    problem : Problem
        The synthetic problem.
    plan : Plan
        The plan to audit.
    x, y : (n_rows, n_features) and (n_rows,) arrays
        The public rows and their classes.

    Raises
    ------
    ValueError
        If batches are sampled. Sampling is secret, so the likelihood would be a sum
        over all subsets.
    """
    if any(s.sampling_prob < 1 or s.epoch_steps > 1 for s in plan.specs):
        raise ValueError(
            "audits of sampled batches need synthetic rows, got public ones. Pass "
            "the sizes instead."
        )
    return replace(
        problem, x=x[: -problem.copies].astype(np.float32), y=y[: -problem.copies]
    )


@dataclass(frozen=True, eq=False)
class Seen:
    """Hold one release of a fit: the request, the value, and the secret sample.

    `sample` has the summed slots, or None for all.
    """

    query: Statistic
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
        Squared distance of the two worlds, divided by sd squared.
    noise : array
        The added noise, divided by sd.
    along : float or None
        Its part along the worlds' difference; None if the worlds do not differ.
    share : float
        The worlds' difference divided by the sensitivity.
    has_canary : bool
        Whether the canary's slot was summed.
    """

    sd: float
    ratio: float
    own: float
    noise: np.ndarray
    along: float | None
    share: float
    has_canary: bool


class Witness:
    """Hold the auditor's knowledge of the rows.

    The auditor knows the contributions of the shared rows, the neighbor and the canary
    at any parameters.
    """

    def __init__(self, problem: Problem) -> None:
        self._sums = [Sums(rows) for rows in problem.apart()]
        self._canary = problem.facts.n_rows - 1  # the last slot
        self._repeated = Repeated()

    def read(self, seen: Seen, inside: bool) -> Reading:
        """Compare a release with both worlds; `inside` names its own.

        Symmetric noise has half the variance off the diagonal, and each such entry
        appears twice. Sums over all entries therefore equal sums over independent
        entries. The standard deviation comes from the plan, not from the release.
        """
        query, params, spec = seen.query, seen.params, seen.spec

        def totals() -> tuple[np.ndarray, ...]:
            return tuple(sums.total(query, params, spec).ravel() for sums in self._sums)

        others, without, canary = self._repeated(
            0, query, params, spec.clip_norm, totals
        )
        value = seen.released.value.ravel() - others
        row, sd = planned(seen)
        difference = canary - without
        distance = float(np.linalg.norm(difference))
        present = seen.sample is None or self._canary in seen.sample[-1:]
        noise = value - (canary if inside else without) * present
        along = float(difference @ noise) / (distance * sd) if distance else None
        own = (distance / sd) ** 2
        share = distance / (row * (spec.group_cap or 1))
        ratios = [
            log_mixture(
                float(shift @ value), float(shift @ shift), sd**2, spec.sampling_prob
            )
            for shift in (without, canary)
        ]
        shaped = (noise / sd).reshape(seen.released.value.shape)
        return Reading(sd, ratios[1] - ratios[0], own, shaped, along, share, present)


def planned(seen: Seen) -> tuple[float, float]:
    """Return the planned sensitivity of a sum and the deviation of its noise.

    In a Poisson batch, replacing a row moves the sum by twice the clip norm, which the
    accountant counts.
    """
    query, spec, append = seen.query, seen.spec, seen.params.transform.append
    sampled = spec.sampling_prob < 1
    relation = "zero_out" if sampled else spec.relation
    unit = query.unit(spec.clip_norm, append)
    row = unit * root(query.sensitivity_sq(relation, spec.clip_norm, append))
    twice = 2 if sampled and spec.relation == "replace_one" else 1
    return twice * row, row * spec.noise_multiplier


def log_mixture(along: Any, length2: float, variance: float, prob: float) -> Any:
    """Return the log of the density ratio of (1 - q) N(0) + q N(shift) to N(0).

    `along` is the value's inner product with the shift, and `length2` the shift's
    squared length.
    """
    ratio = (along - length2 / 2) / variance
    if prob == 1:
        return ratio
    return np.logaddexp(np.log1p(-prob), np.log(prob) + ratio)


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
                f"a solver must follow its plan, got request {ask.label!r} at release "
                f"{i}."
            )
        released = release(
            ask.query,
            ask.params,
            sums.source,
            spec,
            ledger=ledger,
            noise=noise,
            summer=watched,
        )
        yield Seen(ask.query, ask.params, spec, released, watched.sample)
        if i + 1 < len(specs):
            ask = steps.send(Response(released.value, released.noise_sd))
    steps.close()
