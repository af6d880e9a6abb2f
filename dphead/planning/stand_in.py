"""A few public rows in the place of many private ones: the plan of a fit of these,
carried out on those, with as much less noise as the sums are smaller.

Nothing here may plan a fit that is to be private: what it releases was not paid for.
"""

from dataclasses import dataclass, replace

from dphead.planning.plan import Plan
from dphead.solvers.base import Answer, PlannedRelease, PublicFacts, Solver, Steps


@dataclass(frozen=True)
class StandIn:
    """A solver that has n_rows rows, each of which stands for facts.n_rows / n_rows.

    It asks what `solver` asks of facts.n_rows rows, and tells it sums that are as much
    larger, so that steps, ridges and shares of the budget are those of the larger fit.
    facts: of the larger fit, budgeted (`Plan.budgeted`). Those of `plan` and `solve`
    are not looked at.
    """

    solver: Solver
    facts: PublicFacts
    n_rows: int

    @property
    def name(self) -> str:
        """The solver's."""
        return self.solver.name

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The releases of the larger fit; their noise is `on_fewer_rows`'."""
        return self.solver.plan(self.facts)

    def solve(self, facts: PublicFacts) -> Steps:
        """Ask as the larger fit would, and return its head."""
        times = self.facts.n_rows / self.n_rows
        steps = self.solver.solve(self.facts)
        try:
            ask = next(steps)
            while True:
                answer = yield ask
                ask = steps.send(Answer(times * answer.value, times * answer.noise_sd))
        except StopIteration as stop:
            return stop.value


def on_fewer_rows(plan: Plan, n_rows: int) -> Plan:
    """A plan's releases on n_rows rows, with the same noise relative to the sums.

    epsilon and delta stay those of the plan: they are not what its specs cost.
    """
    specs = []
    for spec in plan.specs:
        noise = spec.noise_multiplier * (n_rows / spec.n_rows)
        specs.append(replace(spec, n_rows=n_rows, noise_multiplier=noise))
    return replace(plan, specs=specs)
