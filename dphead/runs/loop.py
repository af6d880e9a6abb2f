"""The one loop: ask, release, tell. No solver may be told what was not released."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dphead.planning.plan import Plan
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import Ledger
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.reserved import FitLedger
from dphead.runs.ledgers import charging
from dphead.runs.memory import DEFAULT_BYTES
from dphead.solvers.base import Answer, Ask, PublicFacts, Solver, Steps
from dphead.solvers.head import LinearHead
from dphead.sums.cpu import CpuSums
from dphead.sums.door import Door

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Planned:
    """What will be charged, and how its rows are summed: tried on hostile rows."""

    solver: Solver
    plan: Plan
    summer: Door


@dataclass(frozen=True)
class Run:
    """How one fit is carried out; what it releases and at what price is its plan's.

    ledger: the data set's ledger; None counts this fit alone, in memory.
    charged: a fit of the plan that is already reserved (by `reserve`, or a resume), in
        its own ledger; None reserves the plan in `ledger`, once the sums were tried.
    noise: where noise and Poisson samples come from; the default is private.
    summer: how rows are summed; None is this host's processor, with up to 2 GB of
        integer rows kept between passes. One with `KeptSums` serves several fits
        without centring on the same rows: further DP-LS fits read no row.
    progress: is told (releases made, releases planned, label) after each release.
    done: releases that an earlier run made and that the solver starts after, from its
        own checkpoint.
    """

    ledger: Ledger | None = None
    charged: FitLedger | None = None
    noise: NoiseSource = field(default_factory=NoiseSource)
    summer: Door | None = None
    progress: Progress | None = None
    done: int = 0


@dataclass(frozen=True)
class FitResult:
    """A head, the plan that was carried out, and how it went.

    seconds: wall time of the releases and the solver.
    """

    head: LinearHead
    plan: Plan
    ledger: Ledger
    fit_id: str
    private_noise: bool
    seconds: float


def fit_head(
    solver: Solver,
    rows: Rows | Sequence[Rows],
    facts: PublicFacts,
    plan: Plan,
    run: Run | None = None,
) -> FitResult:
    """Charge the whole plan, then run the solver on released values.

    rows: or several networks' features of the same rows, slot for slot, for a solver
    that asks of several sources: that they are of the same is the caller's to hold.
    facts, plan: the solver's, by `make_plan(solver, facts, ...)`. run: how; None is a
    private fit, counted alone.
    Raises ValueError before anything is read or charged when the ledger's budget does
    not allow the plan, RuntimeError before the same when the sums are wrong.
    """
    run = run or Run()
    charged, noise = run.charged, run.noise
    summer = run.summer or Door(CpuSums(), memory=DEFAULT_BYTES)
    sources = rows if isinstance(rows, Sequence) else (rows,)
    if charged is None:
        for source, own in zip(sources, facts_of(solver, facts), strict=True):
            check_fit(summer, solver, source, plan, own)
        charged = reserve(solver, plan, run.ledger or Ledger(), seed=noise.seed)
    specs = (plan if noise.seed is None else plan.marked(private=False)).specs
    start = time.perf_counter()
    steps = solver.solve(plan.budgeted(facts))
    answer: Answer | None = None
    for i in range(run.done, len(specs)):
        spec = specs[i]
        ask = _next_ask(steps, answer, plan, i)
        released = release(
            ask.query,
            ask.params,
            sources[ask.source],
            spec,
            ledger=charged,
            noise=noise,
            summer=summer,
        )
        answer = Answer(released.value, released.noise_sd)
        if run.progress is not None:
            run.progress(i + 1, len(plan.specs), spec.label)
    head = _head(steps, answer, len(plan.specs))
    seconds = time.perf_counter() - start
    return FitResult(head, plan, charged.ledger, charged.fit_id, noise.private, seconds)


def facts_of(solver: Solver, facts: PublicFacts) -> list[PublicFacts]:
    """The public facts of each source of rows that a solver asks of."""
    widths = getattr(solver, "widths", (facts.n_features,))
    return [replace(facts, n_features=width) for width in widths]


def _next_ask(steps: Steps, answer: Answer | None, plan: Plan, i: int) -> Ask:
    """What the solver asks for, told the answer to what it asked before (None: nothing
    yet). RuntimeError unless that is the plan's release i.
    """
    try:
        ask = steps.send(answer)  # type: ignore[arg-type] - None begins a generator
    except StopIteration as stop:
        raise RuntimeError(
            f"a solver must ask for all its plan, got {i} of {len(plan.specs)} asks."
        ) from stop
    if ask.label != plan.specs[i].label:
        raise _unplanned(ask, i)
    return ask


def _head(steps: Steps, answer: Answer | None, n_releases: int) -> LinearHead:
    """What the solver makes of the last answer. RuntimeError if it asks for more."""
    try:
        ask = steps.send(answer)  # type: ignore[arg-type] - None begins a generator
    except StopIteration as stop:
        return stop.value
    raise _unplanned(ask, n_releases)


def _unplanned(ask: Ask, i: int) -> RuntimeError:
    return RuntimeError(
        f"a solver must ask for its plan, got label={ask.label!r} at release {i}."
    )


def check_fit(
    door: Door, solver: Solver, rows: Rows, plan: Plan, facts: PublicFacts
) -> None:
    """What a fit's rows and sums must meet before the charge.

    ValueError unless the rows have the public sizes that were planned with; under
    add_remove their number is private, and is not looked at. Then, for rows that hold
    label sets, as `check_takes_sets`, and as `check_sums`.
    """
    n_rows = facts.n_rows if plan.relation == "add_remove" else rows.n_rows
    found = (n_rows, rows.n_features, rows.group_cap)
    planned = (facts.n_rows, facts.n_features, plan.group_cap)
    if found != planned:
        raise ValueError(
            "rows must have the planned number, features and cap on groups, got "
            f"(n_rows, n_features, group_cap)={found}. The plan says {planned}."
        )
    if getattr(rows, "has_sets", False):
        check_takes_sets(solver, plan.budgeted(facts))
    check_sums(door, solver, plan, facts)


def check_takes_sets(solver: Solver, facts: PublicFacts) -> None:
    """ValueError unless each release's statistic takes label sets."""
    for planned in solver.plan(facts):
        if not planned.query.takes_sets:
            raise ValueError(
                "rows with several classes need releases that take label sets, got "
                f"{planned.query.name} of method={solver.name!r}. Use auto, dp-sgd, "
                "dp-adam, dp-fc or dp-newton, with the sigmoid loss."
            )


def door_for(solver: Solver, plan: Plan, facts: PublicFacts) -> Door:
    """How a fit's rows are summed on this host, tried on hostile rows: to be called
    before the charge.
    """
    door = Door(CpuSums(), memory=DEFAULT_BYTES)
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
    fit_id: str | None = None,
) -> FitLedger:
    """Charge every release of the plan in the ledger, or raise `LedgerError` with
    nothing charged. fit_id, store: as `Ledger.reserve`. A fit with a seed is charged as
    not private, so that a ledger with a budget refuses it. So does a budget in another
    ledger on the same images (`charging`).
    """
    charged = plan if seed is None else plan.marked(private=False)
    with charging(ledger):
        return ledger.reserve(
            [s.row() for s in charged.specs],
            epsilon=plan.epsilon if charged.private else math.inf,
            delta=plan.delta,
            relation=plan.relation,
            description=(description or solver.name)
            + ("" if seed is None else f" (seed {seed}: not private)"),
            plan_hash=plan.digest(solver, feature_space, seed),
            store=store,
            fit_id=fit_id,
        )
