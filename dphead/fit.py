"""The one loop: ask, release, tell."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dphead.plan import Plan, make_plan
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import FitLedger, Ledger, LedgerError
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.solvers.base import Answer, LinearHead, PublicFacts, Solver
from dphead.sums.cpu import CpuSums
from dphead.sums.door import Door

KEEP = 2 << 30  # bytes of integer rows kept between passes
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class FitResult:
    """A head, the plan that was carried out, and how it went. seconds: wall time of the releases and the solver."""

    head: LinearHead
    plan: Plan
    ledger: Ledger
    fit_id: str
    private_noise: bool
    seconds: float


def fit_head(
    solver: Solver,
    rows: Rows,
    facts: PublicFacts,
    *,
    plan: Plan | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    relation: str = "zero_out",
    accountant: str = "auto",
    ledger: Ledger | None = None,
    charged: FitLedger | None = None,
    noise: NoiseSource | None = None,
    progress: Progress | None = None,
    summer: Door | None = None,
    done: int = 0,
) -> FitResult:
    """Charge the whole plan, then run the solver on released values.

    plan: from `make_plan`, or None to make it from epsilon, delta, relation and accountant.
    summer: how rows are summed; None is this host's processor, with up to 2 GB of integer rows kept between passes.
    One with `KeptSums` serves several fits without centring on the same rows: further DP-LS fits read no row.
    ledger: the data set's ledger; None counts this fit alone, in memory. charged: a fit already reserved (a resume).
    done: releases that an earlier run made and that the solver starts after, from its own checkpoint.
    Raises ValueError before anything is read or charged when the budget does not allow the plan.
    """
    plan = plan or make_plan(solver, facts, epsilon=epsilon, delta=delta, relation=relation, accountant=accountant)
    noise, summer = noise or NoiseSource(), summer or Door(CpuSums(memory=KEEP))
    if charged is None:
        check_rows(rows, plan, facts)
        check_sums(summer, solver, plan, facts)
        charged = reserve(solver, plan, ledger or Ledger(), seed=noise.seed)
    start = time.perf_counter()
    steps = solver.solve(plan.budgeted(facts))
    answer = None
    for i, spec in enumerate([*plan.specs[done:], None], start=done):
        try:
            ask = steps.send(answer) if answer is not None else next(steps)
        except StopIteration as stop:
            if spec is not None:
                raise RuntimeError(f"a solver must ask for all its plan, got {i} of {len(plan.specs)} asks.") from stop
            seconds = time.perf_counter() - start
            return FitResult(stop.value, plan, charged.ledger, charged.fit_id, noise.private, seconds)
        if spec is None or ask.label != spec.label:
            raise RuntimeError(f"a solver must ask for its plan, got label={ask.label!r} at release {i}.")
        released = release(
            ask.query, ask.params, rows, spec,
            ledger=charged, noise=noise, summer=summer,
        )  # fmt: skip
        answer = Answer(released.value, released.noise_sd)
        if progress is not None:
            progress(i + 1, len(plan.specs), spec.label)
    raise AssertionError("unreachable")


def check_rows(rows: Rows, plan: Plan, facts: PublicFacts) -> None:
    """ValueError unless the rows have the public sizes that were planned with.

    Under add_remove their number is private, and is not looked at.
    """
    n_rows = facts.n_rows if plan.relation == "add_remove" else rows.n_rows
    found = (n_rows, rows.n_features, rows.group_cap)
    planned = (facts.n_rows, facts.n_features, plan.group_cap)
    if found != planned:
        raise ValueError(
            "rows must have the planned number, features and cap on groups, got "
            f"(n_rows, n_features, group_cap)={found}. The plan says {planned}."
        )


def door_for(solver: Solver, plan: Plan, facts: PublicFacts) -> Door:
    """How a fit's rows are summed on this host, tried on hostile rows: to be called before the charge."""
    door = Door(CpuSums(memory=KEEP))
    check_sums(door, solver, plan, facts)
    return door


def check_sums(door: Door, solver: Solver, plan: Plan, facts: PublicFacts) -> None:
    """RuntimeError unless the sums of the plan's queries are right on hostile rows."""
    door.check((r.query for r in solver.plan(plan.budgeted(facts))), facts.n_features)


def reserve(
    solver: Solver,
    plan: Plan,
    ledger: Ledger,
    *,
    feature_space: str = "",
    seed: int | None = None,
    store: Path | None = None,
    description: str | None = None,
) -> FitLedger:
    """Charge every release of the plan in the ledger, or raise `LedgerError` with nothing charged."""
    if seed is not None and ledger.budget() is not None:
        raise LedgerError(f"a ledger with a budget takes private fits only, got {seed=}. Use no seed, or no budget.")
    return ledger.reserve(
        [s.row() for s in plan.specs],
        epsilon=plan.epsilon,
        delta=plan.delta,
        relation=plan.relation,
        description=(description or solver.name) + ("" if seed is None else f" (seed {seed}: not private)"),
        plan_hash=plan.digest(solver, feature_space, seed),
        store=store,
    )
