"""White-box audit of a method: the real `release` and its real noise, a worst-case canary, and the exact score.

A fit is run many times in two worlds, with a canary and without it. The auditor knows every row and sees every release;
its score is the log-likelihood ratio of the whole transcript (Neyman, Pearson: no test of the two worlds is better).
It is for public or synthetic rows only: a thousand fits are a thousand releases, and nothing of them is charged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dphead.analysis.audit_bounds import (
    CASUAL,
    Claim,
    Counts,
    bin_edges,
    one_run_epsilon,
    one_run_guesses,
    one_run_plan,
)
from dphead.plan import Plan
from dphead.privacy.mechanism import Block, Released, ReleaseSpec, release
from dphead.privacy.noise import NoiseSource
from dphead.privacy.queries import Params, Query
from dphead.privacy.sums import CHUNK
from dphead.solvers.base import Answer, PublicFacts, Solver

BLOCK_ROWS = 2048
OTHERS = 15  # rows of synthetic problems beside the canary; the rest are slots of unreadable images
NO_CLASS = -1  # the label of a row that counts zero


class NoLedger:
    """Stands in for a fit's ledger and records nothing: audited rows are public or synthetic, and cost no budget."""

    def __init__(self) -> None:
        self._next = -1

    def begin(self, spec: dict[str, Any]) -> tuple[int, None]:
        """The next sequence number; nothing was ever committed."""
        self._next += 1
        return self._next, None

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Forget the value."""


class _UnrecordedSpec(ReleaseSpec):
    """A planned release without the row that a ledger would store: making it would double the time of a small fit."""

    def row(self) -> dict[str, Any]:
        return {}


class AuditRows:
    """Public rows in memory, in blocks that stay the same objects. x: (n, d) float32, y: (n,) int.

    n_rows may exceed n: the missing slots come first and have no class. A block of such slots has `zeros` as its x.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, n_rows: int) -> None:
        self.n_rows, self.n_features = n_rows, x.shape[1]
        self.group_cap: int | None = None  # a row is the protected unit
        self._missing = n_rows - len(x)
        self._x, self._y = np.ascontiguousarray(x, np.float32), np.asarray(y, np.int32)
        size = min(BLOCK_ROWS, CHUNK * -(-n_rows // CHUNK))
        self.zeros = np.zeros((size, x.shape[1]), np.float32)
        order = np.arange(n_rows)
        self._all = [self._block(order[i : i + size], size) for i in range(0, n_rows, size)]

    def blocks(self, indices: np.ndarray | None = None) -> Iterator[Block]:
        """Every slot once, or each of `indices` once."""
        if indices is None:
            yield from self._all
            return
        size = len(self.zeros)
        for i in range(0, len(indices), size):
            yield self._block(indices[i : i + size], size)

    def _block(self, index: np.ndarray, size: int) -> Block:
        index, y = np.pad(index, (0, size - len(index)), constant_values=-1), np.full(size, NO_CLASS, np.int32)
        here = np.flatnonzero(index >= self._missing)
        if len(here) == 0:
            return Block(index, self.zeros, y)
        x = np.zeros_like(self.zeros)
        x[here], y[here] = self._x[index[here] - self._missing], self._y[index[here] - self._missing]
        return Block(index, x, y)


def _start(query: Query, params: Params, clip_norm: float) -> tuple[Any, ...] | None:
    """Names the public parameters that every fit starts from; None where they depend on releases."""
    t, w = params.transform, params.weights
    if t.center is not None or t.scale is not None or (w is not None and w.any()):
        return None
    return query, t.unit_norm, t.append, clip_norm


class _Sums:
    """The queries' clipped sums over `rows`, without thread pools; the first pass's are kept.

    At the zero start with no centre the sum of a fixed block depends on public numbers alone and is the same in every
    fit. Blocks that only fill up n_rows count zero and are skipped. `release` still checks every slot, and its noise
    is new each time.
    """

    def __init__(self, rows: AuditRows) -> None:
        self.rows = rows
        self._kept: dict[Any, np.ndarray] = {}
        self._fixed = {id(block) for block in rows.blocks()}  # they live as long as the rows; Poisson batches do not

    def __call__(self, query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
        if block.x is self.rows.zeros:
            return out
        start = _start(query, params, clip_norm) if id(block) in self._fixed else None
        if start is None:
            return query.clipped_sum(params, block.x, block.y, keep, clip_norm, out)
        key = (id(block), *start)
        value = self._kept.get(key)
        if value is None:
            value = query.clipped_sum(params, block.x, block.y, keep, clip_norm, np.zeros_like(out))
            self._kept[key] = value
        out += value
        return out

    def total(self, query: Query, params: Params, clip_norm: float) -> np.ndarray:
        """The sum over all rows, which is what the auditor knows."""
        out = np.zeros(query.shape(params.transform.width(self.rows.n_features)))
        for block in self.rows.blocks():
            out = self(query, params, block, block.index >= 0, clip_norm, out)
        return out


@dataclass(frozen=True)
class Problem:
    """Rows that both worlds share, and the row in which they differ. x: (n, d); canary, neighbour: (row, class).

    neighbour: what stands in the canary's place in the other world (replace_one), or None for nothing.
    """

    facts: PublicFacts
    relation: str
    x: np.ndarray
    y: np.ndarray
    canary: tuple[np.ndarray, int]
    neighbour: tuple[np.ndarray, int] | None = None

    def world(self, inside: bool) -> AuditRows:
        """The rows with the canary or without it; under add_remove its slot goes too."""
        row = self.canary if inside else self.neighbour
        if row is None and self.relation == "add_remove":
            return AuditRows(self.x, self.y, self.facts.n_rows - 1)
        x, label = row or (np.zeros(self.facts.n_features, np.float32), NO_CLASS)
        return AuditRows(np.vstack([self.x, x]), np.append(self.y, label), self.facts.n_rows)


def worst_case(facts: PublicFacts, plan: Plan, *, agree: bool = False) -> Problem:
    """A synthetic problem whose canary is as visible as the method's clips allow.

    The canary lies on the first axis, as long as the largest clip norm, and has class 0. The others are the same row
    with class 1, which keeps its residual large while a head is trained, or with its own class (`agree`). With Poisson
    batches there are no others: which of them were sampled is secret, and would only hide the canary.
    Under replace_one the neighbour is the opposite row, or one at 120 degrees where a second moment is released.
    """
    sampled = any(s.sampling_prob < 1 for s in plan.specs)
    count = 0 if sampled else min(OTHERS, facts.n_rows - 1)
    row = np.zeros(facts.n_features, np.float32)
    row[0] = norm = max(1.0, *(s.clip_norm for s in plan.specs))
    neighbour = None
    if plan.relation == "replace_one":
        moments = facts.n_features > 1 and any("Gram" in s.query for s in plan.specs)
        other = np.zeros_like(row)
        other[:2] = (-0.5 * norm, np.sqrt(0.75) * norm) if moments else (-norm, 0.0)[: facts.n_features]
        neighbour = (other, 0)
    return Problem(
        facts, plan.relation, np.tile(row, (count, 1)), np.full(count, 0 if agree else 1), (row, 0), neighbour
    )


def among(problem: Problem, plan: Plan, x: np.ndarray, y: np.ndarray) -> Problem:
    """The problem with public rows in place of the synthetic ones; its canary takes the last row's slot.

    x: (n_rows, n_features), y: (n_rows,). Raises ValueError for Poisson batches: which rows were sampled is secret, so
    the likelihood would be a sum over all subsets.
    """
    if any(s.sampling_prob < 1 for s in plan.specs):
        raise ValueError("audits of Poisson batches need synthetic rows, got public ones. Give the sizes instead.")
    return replace(problem, x=x[:-1].astype(np.float32), y=y[:-1])


class _Witness:
    """What the auditor knows: what the others, the neighbour and the canary add to a sum, at any parameters."""

    def __init__(self, problem: Problem) -> None:
        nothing = (np.zeros(problem.facts.n_features, np.float32), NO_CLASS)
        rows = [(problem.x, problem.y)]
        rows += [(x[None, :], np.array([y])) for x, y in (problem.neighbour or nothing, problem.canary)]
        self._sums = [_Sums(AuditRows(x, y, max(1, len(x)))) for x, y in rows]
        self._kept: dict[Any, tuple[np.ndarray, ...]] = {}

    def score(self, query: Query, params: Params, spec: ReleaseSpec, released: Released) -> tuple[float, float]:
        """(log-likelihood ratio of this release given the transcript, squared distance of the worlds over noise).

        Symmetric noise has half the variance off the diagonal, and each such entry appears twice: the sums over all
        entries below are those over the independent ones.
        """
        start = _start(query, params, spec.clip_norm)
        known = None if start is None else self._kept.get(start)
        if known is None:
            known = tuple(sums.total(query, params, spec.clip_norm).ravel() for sums in self._sums)
            if start is not None:
                self._kept[start] = known
        others, without, inside = known
        value, variance, difference = released.value.ravel() - others, released.noise_sd**2, inside - without
        own = float(difference @ difference) / variance
        if spec.sampling_prob == 1:
            return float(difference @ (value - without)) / variance - own / 2, own
        ratios = [_log_mixture(value, shift, variance, spec.sampling_prob) for shift in (without, inside)]
        return ratios[1] - ratios[0], own


def _log_mixture(value: np.ndarray, shift: np.ndarray, variance: float, prob: float) -> float:
    """Log density of (1 - q) N(0) + q N(shift) over that of N(0)."""
    ratio = float(shift @ value - shift @ shift / 2) / variance
    return float(np.logaddexp(np.log1p(-prob), np.log(prob) + ratio))


def transcript(
    solver: Solver, facts: PublicFacts, specs: list[ReleaseSpec], noise: NoiseSource, sums: _Sums
) -> Iterator[tuple[Query, Params, ReleaseSpec, Released]]:
    """One fit through `release`, without its head: each release as it happens, with what it was asked at."""
    ledger: Any = NoLedger()
    steps = solver.solve(facts)
    ask = next(steps)
    for i, spec in enumerate(specs):
        if ask.label != spec.label:
            raise RuntimeError(f"a solver must ask for its plan, got label={ask.label!r} at release {i}.")
        released = release(ask.query, ask.params, sums.rows, spec, ledger=ledger, noise=noise, block_sum=sums)
        yield ask.query, ask.params, spec, released
        if i + 1 < len(specs):
            ask = steps.send(Answer(released.value, released.noise_sd))
    steps.close()


def scores(
    solver: Solver, plan: Plan, problem: Problem, fits: int, progress: Callable[[int], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(log-likelihood ratios (2, fits), the canary's own mu squared (2, fits)); row 1 is the world with the canary."""
    specs: list[ReleaseSpec] = [_UnrecordedSpec(**vars(s)) for s in plan.specs]
    witness, noise = _Witness(problem), NoiseSource()
    worlds = [_Sums(problem.world(inside)) for inside in (False, True)]
    ratios, own = np.zeros((2, fits)), np.zeros((2, fits))
    small = problem.facts.n_features <= 64  # where starting a thread takes longer than the product
    with threadpool_limits(1 if small else None, "blas"):
        for k in range(fits):
            for world, sums in enumerate(worlds):
                for seen in transcript(solver, problem.facts, specs, noise, sums):
                    ratio, distance = witness.score(*seen)
                    ratios[world, k] += ratio
                    own[world, k] += distance
            if progress is not None:
                progress(k + 1)
    return ratios, own


def claim_of(plan: Plan) -> Claim:
    """What the plan promises. Raises ValueError for a plan without noise."""
    if not plan.private:
        raise ValueError(f"an audit needs a private plan, got epsilon={plan.epsilon}. Give a finite epsilon.")
    return Claim(plan.epsilon, plan.delta, plan.relation, tuple(plan.events()))


def count(
    solver: Solver,
    plan: Plan,
    problem: Problem,
    fits: int,
    *,
    thresholds: np.ndarray | None = None,
    confidence: float = 0.9999,
    progress: Callable[[int], None] | None = None,
) -> Counts:
    """Run `fits` fits in each world and keep counts. thresholds: of the whole audit, if this is a chunk of it."""
    claim = claim_of(plan)
    if thresholds is None:
        thresholds = claim.thresholds(fits, confidence)
    ratios, own = scores(solver, plan, problem, fits, progress)
    return Counts.of(ratios, own, thresholds, bin_edges(claim))


def one_run(
    solver: Solver, plan: Plan, facts: PublicFacts, canaries: int, confidence: float = 0.9999
) -> dict[str, Any]:
    """Audit one fit with many canaries, each in it by a fair coin [Steinke, Nasr, Jagielski 2023].

    Canaries are the first axes of feature space, so that they hardly disturb each other; at most n_features of them.
    The guesses' number is fixed beforehand by theory. Under replace_one in and out are nearer than the claim covers.
    """
    most = min(facts.n_features, facts.n_rows)
    if not 2 <= canaries <= most:
        raise ValueError(f"canaries must be from 2 to min(d, n) = {most}, got {canaries=}. Choose fewer.")
    claim, noise = claim_of(plan), NoiseSource()
    inside = noise.generator(0, "coins").random(canaries) < 0.5
    x = np.eye(canaries, facts.n_features, dtype=np.float32)
    y = np.arange(canaries) % facts.n_classes
    specs: list[ReleaseSpec] = [_UnrecordedSpec(**vars(s)) for s in plan.specs]
    single = [AuditRows(x[i : i + 1], y[i : i + 1], 1) for i in range(canaries)]
    ratios = np.zeros(canaries)
    all_sums = _Sums(AuditRows(x, np.where(inside, y, NO_CLASS), facts.n_rows))
    for query, params, spec, released in transcript(solver, facts, specs, noise, all_sums):
        value = released.value.ravel()
        for i, row in enumerate(single):
            shift = _Sums(row).total(query, params, spec.clip_norm).ravel()
            if spec.sampling_prob < 1:
                ratios[i] += _log_mixture(value, shift, released.noise_sd**2, spec.sampling_prob)
            else:
                ratios[i] += float(shift @ value - shift @ shift / 2) / released.noise_sd**2
    results: dict[str, Any] = {"canaries": canaries, "confidence": confidence, "false_alarm_odds": 1 - confidence}
    for name, level in (("", confidence), ("_95", 1 - CASUAL)):
        guesses, ceiling = one_run_plan(canaries, claim.equivalent_mu, plan.delta, level)
        right = one_run_guesses(ratios, inside, guesses)
        bound = one_run_epsilon(canaries, guesses, right, plan.delta, level)
        results |= {f"guesses{name}": guesses, f"correct{name}": right, f"epsilon_lower_bound{name}": bound}
        results |= {f"ceiling{name}": ceiling}
    return {**results, "epsilon": plan.epsilon, "passed": results["epsilon_lower_bound"] <= plan.epsilon}
