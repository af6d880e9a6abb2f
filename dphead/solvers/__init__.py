"""Solvers ask for releases and post-process them.

They never see rows, keys or the ledger.
"""

from dphead.solvers.auto import Auto
from dphead.solvers.base import Ask, LinearHead, PlannedRelease, PublicFacts, Solver
from dphead.solvers.gradient import DPFC, GradientDescent
from dphead.solvers.least_squares import LeastSquares
from dphead.solvers.newton import Newton
from dphead.solvers.prototypes import Prototypes

__all__ = [
    "DPFC",
    "Ask",
    "Auto",
    "GradientDescent",
    "LeastSquares",
    "LinearHead",
    "Newton",
    "PlannedRelease",
    "Prototypes",
    "PublicFacts",
    "Solver",
]
