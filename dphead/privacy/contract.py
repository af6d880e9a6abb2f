"""Define the data and protocols shared by `release`, the rows and the sums.

Code here must not compute anything from a row. `release.py` shows how these types are
used.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dphead.privacy.accounting import GaussianEvent, check, event_of, require
from dphead.privacy.accounting.events import check_pair
from dphead.privacy.predictions import IntegerWeights, integer_weights
from dphead.privacy.statistic_base import Params, Statistic, check_whole

# Function that returns whether a pass already has a block's rows (`Rows.blocks`).
Known = Callable[[np.ndarray], bool]


@dataclass(frozen=True)
class Block:
    """Hold the rows of some slots, with padding. A slot is a row's place in its source.

    The blocks of all samples have the same shape. The shape of a full batch's blocks
    may depend on n. No sum depends on a shape (proofs/exactness.md).

    Parameters
    ----------
    index : ndarray of int, shape (k,)
        Slots; -1 for padding.
    x : ndarray of float32, shape (k, n_features) or (k, 0)
        Features; (k, 0) if the pass already has the rows.
    y : ndarray of int, shape (k,) or (k, n_classes)
        Class indices, or label sets with 1 for the row's classes and 0 for others. A
        row with any other label adds zero to every sum.
    """

    index: np.ndarray
    x: np.ndarray
    y: np.ndarray


class Rows(Protocol):
    """Define the interface of a source of private rows.

    Attributes
    ----------
    n_rows : int
        Number of slots.
    n_features : int
        Number of features.
    group_cap : int or None
        Largest number of rows used per group; rows beyond it
        (`sampling.within_cap`) have no class. None if the unit of privacy is one row.
    """

    n_rows: int
    n_features: int
    group_cap: int | None

    def blocks(
        self,
        indices: np.ndarray | None = None,
        known: Known | None = None,
    ) -> Iterator[Block]:
        """Yield blocks that together hold each slot, or each of `indices`, once.

        The shape of the blocks must not depend on the number of `indices`.

        Parameters
        ----------
        indices : ndarray of int or None, default None
            The slots to yield; None for all.
        known : callable or None, default None
            Function that returns whether the pass already has the rows of a block's
            slots. Then the source may skip their features.
        """
        ...


class GroupedRows(Rows, Protocol):
    """Define the interface of a source of private rows with a group cap.

    Attributes
    ----------
    within : ndarray of bool, shape (n_rows,)
        Whether each row is within the group cap (`sampling.within_cap`).
    """

    within: np.ndarray


@dataclass(frozen=True)
class ReleaseSpec:
    """Describe one release, decided before any row is read.

    Parameters
    ----------
    label : str
        The solver's name for the release.
    statistic : str
        Name of the statistic (`Statistic.name`).
    clip_norm : float
        Clip norm R or C; inf only without noise.
    noise_multiplier : float
        Noise standard deviation over sensitivity. 0 means no noise and no privacy.
    n_rows : int
        Number of slots. Under add_remove, where n is private, the declared `nominal_n`.
    sampling_prob : float, default 1.0
        Sampling rate; 1 for the full batch.
    relation : {"zero_out", "add_remove", "replace_one"}, default "zero_out"
        The neighboring relation.
    group_cap : int or None, default None
        Largest number of rows used per group. None if the unit of privacy is one
        row.
    epoch_steps : int, default 1
        Number of equal consecutive releases in an epoch of random allocation, which
        uses each row in one of them. 1 means no allocation.
    private : bool, default True
        False if the noise is known, as with a seed. Such a release is charged as one
        without noise.

    Raises
    ------
    ValueError
        If a value has a wrong type or range, or if the release cannot be charged.
    """

    label: str
    statistic: str
    clip_norm: float
    noise_multiplier: float
    n_rows: int
    sampling_prob: float = 1.0
    relation: str = "zero_out"
    group_cap: int | None = None
    epoch_steps: int = 1
    private: bool = True

    def __post_init__(self) -> None:
        for name in ("label", "statistic"):
            value = getattr(self, name)
            text = f"{name} must be a str"
            require(isinstance(value, str), text, name, value, f"Use str({name}).")
        for name in ("clip_norm", "noise_multiplier", "sampling_prob"):
            value = getattr(self, name)
            # The ledger must hold exactly the number used for the noise. NumPy scalars
            # print and round differently, and float64 skips whole numbers above 2**53.
            whole = type(value) is int and abs(value) <= 2**53
            number, hint = f"{name} must be a Python float", f"Use float({name})."
            require(whole or isinstance(value, float), number, name, value, hint)
        # The noise is computed from these two numbers.
        c, sigma = self.clip_norm, self.noise_multiplier
        hint = "Use a number such as 1."
        require(c > 0, "clip_norm must be positive", "clip_norm", c, hint)
        finite = "noise_multiplier must be finite and at least 0"
        hint = "Use 0 for no noise."
        require(0 <= sigma < np.inf, finite, "noise_multiplier", sigma, hint)
        # This keeps units and sums far inside the range of float64 and int64.
        known = "clip_norm must be in [1e-6, 1e6] in a release with noise"
        hint = "Use a clip norm in this range, and rescale the features to fit it."
        require(sigma == 0 or 1e-6 <= c <= 1e6, known, "clip_norm", c, hint)
        check_whole("n_rows", self.n_rows, 0)
        # A release that cannot be charged is refused.
        check(relation=self.relation)
        check_pair([self.event()], self.relation)

    def event(self) -> GaussianEvent:
        """Return the accountant's event of the release."""
        # The same function makes the events of plans and of the ledger.
        return event_of(vars(self))

    def row(self) -> dict[str, Any]:
        """Return the spec as a dict for the ledger and the report.

        The defaults `epoch_steps=1` and `private=True` are omitted.
        """
        # The ledger compares this dict as JSON text, so every field must agree.
        row = asdict(self)
        if self.epoch_steps == 1:
            del row["epoch_steps"]
        if self.private:
            del row["private"]
        return row


@dataclass(frozen=True, eq=False)
class Released:
    """Hold the result of one release, which answers a solver's request.

    Parameters
    ----------
    value : ndarray of float64
        The sum with its noise, if any, in the statistic's shape and real units.
    noise_sd : float
        Standard deviation of each entry's noise before rounding, in the units of
        `value`; 0 without noise. In a symmetric sum, entries off the diagonal have a
        standard deviation of noise_sd / sqrt(2).
    """

    value: np.ndarray
    noise_sd: float


@dataclass(frozen=True, eq=False)
class SumTask:
    """Describe a sum without noise, which `release` requests and a kernel computes.

    Parameters
    ----------
    statistic : Statistic
        The statistic.
    params : Params
        Public numbers and earlier releases that the statistic uses.
    clip_norm : float
        Clip norm of the spec, or the number that replaces inf in fits without noise.
    rows : Rows or None, default None
        The rows to sum, or None if a caller passes blocks. A pass reuses the integers
        of an earlier pass only if both have the same `rows` object.
    indices : ndarray of int or None, default None
        Increasing slots of the sample; None for all slots.
    spec : ReleaseSpec or None, default None
        The release; None for an unreleased sum, such as a test with a known answer.
    """

    statistic: Statistic
    params: Params
    clip_norm: float
    rows: Rows | None = None
    indices: np.ndarray | None = None
    spec: ReleaseSpec | None = None

    @cached_property
    def weights(self) -> IntegerWeights | None:
        """Return a head's weights as integers; None for a network or without weights.

        The flat weights of a network stay unchanged in `params`.
        """
        weights = self.params.weights
        # A network has its own arithmetic, and its weights are one flat vector.
        if weights is None or np.ndim(weights) == 1:
            return None
        return integer_weights(weights)

    def shape(self, n_features: int) -> tuple[int, ...]:
        """Return the shape of the sum."""
        # The width counts the appended constant.
        return self.statistic.shape(self.params.transform.width(n_features))


class Summer(Protocol):
    """Define the interface of a sum over rows (`dphead.sums.verified.VerifiedSum`).

    Guarantee
    ---------
    None by itself. A wrong sum could exceed the sensitivity, so `VerifiedSum` checks
    sums (proofs/sums.md).
    """

    def __call__(self, task: SumTask) -> np.ndarray:
        """Return the exact integer sum of a task, int64 of the statistic's shape."""
        ...

    def largest_norm(self, task: SumTask) -> float:
        """Return the largest norm of a transformed row before the clip.

        Only fits without noise use this value.
        """
        ...
