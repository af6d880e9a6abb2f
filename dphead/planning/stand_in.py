"""Run the plan of a large private fit on a few public rows.

Noise is scaled down in proportion to the smaller sums. Never use this module for a
private fit, because its releases are not charged.
"""

from dataclasses import dataclass, replace

from dphead.planning.plan import FitPlan
from dphead.privacy.contract import Released
from dphead.solvers.base import PlannedRelease, ProblemInfo, Solver, Steps, changed


@dataclass(frozen=True)
class _StandIn:
    """Run a solver on n_rows rows as if there were facts.n_rows rows.

    Each row stands for facts.n_rows / n_rows rows. The stand-in repeats the requests of
    `solver` for facts.n_rows rows, and scales the answers up. Steps, ridges and budget
    shares are therefore the same as in the larger fit.

    Parameters
    ----------
    solver : Solver
        Solver of the larger fit.
    facts : ProblemInfo
        Public sizes of the larger fit, with its budget (`Target.budgeted`). `plan` and
        `solve` ignore their argument.
    n_rows : int
        Number of rows of the small fit.
    """

    solver: Solver
    facts: ProblemInfo
    n_rows: int

    @property
    def name(self) -> str:
        """Return the solver's name."""
        return self.solver.name

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the larger fit's releases. `on_fewer_rows` sets their noise."""
        return self.solver.plan(self.facts)

    def solve(self, facts: ProblemInfo) -> Steps:
        """Yield the larger fit's requests, and return its head."""
        times = self.facts.n_rows / self.n_rows

        def scaled(one: Released) -> Released:
            return Released(times * one.value, times * one.noise_sd)

        steps = self.solver.solve(self.facts)
        try:
            ask = next(steps)
            while True:
                answer = yield ask
                ask = steps.send(changed(answer, scaled))
        except StopIteration as stop:
            return stop.value


def on_fewer_rows(plan: FitPlan, n_rows: int) -> FitPlan:
    """Return a plan on n_rows rows, with the same noise relative to the sums.

    Its solver is a stand-in for the plan's solver. epsilon and delta keep the values of
    the larger plan, although the new releases spend more.
    """
    specs = []
    for spec in plan.specs:
        noise = spec.noise_multiplier * (n_rows / spec.n_rows)
        specs.append(replace(spec, n_rows=n_rows, noise_multiplier=noise))
    solver = _StandIn(plan.solver, plan.budgeted(plan.facts), n_rows)
    facts = replace(plan.facts, n_rows=n_rows)
    return replace(plan, specs=specs, solver=solver, facts=facts)
