"""White-box audit of a method: real `release`, worst-case canary, exact score.

A fit is run many times in two worlds, with a canary and without it. The auditor knows
every row and sees every release; its score is the log-likelihood ratio of the whole
transcript (Neyman, Pearson: no test of the two worlds is better).
It may see public or synthetic rows alone: a thousand fits are a thousand releases, and
nothing of them is charged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dphead.analysis.audit_bounds import (
    SHOWN_ERROR,
    Claim,
    Counts,
    bin_edges,
    one_run_epsilon,
    one_run_guesses,
    one_run_plan,
)
from dphead.analysis.audit_rows import (
    NO_CLASS,
    AuditRows,
    NoLedger,
    Repeated,
    Sums,
    UnrecordedSpec,
)
from dphead.planning.plan import Plan
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import Released, ReleaseSpec
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Params, Query
from dphead.privacy.release import release
from dphead.solvers.base import Answer, PublicFacts, Solver
from dphead.sums.door import Door

# Chosen, not measured.
# rows of synthetic problems beside the canary; the rest are slots of unreadable images
SHARED_ROWS = 15
# of the canary, in clip norms: one no longer than the clip would pass without any
CANARY_NORM = 10.0
ROWS_BEYOND_CAP = 2  # of a canary group, which must not count


@dataclass(frozen=True)
class Problem:
    """Rows that both worlds share, and the row in which they differ.

    x: (n, d); canary, neighbour: (row, class).

    neighbour: what stands in the canary's place in the other world (replace_one), or
        None for nothing.
    group_cap: None, or that of a plan that protects groups; the canary is then a group
        of `copies` equal rows.
    """

    facts: PublicFacts
    relation: str
    x: np.ndarray
    y: np.ndarray
    canary: tuple[np.ndarray, int]
    neighbour: tuple[np.ndarray, int] | None = None
    group_cap: int | None = None
    copies: int = 1

    def world(self, inside: bool) -> AuditRows:
        """The rows with the canary or without it; under add_remove its slots go too."""
        row = self.canary if inside else self.neighbour
        n_rows = self.facts.n_rows
        if row is None and self.relation == "add_remove":
            return self._rows(self.x, self.y, 0, n_rows - self.copies)
        x, y = self.unit(row)
        all_x = np.vstack([self.x, x])
        all_y = np.append(self.y, y)
        return self._rows(all_x, all_y, len(y), n_rows)

    def unit(self, row: tuple[np.ndarray, int] | None) -> tuple[np.ndarray, np.ndarray]:
        """The (copies, d) rows and (copies,) classes of the canary's slots.

        row: what is there, None for nothing.
        """
        x, label = row or (np.zeros(self.facts.n_features, np.float32), NO_CLASS)
        return np.tile(x, (self.copies, 1)), np.full(self.copies, label)

    def apart(self) -> list[AuditRows]:
        """The others, what stands in the canary's slots without it, and the canary,
        each by itself.
        """
        units = [self.unit(self.neighbour), self.unit(self.canary)]
        others = self._rows(self.x, self.y, 0, max(1, len(self.x)))
        apart = [self._rows(x, y, len(y), len(y)) for x, y in units]
        return [others, *apart]

    def _rows(
        self, x: np.ndarray, y: np.ndarray, in_unit: int, n_rows: int
    ) -> AuditRows:
        """Rows of which the last `in_unit` are one group and the others are none."""
        groups = np.where(np.arange(len(y)) < len(y) - in_unit, -1, 0)
        return AuditRows(x, y, n_rows, groups, self.group_cap)


def worst_case(facts: PublicFacts, plan: Plan, *, agree: bool = False) -> Problem:
    """A synthetic problem whose canary is as visible as the method's clips allow.

    The canary lies on the first axis, is CANARY_NORM times as long as the largest clip
    norm, and has class 0. The others are the same row with class 1, which keeps its
    residual large while a head is trained, or with its own class (`agree`). With
    Poisson batches there are no others: which of them were sampled is secret, and would
    only hide the canary. Where the plan protects groups, the canary is a group of more
    rows than the cap.
    Under replace_one the neighbour is the opposite row, or one at 120 degrees where a
    second moment is released.
    """
    if any(s.epoch_steps > 1 for s in plan.specs):
        raise ValueError(
            "audits need full or Poisson batches, got allocated rows. Audit the same "
            "with Poisson batches."
        )
    sampled = any(s.sampling_prob < 1 for s in plan.specs)
    if sampled and plan.group_cap is not None:
        raise ValueError(
            f"an audit of groups needs full batches, got group_cap={plan.group_cap} "
            "and Poisson ones. Leave one out."
        )
    copies = (
        1
        if plan.group_cap is None
        else min(facts.n_rows, plan.group_cap + ROWS_BEYOND_CAP)
    )
    count = 0 if sampled else min(SHARED_ROWS, facts.n_rows - copies)
    row = np.zeros(facts.n_features, np.float32)
    norm = CANARY_NORM * max(1.0, *(s.clip_norm for s in plan.specs))
    row[0] = norm
    neighbour = None
    if plan.relation == "replace_one":
        moments = facts.n_features > 1 and any("Gram" in s.query for s in plan.specs)
        other = np.zeros_like(row)
        if moments:
            other[:2] = (-0.5 * norm, np.sqrt(0.75) * norm)
        else:
            other[0] = -norm
        neighbour = (other, 0)
    others = np.tile(row, (count, 1)), np.full(count, 0 if agree else 1)
    return Problem(
        facts, plan.relation, *others, (row, 0), neighbour, plan.group_cap, copies
    )


def among(problem: Problem, plan: Plan, x: np.ndarray, y: np.ndarray) -> Problem:
    """The problem with public rows in place of the synthetic ones; its canary takes the
    last slots.

    x: (n_rows, n_features), y: (n_rows,). Raises ValueError for Poisson batches: which
    rows were sampled is secret, so the likelihood would be a sum over all subsets.
    """
    if any(s.sampling_prob < 1 for s in plan.specs):
        raise ValueError(
            "audits of Poisson batches need synthetic rows, got public ones. Give the "
            "sizes instead."
        )
    return replace(
        problem, x=x[: -problem.copies].astype(np.float32), y=y[: -problem.copies]
    )


class _Witness:
    """What the auditor knows: what the others, the neighbour and the canary add to a
    sum, at any parameters.
    """

    def __init__(self, problem: Problem) -> None:
        self._sums = [Sums(rows) for rows in problem.apart()]
        self._repeated = Repeated()

    def score(
        self, query: Query, params: Params, spec: ReleaseSpec, released: Released
    ) -> tuple[float, float]:
        """(log-likelihood ratio of this release given the transcript, squared distance
        of the worlds over noise).

        Symmetric noise has half the variance off the diagonal, and each such entry
        appears twice: the sums over all entries below are those over the independent
        ones.
        """

        def totals() -> tuple[np.ndarray, ...]:
            return tuple(sums.total(query, params, spec).ravel() for sums in self._sums)

        others, without, inside = self._repeated(
            0, query, params, spec.clip_norm, totals
        )
        value = released.value.ravel() - others
        variance = released.noise_sd**2
        difference = inside - without
        own = float(difference @ difference) / variance
        if spec.sampling_prob == 1:
            along = float(difference @ (value - without))
            return along / variance - own / 2, own
        ratios = []
        for shift in (without, inside):
            along = float(shift @ value)
            length2 = float(shift @ shift)
            ratio = _log_mixture(along, length2, variance, spec.sampling_prob)
            ratios.append(ratio)
        return ratios[1] - ratios[0], own


def _log_mixture(along: float, length2: float, variance: float, prob: float) -> float:
    """Log density of (1 - q) N(0) + q N(shift) over that of N(0); along: the value's
    inner product with the shift.
    """
    ratio = (along - length2 / 2) / variance
    if prob == 1:
        return ratio
    return float(np.logaddexp(np.log1p(-prob), np.log(prob) + ratio))


def transcript(
    solver: Solver,
    facts: PublicFacts,
    specs: list[ReleaseSpec],
    noise: NoiseSource,
    sums: Sums,
) -> Iterator[tuple[Query, Params, ReleaseSpec, Released]]:
    """One fit through `release`, without its head: each release as it happens, with
    what it was asked at.
    """
    ledger: Any = NoLedger()
    steps = solver.solve(facts)
    ask = next(steps)
    for i, spec in enumerate(specs):
        if ask.label != spec.label:
            raise RuntimeError(
                f"a solver must ask for its plan, got label={ask.label!r} at release "
                f"{i}."
            )
        released = release(
            ask.query,
            ask.params,
            sums.source,
            spec,
            ledger=ledger,
            noise=noise,
            summer=Door(sums),
        )
        yield ask.query, ask.params, spec, released
        if i + 1 < len(specs):
            ask = steps.send(Answer(released.value, released.noise_sd))
    steps.close()


def scores(
    solver: Solver,
    plan: Plan,
    problem: Problem,
    fits: int,
    progress: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(log-likelihood ratios (2, fits), the canary's own mu squared (2, fits)); row 1
    is the world with the canary.
    """
    specs: list[ReleaseSpec] = [UnrecordedSpec(**vars(s)) for s in plan.specs]
    witness = _Witness(problem)
    noise = NoiseSource()
    worlds = [Sums(problem.world(inside)) for inside in (False, True)]
    facts = plan.budgeted(problem.facts)
    ratios = np.zeros((2, fits))
    own = np.zeros((2, fits))
    # where starting a thread takes longer than the product
    small = problem.facts.n_features <= 64
    with threadpool_limits(1 if small else None, "blas"):
        for k in range(fits):
            for world, sums in enumerate(worlds):
                for seen in transcript(solver, facts, specs, noise, sums):
                    ratio, distance = witness.score(*seen)
                    ratios[world, k] += ratio
                    own[world, k] += distance
            if progress is not None:
                progress(k + 1)
    return ratios, own


def claim_of(plan: Plan) -> Claim:
    """What the plan promises. Raises ValueError for a plan without noise."""
    if not plan.private:
        raise ValueError(
            f"an audit needs a private plan, got epsilon={plan.epsilon}. Give a finite "
            "epsilon."
        )
    return Claim(plan.epsilon, plan.delta, plan.relation, tuple(plan.events()))


def thresholds(
    solver: Solver, plan: Plan, problem: Problem, fits: int, confidence: float
) -> np.ndarray:
    """Where to cut the scores of `count`, fixed before its fits: for the canary's own
    mu, which one fit tells exactly.

    That mu is the same in every fit of the audits whose canary reaches its clips;
    elsewhere it is a good guess. It is rounded, so that every chunk of an audit has the
    same thresholds.
    """
    claim = claim_of(plan)
    if claim.mu is not None:
        _, own_mu2 = scores(solver, plan, problem, 1)
        own = float(np.sqrt(own_mu2[0, 0]))
        rounded = round(own / claim.mu, 2) * claim.mu
        event = GaussianEvent(1 / max(rounded, 1e-9))
        claim = replace(claim, events=(event,))
    return claim.thresholds(fits, confidence)


def count(
    solver: Solver,
    plan: Plan,
    problem: Problem,
    fits: int,
    *,
    cuts: np.ndarray | None = None,
    confidence: float = 0.9999,
    progress: Callable[[int], None] | None = None,
) -> Counts:
    """Run `fits` fits in each world and keep counts.

    cuts: the `thresholds` of the whole audit, if this is a chunk.
    """
    if cuts is None:
        cuts = thresholds(solver, plan, problem, fits, confidence)
    ratios, own = scores(solver, plan, problem, fits, progress)
    return Counts.of(ratios, own, cuts, bin_edges(claim_of(plan)))


def one_run(
    solver: Solver,
    plan: Plan,
    facts: PublicFacts,
    canaries: int,
    confidence: float = 0.9999,
) -> dict[str, Any]:
    """Audit one fit with many canaries, each in it by a fair coin [Steinke, Nasr,
    Jagielski 2023].

    Canaries are the first axes of feature space, so that they hardly disturb each
    other; at most n_features of them. The guesses' number is fixed beforehand by
    theory. Under replace_one in and out are nearer than the claim covers.
    """
    most = min(facts.n_features, facts.n_rows)
    if not 2 <= canaries <= most:
        raise ValueError(
            f"canaries must be from 2 to min(d, n) = {most}, got {canaries=}. Choose "
            "fewer."
        )
    if plan.group_cap is not None:
        raise ValueError(
            "an audit of one run has rows as canaries, got "
            f"group_cap={plan.group_cap}. Audit many fits instead."
        )
    noise = NoiseSource()
    inside = noise.generator(0, "coins").random(canaries) < 0.5
    ratios = _log_ratios(solver, plan, facts, inside, noise)
    results: dict[str, Any] = {
        "canaries": canaries,
        "confidence": confidence,
        "false_alarm_odds": 1 - confidence,
    }
    mu = claim_of(plan).equivalent_mu
    for name, level in (("", confidence), ("_95", 1 - SHOWN_ERROR)):
        guesses, ceiling = one_run_plan(canaries, mu, plan.delta, level)
        right = one_run_guesses(ratios, inside, guesses)
        bound = one_run_epsilon(canaries, guesses, right, plan.delta, level)
        results |= {
            f"guesses{name}": guesses,
            f"correct{name}": right,
            f"epsilon_lower_bound{name}": bound,
            f"ceiling{name}": ceiling,
        }
    return {
        **results,
        "epsilon": plan.epsilon,
        "passed": results["epsilon_lower_bound"] <= plan.epsilon,
    }


def _log_ratios(
    solver: Solver,
    plan: Plan,
    facts: PublicFacts,
    inside: np.ndarray,
    noise: NoiseSource,
) -> np.ndarray:
    """(canaries,) how much likelier one fit's releases are with each canary than
    without it, as logarithms. inside: (canaries,) those that are in the fit.
    """
    canaries = len(inside)
    x = np.eye(canaries, facts.n_features, dtype=np.float32)
    y = np.arange(canaries) % facts.n_classes
    specs: list[ReleaseSpec] = [UnrecordedSpec(**vars(s)) for s in plan.specs]
    places = [slice(i, i + 1) for i in range(canaries)]
    single = [AuditRows(x[place], y[place], 1) for place in places]
    everyone = AuditRows(x, y, canaries)
    ratios = np.zeros(canaries)
    all_sums = Sums(AuditRows(x, np.where(inside, y, NO_CLASS), facts.n_rows))
    for query, params, spec, released in transcript(
        solver, plan.budgeted(facts), specs, noise, all_sums
    ):
        # what is expected of each of the others, whose coins the auditor does not know
        half = spec.sampling_prob / 2
        expected = half * Sums(everyone).total(query, params, spec)
        rest = (released.value - expected).ravel()
        variance = released.noise_sd**2
        for i, row in enumerate(single):
            shift = Sums(row).total(query, params, spec).ravel()
            length2 = float(shift @ shift)
            along = float(shift @ rest) + half * length2
            ratios[i] += _log_mixture(along, length2, variance, spec.sampling_prob)
    return ratios
