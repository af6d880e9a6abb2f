"""Define the solvers, which request releases and post-process them.

A solver must never see rows, keys or the ledger.
"""

from dphead.solvers.auto import Auto
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Solver
from dphead.solvers.feature_covariance import DPFC
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.head import LinearHead
from dphead.solvers.least_squares import LeastSquares
from dphead.solvers.newton import Newton
from dphead.solvers.prototypes import Prototypes

__all__ = [
    "DPFC",
    "Auto",
    "GradientDescent",
    "LeastSquares",
    "LinearHead",
    "Newton",
    "PlannedRelease",
    "ProblemInfo",
    "Prototypes",
    "Request",
    "Solver",
]
