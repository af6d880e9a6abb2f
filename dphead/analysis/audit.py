"""Audit a method: real `release`, worst-case canaries, exact scores.

A fit is run many times in two worlds, with a canary and without it. The auditor knows
every row and sees every release. Its score is the log-likelihood ratio of the whole
transcript, which is the best test of the two worlds (Neyman, Pearson). The auditor also
knows the noise of each release and the sample, and tests their distributions
(`audit_laws`). It recomputes the claim from the releases (`audit_accounting`).

Rows must be public or synthetic, because thousands of releases go uncharged.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr
from threadpoolctl import threadpool_limits

from dphead.analysis.audit_accounting import RELATIVE_ERROR, recomputed_epsilon
from dphead.analysis.audit_bounds import Claim, auc_of, statements
from dphead.analysis.audit_laws import (
    Evidence,
    Finding,
    NoiseRecord,
    auc_finding,
    judge,
    needs,
)
from dphead.analysis.audit_rows import Sums, UnrecordedSpec
from dphead.analysis.audit_transcript import (
    Problem,
    Reading,
    Seen,
    Witness,
    log_mixture,
    transcript,
)
from dphead.planning.plan import Plan
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import ReleaseSpec
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import Solver

# Chosen, not measured.
_SIMULATED = 50_000  # simulated perfect attacks on sampled batches, for their AUC
# relative tolerance for the rounding of a sum's unit and of two square roots
_ROUNDING = 1e-9


class Record:
    """Keep what an audit needs of its fits.

    Attributes
    ----------
    scores : (2, fits) float
        Log-likelihood ratios; row 1 is with the canary.
    own : (2, fits) float
        The canary's own mu squared.
    evidence : Evidence
        Noise and samples of all releases.
    share : float
        Largest movement of a sum by the canary, divided by the sensitivity.
    stated : float
        Largest relative error of the standard deviation stated by a release.
    """

    def __init__(self, problems: Sequence[Problem], fits: int) -> None:
        first = problems[0]
        private_n = first.relation == "add_remove"
        common = first.facts.n_rows - (first.copies if private_n else 0)
        self.scores, self.own = np.zeros((2, 2, fits))
        self.evidence = Evidence(common)
        self.share, self.stated = 0.0, 0.0

    def fit(
        self, fit: int, inside: bool, witness: Witness, transcript: Iterator[Seen]
    ) -> None:
        """Read the releases of one fit."""
        self.evidence.begin()
        allocated: list[float] = []
        world, epoch = int(inside), 1
        for seen in transcript:
            spec = seen.spec
            reading = witness.read(seen, inside)
            self.keep(seen, reading, inside)
            self.own[world, fit] += reading.own
            if spec.epoch_steps > 1:
                epoch = spec.epoch_steps
                allocated.append(reading.ratio)
            else:
                self.scores[world, fit] += reading.ratio
        for start in range(0, len(allocated), epoch):
            # a skipped step reveals nothing: its ratio stays 0
            ratios = np.zeros(epoch)
            made = allocated[start : start + epoch]
            ratios[: len(made)] = made
            self.scores[world, fit] += float(logsumexp(ratios)) - math.log(epoch)

    def keep(self, seen: Seen, reading: Reading, inside: bool) -> None:
        """Keep a release's noise and sample."""
        query, spec = seen.query, seen.spec
        sd = reading.sd
        unit = query.unit(spec.clip_norm, seen.params.transform.append)
        kind = (spec.label, query.name)
        shape = reading.noise.shape
        known = self.evidence.noise.get(kind)
        record = known or NoiseRecord(spec.label, shape, query.symmetric, sd / unit)
        number = self.evidence.add(kind, record, reading.noise, reading.along, inside)
        self.share = max(self.share, reading.share)
        self.stated = max(self.stated, abs(seen.released.noise_sd / sd - 1))
        if seen.sample is None:
            return
        prob = spec.sampling_prob / spec.epoch_steps
        has_canary = reading.has_canary if inside else None
        self.evidence.sample(
            kind, prob, spec.epoch_steps, number, seen.sample, has_canary
        )


def scores(
    solver: Solver,
    plan: Plan,
    problems: Sequence[Problem],
    fits: int,
    progress: Callable[[int], None] | None = None,
) -> Record:
    """Run `fits` fits in each of the two worlds, divided among the problems."""
    specs: list[ReleaseSpec] = [UnrecordedSpec(**vars(s)) for s in plan.specs]
    noise = NoiseSource()
    record = Record(problems, fits)
    # starting a thread takes longer than a small product
    small = problems[0].facts.n_features <= 64
    parts = np.array_split(np.arange(fits), len(problems))
    with threadpool_limits(1 if small else None, "blas"):
        for problem, part in zip(problems, parts, strict=True):
            witness = Witness(problem)
            worlds = [Sums(problem.world(inside)) for inside in (False, True)]
            facts = plan.budgeted(problem.facts)
            for k in part:
                for inside, sums in zip((False, True), worlds, strict=True):
                    made = transcript(solver, facts, specs, noise, sums)
                    record.fit(int(k), inside, witness, made)
                if progress is not None:
                    progress(int(k) + 1)
    return record


def claim_of(plan: Plan) -> Claim:
    """Return the claim of a plan."""
    if not plan.private:
        raise ValueError(
            f"an audit needs a private plan, got epsilon={plan.epsilon}. Give a finite "
            "epsilon."
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
        Confidence of the bounds.
    progress : callable, optional
        Called with the number of fits made.

    Returns
    -------
    dict
        The results. "passed" is False if a bound exceeds the claim, a test fails, a row
        moves a sum by more than its sensitivity, or the claim is below the recomputed
        epsilon.

    Notes
    -----
    A sound mechanism fails with probability at most 2 (1 - confidence): half for the
    bounds, half for the tests.
    """
    claim = claim_of(plan)
    # The threshold is fixed before the fits, for the canary's own mu, which one fit
    # determines. That mu is the same in every fit if the canary reaches its clip norms.
    # Otherwise it is an approximation, and the bound stays valid.
    aimed = claim
    if claim.mu is not None:
        own = float(np.sqrt(scores(solver, plan, problems[:1], 1).own[0, 0]))
        aimed = replace(claim, events=(GaussianEvent(1 / max(own, 1e-9)),))
    cut = aimed.threshold(fits, confidence)
    record = scores(solver, plan, problems, fits, progress)
    bounds = statements(record.scores, record.own, claim, cut, confidence)
    laws = _laws(plan, record, confidence)
    return {
        **bounds,
        **laws,
        "canaries_tried": len(problems),
        "false_alarm_odds": {
            "bounds": 1 - confidence,
            "laws": 1 - confidence,
            "all": 2 * (1 - confidence),
        },
        "needs": needs(record.evidence, fits, laws["laws"]["level"]),
        "passed": bounds["passed"] and laws["laws"]["passed"],
    }


def _laws(plan: Plan, record: Record, confidence: float) -> dict[str, Any]:
    """Return the verdict on the tests of distributions."""
    again = recomputed_epsilon(plan.specs, plan.delta, plan.relation)
    findings = [*record.evidence.findings(), _auc(record, plan)]
    findings += _certain(record, plan, again)
    return {"recomputed_epsilon": again, "laws": judge(findings, 1 - confidence)}


def _certain(record: Record, plan: Plan, again: float | None) -> Iterator[Finding]:
    """Yield the findings that involve no chance: p is 0 or 1."""

    def certain(name: str, about: str, ok: bool, shown: str) -> Finding:
        return Finding(name, about, float(ok), shown)

    most = f"{record.share:.6g} of what the noise is for"
    ok = record.share <= 1 + _ROUNDING
    yield certain("distance that the canary moves a sum", "all releases", ok, most)
    off = f"off by {record.stated:.2g} of it"
    ok = record.stated <= _ROUNDING
    yield certain("deviation that a release states", "all releases", ok, off)
    claim = claim_of(plan)
    if again is not None:
        slack = _ROUNDING if claim.mu is not None else RELATIVE_ERROR
        shown = f"{again:.6g} of the releases, {plan.epsilon:.6g} claimed"
        ok = again <= plan.epsilon * (1 + slack)
        yield certain("epsilon computed again", "the claim", ok, shown)
        if claim.mu is not None:
            cap = plan.group_cap or 1
            mu = math.hypot(*(cap / s.noise_multiplier for s in plan.specs))
            ok = abs(claim.mu - mu) <= _ROUNDING * mu
            shown = f"{mu:.6g} of the releases, {claim.mu:.6g} claimed"
            yield certain("mu computed again", "the claim", ok, shown)


def _auc(record: Record, plan: Plan) -> Finding:
    """Compare the AUC with a perfect attack's on canaries of this mu."""
    owns = math.sqrt(record.own.min()), math.sqrt(record.own.max())
    sampled = any(s.sampling_prob < 1 or s.epoch_steps > 1 for s in plan.specs)
    if sampled:
        ends = [_simulated_auc(plan, own) for own in owns]
        # a margin of five standard deviations of a simulation
        ends = [ends[0] - 0.01, ends[1] + 0.01]
    else:
        ends = [float(ndtr(own / math.sqrt(2))) for own in owns]
    sound = f"{ends[0]:.4g} to {ends[1]:.4g}"
    return auc_finding(record.scores, ends[0], ends[1], sound)


def _simulated_auc(plan: Plan, own: float) -> float:
    """Return a perfect attack's AUC on sampled batches, for a canary of this mu."""
    rng = np.random.default_rng(0)
    moved = [
        2 if s.sampling_prob < 1 and s.relation == "replace_one" else 1
        for s in plan.specs
    ]
    steps = [m / s.noise_multiplier for m, s in zip(moved, plan.specs, strict=True)]
    share = own / math.hypot(*steps)
    found = np.zeros((2, _SIMULATED))
    epoch: list[np.ndarray] = []
    for spec, twice, step in zip(plan.specs, moved, steps, strict=True):
        one = share * step / twice
        x = rng.standard_normal((2, _SIMULATED))
        if spec.epoch_steps > 1:
            place = len(epoch)
            if place == 0:
                chosen = rng.integers(0, spec.epoch_steps, _SIMULATED)
            x[1] += one * (chosen == place)
            epoch.append(one * x - one**2 / 2)
            if len(epoch) == spec.epoch_steps:
                found += np.asarray(logsumexp(epoch, axis=0))
                epoch = []
            continue
        present = rng.random((2, _SIMULATED)) < spec.sampling_prob
        x[1] += one * present[1]
        prob = spec.sampling_prob
        if twice == 2:
            x[0] -= one * present[0]
            found -= log_mixture(-one * x, one**2, 1.0, prob)
        found += log_mixture(one * x, one**2, 1.0, prob)
    if epoch:
        missing = np.zeros((plan.specs[-1].epoch_steps - len(epoch), 2, _SIMULATED))
        found += np.asarray(logsumexp([*epoch, *missing], axis=0))
    return auc_of(found)
