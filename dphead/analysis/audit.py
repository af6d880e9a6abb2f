"""Audit a method: real `release`, worst-case canaries, exact scores.

A fit is run many times in two worlds, with a canary and without it. The auditor knows
every row and sees every release. Its score is the log-likelihood ratio of all releases
of a fit. This is the best test of the two worlds (Neyman, Pearson). The auditor also
knows the noise of each release and the sample, and tests their distributions
(`audit_laws`). It recomputes the claim from the releases (`audit_accounting`).

Rows must be synthetic, because thousands of releases go uncharged.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from dphead.analysis.audit_accounting import RELATIVE_ERROR, recomputed_epsilon
from dphead.analysis.audit_bounds import Claim, statements
from dphead.analysis.audit_laws import Evidence, LawResult, judge
from dphead.analysis.audit_rows import UnrecordedSpec
from dphead.analysis.audit_transcript import Problem, Seen, Witness, transcript
from dphead.planning.plan import Plan
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import ReleaseSpec
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import Solver

# relative tolerance for the rounding of a sum's unit and of two square roots
_ROUNDING = 1e-9


class AuditRecord:
    """Record the results of an audit's fits.

    Attributes
    ----------
    scores : (2, fits) float
        Log-likelihood ratios: row 0 without the canary, row 1 with it.
    own : (2, fits) float
        The canary's own mu squared.
    evidence : Evidence
        Noise and samples of all releases.
    share : float
        Largest movement of a sum by the canary, divided by the sensitivity.
    """

    def __init__(self, problem: Problem, fits: int) -> None:
        private_n = problem.relation == "add_remove"
        self.scores, self.own = np.zeros((2, 2, fits))
        self.evidence = Evidence(
            problem.facts.n_rows - (problem.copies if private_n else 0)
        )
        self.share = 0.0

    def fit(
        self, fit: int, inside: bool, witness: Witness, transcript: Iterator[Seen]
    ) -> None:
        """Read the releases of one fit."""
        self.evidence.begin()
        allocated: list[float] = []
        world, epoch = int(inside), 1
        for seen in transcript:
            statistic, spec = seen.statistic, seen.spec
            reading = witness.read(seen, inside)
            self.own[world, fit] += reading.own
            self.share = max(self.share, reading.share)
            if spec.epoch_steps > 1:
                epoch = spec.epoch_steps
                allocated.append(reading.ratio)
            else:
                self.scores[world, fit] += reading.ratio
            unit = statistic.unit(spec.clip_norm, seen.params.transform.append)
            kind = (spec.label, statistic.name)
            self.evidence.add(
                kind,
                reading.noise,
                reading.score,
                inside,
                symmetric=statistic.symmetric,
                sd_units=reading.sd / unit,
            )
            if seen.sample is not None:
                prob = spec.sampling_prob / spec.epoch_steps
                has_canary = reading.has_canary if inside else None
                self.evidence.sample(
                    kind, seen.sample, prob, spec.epoch_steps, has_canary
                )
        for start in range(0, len(allocated), epoch):
            # a skipped step reveals nothing: its ratio stays 0
            ratios = np.zeros(epoch)
            made = allocated[start : start + epoch]
            ratios[: len(made)] = made
            self.scores[world, fit] += float(logsumexp(ratios)) - math.log(epoch)


def _scores(
    solver: Solver,
    plan: Plan,
    problems: Sequence[Problem],
    fits: int,
    progress: Callable[[int], None] | None = None,
) -> AuditRecord:
    """Run `fits` fits in each of the two worlds, divided among the problems."""
    specs: list[ReleaseSpec] = [UnrecordedSpec(**vars(s)) for s in plan.specs]
    noise = NoiseSource()
    record = AuditRecord(problems[0], fits)
    # starting a thread takes longer than a small product
    small = problems[0].facts.n_features <= 64
    parts = np.array_split(np.arange(fits), len(problems))
    with threadpool_limits(1 if small else None, "blas"):
        for problem, part in zip(problems, parts, strict=True):
            witness = Witness(problem)
            facts = plan.budgeted(problem.facts)
            for k in part:
                for inside in (False, True):
                    sums = witness.worlds[inside]
                    made = transcript(solver, facts, specs, noise, sums)
                    record.fit(int(k), inside, witness, made)
                if progress is not None:
                    progress(int(k) + 1)
    return record


def claim_of(plan: Plan) -> Claim:
    """Return the claim of a plan.

    Raises ValueError for a plan without privacy.
    """
    if not plan.private:
        raise ValueError(
            f"`--epsilon` must be finite for an audit, got {plan.epsilon}. Use "
            "`--epsilon 1`."
        )
    return Claim(plan.epsilon, plan.delta, plan.relation, tuple(plan.events()))


def attack(
    solver: Solver,
    plan: Plan,
    problems: Sequence[Problem],
    fits: int,
    *,
    confidence: float = 0.9999,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Run the audit and return its results (`statements` and the tests).

    Parameters
    ----------
    solver : Solver
        The solver of the plan.
    plan : Plan
        The plan to audit.
    problems : sequence of Problem
        Rows and canaries; the fits are divided among them.
    fits : int
        Number of fits in each world.
    confidence : float, default 0.9999
        Joint confidence of the bounds, and joint confidence of the tests.
    progress : callable, optional
        Called with the number of fits made.

    Returns
    -------
    dict
        The results. "passed" is False if a bound exceeds the claim, or if a test fails.
        It is also False if the canary moves a sum by more than its sensitivity, or if
        the claim is below the recomputed epsilon.

    Notes
    -----
    A correct mechanism fails with probability at most 2 (1 - confidence): half for the
    bounds, half for the tests.
    """
    claim = claim_of(plan)
    # The threshold is fixed before the fits, for the canary's own mu, which one fit
    # determines. That mu is the same in every fit if the canary reaches its clip norms.
    # Otherwise it is an approximation, and the bound stays valid.
    aimed = claim
    if claim.mu is not None:
        own = float(np.sqrt(_scores(solver, plan, problems[:1], 1).own[0, 0]))
        aimed = replace(claim, events=(GaussianEvent(1 / max(own, 1e-9)),))
    threshold = aimed.best(fits, (1 - confidence) / 2)[0]
    record = _scores(solver, plan, problems, fits, progress)
    bounds = statements(record.scores, record.own, claim, threshold, confidence)
    again = recomputed_epsilon(plan.specs, plan.delta, plan.relation)
    findings = [*record.evidence.findings(), *_certain(record, claim, again)]
    tests = judge(findings, 1 - confidence)
    return {
        **bounds,
        "recomputed_epsilon": again,
        "laws": tests,
        "canaries_tried": len(problems),
        "passed": bounds["passed"] and tests["passed"],
    }


def _certain(
    record: AuditRecord, claim: Claim, again: float | None
) -> Iterator[LawResult]:
    """Yield the findings that do not depend on noise. Their p-values are 0 or 1."""
    ok = record.share <= 1 + _ROUNDING
    shown = f"{record.share:.6g} of the sensitivity"
    yield LawResult("movement by the canary", "all releases", float(ok), shown)
    if again is not None:
        slack = _ROUNDING if claim.mu is not None else RELATIVE_ERROR
        ok = again <= claim.epsilon * (1 + slack)
        shown = f"{again:.6g} of the releases, {claim.epsilon:.6g} claimed"
        yield LawResult("recomputed epsilon", "the claim", float(ok), shown)
