"""Run the fit loop: request, release, respond.

A solver sees only public sizes and released values.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

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
    """Run a solver on released values, and return its result.

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
        If the solver's requests do not follow its plan. Other errors are as in
        `release`.
    """

    def released(asks: list[Request], i: int) -> Iterator[Released]:
        own = summer.one_pass([ask.statistic for ask in asks])
        for number, ask in enumerate(asks, i):
            spec = plan.specs[number]
            found = release(
                ask.statistic,
                ask.params,
                rows,
                spec,
                ledger=charged,
                noise=noise,
                summer=own,
            )
            if hosts is not None:
                found = hosts.share(found, rows.n_rows)
            if progress is not None:
                progress(number + 1, len(plan.specs), spec.label)
            yield found

    return _solved(plan, released, done)


def follow(
    plan: FitPlan[_T], rows: Rows, summer: VerifiedSum, hosts: Hosts, done: int = 0
) -> _T:
    """Run a solver on the values that process 0 releases, and return its result.

    `summer` sums this process's part of the rows. Process 0 charges, samples and adds
    noise. The other parameters are as in `lead`.
    """

    def released(asks: list[Request], i: int) -> Iterator[Released]:
        tasks = [
            SumTask(ask.statistic, ask.params, spec.clip_norm, rows, None, spec)
            for ask, spec in zip(asks, plan.specs[i : i + len(asks)], strict=True)
        ]
        return processes.follow(tasks, summer, hosts)

    return _solved(plan, released, done)


# after the charge, underflows must not raise, whatever the caller's NumPy settings are
@np.errstate(under="ignore")
def _solved(
    plan: FitPlan[_T],
    released: Callable[[list[Request], int], Iterable[Released]],
    done: int,
) -> _T:
    """Run a solver to its end.

    `released` makes the releases of a request, given the number of the first one. The
    first `done` releases were made by an earlier run. Raises RuntimeError unless the
    requests are the plan's releases in their order.
    """
    solver, labels = plan.solver, [spec.label for spec in plan.specs]
    steps = solver.solve(plan.budgeted(plan.facts))
    answer: Any = None
    while True:
        try:
            ask = steps.send(answer)  # the first value must be None
        except StopIteration as stop:
            if done < len(labels):
                raise RuntimeError(
                    f"the solver {solver.name} ended after {done} of the "
                    f"{len(labels)} requests in its plan. Plan only the releases "
                    "that the solver requests."
                ) from stop
            return stop.value
        asks = ask.each()
        asked = [one.label for one in asks]
        if asked != labels[done : done + len(asked)]:
            raise RuntimeError(
                f"the solver {solver.name} requested {', '.join(map(repr, asked))} at "
                f"release {done + 1}, but its plan differs. Request the planned "
                "releases in their order."
            )
        answers = [*released(asks, done)]
        answer = answers if ask.more else answers[0]
        done += len(asks)
