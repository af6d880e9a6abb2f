"""Define the protocol between a solver and the loop in `dphead.fit.loop`.

A solver plans its releases, requests each one, receives its value, and returns a head.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from operator import index
from typing import Any, Protocol, TypeVar

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params, Statistic
from dphead.solvers.head import LinearHead


@dataclass(frozen=True)
class ProblemInfo:
    """Hold the public numbers of a fit before the first release.

    Parameters
    ----------
    n_rows : int
        Public number of rows n, or `nominal_n` under add/remove.
    n_features : int
        Number of features of a row.
    n_classes : int
        Number of classes.
    mu : float, default inf
        GDP parameter μ of the whole budget, for one full-batch sum. `Target.budgeted`
        sets it. inf means no noise.
    group_cap : int, default 1
        Largest number of rows that one protected unit has. `Target.budgeted` sets it.
    group_mean : bool, default False
        Whether rows are means of a unit's rows. `Target.budgeted` sets it.
    """

    n_rows: int
    n_features: int
    n_classes: int
    mu: float = float("inf")
    group_cap: int = 1
    group_mean: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("n_rows", "n_features", "n_classes", "group_cap"):
            # numpy integers wrap on overflow, Python integers do not
            whole = index(getattr(self, name))
            object.__setattr__(self, name, whole)  # the class is frozen


@dataclass(frozen=True)
class PlannedRelease:
    """Describe one release that a solver will request.

    Parameters
    ----------
    label : str
        Name of the release. Each `Request` repeats it.
    statistic : Statistic
        Statistic to release.
    clip_norm : float
        Clip norm of the statistic.
    weight : float, default 1
        Relative share of the budget. The noise multiplier is proportional to
        1/sqrt(weight), so μ² is split by weight when every batch is full.
    sampling_prob : float, default 1
        Sampling rate of Poisson batches; 1 is the full batch.
    noise_multiplier : float, optional
        Fixed noise multiplier. It replaces `weight` and is not calibrated.
    epoch_steps : int, default 1
        Number of steps of an epoch, as in `ReleaseSpec`.
    """

    label: str
    statistic: Statistic
    clip_norm: float
    weight: float = 1.0
    sampling_prob: float = 1.0
    noise_multiplier: float | None = None
    epoch_steps: int = 1


@dataclass(frozen=True, eq=False)
class Request:
    """Request the next planned release, and those in `more`.

    Parameters
    ----------
    label : str
        Label of the planned release.
    statistic : Statistic
        Statistic to release.
    params : Params
        Public numbers and earlier releases that the statistic uses.
    more : tuple of (str, Statistic)
        Labels and statistics of the next planned releases, for a request of several
        (`together`).
    """

    label: str
    statistic: Statistic
    params: Params
    more: tuple[tuple[str, Statistic], ...] = ()

    def each(self) -> list["Request"]:
        """Return one request for each release."""
        asked = (self.label, self.statistic), *self.more
        return [Request(*one, self.params) for one in asked]


def together(
    params: Params, *asked: tuple[str, Statistic]
) -> Generator[Request, Any, list[Released]]:
    """Request several statistics of the same rows, and return the released values.

    Full batches are summed in one pass.

    Parameters
    ----------
    params : Params
        The parameters of all statistics.
    *asked : (str, Statistic)
        Label and statistic of each planned release, in the plan's order. They are
        released one after another, each with its own noise.
    """
    first, *more = asked
    return (yield Request(*first, params, tuple(more)))


def changed(answer: Any, change: Callable[[Released], Released]) -> Any:
    """Return the answer to a request, with `change` applied to each released value."""
    return [*map(change, answer)] if isinstance(answer, list) else change(answer)


_T_co = TypeVar("_T_co", covariant=True)  # what a solver returns: mostly a LinearHead
Steps = Generator[Request, Released, LinearHead]


class Solver(Protocol[_T_co]):
    """Define the protocol of a solver: a name, a plan, and a generator of requests.

    `plan` lists every release before the charge. `solve` yields one `Request` for
    each planned release, or for several (`together`), in the same order, and returns
    the head.
    """

    @property
    def name(self) -> str:
        """Return the solver's name in the ledger and the report."""
        ...

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the planned releases, in order."""
        ...

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, _T_co]:
        """Request each planned release, and return the head."""
        ...


# Upper bounds on the float64 arrays that a solver holds at once: chosen, and tested.
# arrays of the weights' shape: iterates, their mean, moments, gradients
_WEIGHT_ARRAYS = 8
# arrays of the Gram matrix's shape, besides the matrix: for `ErrorBars`, and for a
# Cholesky factor if the matrix is too wide for eigenvalues
_GRAM_ARRAYS, _WIDE_GRAM_ARRAYS = 5, 3
_WIDEST_EIGENVALUES = 4096  # columns; wider matrices are not shrunk (`LeastSquares`)


def solving_bytes(facts: ProblemInfo, by_gram: bool) -> tuple[int, int]:
    """Return upper bounds on the memory of this package's solvers, in bytes.

    The first one is for copies of the weights, during the whole fit. The second one is
    for the factors or eigenvectors of a Gram matrix at the end, or 0 without `by_gram`.
    """
    width = facts.n_features + 1
    wide = width > _WIDEST_EIGENVALUES
    grams = (_WIDE_GRAM_ARRAYS if wide else _GRAM_ARRAYS) * width**2
    return 8 * _WEIGHT_ARRAYS * width * facts.n_classes, 8 * grams * by_gram
