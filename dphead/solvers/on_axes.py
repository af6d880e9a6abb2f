"""Run a solver on rows that are projected onto public axes."""

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from dphead.privacy.axes import PublicAxes
from dphead.privacy.contract import Released
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Solver
from dphead.solvers.head import LinearHead

# Let r be the number of rows per class times μ. A fit gets _FEW_AXES axes if r is
# below _FEW, else _MORE_AXES; chosen by single fits (results/axes).
_FEW, _FEW_AXES, _MORE_AXES = 20, 60, 200
# No axes if r / sqrt(columns) is at least this. In the same fits, 200 axes changed the
# balanced accuracy by -1.6 to 1 points there.
_ENOUGH = 1.7
_LEAST_COLUMNS = 4  # columns per axis; chosen


def number_of_axes(facts: ProblemInfo) -> int:
    """Return the number of public axes to use in a fit, or 0 if axes do not help.

    The number follows from public sizes and the budget.
    """
    strength = facts.n_rows / facts.n_classes * facts.mu
    count = _FEW_AXES if strength < _FEW else _MORE_AXES
    enough = strength >= _ENOUGH * math.sqrt(facts.n_features)
    return 0 if enough or facts.n_features < _LEAST_COLUMNS * count else count


@dataclass(frozen=True)
class OnAxes:
    """Wrap a solver of rows on public axes, and store the axes in its head.

    Parameters
    ----------
    solver : Solver
        Solver of a linear head. Its number of features is the number of axes.
    axes : PublicAxes
        The axes.
    made_of : str
        Digest of the public rows. A resume and other processes compare it instead of
        the axes, because the last bits of axes can differ between machines.
    """

    solver: Solver[LinearHead]
    axes: PublicAxes = field(repr=False)
    made_of: str

    @property
    def name(self) -> str:
        """Return the solver's name."""
        return self.solver.name

    def __getattr__(self, name: str) -> Any:
        """Return the solver's other attributes, such as `takes_jax`."""
        if name == "solver":  # a copy has no fields yet
            raise AttributeError(name)
        return getattr(self.solver, name)

    def identity(self, facts: ProblemInfo) -> str:
        """Return text that identifies the solver and the public rows of the axes."""
        inner = getattr(self.solver, "identity", None)
        return repr(self) if inner is None else f"{self.made_of} {inner(facts)}"

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the solver's plan."""
        return self.solver.plan(facts)

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, LinearHead]:
        """Pass the solver's requests on, and return its head with the axes."""
        head = yield from self.solver.solve(facts)
        return replace(head, axes=self.axes)
