"""What passes between `release`, the rows and the sums: plain data and protocols.

Nothing here may compute anything; `release.py` says in which order these meet.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from dphead.privacy.accounting import RELATIONS, GaussianEvent, event_of
from dphead.privacy.query import Params, Query, check_whole

# whether a pass knows the rows of a block's slots (`Rows.blocks`)
Known = Callable[[np.ndarray], bool]


@dataclass(frozen=True)
class Block:
    """Rows of some slots, padded.

    Blocks of a sample have one shape whatever the sample; that of a full batch may
    follow n. No sum depends on a shape (proofs/exactness.md).
    index: (k,) slots, -1 for padding. x: (k, n_features) float32, or (k, 0) where the
    pass knew the rows. y: (k,) int class positions, or (k, n_classes) int label sets,
    one for a class that is the row's and zero for another; a row with any other number
    counts zero.
    """

    index: np.ndarray
    x: np.ndarray
    y: np.ndarray


class Rows(Protocol):
    """Private rows.

    group_cap: rows beyond so many of a group (`sampling.within_cap`) have no class, so
    that they count zero; None where each row is protected for itself.
    """

    n_rows: int
    n_features: int
    group_cap: int | None

    def blocks(
        self,
        indices: np.ndarray | None = None,
        known: Known | None = None,
    ) -> Iterator[Block]:
        """Yield blocks that together hold each slot (each of `indices`) once.

        The shape of blocks of `indices` must not depend on how many there are.
        known: whether the pass knows the rows of a block's slots, so that their
        features need not be read; a source may read them all the same.
        """
        ...


class GroupedRows(Rows, Protocol):
    """Rows with a cap. within: (n_rows,) bool, `sampling.within_cap` of groups."""

    within: np.ndarray


@dataclass(frozen=True)
class ReleaseSpec:
    """One release, decided before any row is read.

    label: what the solver calls it. query: `Query.name`. clip_norm: R or C; inf only
    where there is no noise. noise_multiplier: noise sd over sensitivity; 0 turns the
    noise off and is recorded as not private. n_rows: public n, or `nominal_n`.
    sampling_prob: 1 for the full batch. relation: the neighbouring relation.
    group_cap: None if a row is the protected unit, else a group is, of which at most so
    many rows count. epoch_steps: of random allocation: each row is used in one of so
    many equal releases in a row, at random; 1 otherwise. private: False if the noise
    protects nobody, as with a seed: such a release is charged as one without noise.
    """

    label: str
    query: str
    clip_norm: float
    noise_multiplier: float
    n_rows: int
    sampling_prob: float = 1.0
    relation: str = "zero_out"
    group_cap: int | None = None
    epoch_steps: int = 1
    private: bool = True

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ValueError(
                f"relation must be one of {RELATIONS}, got relation={self.relation!r}. "
                "Choose one."
            )
        for name in ("label", "query"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name} must be a text, got {name}={getattr(self, name)!r}. "
                    "Name it."
                )
        for name in ("clip_norm", "noise_multiplier", "sampling_prob"):
            value = getattr(self, name)
            whole = type(value) is int and abs(value) <= 2**53
            if not whole and not isinstance(value, float):
                raise ValueError(
                    f"{name} must be a Python float, got {name}={value!r} of "
                    f"{type(value).__name__}. Convert it."
                )
        if not self.clip_norm > 0:
            raise ValueError(
                f"clip_norm must be positive, got clip_norm={self.clip_norm}. "
                "Correct it."
            )
        if not 0 <= self.noise_multiplier < np.inf:
            raise ValueError(
                "noise_multiplier must be finite and >= 0, got "
                f"{self.noise_multiplier=}. Correct it."
            )
        if self.noise_multiplier > 0 and not 1e-6 <= self.clip_norm <= 1e6:
            raise ValueError(
                f"clip_norm must be in [1e-6, 1e6], got clip_norm={self.clip_norm}. "
                "Rescale the features."
            )
        check_whole("n_rows", self.n_rows, 0)
        self.event()  # refuses what cannot be charged
        groups = self.group_cap is not None and self.group_cap > 1
        if groups and self.sampling_prob < 1 and self.relation == "replace_one":
            raise ValueError(
                "groups in Poisson batches need zero_out or add_remove, got "
                f"relation={self.relation!r}. Use full batches."
            )
        if self.epoch_steps > 1 and self.relation == "replace_one":
            raise ValueError(
                "allocated rows need zero_out or add_remove, got "
                f"relation={self.relation!r}. Use Poisson batches."
            )

    def event(self) -> GaussianEvent:
        """What the accountant sees."""
        return event_of(vars(self))

    def row(self) -> dict[str, Any]:
        """Plain data for the ledger and the report.

        epoch_steps of 1 and private=True are left out: releases keep the form that they
        had before.
        """
        row = asdict(self)
        if self.epoch_steps == 1:
            del row["epoch_steps"]
        if self.private:
            del row["private"]
        return row


@dataclass(frozen=True)
class Released:
    """A value that carries noise.

    value: float64, the query's shape. noise_sd: the standard deviation of its noise, of
        each entry; off the diagonal of a symmetric query its root of a half.
    """

    value: np.ndarray
    noise_sd: float


@dataclass(frozen=True, eq=False)
class SumRequest:
    """A sum without noise that `release` wants.

    clip_norm: the spec's, or the public number that stands for inf. indices: increasing
    slots of the sample, None for all of them. following: the release that was reserved
    after this one, if any, so that its sum may be made in the same pass.
    """

    query: Query
    params: Params
    rows: Rows
    spec: ReleaseSpec
    clip_norm: float
    indices: np.ndarray | None = None
    following: ReleaseSpec | None = None


class Summer(Protocol):
    """Adds up a statistic over rows: `dphead.sums.door.Door`.

    Guarantee: none is taken on trust for the noise; a summer that adds wrong numbers
    breaks the sensitivity, which is why `Door` checks it (proofs/sums.md).
    """

    def __call__(self, request: SumRequest) -> np.ndarray:
        """The sum, int64 of `query.shape(width)`, in units of `query.unit`."""
        ...

    def largest_norm(self, request: SumRequest) -> float:
        """The largest norm of a transformed row; asked for only without privacy."""
        ...
