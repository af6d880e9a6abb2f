"""Run the fit loop: request, release, respond.

A solver sees only released values.
"""

from collections.abc import Callable
from typing import TypeVar

from dphead.planning.plan import FitPlan
from dphead.privacy.contract import Released, Rows, SumTask
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.solvers.base import Request
from dphead.sums import hosts as processes
from dphead.sums.hosts import Hosts
from dphead.sums.verified import VerifiedSum

_T = TypeVar("_T")
Progress = Callable[[int, int, str], None]


def lead(
    plan: FitPlan[_T],
    rows: Rows,
    charged: Charge,
    noise: NoiseSource,
    summer: VerifiedSum,
    *,
    hosts: Hosts | None = None,
    progress: Progress | None = None,
    done: int = 0,
) -> _T:
    """Run a solver on released values, and return what it returns.

    Parameters
    ----------
    plan : FitPlan
        The charged plan, and its solver.
    rows : Rows
        The training rows.
    charged : Charge
        The charge.
    noise, summer, hosts
        As in `Fit`.
    progress : callable, optional
        Called with (releases made, releases planned, label) after each release.
    done : int, default 0
        Number of releases that the solver does not request again.

    Raises
    ------
    RuntimeError
        If the solver's requests do not follow its plan.
    """

    def released(ask: Request, i: int) -> Released:
        found = release(
            ask.statistic,
            ask.params,
            rows,
            plan.specs[i],
            ledger=charged,
            noise=noise,
            summer=summer,
        )
        if hosts is not None:
            found = hosts.share(found, rows.n_rows)
        if progress is not None:
            progress(i + 1, len(plan.specs), plan.specs[i].label)
        return found

    return _solved(plan, released, done)


def follow(
    plan: FitPlan[_T], rows: Rows, summer: VerifiedSum, hosts: Hosts, done: int = 0
) -> _T:
    """Run a solver on the values that process 0 releases, and return what it returns.

    `summer` sums this process's part of the rows. Process 0 charges, samples and adds
    noise. The other parameters are as in `lead`.
    """

    def released(ask: Request, i: int) -> Released:
        spec = plan.specs[i]
        following = plan.specs[i + 1] if i + 1 < len(plan.specs) else None
        task = SumTask(
            ask.statistic, ask.params, spec.clip_norm, rows, None, spec, following
        )
        return processes.follow(task, summer, hosts)

    return _solved(plan, released, done)


def _solved(
    plan: FitPlan[_T], released: Callable[[Request, int], Released], done: int
) -> _T:
    """Run a solver to its end.

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
