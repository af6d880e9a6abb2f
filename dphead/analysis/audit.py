"""Audit a method by fits on synthetic rows, with and without a worst-case canary.

A fit is run many times in two worlds, with a canary and without it, by the real
`release`. The auditor knows every row and sees every release. Its score is the
log-likelihood ratio of all releases of a fit. This is the most powerful test of the two
worlds (Neyman, Pearson). The auditor also knows the noise of each release and the
sample, and tests their distributions (`audit_laws`). It recomputes the claim from the
releases (`audit_accounting`).

Rows must be synthetic, because thousands of releases go uncharged.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from dphead.analysis.audit_accounting import recomputed_epsilon
from dphead.analysis.audit_bounds import Claim, statements
from dphead.analysis.audit_laws import Evidence, LawResult, judge
from dphead.analysis.audit_places import exact_findings
from dphead.analysis.audit_rows import Sums
from dphead.analysis.audit_transcript import (
    NoiseAlone,
    Problem,
    Seen,
    Witness,
    planned,
    transcript,
    uncharged,
)
from dphead.planning.plan import Plan
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu
from dphead.privacy.noise import NoiseSource
from dphead.privacy.rounding import rounded_up
from dphead.solvers.base import Solver

# relative tolerance of the recomputed epsilon: for sampled batches (tests compare with
# exact values), and for the closed form of full batches
_RELATIVE_ERROR, _ROUNDING = 0.01, 1e-9
# smallest planned deviation of noise, in units of the integer sum. Rounding the noise,
# and undoing it in `_NoiseRecord`, add 1/6 unit**2 to the variance: 0.008 % of a
# deviation of 32 units, which a test finds with about 1e9 draws.
_LEAST_DEVIATION = 32


class _AuditRecord:
    """Record the results of an audit's fits.

    Attributes
    ----------
    scores : (2, fits) float
        Log-likelihood ratios: row 0 without the canary, row 1 with it.
    own : (2, fits) float
        Squared mu of the canary in each fit.
    evidence : Evidence
        Noise and samples of all releases.
    alone : Evidence
        Noise of the releases of `NoiseAlone`.
    share : float
        Largest movement of a sum by the canary, divided by the sensitivity.
    broken : int
        Released entries that are not whole numbers of units.
    """

    def __init__(self, problem: Problem, fits: int) -> None:
        private_n = problem.relation == "add_remove"
        self.scores, self.own = np.zeros((2, 2, fits))
        self.evidence = Evidence(
            problem.facts.n_rows - (problem.copies if private_n else 0)
        )
        self.alone = Evidence(0)
        self.share = 0.0
        self.broken = 0

    def fit(
        self, fit: int, inside: bool, witness: Witness, transcript: Iterator[Seen]
    ) -> None:
        """Record the releases of fit number `fit`."""
        self.evidence.begin()
        allocated: list[float] = []
        world, epoch = int(inside), 1
        for seen in transcript:
            spec = seen.spec
            reading = witness.read(seen, inside)
            self.own[world, fit] += reading.own
            self.share = max(self.share, reading.share)
            self.broken += reading.broken
            if spec.epoch_steps > 1:
                epoch = spec.epoch_steps
                allocated.append(reading.ratio)
            else:
                self.scores[world, fit] += reading.ratio
            self.evidence.add(
                seen.kind,
                reading.noise,
                reading.score,
                inside and reading.has_canary,
                symmetric=seen.statistic.symmetric,
                sd_units=reading.sd,
            )
            if seen.sample is not None:
                prob = spec.sampling_prob / spec.epoch_steps
                has_canary = reading.has_canary if inside else None
                self.evidence.sample(
                    seen.kind, seen.sample, prob, spec.epoch_steps, has_canary
                )
        for start in range(0, len(allocated), epoch):
            # a skipped step reveals nothing: its log-likelihood ratio stays 0
            ratios = np.zeros(epoch)
            made = allocated[start : start + epoch]
            ratios[: len(made)] = made
            self.scores[world, fit] += float(logsumexp(ratios)) - math.log(epoch)

    def noise_alone(self, releases: NoiseAlone, inside: bool) -> None:
        """Record the noise of `releases`, each a noisy sum of no rows."""
        self.alone.begin()
        for seen in releases:
            units, broken = seen.units()
            self.broken += broken
            sd = planned(seen)[1]
            self.alone.add(
                seen.kind,
                units / sd,
                None,
                inside,
                symmetric=seen.statistic.symmetric,
                sd_units=sd,
            )


def _scores(
    solver: Solver,
    plan: Plan,
    problems: Sequence[Problem],
    fits: int,
    kinds: Iterable[Seen] = (),
    progress: Callable[[int], None] | None = None,
) -> _AuditRecord:
    """Return the record of `fits` fits with the canary and as many without it.

    The fits are divided among the problems. After each fit, `NoiseAlone` releases sums
    to which no row contributes, with the noise of the releases `kinds`. The many
    entries of these sums show the distribution of the noise.
    """
    specs, noise = uncharged(plan), NoiseSource()
    alone = NoiseAlone(kinds, noise)
    record = _AuditRecord(problems[0], fits)
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
                    record.noise_alone(alone, inside)
                if progress is not None:
                    progress(int(k) + 1)
    return record


def _claim_of(plan: Plan) -> Claim:
    """Return the claim of a plan.

    Raises ValueError for a plan without privacy.
    """
    if not plan.private:
        raise ValueError(
            f"An audit cannot test epsilon {plan.epsilon}. Use a finite `--epsilon`, "
            "such as 1."
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
        Function that gets the number of finished fits.

    Returns
    -------
    dict
        The results. "passed" is False if a bound exceeds the claim, or if a test fails.
        It is also False if the canary moves a sum by more than its sensitivity, or if
        the claim is below the recomputed epsilon.

    Raises
    ------
    ValueError
        If the plan has no noise, or less than _LEAST_DEVIATION units.

    Notes
    -----
    A correct mechanism fails with probability at most 2 (1 - confidence): half for the
    bounds, half for the tests.
    """
    claim = _claim_of(plan)
    # The threshold is fixed before the fits, for the canary's own mu, which one fit
    # determines. That mu is the same in every fit if the canary reaches its clip norms.
    # Otherwise it is an approximation, and the bound stays valid.
    aimed = claim
    if claim.mu is not None:
        own = float(np.sqrt(_scores(solver, plan, problems[:1], 1).own[0, 0]))
        aimed = replace(claim, events=(GaussianEvent(1 / max(own, 1e-9)),))
    threshold = aimed.best(fits, (1 - confidence) / 2)[0]
    kinds = [kinds_of_fits(solver, plan, problem) for problem in problems]
    least = min(planned(seen)[1] for seen in kinds[0].values())
    if least < _LEAST_DEVIATION:
        raise ValueError(
            f"An audit cannot test noise of {least:.2g} units of the sum, because "
            f"rounding changes its distribution. Type a smaller `--epsilon`, so that "
            f"the noise has at least {_LEAST_DEVIATION} units."
        )
    record = _scores(solver, plan, problems, fits, kinds[0].values(), progress)
    bounds = statements(record.scores, claim, threshold, confidence)
    own = math.sqrt(record.own.mean())
    again = recomputed_epsilon(plan.specs, plan.delta, plan.relation)
    findings = [
        *record.evidence.findings(),
        *record.alone.findings(),
        *exact_findings(problems, kinds, record.share, record.broken),
        *_accounting(claim, again),
    ]
    tests = judge(findings, 1 - confidence)
    return {
        **bounds,
        "canary_mu": own,
        "canary_epsilon": epsilon_from_mu(own, plan.delta) if claim.mu else None,
        "recomputed_epsilon": again,
        "laws": tests,
        "canaries_tried": len(problems),
        "passed": bounds["passed"] and tests["passed"],
    }


def kinds_of_fits(solver: Solver, plan: Plan, problem: Problem) -> dict[Any, Seen]:
    """Return a fit's last release of each kind, by `Seen.kind`.

    The fit has the canary.
    """
    facts, sums = plan.budgeted(problem.facts), Sums(problem.world(True))
    seen = transcript(solver, facts, uncharged(plan), NoiseSource(), sums)
    return {one.kind: one for one in seen}


def _accounting(claim: Claim, again: float | None) -> Iterator[LawResult]:
    """Yield the test of the claim by the recomputed epsilon, unless that is None.

    The p-value is 0 or 1.
    """
    if again is not None:
        slack = _ROUNDING if claim.mu is not None else _RELATIVE_ERROR
        ok = again <= claim.epsilon * (1 + slack)
        claimed = rounded_up(claim.epsilon, 6)
        shown = f"{rounded_up(again, 6)} of the releases, {claimed} claimed"
        yield LawResult("recomputed epsilon", "the claim", float(ok), shown)
