"""Solver + public sizes + budget → every release with its noise, before any data is
read.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dphead.planning.calibration import calibrate, epsilon_by, mu_from_epsilon
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import ReleaseSpec
from dphead.privacy.release import noise_scale
from dphead.solvers.base import PlannedRelease, PublicFacts, Solver

# relative: noise that is given may cost so much more than a budget, as the ledger
# allows (`Ledger`); what is charged and reported is computed from the noise
BUDGET_SLACK = 1e-9


@dataclass(frozen=True)
class Target:
    """What a fit is to guarantee, and the accountant that its noise is calibrated by.

    accountant: one of `calibration.ACCOUNTANTS` ("auto": exact for full batches, PLD
    for Poisson ones). group_cap: None protects a row; otherwise a group, of which at
    most so many rows count.
    """

    epsilon: float
    delta: float
    relation: str = "zero_out"
    accountant: str = "auto"
    group_cap: int | None = None

    def budgeted(self, facts: PublicFacts) -> PublicFacts:
        """The facts with this budget and unit, as solvers are given them."""
        moved = 2 if self.relation == "replace_one" else 1
        cap = self.group_cap or 1
        mu = mu_from_epsilon(self.epsilon, self.delta) / (moved * cap)
        return replace(facts, mu=mu, group_cap=cap)

    def cost(self, events: Sequence[GaussianEvent]) -> float:
        """Epsilon of the events at delta, by this accountant."""
        return epsilon_by(self.accountant, events, self.delta, self.relation)

    def scale(
        self, events: Sequence[GaussianEvent], fixed: Collection[int] = ()
    ) -> float:
        """What noise that is not `fixed` (indices) is multiplied by to meet epsilon."""
        return calibrate(
            events, self.epsilon, self.delta, self.relation, self.accountant, fixed
        )


@dataclass(frozen=True, kw_only=True)
class Plan(Target):
    """The releases of one fit, and the target that their noise was calibrated for."""

    specs: list[ReleaseSpec]

    @property
    def private(self) -> bool:
        """Whether every release carries noise that nobody can subtract."""
        return all(s.private and s.noise_multiplier > 0 for s in self.specs)

    def marked(self, private: bool) -> "Plan":
        """Return the plan with every release marked private or not (`ReleaseSpec`)."""
        return replace(self, specs=[replace(s, private=private) for s in self.specs])

    def events(self) -> list[GaussianEvent]:
        """What the accountant sees, equal releases together."""
        return accounting.together(spec.event() for spec in self.specs)

    def epsilon_spent(self) -> float:
        """Epsilon of the plan at delta, by the accountant `auto`; inf without noise."""
        if not self.private:
            return float("inf")
        return accounting.epsilon(self.events(), self.delta, self.relation)

    def digest(self, solver: Solver, feature_space: str, seed: int | None) -> str:
        """Identifies the plan for a resume: the solver's settings, every release, the
        features and the test seed.
        """
        text = json.dumps(
            [
                repr(solver),
                [s.row() for s in self.specs],
                feature_space,
                seed,
                repr(self.epsilon),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def summary(self) -> list[dict[str, Any]]:
        """One row for each kind of release: label, count, query, clip_norm,
        noise_multiplier, sampling_prob, mu.
        """
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for s in self.specs:
            row = s.row()
            key = tuple(row.values())
            mu = (
                (s.group_cap or 1) / s.noise_multiplier
                if s.private and s.noise_multiplier and s.event().is_full
                else None
            )
            rows.setdefault(key, {**row, "count": 0, "mu": mu})["count"] += 1
        return list(rows.values())


def make_plan(
    solver: Solver,
    facts: PublicFacts,
    *,
    epsilon: float,
    delta: float,
    relation: str = "zero_out",
    accountant: str = "auto",
    group_cap: int | None = None,
) -> Plan:
    """Calibrate the solver's releases to (epsilon, delta). epsilon = inf turns noise
    and clipping off.

    accountant, group_cap: as `Target`.
    Raises ValueError for an epsilon or delta outside its range, or if fixed noise alone
    exceeds the budget.
    """
    check_budget(epsilon, delta)
    if group_cap is not None and (type(group_cap) is not int or group_cap < 1):
        raise ValueError(
            "a group must keep a whole number of rows, at least one, got "
            f"{group_cap=}. Use 1 or more."
        )
    target = Target(epsilon, delta, relation, accountant, group_cap)
    wanted = solver.plan(target.budgeted(facts))
    sigmas = [0.0] * len(wanted) if np.isinf(epsilon) else _calibrated(wanted, target)
    specs = [
        ReleaseSpec(
            p.label,
            p.query.name,
            p.clip_norm if sigma else float("inf"),
            sigma,
            facts.n_rows,
            p.sampling_prob,
            relation,
            group_cap,
            p.epoch_steps,
        )
        for p, sigma in zip(wanted, sigmas, strict=True)
    ]
    for p, spec in dict(zip(wanted, specs, strict=True)).items():
        noise_scale(p.query, spec, 0.0)  # refuses what would not fit 64-bit integers
    return Plan(**vars(target), specs=specs)


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ValueError unless epsilon > 0 (inf allowed) and 0 < delta < 1."""
    if not epsilon > 0:
        raise ValueError(
            f"epsilon must be > 0, got {epsilon=}. Use a positive number, or inf for "
            "no privacy."
        )
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must be in (0, 1), got {delta=}. A value well below 1/n is usual."
        )


def check_facts(facts: PublicFacts) -> None:
    """Raise ValueError unless there are at least two classes and as many rows as
    classes.
    """
    n_classes = facts.n_classes
    if n_classes < 2:
        raise ValueError(
            f"a classifier needs at least two classes, got {n_classes} class. Declare "
            "the others."
        )
    if facts.n_rows < n_classes:
        raise ValueError(
            f"there must be a row for each class, got n_samples={facts.n_rows}, "
            f"{n_classes=}. Use more rows."
        )


def large_delta(
    epsilon: float, delta: float, n_rows: int, group_cap: int | None = None
) -> str | None:
    """Return why delta is too large, or None: it lets a mechanism publish a whole unit.

    The unit is a row, or a group with group_cap. The number of groups is private, and
    at most n_rows: a delta below 1/n_rows is below 1/groups too.
    """
    if np.isinf(epsilon) or delta < 1 / n_rows:
        return None
    bound = f"1/n = {1 / n_rows:.3g}"
    if group_cap is not None:
        bound = f"1/groups, so below {bound}, since n rows are n groups at most"
    return f"delta must be below {bound}, got delta={delta:g}."


def check_unit(
    grouped: bool,
    protect: str | None,
    epsilon: float,
    *,
    confirm: str,
    instead: str,
    group_cap: int | None = None,
    thing: str = "image",
) -> list[str]:
    """Groups of rows (people with several of them) are protected, or it is confirmed
    that each row is for itself alone: then that is a warning in the report.

    grouped: whether the source has groups, a public fact of it; no group is looked at.
    protect: "image" confirms. confirm, instead: what to type to confirm it, and to
    protect groups. thing: what a row is called. ValueError where neither is given, or
    both.
    """
    if protect not in (None, "image"):
        raise ValueError(
            f"each {thing} for itself is all that can be confirmed, got {protect=}. "
            f"Use {confirm}, or {instead}."
        )
    if protect is not None and group_cap is not None:
        raise ValueError(
            f"a fit protects groups or each {thing} for itself, got {group_cap=} and "
            f"{protect=}. Leave one out."
        )
    if not grouped or group_cap is not None or np.isinf(epsilon):
        return []
    if protect is None:
        raise ValueError(
            f"a source with groups (people with several {thing}s) needs a decision, "
            f"got none. Use {instead} to protect each group, or {confirm} to protect "
            f"each {thing} for itself alone."
        )
    return [
        (
            f"the source has groups (people with several {thing}s), and each {thing} "
            f"is protected for itself alone, as {confirm} confirms."
        )
    ]


def _calibrated(wanted: list[PlannedRelease], target: Target) -> list[float]:
    """Noise multipliers: proportional to 1/sqrt(weight), except the fixed ones."""
    kinds: dict[tuple[float, float, int, bool], list[int]] = {}
    for i, p in enumerate(wanted):
        fixed = p.noise_multiplier is not None
        relative = (
            p.noise_multiplier
            if p.noise_multiplier is not None
            else 1 / np.sqrt(p.weight)
        )
        kind = (float(relative), p.sampling_prob, p.epoch_steps, fixed)
        kinds.setdefault(kind, []).append(i)
    cap = target.group_cap or 1
    events = [
        GaussianEvent(relative, prob, len(where), cap, steps)
        for (relative, prob, steps, _), where in kinds.items()
    ]
    frozen = [k for k, (*_, fixed) in enumerate(kinds) if fixed]
    if len(frozen) == len(kinds):
        cost = target.cost(events)
        accounting.require(
            cost <= target.epsilon * (1 + BUDGET_SLACK),
            f"its noise costs {cost:.6g}",
            "epsilon",
            target.epsilon,
            "Raise it.",
        )
        return [float(p.noise_multiplier or 0.0) for p in wanted]
    scale = target.scale(events, frozen)
    sigmas = [0.0] * len(wanted)
    for (relative, *_, fixed), where in kinds.items():
        for i in where:
            sigmas[i] = float(relative if fixed else relative * scale)
    return sigmas
