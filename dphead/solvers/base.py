"""The protocol between a solver and the one loop in `dphead.runs.loop`: plan, ask, be
told, return a head.
"""

from collections.abc import Generator
from dataclasses import dataclass
from operator import index
from typing import Protocol

import numpy as np

from dphead.privacy.query import Params, Query
from dphead.solvers.head import LinearHead


@dataclass(frozen=True)
class PublicFacts:
    """What a solver knows before anything is released.

    n_rows: public n, or nominal_n under add/remove.

    mu: a row's share of one full-batch sum over the noise, if that sum took the whole
    budget (`Plan.budgeted` sets it); inf without privacy.

    group_cap: how many rows a protected unit has at most (`Plan.budgeted` too).
    """

    n_rows: int
    n_features: int
    n_classes: int
    mu: float = float("inf")
    group_cap: int = 1

    def __post_init__(self) -> None:
        for name in ("n_rows", "n_features", "n_classes", "group_cap"):
            whole = index(getattr(self, name))  # numpy's integers come round: Python's
            object.__setattr__(self, name, whole)  # the class is frozen


@dataclass(frozen=True)
class PlannedRelease:
    """One release that a solver will ask for.

    weight: its share of the budget: noise_multiplier is proportional to 1/sqrt(weight),
    so that mu² is split by weight when every batch is full. noise_multiplier: given
    instead of a weight, it is fixed and not calibrated. epoch_steps: as `ReleaseSpec`.
    """

    label: str
    query: Query
    clip_norm: float
    weight: float = 1.0
    sampling_prob: float = 1.0
    noise_multiplier: float | None = None
    epoch_steps: int = 1


@dataclass(frozen=True, eq=False)
class Ask:
    """The next planned release, and what its statistic depends on.

    source: of which rows, where a fit has several networks' features of the same ones.
    """

    label: str
    query: Query
    params: Params
    source: int = 0


@dataclass(frozen=True, eq=False)
class Answer:
    """What was released.

    value: float64; noise_sd: standard deviation of each entry's noise (0 without
    privacy).
    """

    value: np.ndarray
    noise_sd: float


Steps = Generator[Ask, Answer, LinearHead]


class Solver(Protocol):
    """plan: every release, before any data.

    solve: a generator that yields each `Ask` in that order.
    """

    @property
    def name(self) -> str:
        """What the ledger and the report call it."""
        ...

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The releases, in order."""
        ...

    def solve(self, facts: PublicFacts) -> Steps:
        """Ask for each planned release, and return the head."""
        ...


# float64 arrays that a solver holds at once, at most: chosen, and tests hold the bound
WEIGHT_ARRAYS = 8  # of the weights' shape: iterates, their mean, moments, gradients
GRAM_ARRAYS = 6  # of a Gram matrix's: as many as `ErrorBars` makes


def solving_bytes(facts: PublicFacts, by_gram: bool) -> int:
    """Bytes that the solvers of this folder work in: weights and their copies, and with
    a Gram matrix its factors, or its eigenvectors.
    """
    width = facts.n_features + 1
    weights = WEIGHT_ARRAYS * width * facts.n_classes
    return 8 * (weights + GRAM_ARRAYS * width**2 * by_gram)
