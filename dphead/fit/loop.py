"""Run the fit loop: request, release, respond.

A solver sees only released values.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dphead.fit.duration import (
    LONG_SECONDS,
    check_duration,
    missing_kernels,
    time_in_words,
)
from dphead.fit.ledgers import charging
from dphead.fit.memory import share
from dphead.planning.plan import FitPlan
from dphead.privacy.contract import Released, Rows, SumTask
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.solvers.base import ProblemInfo, Request, Solver
from dphead.solvers.head import LinearHead
from dphead.sums.cpu import CpuSums
from dphead.sums.hosts import Hosts, follow
from dphead.sums.verified import VerifiedSum

ReleaseProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Run:
    """Describe how one fit is carried out. Its plan decides the releases.

    Attributes
    ----------
    ledger : Ledger or None
        The data set's ledger; None uses a ledger in memory for this fit only.
    charged : Charge or None
        An existing charge for the plan, from `reserve` or a resume. None charges the
        plan in `ledger` after the sums were verified.
    noise : NoiseSource
        Source of noise and Poisson samples; private by default.
    summer : VerifiedSum or None
        The verified sum. None uses this host's processor and keeps up to 2 GB of
        integer rows between passes. A sum with `KeptSums` serves several uncentered
        fits on the same rows: only the first DP-LS fit reads rows.
    progress : callable or None
        Called with (releases made, releases planned, label) after each release.
    done : int
        Number of releases made by an earlier run. The solver continues after them from
        its checkpoint.
    hosts : Hosts or None
        The processes that hold the rows; None if this process holds all.
    """

    ledger: Ledger | None = None
    charged: Charge | None = None
    noise: NoiseSource = field(default_factory=NoiseSource)
    summer: VerifiedSum | None = None
    progress: ReleaseProgress | None = None
    done: int = 0
    hosts: Hosts | None = None


@dataclass(frozen=True)
class FitResult:
    """Hold a head, its plan, and how the fit went.

    `seconds` is the wall time of the releases and the solver, without the charge.
    """

    head: LinearHead
    plan: FitPlan
    ledger: Ledger
    fit_id: str
    private_noise: bool
    seconds: float


def fit_head(plan: FitPlan, rows: Rows, run: Run | None = None) -> FitResult:
    """Charge the whole plan, then run the solver on released values.

    Parameters
    ----------
    plan : FitPlan
        The plan from `make_plan`, with its solver.
    rows : Rows
        The training rows.
    run : Run, optional
        How the fit is carried out. Default: a private fit with its own ledger.

    Returns
    -------
    FitResult
        The head and its charge.

    Raises
    ------
    ValueError
        If the rows do not have the planned sizes, or the budget does not allow the
        plan. Raised before rows are read or anything is charged.
    RuntimeError
        If the sums are wrong on hostile rows (raised before the charge), or if the
        solver's requests do not follow its plan.

    Notes
    -----
    With `run.charged`, the checks of `check_fit` are skipped. The caller must make them
    before the charge.
    """
    run = run or Run()
    charged, noise = run.charged, run.noise
    summer = run.summer or _verified_sum(plan)
    if charged is None:
        check_fit(summer, plan, rows)
        charged = reserve(plan, run.ledger or Ledger(), seed=noise.seed)
    specs = (plan if noise.seed is None else plan.marked(private=False)).specs

    def released(ask: Request, i: int) -> Released:
        found = release(
            ask.statistic,
            ask.params,
            rows,
            specs[i],
            ledger=charged,
            noise=noise,
            summer=summer,
        )
        if run.hosts is not None:
            found = run.hosts.share(found, rows.n_rows)
        if run.progress is not None:
            run.progress(i + 1, len(specs), specs[i].label)
        return found

    start = time.perf_counter()
    head = _solved(plan, released, run.done)
    seconds = time.perf_counter() - start
    return FitResult(head, plan, charged.ledger, charged.fit_id, noise.private, seconds)


def follow_fit(
    plan: FitPlan,
    rows: Rows,
    summer: VerifiedSum,
    hosts: Hosts,
    seed: int | None = None,
    done: int = 0,
) -> LinearHead:
    """Run the solver on the values released by process 0, and return the same head.

    `summer` sums this process's part of the rows. Process 0 charges, samples and adds
    noise. `done` is as in `Run`.
    """
    specs = (plan if seed is None else plan.marked(private=False)).specs

    def released(ask: Request, i: int) -> Released:
        spec = specs[i]
        following = specs[i + 1] if i + 1 < len(specs) else None
        clip_norm = spec.clip_norm
        task = SumTask(
            ask.statistic, ask.params, clip_norm, rows, None, spec, following
        )
        return follow(task, summer, hosts)

    return _solved(plan, released, done)


def _solved(
    plan: FitPlan, released: Callable[[Request, int], Released], done: int = 0
) -> LinearHead:
    """Run a solver to its end and return its head.

    `released` returns the value for a request, given the number of its release. The
    first `done` releases were made by an earlier run. Raises RuntimeError unless the
    requests are the plan's releases in their order.
    """
    solver, labels = plan.solver, [spec.label for spec in plan.specs]
    steps = solver.solve(plan.budgeted(plan.facts))
    answer: Released | None = None
    while True:
        try:
            ask = steps.send(answer)  # type: ignore[arg-type] - None begins a generator
        except StopIteration as stop:
            if done < len(labels):
                raise RuntimeError(
                    f"the solver {solver.name} ended after {done} of the "
                    f"{len(labels)} requests in its plan. Plan only the releases "
                    "that the solver requests."
                ) from stop
            return stop.value
        if ask.label not in labels[done : done + 1]:
            raise RuntimeError(
                f"the solver {solver.name} requested {ask.label!r}, which is not "
                f"release {done} of its plan. Request the planned releases in "
                "their order."
            )
        answer = released(ask, done)
        done += 1


def check_fit(verified: VerifiedSum, plan: FitPlan, rows: Rows) -> None:
    """Check a fit's rows and its sums before the charge.

    Under add_remove the number of rows is private and not compared.

    Raises
    ------
    ValueError
        If the rows do not have the plan's sizes, or have label sets that a release does
        not support (`check_takes_sets`).
    RuntimeError
        If the sums are wrong on hostile rows (`check_sums`).
    """
    facts = plan.facts
    n_rows = facts.n_rows if plan.relation == "add_remove" else rows.n_rows
    found = (n_rows, rows.n_features, rows.group_cap)
    planned = (facts.n_rows, facts.n_features, plan.group_cap)
    if found != planned:
        raise ValueError(
            "rows must have the plan's n_rows, n_features and group_cap "
            f"{planned}, got {found}. Make a plan with the sizes of these rows."
        )
    if getattr(rows, "has_sets", False):
        check_takes_sets(plan.solver, plan.budgeted(facts))
    _check_time_and_sums(verified, plan)


def check_takes_sets(solver: Solver, facts: ProblemInfo) -> None:
    """Raise ValueError unless each release's statistic supports label sets."""
    for planned in solver.plan(facts):
        if not planned.statistic.takes_sets:
            raise ValueError(
                "rows with several classes need statistics that support label sets, "
                f"got {planned.statistic.name} of method {solver.name!r}. Use auto, "
                "dp-sgd, dp-adam, dp-fc or dp-newton, with the sigmoid loss."
            )


def verified_sum_for(plan: FitPlan) -> VerifiedSum:
    """Return this host's verified sum for a fit, checked on hostile rows.

    Call this before the charge, so that a failed check spends no budget.
    """
    verified = _verified_sum(plan)
    _check_time_and_sums(verified, plan)
    return verified


def _verified_sum(plan: FitPlan) -> VerifiedSum:
    """Return a verified sum for rows in memory.

    Raises ValueError if the fit does not fit in this machine's memory.
    """
    # the plan's number of rows: under add/remove it is public
    room = share(None, plan.facts, plan.releases, n_rows=plan.facts.n_rows)
    return VerifiedSum(CpuSums(), memory=room.kept)


def _check_time_and_sums(verified: VerifiedSum, plan: FitPlan) -> None:
    """Check the duration of a fit, and its sums on hostile rows, before the charge.

    Warn if the fit takes long, or if compiled kernels are missing. Raise ValueError if
    it takes hours (`duration`), and RuntimeError if a sum is wrong.
    """
    seconds = check_duration(plan.releases, plan.facts, plan.solver.name)
    if seconds > LONG_SECONDS:
        took = time_in_words(seconds)
        warnings.warn(f"This fit takes about {took} on this machine.", stacklevel=2)
    if warning := missing_kernels(seconds):
        warnings.warn(warning, stacklevel=2)
    check_sums(verified, plan)


def check_sums(verified: VerifiedSum, plan: FitPlan) -> None:
    """Raise RuntimeError unless the plan's sums are right on hostile rows."""
    verified.check((r.statistic for r in plan.releases), plan.facts.n_features)


def reserve(
    plan: FitPlan,
    ledger: Ledger,
    *,
    feature_space: str = "",
    seed: int | None = None,
    not_private: bool = False,
    store: Path | None = None,
    description: str | None = None,
    fit_id: str | None = None,
) -> Charge:
    """Charge every release of the plan in the ledger.

    Parameters
    ----------
    plan : FitPlan
        The plan to charge.
    ledger : Ledger
        The ledger to charge.
    feature_space : str, default ""
        Description of the features; a resume must find the same.
    seed : int, optional
        Seed of the noise. A seeded fit is charged as not private, so a ledger with a
        budget refuses it.
    not_private : bool, default False
        Whether a fit with a seed or without noise may be charged to any ledger. By
        default, only to one in memory without private fits.
    store : Path, optional
        As for `Ledger.reserve`.
    description : str, optional
        Text for the ledger. Default: the solver's name.
    fit_id : str, optional
        As for `Ledger.reserve`.

    Returns
    -------
    Charge
        The charge.

    Raises
    ------
    LedgerError
        If the ledger refuses the plan, or another ledger on the same images has a
        budget (`charging`). If the fit has no guarantee and the ledger is not its own.
        In these cases, no release is charged.
    """
    charged = plan if seed is None else plan.marked(private=False)
    if not (charged.private or not_private):
        _check_own(ledger, seed)
    with charging(ledger):
        return ledger.reserve(
            [s.row() for s in charged.specs],
            epsilon=plan.epsilon if charged.private else math.inf,
            delta=plan.delta,
            relation=plan.relation,
            description=(description or plan.solver.name)
            + ("" if seed is None else f" (seed {seed}: not private)"),
            plan_hash=plan.digest(feature_space, seed),
            store=store,
            fit_id=fit_id,
        )


def _check_own(ledger: Ledger, seed: int | None) -> None:
    """Raise LedgerError if a fit without a guarantee would spoil the total of others.

    Its epsilon is infinite, and no charge can be undone.
    """
    if ledger.path == IN_MEMORY and not any(
        event.noise_multiplier for event in ledger.events()
    ):
        return
    reason = "A fit without noise (epsilon inf) has no guarantee"
    todo = "Use a finite epsilon"
    if seed is not None:
        reason = f"The seed {seed} makes the noise known, so the fit has no guarantee"
        todo = "Drop the seed (`random_state=None`)"
    raise LedgerError(
        f"{reason}. It would make the total of the ledger {ledger.path} infinite from "
        f'then on. {todo}, or use a ledger of its own (`ledger=":memory:"`).'
    )
